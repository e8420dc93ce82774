"""A `Runner` with a known answer: simulated jobs on simulated machines.

The curves come from a small model of a device (layers that are bound by arithmetic or by memory traffic, waves of
tiles, launches, a cache, a memory limit), not from the search's prior, and so test the search.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.interleaving import BUDGETS_OF_CONTENDERS, InterleavedTiming, passes_per_timing
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.measurement.statistics import Array
from bexplore.search.space import MemoryAccount, MemoryPrior, Space, default_candidates
from tests.simulated.failures import TRACEBACK, StructuredFailure

BUDGET_BYTES = 64 * 2**30
PEAK_SD = 0.003  # of a measured peak, as a fraction
SEGMENT_BYTES = 20 * 2**20  # of the simulated caching allocator
COMMON_MODE_TIMES_S = (1.0, 10.0, 100.0)  # over which a shared machine changes its speed, each as much as the others
PASS_BUDGET_S = 4.0  # of a probe's own size, as the engine has it
LEAST_BURST, MOST_BURST = 1.2, 100.0  # times the seconds of a round
TRACE_ERROR_SD = 0.08  # of the simulated trace's two terms, as a fraction
CPU_PASSES_S, GPU_PASSES_S = (0.1, 10.0), (0.02, 1.0)  # of the smallest and of the largest size that fits
QUIET_RUN_SD, QUIET_PASS_SDS = 0.003, (0.003, 0.01)  # of a machine of one's own, ln
BURST_SHARE = 0.05


class Family(StrEnum):
    """The kind of a world."""

    SMOOTH = "smooth"
    ROUGH = "rough"
    CLIFFS = "cliffs"
    PLATEAUS = "plateaus"
    PEAKS = "peaks"
    DRIFT = "drift"
    OUTLIERS = "outliers"
    DRIFTING_HOST = "wandering"
    SPILLS = "spills"
    BURSTS = "bursts"
    LONE_PEAKS = "lone_peaks"
    SHELVES = "shelves"
    FEW = "few"
    CPU_LIKE = "cpu_like"
    GPU_LIKE = "gpu_like"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A job on a machine, both known."""

    family: Family  # its kind
    space: Space  # the candidates
    log_throughput: Array  # ln(samples/s) at each candidate, without noise
    peak_bytes: Array  # true peak of the tensors at each candidate
    budget_bytes: float  # memory of the device
    memory: MemoryPrior | None  # the prior of a trace, with its error; None where nothing is limited
    run_sd: float  # noise between two runs of one size, ln
    pass_sd: float  # noise between two passes of a run, ln
    # Reserved by a caching allocator at each candidate without a limit; None without an allocator, so that the tensors
    # alone must fit.
    reserved_bytes: Array | None = None
    # Reserved where the allocator must release its cache again and again; None without one.
    lowest_limit_bytes: Array | None = None
    failure: StructuredFailure | None = None  # sizes at which the program fails for reasons of its own; None for none
    drift_per_probe: float = 0.0  # change of ln(samples/s) from probe to probe
    outlier_share: float = 0.0  # share of the probes that another process slows down
    common_mode_sd: float = 0.0  # drift of ln(samples/s) over seconds and minutes
    burst_share: float = 0.0  # share of the timings that another process slows down, by up to `MOST_BURST` times
    start_s: float = 5.0  # seconds to start a worker
    compile_s: float = 30.0  # seconds to compile

    @property
    def fits(self) -> NDArray[np.bool_]:
        """(num candidates,), which run."""
        needed = self.peak_bytes if self.lowest_limit_bytes is None else self.lowest_limit_bytes
        if self.failure is None:
            return needed <= self.budget_bytes
        return (needed <= self.budget_bytes) & np.array([self.failure.runs(size) for size in self.space.sizes])

    @property
    def throughputs(self) -> Mapping[int, float]:
        """Noiseless samples/s of each candidate that fits."""
        pairs = zip(self.space.sizes, np.exp(self.log_throughput), self.fits, strict=True)
        return {size: float(value) for size, value, fits in pairs if fits}

    def regret(self, size: int) -> float:
        """Return the share of the best feasible throughput that is lost at a size; 1 where it does not fit."""
        fits, at = self.fits, np.equal(self.space.sizes, size)
        own = self.log_throughput[fits & at]
        return 1.0 - float(np.exp(own[0] - self.log_throughput[fits].max())) if own.size else 1.0


