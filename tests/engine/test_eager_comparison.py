"""What the engine adds to the final answer: eager against compiled, and the compiler's cache that is kept."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.engine import eager_comparison
from bexplore.engine.eager_comparison import Verdict
from bexplore.job import CompileSettings
from bexplore.measurement.interleaving import TIMING_S
from bexplore.measurement.probe import Compilation, Probe, Purpose
from tests.builders import imported_job


def judged(compiled_s: list[float], eager_s: list[float], *, asked: bool = True) -> eager_comparison.EagerComparison:
    """Of turns with 20 passes each."""
    answer = {
        "compiled_turns": [(20, 20 * seconds) for seconds in compiled_s],
        "eager_turns": [(20, 20 * seconds) for seconds in eager_s],
        "eager_peak_memory_bytes": None,
    }
    comparison = eager_comparison.judge(answer, micro_batch_size=8, tolerance=0.02, asked=asked)
    assert comparison is not None
    return comparison


def verification(micro_batch_size: int) -> Probe:
    return Probe(
        number=0,
        micro_batch_size=micro_batch_size,
        compilation=Compilation.EXACT,
        purpose=Purpose.VERIFY,
        max_passes=3,
    )


@pytest.mark.parametrize(
    ("compiled_s", "verdict"),
    [
        ((1.10, 1.11, 1.10, 1.09, 1.10), Verdict.FASTER),
        ((0.90, 0.91, 0.90, 0.89, 0.90), Verdict.SLOWER),
        ((1.00, 1.01, 1.00, 0.99, 1.00), Verdict.SAME),
        ((1.03, 1.01, 1.00, 1.04, 1.02), Verdict.UNSURE),  # perhaps faster, but perhaps by less than the tolerance
        ((0.01, 0.90, 1.10, 1.05, 1.20), Verdict.UNSURE),  # one turn that was disturbed
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


def test_a_look_that_was_cut_short_says_nothing():
    short = {"compiled_turns": [(1, 1.0)] * 4, "eager_turns": [(1, 1.0)] * 4, "eager_peak_memory_bytes": None}

    assert eager_comparison.judge(short, micro_batch_size=8, tolerance=0.02, asked=False) is None


def test_eager_that_does_not_run_is_neither_faster_nor_slower():
    comparison = eager_comparison.judge({"problem": "no memory"}, micro_batch_size=8, tolerance=0.02, asked=True)

    assert (comparison.verdict, comparison.over_compiled, comparison.problem) == (None, None, "no memory")


@pytest.mark.parametrize(
    ("num_pairs", "scatter", "is_spent", "asked", "enough"),
    [
        (5, 0.001, False, True, True),
        (5, 0.1, False, True, False),  # too wide: more pairs
        (5, 0.1, True, True, True),
        (4, 0.001, False, True, False),
        (4, 0.001, True, True, False),  # what was asked for has its fewest pairs whatever they take
        (4, 0.001, True, False, True),
    ],
)
def test_pairs_of_turns_follow_until_the_interval_is_narrow_or_the_time_is_spent(
    num_pairs, scatter, is_spent, asked, enough
):
    compiled_s = [1.0 + scatter * (-1) ** number for number in range(num_pairs)]
    options = {"tolerance": 0.02, "is_spent": is_spent, "asked": asked}

    assert eager_comparison.are_enough(compiled_s, [1.0] * num_pairs, **options) is enough


def test_a_look_ends_as_soon_as_eager_is_seen_to_be_slower():
    compiled_s, eager_s = [1.0, 1.2, 1.0, 1.2, 1.0], [2.0] * 5
    options = {"tolerance": 0.02, "is_spent": False}

    assert eager_comparison.are_enough(compiled_s, eager_s, asked=False, **options)
    assert not eager_comparison.are_enough(compiled_s, eager_s, asked=True, **options)


def test_a_look_that_nobody_asked_for_stays_cheap():
    assert eager_comparison.comparison_is_cheap(pass_time_s=0.1, elapsed_s=60.0)
    assert not eager_comparison.comparison_is_cheap(pass_time_s=5.0, elapsed_s=60.0)
    assert not eager_comparison.comparison_is_cheap(
        pass_time_s=1e-4, elapsed_s=10.0
    )  # short passes are timed for as long as others


def test_eager_and_compiled_passes_are_timed_in_long_turns_in_the_worker_that_ran_the_size_exactly(run_on):
    runner = run_on(imported_job())
    assert runner.compare_eager(micro_batch_size=4, tolerance=0.02, asked=True) is None
    runner(verification(4))

    answer = runner.compare_eager(micro_batch_size=4, tolerance=10.0, asked=True)

    assert len(answer["compiled_turns"]) == len(answer["eager_turns"]) >= eager_comparison.MIN_PAIRS
    for num_passes, seconds in answer["compiled_turns"] + answer["eager_turns"]:
        assert seconds >= TIMING_S
        assert num_passes > 1  # one pass of this job takes far less
    comparison = eager_comparison.judge(answer, micro_batch_size=4, tolerance=0.02, asked=True)
    assert comparison.low < comparison.over_compiled < comparison.high
    assert min(comparison.compiled_timed_s, comparison.eager_timed_s) >= eager_comparison.MIN_PAIRS * TIMING_S
    assert answer["eager_peak_memory_bytes"] > 0
    assert runner.compare_eager(micro_batch_size=8, tolerance=0.02, asked=True) is None


def test_a_look_ends_when_its_time_is_spent(run_on):
    runner = run_on(imported_job())
    runner(verification(4))

    answer = runner.compare_eager(micro_batch_size=4, tolerance=0.02, asked=False, max_s=TIMING_S)

    assert len(answer["compiled_turns"]) == len(answer["eager_turns"]) == 1


def test_a_long_eager_pass_is_not_run_once_more_to_warm_up(run_on, tmp_path):
    job = imported_job(compile=CompileSettings(enabled=False))
    runner = run_on(dataclasses.replace(job, model=job.model | {"model": "bugs:slow"}))
    log = tmp_path / "run" / "workers" / "worker_000.log"
    runner(verification(4))
    num_before = log.read_text().count("pass of 4")

    answer = runner.compare_eager(micro_batch_size=4, tolerance=0.02, asked=False, max_s=1.0)

    num_timed = sum(num_passes for num_passes, _ in answer["compiled_turns"] + answer["eager_turns"])
    assert log.read_text().count("pass of 4") - num_before == num_timed == 2


def test_what_the_compiler_makes_of_the_final_answer_is_kept_and_spares_the_next_start(run_on, monkeypatch):
    runner = run_on(imported_job(backend="inductor"), keeps_artifacts=True)
    cold = runner(verification(4))
    kept = runner.settings.artifacts_dir(4)
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

    assert not runner.settings.artifacts_dir(4).exists()
