"""The run directory, from whose journal everything else can be rebuilt.

local_compile_train/<model_dir>/
    run_<timestamp>.log         the streamed lines, for people
    latest                      link to the newest of them
    run_<timestamp>/
        meta.json               job, environment and settings
        journal.jsonl           one observation a line: append, fsync, then use
        study.log               Optuna's own storage
        trace.json              the cost model
        variants.json           the settings that are searched together, each with its trace; absent for one variant
        result.json             the result, each replaced by the next in one step; absent before the first
        error.json              why there is no result: nothing fits, or the program is broken
        profile.json            what a profile of its steps shows (bexplore probe --profile)
        network.json            speeds between the devices (bexplore network RUN)
        events.jsonl log.jsonl workers/
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError, UserInputError
from bexplore.host.json_files import read_json, write_json
from bexplore.host.locks import locked
from bexplore.host.records import from_record
from bexplore.host.secret_values import hidden, hidden_record
from bexplore.job import Job, Mode
from bexplore.measurement.profile import Profile
from bexplore.run.journal import Journal
from bexplore.run.parts.search import LIMITS
from bexplore.run.result import RunResult
from bexplore.run.selection import Selection
from bexplore.trace.cost_model import CostModel
from bexplore.units import counted

FORMAT_VERSION = 1
PRIVATE = 0o700  # mode of a folder for the user alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One exploration on disk."""

    directory: Path  # holds everything but the log for people
    log_path: Path  # the log for people, `run_<timestamp>.log`, beside the directory

    @property
    def journal(self) -> Journal:
        """Return the observations of this run."""
        return Journal(self.directory / "journal.jsonl")

    def meta(self) -> dict[str, Any]:
        """Read the job, the environment and the settings; secrets are masked.

        Raises:
            UserInputError: The file is missing or damaged.
        """
        return dict(hidden_record(read_json(self.directory / "meta.json"), by_value=False))  # of before, unmasked

    def result(self) -> RunResult | None:
        """Read the result, with a warning of later probes; None before the first.

        Raises:
            UserInputError: The file is damaged.
        """
        path = self.directory / "result.json"
        if not path.exists():
            return None
        result = RunResult.from_record(read_json(path))
        return dataclasses.replace(result, warnings=(*result.warnings, *self.warn_of_later_probes(result)))

    def warn_of_later_probes(self, result: RunResult) -> tuple[str, ...]:
        """Return a warning where the run has gone on after a result, and has not ended again; else nothing."""
        later = self.journal.count() - (result.search.num_probes or 0)
        if later <= 0:
            return ()
        goes_on = f"bexplore explore {self.meta().get('typed', '')}".strip()
        return (f"{counted(later, 'probe')} ran after this answer and changed nothing in it yet: {goes_on} goes on",)

    @property
    def lock_path(self) -> Path:
        """Return the file to lock while the study of this run is rebuilt from its journal."""
        return self.directory / ".lock"

    @property
    def can_be_resumed(self) -> bool:
        """Whether this user may go on with it; another user's can be read at most."""
        return os.access(self.directory, os.W_OK | os.X_OK, effective_ids=True)

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error that a corrected program or another budget would avoid."""
        return (self.directory / "error.json").exists()

    def write_error(self, message: str, *, hint: str = "") -> None:
        """Store why there is no result, and what to do; such a run is not resumed."""
        write_json(self.directory / "error.json", {"message": hidden(message), "hint": hidden(hint)})

    def error(self) -> tuple[str, str]:
        """Read why there is no result, and what to do about it; empty texts where it has not failed."""
        record = read_json(self.directory / "error.json") if self.has_failed else {}
        return str(record.get("message", "")), str(record.get("hint", ""))

    def remember_trace(self, cost_model: Mapping[str, Any]) -> bool:
        """Store the trace; return False, and store nothing, if the run has the trace of another program."""
        path = self.directory / "trace.json"
        if path.exists():
            return bool(read_json(path).get("fingerprint") == cost_model["fingerprint"])
        write_json(path, cost_model)
        return True

    def remember_variants(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Store the variants of the search, once; return those that are stored."""
        path = self.directory / "variants.json"
        if not path.exists():
            write_json(path, record)
        return read_json(path)

    def variants(self) -> dict[str, Any] | None:
        """Return the stored variants of the search; None for a job with one."""
        path = self.directory / "variants.json"
        return read_json(path) if path.exists() else None

    def remember_profile(self, profile: Profile) -> None:
        """Store what the last profile of the job's steps shows."""
        write_json(self.directory / "profile.json", dataclasses.asdict(profile))

    def profile(self) -> Profile | None:
        """Return what the last profile shows; None where there is none.

        Raises:
            UserInputError: The file is damaged.
        """
        path = self.directory / "profile.json"
        if not path.exists():
            return None
        try:
            return from_record(Profile, read_json(path))
        except (KeyError, TypeError) as error:
            raise UserInputError(
                f"{path} is not a profile: {error}", hint="remove it, or make it again by bexplore probe --profile"
            ) from error

    def job_of_answer(self) -> dict[str, Any] | None:
        """Return the job with the settings of the result, as the file would have it; None where it has its own."""
        result = self.result()
        if result is None or not result.choice.variant:
            return None
        variants = self.meta().get("variants", [])
        return next((one["job"] for one in variants if one["settings"] == dict(result.choice.settings)), None)

    def write_result(self, result: RunResult) -> None:
        """Store the result, in place of an earlier one."""
        write_json(self.directory / "result.json", result.as_record())


