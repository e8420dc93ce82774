"""From answers to an observation: of one worker, of all ranks (whose failure is the cause), of eager pairs."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol import answers
from bexplore.engine.protocol.answers import (
    EagerVerdict,
    answers_both,
    charge_for,
    find_blamed_rank,
    make_observation,
    merge_answers,
    name_rank_of,
    with_end_of_rank,
)
from bexplore.engine.protocol.messages import Done, Failed, Hello
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import observed

PROBE = Probe(number=0, micro_batch_size=4)
MIB = 2**20


def answered(answer, *, budget: int | None = None, warnings=(), spawn_s: float = 2.0):
    return make_observation(answer, spawn_s=spawn_s, warnings=warnings, probe=PROBE, memory_budget_bytes=budget)


def test_times_become_tuples_and_sizes_numbers():
    values = {"pass_times_s": [0.1, 0.2], "update_times_s": [0.3], "interleaved_times_s": {"4": [0.1], "8": [0.2]}}

    observation = answered(Done(values=values, start_time_s=3.0))

    assert observation.outcome is Outcome.MEASURED
    assert observation.pass_times_s == (0.1, 0.2)
    assert observation.update_times_s == (0.3,)
    assert observation.interleaved_times_s == {4: (0.1,), 8: (0.2,)}
    assert observation.start_time_s == 5.0


@pytest.mark.parametrize(
    ("peak", "budget", "outcome"),
    [
        (64 * MIB, 64 * MIB, Outcome.MEASURED),
        (65 * MIB, 64 * MIB, Outcome.OUT_OF_MEMORY),
        (65 * MIB, None, Outcome.MEASURED),
        (None, 64 * MIB, Outcome.MEASURED),
    ],
)
def test_a_peak_over_the_budget_is_out_of_memory_and_its_times_are_kept(peak, budget, outcome):
    observation = answered(Done(values={"peak_memory_bytes": peak, "pass_times_s": [0.1]}), budget=budget)

    assert observation.outcome is outcome
    assert observation.pass_times_s == (0.1,)
    assert ("1.00 MiB over the budget of 64.0 MiB" in observation.reason) is (outcome is Outcome.OUT_OF_MEMORY)


def test_resident_memory_over_the_budget_refuses_nothing():
    values = {"peak_memory_bytes": MIB, "resident_memory_bytes": 90 * MIB}

    assert answered(Done(values=values), budget=64 * MIB).outcome is Outcome.MEASURED


def test_a_failure_keeps_its_reason_its_traceback_and_its_details():
    failed = Failed(
        outcome=Outcome.CRASHED, reason="bad", traceback_text="Traceback", details={"a": 1}, start_time_s=1.0
    )

    observation = answered(failed, warnings=("w",))

    assert (observation.outcome, observation.reason, observation.traceback_text) == (
        Outcome.CRASHED,
        "bad",
        "Traceback",
    )
    assert (observation.details, observation.warnings, observation.start_time_s) == ({"a": 1}, ("w",), 3.0)
    assert observation.pass_times_s == ()


def test_a_worker_that_ended_has_no_start_to_charge():
    observation = answered(Failed(outcome=Outcome.CRASHED, reason="SIGKILL", has_ended=True), warnings=("w",))

    assert (observation.start_time_s, observation.warnings) == (0.0, ())


def test_warnings_of_the_worker_come_before_the_runners():
    assert answered(Done(values={"warnings": ["a"]}), warnings=("b",)).warnings == ("a", "b")


def test_one_answer_serves_probes_of_one_size_and_program():
    assert answers_both(PROBE, Probe(number=7, micro_batch_size=4, max_passes=2))
    assert not answers_both(PROBE, Probe(number=0, micro_batch_size=5))
    assert not answers_both(PROBE, Probe(number=0, micro_batch_size=4, compilation=Compilation.EXACT))


@pytest.mark.parametrize(("worker", "start_s"), [(0, 5.0), (1, 1.0)])
def test_work_ahead_is_charged_and_its_start_to_the_same_worker_alone(worker, start_s):
    ahead = observed(4, worker=0, start_time_s=4.0, elapsed_s=9.0, started_at_s=100.0)
    own = observed(4, worker=worker, start_time_s=1.0, elapsed_s=2.0, started_at_s=110.0)

    found = charge_for(own, ahead)

    assert (found.start_time_s, found.elapsed_s, found.started_at_s) == (start_s, 11.0, 100.0)


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
    assert find_blamed_rank({0: first, 1: second}) == cause
    assert find_blamed_rank({1: second, 0: first}) == cause


def test_of_two_deaths_the_launcher_s_or_the_first_noticed_is_the_cause():
    assert find_blamed_rank({0: DIED, 1: DIED}, REPORT) == 1
    assert find_blamed_rank({1: DIED, 0: DIED}) == 1


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
    found = name_rank_of(BUG, hello, num_ranks=8)
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
    whole = merge_answers(answers, hellos(2), launcher="srun")
    assert (whole.values["peak_memory_bytes"], whole.values["compile_time_s"]) == (12, 3.0)
    assert whole.values["pass_times_s"] == [0.1]
    parallel = whole.values["details"]["parallel"]
    assert (parallel["launcher"], parallel["num_ranks"]) == ("srun", 2)
    assert [(one["rank"], one["host"]) for one in parallel["ranks"]] == [(0, "node0"), (1, "node1")]


def test_a_rank_that_compiled_alone_is_a_warning():
    answers = {0: measured(num_recompiles=0), 1: measured(num_recompiles=2)}
    assert "rank 1 compiled again" in merge_answers(answers, hellos(2), launcher="ray").values["warnings"][-1]


def test_what_only_another_rank_warns_of_has_its_number():
    answers = {0: measured(warnings=["took 3 s"]), 1: measured(warnings=["took 5 s", "the disk is full"])}
    found = merge_answers(answers, hellos(2), launcher="ray")

    assert found.values["warnings"] == ["took 3 s", "rank 1: the disk is full"]


def test_of_free_memory_the_smallest_counts():
    answers = {0: Done(values={"free_memory_bytes": 7, "device": "cuda:0"}), 1: Done(values={"free_memory_bytes": 5})}
    assert merge_answers(answers, hellos(2), launcher="ray").values == {"free_memory_bytes": 5, "device": "cuda:0"}


def test_a_rank_without_headroom_is_no_place_for_a_larger_size():
    tight = Done(values={}, has_headroom=False)
    found = merge_answers({0: Done(values={}, has_headroom=True), 1: tight}, hellos(2), launcher="ray")

    assert found.has_headroom is False


def judged(compiled_s: list[float], eager_s: list[float]) -> answers.EagerComparison:
    """Of rounds with 20 passes each."""
    answer = {
        "compiled_timings": [(20, 20 * seconds) for seconds in compiled_s],
        "eager_timings": [(20, 20 * seconds) for seconds in eager_s],
        "eager_peak_memory_bytes": None,
    }
    return answers.judge(answer, micro_batch_size=8, tolerance=0.02)


@pytest.mark.parametrize(
    ("compiled_s", "verdict"),
    [
        ((1.10, 1.11, 1.10, 1.09, 1.10), EagerVerdict.FASTER),
        ((0.90, 0.91, 0.90, 0.89, 0.90), EagerVerdict.SLOWER),
        ((1.00, 1.01, 1.00, 0.99, 1.00), EagerVerdict.SAME),
        ((1.03, 1.01, 1.00, 1.04, 1.02), EagerVerdict.UNSURE),  # perhaps faster, but perhaps by less than the tolerance
        ((0.01, 0.90, 1.10, 1.05, 1.20), EagerVerdict.UNSURE),  # one round that was disturbed
    ],
)
def test_the_verdict_on_eager_is_that_of_the_whole_interval(compiled_s, verdict):
    comparison = judged(list(compiled_s), [1.0] * 5)

    assert comparison.verdict is verdict
    assert comparison.low < comparison.over_compiled < comparison.high


def test_what_was_timed_of_each_side_is_recorded():
    comparison = judged([1.1] * 6, [1.0] * 6)

    assert (comparison.compiled_timed_s, comparison.eager_timed_s) == pytest.approx((132.0, 120.0))
    assert (comparison.num_pairs, comparison.samples_per_s) == (6, pytest.approx(8.0))


def test_eager_that_does_not_run_is_neither_faster_nor_slower():
    comparison = answers.judge({"problem": "no memory"}, micro_batch_size=8, tolerance=0.02)

    assert (comparison.verdict, comparison.over_compiled, comparison.problem) == (None, None, "no memory")


@pytest.mark.parametrize(
    ("num_pairs", "scatter", "is_spent", "enough"),
    [
        (5, 0.001, False, True),
        (5, 0.1, False, False),  # too wide: more pairs
        (5, 0.1, True, True),
        (4, 0.001, False, False),
        (4, 0.001, True, False),  # the fewest pairs are run whatever they take
    ],
)
def test_pairs_follow_until_the_interval_is_narrow_or_time_is_spent(num_pairs, scatter, is_spent, enough):
    compiled_s = [1.0 + scatter * (-1) ** number for number in range(num_pairs)]
    options = {"tolerance": 0.02, "is_spent": is_spent}

    assert answers.are_enough(compiled_s, [1.0] * num_pairs, **options) is enough
