"""The only loop: ask, probe, record, tell, recommend. Streaming is iteration."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.storages import BaseStorage

from bexplore.errors import NothingFitsError
from bexplore.host.locks import locked, present
from bexplore.measurement.probe import Observation, Purpose, Runner
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decision import Decision, StopReason
from bexplore.search.policy.first_probe import only_base_runs
from bexplore.search.policy.keep_batch_size import decide as decide_keeping
from bexplore.search.posterior.joint import ONE_VARIANT, Variant
from bexplore.search.recommendation import Recommendation, consistent_with, recommend
from bexplore.search.result import (
    Event,
    ProbeFinished,
    ProbeStarted,
    Result,
    SearchEnded,
    SecondAnswer,
    build_result,
    explain_no_result,
    probe_alone,
    program_warnings,
)
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from bexplore.search.study import trials
from bexplore.search.study.sampler import BexploreSampler, open_study
from bexplore.search.study.storage import storage_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBatchSize:
    """The request for a second answer: a size that keeps the user's global batch size."""

    sizes: tuple[int, ...]  # the sizes that keep it; candidates of the search or not
    is_answer: bool = False  # whether one of them is to be recommended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerNeeds:
    """What a runner knows of its program beside its observations."""

    run_alone: Callable[[int], str] = probe_alone  # returns what to type to run a size by hand
    # Called when the search has ended: returns a size that must have run as the user's program runs it, in a process of
    # its own, before there is an answer; None for none.
    find_size_to_confirm: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What outlives the process of an exploration: its study, its journal and its time."""

    # A database URL, a file for Optuna's journal, an open storage, or None for memory.
    storage: str | Path | BaseStorage | None = None
    study_name: str = "bexplore"  # of the study in the storage
    # Held while the study is rebuilt from the history; None where no other process has the same history.
    lock_path: Path | None = None
    # Observations of an earlier, unfinished exploration; none of its probes is repeated.
    history: Sequence[Observation] = ()
    # Called with each observation before the study gets it; an exception ends the exploration.
    record: Callable[[Observation], None] = lambda observation: None
    spent_s: float = 0.0  # seconds of the exploration before this call, without those of the history
    clock: Callable[[], float] = time.monotonic  # seconds; only differences count


def run_search(
    runner: Runner,
    *,
    space: Space,
    settings: SearchSettings | None = None,
    variants: Sequence[Variant] = ONE_VARIANT,
    keeping: KeepBatchSize | None = None,
    run: RunRecord | None = None,
    should_stop: Callable[[], str | None] = lambda: None,
    needs: RunnerNeeds | None = None,
) -> Iterator[Event]:
    """Find the fastest micro-batch size that fits.

    Args:
        runner: Runs one probe; an interruption that it raises ends the exploration with the result so far.
        keeping: The request for the second answer, which follows the search; None for none.
        run: Where the exploration is recorded and from where it resumes; None for memory only.
        should_stop: Called before each probe; words that it returns end the exploration as its stop reason.
        needs: Of the runner.

    Yields:
        `ProbeStarted`, `ProbeFinished` and, once something was measured, a `Recommendation` for each probe of the
        search; `SearchEnded`, `ProbeStarted` and `ProbeFinished` where the second answer needs probes, and a
        `Recommendation` where they change the answer, its factor or its score; a `Result` at the end.

    Raises:
        NothingFitsError: Not even the smallest candidate fits, or no size that must keep the batch size.
        UserProgramError: The user's program fails in a way that would show at every size.
        EngineError: No probe could be measured, for different reasons.
    """
    run, needs = run or RunRecord(), needs or RunnerNeeds()
    space = space.reaching(item.micro_batch_size for item in run.history if _is_of_search(item))
    sampler = BexploreSampler(space, settings, variants=variants)
    with _opened(sampler, run) as study:
        loop = _Loop(
            runner=runner,
            sampler=sampler,
            study=study,
            run=run,
            observations=list(run.history),
            should_stop=should_stop,
            run_alone=needs.run_alone,
            began_s=run.clock() - run.spent_s - sum(observation.elapsed_s for observation in run.history),
        )
        result = yield from loop.search()
        if result.recommendation is not None:
            result = yield from loop.confirm(result, result.recommendation, needs.find_size_to_confirm())
        if keeping is not None and keeping.sizes and result.recommendation is not None:
            result = yield from loop.keep_batch_size(result, result.recommendation, keeping)
        yield result


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """Asks, probes, records and tells; the attributes are those of `run_search`."""

    runner: Runner
    sampler: BexploreSampler
    study: optuna.Study
    run: RunRecord
    observations: list[Observation]
    should_stop: Callable[[], str | None]
    run_alone: Callable[[int], str]
    began_s: float

    def search(self) -> Generator[Event, None, Result]:
        """Probe until the sampler, the caller or an interruption ends it."""
        reason: str | None = None
        try:
            while reason is None:
                reason = yield from self._search_once()
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
        with storage_errors():
            decision, evidence = self.sampler.decide(self.study), _all_evidence(self.study)
        if reason in (StopReason.NOTHING_FITS, StopReason.BROKEN_PROGRAM, StopReason.NOTHING_MEASURED):
            memory = self.sampler.variants[0].memory
            reason = StopReason(reason)
            raise explain_no_result(
                reason, self.sampler.space, evidence, self.observations, memory, run_alone=self.run_alone
            )
        return self._result(reason, decision.recommendation, decision, evidence)

    def _search_once(self) -> Generator[Event, None, str | None]:
        """Run one probe of the search; return the reason to stop instead, if there is one."""
        with storage_errors():
            reason = self.sampler.decide(self.study).stop_reason or self.should_stop()
            if reason is not None:
                return reason
            trial = self.sampler.ask(self.study)
            decision = self.sampler.read_decision(self.study, trial.number)
            if decision.stop_reason is not None:  # another explorer has found enough meanwhile
                trials.abandon(self.study, trial)
                return None
        observation = yield from self._run(trial, decision)
        with storage_errors():
            decision = self.sampler.decide(self.study)
            best = decision.recommendation
            if best is not None:
                trials.publish(self.study, best)
        yield ProbeFinished(observation=observation, posterior=decision.posterior)
        if best is not None and not self._may_be_broken():
            yield self._timed(best)
        return None

    def _may_be_broken(self) -> bool:
        """Return whether the search would end here without an answer: only its base ran, and other sizes crashed."""
        with storage_errors():
            evidence = _all_evidence(self.study)
        return only_base_runs(self.sampler.space, [item for item in evidence if not item.variant])

    def confirm(
        self, searched: Result, answer: Recommendation, micro_batch_size: int | None
    ) -> Generator[Event, None, Result]:
        """Run a size in a process of its own, and then an answer that it has changed; return the answer by all."""
        reason = searched.stop_reason
        if micro_batch_size is None or reason == StopReason.INTERRUPTED or self.should_stop() is not None:
            return searched
        settings = self.sampler.settings
        decision = Decision(
            micro_batch_size=micro_batch_size,
            purpose=Purpose.VERIFY,
            compilation=settings.user_compilation,
            fresh_worker=True,
            max_passes=settings.max_passes,
            expected_s=max((one.elapsed_s for one in self.observations if one.start_time_s), default=0.0),
        )
        try:
            while decision.stop_reason is None and self.should_stop() is None:
                with storage_errors():
                    trial = self.sampler.ask(self.study, decision.micro_batch_size, decision.variant)
                observation = yield from self._run(trial, decision)
                yield ProbeFinished(observation=observation)
                decision = self._decide_at_the_end()
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
        final = self._decide_at_the_end()
        best = final.recommendation or answer
        if _told(best) != _told(answer):
            yield self._timed(best)
        with storage_errors():
            evidence = _all_evidence(self.study)
        return self._result(reason, best, final, evidence)

    def keep_batch_size(
        self, searched: Result, free: Recommendation, keeping: KeepBatchSize
    ) -> Generator[Event, None, Result]:
        """Find the fastest size that keeps the user's batch size; its probes may change the answer of the search.

        The answer and all that is told of it are computed last, from everything that was measured.
        """
        reason = searched.stop_reason
        try:
            if reason != StopReason.INTERRUPTED:
                reason = (yield from self._probe_keeping(searched, free, keeping)) or reason
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
        final = self._decide_at_the_end()
        fastest = final.recommendation or free
        evidence, decision = self._decide_keeping(fastest, keeping)
        second = self._second_answer(decision, fastest, final, evidence, is_answer=keeping.is_answer)
        if keeping.is_answer and second is None and decision.stop_reason is not None:
            raise NothingFitsError(
                f"no micro-batch size that keeps batch_size could be run; {fastest.micro_batch_size} can, which does "
                "not",
                hint="leave explore.keep_batch_size out, or choose a batch_size with more divisors",
            )
        best = second.recommendation if keeping.is_answer and second is not None else fastest
        if _told(best) != _told(free):
            yield self._timed(best)
        return self._result(reason, best, final, evidence, second)

    def _probe_keeping(
        self, searched: Result, free: Recommendation, keeping: KeepBatchSize
    ) -> Generator[Event, None, str | None]:
        """Run sizes that keep the batch size, and the answer once more where they change it; return why it ended."""
        fastest: Recommendation | None = free
        while fastest is not None:
            _, decision = self._decide_keeping(fastest, keeping)
            if decision.stop_reason is not None and not keeping.is_answer:
                decision = self._decide_at_the_end()  # the verification of an answer that these probes have changed
            if decision.stop_reason is not None:
                return None
            if fastest is free and not keeping.is_answer:
                yield SearchEnded(result=searched)
            stopped = self.should_stop()
            if stopped is not None:
                return stopped
            with storage_errors():
                trial = self.sampler.ask(self.study, decision.micro_batch_size, decision.variant)
            observation = yield from self._run(trial, decision)
            yield ProbeFinished(observation=observation)
            fastest = self._decide_at_the_end().recommendation
        return None

    def _decide_at_the_end(self) -> Decision:
        """Return the answer by everything that was measured, or the probe that verifies it."""
        with storage_errors():
            return self.sampler.decide(self.study, is_over=True)

    def _second_answer(
        self,
        decision: Decision,
        free: Recommendation,
        final: Decision,
        evidence: Sequence[Evidence],
        *,
        is_answer: bool,
    ) -> SecondAnswer | None:
        """Return the size that keeps the batch size, with the speeds of the final answer's posterior."""
        best, posterior = decision.recommendation, final.posterior
        if best is None or posterior is None:
            return None
        told = free
        if is_answer and best.micro_batch_size != free.micro_batch_size:
            told = (
                recommend(
                    posterior,
                    evidence,
                    tolerance=self.sampler.settings.tolerance,
                    size=best.micro_batch_size,
                    variant=free.variant,
                    base_variant=free.base_variant,
                )
                or free
            )
        speeds = {one.micro_batch_size: one.samples_per_s for one in told.speeds if one.variant == free.variant}
        own = speeds[best.micro_batch_size]
        best = dataclasses.replace(
            best,
            samples_per_s=own,
            relative_performance=own / told.samples_per_s * told.relative_performance,
            relative_performance_interval=told.relative_performance_interval,
            base_micro_batch_size=free.base_micro_batch_size,
            base_variant=free.base_variant,
            speeds=told.speeds,
        )
        return SecondAnswer(
            recommendation=best,
            free_micro_batch_size=free.micro_batch_size,
            over_recommended=own / speeds[free.micro_batch_size],
        )

    def _decide_keeping(self, free: Recommendation, keeping: KeepBatchSize) -> tuple[list[Evidence], Decision]:
        sampler = self.sampler
        with storage_errors():
            evidence = _all_evidence(self.study)
        return evidence, decide_keeping(
            sampler.space,
            evidence,
            sampler.settings,
            keeping=keeping.sizes,
            free=free,
            memory=sampler.variants[free.variant].memory,
        )

    def _run(self, trial: optuna.Trial, decision: Decision) -> Generator[ProbeStarted, None, Observation]:
        """Run the probe of a trial; its observation is in the journal before it is in the study."""
        memory = self.sampler.variants[decision.variant].memory
        probe = decision.probe(trial.number, self.sampler.settings, memory)
        with _abandoned_on_error(self.study, trial), trials.hold_lease(self.study, trial, probe):
            yield ProbeStarted(probe=probe, expected_s=decision.expected_s)
            observation = self.runner(probe)
        self.run.record(observation)
        self.observations.append(observation)
        with storage_errors():
            trials.tell(self.study, trial, observation)
        return observation

    def _timed(self, best: Recommendation) -> Recommendation:
        return dataclasses.replace(best, elapsed_s=self.run.clock() - self.began_s)

    def _result(
        self,
        reason: str,
        best: Recommendation | None,
        decision: Decision,
        evidence: Sequence[Evidence],
        second: SecondAnswer | None = None,
    ) -> Result:
        best = best and self._timed(best)
        result = build_result(reason, best, self.sampler.space, evidence, tolerance=self.sampler.settings.tolerance)
        is_fastest = best is None or _size_of(best) == _size_of(decision.recommendation)
        return dataclasses.replace(
            result,
            next_probe=decision.next_probe if is_fastest else None,
            second_answer=second,
            posterior=consistent_with(decision.posterior, best.speeds) if best and decision.posterior else None,
            warnings=(*program_warnings(self.observations), *result.warnings),
        )