class SimulatedRunner:
    """Runs probes in a world, and adds up what they would have cost."""

    def __init__(self, world: World, *, seed: int, shared_compile: bool = False) -> None:
        """Begin without a worker.

        Args:
            shared_compile: A worker serves every size of the program that it has compiled; otherwise each probe starts
                a worker and compiles.
        """
        self.world = world
        self.cost_s = 0.0
        self.num_probes = 0
        self._shared = shared_compile
        self._program: tuple[Compilation, int] | None = None  # of the worker that is alive
        self._largest = 0  # size that ran
        self._rng = np.random.default_rng([seed, 77])
        self._common_mode = _CommonModeDrift(world.common_mode_sd, np.random.default_rng([seed, 78]))

    def __call__(self, probe: Probe) -> Observation:
        """Run one probe."""
        world = self.world
        index = world.space.sizes.index(probe.micro_batch_size)
        crash = world.failure.reason(probe.micro_batch_size, self.num_probes) if world.failure else None
        if crash is not None:
            return self._crashed(probe, crash)
        fits = bool(world.fits[index])
        starts = not self._shared or probe.fresh_worker or probe.program != self._program
        self._largest = max(self._largest, probe.micro_batch_size if fits else 0)
        self._program = probe.program if fits or probe.micro_batch_size > self._largest > 0 else None
        start_s, compile_s = (world.start_s, world.compile_s) if starts else (0.0, 0.0)
        times, rounds, timed_s = np.zeros(0), dict[int, tuple[float, ...]](), 0.0
        if fits and world.common_mode_sd:
            self._common_mode.wait(start_s + compile_s)
            times, rounds, timed_s = self._interleaved(probe)
        elif fits:
            times = self._times(index, probe)
            timed_s = float(times.sum())
        held, num_retries = self._reserved(index) if fits else (None, 0)
        self.num_probes += 1
        elapsed = start_s + compile_s + timed_s
        self.cost_s += elapsed
        return Observation(
            probe=probe,
            outcome=Outcome.MEASURED if fits else Outcome.OUT_OF_MEMORY,
            reason="" if fits else "peak above the budget",
            pass_times_s=tuple(map(float, times)),
            interleaved_times_s=rounds,
            start_time_s=start_s,
            compile_time_s=compile_s,
            elapsed_s=elapsed,
            peak_memory_bytes=self._peak(index) if fits else None,
            resident_memory_bytes=held,
            num_alloc_retries=num_retries,
            memory_budget_bytes=round(world.budget_bytes) if world.memory is not None else None,
        )

    def _crashed(self, probe: Probe, reason: str) -> Observation:
        """End a probe in its first pass, with its worker."""
        start_s = self.world.start_s if self._program is None or probe.fresh_worker or not self._shared else 0.0
        self._program = None
        self.num_probes += 1
        self.cost_s += start_s
        return Observation(
            probe=probe,
            outcome=Outcome.CRASHED,
            reason=reason,
            traceback_text=TRACEBACK,
            start_time_s=start_s,
            elapsed_s=start_s,
        )

    def _peak(self, index: int) -> int:
        return round(self.world.peak_bytes[index] * (1 + PEAK_SD * self._rng.standard_normal()))

    def _reserved(self, index: int) -> tuple[int | None, int]:
        """Return reserved memory, and how often the allocator was at the limit."""
        world = self.world
        if world.reserved_bytes is None:
            return None, 0
        wanted = float(world.reserved_bytes[index])
        return round(min(wanted, world.budget_bytes)), int(wanted > world.budget_bytes)

    def _times(self, index: int, probe: Probe) -> Array:
        world = self.world
        value = world.log_throughput[index] + world.drift_per_probe * self.num_probes
        value += world.run_sd * self._rng.standard_normal()
        if self._rng.random() < world.outlier_share:
            value -= self._rng.uniform(0.05, 0.5)
        noise = world.pass_sd * self._rng.standard_normal(probe.max_passes)
        return probe.micro_batch_size * np.exp(noise - value)

    def _interleaved(self, probe: Probe) -> tuple[Array, dict[int, tuple[float, ...]], float]:
        """Return the passes of the probe's size, its interleaved rounds, and the seconds of all."""
        world, own = self.world, probe.micro_batch_size
        order = [own, *probe.interleaved_with]
        usual_s = {size: size / math.exp(world.log_throughput[world.space.sizes.index(size)]) for size in order}
        is_screening = probe.purpose is Purpose.SEARCH
        rounds = InterleavedTiming(
            size=own,
            max_rounds=probe.max_passes,
            budget_s=PASS_BUDGET_S * (1 if is_screening else BUDGETS_OF_CONTENDERS),
            is_screening=is_screening,
            tolerance=probe.tolerance,
            num_passes={size: passes_per_timing(usual_s[size]) for size in order},
        )
        process_effect = {size: world.run_sd * self._rng.standard_normal() for size in order}
        own_s, spent_s = list[float](), 0.0

        def time_size(size: int) -> float:
            nonlocal spent_s
            count = rounds.num_passes[size]
            noise = world.pass_sd * self._rng.standard_normal(count) - process_effect[size]
            times_s = usual_s[size] * np.exp(noise - self._common_mode.wait(count * usual_s[size]))
            if world.burst_share and self._rng.random() < world.burst_share:
                times_s *= math.exp(self._rng.uniform(math.log(LEAST_BURST), math.log(MOST_BURST)))
            spent_s += float(times_s.sum())
            own_s.extend(times_s.tolist() if size == own else [])
            return float(np.median(times_s))

        rounds.take(order, time_size)
        found = {size: tuple(times_s) for size, times_s in rounds.interleaved_times_s.items()}
        return np.array(own_s), found if probe.interleaved_with else {}, spent_s


