"""The only loop: ask, probe, record, tell, recommend. Streaming is iteration."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import BaseStorage

from bexplore.errors import EngineError, NothingFitsError, UserProgramError
from bexplore.host.locks import locked, present
from bexplore.measurement.interleaving import clearly_worse
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose, Runner
from bexplore.search.evidence import Evidence
from bexplore.search.noise_warnings import noise_warnings
from bexplore.search.policy.decision import Decision, StopReason
from bexplore.search.policy.economics import NextProbe
from bexplore.search.policy.keep_batch_size import decide as decide_keeping
from bexplore.search.program_warnings import program_warnings
from bexplore.search.recommendation import Recommendation, SearchSettings, nearest_to_the_users
from bexplore.search.space import MemoryPrior, Space
from bexplore.search.study import trials
from bexplore.search.study.sampler import BexploreSampler, open_study
from bexplore.search.study.storage import storage_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe begins.

    Attributes:
        probe: The question.
        expected_s: Seconds that it is expected to take.
    """

    probe: Probe
    expected_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinished:
    """A probe ended, in whatever way."""

    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """The search has ended, and other probes follow: the worker that ran its answer is about to go.

    Attributes:
        result: As it would be without them.
    """

    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBatchSize:
    """What the user's global batch size allows, which the search does not look at.

    Attributes:
        sizes: The sizes that keep it; candidates of the search or not.
        is_answer: Whether one of them is to be recommended.
    """

    sizes: tuple[int, ...]
    is_answer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAnswer:
    """The fastest size that keeps the user's global batch size.

    Attributes:
        recommendation: It; its confidence and its tolerance are among the sizes that keep the batch size.
        free_micro_batch_size: What the search recommends, whatever the batch size.
        over_recommended: Samples/s of the one over those of the other, as the belief has them.
    """

    recommendation: Recommendation
    free_micro_batch_size: int
    over_recommended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How an exploration ended.

    Attributes:
        stop_reason: A `StopReason`, or the words of `should_stop`.
        recommendation: What to use; None where it was interrupted before anything was measured.
        base_micro_batch_size: The smallest candidate.
        smallest_within_tolerance: The smallest size that was run within the tolerance of the best; None as above.
        outcomes: How many probes ended how, by outcome.
        exact_over_shared: Throughput of exact over shared compilation at the sizes that ran both; None where none did.
        full_over_reduced: Throughput at the whole depth over what the reduced depths said; None as above.
        peak_memory_bytes: Peak of the live tensors at the recommended size; None if unknown.
        resident_memory_bytes: What was held for them there; None where there is no account of it.
        memory_headroom_bytes: Budget less the larger of the two; None if unknown.
        memory_saved_bytes: What the smallest size within the tolerance saves; None if unknown.
        next_probe: The further probe that would save most, at the end of the search; None where none was possible, or
            where the answer is another than the search's.
        second_answer: The fastest size that keeps the user's global batch size; None where none ran, or none was asked.
        warnings: What a reader must know before believing the numbers.
    """

    stop_reason: str
    recommendation: Recommendation | None
    base_micro_batch_size: int
    smallest_within_tolerance: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    exact_over_shared: float | None = None
    full_over_reduced: float | None = None
    peak_memory_bytes: int | None = None
    resident_memory_bytes: int | None = None
    memory_headroom_bytes: int | None = None
    memory_saved_bytes: int | None = None
    next_probe: NextProbe | None = None
    second_answer: SecondAnswer | None = None
    warnings: tuple[str, ...] = ()


Event = ProbeStarted | ProbeFinished | Recommendation | SearchEnded | Result


def explore(
    runner: Runner,
    *,
    space: Space,
    settings: SearchSettings | None = None,
    memory: MemoryPrior | None = None,
    keeping: KeepBatchSize | None = None,
    storage: str | Path | BaseStorage | None = None,
    study_name: str = "bexplore",
    lock_path: Path | None = None,
    record: Callable[[Observation], None] = lambda observation: None,
    history: Sequence[Observation] = (),
    clock: Callable[[], float] = time.monotonic,
    spent_s: float = 0.0,
    should_stop: Callable[[], str | None] = lambda: None,
) -> Iterator[Event]:
    """Find the fastest micro-batch size that fits.

    Args:
        runner: Runs one probe; an interruption that it raises ends the exploration with what is known.
        space: The candidates.
        settings: How long to search and for what.
        memory: What the trace says of memory.
        keeping: For the second answer, which is sought once the search has ended; None for none.
        storage: A database URL, a file for Optuna's journal, an open storage, or None for memory.
        study_name: Of the study in the storage.
        lock_path: Held while the study is made to tell the history; None where no other process has the same history.
        record: Called with each observation before the study is told; what it raises ends the exploration.
        history: Observations of an earlier, unfinished exploration; none of its probes is repeated.
        clock: Seconds; only differences count.
        spent_s: What the exploration took before this call, of which no observation tells.
        should_stop: Asked before each probe; its words, if any, are the stop reason.

    Yields:
        `ProbeStarted`, `ProbeFinished` and, once something was measured, a `Recommendation` for each probe of the
        search; `SearchEnded`, `ProbeStarted` and `ProbeFinished` where the second answer needs probes, and a
        `Recommendation` where it is to be the answer; a `Result` at the end.

    Raises:
        NothingFitsError: Not even the smallest candidate fits, or no size that must keep the batch size.
        UserProgramError: The user's program fails in a way that would show at every size.
        EngineError: No probe could be measured, for different reasons.
    """
    settings = settings or SearchSettings()
    # What ran stays a candidate, even if less memory is free now than it was then.
    tried = (item for item in history if item.probe.purpose is not Purpose.KEEP_BATCH_SIZE)
    space = Space.of([*space.sizes, *(item.micro_batch_size for item in tried)])
    sampler = BexploreSampler(space, settings, memory=memory)
    with _opened(sampler, storage, study_name, lock_path, history) as study:
        loop = _Loop(
            runner=runner,
            sampler=sampler,
            study=study,
            observations=list(history),
            record=record,
            should_stop=should_stop,
            clock=clock,
            began_s=clock() - spent_s - sum(observation.elapsed_s for observation in history),
        )
        result = yield from loop.search()
        if keeping is not None and keeping.sizes and result.recommendation is not None:
            result = yield from loop.keep_batch_size(result, result.recommendation, keeping)
        yield result


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """Asks, probes, records and tells; `explore` says what of."""

    runner: Runner
    sampler: BexploreSampler
    study: optuna.Study
    observations: list[Observation]
    record: Callable[[Observation], None]
    should_stop: Callable[[], str | None]
    clock: Callable[[], float]
    began_s: float

    def search(self) -> Generator[Event, None, Result]:
        """Probe until the sampler, the caller or an interruption ends it."""
        reason: str | None = None
        try:
            while reason is None:
                with storage_errors():
                    decision = self.sampler.decide(self.study)
                    reason = decision.stop_reason or self.should_stop()
                    if reason is not None:
                        break
                    trial = self.sampler.ask(self.study)
                    decision = self.sampler.decision_of(self.study, trial.number)
                    if decision.stop_reason is not None:  # another explorer has found enough meanwhile
                        trials.abandon(self.study, trial)
                        continue
                observation = yield from self._run(trial, decision)
                with storage_errors():
                    best = self.sampler.decide(self.study).recommendation
                    if best is not None:
                        trials.publish(self.study, best)
                yield ProbeFinished(observation=observation)
                if best is not None:
                    yield self._timed(best)
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
        with storage_errors():
            decision, evidence = self.sampler.decide(self.study), _all_evidence(self.study)
        best = decision.recommendation
        if reason in (StopReason.NOTHING_FITS, StopReason.BROKEN_PROGRAM, StopReason.NOTHING_MEASURED):
            raise _failure(StopReason(reason), self.sampler.space, evidence, self.observations, self.sampler.memory)
        return self._result(reason, best and self._timed(best), evidence, next_probe=decision.next_probe)

    def keep_batch_size(
        self, searched: Result, free: Recommendation, keeping: KeepBatchSize
    ) -> Generator[Event, None, Result]:
        """Find the fastest size that keeps the user's batch size, with probes that are no evidence of the search."""
        reason = searched.stop_reason
        try:
            evidence, decision = self._decide_keeping(free, keeping)
            if decision.stop_reason is None and not keeping.is_answer and reason != StopReason.INTERRUPTED:
                yield SearchEnded(result=searched)
            while decision.stop_reason is None and reason != StopReason.INTERRUPTED:
                stopped = self.should_stop()
                if stopped is not None:
                    reason = stopped
                    break
                with storage_errors():
                    trial = self.sampler.ask(self.study, decision.micro_batch_size)
                observation = yield from self._run(trial, decision)
                yield ProbeFinished(observation=observation)
                evidence, decision = self._decide_keeping(free, keeping)
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
            evidence, decision = self._decide_keeping(free, keeping)
        second = _second_answer(decision, free)
        if keeping.is_answer and second is None and decision.stop_reason is not None:
            raise NothingFitsError(
                f"no micro-batch size that keeps batch_size could be run; {free.micro_batch_size} can, which does not",
                hint="leave explore.keep_batch_size out, or choose a batch_size with more divisors",
            )
        if not keeping.is_answer or second is None:
            return self._result(reason, free, evidence, second, next_probe=searched.next_probe)
        is_another = second.recommendation.micro_batch_size != free.micro_batch_size
        if is_another:
            yield self._timed(second.recommendation)
        next_probe = None if is_another else searched.next_probe
        return self._result(reason, self._timed(second.recommendation), evidence, second, next_probe=next_probe)

    def _decide_keeping(self, free: Recommendation, keeping: KeepBatchSize) -> tuple[list[Evidence], Decision]:
        sampler = self.sampler
        with storage_errors():
            evidence = _all_evidence(self.study)
        return evidence, decide_keeping(
            sampler.space, evidence, sampler.settings, keeping=keeping.sizes, free=free, memory=sampler.memory
        )

    def _run(self, trial: optuna.Trial, decision: Decision) -> Generator[ProbeStarted, None, Observation]:
        """Run the probe of a trial: what comes of it is in the journal before it is in the study."""
        probe = _probe(trial.number, decision, self.sampler.settings, self.sampler.memory)
        with _given_up_on_error(self.study, trial), trials.leased(self.study, trial, probe):
            yield ProbeStarted(probe=probe, expected_s=decision.expected_s)
            observation = self.runner(probe)
        self.record(observation)
        self.observations.append(observation)
        with storage_errors():
            trials.tell(self.study, trial, observation)
        return observation

    def _timed(self, best: Recommendation) -> Recommendation:
        return dataclasses.replace(best, elapsed_s=self.clock() - self.began_s)

    def _result(
        self,
        reason: str,
        best: Recommendation | None,
        evidence: Sequence[Evidence],
        second: SecondAnswer | None = None,
        *,
        next_probe: NextProbe | None,
    ) -> Result:
        result = _result(reason, best, self.sampler.space, evidence, self.sampler.settings.tolerance)
        warnings = (*program_warnings(self.observations), *result.warnings)
        return dataclasses.replace(result, next_probe=next_probe, second_answer=second, warnings=warnings)


