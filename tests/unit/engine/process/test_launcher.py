"""The words that start ranks; the socket at which they call, and who is heard there."""

from __future__ import annotations

import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from bexplore.engine.process import launcher
from bexplore.engine.process.launcher import LOOPBACK, MOST_HANDSHAKES, Launcher, RankListener, external_hint
from bexplore.engine.protocol.messages import Hello, send
from bexplore.errors import EngineError
from bexplore.host import logs

WORKER = f"{sys.executable} -P -m bexplore.engine.worker --connect 127.0.0.1:5"


def words(kind: str, num_ranks: int = 4) -> str:
    return shlex.join(Launcher(kind=kind, num_ranks=num_ranks).command("127.0.0.1:5", ()))


def test_torchrun_starts_the_ranks_of_this_host_once(monkeypatch):
    expected = "-m torch.distributed.run --standalone --nproc-per-node 4 --max-restarts 0 --no-python"
    assert words("torchrun") == f"{sys.executable} -P {expected} {WORKER}"


@pytest.mark.parametrize(("inside", "shared"), [(False, ""), (True, " --overlap")])
def test_srun_ends_all_ranks_with_one_and_shares_its_allocation(monkeypatch, inside, shared):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if inside:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert words("srun") == f"srun --ntasks 4 --kill-on-bad-exit=1{shared} {WORKER}"


def test_a_template_gets_the_worker_as_words_or_within_a_script():
    assert words("mpirun -n {num_ranks} {worker}") == f"mpirun -n 4 {WORKER}"
    script = shlex.split(words("sh -c 'ssh other {worker} & wait'"))
    assert script == ["sh", "-c", f"ssh other {WORKER} & wait"]


def test_the_key_stands_in_no_command():
    for kind in ("torchrun", "srun", "ray", "mpirun {worker}"):
        assert "KEY" not in words(kind)
    hint = external_hint("10.0.0.5:29400", 16)
    assert "--connect 10.0.0.5:29400" in hint
    assert "16 ranks" in hint


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


@pytest.mark.promise("a client with a guessed key", "refused and logged")
def test_a_client_with_another_key_is_refused_and_logged(listener, warned):
    with pytest.raises(AuthenticationError):
        Client(address(listener), authkey=b"guessed")

    assert listener.next_caller(0.2) is None
    assert [line["event"] for line in warned] == ["refused a connection"]
    assert warned[0]["address"] == LOOPBACK


@pytest.mark.promise("a client that says nothing", "keeps no rank from being heard")
def test_a_client_that_says_nothing_keeps_no_rank_from_being_heard(listener):
    with socket.create_connection(address(listener)), call(listener):
        assert listener.next_caller(5.0) is not None


@pytest.mark.promise("a client that says nothing for ever", "refused at the deadline")
def test_a_client_that_says_nothing_is_refused_in_time(listener, warned, monkeypatch):
    monkeypatch.setattr(launcher, "HANDSHAKE_S", 0.1)
    with socket.create_connection(address(listener)):
        await_that(lambda: warned)

    assert [line["event"] for line in warned] == ["refused a connection"]


def await_that(happened: Callable[[], object]) -> None:
    until_s = time.monotonic() + 30.0
    while not happened() and time.monotonic() < until_s:
        time.sleep(0.01)


@contextmanager
def dripping(listener: RankListener, number: int) -> Iterator[None]:
    """Clients that announce a message of 255 bytes and send a byte of it now and then."""
    ended = threading.Event()
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address(listener))) for _ in range(number)]

        def drip() -> None:
            open_ones = list(clients)
            data = b"\0\0\0\xff"
            while open_ones and not ended.wait(0.2):
                for client in list(open_ones):
                    try:
                        client.sendall(data)
                    except OSError:
                        open_ones.remove(client)  # refused
                data = b"x"

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        yield
        ended.set()
        thread.join()