def model_directory(mode: Mode, model_dir: str) -> Path:
    """Return `local_compile_<mode>/<model_dir>`; a model directory with a parent keeps its parent."""
    path = Path(model_dir)
    return path.parent / f"local_compile_{mode}" / (path.name or "model_dir")


def create_run(folder: Path, *, meta: Mapping[str, Any], now: datetime, is_private: bool = False) -> Run:
    """Create a run directory, its log and the `latest` link.

    Args:
        folder: The model directory.
        meta: The content of `meta.json`.
        now: The time that names it.
        is_private: Whether nobody but the user may read it: it will hold an environment and what a training prints.

    Raises:
        EngineError: The folder cannot be written.
    """
    stem = f"run_{now.astimezone(UTC):%Y%m%d_%H%M%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        directory = _make_unused(folder, stem, mode=PRIVATE if is_private else 0o777)
        write_json(directory / "meta.json", {"format_version": FORMAT_VERSION, **meta})
        run = Run(directory=directory, log_path=folder / f"{directory.name}.log")
        run.log_path.touch(mode=0o600 if is_private else 0o666)
        _link_latest(run.log_path)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return run


def program_of_answer(
    run: Run, meta: Mapping[str, Any], result: RunResult
) -> tuple[Job, CostModel | None, tuple[str, ...]]:
    """Return the job of a run's answer, its trace, and the names of all variants.

    Args:
        meta: Of the run.
        result: Of the run, or its last recommendation.
    """
    stored = run.variants()
    selection = Selection() if stored is None else from_record(Selection, stored)
    if not selection.is_plain:
        chosen = selection.searched[result.choice.variant]
        return chosen.job, chosen.cost_model, tuple(one.name for one in selection.searched)
    trace = run.directory / "trace.json"
    return from_record(Job, meta["job"]), from_record(CostModel, read_json(trace)) if trace.exists() else None, ()


@contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Hold the lock of a model directory, so that explorations which start together share a run.

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
    """List the runs under a model directory that this user can read, newest first."""
    directories = sorted((path for path in folder.glob("run_*") if _is_run(path)), reverse=True)
    return [Run(directory=path, log_path=folder / f"{path.name}.log") for path in directories]


