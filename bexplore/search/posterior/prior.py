"""What throughput curves look like before anything was measured: shapes drawn once, and how far reality strays."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NUM_SHAPES = 1024
SHARPNESS = (0.5, 0.75, 1.0, 1.7, 4.0)  # of the knee: below 1 throughput creeps up for long, at 4 it stops at once
SHARPNESS_WEIGHTS = (0.15, 0.2, 0.3, 0.2, 0.15)
DECLINE_SHARE = 0.3  # of shapes that fall beyond some size
DECLINE_FROM = 0.0  # where the fall may begin at the earliest, as a share of the candidates' span in ln
ALIGNMENTS = np.array([2, 4, 8, 8, 16])  # sizes that are no multiple of one of these may be slower
CLIFF_RATE = 0.10  # jobs whose throughput jumps somewhere, per e-fold of the candidates
CLIFF_SDS = ((0.06, 0.5), (0.30, 0.5))  # sd of the jump in ln(samples/s), weight
# Throughput rarely comes back: larger sizes fill what is idle, and nothing is once a doubling gained nothing. Of the
# curves that would rise again beyond all that was measured this share does. A judgement, with the recorded sweeps in
# sight that the search was developed on: two of 76 rise again.
RISE_AGAIN_SHARE = 0.1
# Jobs with a peak or hole somewhere of which no neighbour tells, per e-fold of the candidates. Sweeps that the search
# was developed on have them far more often than one expects of curves that are smooth elsewhere. A judgement, with
# those sweeps in sight: `developed on` in benchmarks/results/search.md.
UNSEEN_BUMP_RATE = 0.3
UNSEEN_BUMP_SDS = (0.05, 0.15, 0.40)  # of its height in ln(samples/s), equally likely
UNSEEN_BUMP_LOG_WIDTHS = (-2.3, 1.0)  # ln of the narrowest and widest, in e-folds
MAX_SHARE = 0.8  # of the jobs with a cliff, or with an unseen bump, however many sizes there are

# Hyper-parameter grid of the deviation from a shape, with prior weights. Source: expectation maximisation on the two
# families of public sweeps that the search was developed on and on simulated worlds, rounded and widened by hand.
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
# Noise between two probes of one size, over what the noise of their passes lets expect, and weight.
PROBE_NOISE_RATIOS = ((0.3, 0.20), (1.0, 0.65), (3.0, 0.15))
PROBE_NOISE_POWER = 1.0
USUAL_PROBE_SD = 0.01  # ln(samples/s), where passes have as much noise
LEAST_PASS_SD, MOST_PASS_SD = 0.005, 0.1  # ln(pass time), of which something follows
ROUGH_LENGTH = 0.25  # e-folds
ROUGH_OWN_SHARE = 0.3  # of the rough variance that a size does not share with its neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """The grid of hyper-parameters, flattened to J points.

    Attributes:
        length_index: (J,), index into `LENGTHS`.
        smooth_sd: (J,), ln(samples/s), of the smooth misfit.
        rough_sd: (J,), ln(samples/s), of kernel-selection roughness, which persists over replicates.
        probe_sd: (J,), ln(samples/s), between probes of one size.
        log_weight: (J,), log prior weight.
    """

    length_index: NDArray[np.intp]
    smooth_sd: Array
    rough_sd: Array
    probe_sd: Array
    log_weight: Array

    @classmethod
    def grid(cls, pass_sd: float) -> Hyper:
        """The grid for a machine.

        Args:
            pass_sd: ln(pass time), between passes of one probe: where these scatter, probes scatter too.
        """
        usual = cls._relative_grid()
        expected_sd = probe_sd_of(pass_sd)
        return dataclasses.replace(usual, probe_sd=usual.probe_sd * expected_sd)

    @classmethod
    @lru_cache(maxsize=1)
    def _relative_grid(cls) -> Hyper:
        """The same with `probe_sd` over what is expected."""
        points = [
            (length, smooth, rough, probe, math.log(smooth_weight * rough_weight * probe_weight))
            for length, smooth, smooth_weight in SMOOTH
            for rough, rough_weight in ROUGH_SDS
            for probe, probe_weight in PROBE_NOISE_RATIOS
        ]
        length_index, *columns = (np.array(column) for column in zip(*points, strict=True))
        smooth_sd, rough_sd, probe_sd, log_weight = columns
        return cls(
            length_index=length_index, smooth_sd=smooth_sd, rough_sd=rough_sd, probe_sd=probe_sd, log_weight=log_weight
        )


def probe_sd_of(pass_sd: float) -> float:
    """Expected noise between two probes of one size, ln(samples/s), from that between passes of one."""
    return float(
        USUAL_PROBE_SD ** (1 - PROBE_NOISE_POWER) * np.clip(pass_sd, LEAST_PASS_SD, MOST_PASS_SD) ** PROBE_NOISE_POWER
    )


def _cliff_bases() -> NDArray[np.intp]:
    """Points of the grid that a cliff is combined with: a few of them stand for all."""
    hyper = Hyper.grid(USUAL_PROBE_SD)
    smooth = np.isin(hyper.smooth_sd, (0.02, 0.15)) & (hyper.length_index + 1 >= 2 + (hyper.smooth_sd > 0.1))
    return np.flatnonzero(smooth & np.isclose(hyper.rough_sd, 0.006))


CLIFF_BASES = _cliff_bases()


@dataclass(frozen=True)
class ShapePrior:
    """K curve shapes drawn once from fixed seeds: saturation, steps, alignment, decline, memory pressure.

    Attributes:
        base: Smallest candidate size.
        reach: Largest size that is thought possible.
        seed: Of the draws; the same seed gives the same shapes on every machine.
    """

    base: float
    reach: float
    seed: int = 0

    @cached_property
    def _parameters(self) -> dict[str, Array]:
        rng = np.random.default_rng([self.seed, 20251])
        count = NUM_SHAPES
        reach = max(self.reach, 2 * self.base)
        span = np.log(reach / self.base)

        def stratified() -> Array:
            return (rng.permutation(count) + rng.random(count)) / count

        low, high = np.log(0.25 * self.base), np.log(3 * reach)
        use_blocks = stratified() < 0.35
        power_blocks = 2.0 ** rng.integers(1, 7, count)
        free_blocks = np.exp(rng.uniform(np.log(1.5), np.log(max(2.0, 0.4 * reach)), count))
        return {
            "half": np.exp(low + (high - low) * stratified()),
            "power": rng.choice(SHARPNESS, count, p=SHARPNESS_WEIGHTS),
            "block": np.where(rng.random(count) < 0.66, power_blocks, free_blocks),
            "block_share": np.where(use_blocks, rng.uniform(0, 0.9, count), 0.0),
            "alignment": ALIGNMENTS[rng.integers(0, len(ALIGNMENTS), count)].astype(float),
            "alignment_loss": np.where(stratified() < 0.2, rng.exponential(0.06, count), 0.0),
            "decline": np.where(stratified() < DECLINE_SHARE, rng.exponential(0.06, count), 0.0),
            "decline_start": rng.uniform(DECLINE_FROM, 1.0, count) * span,
            "decline_width": rng.uniform(0.1, 0.7, count),
            "pressure": np.where(stratified() < 0.2, rng.exponential(0.25, count), 0.0),
            "pressure_from": rng.uniform(0.65, 0.95, count),
            "pressure_power": rng.integers(1, 3, count).astype(float),
        }

    def evaluate(self, sizes: NDArray[np.int64]) -> Array:
        """The shapes at some sizes.

        Args:
            sizes: (D,), samples.

        Returns:
            (D, K), ln(samples/s) up to a constant per shape.
        """
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
        fullness = np.clip((b / reach - p["pressure_from"]) / (1 - p["pressure_from"]), 0.0, 3.0)
        return value - np.log1p(p["pressure"] * fullness ** p["pressure_power"])


@lru_cache(maxsize=8)
def _columns(prior: ShapePrior) -> dict[int, Array]:
    """(K,) shapes by size, filled as they are asked for."""
    return {}


def smooth_kernel(left: Array, right: Array, length: float) -> Array:
    """Matern-3/2 correlation of ln sizes; Source: Rasmussen and Williams, eq. 4.17."""
    distance = np.sqrt(3.0) * np.abs(left[:, None] - right[None, :]) / length
    return (1.0 + distance) * np.exp(-distance)


def rough_kernel(left: Array, right: Array) -> Array:
    """Exponential correlation of ln sizes at the length of kernel selection, and a part that each size has alone."""
    distance = np.abs(left[:, None] - right[None, :])
    return (1 - ROUGH_OWN_SHARE) * np.exp(-distance / ROUGH_LENGTH) + ROUGH_OWN_SHARE * (distance < 1e-12)


def rough_draws(logs: Array, normal: NDArray[np.float32], own_normal: NDArray[np.float32]) -> NDArray[np.float32]:
    """Functions with the correlation `rough_kernel` from standard normal draws.

    Args:
        logs: (D,), ln of the sizes, ascending.
        normal: (S, D), of the part that neighbours share.
        own_normal: (S, D), of the part that each size has alone.

    Returns:
        (S, D). The shared part is an Ornstein-Uhlenbeck process, whose Cholesky factor is known in closed form: what is
        new at a size, sqrt(1 - r^2) with r the correlation to the size before it, decays towards the sizes above.
    """
    steps = np.diff(logs, prepend=-np.inf)
    new = np.sqrt(1.0 - np.exp(-2.0 * steps / ROUGH_LENGTH))
    factor = np.tril(np.exp(np.minimum(logs[None, :] - logs[:, None], 0.0) / ROUGH_LENGTH)) * new
    shared = normal @ np.asarray(np.sqrt(1 - ROUGH_OWN_SHARE) * factor, dtype=np.float32).T
    return shared + np.float32(np.sqrt(ROUGH_OWN_SHARE)) * own_normal
