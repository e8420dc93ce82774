"""The posterior of throughput and memory at every size (numpy only)."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.memory import MemoryObservations, Peak, ReservedPeak, draw_boundaries
from bexplore.search.posterior.prior import Kinship, ShapePrior
from bexplore.search.posterior.runnable import RunBelief
from bexplore.search.posterior.throughput import NUM_DRAWS, CurveDraws, Draws, draw_curves
from bexplore.search.space import MemoryAccount, MemoryPrior, Remaining, Space

ENGINE_VERSION = 7  # Source: a counter: goes up when the same evidence would give another answer
LIKELY_FITS = 0.5  # probability of fitting, from which a size counts as one that fits. Source: more likely than not
# Sizes this close to the best, in standard deviations of their own part, may turn out to be the best. Source: P < 0.2 %
# beyond; benchmarks/results/sensitivity.md.
RIVAL_SDS = 3.0
# The domain: up to so many candidates all of them, else the first ones, powers of two and 1.5 times these, a ladder of
# relative steps (rounded to multiples of 8 beyond 128 and of 64 beyond 1024), quantiles of the memory boundary, and
# sizes up to the smallest that failed. Source: benchmarks/results/sensitivity.md; more sizes only cost time.
DENSE_DOMAIN = 128
NUM_FIRST = 16
LADDER_STEP = 1.1
BOUNDARY_QUANTILES = np.linspace(0.02, 0.98, 11)
NUM_BELOW_LIMIT = 6
BOUNDARY_STREAM, RUNS_STREAM = 1, 2  # of random numbers; others are those of `throughput`. Source: arbitrary
QUANTILES = (0.05, 0.95)  # Source: a convention: nine of ten curves lie inside the band
# The band is drawn where a size fits with at least this probability, and up to this factor beyond the largest size that
# ran: the posterior is vague further out. Source: a choice of presentation, which no decision depends on.
SHOWN_IF_FITS = 0.02
SHOWN_BEYOND = 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior(CurveDraws):
    """Joint draws of the throughput curve of the user's exact compilation, and of the memory boundary."""

    sizes: NDArray[np.int64]  # (D,), the domain: every candidate, or those that can matter
    feasible: NDArray[np.bool_]  # (S, D), whether the size fits and runs, and was not dropped for its own reasons
    represented: NDArray[np.int64]  # (D,), candidates that each size of the domain stands for
    measured: NDArray[np.int64]  # (D,), number of measured probes
    measured_exactly: NDArray[np.int64]  # (D,), number of measured probes of the user's own compilation
    open: NDArray[np.bool_]  # (D,), whether the size may be probed
    _near: dict[float, NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    def index(self, size: int, variant: int = 0) -> int:
        """Return the position of a size in the domain."""
        del variant  # there is one
        return int(np.searchsorted(self.sizes, size))

    def part(self, variant: int) -> Posterior:
        """Return the posterior of one variant."""
        del variant  # there is one
        return self

    def start(self, variant: int) -> int:
        """Return the position of the smallest size of a variant."""
        del variant  # there is one
        return 0

    @property
    def variants(self) -> NDArray[np.int64]:
        """(D,), the variant of each position."""
        return np.zeros(len(self.sizes), dtype=np.int64)

    @cached_property
    def values(self) -> Draws:
        """(S, D), ln(samples/s) where the size fits, and -infinity where it does not."""
        return np.where(self.feasible, self.log_throughput, np.float32(-np.inf))

    @cached_property
    def best(self) -> Draws:
        """(S, 1), ln(samples/s) of the best size that fits."""
        return self.values.max(axis=1, keepdims=True)

    @cached_property
    def mean(self) -> Array:
        """(D,), expected ln(samples/s)."""
        return self.log_throughput.mean(axis=0, dtype=np.float64)

    def near_best(self, tolerance: float) -> NDArray[np.bool_]:
        """Return (S, D), in which draws a size fits and is within the tolerance of the best that fits."""
        if tolerance not in self._near:
            self._near[tolerance] = self._near_best(tolerance)
        return self._near[tolerance]

    def among(self, sizes: Iterable[int]) -> Posterior:
        """Return the same posterior with these sizes, all of the domain, as the only candidates."""
        kept = np.isin(self.sizes, list(sizes))
        return dataclasses.replace(
            self,
            feasible=self.feasible & kept,
            open=self.open & kept,
            represented=kept.astype(np.int64),
            _near={},
        )

    def regret(self, size: int, variant: int = 0) -> Array:
        """Return (S,), share of the best feasible speed that a size misses; 1 where it does not fit itself."""
        del variant  # there is one
        fits = self.feasible[:, self.index(size)]
        own = self.log_throughput[:, self.index(size)].astype(np.float64)
        behind = np.subtract(own, self.best[:, 0] + self._unseen, where=fits, out=np.full(len(own), -np.inf))
        return -np.expm1(np.minimum(behind, 0.0))

    def _near_best(self, tolerance: float) -> NDArray[np.bool_]:
        bonus = math.log1p(-tolerance) + self._unseen
        return self.feasible & (self.values >= self.best + bonus.astype(np.float32)[:, None])

    @cached_property
    def _unseen(self) -> Array:
        """(S,), ln(samples/s) of the best of all candidates over the best of those in the domain.

        Source: the largest of n normal draws is near sd sqrt(2 ln n).
        """
        rivals = self.values >= self.best - (RIVAL_SDS * self.own_sd).astype(np.float32)[:, None]
        weights = np.stack([self.represented, np.ones(len(self.sizes))], axis=1).astype(np.float32)
        many, few = np.sqrt(2.0 * np.log(np.maximum(rivals.astype(np.float32) @ weights, 1.0))).T
        return self.own_sd * (many - few)


def fit_posterior(
    space: Space,
    evidence: Sequence[Evidence],
    *,
    memory: MemoryPrior | None = None,
    seed: int = 0,
    user_compilation: Compilation = Compilation.EXACT,
    covered: Sequence[int] = (),
    kinship: Kinship | None = None,
) -> Posterior:
    """Fit the posterior.

    Args:
        evidence: Every finished probe, in order; of all variants, where there are several.
        user_compilation: The program of the training; other compilations are evidence with an extra variance.
        covered: Candidates that the domain must hold.
        kinship: The variant whose posterior it is, and what measurements of others tell of it; None for the only one.
    """
    variant = 0 if kinship is None else kinship.variant
    everything = [item for item in evidence if item.is_measured]
    if not everything:
        raise ValueError("a posterior needs at least one measurement")
    own = [item for item in evidence if item.variant == variant]
    measured = [item for item in own if item.is_measured]
    remaining = space.after(own)
    boundaries = _boundaries(space, measured, remaining, memory, seed)
    belief, drawn = RunBelief.from_evidence(space, own), None
    if belief is not None:
        drawn = belief.draw(np.random.default_rng([seed, RUNS_STREAM]).random((2, NUM_DRAWS)))
    certain = sorted({*covered, *(item.micro_batch_size for item in evidence)})
    ends = boundaries if drawn is None else np.minimum(boundaries, drawn.ends)
    sizes = _domain(space, certain, ends, _largest_fitting(measured, remaining), remaining, belief)
    prior = ShapePrior(base=float(space.base), reach=_reach(space, memory), seed=seed)
    curves = draw_curves(prior, sizes, everything, user_compilation=user_compilation, kinship=kinship)
    alive = ~np.isin(sizes, list(remaining.dropped - set(belief.may_run_again if belief else ())))
    feasible = (sizes[None, :] <= boundaries[:, None]) & alive[None, :]
    if belief is not None and drawn is not None:
        feasible &= belief.runs(sizes, drawn) | (_count(sizes, measured) > 0)
    return Posterior(
        **{item.name: getattr(curves, item.name) for item in dataclasses.fields(curves)},
        sizes=sizes,
        feasible=feasible,
        represented=_represented(space, sizes),
        measured=_count(sizes, measured),
        measured_exactly=_count(sizes, [item for item in measured if item.compilation is user_compilation]),
        open=alive & (sizes < remaining.smallest_out_of_memory),
    )


def _boundaries(
    space: Space, measured: Sequence[Evidence], remaining: Remaining, memory: MemoryPrior | None, seed: int
) -> Array:
    """Draw (S,), the largest size that fits."""
    is_reserved = memory is not None and memory.judged_by is MemoryAccount.RESERVED
    observed = MemoryObservations(
        peaks=_tensor_peaks(measured) if is_reserved else _needed_peaks(measured),
        reserved=_reserved_peaks(measured) if is_reserved else (),
        budget_bytes=next((item.memory_budget_bytes for item in reversed(measured) if item.memory_budget_bytes), None),
        largest_measured=_largest_fitting(measured, remaining),
        smallest_out_of_memory=remaining.smallest_out_of_memory,
    )
    uniforms = np.random.default_rng([seed, BOUNDARY_STREAM]).random((6, NUM_DRAWS))
    return draw_boundaries(observed, memory, base=space.base, largest=space.sizes[-1], uniforms=uniforms)


def _largest_fitting(measured: Sequence[Evidence], remaining: Remaining) -> int:
    """Return the largest size that ran below the smallest that does not fit; 0 for none."""
    ran = (item.micro_batch_size for item in measured if item.micro_batch_size < remaining.smallest_out_of_memory)
    return max(ran, default=0)


def _tensor_peaks(measured: Sequence[Evidence]) -> list[Peak]:
    return [
        Peak(size=item.micro_batch_size, num_bytes=float(item.peak_memory_bytes))
        for item in measured
        if item.peak_memory_bytes
    ]


def _reserved_peaks(measured: Sequence[Evidence]) -> list[ReservedPeak]:
    """Return one of each size; a size that made the allocator retry shows the limit and not itself."""
    at_the_limit = {item.micro_batch_size for item in measured if item.num_alloc_retries}
    by_size = {
        item.micro_batch_size: ReservedPeak(
            allocated_bytes=float(item.peak_memory_bytes), reserved_bytes=float(item.resident_memory_bytes)
        )
        for item in measured
        if item.peak_memory_bytes and item.resident_memory_bytes and item.micro_batch_size not in at_the_limit
    }
    return list(by_size.values())


def _needed_peaks(measured: Sequence[Evidence]) -> list[Peak]:
    return [
        Peak(
            size=item.micro_batch_size,
            num_bytes=float(needed),
            counts_resident_memory=needed == item.resident_memory_bytes,
        )
        for item in measured
        if (needed := item.needed_memory_bytes)
    ]


def _count(sizes: NDArray[np.int64], measured: Sequence[Evidence]) -> NDArray[np.int64]:
    """Return (D,), how many of the probes timed each size; the domain covers every one of these sizes."""
    timed = [size for item in measured for size in item.timed_sizes]
    at = np.searchsorted(sizes, np.array(timed, dtype=np.int64))
    return np.bincount(at, minlength=len(sizes)).astype(np.int64)


def _reach(space: Space, memory: MemoryPrior | None) -> float:
    """Return the largest size that was possible by the prior; curve shapes are drawn up to it."""
    if memory is None or memory.peak_bytes is None or memory.budget_bytes is None:
        return float(space.sizes[-1])
    peak_bytes, budget = memory.peak_bytes, memory.budget_bytes * (1.0 + memory.relative_sd)
    above = bisect.bisect_right(space.sizes, budget, key=peak_bytes)
    return float(space.sizes[max(above - 1, 0)])


def _represented(space: Space, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (D,), how many candidates are nearer to each size of the domain than to any other."""
    if len(sizes) == len(space.sizes):
        return np.ones(len(sizes), dtype=np.int64)
    borders = (sizes[1:] + sizes[:-1]) / 2.0
    return np.bincount(np.searchsorted(borders, _as_array(space)), minlength=len(sizes)).astype(np.int64)


@lru_cache(maxsize=4)
def _as_array(space: Space) -> NDArray[np.int64]:
    """Return (num candidates,), the candidates."""
    return np.array(space.sizes, dtype=np.int64)


def _domain(
    space: Space,
    certain: Sequence[int],
    ends: Array,
    largest_ok: int,
    remaining: Remaining,
    belief: RunBelief | None,
) -> NDArray[np.int64]:
    """Return the sizes that the posterior covers: all of a small space; of a large one those that can matter."""
    candidates = _as_array(space)
    if len(candidates) <= DENSE_DOMAIN:
        return candidates
    top = candidates[-1]
    powers = 2.0 ** np.arange(int(math.log2(top)) + 1)
    ladder = space.base * LADDER_STEP ** np.arange(int(math.log(top / space.base) / math.log(LADDER_STEP)) + 1)
    grain = 8.0 ** np.clip(np.floor(np.log(ladder / 16) / np.log(8)), 0, 2)
    wanted = [
        np.array(certain, dtype=float),
        space.base + np.arange(NUM_FIRST, dtype=float),
        powers,
        3 * powers,
        np.round(ladder / grain) * grain,
        np.quantile(ends, BOUNDARY_QUANTILES),
    ]
    limit = min(remaining.smallest_out_of_memory, remaining.first_unfilled, belief.first_beyond if belief else math.inf)
    if math.isfinite(limit):
        wanted.append(np.linspace(largest_ok, limit - 1, NUM_BELOW_LIMIT))
    found = [_just_below(candidates, np.concatenate(wanted))]
    for rule in belief.plausible if belief else ():
        running = candidates[rule.runs(candidates)]
        found += [_just_below(running, np.concatenate(wanted[1:]))] if len(running) else []
    return np.unique(np.concatenate(found))


def _just_below(candidates: NDArray[np.int64], wanted: Array) -> NDArray[np.int64]:
    """Return, for each wanted size, the largest candidate that is not above it; the smallest where there is none."""
    below = np.searchsorted(candidates, wanted + 1e-9, side="right") - 1
    return candidates[np.clip(below, 0, len(candidates) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CredibleBand:
    """Pointwise quantiles of throughput, and the probability that a size fits; one value per size."""

    sizes: tuple[int, ...]  # micro-batch sizes, ascending
    low: tuple[float, ...]  # 5 % quantile, samples/s
    # Expected samples/s; at a size that ran, its one estimate, of which all printed numbers are.
    middle: tuple[float, ...]
    high: tuple[float, ...]  # 95 % quantile, samples/s
    fits: tuple[float, ...]  # probability, 0 to 1, that the size fits and runs

    @classmethod
    def from_posterior(cls, posterior: Posterior | None) -> CredibleBand | None:
        """Return the band of a posterior; None where nothing was measured."""
        if posterior is None:
            return None
        low, high = np.exp(np.quantile(posterior.log_throughput, QUANTILES, axis=0))
        middle = np.exp(posterior.mean)
        return cls(
            sizes=tuple(posterior.sizes.tolist()),
            low=_rounded(np.minimum(low, middle)),
            middle=_rounded(middle),
            high=_rounded(np.maximum(high, middle)),
            fits=_rounded(posterior.feasible.mean(axis=0)),
        )

    def shown(self, largest: float) -> list[tuple[float, float, float, float]]:
        """Return (size, low, middle, high) of each size to draw."""
        rows = zip(self.sizes, self.low, self.middle, self.high, self.fits, strict=True)
        last = SHOWN_BEYOND * largest
        return [(float(s), low, mid, high) for s, low, mid, high, fits in rows if fits >= SHOWN_IF_FITS and s <= last]


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Return the values with the six digits that a result file keeps."""
    return tuple(float(f"{value:.6g}") for value in values)
