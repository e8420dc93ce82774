"""What a profile of steps shows, in lines for a terminal; the report has the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bexplore.measurement.profile import REGIONS, Profile, ProfiledKernel
from bexplore.output.table import Table
from bexplore.run.parts.checks import Bottleneck
from bexplore.units import counted, format_bytes, format_seconds, format_share

LONGEST_NAME = 80  # characters; names of fused kernels list all that they fuse


def profile_lines(
    profile: Profile, found: Sequence[Bottleneck], run_dir: Path | None, *, width: int | None = None
) -> Iterator[str]:
    """Yield the regions of a step, the longest kernels or operators, what limits them, and the files.

    Args:
        profile: The profile.
        found: What limits the steps.
        run_dir: Of the run whose report links them; None for none.
        width: Characters of a line; None for as many as it takes.
    """
    yield ""
    yield regions_sentence(profile)
    yield ""
    yield from kernels_table(profile).as_lines(width)
    yield ""
    for item in found:
        yield f"{item.finding}{f'; try: {item.action}' if item.action else ''}"
    yield f"Trace:   {profile.trace_path} (open in ui.perfetto.dev or chrome://tracing)"
    if profile.memory_path:
        yield f"Memory:  {profile.memory_path}{' (open in pytorch.org/memory_viz)' if profile.is_on_device else ''}"
    if run_dir is not None:
        yield f"Report:  bexplore report {run_dir} links them"


def regions_sentence(profile: Profile) -> str:
    """Return the seconds of each region of the fastest step, and of the others."""
    parts = [f"{name} {format_seconds(profile.regions_s[name])}" for name in REGIONS if name in profile.regions_s]
    busy = "" if profile.busy_share is None else f"; the device is busy for {format_share(profile.busy_share)} of it"
    peak = "" if profile.peak_bytes is None else f"; at most {format_bytes(profile.peak_bytes)} allocated by torch"
    passes = counted(profile.passes_per_step, "pass")
    times = " and ".join(format_seconds(seconds) for seconds in profile.step_times_s)
    faster = f", the faster of {counted(len(profile.step_times_s), 'step')} ({times})" if times else ""
    return (
        f"size {profile.micro_batch_size}, {passes} a step, under the profiler{faster}: {', '.join(parts)}{busy}{peak}"
    )


def kernels_table(profile: Profile) -> Table:
    """Return the longest kernels, then operators: self time in a step, share of their kind, calls, kind, name.

    The time of an operator is its own on a CPU, and that of the kernels that it launches on an accelerator.
    """
    kind = "kernel" if profile.is_on_device else "operator"
    return Table(
        headings=("self time", "share", "calls", "of", "name"),
        rows=(*(_row(one, kind) for one in profile.top), *(_row(one, "operator") for one in profile.operators)),
        is_number=(True, True, True, False, False),
    )


def _row(one: ProfiledKernel, kind: str) -> tuple[str, str, str, str, str]:
    name = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[:LONGEST_NAME]}..."
    return format_seconds(one.self_s), format_share(one.share), f"{one.num_calls:g}", kind, name