@pytest.mark.promise("a client sends its handshake a byte at a time, for ever", "refused at the handshake's deadline")
def test_a_client_that_drips_bytes_is_refused_in_time(listener, warned, monkeypatch):
    monkeypatch.setattr(launcher, "HANDSHAKE_S", 0.5)
    with dripping(listener, 1):
        await_that(lambda: warned)

    assert "timed out" in warned[0]["reason"]


@pytest.mark.promise("more clients than there are places drip bytes", "ranks are heard at once; the oldest give way")
def test_clients_that_drip_bytes_keep_no_rank_from_being_heard(listener, warned):
    with dripping(listener, MOST_HANDSHAKES + 8):
        heard: list = []
        threading.Thread(target=lambda: heard.append(call(listener)), daemon=True).start()

        assert listener.next_caller(8.0) is not None  # less than the limit of a handshake
    for connection in heard:
        connection.close()


@pytest.mark.promise("clients without the key crowd one that has shown it", "the one with the key keeps its place")
def test_a_client_that_has_shown_the_key_gives_way_to_nobody(listener, warned):
    with ExitStack() as stack, Client(address(listener), authkey=listener.key.encode()) as connection:
        for _ in range(2 * MOST_HANDSHAKES):
            stack.enter_context(socket.create_connection(address(listener)))
        await_that(lambda: len(warned) > 1)
        send(connection, hello(1))
        caller = listener.next_caller(8.0)

    assert caller is not None and caller.hello == hello(1)


@pytest.mark.promise("thousands of refused connections", "one line in the log, then a number at each tenfold")
def test_refused_connections_do_not_fill_the_log(listener, warned):
    for _ in range(150):
        with socket.create_connection(address(listener)) as client:
            client.sendall(b"\xff" * 8)
    await_that(lambda: listener._num_refused == 150)
    listener.close()

    assert [line["event"] for line in warned] == ["refused a connection", *["refused connections"] * 3]
    assert [line["number"] for line in warned[1:]] == [10, 100, 150]


@pytest.mark.promise("a connection after the exploration", "refused: nothing listens any more")
def test_a_closed_listener_listens_no_more(listener):
    host, port = address(listener)
    listener.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))


@pytest.mark.promise("the explorer's host has no file descriptor left for a rank", "the listener tries again")
def test_a_host_without_a_descriptor_left_ends_no_listener(monkeypatch):
    create, failures = socket.create_server, [OSError(24, "Too many open files")]

    class Full(socket.socket):
        def accept(self):
            if failures:
                raise failures.pop()
            return super().accept()

    monkeypatch.setattr(socket, "create_server", lambda *args, **named: Full(fileno=create(*args, **named).detach()))
    listener = RankListener()
    try:
        with call(listener):
            assert listener.next_caller(8.0) is not None
    finally:
        listener.close()


@pytest.mark.promise("bytes with the key that are no message", "refused; nothing is unpickled")
def test_what_is_no_message_is_refused(listener, warned):
    with Client(address(listener), authkey=listener.key.encode()) as connection:
        connection.send_bytes(b"\x80\x04not json")
        assert listener.next_caller(0.5) is None

    assert "refused a connection" in warned[0]["event"]


@pytest.mark.promise("a connection from another host", "the listener is on loopback unless told otherwise")
def test_it_listens_on_loopback_alone_unless_told_otherwise(listener):
    assert address(listener)[0] == "127.0.0.1"


def test_an_address_of_another_machine_is_an_error_with_a_hint():
    with pytest.raises(EngineError, match="cannot listen") as raised:
        RankListener("192.0.2.1")
    assert "explore.rendezvous" in raised.value.hint


def test_what_a_close_shuts_down_is_not_logged_as_refused(listener, warned):
    with dripping(listener, 12):
        await_that(lambda: len(listener._unproven) == 12)
        listener.close()
        await_that(lambda: not any("_greet" in thread.name for thread in threading.enumerate()))

    assert warned == []
