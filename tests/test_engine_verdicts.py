"""What the engine adds to the final answer: eager against compiled, and the compiler's cache that is kept."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import imported_job

from bexplore.engine import eager
from bexplore.job import CompileSettings
from bexplore.probe import Compilation, Probe, Purpose


def judged(compiled_s: list[float], eager_s: list[float], **fields) -> eager.EagerComparison:
    answer = {"compiled_pass_times_s": compiled_s, "eager_pass_times_s": eager_s, "eager_peak_memory_bytes": None}
    return eager.judge(answer, micro_batch_size=8, tolerance=0.02, asked=True, **fields)


def verification(micro_batch_size: int) -> Probe:
    return Probe(
        number=0,
        micro_batch_size=micro_batch_size,
        compilation=Compilation.EXACT,
        purpose=Purpose.VERIFY,
        max_passes=3,
    )


def test_eager_is_faster_only_beyond_the_tolerance_and_in_every_pair():
    assert judged([1.1, 1.1], [1.0, 1.0]).is_faster
    assert not judged([1.01, 1.01], [1.0, 1.0]).is_faster
    assert not judged([1.2, 1.2, 0.9], [1.0, 1.0, 1.0]).is_faster
    assert judged([1.1, 1.1], [1.0, 1.0]).over_compiled == pytest.approx(1.1)
    assert judged([1.1, 1.1], [1.0, 1.0]).samples_per_s == pytest.approx(8.0)


def test_eager_that_does_not_run_is_neither_faster_nor_slower():
    comparison = eager.judge({"problem": "no memory"}, micro_batch_size=8, tolerance=0.02, asked=True)

    assert (comparison.is_faster, comparison.over_compiled, comparison.problem) == (None, None, "no memory")


def test_a_look_that_nobody_asked_for_stays_cheap():
    assert eager.look_is_cheap(pass_time_s=0.1, elapsed_s=60.0)
    assert not eager.look_is_cheap(pass_time_s=5.0, elapsed_s=60.0)


def test_eager_and_compiled_passes_are_timed_in_the_worker_that_ran_the_size_exactly(run_on):
    runner = run_on(imported_job())
    assert runner.compare_eager(micro_batch_size=4, num_pairs=2, is_thorough=True) is None
    runner(verification(4))

    answer = runner.compare_eager(micro_batch_size=4, num_pairs=2, is_thorough=True)

    assert (len(answer["compiled_pass_times_s"]), len(answer["eager_pass_times_s"])) == (2, 2)
    assert answer["eager_peak_memory_bytes"] > 0
    assert runner.compare_eager(micro_batch_size=8, num_pairs=2, is_thorough=True) is None


def test_a_long_eager_pass_is_not_run_once_more_to_warm_up(run_on, tmp_path):
    job = imported_job(compile=CompileSettings(enabled=False))
    runner = run_on(dataclasses.replace(job, model=job.model | {"model": "bugs:slow"}))
    log = tmp_path / "run" / "workers" / "worker_000.log"
    runner(verification(4))
    num_before = log.read_text().count("pass of 4")

    answer = runner.compare_eager(micro_batch_size=4, num_pairs=2, is_thorough=True)

    num_timed = len(answer["compiled_pass_times_s"]) + len(answer["eager_pass_times_s"])
    assert log.read_text().count("pass of 4") - num_before == num_timed + 2  # those of the step whose peak is read


def test_what_the_compiler_makes_of_the_final_answer_is_kept_and_spares_the_next_start(run_on, monkeypatch):
    runner = run_on(imported_job(backend="inductor"), keeps_artifacts=True)
    cold = runner(verification(4))
    kept = runner.artifacts_dir(4)
    graphs = set(kept.glob("fxgraph/*/*/*"))
    runner.close()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept))

    warm = run_on(imported_job(backend="inductor"))(verification(4))

    assert len(graphs) == 2  # forward and backward
    assert set(kept.glob("fxgraph/*/*/*")) == graphs
    assert warm.compile_time_s < cold.compile_time_s


def test_a_probe_of_the_search_leaves_no_artifacts(run_on):
    runner = run_on(imported_job(), keeps_artifacts=True)
    runner(Probe(number=0, micro_batch_size=4, max_passes=2))

    assert not runner.artifacts_dir(4).exists()
