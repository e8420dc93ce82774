"""What a profile of a few steps shows: its regions, its longest kernels and operators, and how busy the device was.

Read from a Chrome trace, the format of `torch.profiler` and of Perfetto. Times in it are microseconds.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Regions that the profiled steps are marked with.
STEP, BATCH, PASS, UPDATE = "step", "make batch", "forward and backward", "update"
REGIONS = (STEP, BATCH, PASS, UPDATE)
PREFIX = "bexplore: "
NUM_TOP = 12  # kernels and operators that are listed. Source: a choice of presentation: they fill a small table
# Names of kernels and operators that multiply matrices, convolve or attend. Source: names of cuBLAS, CUTLASS, cuDNN and
# Triton templates, and of ATen's operators.
_MATRIX = (
    *("gemm", "cutlass", "cublas", "sm80_", "sm90_", "nvjet", "conv", "attention", "flash", "fmha", "wgrad", "dgrad"),
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn", "triton_tem", "mkl::"),
)
_COLLECTIVE = ("nccl", "gloo:", "c10d::")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledKernel:
    """A kernel or an operator of the profiled steps.

    Attributes:
        name: Of it.
        num_calls: In a step.
        self_s: Seconds of a step that it takes itself, without what it calls.
        share: Of the time of all of them, 0 to 1.
    """

    name: str
    num_calls: float
    self_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a profile shows. Times are seconds of one step.

    Attributes:
        micro_batch_size: Samples of a pass.
        num_steps: Steps that were profiled.
        passes_per_step: Passes of each of them.
        regions_s: Median seconds of each region in a step, by name.
        top: Kernels on an accelerator, operators on a CPU, those that take longest first.
        is_on_device: Whether they are kernels of an accelerator.
        busy_share: Share of the step, 0 to 1, in which the accelerator computes or copies; None on a CPU.
        num_kernels: Kernels of a step; None on a CPU.
        median_kernel_s: Their median seconds; None likewise.
        matrix_share: Share of the time of `top` and all others that multiplies matrices, convolves or attends.
        collective_share: Share of the step in which the accelerator does nothing but communicate; None on a CPU.
        copy_share: Share of the step in which it does nothing but copy from the host; None on a CPU.
        peak_bytes: Most bytes that were allocated at a time; None if unknown.
        trace_path: The Chrome trace.
        memory_path: The memory snapshot (CUDA) or timeline (CPU); None for none.
    """

    micro_batch_size: int
    num_steps: int
    passes_per_step: int
    regions_s: Mapping[str, float]
    top: tuple[ProfiledKernel, ...]
    is_on_device: bool
    busy_share: float | None
    num_kernels: float | None
    median_kernel_s: float | None
    matrix_share: float | None
    collective_share: float | None
    copy_share: float | None
    peak_bytes: int | None
    trace_path: str
    memory_path: str | None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Profile:
        """Rebuild a profile from `dataclasses.asdict`.

        Raises:
            TypeError, KeyError: The record has another form.
        """
        return cls(**{**record, "top": tuple(ProfiledKernel(**one) for one in record["top"])})


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace."""
    data = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return events


def profile_of(
    events: Sequence[Mapping[str, Any]],
    *,
    micro_batch_size: int,
    num_steps: int,
    passes_per_step: int,
    trace_path: str,
    memory_path: str | None,
) -> Profile:
    """Return what the events of a trace show.

    Args:
        events: Of a Chrome trace.
        micro_batch_size: As of `Profile`, and so the others.
    """
    regions = _regions(events)
    steps_s = sum(regions[STEP])
    on_device = [event for event in events if event.get("cat") in _ON_DEVICE]
    kernels = [event for event in on_device if event["cat"] == "kernel"]
    self_us = _self_times(kernels) if kernels else _self_times_of_operators(events)
    return Profile(
        micro_batch_size=micro_batch_size,
        num_steps=num_steps,
        passes_per_step=passes_per_step,
        regions_s={name: sum(times) / num_steps for name, times in regions.items() if times},
        top=_top(self_us, num_steps),
        is_on_device=bool(kernels),
        busy_share=_union_s(on_device) / steps_s if kernels and steps_s else None,
        num_kernels=len(kernels) / num_steps if kernels else None,
        median_kernel_s=statistics.median(event["dur"] for event in kernels) / 1e6 if kernels else None,
        matrix_share=_share_of(self_us, _MATRIX),
        collective_share=_alone(on_device, kernels, steps_s, _is_collective),
        copy_share=_alone(on_device, kernels, steps_s, _is_copy),
        peak_bytes=max((one["total_bytes"] for one in memory_timeline(events)), default=None),
        trace_path=trace_path,
        memory_path=memory_path,
    )


def memory_timeline(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return allocations and frees in order: seconds since the first, bytes, and all bytes after it."""
    found = sorted(
        (event["ts"], event["args"]["Bytes"], event["args"]["Total Allocated"])
        for event in events
        if event.get("name") == "[memory]"
    )
    return [
        {"time_s": (time_us - found[0][0]) / 1e6, "bytes": num_bytes, "total_bytes": total}
        for time_us, num_bytes, total in found
    ]


