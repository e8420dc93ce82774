"""The place that a launcher gives to a process."""

from __future__ import annotations

import socket
import threading
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import pytest

from bexplore.engine.process.launcher import KEY_VARIABLE, LOOPBACK
from bexplore.engine.protocol.messages import Hello, receive
from bexplore.engine.worker import context
from bexplore.engine.worker.context import ALONE, call, read_place


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 1, 8)),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}, (3, 1, 8)),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
            (3, 1, 8),
        ),
        ({"RANK": "3"}, ALONE),
        ({}, ALONE),
    ],
)
def test_each_launcher_gives_a_rank_by_its_own_variables(environment, place):
    assert read_place(environment) == place


def test_torchrun_inside_of_slurm_goes_before_slurm():
    both = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    assert read_place(both | {"SLURM_NTASKS": "2"}) == (5, 1, 8)


@pytest.mark.promise("a rank's connection ends before its handshake", "the rank calls again")
def test_a_rank_whose_call_is_cut_off_calls_again(monkeypatch):
    monkeypatch.setattr(context, "CALL_PERIOD_S", 0.0)
    monkeypatch.setenv(KEY_VARIABLE, "key")
    heard: list[Hello] = []

    def serve() -> None:
        server.accept()[0].close()
        with Connection(server.accept()[0].detach()) as connection:
            deliver_challenge(connection, b"key")
            answer_challenge(connection, b"key")
            heard.append(receive(connection, (Hello,)))

    with socket.create_server((LOOPBACK, 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        call(f"{LOOPBACK}:{server.getsockname()[1]}", ALONE).close()
        thread.join(30.0)

    assert [one.rank for one in heard] == [0]