class _CommonModeDrift:
    """ln of a machine's speed over time: a sum of Ornstein-Uhlenbeck processes of different times."""

    def __init__(self, sd: float, rng: np.random.Generator) -> None:
        self._rng = rng
        self._sd = sd / math.sqrt(len(COMMON_MODE_TIMES_S))
        self._state = self._sd * rng.standard_normal(len(COMMON_MODE_TIMES_S))

    def wait(self, seconds: float) -> float:
        """Let time pass; return ln(speed) after it."""
        kept = np.exp(-seconds / np.array(COMMON_MODE_TIMES_S))
        new = self._sd * np.sqrt(1.0 - kept**2) * self._rng.standard_normal(len(COMMON_MODE_TIMES_S))
        self._state = kept * self._state + new
        return float(self._state.sum())


def draw_world(family: Family, seed: int, space: Space | None = None) -> World:
    """Draw one world, of these sizes or of drawn ones; equal arguments give equal worlds on every machine."""
    rng = np.random.default_rng([seed, *family.value.encode()])
    space = space or _SPACES.get(family, _draw_space)(rng)
    if family in _DEVICES:
        return _draw_quiet_world(family, space, rng)
    sizes = np.array(space.sizes, dtype=float)
    curve = _device_curve(sizes, rng, peaked=family is Family.PEAKS, flat=family is Family.PLATEAUS)
    shape = Family(rng.choice(_SHAPES_OF_FEW)) if family is Family.FEW else family
    if shape is Family.ROUGH:
        curve = curve + _roughness(sizes, rng)
    if shape is Family.CLIFFS:
        curve = curve + _cliff(sizes, rng)
    peak, memory = _draw_memory(sizes, rng)
    if family is Family.SPILLS:
        curve = curve + _spill(peak, rng)
    if family is Family.LONE_PEAKS:
        curve = curve + _lone_peak(sizes, curve, peak, rng)
    if family is Family.SHELVES:
        curve = _shelf(sizes, curve, peak, rng)
    curve = curve + _pressure(sizes, peak, rng)
    world = World(
        family=family,
        space=space,
        log_throughput=curve,
        peak_bytes=peak,
        budget_bytes=BUDGET_BYTES,
        memory=memory,
        run_sd=float(np.clip(0.008 * np.exp(0.6 * rng.standard_normal()), 0.002, 0.03)),
        pass_sd=float(np.clip(0.008 * np.exp(0.6 * rng.standard_normal()), 0.002, 0.05)),
    )
    return dataclasses.replace(world, **_DISTURBANCES.get(family, lambda rng: {})(rng))


