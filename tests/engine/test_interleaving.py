"""Interleaved timing, in a worker."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.job import Job
from bexplore.measurement.interleaving import InterleavedTiming
from bexplore.measurement.probe import Outcome, Probe, Purpose
from tests.builders import imported_job


def num_rounds(rounds: InterleavedTiming) -> int:
    return len(rounds.interleaved_times_s[8])


def odd_only() -> Job:
    """A job whose model refuses even sizes."""
    job = imported_job()
    return dataclasses.replace(job, model=job.model | {"model": "bugs:odd_only"})


def probe(number: int, size: int, **fields) -> Probe:
    return Probe(number=number, micro_batch_size=size, max_passes=4, **fields)


@pytest.mark.on_device
def test_the_engine_times_sizes_interleaved_in_one_worker(run_on):
    runner = run_on(imported_job())
    first = runner(probe(0, 4))

    second = runner(probe(1, 8, interleaved_with=(4,)))
    again = runner(probe(2, 4, interleaved_with=(8,), purpose=Purpose.CONTENDER))

    assert first.interleaved_times_s == {}
    (num_rounds,) = {len(times_s) for times_s in second.interleaved_times_s.values()}
    assert set(second.interleaved_times_s) == {8, 4}
    assert 4 <= num_rounds <= 8  # more than four where somebody else disturbed some
    assert set(again.interleaved_times_s) == {4, 8}
    assert {o.worker for o in (first, second, again)} == {0}
    assert again.peak_memory_bytes == first.peak_memory_bytes
    assert len(again.update_times_s) == 3
    assert "not_interleaved" not in second.details | again.details


@pytest.mark.on_device
def test_a_size_that_fails_takes_no_round_and_the_other_runs_alone(run_on):
    runner = run_on(odd_only())
    runner(probe(0, 3))

    observation = runner(probe(1, 5, interleaved_with=(3, 4)))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert observation.interleaved_times_s == {}
    assert "pairs its samples" in observation.details["not_interleaved"]


@pytest.mark.on_device
def test_after_a_failure_the_new_worker_interleaves_sizes_of_the_old_one(run_on):
    runner = run_on(odd_only())
    runner(probe(0, 3))
    assert runner(probe(1, 4)).outcome is Outcome.CRASHED

    observation = runner(probe(2, 5, interleaved_with=(3,)))

    assert observation.worker == 1
    assert set(observation.interleaved_times_s) == {5, 3}
    assert not [warning for warning in observation.warnings if "compiler" in warning]
    assert runner(probe(3, 3, interleaved_with=(5,))).peak_memory_bytes > 0
