"""Explore the program that runs here: its own command is started again for each probe, with the size in a variable.

A program that is started with `BEXPLORE_MICRO_BATCH_SIZE` takes that size and explores nothing. So the ranks of a
launcher may be given their size, by `bexplore explore --env` and by hand.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bexplore.api import explore
from bexplore.config.load import load_config
from bexplore.errors import BexploreError, UserInputError
from bexplore.exploration.base import ExploreOptions
from bexplore.host.secret_values import hidden_words
from bexplore.job.batching import split
from bexplore.output.bexp import BexpStream, RunLog, probe_sentence
from bexplore.output.event_files import EventFile
from bexplore.output.report.files import ReportFile
from bexplore.output.summary import headline
from bexplore.run.events import AlreadyFinished, Finished, JobEvent, Planned
from bexplore.run.result import RunResult
from bexplore.search.policy.decision import StopReason
from bexplore.search.result import ProbeFinished

SIZE, ACCUMULATION, OUTPUT_DIR = "BEXPLORE_MICRO_BATCH_SIZE", "BEXPLORE_ACCUMULATION", "BEXPLORE_OUTPUT_DIR"
ENDLESS_STEPS = 10**9  # of a probe's training, so that a large size does not end short data before it is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSize:
    """What this process was started with.

    Attributes:
        micro_batch_size: Samples of one replica in one pass.
        accumulation: Passes of one optimizer step; None for the program's own.
        output_dir: Folder for all that the program writes, removed with the probe; None outside of a probe.
    """

    micro_batch_size: int
    accumulation: int | None = None
    output_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """An exploration of the program that runs here.

    Attributes:
        what: Name of what explores, for people.
        settings: Settings of the `explore` section.
        sets_accumulation: Whether a start takes `BEXPLORE_ACCUMULATION`.
        writes_are_fine: Whether a start may write where the program writes; else it takes `BEXPLORE_OUTPUT_DIR`.
        model_dir: Folder of the results; None for `model_dir`.
        fresh: Start over, even if there is an earlier run.
    """

    what: str
    settings: Mapping[str, Any]
    sets_accumulation: bool = False
    writes_are_fine: bool = False
    model_dir: str | None = None
    fresh: bool = False

    def overrides(self) -> list[str]:
        """Return the settings as overrides of a configuration."""
        env = {SIZE: "{micro_batch_size}"} | dict(self.settings.get("env") or {})
        if self.sets_accumulation:
            env[ACCUMULATION] = "{accumulation}"
        if not self.writes_are_fine:
            env[OUTPUT_DIR] = "{output_dir}"
        own = {"command": find_own_command(), "env": env, "writes_are_fine": self.writes_are_fine}
        return [f"explore.{name}={json.dumps(value)}" for name, value in {**self.settings, **own}.items()]


_found: list[tuple[ProgramRequest, RunResult]] = []  # by this process: at most one


@contextmanager
def show_hints() -> Iterator[None]:
    """Add an error's hint, and the training's own traceback, to what Python shows of the error."""
    try:
        yield
    except BexploreError as error:
        for note in (error.hint, getattr(error, "traceback_text", "")):
            if note and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        raise


@show_hints()
def read_given_size() -> GivenSize | None:
    """Return what this process was started with; None where it has to explore."""
    size, accumulation = os.environ.get(SIZE), os.environ.get(ACCUMULATION)
    if not size:
        return None
    try:
        return GivenSize(
            micro_batch_size=int(size),
            accumulation=int(accumulation) if accumulation else None,
            output_dir=os.environ.get(OUTPUT_DIR),
        )
    except ValueError:
        raise UserInputError(f"{SIZE}={size} is no number", hint=f"type {SIZE}=32, or unset it to explore") from None


@show_hints()
def explore_program(request: ProgramRequest) -> RunResult:
    """Explore the program that runs here, and show on stderr what is found; once in a process."""
    if not _found:
        _refuse_ranks()
        _found.append((request, _run(request)))
    ((explored, result),) = _found
    if request != explored:
        which = "the same with other settings" if request.what == explored.what else explored.what
        raise UserInputError(
            f"{request.what} explores after {which}: a start of this program cannot tell them apart",
            hint="explore one training of a program, and give the other its size",
        )
    return result


def name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function and its place, which tell two lambdas apart; of another callable its class."""
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__qualname__
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def find_accumulation(result: RunResult, global_batch_size: int) -> int:
    """Return the passes of one replica in a step of a global batch size."""
    assert result.micro_batch_size is not None  # `explore_program` returns no other result
    return split(global_batch_size, result.batch.num_replicas or 1, result.micro_batch_size).accumulation_steps


def refuse_ranks(num_ranks: int) -> None:
    """Raise UserInputError where this process is one of several ranks: each would explore, beside the others."""
    if num_ranks > 1:
        words = " ".join(hidden_words(sys.orig_argv))
        raise UserInputError(
            f"this process is one of {num_ranks} ranks, and only a program without a launcher can start itself again",
            hint=f"bexplore explore --env {SIZE}={{micro_batch_size}} --writes-are-fine -- {words}; "
            f"then set {SIZE} to the size that it finds",
        )


def find_own_command() -> list[str]:
    """Return the command of this process."""
    # Python names standard input so while it runs a program from there; a start would find it read.
    if getattr(sys.modules["__main__"], "__file__", "<stdin>") == "<stdin>" and "-c" not in sys.orig_argv:
        raise UserInputError(
            "there is no program to start again: this one was typed, or read from standard input",
            hint="run the training from a file: python train.py",
        )
    return [sys.executable, *sys.orig_argv[1:]]


def _refuse_ranks() -> None:
    refuse_ranks(int(os.environ.get("WORLD_SIZE") or 1))


def _run(request: ProgramRequest) -> RunResult:
    config = load_config(None, overrides=request.overrides())
    now = partial(datetime.now, UTC)
    sinks = (RunLog(now), EventFile(), BexpStream(sys.stderr, now), ReportFile(_warn), _show)
    for event in explore(config, ExploreOptions(model_dir=request.model_dir, fresh=request.fresh)):
        for sink in sinks:
            sink(event)
    assert isinstance(event, Finished | AlreadyFinished)  # the last event, or an error was raised
    if event.result.search.stop_reason == StopReason.INTERRUPTED or event.result.micro_batch_size is None:
        raise KeyboardInterrupt
    return event.result


def _say(text: str) -> None:
    """Write a line to stderr: stdout is the program's own."""
    print(text, file=sys.stderr, flush=True)


def _warn(text: str) -> None:
    _say(f"warning: {text}")


def _show(event: JobEvent) -> None:
    match event:
        case Planned():
            for line in event.warnings:
                _warn(line)
            for line in event.notices:
                _say(line)
        case ProbeFinished():
            _say(probe_sentence(event))
        case Finished() | AlreadyFinished():
            _show_result(event.result)


def _show_result(result: RunResult) -> None:
    """Say what was found, and where all of it is."""
    if result.micro_batch_size is None:
        return  # interrupted
    _say(headline(result))
    for text in result.warnings:
        _warn(text)
    report = Path(result.run_dir, "report.html")
    _say(f"Report:  {report}" if report.exists() else f"Results: {result.run_dir}")
