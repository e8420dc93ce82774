"""What throughput curves look like before anything was measured: shapes drawn once, and how far reality strays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NUM_SHAPES = 512
ALIGNMENTS = np.array([2, 4, 8, 8, 16])

# Hyper-parameter grid of the deviation from a shape, with prior weights.
# Source: empirical Bayes on public measured curves, which are rougher than intuition; see benchmarks/search.py.
LENGTH_SCALES = ((0.5, 0.5), (1.5, 0.5))  # e-folds of the size
SMOOTH_SDS = ((0.006, 0.12), (0.02, 0.15), (0.06, 0.43), (0.15, 0.30))
ROUGH_SDS = ((0.002, 0.48), (0.006, 0.24), (0.02, 0.28))
PROBE_NOISE_SDS = ((0.003, 0.45), (0.01, 0.30), (0.03, 0.25))
ROUGH_LENGTH = 0.25  # e-folds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """The grid of hyper-parameters, flattened to J points.

    Attributes:
        length_index: (J,), index into `LENGTH_SCALES`.
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
    def grid(cls) -> Hyper:
        """The full product grid."""
        axes = (LENGTH_SCALES, SMOOTH_SDS, ROUGH_SDS, PROBE_NOISE_SDS)
        index = np.stack([axis.ravel() for axis in np.indices([len(axis) for axis in axes])])
        values = [np.array([value for value, _ in axis])[i] for axis, i in zip(axes, index, strict=True)]
        weights = [np.array([weight for _, weight in axis])[i] for axis, i in zip(axes, index, strict=True)]
        return cls(
            length_index=index[0],
            smooth_sd=values[1],
            rough_sd=values[2],
            probe_sd=values[3],
            log_weight=np.log(np.prod(weights, axis=0)),
        )


@dataclass(frozen=True)
class ShapePrior:
    """K curve shapes drawn once from fixed seeds: saturation, steps, alignment, decline, cliffs, memory pressure.

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
        cliff_small = rng.random(count) < 0.6
        cliff = np.where(cliff_small, rng.normal(-0.04, 0.10, count), rng.normal(-0.10, 0.35, count))
        return {
            "half": np.exp(low + (high - low) * stratified()),
            "power": rng.choice([1.0, 1.7, 4.0], count, p=[0.5, 0.25, 0.25]),
            "block": np.where(rng.random(count) < 0.66, power_blocks, free_blocks),
            "block_share": np.where(use_blocks, rng.uniform(0, 0.9, count), 0.0),
            "alignment": ALIGNMENTS[rng.integers(0, len(ALIGNMENTS), count)].astype(float),
            "alignment_loss": np.where(stratified() < 0.2, rng.exponential(0.06, count), 0.0),
            "decline": np.where(stratified() < 0.35, rng.exponential(0.06, count), 0.0),
            "decline_start": rng.uniform(-0.3, 1.0, count) * span,
            "decline_width": rng.uniform(0.1, 0.7, count),
            "cliff": np.where(stratified() < 0.12, cliff, 0.0),
            "cliff_at": rng.uniform(0.1, 1.05, count) * span,
            "pressure": np.where(stratified() < 0.2, rng.exponential(0.25, count), 0.0),
            "pressure_from": rng.uniform(0.65, 0.95, count),
            "pressure_power": rng.integers(1, 3, count).astype(float),
        }

    def evaluate(self, sizes: Array) -> Array:
        """The shapes at some sizes.

        Args:
            sizes: (D,), samples.

        Returns:
            (K, D), ln(samples/s) up to a constant per shape.
        """
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
        value = value + p["cliff"] * (logs > p["cliff_at"])
        fullness = np.clip((b / reach - p["pressure_from"]) / (1 - p["pressure_from"]), 0.0, 3.0)
        return value - np.log1p(p["pressure"] * fullness ** p["pressure_power"])


def smooth_kernel(left: Array, right: Array, length: float) -> Array:
    """Matern-3/2 correlation of ln sizes; Source: Rasmussen and Williams, eq. 4.17."""
    distance = np.sqrt(3.0) * np.abs(left[:, None] - right[None, :]) / length
    return (1.0 + distance) * np.exp(-distance)


def rough_kernel(left: Array, right: Array) -> Array:
    """Exponential correlation of ln sizes at the length of kernel selection."""
    return np.exp(-np.abs(left[:, None] - right[None, :]) / ROUGH_LENGTH)
