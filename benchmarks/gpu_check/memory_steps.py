"""Section 2: the trace's memory against the allocator's, at two sizes of each job."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_check.commands import bexplore
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.gpu import TakenMemory
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.actions.probe import probe_once
from bexplore.config.config import Config
from bexplore.host.accelerators import CUDA_CONTEXT_BYTES
from bexplore.units import format_bytes

TRACE_ERROR = 0.02  # of the peak of live tensors
TRACE_TAKES_BYTES = CUDA_CONTEXT_BYTES + 256 * 2**20  # its fake tensors begin a context
SIZES = (8, 32)


def trace_and_probe(
    context: Context, job: str, overrides: Sequence[str] = (), wanted_sizes: Sequence[int] = SIZES
) -> Verdict:
    """Trace on the device, trace for the device as if it were absent, run the sizes exactly, compare."""
    sizes = context.sizes(*wanted_sizes)
    arguments = context.arguments(job, *overrides)
    with TakenMemory(context.device) as taken:
        traced = _traced(arguments, sizes)
    context.note(traced=traced, trace_takes_bytes=taken.taken_bytes)
    absent = _traced(arguments, sizes, "--device-name", _device_name(context))
    context.note(traced_by_name=absent)
    measured: dict[int, dict[str, Any]] = {}
    for size in sizes:
        measured[size] = _probed(context.config(job, *overrides), size)
        context.note(measured=measured)
    if traced["peak_memory_bytes"] is None:
        return judged(False, f"no trace: {traced['errors']}")
    compared = {size: _compared(int(traced["peak_memory_bytes"][str(size)]), measured[size]) for size in sizes}
    by_name = {
        size: _compared(int(absent["peak_memory_bytes"][str(size)]), measured[size])
        for size in sizes
        if absent["peak_memory_bytes"] is not None
    }
    context.note(compared=compared, compared_by_name=by_name)
    errors = [row["predicted_over_allocated"] for row in compared.values()]
    is_light = (taken.taken_bytes or 0) <= TRACE_TAKES_BYTES
    is_near = all(error is not None and abs(error - 1) <= TRACE_ERROR for error in errors)
    return judged(is_near and is_light, _told(compared, by_name, taken.taken_bytes, measured))


def _traced(arguments: Sequence[str], sizes: Sequence[int], *more: str) -> dict[str, Any]:
    listed = ",".join(str(size) for size in sizes)
    ran = bexplore(["trace", *arguments, "--json", "--fresh", "--micro-batch-sizes", listed, *more])
    told: dict[str, Any] = next(iter(ran.of("trace")), {"peak_memory_bytes": None})
    return told | {"code": ran.code, "errors": ran.errors}


def _device_name(context: Context) -> str:
    """The name by which `--device-name` knows this device; an H100 where it knows none."""
    import torch

    from bexplore.host.accelerators import DEVICES, find_device

    found = None if context.on_cpu else find_device(torch.cuda.get_device_name(context.device))
    return next((name for name, device in DEVICES.items() if device == found), "h100")


def _probed(config: Config, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        seen = probe_once(config, micro_batch_size=size, compilation="exact", model_dir=folder).observation
    names = ("peak_memory_bytes", "resident_memory_bytes", "compile_time_s", "reason", "warnings", "num_recompiles")
    return {name: getattr(seen, name) for name in names} | {
        "outcome": seen.outcome.value,
        "pass_times_s": list(seen.pass_times_s),
        "update_times_s": list(seen.update_times_s),
        "details": seen.details,
        "traceback": seen.traceback_text[-3000:],
    }


def _compared(predicted_bytes: int, measured: dict[str, Any]) -> dict[str, Any]:
    allocated, reserved = measured["peak_memory_bytes"], measured["resident_memory_bytes"]
    return {
        "predicted_bytes": predicted_bytes,
        "predicted_over_allocated": predicted_bytes / allocated if allocated else None,
        "reserved_over_allocated": reserved / allocated if allocated and reserved else None,
    }


def _told(
    compared: dict[int, dict[str, Any]],
    by_name: dict[int, dict[str, Any]],
    taken_bytes: int | None,
    measured: dict[int, dict[str, Any]],
) -> str:
    parts = []
    for size, row in compared.items():
        if row["predicted_over_allocated"] is None:
            parts.append(f"{size}: {measured[size]['outcome']}, {measured[size]['reason']}")
            continue
        part = f"{size}: predicted/allocated {row['predicted_over_allocated']:.3f}"
        part += f", by name {by_name[size]['predicted_over_allocated']:.3f}" if size in by_name else ""
        ratio = row["reserved_over_allocated"]
        parts.append(part + (f", reserved/allocated {ratio:.3f}" if ratio else ""))
    taken = "" if taken_bytes is None else f"; the trace takes {format_bytes(taken_bytes)}"
    return "; ".join(parts) + taken
