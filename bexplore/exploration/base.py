"""An exploration that can be resumed: its runs on disk, and what becomes of an earlier one."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bexplore.config.config import Config
from bexplore.engine.process.limits import Progress
from bexplore.errors import NothingFitsError, UserProgramError
from bexplore.exploration.finish import is_for_request
from bexplore.host import logs
from bexplore.job.batching import sizes_that_keep
from bexplore.measurement.probe import Observation
from bexplore.run import run_directory
from bexplore.run.events import AlreadyFinished, JobEvent, Planned
from bexplore.run.fingerprint import Fingerprint, search_settings
from bexplore.run.parts.search import LIMITS
from bexplore.run.result import RunResult
from bexplore.search import loop


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreOptions:
    """Options of an exploration that are not part of the job.

    Attributes:
        model_dir: Folder of the results; None for the configuration's own.
        fresh: Start over and trace again, even if an earlier run could be resumed.
        dry_run: End after the plan.
        on_progress: Called with workers' progress messages.
        should_stop: Called before each probe; a returned text ends the exploration and is its stop reason.
        clock: Returns seconds, of which only differences count.
        now: Returns the present time.
    """

    model_dir: str | None = None
    fresh: bool = False
    dry_run: bool = False
    on_progress: Progress = lambda message: None
    should_stop: Callable[[], str | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def find_sizes_that_keep(config: Config, candidates: Sequence[int]) -> loop.KeepBatchSize | None:
    """Return the sizes that keep the user's global batch size; None without one, or where it has no whole share.

    With the rule `all` these are any sizes between the smallest and the largest candidate: large candidates are 8 and
    more apart, and a size that divides the batch need not be one of them.
    """
    if config.replica_batch_size is None:
        return None
    sizes = sizes_that_keep(config.replica_batch_size, config.divisibility)
    tried = set(candidates)
    is_dense = config.candidates == "all"
    kept = (size for size in sizes if size in tried or (is_dense and candidates[0] <= size <= candidates[-1]))
    return loop.KeepBatchSize(sizes=tuple(kept), is_answer=config.settings.keep_batch_size)


class Exploration(ABC):
    """The state of one exploration, whatever runs its probes."""

    def __init__(
        self, config: Config, options: ExploreOptions, make_environment: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self.config = config
        self.options = options
        self.folder = run_directory.model_directory(config.mode, options.model_dir or config.model_dir)
        self.fingerprint = Fingerprint(config=config, folder_name=self.folder.name)
        self.began_s = options.clock()
        self.on_progress = _log_stages(options.on_progress)
        self.known: list[Observation] = []
        self.is_interrupted = False
        self._make_environment = make_environment
        self._environment: dict[str, str] = {}  # of the processes that are started, beside this process's own

    def events(self) -> Iterator[JobEvent]:
        """Find an earlier run; else plan, run and finish a new one."""
        run, changes = self._earlier_run()
        stored = run.result() if run else None
        if run is not None and stored is not None and not self._goes_on(run, stored):
            yield AlreadyFinished(result=stored, run=run)
            return
        self._environment = dict(self._make_environment())  # it fails before there is a run
        if self.options.dry_run:
            yield self._planned_only(changes)
            return
        if run is None:
            with run_directory.exclusively(self.folder):
                run, changes = self._earlier_run()  # again: another process may have created it meanwhile
                run = run or self._new_run()
        self.known = run.journal.read()
        logs.attach_file(run.directory / "log.jsonl")
        try:
            yield self._plan(run, changes)
            yield from self._run(run)
        except (NothingFitsError, UserProgramError) as error:
            # A corrected program must not meet the old failures again: such a run is not resumed.
            run.write_error(error.message, hint=error.hint)
            raise
        finally:
            logs.detach_file()

    def _answers(self, stored: RunResult) -> bool:
        """Whether a stored result is for the present batch size and steps.

        Another batch size needs another second answer, a longer training more search; both resume the run.
        """
        return is_for_request(stored, self.config)

    def _goes_on(self, run: run_directory.Run, stored: RunResult) -> bool:
        """Whether a run with a result has more to do: it went on already, or for another batch size or larger limit."""
        if not self._answers(stored):
            return True
        if not run.can_be_resumed:
            return False
        if run.warn_of_later_probes(stored):
            return True
        name, before = LIMITS.get(stored.search.stop_reason), stored.search.limit
        own = None if name is None else getattr(search_settings(self.config), name)
        # The effort's own limit of time is not a number.
        return before is not None if own is None else bool(own > (before or stored.search.elapsed_s or math.inf))

    def _new_run(self, *, apart: bool = False) -> run_directory.Run:
        """Create a run; `apart` gives it a study of its own."""
        now = self.options.now()
        meta = self.fingerprint.meta(now)
        if apart or self.options.fresh or self._has_failed_before(meta):
            meta["study"] += f"-{now:%Y%m%d%H%M%S}-{os.getpid()}"
        is_private = self.config.command is not None
        return run_directory.create_run(self.folder, meta=meta, now=now, is_private=is_private)

    def _has_failed_before(self, meta: dict[str, Any]) -> bool:
        runs = run_directory.find_runs(self.folder)
        return any(run.has_failed and not run_directory.differences(run.meta(), meta) for run in runs)

    @abstractmethod
    def _run(self, run: run_directory.Run) -> Iterator[JobEvent]: ...

    @abstractmethod
    def _plan(self, run: run_directory.Run | None, changes: Sequence[str]) -> Planned: ...

    @abstractmethod
    def _planned_only(self, changes: Sequence[str]) -> Planned: ...

    def _record(self, run: run_directory.Run) -> loop.RunRecord:
        return loop.RunRecord(
            storage=self.config.settings.storage or run.directory / "study.log",
            study_name=run.meta().get("study", self.fingerprint.study_name()),
            lock_path=run.lock_path,
            record=run.journal.append,
            history=self.known,
            clock=self.options.clock,
            spent_s=self._elapsed_s(),
        )

    def _elapsed_s(self) -> float:
        return self.options.clock() - self.began_s

    def _should_stop(self) -> str | None:
        return "interrupted" if self.is_interrupted else self.options.should_stop()

    def _earlier_run(self) -> tuple[run_directory.Run | None, tuple[str, ...]]:
        """Return the newest run that can be resumed; else None and the changes since the newest run."""
        if self.options.fresh:
            return None, ()
        runs = run_directory.find_runs(self.folder)
        wanted = self.fingerprint.meta(self.options.now())
        for run in runs:
            if run.result() is None and not run.can_be_resumed:
                continue
            if not run.has_failed and not run_directory.differences(run.meta(), wanted):
                return run, ()
        return None, run_directory.differences(runs[0].meta(), wanted) if runs else ()


def _log_stages(listener: Progress) -> Progress:
    def listen(message: dict[str, Any]) -> None:
        if message.get("stage"):
            logs.log.debug("stage", stage=message["stage"])
        listener(message)

    return listen
