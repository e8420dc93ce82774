"""`bexplore explore`: the search, its outputs, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bexplore.actions.apply import paste, written_size
from bexplore.api import explore as events_of
from bexplore.cli.field_names import name_options
from bexplore.cli.options import (
    COMMAND,
    DEVICE_NAME,
    CommandBehindDashes,
    Common,
    command_options,
    common_options,
    overrides_of_command,
    refuse_without_command,
)
from bexplore.cli.streams import silence, tells_of_no_reader, watched_reader
from bexplore.config.config import Config
from bexplore.config.document import dotted_path
from bexplore.engine.process.worker_process import is_waiting
from bexplore.errors import BexploreError, ExitCode, first_line
from bexplore.exploration.base import ExploreOptions
from bexplore.host.logs import log
from bexplore.output.bexp import BexpStream, RunLog
from bexplore.output.console import Progress
from bexplore.output.event_files import EventFile, JsonLines
from bexplore.output.report.files import ReportFile
from bexplore.output.summary import summary_text
from bexplore.output.table import stdout_width
from bexplore.run.events import AlreadyFinished, Finished, JobEvent
from bexplore.run.fingerprint import search_settings
from bexplore.run.result import RunResult
from bexplore.search.policy.decision import StopReason


@click.command(cls=CommandBehindDashes)
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--fresh", is_flag=True, help="Start over, even if there is an earlier run.")
@click.option("--dry-run", is_flag=True, help="Only report the plan and its expected duration.")
@DEVICE_NAME
@click.option("--storage", metavar="URL", help="Optuna storage (sqlite:///study.db, postgresql://...).")
@command_options
@common_options
@click.pass_context
def explore(
    context: click.Context,
    /,
    config: Path | None,
    fresh: bool,
    dry_run: bool,
    device_name: str | None,
    storage: str | None,
    common: Common,
    **of_command: Any,
) -> None:
    """Explore CONFIG, or the training that COMMAND starts: stream recommendations, then report which size to use.

    A second call resumes an unfinished run, or prints the stored result of a finished one.

    \b
    Examples:
      bexplore explore job.yaml
      bexplore explore job.yaml --dry-run                       the plan, and its expected duration
      bexplore explore job.yaml --device-name h100              estimated for a GPU that is not here
      bexplore explore job.yaml --set explore.effort=thorough   more and longer probes
      bexplore explore job.yaml --set micro_batch_size='{explore: {min: 4, max: 64}}'
      bexplore explore job.yaml --json | jq 'select(.event == "result")'   the answer, for programs
      bexplore explore axolotl.yaml -- axolotl train {config} --output-dir {output_dir}
      bexplore explore -- torchrun --nproc-per-node 8 train.py --micro-batch-size {micro_batch_size} --out {output_dir}
    """
    common = common.with_device_name(device_name)
    if storage is not None:
        common = common.with_override(f"explore.storage={json.dumps(storage)}")
    typed = of_command | {"command": context.meta.get(COMMAND, ())}
    for override in overrides_of_command(**typed):
        common = common.with_override(override)
    if config is None and not typed["command"]:
        raise click.UsageError("Missing argument 'CONFIG', or a training command behind --.")
    loaded = common.load(config)
    if not loaded.request.is_search:
        _nothing_to_explore(loaded, common)
        return
    if loaded.command is None:
        refuse_without_command(of_command)
        common.require_torch()
        common.announce(loaded)  # of a command the plan says more
    stopper = _Stopper()
    show = _Show(loaded, common, on_reader_gone=stopper.stop)
    options = ExploreOptions(
        model_dir=common.model_dir,
        fresh=fresh,
        dry_run=dry_run,
        on_progress=show.progress,
        should_stop=stopper.reason,
    )
    with stopper, show, watched_reader(sys.stdout, stopper.stop):
        last = show.all(events_of(loaded, options))
    if last is not None and last.search.stop_reason == StopReason.INTERRUPTED:
        sys.exit(ExitCode.INTERRUPTED)


class _Show:
    """All outputs of one exploration."""

    def __init__(self, config: Config, common: Common, *, on_reader_gone: Callable[[], None]) -> None:
        now = partial(datetime.now, UTC)
        self._config, self._common = config, common
        self._progress = Progress(Console(stderr=True, quiet=common.verbosity < 0), name_options=name_options)
        self._log = RunLog(now)
        self._sinks: list[Callable[[JobEvent], None]] = [
            self._log,
            EventFile(),
            self._progress,
            ReportFile(self._progress.warn),
        ]
        self._to_stdout = JsonLines(sys.stdout) if common.as_json else BexpStream(sys.stdout, now)
        self._shares_terminal = sys.stdout.isatty()
        self._on_reader_gone = on_reader_gone
        self._is_read = True

    def progress(self, message: dict[str, Any]) -> None:
        """Show a worker's progress message."""
        self._progress.report(message)

    def all(self, events: Iterable[JobEvent]) -> RunResult | None:
        """Pass every event to every output, then print the summary.

        Returns:
            The result; None in a dry run.
        """
        last = None
        try:
            for event in events:
                for sink in list(self._sinks):
                    self._pass_on(event, sink)
                with self._progress.paused() if self._shares_terminal else nullcontext():
                    self._print(partial(self._to_stdout, event))
                if isinstance(event, Finished | AlreadyFinished):
                    last = event.result
        except BexploreError as error:
            self._log.write(220, error.message)
            raise
        if last is not None and not self._common.as_json:
            text = self._summary(last)
            self._print(lambda: click.echo(f"\n{text}"))
        return last

    def _pass_on(self, event: JobEvent, sink: Callable[[JobEvent], None]) -> None:
        """Let a sink see an event; one that fails sees no more, because the journal and stdout hold the results."""
        try:
            sink(event)
        except Exception as error:
            self._sinks.remove(sink)
            log.info("an output failed", output=type(sink).__name__, exc_info=True)
            self._warn(f"{type(sink).__name__} failed: {type(error).__name__}: {first_line(error)}; goes on without it")

    def _warn(self, text: str) -> None:
        click.echo(f"warning: {text}", err=True)

    def _print(self, write: Callable[[], None]) -> None:
        """Write to stdout; end the exploration in order once stdout has no reader."""
        if not self._is_read:
            return
        try:
            write()
        except OSError as error:
            if not tells_of_no_reader(error, sys.stdout):
                raise
            self._is_read = False
            silence(sys.stdout.fileno())  # Python would write what is left once more at exit
            self._on_reader_gone()

    def _summary(self, result: RunResult) -> str:
        """Return the summary; where it fails, the answer alone."""
        report = Path(result.run_dir, "report.html")
        # Without settings in the answer all variants but one were left out, and the size alone was explored.
        settings = search_settings(self._config, num_variants=None if result.choice.settings else 1)
        try:
            return summary_text(
                result,
                tolerance=self._config.settings.tolerance,
                target_confidence=settings.target_confidence,
                config=self._config.typed,
                paste=self._paste(result),
                command_line=self._describe_command(result),
                report=str(report) if report.exists() else None,
                width=stdout_width(),
            )
        except Exception as error:
            log.info("no summary", exc_info=True)
            self._warn(f"no summary: {type(error).__name__}: {first_line(error)}")
            return f"Use micro_batch_size {result.micro_batch_size}: see {Path(result.run_dir, 'result.json')}"

    def _paste(self, result: RunResult) -> str:
        """Return the lines to paste into the file; empty where there is no recommendation."""
        if not result.micro_batch_size:
            return ""
        config = self._config
        if config.command is not None and result.batch.num_replicas:
            config = config.with_replicas(result.batch.num_replicas)
        size = written_size(config, result)
        return paste(config, size, result.choice.settings) or f"{dotted_path(config.request.path)}: {size}"

    def _describe_command(self, result: RunResult) -> tuple[str, str]:
        """Return the command with the recommended size, and what its `{config}` is; empty where a file has the size."""
        command, config = self._config.command, self._config
        if command is None or command.has_size_in_file or not result.micro_batch_size:
            return "", ""
        own = next(
            (one for one in result.batch.global_batch_sizes if one.global_batch_size == result.batch.batch_size), None
        )
        answer: dict[str, Any] = {
            "micro_batch_size": result.micro_batch_size,
            "accumulation": own.accumulation_steps if own else None,
            "num_replicas": result.batch.num_replicas or config.num_replicas,
        }
        return command.shown_with(**answer), command.describe_copy(**answer)

    def __enter__(self) -> _Show:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.close()


class _Stopper:
    """Ctrl-C once: end in order, with whole files. Twice: end at once.

    SIGTERM and a terminal that is closed count as Ctrl-C: `timeout`, a cancelled CI job, a lost connection.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._asked = False
        self._is_unattended = False
        self._before: dict[signal.Signals, Any] = {}

    def reason(self) -> str | None:
        """Return the stop reason once a stop was requested."""
        return "interrupted" if self._asked else None

    def stop(self) -> None:
        """End as after one Ctrl-C; safe from any thread and repeatedly, and each call ends the next wait too."""
        self._is_unattended = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __enter__(self) -> _Stopper:
        for number in self.SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, _number: int, _frame: Any) -> None:
        is_second, self._asked = self._asked and not self._is_unattended, True
        if is_second or is_waiting():
            raise KeyboardInterrupt


def _nothing_to_explore(config: Config, common: Common) -> None:
    request = config.request
    what = f"micro_batch_size is {request.value}" if request.value is not None else "there is no micro-batching"
    text = f"{config.path}: {what}: nothing to explore. Set it to `explore` to search."
    record = {"event": "nothing_to_explore", "micro_batch_size": request.value, "message": text}
    click.echo(json.dumps(record) if common.as_json else text)
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
