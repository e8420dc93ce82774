"""The run directory, and the observations on disk in it: the truth from which everything else is rebuilt.

local_compile_train/<model_dir>/
    run_<timestamp>.log         the streamed lines, for people
    latest                      link to the newest of them
    run_<timestamp>/
        meta.json               what was explored: job, environment, settings
        journal.jsonl           one observation a line: append, fsync, then believe
        study.log               Optuna's own storage
        trace.json              what the trace told
        result.json             the last words; absent while unfinished
        error.json              why there is none: nothing fits, or the program is broken
        events.jsonl log.jsonl workers/
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError, UserInputError
from bexplore.exploration.journal import Journal
from bexplore.host.json_files import read_json, write_json
from bexplore.host.locks import locked
from bexplore.job import Mode

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One exploration on disk.

    Attributes:
        directory: Holds everything but the log for people.
        log_path: `run_<timestamp>.log`, beside the directory.
    """

    directory: Path
    log_path: Path

    @property
    def journal(self) -> Journal:
        """The observations of this run."""
        return Journal(self.directory / "journal.jsonl")

    def meta(self) -> dict[str, Any]:
        """What was explored.

        Raises:
            UserInputError: The file is missing or is not ours.
        """
        return read_json(self.directory / "meta.json")

    def result(self) -> dict[str, Any] | None:
        """The last words; None while the run is unfinished."""
        path = self.directory / "result.json"
        return read_json(path) if path.exists() else None

    @property
    def lock_path(self) -> Path:
        """Held while the study of this run is made to tell its journal."""
        return self.directory / ".lock"

    @property
    def has_failed(self) -> bool:
        """Whether it ended in a way that a mended program or another budget would not repeat."""
        return (self.directory / "error.json").exists()

    def write_error(self, message: str) -> None:
        """Store why there is no result; such a run is not gone on from."""
        write_json(self.directory / "error.json", {"message": message})

    def remember_trace(self, cost_model: Mapping[str, Any]) -> bool:
        """Store the trace; False, and nothing stored, if the run's earlier trace is of another program."""
        path = self.directory / "trace.json"
        if path.exists():
            return bool(read_json(path).get("fingerprint") == cost_model["fingerprint"])
        write_json(path, cost_model)
        return True

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Store the last words; from now on the run is finished."""
        write_json(self.directory / "result.json", result)


def model_directory(mode: Mode, model_dir: str) -> Path:
    """`local_compile_<mode>/<model_dir>`; a model directory with a parent keeps its parent."""
    path = Path(model_dir)
    return path.parent / f"local_compile_{mode}" / (path.name or "model_dir")


def create_run(folder: Path, *, meta: Mapping[str, Any], now: datetime) -> Run:
    """Make a new run directory, its log and the `latest` link.

    Raises:
        EngineError: The folder cannot be written.
    """
    stem = f"run_{now.astimezone(UTC):%Y%m%d_%H%M%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        directory = _make_unused(folder, stem)
        write_json(directory / "meta.json", {"format_version": FORMAT_VERSION, **meta})
        run = Run(directory=directory, log_path=folder / f"{directory.name}.log")
        run.log_path.touch()
        _link_latest(run.log_path)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return run


@contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Hold the lock of a model directory, so that explorers which start together find each other's run.

    Raises:
        EngineError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with locked(folder / ".lock"):
        yield


def find_runs(folder: Path) -> list[Run]:
    """The runs under a model directory, newest first."""
    directories = sorted((path for path in folder.glob("run_*") if (path / "meta.json").is_file()), reverse=True)
    return [Run(directory=path, log_path=folder / f"{path.name}.log") for path in directories]


def open_run(path: Path) -> Run:
    """The run that a user names: its directory, its log, the `latest` link, or a model directory (its newest run).

    Raises:
        UserInputError: There is no run.
    """
    target = path.resolve()
    if target.suffix == ".log":
        target = target.with_suffix("")
    if (target / "meta.json").is_file():
        return Run(directory=target, log_path=target.with_name(f"{target.name}.log"))
    runs = find_runs(target)
    if not runs:
        raise UserInputError(f"{path} is not a run of bexplore", hint="name a run_<timestamp> folder, or its parent")
    return runs[0]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """A line for each fact that differs between what two runs explored; empty where one may stand for the other.

    Compared are `job`, `environment` and `search_specification` of their `meta.json`, as text, so that a file and a
    live object compare equal. The folder of the configuration is left out: the same job in another checkout is the same
    job.
    """
    old, new = _deciding_facts(before), _deciding_facts(after)
    return tuple(
        f"{name.partition('.')[2]}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def _deciding_facts(meta: Mapping[str, Any]) -> dict[str, str]:
    """Dotted names of what decides a run, and their values as text."""
    facts: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(f"{prefix}.{name}", inner)
        elif isinstance(value, Mapping):
            return  # nothing in it decides anything
        elif isinstance(value, list | tuple):
            facts[prefix] = ", ".join(map(str, value))
        else:
            facts[prefix] = str(value)

    for part in ("job", "environment", "search_specification"):
        kept = dict(meta.get(part, {}))
        kept.pop("import_root", None)
        walk(part, kept)
    return facts


def _unwritable(folder: Path, error: OSError) -> EngineError:
    return EngineError(
        f"cannot write the run directory under {folder}: {error.strerror}", hint="choose another with --model-dir"
    )


def _make_unused(folder: Path, stem: str) -> Path:
    """Two runs may start within one second: the second gets a suffix."""
    for number in range(1, 1000):
        directory = folder / (stem if number == 1 else f"{stem}_{number:03d}")
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return directory
    raise EngineError(f"no free name for a run under {folder}", hint="remove old runs there")


def _link_latest(log_path: Path) -> None:
    link = log_path.with_name("latest")
    temporary = link.with_name(f".latest.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(log_path.name)
    temporary.replace(link)
