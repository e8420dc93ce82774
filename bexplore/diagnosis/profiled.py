"""Limits that a profile of steps and the timing of the network show: rules as in `bottlenecks.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bexplore.diagnosis.bottlenecks import (
    COMMUNICATION,
    LARGE_COMMUNICATION,
    LARGE_UPDATE,
    MOVE_LESS,
    Rule,
    Values,
    evaluate_rules,
    rule,
)
from bexplore.measurement.profile import BATCH, STEP, UPDATE, Profile, ProfiledCollective
from bexplore.run.parts.checks import Bottleneck
from bexplore.units import format_seconds

EXPLAINS = 0.5  # share of exposed communication from which the bandwidth is its reason, and below which waiting is
# Of profiled steps. Chosen, like those above.
LARGE_INPUT = 0.05  # share of a profiled step that batches may take; a loader's workers prepare them beside it
BUSY_DEVICE = 0.8  # share of a profiled step below which a device mostly waits for launches
FEW_MATRICES = 0.4  # share of kernel time below which most of it moves memory


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEvidence:
    """What `bexplore network` has timed between the devices that train."""

    slow: tuple[str, ...] = ()  # ranks and links that hold the others up, a sentence each
    # Bandwidths by name, bytes/s: of the slowest link, and of the median one.
    speeds: Mapping[str, float] = field(default_factory=dict)
    # Returns how long collectives take at the bandwidth that was timed; None for one that was not timed.
    seconds: Callable[[ProfiledCollective], float | None] = lambda collective: None
    exposed_s: float | None = None  # seconds of a pass of the run that communication added to it; None if unknown
    # Seconds that all collectives of such a pass take at that bandwidth; None if unknown.
    explained_s: float | None = None


_SLOW_PART: list[Rule[tuple[NetworkEvidence, str]]] = []
_NETWORK: list[Rule[NetworkEvidence]] = []


def find_network_bottlenecks(network: NetworkEvidence | None) -> tuple[Bottleneck, ...]:
    """Return what the timed network holds up: slow ranks and links, and what it explains of a pass's communication."""
    if network is None:
        return ()
    slow = (found for sentence in network.slow for found in evaluate_rules(_SLOW_PART, (network, sentence)))
    return (*slow, *evaluate_rules(_NETWORK, network))


@rule(_NETWORK, "communication", "communication adds {exposed} to a pass; {explained}", "{action}", "bexplore network")
def _explain_pass(network: NetworkEvidence) -> Values | None:
    if not network.exposed_s or network.exposed_s < 0 or network.explained_s is None:
        return None
    return _explain(network.exposed_s, network.explained_s)


def _explain(exposed_s: float, explained_s: float) -> Values:
    """Return why ranks communicate for some seconds, of which the bandwidth explains others, and what to try."""
    reason, action = "the bandwidth explains it", "accumulate more passes in a step, or shard over fewer devices"
    if explained_s < EXPLAINS * exposed_s:
        reason = "most of it is waiting for a slower rank, or many small messages"
        action = "compare the ranks' own speeds and batches, and raise bucket_cap_mb; a faster link would change little"
    return {
        "exposed_communication_s": exposed_s,
        "explained_s": explained_s,
        "exposed": format_seconds(exposed_s),
        "explained": f"at the bandwidth that was timed its collectives take {format_seconds(explained_s)} in all: "
        f"{reason}",
        "action": action,
    }


@rule(
    _SLOW_PART,
    "communication",
    "a part of the network is slow, and every collective waits for it: {sentence}",
    "look for another job on that host, a link that fell back to a lower rate, or a disturbed cable; train without the "
    "host until then",
    "bexplore network",
)
def _read_slow_part(case: tuple[NetworkEvidence, str]) -> Values:
    network, sentence = case
    return {"sentence": sentence, **network.speeds}


class _ProfileCase(NamedTuple):
    """A profile of steps, and what was timed of the network beside the run."""

    profile: Profile
    network: NetworkEvidence | None


_PROFILE: list[Rule[_ProfileCase]] = []


