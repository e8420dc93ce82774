"""What `bexplore network` has timed beside a run, as evidence of what limits its steps."""

from __future__ import annotations

from bexplore.diagnosis.profiled import NetworkEvidence, find_network_bottlenecks, find_profile_bottlenecks
from bexplore.errors import BexploreError
from bexplore.estimate.collectives import Collective
from bexplore.measurement.profile import Profile, ProfiledCollective
from bexplore.planning.api import read_source
from bexplore.planning.costs import StepCosts
from bexplore.planning.network import NetworkFigures
from bexplore.run.parts.checks import Bottleneck
from bexplore.run.run_directory import Run


def find_measured_bottlenecks(run: Run | None, profile: Profile | None) -> tuple[Bottleneck, ...]:
    """Return what limits the steps by a profile and by the network that was timed beside a run; None for either."""
    network = None if run is None else find_network_evidence(run)
    profiled = () if profile is None else find_profile_bottlenecks(profile, network)
    return (*profiled, *find_network_bottlenecks(network))


def find_network_evidence(run: Run) -> NetworkEvidence | None:
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
        seconds=lambda collective: _sum_seconds(collective, figures),
        exposed_s=None if parallel is None else parallel.exposed_communication_s,
        explained_s=_explain_pass(source.costs, figures, 1 if parallel is None else parallel.accumulation_steps or 1),
    )


def _sum_seconds(collective: ProfiledCollective, figures: NetworkFigures) -> float | None:
    """Return the seconds of profiled collectives among the ranks that were timed; None where the file has none."""
    name = Collective(collective.name)
    if figures.stated_bytes_per_s is None and not any(one.collective is name for one in figures.timed):
        return None
    ranks = figures.num_ranks
    num_bytes = collective.num_bytes * (ranks if collective.is_part else 1)
    return collective.num_calls * figures.seconds(name, num_bytes, ranks)


def _explain_pass(costs: StepCosts, figures: NetworkFigures, accumulation_steps: int) -> float | None:
    """Return the seconds of all collectives of a pass, the mean over those of a step; None where bytes are unknown."""
    if costs.gradient_bytes is None or not costs.parallelism.is_distributed:
        return None
    exchanged = costs.find_communication(costs.parallelism)
    inner_s = exchanged.seconds(figures, is_last=False)
    return inner_s + (exchanged.seconds(figures, is_last=True) - inner_s) / accumulation_steps
