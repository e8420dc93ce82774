"""The worker's end of the pipe, without torch."""

from __future__ import annotations

import gc
import os
import socket
import threading
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
    frames = [server.Frame("/site-packages/torch/_ops.py", 7, "call"), server.Frame(path, 33, name)]
    assert server.find_whereabouts(frames).waits_for_ranks is waits


def test_a_worker_reports_the_innermost_line_of_the_users_code():
    frames = [
        server.Frame("/site-packages/torch/nn/modules/linear.py", 125, "forward"),
        server.Frame("/home/me/model.py", 33, "forward"),
        server.Frame("/home/me/train.py", 7, "main"),
    ]
    assert server.find_whereabouts(frames).place == "model.py:33 in forward"


def test_the_frames_of_a_thread_are_read_innermost_first():
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        found = server.read_frames(thread.ident)
    finally:
        is_over.set()
        thread.join()

    assert found[0].name == "wait" and found[-1].name == "_bootstrap"
    assert found[0].path == threading.__file__ and found[0].line > 1


def test_a_thread_that_is_gone_is_nowhere():
    assert server.find_whereabouts(server.read_frames(1)).place == ""
