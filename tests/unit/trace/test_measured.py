"""The fit of measured steps: each moment, parabolas that a fourth size confirms, peaks where moments differ."""

from __future__ import annotations

import pytest

from bexplore.trace.cost_model import Phase, Polynomial
from bexplore.trace.measured import FittedSteps, MeasuredStep, fit_steps


def step(size: int, changes: list[int], *, weights: int = 100, operations: int = 0) -> MeasuredStep:
    return MeasuredStep(
        micro_batch_size=size,
        resident={"weights": weights, "batch": 8 * size},
        changes={Phase.FORWARD: changes},
        counts={"hardware_flops": operations},
    )


def peak(fitted: FittedSteps, size: int) -> float:
    return max(one.size(size) for one in fitted.peaks[Phase.FORWARD])


def test_a_moment_that_is_highest_at_large_sizes_alone_is_found():
    # 1000 bytes once, and later 10 a sample: the second moment is the higher one from 101 samples on
    fitted = fit_steps([step(size, [1000, -1000, 10 * size, -10 * size]) for size in (1, 2, 4)])
    assert (peak(fitted, 4), peak(fitted, 1000)) == (100 + 8 * 4 + 1000, 100 + 18 * 1000)
    assert fitted.is_confirmed


@pytest.mark.parametrize(
    ("bytes_at", "sizes", "is_confirmed"),
    [
        (lambda b: 40 * b + 4, (1, 2, 4), True),
        (lambda b: 4 * b * b, (1, 2, 4), False),
        (lambda b: 4 * b * b + 3 * b, (1, 2, 4, 8), True),
        (lambda b: 40 * b + (7 if b == 1 else 0), (1, 2, 4), False),
        (lambda b: 40 * b + (7 if b == 1 else 0), (1, 2, 4, 8), True),
    ],
    ids=["line", "parabola, three sizes", "parabola, four sizes", "other at size 1", "others agree"],
)
def test_a_growth_counts_once_one_more_size_confirms_it(bytes_at, sizes, is_confirmed):
    fitted = fit_steps([step(size, [bytes_at(size), -bytes_at(size)]) for size in sizes])
    assert fitted.is_confirmed == is_confirmed
    assert fitted.measured_at == sizes[-3:]
    if is_confirmed:
        assert peak(fitted, 64) == 100 + 8 * 64 + bytes_at(64)


def test_of_moments_that_differ_in_number_peaks_are_fitted():
    steps = [step(size, [10, -10] * size + [20 * size]) for size in (1, 2, 4, 8)]
    assert not fit_steps(steps[:3]).is_confirmed
    fitted = fit_steps(steps)
    assert fitted.is_confirmed
    assert peak(fitted, 100) == 100 + 28 * 100
    assert fitted.relative_sd > fit_steps([step(size, [20 * size]) for size in (1, 2, 4)]).relative_sd


def test_two_sizes_give_a_line_that_nothing_confirms():
    fitted = fit_steps([step(size, [10 * size], operations=6 * size) for size in (2, 4)])
    assert (peak(fitted, 8), fitted.is_confirmed) == (100 + 18 * 8, False)
    assert fitted.counts == {"hardware_flops": Polynomial(0, 6)}
