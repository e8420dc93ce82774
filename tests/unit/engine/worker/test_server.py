"""The worker's end of the pipe, without torch."""

from __future__ import annotations

import gc
import os
import socket
from multiprocessing.connection import Connection
from queue import SimpleQueue

import pytest

from bexplore.engine.protocol.messages import FROM_WORKER, DeviceInfo, receive, send
from bexplore.engine.worker import context, server


@pytest.fixture
def pipe(monkeypatch):
    """The explorer's end, the worker's, and whether the worker has ended itself."""
    ended = []
    monkeypatch.setattr(server, "kill_own_group", lambda: ended.append(True))
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    yield ours, theirs, ended
    ours.close()


@pytest.mark.promise("the explorer is killed", "a worker ends itself and all that it started")
def test_a_worker_without_explorer_ends_itself_and_all_it_started(pipe):
    ours, theirs, ended = pipe
    send(ours, DeviceInfo(device="cpu"))
    ours.close()
    requests: SimpleQueue = SimpleQueue()

    server.listen(theirs, requests, server.Sender(theirs))

    assert requests.get() == DeviceInfo(device="cpu")
    assert ended == [True]


@pytest.mark.parametrize("becomes", ["closed", "an empty file"])
def test_a_worker_whose_own_end_was_closed_knows_its_explorer_lives(pipe, monkeypatch, becomes):
    _, theirs, ended = pipe

    def interrupted(connection, kinds):  # a read that is begun again finds what the number names now
        if becomes == "closed":
            os.close(connection.fileno())
        else:
            os.dup2(os.open(os.devnull, os.O_RDONLY), connection.fileno())
        return receive(connection, kinds)

    monkeypatch.setattr(server, "receive", interrupted)

    server.listen(theirs, SimpleQueue(), server.Sender(theirs))
    theirs._handle = None  # nothing of it is left to close

    assert ended == []


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"kind": "Unknown"}',
        b'{"kind": "Done", "surprise": 1}',
        b'{"kind": "DeviceInfo", "device": ""}',
        b"7",
    ],
)
@pytest.mark.promise("a message to or from a worker that is none", "refused by its form; nothing is unpickled")
def test_what_is_no_message_is_a_value_error(pipe, text):
    ours, theirs, _ = pipe
    theirs.send_bytes(text)
    with pytest.raises(ValueError):
        receive(ours, FROM_WORKER)


def test_what_a_worker_imports_is_left_out_of_later_collections():
    frozen = gc.get_freeze_count()
    try:
        with context.uncollected():
            assert not gc.isenabled()

        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def frame_of(path: str, name: str = "work"):
    """A frame whose code lies in a file of this path."""
    source = f"def {name}():\n    return __import__('sys')._getframe()\n"
    space: dict = {}
    exec(compile(source, path, "exec"), space)
    return space[name]()


@pytest.mark.parametrize(
    ("path", "name", "waits"),
    [
        ("/site-packages/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/bexplore/engine/worker/ranks.py", "begin_together", True),
        ("/site-packages/torch/autograd/graph.py", "_engine_run_backward", True),
        ("/home/me/model.py", "forward", False),
    ],
)
def test_a_worker_reports_whether_it_waits_for_other_ranks(path, name, waits):
    assert server.whereabouts(frame_of(path, name)).waits_for_ranks is waits


def test_a_worker_reports_the_line_of_the_users_code_that_runs():
    assert server.whereabouts(frame_of("/home/me/model.py", "forward")).place == "model.py:2 in forward"


def test_a_thread_that_is_gone_is_nowhere():
    assert server.whereabouts(None).place == ""
