"""The exploration of a training command: no trace, one start for each probe, the real step verified once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from bexplore.command.runner import PROBING_ACCUMULATION, CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.errors import UserInputError
from bexplore.exploration import run_directory
from bexplore.exploration.events import Finished, JobEvent, Planned, Recommended
from bexplore.exploration.fingerprint import describe, search_settings
from bexplore.exploration.finish import Finish, batch_size_request, global_batch_sizes, step_time_s
from bexplore.exploration.result import RunResult
from bexplore.exploration.resumable import ResumableExploration, keeping_sizes
from bexplore.measurement.probe import Compilation, Observation, Probe, Purpose
from bexplore.search import loop
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, Result, SearchEnded
from bexplore.search.space import MemoryPrior, Space, candidate_sizes
from bexplore.units import format_seconds

# Largest candidate where the command has no bound: what runs out of memory ends the growth before, as a rule.
DEFAULT_MAXIMUM = 4096


class CommandExploration(ResumableExploration):
    """An exploration whose probes are starts of the user's own command."""

    @property
    def _command(self) -> Command:
        command = self.config.command
        assert command is not None  # `explore` chooses this class by it
        return command

    def _answers(self, stored: RunResult) -> bool:
        """Return whether a stored result is for the present batch size, with the replicas that its probes showed."""
        replicas = stored.num_replicas or self.config.num_replicas
        asked = batch_size_request(dataclasses.replace(self.config, num_replicas=replicas))
        return all(getattr(stored, name) == value for name, value in asked.items())

    def _run(self, run: run_directory.Run) -> Iterator[JobEvent]:
        runner = CommandRunner(
            self._command,
            CommandSettings(
                run_dir=run.directory,
                memory_limit_bytes=self._memory_limit_bytes,
                sizes_per_start=self.config.explore.sizes_per_start,
                candidates=self._candidates,
                should_stop=lambda: self._should_stop() is not None,
                on_progress=self.on_progress,
            ),
        )
        with contextlib.closing(runner):
            yield from self._run_with(runner, run)

    def _run_with(self, runner: CommandRunner, run: run_directory.Run) -> Iterator[JobEvent]:
        for observation in self.known:
            self._learn(runner, observation)
        result = None
        for event in self._search(runner, run):
            if isinstance(event, Result):
                result = event
            elif isinstance(event, Recommendation):
                sizes = global_batch_sizes(self.config, event.micro_batch_size)
                yield Recommended(recommendation=event, global_batch_sizes=sizes)
            elif not isinstance(event, SearchEnded):
                if isinstance(event, ProbeFinished):
                    self._learn(runner, event.observation)
                yield event
        assert result is not None  # the loop ends with a result or an error
        yield Finished(result=self._finished(result, runner, run), run=run)

    @property
    def _candidates(self) -> tuple[int, ...]:
        return candidate_sizes(
            self.config.candidates,
            minimum=self.config.minimum,
            maximum=max(self._maximum, self.config.minimum),
            replica_batch_size=self.config.replica_batch_size,
        )

    def _search(self, runner: CommandRunner, run: run_directory.Run) -> Iterator[Any]:
        yield from loop.explore(
            runner,
            space=Space.of(self._candidates),
            settings=search_settings(self.config),
            keeping=keeping_sizes(self.config, self._candidates),
            memory=MemoryPrior(budget_bytes=self._memory_limit_bytes),
            run=self._record(run),
            should_stop=self._should_stop,
        )

    def _learn(self, runner: CommandRunner, observation: Observation) -> None:
        """Take over the replicas that a measured probe showed.

        Raises:
            UserInputError: The probe was started with a number that depends on the replicas, and took them for one.
        """
        num_replicas = observation.details.get("num_replicas")
        if not observation.is_measured or not num_replicas or self._command.num_replicas is not None:
            return
        if {"replicas", "global_batch_size"} & self._command.placeholders and num_replicas > 1:
            raise UserInputError(
                f"the command started {num_replicas} replicas, on which its own numbers depend",
                hint=f"type --replicas {num_replicas}",
            )
        self.config = self.config.with_replicas(num_replicas)
        runner.num_replicas = num_replicas

    def _finished(self, result: Result, runner: CommandRunner, run: run_directory.Run) -> RunResult:
        verified, warning = self._verified_step(result, runner, run.journal.read())
        if verified is not None or warning:
            result = dataclasses.replace(result, warnings=(*result.warnings, *([warning] if warning else [])))
        end = Finish(
            config=self.config,
            runner=None,
            run=run,
            cost_model=None,
            device_info=runner.device_info,
            elapsed_s=self._elapsed_s,
            verified_step_time_s=verified,
        )
        return end.result(result)

    def _verified_step(
        self, result: Result, runner: CommandRunner, known: Sequence[Observation]
    ) -> tuple[float | None, str]:
        """Run the recommended size once with the accumulation of the user's own global batch size.

        Returns:
            Seconds of that step, None where it was not run; and a warning where it differs from what passes and updates
            gave, empty for none.
        """
        best = result.recommendation
        own = None if best is None else self._own_accumulation(best.micro_batch_size)
        if best is None or own is None or own == PROBING_ACCUMULATION or self._should_stop() is not None:
            return None, ""
        probe = Probe(
            number=len(known),
            micro_batch_size=best.micro_batch_size,
            compilation=Compilation.EXACT,
            purpose=Purpose.VERIFY,
            time_limit_s=self.config.explore.probe_time_limit_s,
            tolerance=self.config.explore.tolerance,
        )
        observation = runner.run(probe, own)
        if not observation.is_measured:
            return (
                None,
                f"with {own} accumulation steps the training ended as {observation.outcome}: {observation.reason}",
            )
        seen_s, expected_s = step_time_s(observation, own), own / best.samples_per_s * best.micro_batch_size
        if seen_s is None or abs(seen_s / expected_s - 1.0) <= 2 * self.config.explore.tolerance:
            return seen_s, ""
        return seen_s, (
            f"a step of {own} micro-batches took {format_seconds(seen_s)}; passes measured at an accumulation of "
            f"{PROBING_ACCUMULATION} give {format_seconds(expected_s)} without its update"
        )

    def _own_accumulation(self, micro_batch_size: int) -> int | None:
        """Return the accumulation of the user's global batch size; None where there is none or it is not whole."""
        total, share = self.config.batch_size, micro_batch_size * self.config.num_replicas
        if total is None or not self._command.sets_accumulation or total % share:
            return None
        return total // share

    @property
    def _memory_limit_bytes(self) -> int | None:
        """Bytes of the budget, where it is given in bytes: the device is not known before the command runs."""
        budget = self.config.explore.memory_budget
        return budget if isinstance(budget, int) else None

    @property
    def _maximum(self) -> int:
        bounds = [self.config.maximum, self.config.replica_batch_size]
        return min((bound for bound in bounds if bound is not None), default=DEFAULT_MAXIMUM)

    def _plan(self, run: run_directory.Run | None, changes: Sequence[str]) -> Planned:
        settings = search_settings(self.config)
        rule = self.config.candidates
        sizes = f"{len(rule)} given sizes" if not isinstance(rule, str) else f"sizes by the rule '{rule}'"
        return Planned(
            title=describe(self.config),
            run=run,
            num_known_probes=len(self.known),
            changes=tuple(changes),
            device="the devices of the command",
            candidates=f"{sizes} from {self.config.minimum} to {self._maximum}",
            max_probes=settings.max_probes,
            expected_s=None,
            warnings=self.config.warnings,
            notices=tuple(self._announced(settings.max_probes)),
            why_expected="the first start shows what one costs",
        )

    def _planned_only(self, changes: Sequence[str]) -> Planned:
        return self._plan(None, changes)

    def _announced(self, max_probes: int) -> Iterator[str]:
        """Yield what will be started, how often, and what it may write."""
        if self.config.recognised:
            yield f"{self.config.path} is of {self.config.recognised}"
        yield f"starts `{self._command.shown}` up to {max_probes} times, and ends each after its last observed step"
        if self.config.explore.sizes_per_start > 1:
            most = self.config.explore.sizes_per_start
            yield f"a start serves up to {most} sizes, cut from larger batches; the winner runs in a start of its own"
        if "output_dir" in self._command.placeholders:
            yield "what a start writes to {output_dir} is removed after it; trackers are switched off"
        else:
            yield "the command does not take {output_dir}: each start writes where it likes; trackers are switched off"
        if self._command.sets_accumulation:
            yield f"each start accumulates {PROBING_ACCUMULATION} micro-batches a step; passes are ranked"
        else:
            yield "the command chooses its own accumulation; whole steps are ranked, updates included"
