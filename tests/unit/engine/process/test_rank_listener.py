"""The socket at which ranks call, and who is heard there."""

from __future__ import annotations

import socket
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from bexplore.engine.process import rank_listener
from bexplore.engine.process.rank_listener import LOOPBACK, RankListener
from bexplore.engine.protocol.messages import Hello, send
from bexplore.errors import EngineError
from bexplore.host import logs


@pytest.fixture
def listener():
    made = RankListener()
    yield made
    made.close()


def address(listener: RankListener) -> tuple[str, int]:
    host, _, port = listener.address.rpartition(":")
    return host, int(port)


def hello(rank: int = 0) -> Hello:
    return Hello(rank=rank, local_rank=rank, num_ranks=2, host="a", pid=1)


def call(listener: RankListener, rank: int = 0):
    connection = Client(address(listener), authkey=listener.key.encode())
    send(connection, hello(rank))
    return connection


@pytest.fixture
def warned(monkeypatch):
    lines: list[dict] = []
    monkeypatch.setattr(logs.log, "warning", lambda event, **values: lines.append({"event": event, **values}))
    return lines


def test_a_rank_with_the_key_is_heard_and_says_who_it_is(listener):
    with call(listener, 1):
        caller = listener.next_caller(5.0)

    assert caller is not None
    assert (caller.hello, caller.address) == (hello(1), LOOPBACK)


def test_a_client_with_another_key_is_refused_and_logged(listener, warned):
    with pytest.raises(AuthenticationError):
        Client(address(listener), authkey=b"guessed")

    assert listener.next_caller(0.2) is None
    assert [line["event"] for line in warned] == ["refused a connection"]
    assert warned[0]["address"] == LOOPBACK


def test_a_client_that_says_nothing_keeps_no_rank_from_being_heard(listener):
    with socket.create_connection(address(listener)), call(listener):
        assert listener.next_caller(5.0) is not None


def test_a_client_that_says_nothing_is_refused_in_time(listener, warned, monkeypatch):
    monkeypatch.setattr(rank_listener, "HANDSHAKE_S", 0.1)
    with socket.create_connection(address(listener)):
        until_s = time.monotonic() + 30.0
        while not warned and time.monotonic() < until_s:
            time.sleep(0.01)

    assert [line["event"] for line in warned] == ["refused a connection"]


def test_what_is_no_message_is_refused(listener, warned):
    with Client(address(listener), authkey=listener.key.encode()) as connection:
        connection.send_bytes(b"\x80\x04not json")
        assert listener.next_caller(0.5) is None

    assert "refused a connection" in warned[0]["event"]


def test_it_listens_on_loopback_alone_unless_told_otherwise(listener):
    assert address(listener)[0] == "127.0.0.1"


def test_an_address_of_another_machine_is_an_error_with_a_hint():
    with pytest.raises(EngineError, match="cannot listen") as raised:
        RankListener("192.0.2.1")
    assert "explore.rendezvous" in raised.value.hint
