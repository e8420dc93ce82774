"""What the engine adds to the final answer: eager against compiled, and the compiler's cache that is kept."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.engine.protocol import answers
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Outcome, Probe, Purpose
from bexplore.measurement.statistics import TIMING_S
from tests.builders import imported_job


def verification(micro_batch_size: int) -> Probe:
    return Probe(
        number=0,
        micro_batch_size=micro_batch_size,
        compilation=Compilation.EXACT,
        purpose=Purpose.VERIFY,
        max_passes=3,
    )


@pytest.mark.on_device
def test_eager_and_compiled_passes_are_timed_in_the_exact_size_s_worker(run_on):
    runner = run_on(imported_job())
    assert runner.compare_eager(micro_batch_size=4, tolerance=0.02) is None
    runner(verification(4))

    answer = runner.compare_eager(micro_batch_size=4, tolerance=10.0)

    assert len(answer["compiled_timings"]) == len(answer["eager_timings"]) >= answers.MIN_PAIRS
    for num_passes, seconds in answer["compiled_timings"] + answer["eager_timings"]:
        assert seconds >= TIMING_S
        assert num_passes > 1  # one pass of this job takes far less
    comparison = answers.judge(answer, micro_batch_size=4, tolerance=0.02)
    assert comparison.low < comparison.over_compiled < comparison.high
    assert min(comparison.compiled_timed_s, comparison.eager_timed_s) >= answers.MIN_PAIRS * TIMING_S
    assert answer["eager_peak_memory_bytes"] > 0
    assert runner.compare_eager(micro_batch_size=8, tolerance=0.02) is None


def test_a_comparison_ends_with_its_fewest_pairs_when_its_time_is_spent(run_on):
    runner = run_on(imported_job(), pass_budget_s=TIMING_S)
    runner(verification(4))

    answer = runner.compare_eager(micro_batch_size=4, tolerance=0.0)

    assert len(answer["compiled_timings"]) == len(answer["eager_timings"]) == answers.MIN_PAIRS


def test_a_long_eager_pass_is_not_run_once_more_to_warm_up(run_on, tmp_path):
    job = imported_job(compile=CompileSettings(enabled=False))
    runner = run_on(dataclasses.replace(job, model=job.model | {"model": "bugs:slow"}), pass_budget_s=0.1)
    log = tmp_path / "run" / "workers" / "worker_000.log"
    runner(verification(4))
    num_before = log.read_text().count("pass of 4")

    answer = runner.compare_eager(micro_batch_size=4, tolerance=0.02)

    num_timed = sum(num_passes for num_passes, _ in answer["compiled_timings"] + answer["eager_timings"])
    num_of_memory = 2  # passes of the step whose peak is read
    assert log.read_text().count("pass of 4") - num_before == num_timed + num_of_memory


@pytest.mark.on_device
def test_compiled_code_of_the_answer_is_kept_and_spares_the_next_start(run_on, monkeypatch):
    runner = run_on(imported_job(backend="inductor"), keeps_artifacts=True)
    cold = runner(verification(4))
    kept = runner.settings.artifacts_dir(4)
    graphs = {path: path.stat().st_mtime_ns for path in kept.glob("fxgraph/*/*/*")}
    runner.close()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept))

    warm = run_on(imported_job(backend="inductor"))(verification(4))

    assert (cold.outcome, warm.outcome) == (Outcome.MEASURED, Outcome.MEASURED)
    assert len(graphs) == 2  # forward and backward
    assert {path: path.stat().st_mtime_ns for path in kept.glob("fxgraph/*/*/*")} == graphs  # nothing was made anew


def test_a_probe_of_the_search_leaves_no_artifacts(run_on):
    runner = run_on(imported_job(), keeps_artifacts=True)
    runner(Probe(number=0, micro_batch_size=4, max_passes=2))

    assert not runner.settings.artifacts_dir(4).exists()
