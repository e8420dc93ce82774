"""What a profile of steps shows, in lines for a terminal; the report has the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bexplore.exploration.bottlenecks import profile_bottlenecks
from bexplore.measurement.profile import REGIONS, Profile
from bexplore.units import counted, format_bytes, format_seconds, format_share

HEADS = ("self time", "share", "calls", "name")
LONGEST_NAME = 80  # characters; names of fused kernels list all that they fuse


def profile_lines(profile: Profile, run_dir: Path | None) -> Iterator[str]:
    """Yield the regions of a step, the longest kernels or operators, what limits them, and the files.

    Args:
        run_dir: Of the run whose report links them; None for none.
    """
    yield ""
    yield regions_sentence(profile)
    yield ""
    yield f"  {HEADS[0]:>10}  {HEADS[1]:>6}  {HEADS[2]:>7}  {HEADS[3]}"
    for self_time, share, calls, name in kernel_rows(profile):
        yield f"  {self_time:>10}  {share:>6}  {calls:>7}  {name}"
    yield ""
    for item in profile_bottlenecks(profile):
        yield f"{item.finding}{f'; try: {item.action}' if item.action else ''}"
    yield f"Trace:   {profile.trace_path} (open in ui.perfetto.dev or chrome://tracing)"
    if profile.memory_path:
        yield f"Memory:  {profile.memory_path}{' (open in pytorch.org/memory_viz)' if profile.is_on_device else ''}"
    if run_dir is not None:
        yield f"Report:  bexplore report {run_dir} links them"


def regions_sentence(profile: Profile) -> str:
    """Return the seconds of each region of a step."""
    parts = [f"{name} {format_seconds(profile.regions_s[name])}" for name in REGIONS if name in profile.regions_s]
    busy = "" if profile.busy_share is None else f"; the device is busy for {format_share(profile.busy_share)} of it"
    peak = "" if profile.peak_bytes is None else f"; at most {format_bytes(profile.peak_bytes)} allocated by torch"
    passes = counted(profile.passes_per_step, "pass")
    return f"size {profile.micro_batch_size}, {passes} a step, under the profiler: {', '.join(parts)}{busy}{peak}"


def kernel_rows(profile: Profile) -> Iterator[tuple[str, str, str, str]]:
    """Yield the longest kernels or operators: self time in a step, share, calls, name."""
    for one in profile.top:
        name = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[:LONGEST_NAME]}..."
        yield format_seconds(one.self_s), format_share(one.share), f"{one.num_calls:g}", name
