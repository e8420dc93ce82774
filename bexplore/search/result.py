"""The events of a search, its result, and the error of a search without one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bexplore.errors import EngineError, NothingFitsError, UserProgramError
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.search.evidence import Evidence, without_first_signals
from bexplore.search.policy.decision import StopReason
from bexplore.search.policy.economics import NextProbe
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.posterior.runnable import RunBelief
from bexplore.search.recommendation import Recommendation, nearest_to_the_users
from bexplore.search.space import MemoryPrior, Space
from bexplore.search.warnings import noise_warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe begins.

    Attributes:
        probe: The probe.
        expected_s: Seconds that it is expected to take.
    """

    probe: Probe
    expected_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinished:
    """A probe ended, with any outcome.

    Attributes:
        observation: Its measurements, or its failure.
        posterior: The search's posterior after it; None where nothing was measured, and outside of the search.
    """

    observation: Observation
    posterior: Posterior | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """The search has ended, and probes for the second answer follow: the worker of its answer will end.

    Attributes:
        result: The result without these probes.
    """

    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAnswer:
    """The fastest size that keeps the user's global batch size.

    Attributes:
        recommendation: The size; its confidence and its tolerance are among the sizes that keep the batch size.
        free_micro_batch_size: The fastest size, whatever the batch size.
        over_recommended: Samples/s of the second answer over those of the fastest size, both as in `speeds`.
    """

    recommendation: Recommendation
    free_micro_batch_size: int
    over_recommended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an exploration.

    Attributes:
        stop_reason: A `StopReason`, or the words of `should_stop`.
        recommendation: The size to use; None where nothing was measured before an interruption.
        base_micro_batch_size: The smallest size that ran; None where none did.
        smallest_within_tolerance: The smallest size that ran within the tolerance of the best; None without one.
        outcomes: Number of probes by outcome.
        exact_over_shared: Throughput as the training runs over that in the search, at sizes that ran both; None for no
            such size.
        full_over_reduced: Throughput at full depth over the extrapolated one; None for no such size.
        peak_memory_bytes: Peak of the live tensors at the recommended size; None if unknown.
        resident_memory_bytes: As in `Observation`, at the recommended size.
        memory_headroom_bytes: Budget less the larger of the two; None if unknown.
        memory_saved_bytes: Peak that the smallest size within the tolerance saves; None if unknown.
        runs_at: The sizes at which the program runs, in words, where a rule explains its failures; None for no such.
        next_probe: The further probe that would save most; None where none was possible, or where the answer is not
            the fastest size.
        second_answer: The fastest size that keeps the user's global batch size; None where none ran or none was wanted.
        posterior: The final posterior, of everything that was measured; None where nothing was.
        warnings: Reasons for caution with the numbers.
    """

    stop_reason: str
    recommendation: Recommendation | None
    base_micro_batch_size: int | None = None
    smallest_within_tolerance: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    exact_over_shared: float | None = None
    full_over_reduced: float | None = None
    peak_memory_bytes: int | None = None
    resident_memory_bytes: int | None = None
    memory_headroom_bytes: int | None = None
    memory_saved_bytes: int | None = None
    runs_at: str | None = None
    next_probe: NextProbe | None = None
    second_answer: SecondAnswer | None = None
    posterior: Posterior | None = None
    warnings: tuple[str, ...] = ()


Event = ProbeStarted | ProbeFinished | Recommendation | SearchEnded | Result


def result_of(
    reason: str, best: Recommendation | None, space: Space, evidence: Sequence[Evidence], *, tolerance: float
) -> Result:
    """Return the result that evidence and a recommendation give.

    Args:
        best: The recommendation; None where nothing was measured.
        space: The candidates.
        evidence: Every finished probe, in order.
    """
    outcomes = dict(Counter(item.outcome.value for item in evidence if item.outcome is not None))
    variant = 0 if best is None else best.variant
    kept = without_first_signals(evidence)
    belief = RunBelief.of(space, [item for item in kept if item.variant == variant])
    runs_at = belief.words if belief else None
    if best is None:
        return Result(stop_reason=str(reason), recommendation=None, outcomes=outcomes, runs_at=runs_at)
    measured = [item for item in evidence if item.is_measured]
    of_variant = [item for item in measured if item.variant == best.variant]
    own = [item for item in of_variant if item.micro_batch_size == best.micro_batch_size]
    small = [item for item in of_variant if item.micro_batch_size == best.smallest_within_tolerance]
    as_run = nearest_to_the_users(own)
    needed = _most(item.needed_memory_bytes for item in as_run)
    own_peak, small_peak = (_most(item.peak_memory_bytes for item in items) for items in (own, small))
    exact_over_shared = ratio_of(evidence, (Compilation.EXACT, Compilation.EAGER), (Compilation.SHARED,))
    budgets = [item.memory_budget_bytes for item in evidence if item.memory_budget_bytes is not None]
    return Result(
        stop_reason=str(reason),
        recommendation=best,
        base_micro_batch_size=best.base_micro_batch_size,
        smallest_within_tolerance=best.smallest_within_tolerance,
        outcomes=outcomes,
        runs_at=runs_at,
        exact_over_shared=exact_over_shared,
        full_over_reduced=ratio_of(evidence, (Compilation.EXACT, Compilation.SHARED), (Compilation.REDUCED,)),
        peak_memory_bytes=_most(item.peak_memory_bytes for item in as_run),
        resident_memory_bytes=_most(item.resident_memory_bytes for item in as_run),
        memory_headroom_bytes=max(0, budgets[-1] - needed) if budgets and needed is not None else None,
        memory_saved_bytes=own_peak - small_peak if own_peak is not None and small_peak is not None else None,
        warnings=noise_warnings(
            evidence, base=best.base_micro_batch_size, tolerance=tolerance, exact_over_shared=exact_over_shared
        ),
    )


def ratio_of(evidence: Sequence[Evidence], over: Sequence[Compilation], under: Sequence[Compilation]) -> float | None:
    """Return the throughput of some programs over that of others, geometric mean over sizes; None for no such size."""
    ratios = []
    for program in {(item.micro_batch_size, item.variant) for item in evidence}:
        measured = [item for item in evidence if item.is_measured]
        of_size = [item for item in measured if (item.micro_batch_size, item.variant) == program]
        above, below = (
            [item.log_throughput for item in of_size if item.compilation in kinds] for kinds in (over, under)
        )
        if above and below:
            ratios.append(np.median(above) - np.median(below))
    return math.exp(float(np.mean(ratios))) if ratios else None


def error_of(
    reason: StopReason,
    space: Space,
    evidence: Sequence[Evidence],
    observations: Sequence[Observation],
    memory: MemoryPrior | None,
    *,
    run_alone: Callable[[int], str],
) -> Exception:
    """Return the error of an exploration without a result; the evidence includes other explorers' probes.

    Args:
        run_alone: Returns what to type to run a size alone.
    """
    was_refused = any(item.outcome is Outcome.OUT_OF_MEMORY for item in evidence)
    if reason is StopReason.NOTHING_FITS and was_refused:
        return _nothing_fits(space, evidence, memory)
    if reason in (StopReason.NOTHING_FITS, StopReason.BROKEN_PROGRAM):  # sizes that ran may fail in their own process
        return _broken_program(space, evidence, observations, run_alone)
    outcomes = "; ".join(f"{item.micro_batch_size}: {item.outcome} ({item.reason})" for item in evidence)
    return EngineError(f"no micro-batch size could be measured: {outcomes}", hint="see the run log for each probe")


def probe_alone(micro_batch_size: int) -> str:
    """Return what to type to run a size of a job that a file describes."""
    return f"run one size alone: bexplore probe CONFIG --micro-batch-size {micro_batch_size}"


def _broken_program(
    space: Space,
    evidence: Sequence[Evidence],
    observations: Sequence[Observation],
    run_alone: Callable[[int], str],
) -> UserProgramError:
    failed = [item for item in evidence if not item.is_measured]
    crash = next((item for item in reversed(observations) if item.traceback_text), None)
    sizes = ", ".join(str(size) for size in sorted({item.micro_batch_size for item in failed}))
    ran = {item.micro_batch_size for item in evidence if item.is_measured}
    ran -= {item.micro_batch_size for item in failed}
    but = f" but the smallest, {space.base}" if space.base in ran else ""
    belief = RunBelief.of(space, [item for item in evidence if not item.variant])
    runs_at = belief.words if belief and belief.excludes_by_rule else None
    return UserProgramError(
        f"the program fails at every micro-batch size tried ({sizes}){but}: {(crash or failed[-1]).reason}",
        hint=f"by its errors it runs at {runs_at}: widen explore.max, or list such sizes in explore.candidates"
        if runs_at
        else run_alone(failed[0].micro_batch_size),
        traceback_text=crash.traceback_text if crash else "",
    )


def _nothing_fits(space: Space, evidence: Sequence[Evidence], memory: MemoryPrior | None) -> NothingFitsError:
    refused = [item for item in evidence if item.outcome is Outcome.OUT_OF_MEMORY]
    last = min(refused, key=lambda item: item.micro_batch_size)
    budget = last.memory_budget_bytes or (memory.budget_bytes if memory else None)
    numbers = f"budget {budget / 2**30:.2f} GiB" if budget else "budget unknown"
    if memory is not None and memory.peak_bytes is not None:
        numbers += f", expected peak {memory.peak_bytes(last.micro_batch_size) / 2**30:.2f} GiB"
    return NothingFitsError(
        f"micro-batch size {space.base}, the smallest candidate, does not fit: {numbers} ({last.reason})",
        hint="use a smaller model or sequence length, a smaller min, or a larger memory budget",
    )


def _most(accounts: Iterable[int | None]) -> int | None:
    return max((account for account in accounts if account is not None), default=None)