def _draw_quiet_world(family: Family, space: Space, rng: np.random.Generator) -> World:
    """Draw a job on a quiet machine of a kind, with that kind's curves, seconds of a pass and noise."""
    sizes = np.array(space.sizes, dtype=float)
    peak, memory = _draw_memory(sizes, rng)
    curve_of, passes_s = _DEVICES[family]
    curve = _in_seconds(sizes, curve_of(sizes, peak, rng), peak <= BUDGET_BYTES, passes_s, rng)
    return World(
        family=family,
        space=space,
        log_throughput=curve,
        peak_bytes=peak,
        budget_bytes=BUDGET_BYTES,
        memory=memory,
        run_sd=QUIET_RUN_SD,
        pass_sd=math.exp(rng.uniform(*np.log(QUIET_PASS_SDS))),
    )


def with_caching_allocator(world: World, seed: int) -> World:
    """Return the same world, on a device whose allocator reserves whole segments and keeps freed ones.

    A share of the job, another of each size, and segments that are not full; releasing the cache gives some of it back.
    Source: the ranges are those of benchmarks/results/allocator_ratio.md.
    """
    rng = np.random.default_rng([seed, 79])
    count = len(world.space.sizes)
    unused_share = rng.uniform(0.005, 0.08) + rng.uniform(0.0, 0.02, count)
    unused_bytes = unused_share * world.peak_bytes + SEGMENT_BYTES * rng.integers(1, 8, count)
    kept = rng.uniform(0.3, 1.0)
    return dataclasses.replace(
        world,
        reserved_bytes=world.peak_bytes + unused_bytes,
        lowest_limit_bytes=np.maximum.accumulate(world.peak_bytes + kept * unused_bytes),
        memory=world.memory and dataclasses.replace(world.memory, judged_by=MemoryAccount.RESERVED),
    )


def _draw_space(rng: np.random.Generator, powers: tuple[float, float] = (4, 12)) -> Space:
    """Draw a fine or a coarse space: all integers, powers of two, multiples of 8, or a list of a user's own."""
    largest = int(2 ** rng.uniform(*powers))
    kind = rng.choice(["all", "powers", "multiples", "list"], p=[0.5, 0.2, 0.15, 0.15])
    if kind == "all":
        return Space.from_sizes(default_candidates(1, largest))
    if kind == "powers":
        first = int(rng.integers(0, 4))
        return Space.from_sizes(2**power for power in range(first, max(int(math.log2(largest)), first + 3) + 1))
    if kind == "multiples":
        return Space.from_sizes(range(8, max(largest, 64) + 1, 8))
    wanted = np.exp(rng.uniform(0, math.log(max(largest, 64)), int(rng.integers(6, 20))))
    return Space.from_sizes([1, *np.ceil(wanted).astype(int).tolist()])


