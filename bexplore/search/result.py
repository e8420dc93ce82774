"""The events of a search, its result, and the error of a search without one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bexplore.errors import EngineError, NothingFitsError, UserProgramError
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.search.evidence import Evidence, without_first_signals
from bexplore.search.policy.decision import NextProbe, StopReason
from bexplore.search.policy.first_probe import without_numbers
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.posterior.runnable import RunBelief
from bexplore.search.recommendation import Recommendation, keep_nearest_program
from bexplore.search.space import MemoryPrior, Space
from bexplore.units import format_bytes, format_seconds

# Probes between the first and the last measurement of the base that make their difference a drift. Source: as
# many as half of `noise_model.DRIFT_LENGTH`; fewer lie within seconds of each other.
MIN_DRIFT_PROBES = 3
# Kinds of shared program, as in `engine.protocol.messages`: one for each size; one for 1 sample, one for the others.
STATIC, DYNAMIC = "static", "dynamic"


def program_warnings(observations: Sequence[Observation]) -> tuple[str, ...]:
    """Warn of sizes of batches that could not be checked, and of a search that compiled more than once."""
    return (*_unseen_samples(observations), *_compilations(observations))


def samples_are_seen(observations: Sequence[Observation]) -> bool | None:
    """Return whether each batch was checked for its number of samples; None where no worker reported it."""
    reported = [item.details["samples_are_seen"] for item in observations if "samples_are_seen" in item.details]
    return all(reported) if reported else None


def _unseen_samples(observations: Sequence[Observation]) -> tuple[str, ...]:
    if samples_are_seen(observations) is not False:
        return ()
    return (
        "the number of samples in a batch could not be seen in its tensors, so no size was checked: name a function "
        "(batch) -> number of samples in explore.workload.samples_of",
    )


def _compilations(observations: Sequence[Observation]) -> tuple[str, ...]:
    search = [item for item in observations if item.probe.compilation.is_for_search]
    second = _second_programs(search)
    again = [item for item in search if item.num_recompiles and item not in second]
    static = [item for item in search if item.details.get("shared_mode") == STATIC and item.num_graphs]
    compiled = again or static[1:]
    if not compiled:
        return ()
    reasons = [reason for item in compiled for reason in item.details.get("recompile_reasons", ())]
    why = reasons[0] if reasons else "its program could not be compiled once for every size"
    took = format_seconds(sum(item.compile_time_s for item in compiled))
    return (f"the search compiled again in {len(compiled)} of {len(search)} probes, {took} in all: {why}",)


def _second_programs(search: Sequence[Observation]) -> list[Observation]:
    """Return the probes that compiled the second of the two programs that a backed number of samples has.

    One sample has a program of its own, for which the compiler takes any length of 1 to be fixed.
    """
    found, begun, began_with_one = [], set(), set()
    for item in search:
        process, has_one_sample = (item.worker, item.probe.variant), item.micro_batch_size == 1
        if item.details.get("shared_mode") != DYNAMIC or (process, has_one_sample) in begun:
            continue
        begun.add((process, has_one_sample))
        if has_one_sample and item.num_graphs and not item.num_recompiles:
            began_with_one.add(process)
        elif has_one_sample or process in began_with_one:
            found.append(item)
    return found


def noise_warnings(
    evidence: Sequence[Evidence], *, base: int, tolerance: float, exact_over_shared: float | None = None
) -> tuple[str, ...]:
    """Warn of repeated probes that differ by more than the tolerance, and of a base that has moved.

    Args:
        exact_over_shared: Throughput as the training runs over that in the search; None where one of them did not run.
    """
    measured = [(number, item) for number, item in enumerate(evidence) if item.is_measured]
    was_interleaved = any(item.interleaved for _, item in measured)
    found = []
    spread = _spread(measured)
    if spread is not None and spread[1] > tolerance:
        size, share, count = spread
        differ = f"{count} probes of micro-batch size {size} differ by {100 * share:.1f} %"
        advice = (
            "sizes were timed interleaved, in which this cancels; samples/s of one moment, and the difference of the "
            "search's process and the final answer's own, are no surer than that"
            if was_interleaved
            else "stop other work on it, or set explore.tolerance to the difference that matters to you"
        )
        found.append(f"the machine is noisy: {differ}, more than the tolerance of {100 * tolerance:g} %; {advice}")
    elif exact_over_shared is not None and abs(math.log(exact_over_shared)) > tolerance and was_interleaved:
        found.append(
            "the machine's speed drifts: the search and the final answer's own process were timed apart, and their "
            f"difference of {100 * abs(exact_over_shared - 1.0):.0f} % may be drift; sizes were timed interleaved, in "
            "which this cancels"
        )
    drift = _drift(measured, base)
    if drift is not None and abs(drift) > tolerance:
        found.append(
            f"the machine drifts: the base, micro-batch size {base}, was {100 * abs(drift):.1f} % "
            f"{'faster' if drift > 0 else 'slower'} when it was measured again; check clocks and temperature"
        )
    return tuple(found)


def _spread(measured: Sequence[tuple[int, Evidence]]) -> tuple[int, float, int] | None:
    """Return the size whose repeated probes differ most: size, largest over smallest less one, probes."""
    groups: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for _, item in measured:
        groups[item.micro_batch_size, item.compilation.value, item.variant].append(item.log_throughput)
    repeated = {key: values for key, values in groups.items() if len(values) > 1}
    if not repeated:
        return None
    (size, *_), values = max(repeated.items(), key=lambda pair: float(np.ptp(pair[1])))
    return size, math.expm1(float(np.ptp(values))), len(values)


def _drift(measured: Sequence[tuple[int, Evidence]], base: int) -> float | None:
    """Return the change of the base's samples/s from its first to its last measurement, as a share."""
    own = [(number, item) for number, item in measured if (item.micro_batch_size, item.variant) == (base, 0)]
    own = [(number, item) for number, item in own if item.compilation is own[0][1].compilation]
    if len(own) < 2 or own[-1][0] - own[0][0] < MIN_DRIFT_PROBES:
        return None
    return math.expm1(own[-1][1].log_throughput - own[0][1].log_throughput)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe begins."""

    probe: Probe
    expected_s: float  # seconds that it is expected to take


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinished:
    """A probe ended, with any outcome."""

    observation: Observation  # its measurements, or its failure
    # The search's posterior after it; None where nothing was measured, and outside of the search.
    posterior: Posterior | None = field(default=None, repr=False)  # arrays of thousands of draws


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """The search has ended, and probes for the second answer follow: the worker of its answer will end."""

    result: Result  # the result without these probes


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAnswer:
    """The fastest size that keeps the user's global batch size."""

    # The size; its confidence and its tolerance are among the sizes that keep the batch size.
    recommendation: Recommendation
    free_micro_batch_size: int  # the fastest size, whatever the batch size
    over_recommended: float  # samples/s of the second answer over those of the fastest size, both as in `speeds`


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an exploration."""

    stop_reason: str  # a `StopReason`, or the words of `should_stop`
    recommendation: Recommendation | None  # the size to use; None where nothing was measured before an interruption
    base_micro_batch_size: int | None = None  # the smallest size that ran; None where none did
    # The smallest size that ran within the tolerance of the best; None without one.
    smallest_within_tolerance: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)  # number of probes by outcome
    # Throughput as the training runs over that in the search, at sizes that ran both; None for no such size.
    exact_over_shared: float | None = None
    peak_memory_bytes: int | None = None  # peak of the live tensors at the recommended size; None if unknown
    resident_memory_bytes: int | None = None  # as in `Observation`, at the recommended size
    memory_headroom_bytes: int | None = None  # budget less the larger of the two; None if unknown
    memory_saved_bytes: int | None = None  # peak that the smallest size within the tolerance saves; None if unknown
    # The sizes at which the program runs, in words, where a rule explains its failures; None for no such.
    runs_at: str | None = None
    # The further probe that would save most; None where none was possible, or where the answer is not the fastest size.
    next_probe: NextProbe | None = None
    # The fastest size that keeps the user's global batch size; None where none ran or none was wanted.
    second_answer: SecondAnswer | None = None
    posterior: Posterior | None = None  # the final posterior, of everything that was measured; None where nothing was
    warnings: tuple[str, ...] = ()  # reasons for caution with the numbers


Event = ProbeStarted | ProbeFinished | Recommendation | SearchEnded | Result


def build_result(
    reason: str, best: Recommendation | None, space: Space, evidence: Sequence[Evidence], *, tolerance: float
) -> Result:
    """Return the result that evidence and a recommendation give."""
    outcomes = dict(Counter(item.outcome.value for item in evidence if item.outcome is not None))
    variant = 0 if best is None else best.variant
    kept = without_first_signals(evidence)
    belief = RunBelief.from_evidence(space, [item for item in kept if item.variant == variant])
    runs_at = belief.words if belief else None
    if best is None:
        return Result(stop_reason=str(reason), recommendation=None, outcomes=outcomes, runs_at=runs_at)
    measured = [item for item in evidence if item.is_measured]
    of_variant = [item for item in measured if item.variant == best.variant]
    own = [item for item in of_variant if item.micro_batch_size == best.micro_batch_size]
    small = [item for item in of_variant if item.micro_batch_size == best.smallest_within_tolerance]
    as_run = keep_nearest_program(own)
    needed = _most(item.needed_memory_bytes for item in as_run)
    own_peak, small_peak = (_most(item.peak_memory_bytes for item in items) for items in (own, small))
    exact_over_shared = compare_programs(evidence, (Compilation.EXACT, Compilation.EAGER), (Compilation.SHARED,))
    budgets = [item.memory_budget_bytes for item in evidence if item.memory_budget_bytes is not None]
    return Result(
        stop_reason=str(reason),
        recommendation=best,
        base_micro_batch_size=best.base_micro_batch_size,
        smallest_within_tolerance=best.smallest_within_tolerance,
        outcomes=outcomes,
        runs_at=runs_at,
        exact_over_shared=exact_over_shared,
        peak_memory_bytes=_most(item.peak_memory_bytes for item in as_run),
        resident_memory_bytes=_most(item.resident_memory_bytes for item in as_run),
        memory_headroom_bytes=max(0, budgets[-1] - needed) if budgets and needed is not None else None,
        memory_saved_bytes=own_peak - small_peak if own_peak is not None and small_peak is not None else None,
        warnings=noise_warnings(
            evidence, base=best.base_micro_batch_size, tolerance=tolerance, exact_over_shared=exact_over_shared
        ),
    )


def compare_programs(
    evidence: Sequence[Evidence], over: Sequence[Compilation], under: Sequence[Compilation]
) -> float | None:
    """Return the geometric mean over sizes of the throughput of some programs over others; None for no such size."""
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


def explain_no_result(
    reason: StopReason,
    space: Space,
    evidence: Sequence[Evidence],
    observations: Sequence[Observation],
    memory: MemoryPrior | None,
    *,
    run_alone: Callable[[int], str],
) -> Exception:
    """Return the error of an exploration without a result; the evidence includes other explorers' probes."""
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
    by_reason: dict[str, list[Evidence]] = {}
    for item in failed:
        by_reason.setdefault(without_numbers(item.reason), []).append(item)
    usual = max(by_reason, key=lambda reason: len(by_reason[reason]))
    crashes = [item for item in reversed(observations) if item.traceback_text]
    crash = next((item for item in crashes if without_numbers(item.reason) == usual), next(iter(crashes), None))
    sizes, reason = _list_sizes(failed), (crash or failed[-1]).reason
    if len(by_reason) > 1:
        reason = "; ".join(f"{_list_sizes(alike)}: {alike[-1].reason}" for alike in by_reason.values())
    ran = {item.micro_batch_size for item in evidence if item.is_measured}
    ran -= {item.micro_batch_size for item in failed}
    but = f" but the smallest, {space.base}" if space.base in ran else ""
    belief = RunBelief.from_evidence(space, [item for item in evidence if not item.variant])
    runs_at = belief.words if belief and belief.excludes_by_rule else None
    return UserProgramError(
        f"the program fails at every micro-batch size tried ({sizes}){but}: {reason}",
        hint=f"by its errors it runs at {runs_at}: widen explore.max, or list such sizes in explore.candidates"
        if runs_at
        else run_alone((crash or failed[0]).micro_batch_size),
        traceback_text=crash.traceback_text if crash else "",
    )


def _list_sizes(evidence: Iterable[Evidence]) -> str:
    return ", ".join(str(size) for size in sorted({item.micro_batch_size for item in evidence}))


def _nothing_fits(space: Space, evidence: Sequence[Evidence], memory: MemoryPrior | None) -> NothingFitsError:
    refused = [item for item in evidence if item.outcome is Outcome.OUT_OF_MEMORY]
    last = min(refused, key=lambda item: item.micro_batch_size)
    budget = memory.budget_bytes if last.memory_budget_bytes is None and memory else last.memory_budget_bytes
    numbers = f"budget {format_bytes(budget)}" if budget is not None else "budget unknown"
    if memory is not None and memory.peak_bytes is not None:
        numbers += f", expected peak {format_bytes(memory.peak_bytes(last.micro_batch_size))}"
    return NothingFitsError(
        f"micro-batch size {space.base}, the smallest candidate, does not fit: {numbers} ({last.reason})",
        hint="use a smaller model or sequence length, a smaller min, or a larger memory budget",
    )


def _most(accounts: Iterable[int | None]) -> int | None:
    return max((account for account in accounts if account is not None), default=None)
