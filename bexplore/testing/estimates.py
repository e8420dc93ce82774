"""Estimates of the speed of simulated jobs: right ones, ones with the errors of a model of kernels, and wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.statistics import Array
from bexplore.search.posterior.estimated import SpeedPrior
from bexplore.search.posterior.prior import LENGTHS, smooth_kernel
from bexplore.search.space import Space
from bexplore.testing.simulator import Family, draw_world, wave_padding

SHAPE_SD = 0.05  # ln of the time, of a realistic estimate's shape. Source: benchmarks/results/kernel_times.md
ERROR_PARTS = (0.03, 0.035, 0.01)  # its trend, waves and what each size has alone, before they are scaled to it
GRID_SIZE = 96  # points over the logarithm of the size
SMOOTHING = 0.5  # e-folds of the size, over which a smoothed estimate averages
FAR_SHIFT = 4.0  # times the size, of a knee that is estimated elsewhere


class EstimateKind(StrEnum):
    """How an estimate is related to the truth."""

    EXACT = "exact up to a factor"
    REALISTIC = "realistic"  # errors of trend, of waves and of each size
    SMOOTHED = "without peaks, holes and falls"  # a realistic one that does not know them
    LATE_KNEE = "knee at four times the size"
    EARLY_KNEE = "knee at a quarter of the size"
    INVERTED = "inverted"
    FALSE_PEAK = "false peak"
    CONSTANT = "constant samples/s"
    OTHER_JOB = "of another job and device"
    BAIT = "right but for the best sizes"


RIGHT = (EstimateKind.EXACT, EstimateKind.REALISTIC, EstimateKind.SMOOTHED)
WRONG = tuple(kind for kind in EstimateKind if kind not in RIGHT)


@dataclass(frozen=True, slots=True)
class _Truth:
    """The curve that is estimated: (num candidates,) sizes, ln(samples/s), and whether a size fits."""

    sizes: Array
    curve: Array
    fits: NDArray[np.bool_]


def draw_estimate(
    space: Space, log_throughput: Array, fits: NDArray[np.bool_], kind: EstimateKind, seed: int
) -> SpeedPrior:
    """Draw an estimate of a job's speed, off by an unknown factor; each kind claims to be a realistic one.

    Args:
        log_throughput: (num candidates,), true ln(samples/s).
        fits: (num candidates,), which run.
    """
    rng = np.random.default_rng([seed, *kind.name.encode()])
    sizes = np.array(space.sizes, dtype=float)
    curve = _CURVES[kind](_Truth(sizes, log_throughput, fits), rng) + math.log(rng.uniform(0.5, 2.0))
    seconds = dict(zip(space.sizes, (sizes / np.exp(curve)).tolist(), strict=True))
    return SpeedPrior(pass_s=seconds.__getitem__, relative_sd=SHAPE_SD)


def _exact(truth: _Truth, rng: np.random.Generator) -> Array:
    return truth.curve


def _realistic(truth: _Truth, rng: np.random.Generator) -> Array:
    return truth.curve + _error(truth.sizes, rng)


def _smoothed(truth: _Truth, rng: np.random.Generator) -> Array:
    logs = np.log(truth.sizes)
    grid = np.linspace(logs[0], logs[-1], GRID_SIZE)
    curve = np.interp(grid, logs, truth.curve)
    smooth = np.empty_like(grid)
    for i, at in enumerate(grid):  # local lines, which have no bias at the ends
        weight = np.exp(-0.25 * ((grid - at) / SMOOTHING) ** 2)
        smooth[i] = np.polynomial.Polynomial.fit(grid, curve, 1, w=weight)(at)
    return np.interp(logs, grid, smooth) + _error(truth.sizes, rng)


def _error(sizes: Array, rng: np.random.Generator) -> Array:
    """Return an error of ln(samples/s) over the sizes: a trend, waves of other tiles, and what each size has alone."""
    logs = np.log(sizes)
    grid = np.linspace(logs[0], logs[-1] + 1e-3, GRID_SIZE)
    factor = np.linalg.cholesky(smooth_kernel(grid, grid, LENGTHS[1]) + 1e-9 * np.eye(GRID_SIZE))
    trend = np.interp(logs, grid, factor @ rng.standard_normal(GRID_SIZE))
    waves = np.log(wave_padding(sizes, rng) / wave_padding(sizes, rng))
    share = np.gradient(logs) if len(logs) > 1 else np.ones(1)  # a size counts by its share of the logarithm

    def scale(part: Array, sd: float) -> Array:
        centred = part - np.average(part, weights=share)
        return np.asarray(sd * centred / max(math.sqrt(np.average(centred**2, weights=share)), 1e-9))

    parts = (trend, waves, rng.standard_normal(len(sizes)))
    return scale(np.sum([scale(part, sd) for part, sd in zip(parts, ERROR_PARTS, strict=True)], axis=0), SHAPE_SD)


def _shifted(factor: float) -> Callable[[_Truth, np.random.Generator], Array]:
    def curve(truth: _Truth, rng: np.random.Generator) -> Array:
        logs = np.log(truth.sizes)
        low = logs - math.log(factor)
        found = np.interp(low, logs, truth.curve)
        return np.asarray(found + np.minimum(low - logs[0], 0.0))  # of a size below the smallest, as of one launch

    return curve


def _inverted(truth: _Truth, rng: np.random.Generator) -> Array:
    return -truth.curve


def _false_peak(truth: _Truth, rng: np.random.Generator) -> Array:
    at = int(rng.integers(len(truth.sizes)))
    inside = np.abs(np.log(truth.sizes / truth.sizes[at])) <= rng.uniform(0.0, 0.3)
    top = truth.curve[truth.fits].max() + rng.uniform(0.05, 0.3)
    return np.where(inside, top, truth.curve)


def _bait(truth: _Truth, rng: np.random.Generator) -> Array:
    """Return a curve in which the sizes near the best are slow, and others as fast as these are."""
    best = truth.curve[truth.fits].max()
    is_best = truth.curve > best - 0.03
    return np.where(is_best, truth.curve - rng.uniform(0.05, 0.3), truth.curve)


def _constant(truth: _Truth, rng: np.random.Generator) -> Array:
    return np.zeros_like(truth.curve)


def _of_another_job(truth: _Truth, rng: np.random.Generator) -> Array:
    return draw_world(Family.GPU_LIKE, int(rng.integers(2**31)), Space.from_sizes(map(int, truth.sizes))).log_throughput


_CURVES: Mapping[EstimateKind, Callable[[_Truth, np.random.Generator], Array]] = {
    EstimateKind.EXACT: _exact,
    EstimateKind.REALISTIC: _realistic,
    EstimateKind.SMOOTHED: _smoothed,
    EstimateKind.LATE_KNEE: _shifted(FAR_SHIFT),
    EstimateKind.EARLY_KNEE: _shifted(1.0 / FAR_SHIFT),
    EstimateKind.INVERTED: _inverted,
    EstimateKind.FALSE_PEAK: _false_peak,
    EstimateKind.CONSTANT: _constant,
    EstimateKind.OTHER_JOB: _of_another_job,
    EstimateKind.BAIT: _bait,
}