def _draw_short_space(rng: np.random.Generator) -> Space:
    """Draw a hand-made list: powers of two, sometimes with a size between them, up to a dozen."""
    first, count = int(rng.integers(0, 5)), int(rng.integers(4, 10))
    powers = [2**power for power in range(first, first + count)]
    between = [3 * size // 2 for size in powers[1:] if rng.random() < 0.25]
    return Space.from_sizes([*powers, *between])


def _draw_fine_or_short_space(rng: np.random.Generator) -> Space:
    """Draw a fine or a coarse space, or a hand-made list."""
    return _draw_space(rng) if rng.random() < 0.5 else _draw_short_space(rng)


def _draw_few(rng: np.random.Generator) -> Space:
    """Draw three to eight candidates: powers of two, or a list of a user's own."""
    count = int(rng.integers(3, 9))
    if rng.random() < 0.5:
        first = int(rng.integers(0, 7))
        return Space.from_sizes(2**power for power in range(first, first + count))
    steps = rng.uniform(math.log(1.15), math.log(3.0), count - 1)
    sizes = [int(2 ** rng.uniform(0, 6))]
    for step in steps:
        sizes.append(max(round(sizes[-1] * math.exp(step)), sizes[-1] + 1))
    return Space.from_sizes(sizes)


def _device_curve(sizes: Array, rng: np.random.Generator, *, peaked: bool, flat: bool) -> Array:
    """Return ln(samples/s) of a few layers on one device.

    Time = launches + sum over layers of a soft maximum of arithmetic and traffic; each layer has its own size at which
    arithmetic takes over, and its own wave quantisation.
    """
    largest = sizes[-1]
    span = math.log(max(largest, 8.0))
    knee = math.exp(rng.uniform(-0.2 if flat else 0.1, 0.4 if flat else 1.0) * span) * 0.3
    num_layers = int(rng.integers(2, 7))
    shares = rng.dirichlet(np.ones(num_layers))
    time = np.full_like(sizes, rng.uniform(0.0, 0.6) * knee)
    for share in shares:
        own_knee = knee * math.exp(0.7 * rng.standard_normal())
        sharpness = rng.uniform(1.0, 5.0)
        work = sizes * _waves(sizes, rng) if rng.random() < 0.3 else sizes
        time = time + share * (work**sharpness + own_knee**sharpness) ** (1 / sharpness)
    if peaked or rng.random() < 0.25:
        start = knee * math.exp(rng.uniform(0.3, 2.5 if peaked else 4.0))
        slope = rng.uniform(0.03, 0.25) if peaked else rng.exponential(0.05)
        width = rng.uniform(0.1, 0.8)
        time = time * np.exp(slope * width * np.logaddexp(0.0, np.log(sizes / start) / width))
    return np.log(sizes / time) + rng.uniform(2, 7)


def _waves(sizes: Array, rng: np.random.Generator) -> Array:
    """Return (work done) / (work wanted) of padding to whole waves of tiles."""
    per_wave = 2.0 ** rng.uniform(1, 6)
    waves = sizes / per_wave
    return 1.0 + rng.uniform(0.1, 0.6) * (np.ceil(waves) / waves - 1.0).clip(0.0, 1.0)


def _roughness(sizes: Array, rng: np.random.Generator) -> Array:
    """Return kernel selection: a level for each stretch of sizes, a level for each size, and misalignment."""
    logs = np.log(sizes)
    edges = np.sort(rng.uniform(logs[0], logs[-1] + 1e-9, int(rng.integers(2, 12))))
    levels = rng.normal(0.0, rng.uniform(0.003, 0.02), len(edges) + 1)
    own = rng.normal(0.0, rng.uniform(0.001, 0.005), len(sizes))
    grain = int(rng.choice([2, 4, 8, 16]))
    loss = rng.exponential(0.03) if rng.random() < 0.5 else 0.0
    return levels[np.searchsorted(edges, logs)] + own - loss * (np.mod(sizes, grain) != 0)


def _cliff(sizes: Array, rng: np.random.Generator) -> Array:
    """Return one lasting fall, one hole, or one narrow peak."""
    logs = np.log(sizes)
    at = rng.uniform(logs[0], logs[-1])
    kind = rng.choice(["fall", "hole", "peak"], p=[0.5, 0.25, 0.25])
    if kind == "fall":
        return -rng.uniform(0.04, 0.5) * (logs > at)
    inside = np.abs(logs - at) < 0.5 * rng.uniform(0.3, 1.4)
    return (-rng.uniform(0.05, 0.5) if kind == "hole" else rng.uniform(0.03, 0.2)) * inside


def _spill(peak: Array, rng: np.random.Generator) -> Array:
    """Return the fall of throughput to a fraction where nearly full memory spills to the host."""
    fall: float = math.log(rng.uniform(0.1, 0.6))
    return np.where(peak > rng.uniform(0.75, 0.99) * BUDGET_BYTES, fall, 0.0)


def _lone_peak(sizes: Array, curve: Array, peak: Array, rng: np.random.Generator) -> Array:
    """Return a peak of one size, or of a narrow stretch, that no adjacent size predicts.

    Half of the peaks are among the fastest feasible sizes, where they decide which size is the best.
    """
    fits = peak <= BUDGET_BYTES
    wanted = (
        fits & (curve > curve[fits].max() - 0.1) if fits.any() and rng.random() < 0.5 else np.full(len(sizes), True)
    )
    at = float(rng.choice(sizes[wanted]))
    inside = sizes == at
    if rng.random() < 0.5:
        width = rng.uniform(1.05, 1.5)
        low = at / width ** rng.uniform(0.0, 1.0)
        inside |= (sizes >= low) & (sizes <= low * width)
    return math.log1p(rng.uniform(0.03, 0.15)) * inside


def _shelf(sizes: Array, curve: Array, peak: Array, rng: np.random.Generator) -> Array:
    """Return a curve with a fall well before the memory limit, beyond which throughput stays or creeps up again.

    The gains before the fall and on the shelf decide on which side of the fall the best size is.
    """
    largest = max(sizes[peak <= BUDGET_BYTES].max(initial=0.0), sizes[0])
    at = sizes[0] * math.exp(rng.uniform(0.1, 0.8) * math.log(max(largest / sizes[0], 2.0)))
    beyond = (sizes > at) & (sizes > sizes[0])
    if not beyond.any():
        return curve
    creep = rng.uniform(0.05, 0.3) if rng.random() < 0.7 else 0.0
    start = float(curve[~beyond][-1]) + math.log1p(-rng.uniform(0.15, 0.5))
    return np.where(beyond, start + creep * np.log(sizes / sizes[beyond][0]), curve)


def _cpu_curve(sizes: Array, peak: Array, rng: np.random.Generator) -> Array:
    """Return ln(samples/s) of a CPU: soon flat, and slowly falling once activations exceed the cache.

    Source: knee and fall of the jobs of benchmarks/results/engine.md.
    """
    knee = math.exp(rng.uniform(math.log(0.05), math.log(1.5)))
    start, slope, width = math.exp(rng.uniform(0.0, math.log(16.0))), rng.uniform(0.03, 0.15), 0.5
    beyond_cache = slope * width * np.logaddexp(0.0, np.log(sizes / start) / width)
    own = rng.normal(0.0, rng.uniform(0.001, 0.01), len(sizes))  # how the work divides among cores and vectors
    return np.log(sizes / (sizes + knee)) - beyond_cache + own


def _gpu_curve(sizes: Array, peak: Array, rng: np.random.Generator) -> Array:
    """Return ln(samples/s) of a GPU: late to saturate, in steps of waves and of alignment, sometimes with a fall."""
    largest = max(sizes[peak <= BUDGET_BYTES].max(initial=0.0), sizes[0])
    knee = largest * math.exp(rng.uniform(math.log(0.02), math.log(0.5)))
    work = sizes * _waves(sizes, rng) if rng.random() < 0.5 else sizes
    grain = int(rng.choice([2, 4, 8, 16]))
    loss = rng.uniform(0.01, 0.08) if rng.random() < 0.7 else 0.0
    own = rng.normal(0.0, rng.uniform(0.001, 0.005), len(sizes))
    curve = np.log(sizes / (work + knee)) - loss * (np.mod(sizes, grain) != 0) + own
    if rng.random() < 0.15:
        curve = curve - rng.uniform(0.05, 0.4) * (sizes > largest * rng.uniform(0.3, 0.95))
    return curve + _pressure(sizes, peak, rng)


def _in_seconds(
    sizes: Array, curve: Array, fits: NDArray[np.bool_], passes_s: tuple[float, float], rng: np.random.Generator
) -> Array:
    """Return the curve scaled to passes within these seconds at the sizes that fit; centred if they span more."""
    logs = (np.log(sizes) - curve)[fits if fits.any() else np.full(len(sizes), True)]
    least, most = math.log(passes_s[0]) - logs.min(), math.log(passes_s[1]) - logs.max()
    return curve - (rng.uniform(least, most) if least < most else (least + most) / 2.0)


def _draw_memory(sizes: Array, rng: np.random.Generator) -> tuple[Array, MemoryPrior | None]:
    """Return a fixed part and a part per sample; two worlds in three run out of memory among the candidates."""
    fixed = rng.uniform(0.02, 0.7) * BUDGET_BYTES
    inside = math.exp(rng.uniform(0.3, 1.0) * math.log(sizes[-1] / sizes[0])) * sizes[0]
    limit = max(inside, 2.0 * sizes[0]) if rng.random() < 0.66 else sizes[-1] * rng.uniform(1.05, 4.0)
    per_sample = (BUDGET_BYTES - fixed) / limit
    peak = fixed + per_sample * sizes
    fixed_said, per_sample_said = np.array([fixed, per_sample]) * (1 + TRACE_ERROR_SD * rng.standard_normal(2))
    prior = MemoryPrior(peak_bytes=lambda size: fixed_said + per_sample_said * size, budget_bytes=BUDGET_BYTES)
    return peak, prior


def _pressure(sizes: Array, peak: Array, rng: np.random.Generator) -> Array:
    """Return the slowdown of an allocator that retries near the limit, in one world of five."""
    if rng.random() >= 0.2:
        return np.zeros_like(sizes)
    start = rng.uniform(0.8, 0.97)
    fullness = np.clip((peak / BUDGET_BYTES - start) / (1.0 - start), 0.0, 2.0)
    return -rng.uniform(0.05, 0.3) * fullness ** rng.choice([1.0, 2.0])


_SHAPES_OF_FEW = (Family.SMOOTH.value, Family.ROUGH.value, Family.CLIFFS.value)
_SPACES: Mapping[Family, Callable[[np.random.Generator], Space]] = {  # the others' are `_draw_space`
    Family.SPILLS: _draw_short_space,
    Family.LONE_PEAKS: _draw_fine_or_short_space,
    Family.FEW: _draw_few,
    Family.CPU_LIKE: functools.partial(_draw_space, powers=(3, 7)),
    Family.GPU_LIKE: functools.partial(_draw_space, powers=(4, 11)),
}
_DEVICES: Mapping[Family, tuple[Callable[[Array, Array, np.random.Generator], Array], tuple[float, float]]] = {
    Family.CPU_LIKE: (_cpu_curve, CPU_PASSES_S),
    Family.GPU_LIKE: (_gpu_curve, GPU_PASSES_S),
}
_DISTURBANCES: Mapping[Family, Callable[[np.random.Generator], dict[str, Any]]] = {  # of the worlds' usual noise
    Family.DRIFT: lambda rng: {"drift_per_probe": float(rng.normal(0.0, 0.003))},
    Family.DRIFTING_HOST: lambda rng: {
        "common_mode_sd": float(rng.uniform(0.03, 0.12)),
        "pass_sd": float(np.exp(rng.uniform(-4.0, -2.5))),
    },
    Family.BURSTS: lambda rng: {"common_mode_sd": float(rng.uniform(0.01, 0.06)), "burst_share": BURST_SHARE},
    Family.OUTLIERS: lambda rng: {"outlier_share": 0.08},
}
