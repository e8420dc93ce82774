"""The belief about throughput and memory at every size, given everything that was observed (numpy only)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bexplore.boundary import MemoryFacts, draw_boundaries
from bexplore.prior import LENGTH_SCALES, Hyper, ShapePrior, rough_kernel, smooth_kernel
from bexplore.probe import Compilation, Observation, Outcome, Purpose
from bexplore.space import MemoryPrior, Space

Array = NDArray[np.float64]

ENGINE_VERSION = 1  # goes up when the same evidence would give another answer
NUM_DRAWS = 512
DENSE_DOMAIN = 128  # up to this many candidates the belief covers every one
DRIFT_SD = 0.003  # ln(samples/s)
DRIFT_LENGTH = 6.0  # probes
LEVEL_SD = 1.0  # ln(samples/s), after centring
COMPILATION_SD = 0.01  # ln(samples/s), of shared against exact compilation, size by size
COMPILATION_LEVEL_SD = 0.10  # ln(samples/s), of shared against exact compilation, the same at every size
DEFAULT_SE = 0.01  # ln(samples/s), where a probe does not know its own noise
MIN_SE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the belief needs of one probe; an observation in short.

    Attributes:
        micro_batch_size: Samples of one pass.
        outcome: How it ended; None while it is in flight.
        reason: Why, for people.
        log_throughput: ln(samples/s) of the median pass; NaN where nothing was timed.
        log_throughput_se: Its standard error within the probe; NaN where unknown.
        num_passes: Timed passes.
        purpose: Why it was made.
        compilation: Which program was run.
        worker: Ordinal of the worker process; None where unknown.
        peak_memory_bytes: Peak; None where unknown.
        memory_budget_bytes: Budget in force; None where unknown.
        start_time_s: Seconds to start a worker, where one was started.
        compile_time_s: Seconds to compile, where something was compiled.
        update_time_s: Median seconds of an update; 0 where none was timed.
        elapsed_s: Seconds of the whole probe.
    """

    micro_batch_size: int
    outcome: Outcome | None
    reason: str = ""
    log_throughput: float = math.nan
    log_throughput_se: float = math.nan
    num_passes: int = 0
    purpose: Purpose = Purpose.SEARCH
    compilation: Compilation = Compilation.SHARED
    worker: int | None = None
    peak_memory_bytes: int | None = None
    memory_budget_bytes: int | None = None
    start_time_s: float = 0.0
    compile_time_s: float = 0.0
    update_time_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether there is a throughput."""
        return self.outcome is Outcome.MEASURED

    @classmethod
    def of(cls, observation: Observation) -> Evidence:
        """The evidence in an observation."""
        update_s = observation.update_time_s
        return cls(
            micro_batch_size=observation.micro_batch_size,
            outcome=observation.outcome,
            reason=observation.reason,
            log_throughput=math.log(observation.samples_per_s) if observation.is_measured else math.nan,
            log_throughput_se=observation.log_pass_time_se,
            num_passes=len(observation.pass_times_s),
            purpose=observation.probe.purpose,
            compilation=observation.probe.compilation,
            worker=observation.worker,
            peak_memory_bytes=observation.peak_memory_bytes,
            memory_budget_bytes=observation.memory_budget_bytes,
            start_time_s=observation.start_time_s,
            compile_time_s=observation.compile_time_s,
            update_time_s=0.0 if math.isnan(update_s) else update_s,
            elapsed_s=observation.elapsed_s,
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; NaN becomes None."""
        record = dataclasses.asdict(self)
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in record.items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """Rebuild evidence from `as_dict`; unknown keys are ignored."""
        fields = {field.name for field in dataclasses.fields(cls)}
        kept = {key: value for key, value in record.items() if key in fields}
        for name in ("log_throughput", "log_throughput_se"):
            kept[name] = math.nan if kept.get(name) is None else kept[name]
        kept["outcome"] = None if kept.get("outcome") is None else Outcome(kept["outcome"])
        kept["purpose"] = Purpose(kept.get("purpose", Purpose.SEARCH))
        kept["compilation"] = Compilation(kept.get("compilation", Compilation.SHARED))
        return cls(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Joint draws of the throughput curve and of the memory boundary.

    Attributes:
        sizes: (D,), the domain: every candidate, or those that can matter.
        log_throughput: (S, D), ln(samples/s), as the user's exact compilation would reach it.
        feasible: (S, D), whether the size fits, and was not dropped for its own reasons.
        probe_sd: (S,), ln(samples/s), noise between two probes of one size.
        measured: (D,), number of measured probes.
        measured_exactly: (D,), number of measured probes of the program that the user will run.
        open: (D,), whether the size may be probed.
    """

    sizes: NDArray[np.int64]
    log_throughput: Array
    feasible: NDArray[np.bool_]
    probe_sd: Array
    measured: NDArray[np.int64]
    measured_exactly: NDArray[np.int64]
    open: NDArray[np.bool_]

    def index(self, size: int) -> int:
        """Position of a size in the domain."""
        return int(np.searchsorted(self.sizes, size))

    def near_best(self, tolerance: float) -> NDArray[np.bool_]:
        """(S, D): in which draws a size fits and is within the tolerance of the best that fits."""
        values = np.where(self.feasible, self.log_throughput, -np.inf)
        best = values.max(axis=1, keepdims=True)
        return self.feasible & (values >= best + math.log1p(-tolerance))


@dataclass(frozen=True, slots=True)
class _Draws:
    """Random numbers fixed once per seed: the same evidence gives the same belief on every worker."""

    systematic: float
    boundary: Array
    smooth: Array
    rough: Array
    level: Array
    noise: Array


def fit(
    space: Space,
    evidence: Sequence[Evidence],
    *,
    memory: MemoryPrior | None = None,
    seed: int = 0,
    user_compilation: Compilation = Compilation.EXACT,
) -> Posterior:
    """Form the belief.

    Args:
        space: The candidates.
        evidence: Every finished probe, in order.
        memory: What the trace says of memory.
        seed: Of all random numbers.
        user_compilation: The program that the user will run; other compilations are evidence with an extra variance.

    Raises:
        ValueError: Nothing was measured yet.
    """
    measured = [item for item in evidence if item.is_measured]
    if not measured:
        raise ValueError("a posterior needs at least one measurement")
    limit = space.smallest_out_of_memory(evidence)
    largest_ok = max((item.micro_batch_size for item in measured if item.micro_batch_size < limit), default=0)
    facts = MemoryFacts(
        peaks=[(item.micro_batch_size, float(item.peak_memory_bytes)) for item in measured if item.peak_memory_bytes],
        budget_bytes=next((item.memory_budget_bytes for item in reversed(measured) if item.memory_budget_bytes), None),
        largest_measured=largest_ok,
        smallest_out_of_memory=limit,
    )
    largest = space.sizes[-1]
    rng_boundary = np.random.default_rng([seed, 1]).random((4, NUM_DRAWS))
    boundaries = draw_boundaries(facts, memory, base=space.base, largest=largest, uniforms=rng_boundary)
    sizes = _domain(space, sorted({item.micro_batch_size for item in evidence}), boundaries, largest_ok, limit)
    draws = _fixed_draws(seed, len(sizes), len(measured))

    dropped = space.dropped(evidence)
    reach = min(float(largest), float(np.quantile(boundaries, 0.9)))
    throughput, probe_sd = _draw_curves(
        ShapePrior(base=float(space.base), reach=max(reach, largest_ok), seed=seed),
        sizes,
        measured,
        draws,
        user_compilation,
    )
    alive = ~np.isin(sizes, list(dropped))
    counts = np.array([sum(item.micro_batch_size == size for item in measured) for size in sizes])
    exact = np.array(
        [
            sum(item.micro_batch_size == size and item.compilation is user_compilation for item in measured)
            for size in sizes
        ]
    )
    return Posterior(
        sizes=sizes,
        log_throughput=throughput,
        feasible=(sizes[None, :] <= boundaries[:, None]) & alive[None, :],
        probe_sd=probe_sd,
        measured=counts,
        measured_exactly=exact,
        open=alive & (sizes < limit),
    )


def _domain(space: Space, probed: Sequence[int], boundaries: Array, largest_ok: int, limit: float) -> NDArray[np.int64]:
    """The sizes that the belief covers: all of a small space; of a large one those that can matter."""
    candidates = np.array(space.sizes, dtype=np.int64)
    if len(candidates) <= DENSE_DOMAIN:
        return candidates
    top = candidates[-1]
    wanted = [float(size) for size in probed]
    wanted += list(range(space.base, space.base + 16))
    wanted += [2.0**power for power in range(int(math.log2(top)) + 1)]
    wanted += [3 * 2.0**power for power in range(int(math.log2(top)) + 1)]
    ladder = space.base * 1.1 ** np.arange(int(math.log(top / space.base) / math.log(1.1)) + 1)
    grain = 8.0 ** np.clip(np.floor(np.log(ladder / 16) / np.log(8)), 0, 2)
    wanted += list(np.round(ladder / grain) * grain)
    wanted += list(np.quantile(boundaries, np.linspace(0.02, 0.98, 11)))
    if math.isfinite(limit):
        wanted += list(np.linspace(largest_ok, limit - 1, 6))
    below = np.searchsorted(candidates, np.array(wanted) + 1e-9, side="right") - 1
    return np.unique(candidates[np.clip(below, 0, len(candidates) - 1)])


@lru_cache(maxsize=8)
def _fixed_draws(seed: int, num_sizes: int, num_measured: int) -> _Draws:
    rng = np.random.default_rng([seed, 2])
    return _Draws(
        systematic=float(rng.random()),
        boundary=rng.random((4, NUM_DRAWS)),
        smooth=rng.standard_normal((NUM_DRAWS, num_sizes)),
        rough=rng.standard_normal((NUM_DRAWS, num_sizes)),
        level=rng.standard_normal(NUM_DRAWS),
        noise=rng.standard_normal((NUM_DRAWS, num_measured)),
    )


def _draw_curves(
    prior: ShapePrior,
    sizes: NDArray[np.int64],
    measured: Sequence[Evidence],
    draws: _Draws,
    user_compilation: Compilation,
) -> tuple[Array, Array]:
    """Exact posterior given shape and hyper-parameters, then draws by Matheron's rule.

    Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", 2020.
    """
    hyper = Hyper.grid()
    logs = np.log(sizes.astype(float))
    at = np.searchsorted(sizes, [item.micro_batch_size for item in measured])
    values = np.array([item.log_throughput for item in measured])
    center = float(values.mean())
    values = values - center
    shapes = prior.evaluate(sizes.astype(float))
    shapes = shapes - shapes[:, at].mean(axis=1, keepdims=True)

    shared_noise = _shared_covariance(measured, user_compilation)
    smooth = np.stack([smooth_kernel(logs, logs, length) for length, _ in LENGTH_SCALES])
    rough = rough_kernel(logs, logs)
    pair = np.ix_(at, at)
    count = len(measured)
    covariance = (
        shared_noise
        + LEVEL_SD**2
        + hyper.smooth_sd[:, None, None] ** 2 * smooth[:, at][:, :, at][hyper.length_index]
        + hyper.rough_sd[:, None, None] ** 2 * rough[pair]
        + hyper.probe_sd[:, None, None] ** 2 * np.eye(count)
    )
    inverse = np.linalg.inv(covariance)
    log_det = np.linalg.slogdet(covariance)[1]
    misfit = values - shapes[:, at]
    quadratic = np.einsum("jkn,kn->jk", misfit @ inverse, misfit)
    log_weight = (-0.5 * (quadratic + log_det[:, None]) + hyper.log_weight[:, None]).ravel()
    chosen = _systematic(log_weight, draws.systematic)
    j, k = np.divmod(chosen, len(shapes))

    length = hyper.length_index[j]
    jitter = 1e-9 * np.eye(len(sizes))
    prior_smooth = np.empty_like(draws.smooth)
    for index in range(len(LENGTH_SCALES)):
        rows = length == index
        prior_smooth[rows] = draws.smooth[rows] @ np.linalg.cholesky(smooth[index] + jitter).T
    prior_rough = draws.rough @ np.linalg.cholesky(rough + jitter).T
    function = (
        LEVEL_SD * draws.level[:, None]
        + hyper.smooth_sd[j, None] * prior_smooth
        + hyper.rough_sd[j, None] * prior_rough
    )
    noise = draws.noise @ np.linalg.cholesky(shared_noise + 1e-12 * np.eye(count)).T
    noise += hyper.probe_sd[j, None] * np.roll(draws.noise, 1, axis=0)
    residual = misfit[k] - function[:, at] - noise
    alpha = np.einsum("snm,sm->sn", inverse[j], residual)
    update = LEVEL_SD**2 * alpha.sum(axis=1, keepdims=True)
    update = update + hyper.rough_sd[j, None] ** 2 * (alpha @ rough[at])
    for index in range(len(LENGTH_SCALES)):
        rows = length == index
        update[rows] += hyper.smooth_sd[j[rows], None] ** 2 * (alpha[rows] @ smooth[index][at])
    return center + shapes[k] + function + update, hyper.probe_sd[j]


def _shared_covariance(measured: Sequence[Evidence], user_compilation: Compilation) -> Array:
    """(n, n) covariance of what is no property of the curve: own noise, drift over probes, another compilation."""
    se = np.array([item.log_throughput_se for item in measured])
    se = np.maximum(np.where(np.isnan(se), DEFAULT_SE, se), MIN_SE)
    order = np.arange(len(measured))
    drift = DRIFT_SD**2 * np.exp(-np.abs(order[:, None] - order[None, :]) / DRIFT_LENGTH)
    other = np.array([item.compilation is not user_compilation for item in measured], dtype=float)
    sizes = np.array([item.micro_batch_size for item in measured])
    same_size = sizes[:, None] == sizes[None, :]
    compilation = np.outer(other, other) * (COMPILATION_LEVEL_SD**2 + COMPILATION_SD**2 * same_size)
    return np.diag(se**2) + drift + compilation


def _systematic(log_weight: Array, offset: float) -> NDArray[np.intp]:
    """NUM_DRAWS indices drawn in proportion to the weights, with the least variance."""
    weight = np.exp(log_weight - log_weight.max())
    cumulative = np.cumsum(weight)
    points = (np.arange(NUM_DRAWS) + offset) / NUM_DRAWS * cumulative[-1]
    chosen = np.minimum(np.searchsorted(cumulative, points), len(weight) - 1)
    return np.random.default_rng(7).permutation(chosen)
