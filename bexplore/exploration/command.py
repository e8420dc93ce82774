"""The exploration of a training command: no trace, one start for each probe, the real step verified once."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from bexplore.command.judgement import PROBING_ACCUMULATION
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.command.start import end_leftovers
from bexplore.command.timing import MIN_TIMED_STEPS, WARMUP_STEPS
from bexplore.command.working_folder import WorkingFolder
from bexplore.config.command import Command
from bexplore.config.config import Config
from bexplore.engine.program_client import KernelFinder
from bexplore.errors import UserInputError, UserProgramError
from bexplore.exploration.base import Exploration, find_sizes_that_keep
from bexplore.exploration.emulated import find_named_device
from bexplore.exploration.emulated_speeds import EmulatedSpeeds
from bexplore.exploration.finish import Finish, is_for_request
from bexplore.exploration.recorded import read_work
from bexplore.host import logs
from bexplore.host.clocks import Stopwatch
from bexplore.measurement.probe import REAL_STEP, Observation, Outcome, Probe, Purpose
from bexplore.run import run_directory
from bexplore.run.events import Finished, JobEvent, Planned, Recommended
from bexplore.run.facts import step_time_s, verified_by
from bexplore.run.fingerprint import describe, search_settings
from bexplore.run.parts.batch import global_batch_sizes
from bexplore.run.parts.program import STARTS_APART
from bexplore.run.result import RunResult
from bexplore.search import loop
from bexplore.search.policy.decision import Decision, StopReason
from bexplore.search.policy.keep_batch_size import MOST_PROBES
from bexplore.search.posterior.joint import Variant
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted, Result, SearchEnded, SecondAnswer
from bexplore.search.space import DEFAULT_MAXIMUM, MemoryPrior, Space, candidate_sizes, describe_candidates
from bexplore.search.study import trials
from bexplore.search.study.sampler import BexploreSampler, open_study
from bexplore.search.study.storage import storage_errors
from bexplore.units import counted, format_seconds

# Samples of a step at one size over those at another, up to which they are one global batch. Source: chosen; a batch of
# 64 has 65 samples in 13 passes of 5, and 80 in two of 40.
ONE_BATCH = 1.25
# Rows of a batch over its size, up to which the size counts something else. Source: chosen; few samples have less than
# five tokens.
FEW_ROWS = 0.2
# Share of seconds without training that is told. Source: chosen: half of the speed is not what is measured.
MUCH_WITHOUT_TRAINING = 0.5


class CommandExploration(Exploration):
    """An exploration whose probes are starts of the user's own command."""

    @property
    def _command(self) -> Command:
        command = self.config.command
        assert command is not None  # `explore` chooses this class by it
        return command

    def _answers(self, stored: RunResult) -> bool:
        """Return whether a stored result is for the present batch size, with the replicas that its probes showed."""
        replicas = stored.batch.num_replicas or self.config.num_replicas
        config = dataclasses.replace(self.config, num_replicas=replicas)
        return is_for_request(stored, self._with_own_batch(config, stored.micro_batch_size))

    def _run(self, run: run_directory.Run) -> Iterator[JobEvent]:
        for text in end_leftovers(run.directory):
            logs.log.warning(text)
        runner = CommandRunner(
            self._command,
            CommandSettings(
                run_dir=run.directory,
                memory_limit_bytes=self._memory_limit_bytes,
                sizes_per_start=self.config.sizes_per_start,
                candidates=self._candidates,
                environment=self._environment,
                should_stop=lambda: self._should_stop() is not None,
                on_progress=self.on_progress,
            ),
        )
        find_kernels = KernelFinder(run.directory / "workers" / "kernels.log", environment=self._environment)
        with contextlib.closing(runner), contextlib.closing(find_kernels):
            self._speeds = EmulatedSpeeds(
                find_named_device(self.config)[1] if self.config.is_estimated else None,
                lambda ran: read_work(
                    ran,
                    runner.recorded_kernels,
                    find_kernels,
                    ranks_whole_steps=not self._command.sets_accumulation,
                ),
            )
            yield from self._run_with(runner, run)

    def _run_with(self, runner: CommandRunner, run: run_directory.Run) -> Iterator[JobEvent]:
        for observation in self.known:
            runner.learn(observation)
            self._learn(runner, observation)
        working_folder, result = None if self._command.writes_are_fine else WorkingFolder(Path.cwd()), None
        for event in self._search(runner, run):
            if isinstance(event, Result):
                result = event
            elif isinstance(event, Recommendation):
                if self._hides_speeds(runner):
                    continue  # where no speed is known, none is streamed
                config = self._with_own_batch(self.config, event.micro_batch_size)
                sizes = global_batch_sizes(config, event.micro_batch_size)
                yield Recommended(recommendation=event, global_batch_sizes=sizes)
            elif not isinstance(event, SearchEnded):
                if isinstance(event, ProbeFinished):
                    self._learn(runner, event.observation)
                yield event
        assert result is not None  # the loop ends with a result or an error
        if not any(one.is_measured for one in run.journal.read()):
            _, study = self._open_study(run)
            with storage_errors():
                num_replicas = trials.read_num_replicas(study)
            self._learn_replicas(runner, num_replicas)
        _check_confirmed(result, runner)
        result, real_step_s = yield from self._with_real_step(result, runner, run)
        if working_folder is not None:
            result = _warned(result, working_folder.describe_new())
        yield Finished(result=self._finished(result, real_step_s, runner, run), run=run)

    @property
    def _candidates(self) -> tuple[int, ...]:
        return candidate_sizes(
            self.config.candidates,
            minimum=self.config.minimum,
            maximum=max(self._maximum, self.config.minimum),
            replica_batch_size=self.config.replica_batch_size,
        )

    def _search(self, runner: CommandRunner, run: run_directory.Run) -> Iterator[Any]:
        events = loop.run_search(
            self._speeds.wrap(runner, lambda: bool(runner.device_info.get("is_emulated"))),
            space=self._space,
            settings=search_settings(self.config),
            keeping=find_sizes_that_keep(self.config, self._candidates),
            variants=(Variant(memory=MemoryPrior(budget_bytes=self._memory_limit_bytes)),),
            run=self._record(run),
            should_stop=self._should_stop,
            # Where all starts were given one size, the command may ignore it: another is confirmed.
            needs=loop.RunnerNeeds(run_alone=runner.by_hand, find_size_to_confirm=lambda: runner.size_to_confirm),
        )
        settings = search_settings(self.config)
        for event in events:
            yield self._speeds.qualify(event, self._candidates, tolerance=settings.tolerance, seed=settings.seed)

    def _hides_speeds(self, runner: CommandRunner) -> bool:
        return bool(runner.device_info.get("is_emulated")) and not self._speeds.are_estimated

    def _learn(self, runner: CommandRunner, observation: Observation) -> None:
        self._speeds.learn(observation)
        if observation.is_measured:
            self._learn_replicas(runner, observation.details.get("num_replicas"))

    def _learn_replicas(self, runner: CommandRunner, num_replicas: int | None) -> None:
        """Take over the replicas that a probe showed, of this explorer or of another one of the study."""
        if not num_replicas or self._command.num_replicas is not None:
            return
        if self._command.needs_replicas and num_replicas > 1:
            raise UserInputError(
                f"the command started {num_replicas} replicas, on which its own numbers depend",
                hint=f"give `replicas={num_replicas}`",
            )
        self.config = self.config.with_replicas(num_replicas)
        runner.num_replicas = num_replicas

    def _finished(
        self, result: Result, real_step_s: float | None, runner: CommandRunner, run: run_directory.Run
    ) -> RunResult:
        real_steps = [one for one in run.journal.read() if one.is_after_search]
        outcomes = Counter(result.outcomes) + Counter(one.outcome.value for one in real_steps)
        result, best = dataclasses.replace(result, outcomes=dict(outcomes)), result.recommendation
        config = self._with_own_batch(self.config, None if best is None else best.micro_batch_size)
        if best is not None and config is not self.config:  # the batch was made of the size, which therefore keeps it
            itself = SecondAnswer(
                recommendation=best, free_micro_batch_size=best.micro_batch_size, over_recommended=1.0
            )
            result = dataclasses.replace(result, second_answer=itself)
        end = Finish(
            config=config,
            runner=None,
            run=run,
            cost_model=None,
            device_info=self._speeds.describe_device(runner.device_info),
            elapsed_s=self._elapsed_s,
            verified_step_time_s=real_step_s,
        )
        size = None if best is None else best.micro_batch_size
        for describe_answer in (describe_share_without_training, describe_parallel_devices, describe_rows):
            result = _warned(result, describe_answer(run.journal.read(), size))
        result = _warned(result, "" if self._command.sets_accumulation else describe_steps(run.journal.read(), size))
        return end.result(_with_last_batches(result, run.journal.read()))

    def _with_real_step(
        self, result: Result, runner: CommandRunner, run: run_directory.Run
    ) -> Generator[JobEvent, None, tuple[Result, float | None]]:
        """Run the answer once with the training's own accumulation, unless that has been seen already.

        Returns:
            The result, with a warning where the step differs from its prediction; and its seconds, None where none was
            seen.
        """
        if runner.device_info.get("is_emulated"):  # its seconds would mean nothing
            return result, None
        best = result.recommendation
        accumulation = None if best is None else self._own_accumulation(best.micro_batch_size)
        if best is None or accumulation is None or result.stop_reason == StopReason.INTERRUPTED:
            return result, None
        of_size = [one for one in run.journal.read() if one.micro_batch_size == best.micro_batch_size]
        measured = verified_by([one for one in of_size if not one.is_after_search], best.micro_batch_size)
        if not self._command.sets_accumulation:
            return _with_fixed_steps(result, measured, accumulation)
        if accumulation == PROBING_ACCUMULATION:
            return result, None
        real = next((one for one in of_size if one.details.get(REAL_STEP) == accumulation), None)
        if real is None:
            stop_reason = self._should_stop()
            try:
                if stop_reason is None:
                    real = yield from self._run_real_step(runner, run, measured, best.micro_batch_size, accumulation)
            except KeyboardInterrupt:
                stop_reason = StopReason.INTERRUPTED
            if real is None:
                return dataclasses.replace(result, stop_reason=str(stop_reason)), None
        return _warned(result, _difference(real, measured, accumulation)), _seconds_of_step(real)

    def _run_real_step(
        self,
        runner: CommandRunner,
        run: run_directory.Run,
        measured: Observation | None,
        micro_batch_size: int,
        accumulation: int,
    ) -> Generator[JobEvent, None, Observation]:
        """Run a size with an accumulation: a probe of the run, which is no evidence of its search.

        Its trial has the number, so that no other explorer of the study takes it, and is abandoned.
        """
        settings, (sampler, study) = search_settings(self.config), self._open_study(run)
        with storage_errors():
            trial = sampler.ask(study, micro_batch_size)
        decision = Decision(
            micro_batch_size=micro_batch_size,
            purpose=Purpose.VERIFY,
            compilation=settings.user_compilation,
            fresh_worker=True,
            max_passes=settings.max_passes,
            expected_s=_expected_s(measured, accumulation),
        )
        probe = decision.probe(trial.number, settings, None)
        try:
            with trials.hold_lease(study, trial, probe):
                yield ProbeStarted(probe=probe, expected_s=decision.expected_s)
                observation = _observed(runner, probe, accumulation)
        finally:
            with storage_errors():
                trials.abandon(study, trial)
        details = observation.details | {REAL_STEP: accumulation}
        observation = dataclasses.replace(observation, details=details)
        run.journal.append(observation)
        yield ProbeFinished(observation=observation)
        return observation

    def _open_study(self, run: run_directory.Run) -> tuple[BexploreSampler, Any]:
        record, sampler = self._record(run), BexploreSampler(self._space, search_settings(self.config))
        with storage_errors():
            return sampler, open_study(sampler, storage=record.storage, name=record.study_name)

    def _record(self, run: run_directory.Run) -> loop.RunRecord:
        return dataclasses.replace(super()._record(run), history=self._searched)

    @property
    def _searched(self) -> list[Observation]:
        """What an earlier exploration of the run has seen, without real steps."""
        return [one for one in self.known if not one.is_after_search]

    @property
    def _space(self) -> Space:
        """The candidates, and what an earlier exploration of the run tried in its search."""
        tried = (one for one in self._searched if one.probe.purpose is not Purpose.KEEP_BATCH_SIZE)
        return Space.from_sizes(self._candidates).reaching(one.micro_batch_size for one in tried)

    def _own_accumulation(self, micro_batch_size: int) -> int | None:
        """Return the accumulation of the training: of the user's global batch size, else its own; None if unknown.

        None also where the global batch is no multiple of the size, and where the command chooses the accumulation.
        """
        total, share = self.config.batch_size, micro_batch_size * self.config.num_replicas
        if total is None:
            return self._command.accumulation
        return None if total % share or not self._command.sets_accumulation else total // share

    def _with_own_batch(self, config: Config, micro_batch_size: int | None) -> Config:
        """Return the job with the global batch that its own accumulation makes of a size, where it has no other."""
        accumulation = self._command.accumulation
        if config.batch_size is not None or accumulation is None or micro_batch_size is None:
            return config
        made = accumulation * micro_batch_size * config.num_replicas
        return dataclasses.replace(config, batch_size=made, batch_size_path=())

    @property
    def _memory_limit_bytes(self) -> int | None:
        """Bytes of the budget, where it is given in bytes: the device is not known before the command runs."""
        budget = self.config.settings.memory_budget
        return budget if isinstance(budget, int) else None

    @property
    def _maximum(self) -> int:
        bounds = [self.config.maximum, self.config.replica_batch_size]
        return min((bound for bound in bounds if bound is not None), default=DEFAULT_MAXIMUM)

    def _plan(self, run: run_directory.Run | None, changes: Sequence[str]) -> Planned:
        settings, rule, maximum = search_settings(self.config), self.config.candidates, self._maximum
        candidates = describe_candidates(rule, minimum=self.config.minimum, maximum=maximum)
        if isinstance(rule, str) and maximum != self.config.maximum and maximum == self.config.replica_batch_size:
            candidates += ", all samples of a step on one replica"
        return Planned(
            title=describe(self.config),
            run=run,
            num_known_probes=len(self.known),
            changes=tuple(changes),
            device=f"an emulated {find_named_device(self.config)[1].name}"
            if self.config.settings.device_name
            else "the devices of the command",
            candidates=candidates,
            max_probes=settings.max_probes,
            expected_s=None,
            warnings=self.config.warnings,
            notices=tuple(self._announced(settings.max_probes)),
            why_expected="the first start shows what one costs",
        )

    def _planned_only(self, changes: Sequence[str]) -> Planned:
        return self._plan(None, changes)

    def _announced(self, max_probes: int) -> Iterator[str]:
        if self.config.recognised:
            yield f"{self.config.path} is of {self.config.recognised}"
        if self.config.num_replicas_started is not None:
            yield f"{counted(self.config.num_replicas_started, 'replica')}, as many as the command starts"
        starts = dict(self._most_starts(max_probes))
        most = counted(sum(starts.values()), "time")
        yield f"starts `{self._command.shown}` up to {most}, and ends each after its last observed step"
        if len(starts) > 1:
            yield f"that is {', '.join(f'{number} {why}' for why, number in starts.items())}"
        if self.config.sizes_per_start > 1:
            shared = f"a start serves up to {self.config.sizes_per_start} sizes, where its batches can be cut to them"
            yield f"{shared}; the winner runs in a start of its own"
        if "output_dir" in self._command.placeholders:
            yield "what a start writes to {output_dir} is removed after it; trackers are switched off"
        else:
            yield "the command does not take {output_dir}: each start writes where it likes; trackers are switched off"
        yield from self._announced_steps()

    def _most_starts(self, max_probes: int) -> Iterator[tuple[str, int]]:
        yield "for the sizes of the search", max_probes
        if self.config.sizes_per_start > 1:
            yield "for sizes that fail in a start that they share", max_probes
            yield "for the answer alone", 1
            if self._command.sets_accumulation:
                yield "to check that the command follows its size", 1
        keeping = find_sizes_that_keep(self.config, self._candidates)
        if keeping is not None and keeping.sizes:
            yield "for a size that keeps the global batch size", min(MOST_PROBES, max_probes)
        if self._may_run_real_step:
            yield "with the accumulation of your training", 1

    @property
    def _may_run_real_step(self) -> bool:
        if not self._command.sets_accumulation:
            return False
        return self.config.batch_size is not None or self._command.accumulation not in (None, PROBING_ACCUMULATION)

    def _announced_steps(self) -> Iterator[str]:
        own = self._command.accumulation
        if self._command.sets_accumulation:
            yield f"each start accumulates {PROBING_ACCUMULATION} micro-batches a step; passes are ranked"
            if self.config.batch_size is None and own is None:
                yield "the accumulation of your training is unknown: with explore.global_batch_size a real step is run"
        elif own is not None:
            yield f"the command fixes {counted(own, 'accumulation step')}; whole steps are ranked, updates included"
        else:
            yield "the command chooses its own accumulation; whole steps are ranked, updates included"


