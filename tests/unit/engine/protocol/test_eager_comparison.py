"""The verdict on eager execution, from timed pairs."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol import answers
from bexplore.engine.protocol.answers import EagerVerdict


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
