"""Simulated jobs of several variants: what recomputing, another precision or another compiler does to one job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.replay.replay import JobRunner
from bexplore.search.posterior.joint import Variant
from bexplore.search.space import MemoryPrior, Space
from tests.simulated.simulator import BUDGET_BYTES, Family, SimulatedRunner, World, draw_world

FAMILIES = (Family.SMOOTH, Family.ROUGH, Family.CLIFFS, Family.CPU_LIKE, Family.GPU_LIKE)
MOST_VARIANTS = 8
# ln(samples/s) of a variant beyond what its operations let expect: of all sizes, per e-fold of the size, of its own
# bends, which are an octave wide: single sizes of their own among hundreds would be found by no search.
LEVEL_SD, TILT_SD, BEND_SD = 0.12, 0.05, 0.015
TRACE_SD = 0.03  # of a variant's traced memory
FIXED_SHARES = (0.1, 0.85)  # of the budget, by what no size changes


@dataclass(frozen=True, slots=True, kw_only=True)
class JointWorld:
    """A job whose variants are all known."""

    worlds: tuple[World, ...]  # of each variant; the candidates are the same, and so is the machine
    variants: tuple[Variant, ...]  # what a trace tells of each

    @property
    def space(self) -> Space:
        """The candidates."""
        return self.worlds[0].space

    @property
    def throughputs(self) -> Mapping[tuple[int, int], float]:
        """Noiseless samples/s of each (variant, size) that fits."""
        return {
            (number, size): value
            for number, world in enumerate(self.worlds)
            for size, value in world.throughputs.items()
        }

    def regret(self, variant: int, size: int) -> float:
        """Return the share of the best feasible throughput that is lost at a size of a variant; 1 where it fits not."""
        throughputs = self.throughputs
        return 1.0 - throughputs.get((variant, size), 0.0) / max(throughputs.values())


def joint_runner(world: JointWorld, *, seed: int) -> JobRunner:
    """Return a runner of all variants, each with a worker that serves every size of its program."""
    return JobRunner(
        [
            SimulatedRunner(one, seed=seed + 1000 * number, shared_compile=True)
            for number, one in enumerate(world.worlds)
        ]
    )


def draw_joint_world(seed: int) -> JointWorld:
    """Draw a job of 2 to 8 variants: savers of memory that cost time, faster ones, and ones that are dominated."""
    rng = np.random.default_rng([seed, 101])
    family = Family(FAMILIES[int(rng.integers(len(FAMILIES)))])
    own = _with_binding_budget(draw_world(family, seed), rng)
    count = int(rng.integers(2, MOST_VARIANTS + 1))
    changes = [(1.0, 0.0), *(_draw_change(rng) for _ in range(count - 1))]
    worlds = tuple(_changed(own, *change, rng, is_own=number == 0) for number, change in enumerate(changes))
    return JointWorld(worlds=worlds, variants=_expected(worlds, changes, rng))


def _with_binding_budget(world: World, rng: np.random.Generator) -> World:
    """Return a world of which only the smaller sizes fit, in two of three."""
    if rng.random() < 1 / 3:
        return world
    sizes = np.array(world.space.sizes, dtype=float)
    largest = len(sizes) - 1
    last = int(rng.integers(max(1, largest // 8), max(2, largest // 2) + 1))
    # Weights, gradients and states; the rest is the activations of that size.
    fixed = BUDGET_BYTES * rng.uniform(*FIXED_SHARES)
    return dataclasses.replace(world, peak_bytes=fixed + (0.999 * BUDGET_BYTES - fixed) * sizes / sizes[last])


def _draw_change(rng: np.random.Generator) -> tuple[float, float]:
    """Draw a variant's activations as a share of the own ones, and its expected ln(samples/s) over them."""
    kind = rng.choice(["saves", "faster", "dominated"], p=[0.6, 0.2, 0.2])
    if kind == "saves":
        saved = rng.uniform(0.1, 0.8)
        return 1.0 - saved, -rng.uniform(0.1, 0.4) * saved
    if kind == "faster":
        return rng.uniform(0.5, 1.1), rng.uniform(0.0, 0.6)
    return rng.uniform(1.0, 1.3), -rng.uniform(0.02, 0.4)


def _changed(own: World, activations: float, log_speed: float, rng: np.random.Generator, *, is_own: bool) -> World:
    """Return the world of a variant: another slope of memory, another level, tilt and bends of speed."""
    if is_own:
        return own
    sizes = np.array(own.space.sizes, dtype=float)
    slope = (own.peak_bytes[-1] - own.peak_bytes[0]) / max(sizes[-1] - sizes[0], 1.0)
    fixed = own.peak_bytes[0] - slope * sizes[0]
    centred = np.log(sizes) - np.log(sizes).mean()
    curve = own.log_throughput + log_speed + LEVEL_SD * rng.standard_normal()
    octaves = np.arange(0.0, np.log2(sizes[-1] / sizes[0]) + 2.0)
    bends = np.interp(np.log2(sizes / sizes[0]), octaves, BEND_SD * rng.standard_normal(len(octaves)))
    curve = curve + TILT_SD * rng.standard_normal() * centred + bends
    return dataclasses.replace(own, log_throughput=curve, peak_bytes=fixed + activations * slope * sizes)


def _expected(
    worlds: Sequence[World], changes: Sequence[tuple[float, float]], rng: np.random.Generator
) -> tuple[Variant, ...]:
    """Return what traces tell of variants: memory with a small error, and operations."""
    error = 1.0 + TRACE_SD * rng.standard_normal()

    def variant(world: World, log_speed: float) -> Variant:
        own = error * (1.0 + 0.5 * TRACE_SD * rng.standard_normal())
        sizes, peaks = np.array(world.space.sizes, dtype=float), world.peak_bytes * own
        prior = MemoryPrior(
            peak_bytes=lambda size: float(np.interp(size, sizes, peaks)),
            relative_sd=2 * TRACE_SD,
            budget_bytes=world.budget_bytes,
        )
        return Variant(memory=prior, log_speed=log_speed)

    return tuple(variant(world, log_speed) for world, (_, log_speed) in zip(worlds, changes, strict=True))