def _second_answer(decision: Decision, free: Recommendation) -> SecondAnswer | None:
    best, posterior = decision.recommendation, decision.posterior
    if best is None or posterior is None:
        return None
    own, other = (posterior.index(size) for size in (best.micro_batch_size, free.micro_batch_size))
    gain = posterior.log_throughput[:, own] - posterior.log_throughput[:, other]
    return SecondAnswer(
        recommendation=best,
        free_micro_batch_size=free.micro_batch_size,
        over_recommended=float(np.exp(gain.mean())),
    )


@contextmanager
def _opened(
    sampler: BexploreSampler,
    storage: str | Path | BaseStorage | None,
    name: str,
    lock_path: Path | None,
    history: Sequence[Observation],
) -> Iterator[optuna.Study]:
    """The study, as the history tells it; while the block lasts, this process counts among its explorers."""
    with ExitStack() as presence:
        with storage_errors(), ExitStack() as opening:
            is_alone = False
            if lock_path is not None:
                opening.enter_context(locked(lock_path))
                is_alone = presence.enter_context(present(lock_path.with_name(f"{lock_path.name}.explorers")))
            study = open_study(sampler, storage=storage, name=name)
            trials.rebuild(study, history, now=time.time(), is_alone=is_alone)
        yield study


def _probe(number: int, decision: Decision, settings: SearchSettings, memory: MemoryPrior | None) -> Probe:
    size = decision.micro_batch_size
    predicted = memory.peak_bytes(size) if memory and memory.peak_bytes else None
    limit = settings.probe_time_limit_s
    return Probe(
        number=number,
        micro_batch_size=size,
        compilation=decision.compilation,
        purpose=decision.purpose,
        fresh_worker=decision.fresh_worker,
        max_passes=decision.max_passes,
        predicted_peak_memory_bytes=None if predicted is None else round(predicted),
        time_limit_s=None if limit is None else max(limit, 3.0 * decision.expected_s),
        worse_pass_s=_worse_pass_s(decision, settings.tolerance),
        tolerance=settings.tolerance,
        interleaved_with=decision.interleaved_with,
    )