def _observed(runner: CommandRunner, probe: Probe, accumulation: int | None) -> Observation:
    """Run a probe with an accumulation; a training that does not take it has crashed, which its size has not."""
    stopwatch = Stopwatch()
    try:
        return runner.run(probe, accumulation)
    except UserProgramError as error:
        return Observation(
            probe=probe,
            outcome=Outcome.CRASHED,
            reason="; ".join(filter(None, (error.message, error.hint))),
            traceback_text=error.traceback_text,
            **stopwatch.times(),
        )


def _expected_s(measured: Observation | None, accumulation: int) -> float:
    """Return the seconds that a probe with an accumulation takes: its start and its steps; 0 where unknown."""
    step_s = step_time_s(measured, accumulation)
    if measured is None or step_s is None:
        return 0.0
    return measured.start_time_s + (WARMUP_STEPS + MIN_TIMED_STEPS) * step_s


def _seconds_of_step(observation: Observation) -> float | None:
    return observation.details["step_time_s"] if observation.is_measured else None


def _with_fixed_steps(result: Result, measured: Observation | None, accumulation: int) -> tuple[Result, float | None]:
    if measured is None:
        return result, None
    seen = round(measured.details["micro_batches_per_step"])
    if seen == accumulation:
        return result, _seconds_of_step(measured)
    fixes = counted(accumulation, "accumulation step")
    return _warned(result, f"the command fixes {fixes}, and a step had {seen}"), None


