"""What a profile of a few steps shows: its regions, its longest kernels and operators, and how busy the device was.

Read from a Chrome trace, the format of `torch.profiler` and of Perfetto. Times in it are microseconds. Of the steps the
fastest counts: what other programs took from the machine makes a step longer and never shorter.
"""

from __future__ import annotations

import gzip
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.host.json_files import parse_json

# Regions that the profiled steps are marked with, and the two halves of a pass, which autograd's own events tell apart.
STEP, BATCH, PASS, UPDATE = "step", "make batch", "forward and backward", "update"
FORWARD, BACKWARD = "forward", "backward"
MARKED = (STEP, BATCH, PASS, UPDATE)
REGIONS = (STEP, BATCH, PASS, FORWARD, BACKWARD, UPDATE)
PREFIX = "bexplore: "
NUM_TOP = 12  # kernels and operators that are listed. Source: a choice of presentation: they fill a small table
# Kernels and operators that multiply matrices, convolve or attend. Source: names of cuBLAS, CUTLASS, cuDNN, hipBLASLt
# (Cijk_), MIOpen and Triton templates, and of ATen's and oneDNN's operators. `conv` ends there or before a digit or a
# mark: `convert_element_type` is none.
_MATRIX = re.compile(
    r"gemm|gemv|^cijk_|cutlass|cublas|nvjet|xmma|wgrad|dgrad|fprop|winograd|convolve|conv(?:olution)?(?![a-z])|"
    r"attention|flash|fmha|triton_tem|triton_b?mm|^mkl::|^mkldnn::_linear|"
    r"^aten::(?:_scaled_|_int_|_weight_int\dpack_)?(?:mm|addmm|bmm|baddbmm|matmul|linear|mv|addmv)(?:_|$)"
)
# Inductor names a fused kernel after all that it fuses, also after products that ran before it.
_FUSED = re.compile(r"^triton_(?:poi|red|per|for|spl)_|(?:^|_)cpp_fused_")
_COLLECTIVE = ("nccl", "gloo:", "c10d::", "c10d_functional")
_GLOO = "gloo:"
_BACKWARD = "autograd::engine::evaluate_function"
# Operators that run other operators and hooks, in which a rank may wait for its collectives.
_WRAPPERS = (_BACKWARD, "DistributedDataParallel.forward", "record_param_comms")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# Bytes of an element, by the names that operators and NCCL's kernels give its type. Source: c10's ScalarType.
_ELEMENT_BYTES = {
    **{"float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "half": 2, "bfloat16": 2, "long": 8, "int": 4},
    **{"long int": 8, "unsigned char": 1, "byte": 1, "char": 1, "bool": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledCollective:
    """Collectives of one kind and size in a step."""

    name: str  # `all_reduce`, `reduce_scatter` or `all_gather`: what the library ran
    num_bytes: int  # of the tensor that each of them was given
    num_calls: int  # in the step
    is_part: bool  # whether the bytes are those of one rank's part, and not of the whole tensor
    self_s: float  # seconds of the step that they were under way, waiting for other ranks included


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledKernel:
    """A kernel or an operator of the profiled steps."""

    name: str
    num_calls: float  # in a step
    self_s: float  # seconds of a step that it takes itself, without what it calls
    share: float  # of the time of all of them, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a profile shows. Times are those of the fastest step, seconds."""

    micro_batch_size: int  # samples of a pass
    num_steps: int
    passes_per_step: int  # passes of each of them
    # Seconds of each region on the host, by name; the backward half of a pass begins with its first gradient, and holds
    # the waiting for reduced ones.
    regions_s: Mapping[str, float]
    top: tuple[ProfiledKernel, ...]  # kernels on an accelerator, operators on a CPU, those that take longest first
    is_on_device: bool  # whether they are kernels of an accelerator
    busy_share: float | None  # share of the step, 0 to 1, in which the accelerator computes or copies; None on a CPU
    num_kernels: float | None  # kernels of a step; None on a CPU
    median_kernel_s: float | None  # their median seconds; None likewise
    # Share of the time of `top` and all others that multiplies matrices, convolves or attends.
    matrix_share: float | None
    # Share of the step in which the accelerator, or on a CPU the operators, do nothing but communicate; None on a CPU
    # without collectives.
    collective_share: float | None
    copy_share: float | None  # share of the step in which it does nothing but copy from the host; None on a CPU
    peak_bytes: int | None  # most bytes that were allocated at a time; None if unknown
    trace_path: str  # the Chrome trace
    memory_path: str | None  # the memory snapshot (CUDA) or timeline (CPU); None for none
    # Operators by the time of the kernels that they launch; empty on a CPU, where `top` has them.
    operators: tuple[ProfiledKernel, ...] = ()
    collectives: tuple[ProfiledCollective, ...] = ()  # what the ranks exchanged in the step
    step_times_s: tuple[float, ...] = ()  # seconds of each profiled step


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace."""
    data = path.read_bytes()
    events: list[dict[str, Any]] = parse_json(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return events


def read_profile(
    events: Sequence[Mapping[str, Any]],
    *,
    micro_batch_size: int,
    num_steps: int,
    passes_per_step: int,
    trace_path: str,
    memory_path: str | None,
) -> Profile:
    """Return what the events of a Chrome trace show."""
    steps = [event for event in events if _marks(event) == STEP]
    fastest = min(steps, key=lambda one: one["dur"], default=None)
    of_step = events if fastest is None else [event for event in events if _is_within(event, fastest)]
    step_s = 0.0 if fastest is None else fastest["dur"] / 1e6
    on_device = [event for event in of_step if event.get("cat") in _ON_DEVICE]
    kernels = [event for event in on_device if event["cat"] == "kernel"]
    operators_us = _self_times_of_operators(of_step)
    self_us = _self_times(kernels) if kernels else operators_us
    return Profile(
        micro_batch_size=micro_batch_size,
        num_steps=num_steps,
        passes_per_step=passes_per_step,
        regions_s=_regions(of_step),
        top=_top(self_us),
        is_on_device=bool(kernels),
        busy_share=_length_s(_union(on_device)) / step_s if kernels and step_s else None,
        num_kernels=len(kernels) if kernels else None,
        median_kernel_s=statistics.median(event["dur"] for event in kernels) / 1e6 if kernels else None,
        matrix_share=_matrix_share(self_us),
        collective_share=(
            _alone(on_device, kernels, step_s, _is_collective) if kernels else _waiting_share(of_step, step_s)
        ),
        copy_share=_alone(on_device, kernels, step_s, _is_copy),
        peak_bytes=max((one["total_bytes"] for one in memory_timeline(events)), default=None),
        trace_path=trace_path,
        memory_path=memory_path,
        operators=_top(_times_on_device(kernels, of_step)),
        collectives=_collectives(of_step),
        step_times_s=tuple(step["dur"] / 1e6 for step in steps),
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


def _marks(event: Mapping[str, Any]) -> str | None:
    """Return the region that an event marks; None for another event."""
    name = str(event.get("name", ""))
    is_mark = event.get("cat") == "user_annotation" and name.startswith(PREFIX)
    return name.removeprefix(PREFIX) if is_mark else None


def _is_within(event: Mapping[str, Any], outer: Mapping[str, Any]) -> bool:
    return "ts" in event and outer["ts"] <= event["ts"] <= outer["ts"] + outer["dur"]


def _regions(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    gradients = [event for event in events if str(event.get("name", "")).startswith(_BACKWARD)]
    for event in events:
        name = _marks(event)
        if name not in MARKED:
            continue
        found[name] += event["dur"] / 1e6
        begins = min((one["ts"] for one in gradients if _is_within(one, event)), default=math.inf)
        if name == PASS and begins < math.inf:
            found[FORWARD] += (begins - event["ts"]) / 1e6
            found[BACKWARD] += (event["ts"] + event["dur"] - begins) / 1e6
    return {name: found[name] for name in REGIONS if name in found}


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


def _times_on_device(
    kernels: Sequence[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> dict[str, list[float]]:
    """Return the microseconds of the kernels that each operator launches itself, by its name."""
    number = "External id"
    names = {
        event["args"][number]: event["name"]
        for event in events
        if event.get("cat") == "cpu_op" and number in event.get("args", {})
    }
    found: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        name = names.get(kernel.get("args", {}).get(number))
        if name is not None:
            found[name].append(kernel["dur"])
    return found


def _top(self_us: Mapping[str, Sequence[float]]) -> tuple[ProfiledKernel, ...]:
    total = sum(map(sum, self_us.values())) or 1.0
    longest = sorted(self_us.items(), key=lambda item: -sum(item[1]))[:NUM_TOP]
    return tuple(
        ProfiledKernel(name=name, num_calls=len(times), self_s=sum(times) / 1e6, share=sum(times) / total)
        for name, times in longest
    )


def is_matrix(name: str) -> bool:
    """Whether a kernel or operator multiplies matrices, convolves or attends, by its name."""
    lowered = name.lower()
    return _FUSED.search(lowered) is None and _MATRIX.search(lowered) is not None


def _matrix_share(self_us: Mapping[str, Sequence[float]]) -> float | None:
    total = sum(map(sum, self_us.values()))
    return sum(sum(times) for name, times in self_us.items() if is_matrix(name)) / total if total else None


def _alone(
    on_device: Sequence[Mapping[str, Any]],
    kernels: Sequence[Mapping[str, Any]],
    step_s: float,
    is_kind: Callable[[Mapping[str, Any]], bool],
) -> float | None:
    if not kernels or not step_s:
        return None
    others = [event for event in on_device if not is_kind(event)]
    return (_length_s(_union(on_device)) - _length_s(_union(others))) / step_s


def _waiting_share(events: Sequence[Mapping[str, Any]], step_s: float) -> float | None:
    """Return the share of the step in which gloo communicates and no operator computes; None without gloo.

    Threads of gloo communicate, which its events mark. An operator that is itself a collective waits for them.
    """
    exchanging = [event for event in events if _is_gloo(event)]
    if not exchanging or not step_s:
        return None
    threads = {event.get("tid") for event in exchanging}
    operators = [event for event in events if event.get("cat") == "cpu_op" and event.get("tid") not in threads]
    computing = [event for event in operators if not event["name"].startswith(_WRAPPERS) and not _is_collective(event)]
    waiting = _union(event for event in operators if _is_collective(event))
    busy = _subtract(_union(computing), waiting)
    return _length_s(_subtract(_union(exchanging), busy)) / step_s


def _is_gloo(event: Mapping[str, Any]) -> bool:
    return str(event.get("name", "")).startswith(_GLOO) and "dur" in event


def _is_collective(event: Mapping[str, Any]) -> bool:
    return any(word in event["name"].lower() for word in _COLLECTIVE)


def _is_copy(event: Mapping[str, Any]) -> bool:
    return bool(event["cat"] == "gpu_memcpy" and "HtoD" in event["name"])


def _collectives(events: Iterable[Mapping[str, Any]]) -> tuple[ProfiledCollective, ...]:
    """Return the collectives whose bytes the events tell: gloo's own, and NCCL's kernels."""
    found: dict[tuple[str, int, bool], list[float]] = defaultdict(list)
    for event in events:
        key = _read_gloo(event) if _is_gloo(event) else _read_nccl(event)
        if key is not None:
            found[key].append(event["dur"] / 1e6)
    return tuple(
        ProfiledCollective(name=name, num_bytes=size, num_calls=len(times), is_part=is_part, self_s=sum(times))
        for (name, size, is_part), times in sorted(found.items())
    )


def _read_gloo(event: Mapping[str, Any]) -> tuple[str, int, bool] | None:
    """Return collective, bytes and whether they are a part: a gather is given a part, the others the whole."""
    name = event["name"].removeprefix(_GLOO)
    told = event.get("args", {})
    shapes, kinds = told.get("Input Dims") or (), told.get("Input type") or ()
    size = sum(
        math.prod(shape) * _ELEMENT_BYTES.get(str(kind).lower(), 0) for shape, kind in zip(shapes, kinds, strict=False)
    )
    return (name, size, name == "all_gather") if size and name in _NAMES.values() else None


# NCCL's names of collectives, which its kernels' events have, in those of `bexplore network`.
_NAMES = {"allreduce": "all_reduce", "reduce_scatter": "reduce_scatter", "allgather": "all_gather"}


def _read_nccl(event: Mapping[str, Any]) -> tuple[str, int, bool] | None:
    told = event.get("args", {})
    if event.get("cat") != "kernel" or "Collective name" not in told:
        return None
    called = str(told["Collective name"]).lower().strip("_").replace("_base", "").replace("_tensor", "")
    name = next((ours for theirs, ours in _NAMES.items() if called.startswith(theirs)), None)
    elements = max(int(told.get("In msg nelems") or 0), int(told.get("Out msg nelems") or 0))
    size = elements * _ELEMENT_BYTES.get(str(told.get("dtype", "")).lower(), 0)
    return None if name is None or not size else (name, size, False)


Span = tuple[float, float]  # begin and end, microseconds


def _union(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the spans in which at least one of some events runs, in order."""
    spans: list[Span] = []
    for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events if "dur" in event):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((begin, end))
    return spans


def _subtract(spans: Sequence[Span], removed: Sequence[Span]) -> list[Span]:
    """Return what is left of spans where others are removed; both in order, each without overlaps."""
    left: list[Span] = []
    place = 0
    for begin, end in spans:
        while place < len(removed) and removed[place][1] <= begin:
            place += 1
        at = place
        while at < len(removed) and removed[at][0] < end:
            if removed[at][0] > begin:
                left.append((begin, removed[at][0]))
            begin = max(begin, removed[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def _length_s(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans) / 1e6
