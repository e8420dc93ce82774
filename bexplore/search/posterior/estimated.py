"""The prior of throughput curves around an estimated one, which the measurements weigh against the prior without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.statistics import Array
from bexplore.search.posterior.prior import NUM_SHAPES, PROBE_NOISE_RATIOS, Hyper, ShapePrior, draw_probe_sd

# estimate_prior.md is benchmarks/results/estimate_prior.md: simulated jobs with right, realistic and wrong estimates.
# The figures were chosen on a few dozen jobs of other seeds.
# Curves around an estimate, and the stream of their random numbers. Source: a Monte Carlo sample; arbitrary.
NUM_CURVES, CURVES_STREAM = 128, 20252
# Probability of the estimate before anything ran, and the most that measurements may make of it: what it says of sizes
# that did not run may be wrong just there. Source: estimate_prior.md.
SHARE, MOST_TRUST = 0.6, 0.85
# Share of the curves that are the estimate itself. The others have times that it leaves out: launches of a slow host,
# one after the other or ahead of the device, as long as the pass of some size; work for each sample, as a share of the
# pass of the largest size; an exponent of all samples/s. Source: estimate_prior.md.
AS_IS_SHARE, HOST_SHARE, AHEAD_SHARE, LEAST_HOST_SIZE = 0.4, 0.7, 0.5, 0.05
LINEAR_SHARE, LINEAR_MEAN, EXPONENT_SD = 0.3, 0.1, 0.15
# Deviation from a curve, over the sd of the estimate's shape: index into `prior.LENGTHS`, sd, weight; and of its rough
# part sd, weight. Source: estimate_prior.md.
SMOOTH = (
    (0, 0.2, 0.10),
    (0, 0.8, 0.10),
    (1, 0.1, 0.10),
    (1, 0.5, 0.10),
    (2, 0.1, 0.15),
    (2, 0.4, 0.20),
    (2, 1.0, 0.15),
    (2, 3.0, 0.10),
)
ROUGH_SDS = ((0.03, 0.40), (0.15, 0.35), (0.5, 0.25))
# Sizes that the posterior covers for the estimate's sake, and the ratio of a stretch that has one. Source: the ladder
# of the posterior's domain; more only cost time.
NUM_PEAKS, STRETCH = 24, 1.1
# Share of the peaks and holes of which no neighbour tells that an estimate does not foresee. Source: estimate_prior.md.
BUMPS_KEPT = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPrior:
    """Seconds of a pass, as estimated before anything ran; their level does not matter."""

    pass_s: Callable[[int], float]  # by micro-batch size
    relative_sd: float  # standard deviation of ln of the true seconds around them, of their shape over the sizes


def estimated_curves(speed: SpeedPrior, prior: ShapePrior, sizes: NDArray[np.int64]) -> Array:
    """Return (D, C), ln(samples/s) up to a constant each: the estimate, and what it is with times that it leaves out.

    Beside these it does not foresee what the shapes of `prior` lose as memory fills.
    """
    rng, count = np.random.default_rng([prior.seed, CURVES_STREAM]), NUM_CURVES
    reach = max(prior.reach, 2.0 * prior.base)
    seconds, logs = np.array([speed.pass_s(size) for size in sizes.tolist()]), np.log(sizes)
    whole_s = math.exp(np.interp(math.log(reach), logs, np.log(seconds)))
    host_size = np.exp(rng.uniform(math.log(LEAST_HOST_SIZE * prior.base), math.log(reach), count))
    host_s = whole_s * host_size / reach * (rng.random(count) < HOST_SHARE)
    sample_s = whole_s / reach * rng.exponential(LINEAR_MEAN, count) * (rng.random(count) < LINEAR_SHARE)
    runs_ahead = rng.random(count) < AHEAD_SHARE
    exponent = np.exp(EXPONENT_SD * rng.standard_normal(count))
    device_s = seconds[:, None]
    total_s = np.where(runs_ahead, np.maximum(device_s, host_s), device_s + host_s) + sample_s * sizes[:, None]
    curves = exponent * (logs[:, None] - np.log(total_s)) - prior.pressure(sizes)[:, :count]
    as_is = np.arange(count) < AS_IS_SHARE * count
    return np.where(as_is, logs[:, None] - np.log(device_s), curves)


def fastest_by_estimate(speed: SpeedPrior, sizes: tuple[int, ...], largest: float) -> list[int]:
    """Return sizes that an estimate singles out: the fastest of each stretch, of the `NUM_PEAKS` fastest stretches.

    Args:
        sizes: Candidates, ascending.
        largest: Sizes beyond do not count.
    """
    logs, values = _evaluate(speed, sizes)
    within = logs <= math.log(max(largest, sizes[0]))
    stretch = np.floor((logs[within] - logs[0]) / math.log(STRETCH)).astype(np.int64)
    order = np.argsort(-values[within], kind="stable")
    _, first = np.unique(stretch[order], return_index=True)
    return [sizes[order[place]] for place in np.sort(first)[:NUM_PEAKS]]


@lru_cache(maxsize=4)
def _evaluate(speed: SpeedPrior, sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return ln of the sizes, and ln of the estimated samples/s."""
    logs = np.log(sizes)
    return logs, logs - np.log([speed.pass_s(size) for size in sizes])


def with_estimate(grid: Hyper, speed: SpeedPrior, pass_sd: float) -> Hyper:
    """Return a grid, and behind its points those of the deviation from an estimated curve."""
    own = _relative_grid(speed.relative_sd) | {"probe_sd": draw_probe_sd(pass_sd) * _relative_grid(1.0)["probe_sd"]}
    return Hyper(**{item.name: np.concatenate([getattr(grid, item.name), own[item.name]]) for item in fields(Hyper)})


@lru_cache(maxsize=4)
def _relative_grid(relative_sd: float) -> dict[str, Array]:
    """Return the columns of the grid of an estimate's deviation, with `probe_sd` over its expected value."""
    # The shapes of the prior without the estimate weigh 1 each.
    odds = math.log(NUM_SHAPES / NUM_CURVES * SHARE / (1.0 - SHARE))
    points = [
        (length, smooth * relative_sd, rough * relative_sd, probe, odds + math.log(smooth_share * rough_share * share))
        for length, smooth, smooth_share in SMOOTH
        for rough, rough_share in ROUGH_SDS
        for probe, share in PROBE_NOISE_RATIOS
    ]
    names = ("length_index", "smooth_sd", "rough_sd", "probe_sd", "log_weight")
    return {name: np.array(column) for name, column in zip(names, zip(*points, strict=True), strict=True)}


def limit_trust(estimated: NDArray[np.float32], others: Array) -> NDArray[np.float32]:
    """Return the log weights of an estimate's curves, lowered where they are more than `MOST_TRUST` of all weight."""
    most = float(np.logaddexp.reduce(others)) + math.log(MOST_TRUST / (1.0 - MOST_TRUST))
    return estimated - np.float32(max(0.0, float(np.logaddexp.reduce(estimated, axis=None)) - most))
