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

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError, UserInputError
from bexplore.job import Mode
from bexplore.locks import lock_handle, locked
from bexplore.probe import Observation

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


class Journal:
    """Observations, one JSON object a line, in the order in which they were made.

    A last line that is cut short, as power loss or a kill leaves it, is not an observation: it is skipped when reading
    and replaced by the next append. Any other damage is an error, and nothing is written to a damaged journal. Several
    explorers may append to one journal: the file itself is their lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Observation]:
        """All whole observations; empty where there is no journal yet.

        Raises:
            UserInputError: A line that is not the last one cannot be read.
        """
        observations = []
        lines = self._whole_lines()
        for number, line in enumerate(lines, start=1):
            try:
                observations.append(Observation.from_dict(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserInputError(
                    f"{self.path}:{number}: this is not an observation: {error!r}",
                    hint="restore the file, or start over with --fresh; nothing was overwritten",
                ) from error
        return observations

    def append(self, observation: Observation) -> None:
        """Write one observation through to the disk; when this returns, it is not lost.

        Raises:
            EngineError: The disk is full, read-only or gone.
        """
        record = json.dumps(observation.as_dict(), allow_nan=True) + "\n"
        try:
            with self.path.open("ab") as handle:
                lock_handle(handle, self.path)
                handle.truncate(self._whole_bytes())
                handle.write(record.encode())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise EngineError(
                f"cannot append to {self.path}: {error.strerror}",
                hint="make room or make the folder writable, then run the same command again: it goes on from here",
            ) from error

    def _whole_bytes(self) -> int:
        """Bytes up to the end of the last line that is whole."""
        return _end_of_whole_lines(self._data())

    def _whole_lines(self) -> list[bytes]:
        data = self._data()
        return data[: _end_of_whole_lines(data)].splitlines()

    def _data(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserInputError(f"cannot read {self.path}: {error.strerror}", hint="check its permissions") from error


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

    Compared are `job`, `environment` and `question` of their `meta.json`, as text, so that a file and a live object
    compare equal. The folder of the configuration is left out: the same job in another checkout is the same job.
    """
    old, new = _deciding_facts(before), _deciding_facts(after)
    return tuple(
        f"{name.partition('.')[2]}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        UserInputError: The file is missing, unreadable or holds something else.
    """
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserInputError(
            f"cannot read {path}: {error}", hint="restore the file, or start over with --fresh"
        ) from error
    if not isinstance(value, dict):
        raise UserInputError(f"{path}: expected a JSON object", hint="restore the file, or start over with --fresh")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file in one step: a reader sees the old one or the new one, whole.

    Raises:
        EngineError: The disk is full or read-only; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as handle:
            json.dump(value, handle, indent=1, default=str)
            handle.write("\n")
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise EngineError(
            f"cannot write {path}: {error.strerror}",
            hint="make room or make the folder writable, then run the same command again: nothing finished is repeated",
        ) from error


def _end_of_whole_lines(data: bytes) -> int:
    """A line that power loss left as zeros ends in none, or in what belongs to no line: neither was ever believed."""
    end = data.rfind(b"\n") + 1
    start_of_last = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    return start_of_last if b"\0" in data[start_of_last:end] else end


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

    for part in ("job", "environment", "question"):
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