def _worse_pass_s(decision: Decision, tolerance: float) -> float | None:
    """From when on a size that is only looked at counts as clearly worse; None for those that others are held to."""
    if decision.recommendation is None or decision.purpose is not Purpose.SEARCH:
        return None
    if decision.compilation is Compilation.REDUCED:  # its passes are shorter, and cheap
        return None
    slowest_samples_per_s = decision.recommendation.samples_per_s * (1.0 - clearly_worse(tolerance))
    return decision.micro_batch_size / slowest_samples_per_s


@contextmanager
def _given_up_on_error(study: optuna.Study, trial: optuna.Trial) -> Iterator[None]:
    """Give the trial up where something ends the runner, or the iteration, instead of the probe."""
    try:
        yield
    except BaseException:  # an interruption too; raised again
        with storage_errors():
            trials.abandon(study, trial)
        raise


def _all_evidence(study: optuna.Study) -> list[Evidence]:
    now = time.time()
    told = study.get_trials(deepcopy=False)
    kept = (trial for trial in told if trial.state.is_finished() and not trials.is_abandoned(trial, now))
    return [trials.evidence_of(trial) for trial in kept if trials.PARAMETER in trial.params]


def _result(
    reason: str,
    best: Recommendation | None,
    space: Space,
    evidence: Sequence[Evidence],
    tolerance: float,
) -> Result:
    outcomes = Counter(item.outcome.value for item in evidence if item.outcome is not None)
    if best is None:
        return Result(
            stop_reason=str(reason), recommendation=None, base_micro_batch_size=space.base, outcomes=dict(outcomes)
        )
    measured = [item for item in evidence if item.is_measured]
    own = [item for item in measured if item.micro_batch_size == best.micro_batch_size]
    small = [item for item in measured if item.micro_batch_size == best.smallest_within_tolerance]
    as_run = nearest_to_the_users(own)
    needed = _most(item.needed_memory_bytes for item in as_run)
    peak = _most(item.peak_memory_bytes for item in as_run)
    own_peak, small_peak = (_most(item.peak_memory_bytes for item in items) for items in (own, small))
    exact_over_shared = ratio_of(evidence, (Compilation.EXACT,), (Compilation.SHARED,))
    budgets = [item.memory_budget_bytes for item in evidence if item.memory_budget_bytes is not None]
    return Result(
        stop_reason=str(reason),
        recommendation=best,
        base_micro_batch_size=space.base,
        smallest_within_tolerance=best.smallest_within_tolerance,
        outcomes=dict(outcomes),
        exact_over_shared=exact_over_shared,
        full_over_reduced=ratio_of(evidence, (Compilation.EXACT, Compilation.SHARED), (Compilation.REDUCED,)),
        peak_memory_bytes=peak,
        resident_memory_bytes=_most(item.resident_memory_bytes for item in as_run),
        memory_headroom_bytes=max(0, budgets[-1] - needed) if budgets and needed is not None else None,
        memory_saved_bytes=own_peak - small_peak if own_peak is not None and small_peak is not None else None,
        warnings=noise_warnings(evidence, base=space.base, tolerance=tolerance, exact_over_shared=exact_over_shared),
    )


