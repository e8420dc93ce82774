"""`Baseline`: one readable JSON file in the user's repository, which later runs are compared with."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError, UserInputError
from bexplore.host.json_files import parse_json, replace_file
from bexplore.host.records import from_record, to_record
from bexplore.trace.program_metrics import ProgramMetrics

FORMAT_VERSION = 1
_SHORT_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
_LINE_BREAK = re.compile(r",\s*\n\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """Passes of one size in one worker process."""

    micro_batch_size: int  # samples of a pass
    pass_times_s: tuple[float, ...]  # wall seconds of each pass, in order
    cpu_time_s: float  # processor seconds of the worker for all of them

    def __post_init__(self) -> None:
        if not self.pass_times_s:
            raise ValueError("a size without times")

    def as_record(self) -> dict[str, Any]:
        """Return it for a baseline, with as many digits as the noise of times leaves."""
        return {
            "micro_batch_size": self.micro_batch_size,
            "pass_times_s": [round(seconds, 7) for seconds in self.pass_times_s],
            "cpu_time_s": round(self.cpu_time_s, 6),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SizeTimes:
        """Rebuild it from `as_record`."""
        return from_record(cls, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The facts of a program, its machine and its times, in the order of the file."""

    config: str  # name of the configuration's file
    created_at: str = ""  # time of writing, ISO 8601
    job_fingerprint: str  # sixteen hexadecimal digits of the job
    recommended_micro_batch_size: int | None = None  # the guarded size; None if unknown
    base_micro_batch_size: int | None = None  # the size that its speed is relative to; None if unknown
    memory_budget_bytes: int | None = None  # the budget that the configuration declares; None for none
    toolchain: Mapping[str, str]  # versions by package, with `torch`
    machine: Mapping[str, Any]  # properties that decide where planned memory, kernels and times may be compared
    job: Mapping[str, Any]  # the job, as `Job.as_record`
    any_device: ProgramMetrics  # facts of the program traced for the CPU, which every machine can do
    # Facts of the program traced for the job's own device; None where that is the CPU.
    device: ProgramMetrics | None = None
    times: tuple[tuple[SizeTimes, ...], ...] = ()  # passes by worker process
    # Of the job beside those of its file, by key of `explore.settings`; empty for the file's own.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that `from_record` turns back into an equal baseline."""
        record = {"format_version": FORMAT_VERSION} | to_record(self)
        return record if self.settings else {name: value for name, value in record.items() if name != "settings"}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Baseline:
        """Rebuild a baseline from `as_record`; KeyError, TypeError or ValueError where the record is none."""
        for name in ("recommended_micro_batch_size", "base_micro_batch_size", "memory_budget_bytes"):
            value = record.get(name)
            if value is not None and not (isinstance(value, int) and value > 0):
                raise TypeError(f"{name} is not a positive number: {value!r}")
            _check_finite(value)
        for name in ("any_device", "device", "times"):  # the job may have infinite values of the user's
            _check_finite(record.get(name))
        return from_record(cls, {name: value for name, value in record.items() if name != "format_version"})


def _check_finite(value: Any) -> None:
    """Raise ValueError where a number of a JSON value is infinite, none, or above what a float holds."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_finite(item)
    elif isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError(f"{value:.3g} is no finite number" if isinstance(value, float) else "an integer is too large")


def read_baseline(path: Path, *, typed: str) -> Baseline:
    """Read a baseline file; `typed` is the user's configuration with its options, quoted for a shell."""
    renew = f"write a new one with: bexplore guard {typed} --baseline {shlex.quote(str(path))} --update"
    try:
        record = parse_json(path.read_text())
    except OSError as error:
        raise UserInputError(f"cannot read the baseline {path}: {error.strerror}", hint=renew) from error
    except ValueError as error:
        raise UserInputError(f"{path} is not JSON: {error}", hint=f"restore the file, or {renew}") from error
    if not isinstance(record, dict) or "any_device" not in record:
        raise UserInputError(f"{path} is not a baseline of bexplore guard", hint=renew)
    if record.get("format_version") != FORMAT_VERSION:
        version = record.get("format_version")
        raise UserInputError(
            f"{path} has format version {version!r}; this bexplore reads version {FORMAT_VERSION}", hint=renew
        )
    try:
        return Baseline.from_record(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserInputError(f"{path} is damaged: {error!r}", hint=f"restore the file, or {renew}") from error


def check_can_write(path: Path) -> None:
    """Refuse a baseline file that could not be written, before minutes of work go into it."""
    above = next(one for one in (path, *path.absolute().parents) if os.access(one, os.F_OK))
    if path.is_dir() or not (above.is_dir() or above == path) or not os.access(above, os.W_OK, effective_ids=True):
        what = "it is a folder" if path.is_dir() else f"{above} is a file" if above.is_file() else f"{above} is closed"
        raise UserInputError(f"the baseline {path} cannot be written: {what}", hint="name a file: `baseline_path=FILE`")


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline file, with the numbers of a list on one line, so that its changes can be reviewed."""
    text = json.dumps(baseline.as_record(), indent=1)
    text = _SHORT_LIST.sub(lambda match: "[" + _LINE_BREAK.sub(", ", match[1]) + "]", text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode())
    except OSError as error:
        raise EngineError(f"cannot write the baseline {path}: {error.strerror}", hint="check the folder") from error