def open_run(path: Path) -> Run:
    """Open the run that a user names: its directory, its log, `latest`, or a model directory for its newest run.

    Raises:
        UserInputError: There is no run.
    """
    target = path.resolve()
    if target.suffix == ".log":
        target = target.with_suffix("")
    if _is_run(target):
        return Run(directory=target, log_path=target.with_name(f"{target.name}.log"))
    runs = find_runs(target)
    if not runs:
        is_open = not target.is_dir() or os.access(target, os.R_OK | os.X_OK, effective_ids=True)
        what = "is not a run of bexplore" if is_open else "belongs to another user, who has closed it"
        makes = f"bexplore explore {shlex.quote(str(path))} makes its runs: " if target.is_file() else ""
        raise UserInputError(f"{path} {what}", hint=f"{makes}name a run_<timestamp> folder, or its parent")
    return runs[0]


def _is_run(directory: Path) -> bool:
    """Return whether a folder is a run; False for one that another user has closed."""
    try:
        return (directory / "meta.json").is_file() and os.access(directory / "meta.json", os.R_OK, effective_ids=True)
    except OSError:
        return False


_COMMAND = "job.model.command"
_OF_LIMITS = {f"search_specification.settings.{name}" for name in LIMITS.values()}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """List the differences between two runs, a line each; empty where one may replace the other.

    `job`, `environment` and `search_specification` of their `meta.json` are compared as text, so that a file and a live
    object compare equal. The folder of the configuration is ignored: the same job in another checkout is the same job.
    So are the limits of the search, which goes on with larger ones. Of another training command the words alone are
    listed: its file and code differ with it.
    """
    old, new = _deciding_values(before), _deciding_values(after)
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    lines = (
        f"{name.partition('.')[2]}: {_describe_change(old.get(name, 'absent'), new.get(name, 'absent'))}"
        for name in ([_COMMAND] if _COMMAND in names else names)
    )
    return tuple(dict.fromkeys(lines))  # the replicas are of the job and of the search


def _describe_change(old: str | tuple[str, ...], new: str | tuple[str, ...]) -> str:
    """Return what became of a value; of two lists the words that differ, each behind its option."""
    if isinstance(old, str) or isinstance(new, str):
        shown = (one if isinstance(one, str) else ", ".join(one) for one in (old, new))
        return " -> ".join(shown)
    changes = []
    for kind, begin, end, new_begin, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        has_option = kind == "replace" and begin > 0 and old[begin - 1].startswith("-")
        words = (old[begin - has_option : end], new[new_begin - has_option : new_end])
        changes.append(" -> ".join(" ".join(one) or "nothing" for one in words))
    return "; ".join(changes)


def _deciding_values(meta: Mapping[str, Any]) -> dict[str, str | tuple[str, ...]]:
    """Return the values that decide a run, as text or as a list of texts, by dotted name."""
    values: dict[str, str | tuple[str, ...]] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(f"{prefix}.{name}", inner)
        elif isinstance(value, Mapping):
            return  # an empty mapping decides nothing
        elif isinstance(value, list | tuple):
            values[prefix] = tuple(map(str, value))
        else:
            values[prefix] = str(value)

    for part in ("job", "environment", "search_specification"):
        kept = dict(hidden_record(meta.get(part, {}), by_value=False))  # a run of before may hold secrets
        kept.pop("import_root", None)
        walk(part, kept)
    return {name: text for name, text in values.items() if name not in _OF_LIMITS}


def _unwritable(folder: Path, error: OSError) -> EngineError:
    return EngineError(
        f"cannot write the run directory under {folder}: {error.strerror}", hint="choose another with `model_dir`"
    )


def _make_unused(folder: Path, stem: str, *, mode: int) -> Path:
    """Create a directory with an unused name: the second run of one second gets a suffix."""
    for number in range(1, 1000):
        directory = folder / (stem if number == 1 else f"{stem}_{number:03d}")
        try:
            directory.mkdir(mode)
        except FileExistsError:
            continue
        return directory
    raise EngineError(f"no free name for a run under {folder}", hint="remove old runs there")


def _link_latest(log_path: Path) -> None:
    link = log_path.with_name("latest")
    temporary = link.with_name(f".latest.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(log_path.name)
    try:
        temporary.replace(link)
    except PermissionError:  # another user's, in a folder whose files only their owners replace
        temporary.unlink()
