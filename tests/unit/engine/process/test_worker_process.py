"""A conversation with workers, or with the ranks of a job: each has its answer, and a bad one ends it for all."""

from __future__ import annotations

import os
import socket
import time
from multiprocessing.connection import Connection

import pytest

from bexplore.engine.process.limits import Limits, MemoryWatchdog, Patience
from bexplore.engine.process.worker_process import CLOSED_PIPE_S, Peer, converse
from bexplore.engine.protocol.messages import Done, Failed, Progress, lost, send
from bexplore.measurement.probe import Outcome

ENDED = lost(Outcome.CRASHED, "it ended")
PATIENT = Limits(stage_s=None)


@pytest.fixture
def pair():
    """Makes a peer and the end of the connection at which it works."""
    ends: list[Connection] = []

    def make(limits: Limits = PATIENT, **fields) -> tuple[Peer, Connection]:
        ours, theirs = (Connection(one.detach()) for one in socket.socketpair())
        ends.extend((ours, theirs))
        peer = Peer(
            pid=os.getpid(),
            name="it",
            connection=ours,
            patience=Patience(limits),
            watch=MemoryWatchdog(os.getpid(), None),
            failure_at_end=lambda: ENDED,
            **fields,
        )
        return peer, theirs

    yield make
    for one in ends:
        one.close()


def blame_the_last(peers):
    return max(peers), "; the others wait for it"


def test_each_peer_has_its_answer_and_the_first_reports(pair):
    (first, one), (second, other) = pair(), pair()
    reports = []
    for end, number in ((one, 1), (other, 2)):
        send(end, Progress(report={"stage": f"of {number}"}))
        send(end, Done(values={"number": number}))

    converse({0: first, 1: second}, reports.append, blame_the_last)

    assert [peer.answer.values for peer in (first, second)] == [{"number": 1}, {"number": 2}]
    assert reports == [{"stage": "of 1"}]


def test_a_bad_answer_leaves_the_others_a_moment_and_no_more(pair):
    (first, one), (second, _) = pair(), pair()
    send(one, Failed(outcome=Outcome.OUT_OF_MEMORY, reason="too big"))
    began_s = time.monotonic()

    converse({0: first, 1: second}, lambda report: None, blame_the_last)

    assert first.answer.reason == "too big"
    assert second.answer is None
    assert time.monotonic() - began_s >= CLOSED_PIPE_S


def test_an_end_and_a_garbled_message_are_answers(pair):
    (ended, its_end), (garbled, its_other) = pair(), pair()
    silent, _ = pair(has_ended=lambda: True)
    its_end.close()
    its_other.send_bytes(b"{}")

    for peer in (ended, garbled, silent):
        converse({0: peer}, lambda report: None, blame_the_last)

    assert (ended.answer, silent.answer) == (ENDED, ENDED)
    assert garbled.answer.reason.startswith("it sent what is not a message")


def test_of_peers_that_are_silent_for_too_long_one_is_to_blame(pair):
    (first, _), (second, _) = pair(Limits(stage_s=0.05)), pair()

    converse({0: first, 1: second}, lambda report: None, blame_the_last)

    assert first.answer is None
    assert (second.answer.outcome, second.answer.reason) == (Outcome.TIMED_OUT, "no progress; the others wait for it")


def test_a_process_that_is_gone_before_it_is_asked_has_answered(pair):
    peer, end = pair()
    end.close()

    peer.send(Progress(report={}))

    assert peer.answer == ENDED
