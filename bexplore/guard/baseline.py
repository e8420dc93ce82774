"""`Baseline`: one readable JSON file in the user's repository, which later runs are compared with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError, UserInputError
from bexplore.host.json_files import parse_json
from bexplore.trace.program_metrics import ProgramMetrics

FORMAT_VERSION = 1
_SHORT_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
_LINE_BREAK = re.compile(r",\s*\n\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """Passes of one size in one worker process.

    Attributes:
        micro_batch_size: Samples of a pass.
        pass_times_s: Wall seconds of each pass, in order.
        cpu_time_s: Processor seconds of the worker for all of them.
    """

    micro_batch_size: int
    pass_times_s: tuple[float, ...]
    cpu_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The facts of a program, its machine and its times.

    Attributes:
        config: Name of the configuration's file.
        job: The job, as `Job.as_record`.
        job_fingerprint: Sixteen hexadecimal digits of the job.
        toolchain: Versions by package, with `torch`.
        machine: Properties that decide where planned memory, kernels and times may be compared.
        any_device: Facts of the program traced for the CPU, which every machine can do.
        device: Facts of the program traced for the job's own device; None where that is the CPU.
        recommended_micro_batch_size: The guarded size; None if unknown.
        base_micro_batch_size: The size that its speed is relative to; None if unknown.
        memory_budget_bytes: The budget that the configuration declares; None for none.
        times: Passes by worker process.
        created_at: Time of writing, ISO 8601.
        settings: Of the job beside those of its file, by key of `explore.settings`; empty for the file's own.
    """

    config: str
    job: Mapping[str, Any]
    job_fingerprint: str
    toolchain: Mapping[str, str]
    machine: Mapping[str, Any]
    any_device: ProgramMetrics
    device: ProgramMetrics | None = None
    recommended_micro_batch_size: int | None = None
    base_micro_batch_size: int | None = None
    memory_budget_bytes: int | None = None
    times: tuple[tuple[SizeTimes, ...], ...] = field(default=())
    created_at: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that `from_record` turns back into an equal baseline."""
        return {
            "format_version": FORMAT_VERSION,
            "config": self.config,
            "created_at": self.created_at,
            "job_fingerprint": self.job_fingerprint,
            "recommended_micro_batch_size": self.recommended_micro_batch_size,
            "base_micro_batch_size": self.base_micro_batch_size,
            "memory_budget_bytes": self.memory_budget_bytes,
            "toolchain": dict(self.toolchain),
            "machine": dict(self.machine),
            "job": dict(self.job),
            "any_device": self.any_device.as_record(),
            "device": self.device.as_record() if self.device else None,
            "times": [[_times_as_dict(one) for one in worker] for worker in self.times],
            **({"settings": dict(self.settings)} if self.settings else {}),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Baseline:
        """Rebuild a baseline from `as_record`.

        Raises:
            KeyError, TypeError, ValueError: The record is no baseline.
        """
        values = {name: value for name, value in record.items() if name != "format_version"}
        values["any_device"] = ProgramMetrics.from_record(values["any_device"])
        values["device"] = ProgramMetrics.from_record(values["device"]) if values.get("device") else None
        values["times"] = tuple(tuple(_times_of_dict(one) for one in worker) for worker in values.get("times", ()))
        values.setdefault("settings", {})
        for name in ("job", "toolchain", "machine", "settings"):
            values[name] = dict(values[name])
        for name in ("recommended_micro_batch_size", "base_micro_batch_size", "memory_budget_bytes"):
            if values.get(name) is not None and not (isinstance(values[name], int) and values[name] > 0):
                raise TypeError(f"{name} is not a positive number: {values[name]!r}")
        return cls(**values)


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UserInputError: It is missing, unreadable, of another format version, or not a baseline.
    """
    renew = f"write a new one with: bexplore guard CONFIG --baseline {path} --update"
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


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline file, with the numbers of a list on one line, so that its changes can be reviewed.

    Raises:
        EngineError: The file cannot be written.
    """
    text = json.dumps(baseline.as_record(), indent=1)
    text = _SHORT_LIST.sub(lambda match: "[" + _LINE_BREAK.sub(", ", match[1]) + "]", text)
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n")
        temporary.replace(path)
    except OSError as error:
        raise EngineError(f"cannot write the baseline {path}: {error.strerror}", hint="check the folder") from error


def _times_as_dict(times: SizeTimes) -> dict[str, Any]:
    return {
        "micro_batch_size": times.micro_batch_size,
        "pass_times_s": [round(seconds, 7) for seconds in times.pass_times_s],
        "cpu_time_s": round(times.cpu_time_s, 6),
    }


def _times_of_dict(record: Mapping[str, Any]) -> SizeTimes:
    seconds = tuple(float(value) for value in record["pass_times_s"])
    if not seconds:
        raise ValueError("a size without times")
    return SizeTimes(
        micro_batch_size=int(record["micro_batch_size"]),
        pass_times_s=seconds,
        cpu_time_s=float(record["cpu_time_s"]),
    )