def _difference(real: Observation, measured: Observation | None, accumulation: int) -> str:
    steps = counted(accumulation, "accumulation step")
    if not real.is_measured:
        return f"with {steps} the training ended as {real.outcome}: {real.reason}"
    seen_s, predicted_s = _seconds_of_step(real), step_time_s(measured, accumulation)
    if seen_s is None or predicted_s is None or abs(math.log(seen_s / predicted_s)) <= STARTS_APART:
        return ""
    return (
        f"a step of {steps} took {format_seconds(seen_s)}; passes and an update that were measured at "
        f"{PROBING_ACCUMULATION} give {format_seconds(predicted_s)}"
    )


def _warned(result: Result, warning: str) -> Result:
    return dataclasses.replace(result, warnings=(*result.warnings, warning)) if warning else result


def describe_steps(observations: Sequence[Observation], answer: int | None) -> str:
    """Return that a command has other samples in a step at the answer than at another size; empty where it has not.

    A command that makes one global batch of any size has as many passes as that needs, or as many whole ones.
    """
    passes = {
        one.micro_batch_size: round(one.details["micro_batches_per_step"]) for one in observations if one.is_measured
    }
    samples = {size: size * number for size, number in passes.items()}
    least = min(passes, default=0)
    other = next((size for size in sorted(passes, reverse=True) if passes[size] != passes[least]), None)
    if other is None:
        return ""
    if all(number == max(samples[least] // size, 1) for size, number in passes.items()):
        if answer not in samples or samples[answer] == samples[least]:
            return ""
        return (
            f"a step has {samples[answer]} samples at size {answer}, and {samples[least]} at size {least}: the command "
            f"makes it of whole micro-batches; a size that divides {samples[least]} keeps it"
        )
    if max(samples.values()) <= ONE_BATCH * min(samples.values()):
        return ""
    seen = " and ".join(f"{counted(passes[size], 'pass')} at size {size}" for size in (least, other))
    return (
        f"a step has {seen}: where an epoch ends, the command may step with fewer passes, or drop the gradients of "
        "some, which its global batch size then lacks"
    )


def describe_share_without_training(observations: Sequence[Observation], answer: int | None) -> str:
    """Return that most seconds between the steps of the answer are of none; empty where they are not, or unknown."""
    shares = [
        one.details.get("share_without_training", 0.0)
        for one in observations
        if one.micro_batch_size == answer and one.is_measured and not (one.is_emulated or one.is_estimated)
    ]
    if not shares or statistics.median(shares) < MUCH_WITHOUT_TRAINING:
        return ""
    return (
        f"{statistics.median(shares):.0%} of the seconds between the steps of size {answer} are without gradients (an "
        "evaluation and the start of its loader, a checkpoint, the steps of an environment) and in no speed here: "
        "where the training has as many of them all along, it gains less by a larger size"
    )


def describe_parallel_devices(observations: Sequence[Observation], answer: int | None) -> str:
    """Return that one process divides each batch among devices; empty where none does."""
    ran = None if answer is None else verified_by(observations, answer)
    number = 1 if ran is None else ran.details.get("parallel_devices", 1)
    if number == 1 or answer is None:
        return ""
    return (
        f"nn.DataParallel divides each batch among {number} devices: size {answer} is {math.ceil(answer / number)} on "
        "each, and memory is that of one of them; a process for each device (torchrun) is faster as a rule"
    )


def describe_rows(observations: Sequence[Observation], answer: int | None) -> str:
    """Return that batches have several rows for each of their size, some beside it, or few; empty for none of these.

    One size tells none of the three. Where all sizes have as many rows, samples are in another dimension.
    """
    seen = {one.micro_batch_size: one.details["arrived"] for one in observations if one.details.get("arrived")}
    rows = {size: arrived["rows"] for size, arrived in seen.items() if not arrived["has_rows_of_size"]}
    if answer not in rows or len(rows) == 1:
        return ""
    ratios = {number / size for size, number in rows.items()}
    further = {number - size for size, number in rows.items()}
    if len(further) == 1:
        return f"batches have {further.pop()} rows beside those of their size, which samples/s do not count"
    mean = seen[answer]["mean_rows"]
    if mean / answer <= FEW_ROWS and len(set(rows.values())) > 1:
        return (
            f"a batch of size {answer} has {mean:.3g} rows in the mean: the size counts something "
            "else, such as tokens, and so do the batch sizes and samples/s here"
        )
    ratio = ratios.pop()
    if ratios or ratio < 2 or ratio % 1:
        return ""
    return (
        f"batches have {ratio:.0f} rows for each of their size ({rows[answer]} at size {answer}): where each row is a "
        f"sample, the batch sizes and samples/s here are to be taken {ratio:.0f} times"
    )


def _with_last_batches(result: Result, observations: Sequence[Observation]) -> Result:
    """Return the result with a warning where an epoch of a recommended size ends with one sample for a BatchNorm.

    Where size 1 was measured, one sample has several values for each channel, such as those of its pixels or nodes.
    """
    if any(one.micro_batch_size == 1 and one.is_measured for one in observations):
        return result
    second = result.second_answer
    answers = [result.recommendation, second.recommendation if second is not None else None]
    for size in dict.fromkeys(one.micro_batch_size for one in answers if one is not None):
        ran = verified_by(observations, size)
        names = [name for name in (ran.details.get("batch_coupled") or () if ran else ()) if "BatchNorm" in name]
        if ran is not None and names and ran.details.get("last_batch") == 1:
            result = _warned(
                result,
                f"the last batch of each epoch has 1 sample at size {size}, and {', '.join(names)} takes statistics of "
                "it: where a channel has one value, the training ends with an error there; drop the last batch "
                "(drop_last=True), or use a size that leaves another rest",
            )
    return result


def _check_confirmed(result: Result, runner: CommandRunner) -> None:
    """Check that what arrived was seen to follow the size."""
    size = runner.unconfirmed_size
    if size is not None and result.stop_reason != StopReason.INTERRUPTED:
        raise UserProgramError(
            f"unseen: {runner.arrived_at(size)}, and no other size ran, which would show whether they are packed",
            hint="let another size be explored: a smaller one that fits, by explore.candidates",
        )
