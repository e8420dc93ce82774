"""Whose failure is the cause, and one answer of all ranks."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.answers import blamed, merged, named, with_end_of_rank
from bexplore.engine.protocol.messages import Done, Failed, Hello
from bexplore.measurement.probe import Outcome

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def failed(reason: str, outcome: Outcome = Outcome.CRASHED, **fields) -> Failed:
    return Failed(outcome=outcome, reason=reason, **fields)


DIED = failed("it ended without an answer", has_ended=True)
MEMORY = failed("the CPU allocator was refused memory", Outcome.OUT_OF_MEMORY)
BUG = failed("ValueError: the labels and the logits differ")
SURVIVOR = failed(LOST)
# As torch.distributed.elastic writes it: each failed rank, and the first one last.
REPORT = """
[0]:
  time      : 2026-11-23_23:00:00
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 29273)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_23:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 29274)
"""
SILENT = failed("no progress in stage 'passes' for 6 s", Outcome.TIMED_OUT, has_ended=True)


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (SURVIVOR, DIED, 1),
        (SURVIVOR, MEMORY, 1),
        (SURVIVOR, BUG, 1),
        (BUG, MEMORY, 1),
        (MEMORY, DIED, 1),
        (SILENT, BUG, 1),
        (SURVIVOR, SILENT, 1),
        (DIED, SURVIVOR, 0),
    ],
)
def test_the_cause_is_first_a_death_then_lack_of_memory_then_errors(first, second, cause):
    assert blamed({0: first, 1: second}) == cause
    assert blamed({1: second, 0: first}) == cause


def test_of_two_deaths_the_launcher_s_or_the_first_noticed_is_the_cause():
    assert blamed({0: DIED, 1: DIED}, REPORT) == 1
    assert blamed({1: DIED, 0: DIED}) == 1


@pytest.mark.parametrize(
    ("log", "rank", "outcome", "reason"),
    [
        (REPORT, 1, Outcome.CRASHED, "it was ended by SIGKILL"),
        (REPORT, 0, Outcome.CRASHED, "it exited with status 1 without an answer"),
        ("srun: error: node-1: task 1: Killed\n", 1, Outcome.CRASHED, "it was ended by SIGKILL"),
        ("srun: error: node-1: tasks 1-3,5: Killed\n", 2, Outcome.CRASHED, "it was ended by SIGKILL"),
        ("srun: error: node-1: task 2: Aborted (core dumped)\n", 2, Outcome.CRASHED, "it was ended by SIGABRT"),
        ("srun: error: node-1: task 0: Out Of Memory\n", 0, Outcome.OUT_OF_MEMORY, "the scheduler ended it for its"),
        ("srun: error: node-1: task 1: Killed\n", 2, Outcome.CRASHED, DIED.reason),
        ("", 0, Outcome.CRASHED, DIED.reason),
    ],
)
def test_a_rank_that_ended_has_the_end_that_its_launcher_wrote(log, rank, outcome, reason):
    found = with_end_of_rank(DIED, rank, log)

    assert (found.outcome, found.reason[: len(reason)]) == (outcome, reason)
    assert with_end_of_rank(BUG, rank, log) is BUG


def test_a_failure_names_its_rank_and_ends_the_group():
    hello = Hello(rank=3, local_rank=1, num_ranks=8, host="node7", pid=5)
    found = named(BUG, hello, num_ranks=8)
    assert found.reason == "rank 3 of 8 on node7: ValueError: the labels and the logits differ"
    assert found.has_ended
    assert not found.is_reusable
    assert found.details == {"failed_rank": 3, "failed_host": "node7"}


def measured(**values) -> Done:
    usual = {"pass_times_s": [0.1], "peak_memory_bytes": 10, "details": {"parallel": {"products_per_s": 5.0}}}
    return Done(values=usual | values, start_time_s=1.0, has_headroom=True)


def hellos(num_ranks: int) -> dict[int, Hello]:
    return {
        rank: Hello(rank=rank, local_rank=rank, num_ranks=num_ranks, host=f"node{rank}", pid=rank)
        for rank in range(num_ranks)
    }


def test_memory_and_compilation_are_the_worst_rank_s_times_the_agreed():
    answers = {0: measured(compile_time_s=2.0), 1: measured(peak_memory_bytes=12, compile_time_s=3.0)}
    whole = merged(answers, hellos(2), launcher="srun")
    assert (whole.values["peak_memory_bytes"], whole.values["compile_time_s"]) == (12, 3.0)
    assert whole.values["pass_times_s"] == [0.1]
    parallel = whole.values["details"]["parallel"]
    assert (parallel["launcher"], parallel["num_ranks"]) == ("srun", 2)
    assert [(one["rank"], one["host"]) for one in parallel["ranks"]] == [(0, "node0"), (1, "node1")]


def test_a_rank_that_compiled_alone_is_a_warning():
    answers = {0: measured(num_recompiles=0), 1: measured(num_recompiles=2)}
    assert "rank 1 compiled again" in merged(answers, hellos(2), launcher="ray").values["warnings"][-1]


def test_what_only_another_rank_warns_of_has_its_number():
    answers = {0: measured(warnings=["took 3 s"]), 1: measured(warnings=["took 5 s", "the disk is full"])}
    assert merged(answers, hellos(2), launcher="ray").values["warnings"] == ["took 3 s", "rank 1: the disk is full"]


def test_of_free_memory_the_smallest_counts():
    answers = {0: Done(values={"free_memory_bytes": 7, "device": "cuda:0"}), 1: Done(values={"free_memory_bytes": 5})}
    assert merged(answers, hellos(2), launcher="ray").values == {"free_memory_bytes": 5, "device": "cuda:0"}


def test_a_rank_without_headroom_is_no_place_for_a_larger_size():
    tight = Done(values={}, has_headroom=False)
    assert merged({0: Done(values={}, has_headroom=True), 1: tight}, hellos(2), launcher="ray").has_headroom is False
