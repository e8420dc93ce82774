"""The three tables of the benchmark of the trace on an absent CUDA device, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

TRACE_LIMIT_S = 40.0
AGREEMENT_PERCENT = 2.0
_MIB, _GIB = 2**20, 2**30

Rows = Mapping[str, Any]


def line_through(peaks: Mapping[str, float]) -> dict[str, float]:
    """The line nearest to the peaks at sizes above one: bytes without a sample, and bytes a sample."""
    points = {int(size): peak for size, peak in peaks.items() if int(size) > 1}
    slope, constant = np.polyfit(list(points), list(points.values()), 1)
    return {"constant_bytes": float(constant), "slope_bytes_per_sample": float(slope)}


def markdown(report: Mapping[str, Any]) -> str:
    """The report as it stands in `results/trace_cuda.md`."""
    facts = report["facts"]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    lines = [
        "# The trace on a CUDA device that is not there",
        "",
        f"`{facts['command']}`, {facts['date']}: {facts['cores']} cores of {facts['processor']}, shared with other "
        f"work; Python {facts['python']}, {versions}. Device stood in for: {facts['gpu']}.",
        "",
        *_traced(report.get("traced", {})),
        *_eager(report.get("eager", {})),
        *_published(report.get("published", {})),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _traced(rows: Rows) -> list[str]:
    done = {name: row for name, row in rows.items() if "refused" not in row}
    engine = [name for name, row in rows.items() if row["is_engine_job"]]
    num_engine, num_more = sum(name in done for name in engine), sum(name not in engine for name in done)
    num_quick = sum(row["processor_s"] <= TRACE_LIMIT_S for row in done.values())
    return [
        "## Traced for CUDA",
        "",
        f"{num_engine} of {len(engine)} jobs of the engine's benchmark, {num_more} of {len(rows) - len(engine)} more "
        f"models; {num_quick} of these {len(done)} in {TRACE_LIMIT_S:.0f} s of processor time or less, with imports. "
        "Beside the wall time stands the load of the machine when that row was measured: its cores are shared.",
        "",
        "| job | million parameters | processor s | wall s | load | peak at 8, MiB | peak at 32, MiB "
        "| constant MiB | MiB a sample |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_traced_line(name, row) for name, row in rows.items()),
        "",
    ]


def _traced_line(name: str, row: Mapping[str, Any]) -> str:
    seconds = f"{row['processor_s']:.1f} | {row['wall_s']:.1f} | {row['load_average_1min']:.1f}"
    if "refused" in row:
        return f"| {name} | | {seconds} | not traced: {row['refused']} | | | |"
    small, large = (value / _MIB for value in row["peak_memory_bytes"].values())
    line = row["line"]
    return (
        f"| {name} | {row['num_parameters'] / 1e6:.1f} | {seconds} | {small:.0f} | {large:.0f} "
        f"| {line['constant_bytes'] / _MIB:.1f} | {line['slope_bytes_per_sample'] / _MIB:.2f} |"
    )


def _eager(rows: Rows) -> list[str]:
    return [
        "## Eager jobs, against PyTorch's memory tracker",
        "",
        "Constant part and slope of the highest moment of a step (two accumulation passes and an update), through the "
        f"peaks at two sizes. Differences of more than {AGREEMENT_PERCENT:.0f} % are to be explained. Left out of the "
        "trace: the workspaces of cuBLAS, which the tracker cannot see. Left out of both: workspaces of cuDNN, what "
        "kernels take for themselves, the caching allocator's rounding to segments.",
        "",
        "| job | constant MiB | tracker | difference % | MiB a sample | tracker | difference % | peak in |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *(_eager_line(name, row) for name, row in rows.items()),
        "",
    ]


def _eager_line(name: str, row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"| {name} | not traced: {row['refused']} | | | | | | |"
    own, other = row["line"], row["reckoned_line"]
    constant, other_constant = own["constant_bytes"] - row["blas_workspace_bytes"], other["constant_bytes"]
    slope, other_slope = own["slope_bytes_per_sample"], other["slope_bytes_per_sample"]
    phases = ", ".join(dict.fromkeys(row["phase"].values()))
    return (
        f"| {name} | {constant / _MIB:.2f} | {other_constant / _MIB:.2f} | {_percent(constant, other_constant)} "
        f"| {slope / _MIB:.3f} | {other_slope / _MIB:.3f} | {_percent(slope, other_slope)} | {phases} |"
    )


def _percent(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.2f}"


def _published(rows: Rows) -> list[str]:
    return [
        "## Published peaks",
        "",
        "Peaks of whole processes on H100s with 80 GB, by mila-iqia/milabench (`config/scaling/H100.yaml`, March 2025: "
        "torch 2.6, transformers 4.49, the driver's figure polled while it trains), beside the trace of the rebuilt "
        "job: eager, random weights, the same sizes, what the allocator hands out. What differs for all of them: the "
        "published figure holds the CUDA context and loaded kernels (0.5 GiB or so), what the caching allocator "
        "reserves beyond what it hands out, cuDNN's workspaces, and the next batch beside the last one; a peak between "
        "two polls may be missed. The slope is of the line nearest to all sizes above one. The published "
        "`resnet50-noio` is left out: its growth is twice that of `resnet50`, for a reason that was not found.",
        "",
        "| model | size | published GiB | predicted GiB | predicted / published | slope ratio | differs |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        *(line for name, row in rows.items() for line in _published_lines(name, row)),
        "",
    ]


def _published_lines(name: str, row: Mapping[str, Any]) -> list[str]:
    if "refused" in row:
        return [f"| {name} | | | | | | not traced: {row['refused']} |"]
    published, predicted = row["published"], row["peak_memory_bytes"]
    ratio = row["line"]["slope_bytes_per_sample"] / line_through(published)["slope_bytes_per_sample"]
    sizes = list(published)
    lines = []
    for size in dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])):
        last = f"{ratio:.3f} | {row['differs']}" if size == sizes[-1] else "| "
        lines.append(
            f"| {name} | {size} | {published[size] / _GIB:.2f} | {predicted[size] / _GIB:.2f} "
            f"| {predicted[size] / published[size]:.3f} | {last} |"
        )
    return lines
