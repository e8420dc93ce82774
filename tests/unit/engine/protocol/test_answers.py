"""From a worker's answer to an observation."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.answers import answers_both, charged
from bexplore.engine.protocol.answers import observed as observation_of
from bexplore.engine.protocol.messages import Done, Failed
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import observed

PROBE = Probe(number=0, micro_batch_size=4)
MIB = 2**20


def answered(answer, *, budget: int | None = None, warnings=(), spawn_s: float = 2.0):
    return observation_of(answer, spawn_s=spawn_s, warnings=warnings, probe=PROBE, memory_budget_bytes=budget)


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

    found = charged(own, ahead)

    assert (found.start_time_s, found.elapsed_s, found.started_at_s) == (start_s, 11.0, 100.0)