def _is_of_search(observation: Observation) -> bool:
    return observation.probe.purpose is not Purpose.KEEP_BATCH_SIZE


def _size_of(best: Recommendation | None) -> tuple[int, int] | None:
    return None if best is None else (best.micro_batch_size, best.variant)


def _told(best: Recommendation) -> tuple[int, int, str, int]:
    return best.micro_batch_size, best.variant, f"{best.relative_performance:.2f}", best.confidence


@contextmanager
def _opened(sampler: BexploreSampler, run: RunRecord) -> Iterator[optuna.Study]:
    """Open the study and bring it up to the history; within the block, this process counts as one of its explorers."""
    with ExitStack() as presence:
        with storage_errors(), ExitStack() as opening:
            is_alone = False
            if run.lock_path is not None:
                opening.enter_context(locked(run.lock_path))
                explorers = run.lock_path.with_name(f"{run.lock_path.name}.explorers")
                is_alone = presence.enter_context(present(explorers)) and _lies_beside(run.storage, run.lock_path)
            study = open_study(sampler, storage=run.storage, name=run.study_name)
            trials.rebuild(study, run.history, now=time.time(), is_alone=is_alone)
        yield study


def _lies_beside(storage: str | Path | BaseStorage | None, lock_path: Path) -> bool:
    """Return whether all explorers of a storage hold the lock; those of a database may run in another folder."""
    return isinstance(storage, Path) and storage.parent == lock_path.parent


@contextmanager
def _abandoned_on_error(study: optuna.Study, trial: optuna.Trial) -> Iterator[None]:
    """Abandon the trial where an exception ends the runner, or the iteration, instead of the probe."""
    try:
        yield
    except BaseException:  # an interruption too; raised again
        with storage_errors():
            trials.abandon(study, trial)
        raise


def _all_evidence(study: optuna.Study) -> list[Evidence]:
    now = time.time()
    known = study.get_trials(deepcopy=False)
    kept = (trial for trial in known if trial.state.is_finished() and not trials.is_abandoned(trial, now))
    return [trials.read_evidence(trial) for trial in kept if trials.PARAMETER in trial.params]