def find_profile_bottlenecks(profile: Profile, network: NetworkEvidence | None = None) -> tuple[Bottleneck, ...]:
    """Return what limits profiled steps; empty where their profile shows nothing of it.

    Args:
        profile: The profile.
        network: What was timed beside the run; None for nothing.
    """
    return tuple(evaluate_rules(_PROFILE, _ProfileCase(profile, network)))


@rule(
    _PROFILE,
    "input",
    "making and copying batches takes {input_share:.0%} of a profiled step, beside which nothing is computed",
    "prepare batches in workers of the loader, pin their memory, and copy with non_blocking=True",
)
def _find_waiting_for_batches(case: _ProfileCase) -> Values | None:
    profile = case.profile
    step_s, batch_s = profile.regions_s.get(STEP), profile.regions_s.get(BATCH, 0.0)
    share = max(profile.copy_share or 0.0, batch_s / step_s if step_s and profile.copy_share is None else 0.0)
    return None if share <= LARGE_INPUT else {"input_share": share}


@rule(
    _PROFILE,
    "launch",
    "launch overhead is the limit: the device is idle for {idle} of a profiled step, which has {num_kernels:.0f} "
    "kernels of {kernel} (median)",
    "explore.compile: {{mode: reduce-overhead}} (CUDA graphs), or fewer graph breaks",
)
def _find_idle_device(case: _ProfileCase) -> Values | None:
    profile = case.profile
    if profile.busy_share is None or profile.busy_share >= BUSY_DEVICE or profile.num_kernels is None:
        return None
    return {
        "busy_share": profile.busy_share,
        "num_kernels": profile.num_kernels,
        "idle": f"{1 - profile.busy_share:.0%}",
        "kernel": format_seconds(profile.median_kernel_s),
    }


@rule(
    _PROFILE,
    "communication",
    "the network is the limit: for {communication_share:.0%} of a profiled step {device} does nothing but "
    "communicate{why}",
    "{action}",
    COMMUNICATION,
)
def _find_waiting_collectives(case: _ProfileCase) -> Values | None:
    profile, network = case
    share = profile.collective_share
    if share is None or share <= LARGE_COMMUNICATION:
        return None
    values: dict[str, Any] = {
        "communication_share": share,
        "device": "the device" if profile.is_on_device else "the processor",
        "why": "",
        "action": "time the links by bexplore network, accumulate more passes in a step, or shard over fewer devices",
    }
    seconds = [None if network is None else network.seconds(one) for one in profile.collectives]
    known = [one for one in seconds if one is not None]
    if known and len(known) == len(seconds) and STEP in profile.regions_s:
        explained = _explain(share * profile.regions_s[STEP], sum(known))
        values |= {**explained, "why": " ({exposed}); {explained}".format(**explained)}
    return values


@rule(
    _PROFILE,
    "bandwidth",
    "memory bandwidth is the limit: matrix products, convolutions and attention are {matrix_share:.0%} of the time "
    "of kernels, and what only moves memory is the rest{longest}",
    MOVE_LESS,
)
def _find_moving_kernels(case: _ProfileCase) -> Values | None:
    profile = case.profile
    if not profile.is_on_device or profile.matrix_share is None or profile.matrix_share >= FEW_MATRICES:
        return None
    first = next((one for one in profile.top), None)
    longest = "" if first is None else f"; the longest is {first.name[:60]}, {first.share:.0%}"
    return {"matrix_share": profile.matrix_share, "longest": longest}


@rule(
    _PROFILE,
    "update",
    "the optimizer's update takes {update_share:.0%} of a profiled step of {accumulation_steps} passes",
    "a larger global batch spreads it over more passes",
)
def _find_long_profiled_update(case: _ProfileCase) -> Values | None:
    profile = case.profile
    step_s, update_s = profile.regions_s.get(STEP), profile.regions_s.get(UPDATE)
    if not step_s or not update_s or profile.is_on_device or update_s / step_s < LARGE_UPDATE:
        return None  # on a device the region on the host is the time of its launches
    return {"update_share": update_s / step_s, "accumulation_steps": profile.passes_per_step}
