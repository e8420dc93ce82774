"""The prior of throughput curves: shapes drawn once, and deviations from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.statistics import Array

# The prior was chosen on the recorded sweeps that the search was developed on (milabench_h100, zeus, gavel) and on
# simulated worlds. Source of each figure below: what half and double of it do to searches of both,
# benchmarks/sensitivity.py: benchmarks/results/sensitivity.md.

# Source: sensitivity.md; the shapes are a Monte Carlo sample.
NUM_SHAPES = 1024
SHAPE_STREAM = 20251  # of random numbers. Source: arbitrary
# Sharpness of the knee: below 1 throughput creeps up for long, at 4 it stops at once; weights; the least and the most
# size of half the final throughput, over the smallest candidate and over the reach. Source: sensitivity.md.
SHARPNESS = (0.5, 0.75, 1.0, 1.7, 4.0)
SHARPNESS_WEIGHTS = (0.15, 0.2, 0.3, 0.2, 0.15)
HALF_SIZE_RANGE = (0.25, 3.0)
# Shapes with waves: kernels work in whole blocks of samples, of a power of two or of any size (up to a share of the
# reach), for up to a share of their work. Source: sensitivity.md.
WAVE_RATE = 0.35
POWER_BLOCK_RATE, POWER_BLOCKS = 0.66, (1, 7)
FREE_BLOCKS = (1.5, 0.4)
MAX_WAVE_SHARE = 0.9
# Shapes that lose ln(samples/s), on average, at sizes that are no multiple of one of these. Source: sensitivity.md.
ALIGNMENTS = np.array([2, 4, 8, 8, 16])
ALIGNMENT_RATE, ALIGNMENT_LOSS = 0.2, 0.06
# Shapes that fall beyond some size: mean slope, and e-folds over which the slope sets in. Source: sensitivity.md.
DECLINE_RATE, DECLINE_SLOPE = 0.3, 0.06
DECLINE_WIDTHS = (0.1, 0.7)
# Shapes that lose ln(samples/s), on average, as memory fills, from a share of the reach on. Source: sensitivity.md.
PRESSURE_RATE, PRESSURE_LOSS = 0.2, 0.25
PRESSURE_FROM = (0.65, 0.95)
PRESSURE_POWERS = (1, 3)
MAX_FULLNESS = 3.0
# Jobs whose throughput jumps somewhere, per e-fold of the candidates; sd of the jump in ln(samples/s), weight.
# Source: sensitivity.md.
CLIFF_RATE = 0.10
CLIFF_SDS = ((0.06, 0.5), (0.30, 0.5))
# Throughput rarely comes back: larger sizes fill what is idle, and nothing is once a doubling gained nothing. Of the
# curves that would rise again beyond all that was measured, this share does. Source: of the recorded sweeps, two of 76
# rise again; sensitivity.md.
RISE_AGAIN_SHARE = 0.1
# Jobs with a peak or hole of which no neighbour tells, per e-fold of the candidates; its height in ln(samples/s),
# equally likely; ln of the least and the most width in e-folds. Source: the recorded sweeps, `developed on` in
# benchmarks/results/search.md; sensitivity.md.
UNSEEN_BUMP_RATE = 0.3
UNSEEN_BUMP_SDS = (0.05, 0.15, 0.40)
UNSEEN_BUMP_LOG_WIDTHS = (-2.3, 1.0)
MAX_SHARE = 0.8  # of jobs with a cliff, or with an unseen bump, over all sizes. Source: sensitivity.md

# Hyper-parameter grid of the deviation from a shape, with prior weights. Source: expectation maximisation on two
# families of recorded sweeps and on simulated worlds, rounded and widened by hand; sensitivity.md.
LENGTHS = (0.5, 1.5, 4.0)  # e-folds of the size
SMOOTH = (  # (index into LENGTHS, sd in ln(samples/s), weight): gentle trends may be large, short waves are small
    (0, 0.02, 0.10),
    (0, 0.08, 0.16),
    (1, 0.02, 0.10),
    (1, 0.08, 0.18),
    (2, 0.06, 0.12),
    (2, 0.15, 0.24),
    (2, 0.35, 0.10),
)
ROUGH_SDS = ((0.002, 0.60), (0.006, 0.25), (0.02, 0.15))
ROUGH_LENGTH = 0.25  # e-folds
ROUGH_OWN_SHARE = 0.3  # of the rough variance, which a size does not share with its neighbours
# Source: the same fit; sensitivity.md. Noise between two probes of one size over that between two passes, and weight;
# bounds of the latter, ln(pass time).
PROBE_NOISE_RATIOS = ((0.3, 0.20), (1.0, 0.65), (3.0, 0.15))
LEAST_PASS_SD, MOST_PASS_SD = 0.005, 0.1
CLIFF_SMOOTH, CLIFF_ROUGH = (2, 5), 1  # indices of points that a cliff is combined with. Source: the middle ones
# ln(samples/s) of a variant beyond what its operations let expect: of all its sizes, per e-fold of the size, of a size
# alone. Source: benchmarks/results/sensitivity.md, variants; narrower than the simulated jobs there.
LEVEL_SD, TILT_SD, OWN_SD = 0.15, 0.04, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """The grid of hyper-parameters, flattened to J points."""

    length_index: NDArray[np.intp]  # (J,), index into `LENGTHS`
    smooth_sd: Array  # (J,), ln(samples/s), of the smooth misfit
    rough_sd: Array  # (J,), ln(samples/s), of kernel-selection roughness, which persists over replicates
    probe_sd: Array  # (J,), ln(samples/s), between probes of one size
    log_weight: Array  # (J,), log prior weight

    @classmethod
    def grid(cls, pass_sd: float) -> Hyper:
        """Return the grid of a machine: where passes of one probe scatter, `pass_sd`, probes scatter too."""
        relative = cls._relative_grid()
        return dataclasses.replace(relative, probe_sd=relative.probe_sd * draw_probe_sd(pass_sd))

    @classmethod
    @lru_cache(maxsize=1)
    def _relative_grid(cls) -> Hyper:
        """Return the grid with `probe_sd` over its expected value."""
        points = [
            (length, smooth, rough, probe, math.log(smooth_weight * rough_weight * probe_weight))
            for length, smooth, smooth_weight in SMOOTH
            for rough, rough_weight in ROUGH_SDS
            for probe, probe_weight in PROBE_NOISE_RATIOS
        ]
        length_index, smooth_sd, rough_sd, probe_sd, log_weight = (
            np.array(column) for column in zip(*points, strict=True)
        )
        return cls(
            length_index=length_index, smooth_sd=smooth_sd, rough_sd=rough_sd, probe_sd=probe_sd, log_weight=log_weight
        )

    @property
    def cliff_bases(self) -> NDArray[np.intp]:
        """Points of the grid that a cliff is combined with."""
        points = np.arange(len(self.log_weight)).reshape(len(SMOOTH), len(ROUGH_SDS), len(PROBE_NOISE_RATIOS))
        return points[list(CLIFF_SMOOTH), CLIFF_ROUGH].ravel()


def draw_probe_sd(pass_sd: float) -> float:
    """Return the expected noise between two probes of one size, ln(samples/s), from that between passes of one."""
    return float(np.clip(pass_sd, LEAST_PASS_SD, MOST_PASS_SD))


@dataclass(frozen=True)
class ShapePrior:
    """K curve shapes, drawn once: saturation, waves, alignment, decline, memory pressure."""

    base: float  # smallest candidate size
    reach: float  # largest size that is thought possible
    seed: int = 0  # of the draws; the same seed gives the same shapes on every machine

    @cached_property
    def _parameters(self) -> dict[str, Array]:
        rng = np.random.default_rng([self.seed, SHAPE_STREAM])
        count = NUM_SHAPES
        reach = max(self.reach, 2 * self.base)
        span = np.log(reach / self.base)

        def draw_stratified() -> Array:
            return (rng.permutation(count) + rng.random(count)) / count

        low, high = np.log(HALF_SIZE_RANGE[0] * self.base), np.log(HALF_SIZE_RANGE[1] * reach)
        has_waves = draw_stratified() < WAVE_RATE
        power_blocks = 2.0 ** rng.integers(*POWER_BLOCKS, count)
        free_blocks = np.exp(rng.uniform(np.log(FREE_BLOCKS[0]), np.log(max(2.0, FREE_BLOCKS[1] * reach)), count))
        return {
            "half": np.exp(low + (high - low) * draw_stratified()),
            "power": rng.choice(SHARPNESS, count, p=SHARPNESS_WEIGHTS),
            "block": np.where(rng.random(count) < POWER_BLOCK_RATE, power_blocks, free_blocks),
            "block_share": np.where(has_waves, rng.uniform(0, MAX_WAVE_SHARE, count), 0.0),
            "alignment": ALIGNMENTS[rng.integers(0, len(ALIGNMENTS), count)].astype(float),
            "alignment_loss": np.where(draw_stratified() < ALIGNMENT_RATE, rng.exponential(ALIGNMENT_LOSS, count), 0.0),
            "decline": np.where(draw_stratified() < DECLINE_RATE, rng.exponential(DECLINE_SLOPE, count), 0.0),
            "decline_start": rng.uniform(0.0, 1.0, count) * span,
            "decline_width": rng.uniform(*DECLINE_WIDTHS, count),
            "pressure": np.where(draw_stratified() < PRESSURE_RATE, rng.exponential(PRESSURE_LOSS, count), 0.0),
            "pressure_from": rng.uniform(*PRESSURE_FROM, count),
            "pressure_power": rng.integers(*PRESSURE_POWERS, count).astype(float),
        }

    def evaluate(self, sizes: NDArray[np.int64]) -> Array:
        """Return (D, K), ln(samples/s) of the shapes at (D,) sizes, up to a constant per shape."""
        known = _columns(self)
        new = np.array([size for size in sizes.tolist() if size not in known], dtype=float)
        if len(new):
            known.update(zip(new.astype(int).tolist(), np.ascontiguousarray(self._evaluate(new).T), strict=True))
        return np.stack([known[size] for size in sizes.tolist()])

    def _evaluate(self, sizes: Array) -> Array:
        p = {name: value[:, None] for name, value in self._parameters.items()}
        b = np.asarray(sizes, float)[None, :]
        reach = max(self.reach, 2 * self.base)
        logs = np.log(b / self.base)
        effective = (1 - p["block_share"]) * b + p["block_share"] * p["block"] * np.ceil(b / p["block"])
        value = np.log(b) - np.logaddexp(p["power"] * np.log(effective), p["power"] * np.log(p["half"])) / p["power"]
        misaligned = (np.mod(b, p["alignment"]) != 0) * np.minimum(1.0, b / p["alignment"])
        value = value - p["alignment_loss"] * misaligned
        past = (logs - p["decline_start"]) / p["decline_width"]
        value = value - p["decline"] * p["decline_width"] * np.logaddexp(0.0, past)
        fullness = np.clip((b / reach - p["pressure_from"]) / (1 - p["pressure_from"]), 0.0, MAX_FULLNESS)
        return value - np.log1p(p["pressure"] * fullness ** p["pressure_power"])


@lru_cache(maxsize=8)
def _columns(prior: ShapePrior) -> dict[int, Array]:
    """Return a cache of (K,) shapes by size."""
    return {}


def smooth_kernel(left: Array, right: Array, length: float) -> Array:
    """Return the Matern-3/2 correlation of ln sizes. Source: Rasmussen and Williams, eq. 4.17."""
    distance = np.sqrt(3.0) * np.abs(left[:, None] - right[None, :]) / length
    return (1.0 + distance) * np.exp(-distance)


def rough_kernel(left: Array, right: Array) -> Array:
    """Return the exponential correlation of ln sizes over `ROUGH_LENGTH`, with a part that each size has alone."""
    distance = np.abs(left[:, None] - right[None, :])
    return (1 - ROUGH_OWN_SHARE) * np.exp(-distance / ROUGH_LENGTH) + ROUGH_OWN_SHARE * (distance < 1e-12)


def rough_draws(logs: Array, normal: NDArray[np.float32], own_normal: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return functions with the correlation `rough_kernel` from standard normal draws.

    Args:
        logs: (D,), ln of the sizes, ascending.
        normal: (S, D), of the part that neighbours share.
        own_normal: (S, D), of the part that each size has alone.

    Returns:
        (S, D). The shared part is an Ornstein-Uhlenbeck process, whose Cholesky factor is known in closed form: the
        innovation of a size, sqrt(1 - r^2) with r the correlation to the size before it, decays towards the sizes
        above.
    """
    steps = np.diff(logs, prepend=-np.inf)
    new = np.sqrt(1.0 - np.exp(-2.0 * steps / ROUGH_LENGTH))
    factor = np.tril(np.exp(np.minimum(logs[None, :] - logs[:, None], 0.0) / ROUGH_LENGTH)) * new
    shared = normal @ np.asarray(np.sqrt(1 - ROUGH_OWN_SHARE) * factor, dtype=np.float32).T
    return shared + np.float32(np.sqrt(ROUGH_OWN_SHARE)) * own_normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """One variant among its kin."""

    variant: int = 0  # whose curve is drawn
    # By variant, expected ln(samples/s) over that of variant 0; empty for equal ones.
    log_speeds: Mapping[int, float] = field(default_factory=dict)

    def log_speed_over_own(self, variant: int) -> float:
        """Return the expected ln(samples/s) of another variant over the own one's; 0 for the own."""
        return self.log_speeds.get(variant, 0.0) - self.log_speeds.get(self.variant, 0.0)

    def covariance(self, variants: Sequence[int], log_sizes: Array) -> Array:
        """Return (n, n), the covariance that measurements of other variants add.

        Each variant, the own one too, has a level and a tilt of its own, of which the difference to the own counts: two
        other variants share the own one's half of it.
        """
        number = np.array(variants)
        other = number != self.variant
        both = other[:, None] & other[None, :]
        share = both * np.where(number[:, None] == number[None, :], 1.0, 0.5)
        centred = log_sizes - log_sizes.mean()
        tilted = centred[:, None] * centred[None, :]
        same_size = np.isclose(log_sizes[:, None], log_sizes[None, :], rtol=0.0, atol=math.log1p(1e-9))
        return share * (LEVEL_SD**2 + TILT_SD**2 * tilted + OWN_SD**2 * same_size)