def _most(accounts: Iterable[int | None]) -> int | None:
    return max((account for account in accounts if account is not None), default=None)


def ratio_of(evidence: Sequence[Evidence], over: Sequence[Compilation], under: Sequence[Compilation]) -> float | None:
    """Throughput of some programs over that of others, geometric mean over the sizes that ran both; None for none."""
    ratios = []
    for size in {item.micro_batch_size for item in evidence}:
        above, below = (
            [
                item.log_throughput
                for item in evidence
                if item.micro_batch_size == size and item.is_measured and item.compilation in kinds
            ]
            for kinds in (over, under)
        )
        if above and below:
            ratios.append(np.median(above) - np.median(below))
    return math.exp(float(np.mean(ratios))) if ratios else None


def _failure(
    reason: StopReason,
    space: Space,
    evidence: Sequence[Evidence],
    observations: Sequence[Observation],
    memory: MemoryPrior | None,
) -> Exception:
    """The error of an exploration without a result; the evidence holds what other explorers of the study found too."""
    if reason is StopReason.NOTHING_FITS:
        return _nothing_fits(space, evidence, memory)
    if reason is StopReason.BROKEN_PROGRAM:
        failed = [item for item in evidence if not item.is_measured]
        told = next((item for item in reversed(observations) if item.traceback_text), None)
        where = f"at every micro-batch size tried ({_sizes(failed)})"
        if len(failed) < len(evidence):
            where = f"at every micro-batch size tried ({_sizes(failed)}) but the smallest, {space.base}"
        return UserProgramError(
            f"the program fails {where}: {told.reason if told else failed[-1].reason}",
            hint=f"run one size alone: bexplore probe CONFIG --micro-batch-size {failed[0].micro_batch_size}",
            traceback_text=told.traceback_text if told else "",
        )
    outcomes = "; ".join(f"{item.micro_batch_size}: {item.outcome} ({item.reason})" for item in evidence)
    return EngineError(f"no micro-batch size could be measured: {outcomes}", hint="see the run log for each probe")


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


def _sizes(evidence: Sequence[Evidence]) -> str:
    return ", ".join(str(size) for size in sorted({item.micro_batch_size for item in evidence}))