def _regions(events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the seconds of each marked region, on the host."""
    found: dict[str, list[float]] = {name: [] for name in REGIONS}
    for event in events:
        name = str(event.get("name", "")).removeprefix(PREFIX)
        if event.get("cat") == "user_annotation" and name in found:
            found[name].append(event["dur"] / 1e6)
    return found


def _self_times(events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the microseconds of each call by name, of events that do not nest."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        found[event["name"]].append(event["dur"])
    return found


def _self_times_of_operators(events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the microseconds of each call of an operator by name, without the operators that it calls."""
    by_thread: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op" and "dur" in event:
            by_thread[event.get("tid")].append(event)
    found: dict[str, list[float]] = defaultdict(list)
    for of_thread in by_thread.values():
        open_calls: list[tuple[float, str, int]] = []  # end, name and place in `found` of the calls around the present
        for event in sorted(of_thread, key=lambda one: (one["ts"], -one["dur"])):
            while open_calls and open_calls[-1][0] <= event["ts"]:
                open_calls.pop()
            if open_calls:
                _, caller, place = open_calls[-1]
                found[caller][place] -= event["dur"]
            open_calls.append((event["ts"] + event["dur"], event["name"], len(found[event["name"]])))
            found[event["name"]].append(event["dur"])
    return found


def _top(self_us: Mapping[str, Sequence[float]], num_steps: int) -> tuple[ProfiledKernel, ...]:
    total = sum(map(sum, self_us.values())) or 1.0
    longest = sorted(self_us.items(), key=lambda item: -sum(item[1]))[:NUM_TOP]
    return tuple(
        ProfiledKernel(
            name=name,
            num_calls=len(times) / num_steps,
            self_s=sum(times) / num_steps / 1e6,
            share=sum(times) / total,
        )
        for name, times in longest
    )


def _share_of(self_us: Mapping[str, Sequence[float]], words: Sequence[str]) -> float | None:
    total = sum(map(sum, self_us.values()))
    named = sum(sum(times) for name, times in self_us.items() if any(word in name.lower() for word in words))
    return named / total if total else None


def _alone(
    on_device: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]], steps_s: float, is_kind: Any
) -> float | None:
    """Return the share of the step in which only events of a kind are on the device."""
    if not kernels or not steps_s:
        return None
    others = [event for event in on_device if not is_kind(event)]
    return (_union_s(on_device) - _union_s(others)) / steps_s


def _is_collective(event: Mapping[str, Any]) -> bool:
    return any(word in event["name"].lower() for word in _COLLECTIVE)


def _is_copy(event: Mapping[str, Any]) -> bool:
    return bool(event["cat"] == "gpu_memcpy" and "HtoD" in event["name"])


def _union_s(events: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds in which at least one of some events runs."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e6
