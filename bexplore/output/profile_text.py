"""What a profile of steps shows, in lines for a terminal; the report has the same rows.

And what the network's timing, which lies beside a run, tells of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bexplore.diagnosis.profiled import NetworkEvidence, find_network_bottlenecks, find_profile_bottlenecks
from bexplore.errors import BexploreError
from bexplore.measurement.profile import REGIONS, Profile, ProfiledCollective, ProfiledKernel
from bexplore.output.table import Table
from bexplore.planning.api import read_source
from bexplore.planning.costs import StepCosts
from bexplore.planning.network import Collective, NetworkFigures, find_communication
from bexplore.run.run_directory import Run, open_run
from bexplore.units import counted, format_bytes, format_seconds, format_share

LONGEST_NAME = 80  # characters; names of fused kernels list all that they fuse


def profile_lines(profile: Profile, run_dir: Path | None, *, width: int | None = None) -> Iterator[str]:
    """Yield the regions of a step, the longest kernels or operators, what limits them, and the files.

    Args:
        run_dir: Of the run whose report links them; None for none.
    """
    yield ""
    yield regions_sentence(profile)
    yield ""
    yield from kernels_table(profile).as_lines(width)
    yield ""
    network = None if run_dir is None else network_evidence(open_run(run_dir))
    for item in (*find_profile_bottlenecks(profile, network), *find_network_bottlenecks(network)):
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


def network_evidence(run: Run) -> NetworkEvidence | None:
    """Return what `bexplore network` has timed beside a run; None where nothing is there that can be read."""
    try:
        source = read_source(run)
        if source.network_path is None:
            return None
        figures = NetworkFigures.read(source.network_path)
    except BexploreError:
        return None
    result = run.result()
    parallel = None if result is None else result.parallel
    speeds = sorted(link.bytes_per_s for link in figures.links)
    return NetworkEvidence(
        slow=figures.slow,
        speeds={"slowest_link_bytes_per_s": speeds[0], "median_link_bytes_per_s": speeds[len(speeds) // 2]}
        if speeds
        else {},
        seconds=lambda collective: _seconds_of(collective, figures),
        exposed_s=None if parallel is None else parallel.exposed_communication_s,
        explained_s=_explained_s(source.costs, figures, 1 if parallel is None else parallel.accumulation_steps or 1),
    )


def _seconds_of(collective: ProfiledCollective, figures: NetworkFigures) -> float | None:
    """Return the seconds of profiled collectives among the ranks that were timed; None where the file has none."""
    name = Collective(collective.name)
    if figures.stated_bytes_per_s is None and not any(one.collective is name for one in figures.timed):
        return None
    ranks = figures.num_ranks
    num_bytes = collective.num_bytes * (ranks if collective.is_part else 1)
    return collective.num_calls * figures.seconds(name, num_bytes, ranks)


def _explained_s(costs: StepCosts, figures: NetworkFigures, accumulation_steps: int) -> float | None:
    """Return the seconds of all collectives of a pass, the mean over those of a step; None where bytes are unknown."""
    if costs.gradient_bytes is None or not costs.parallelism.is_distributed:
        return None
    exchanged = find_communication(costs.parallelism, costs.gradient_bytes, num_blocks=costs.num_blocks)
    inner_s = exchanged.seconds(figures, is_last=False)
    return inner_s + (exchanged.seconds(figures, is_last=True) - inner_s) / accumulation_steps
