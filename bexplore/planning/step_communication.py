"""What the communication of replicas adds to a planned step: as it was timed, or by the speeds of a network.

Where all ranks ran, what their passes hold of communication is known: it stays on the same ranks. On other ranks a
network that was timed or stated tells; without one it grows with the bytes that each rank sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from bexplore.planning.communication import Communication, communication_of
from bexplore.planning.layout import Layout
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.request import PlanRequest
from bexplore.planning.step_costs import PassCost, StepCosts
from bexplore.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommunication:
    """The communication of a step.

    Attributes:
        pass_s: Seconds of a pass without it, before devices divide the work; with it where it was not timed apart.
        exposed_s: Of a step, what computation does not hide; None where it is unknown.
        network: The speeds by which it was reckoned; None for none.
        basis: Where it is from.
        caution: What to know of it; empty for nothing.
    """

    pass_s: float
    exposed_s: float | None
    network: NetworkFigures | None = None
    basis: str = ""
    caution: str = ""


def communication_in_step(
    costs: StepCosts,
    request: PlanRequest,
    layout: Layout,
    cost: PassCost,
    accumulation_steps: int,
    network: NetworkFigures | None,
) -> StepCommunication:
    """Return the communication of a step of so many passes."""
    if costs.holds_communication and costs.parallelism.is_distributed:
        return _where_ranks_ran(costs, request, layout, cost, accumulation_steps, network)
    if layout.num_replicas == 1:
        return StepCommunication(pass_s=cost.seconds, exposed_s=0.0)
    if network is not None and costs.gradient_bytes is not None:
        return _reckoned(costs, request, layout, cost.seconds, accumulation_steps, network)
    lacks = (
        "give --bandwidth, or time it with bexplore network on these machines"
        if costs.gradient_bytes is not None
        else "the bytes of the gradients are not known without a trace"
    )
    return StepCommunication(
        pass_s=cost.seconds,
        exposed_s=None,
        basis="communication of replicas: not known, and left out",
        caution=f"communication between replicas is left out: {lacks}",
    )


def _where_ranks_ran(
    costs: StepCosts,
    request: PlanRequest,
    layout: Layout,
    cost: PassCost,
    accumulation_steps: int,
    network: NetworkFigures | None,
) -> StepCommunication:
    """Return it where the passes of all ranks were timed together, and hold it."""
    timed = f"timed between {counted(costs.parallelism.num_ranks, 'rank')}"
    is_same = layout.has_ranks_of(costs) and not layout.has_other_hosts(costs)
    compute_s = cost.compute_s
    if compute_s is None:
        own = "" if is_same else f", {_difference(costs, layout)}"
        return StepCommunication(
            pass_s=cost.mean_s(accumulation_steps),
            exposed_s=None,
            basis=f"communication: within the passes, {timed}",
            caution=f"the passes hold communication {timed}, which was not timed apart{own}",
        )
    exposed_s = cost.exposed_of_step_s(accumulation_steps)
    if is_same:
        return StepCommunication(pass_s=compute_s, exposed_s=exposed_s, basis=f"communication: {timed}")
    if layout.num_replicas == 1 and layout.parallelism.tensor_parallel_degree == 1:
        return StepCommunication(pass_s=compute_s, exposed_s=0.0)
    if network is not None and costs.gradient_bytes is not None:
        return _reckoned(costs, request, layout, compute_s, accumulation_steps, network)
    return _scaled(costs, layout, cost, accumulation_steps)


def _scaled(costs: StepCosts, layout: Layout, cost: PassCost, accumulation_steps: int) -> StepCommunication:
    """Return what was timed times the bytes that each rank sends over those that it sent."""
    assert cost.compute_s is not None and cost.exposed_s is not None  # the caller has asked
    ranks = counted(costs.parallelism.num_ranks, "rank")
    caution = (
        f"communication was timed between {ranks}{_on_hosts(costs.num_hosts)}, and is planned between "
        f"{layout.devices.number}{_on_hosts(layout.devices.num_nodes)}: time these by bexplore network, or give "
        "--bandwidth"
    )
    timed, planned = _of_timed(costs), _of_layout(costs, layout)
    if timed is None or planned is None or costs.parallelism.tensor_parallel_degree > 1:
        return StepCommunication(
            pass_s=cost.mean_s(accumulation_steps),
            exposed_s=None,
            basis=f"communication: within the passes, as between the {ranks} that were timed",
            caution=caution,
        )
    inner_s = cost.exposed_s * _ratio(planned.sent_bytes(is_last=False), timed.sent_bytes(is_last=False))
    share = _ratio(planned.sent_bytes(is_last=True), timed.sent_bytes(is_last=True))
    last_s = (cost.exposed_s + cost.last_s - cost.seconds) * share
    return StepCommunication(
        pass_s=cost.compute_s,
        exposed_s=(accumulation_steps - 1) * inner_s + last_s,
        basis=f"communication: timed between {ranks}, and by the bytes that each rank sends {share:.3g} times that",
        caution=caution,
    )


def _reckoned(
    costs: StepCosts,
    request: PlanRequest,
    layout: Layout,
    pass_s: float,
    accumulation_steps: int,
    network: NetworkFigures,
) -> StepCommunication:
    """Return it by the speeds of a network, beside the computation of one device's part of the pass."""
    planned = _of_layout(costs, layout)
    assert planned is not None  # the gradients are known
    overlap = (0.0 if costs.is_on_cpu else 1.0) if request.overlap is None else request.overlap
    inner_s, last_s = (
        planned.exposed_s(network, pass_s / layout.division(costs), overlap, is_last=last) for last in (False, True)
    )
    return StepCommunication(
        pass_s=pass_s,
        exposed_s=(accumulation_steps - 1) * inner_s + last_s,
        network=network,
        basis=f"communication: {planned.sent_bytes(is_last=True) / 1e6:,.4g} MB that each rank sends in the last pass "
        f"of a step, {network}, {overlap:.0%} of the computation beside it",
    )


def _of_timed(costs: StepCosts) -> Communication | None:
    if costs.gradient_bytes is None:
        return None
    return communication_of(costs.parallelism, costs.gradient_bytes, num_blocks=costs.num_blocks)


def _of_layout(costs: StepCosts, layout: Layout) -> Communication | None:
    """Return what a rank of a layout exchanges: the gradients of its part of the model."""
    if costs.gradient_bytes is None:
        return None
    of_rank = costs.gradient_bytes / layout.division(costs)
    return communication_of(layout.parallelism, of_rank, num_blocks=costs.num_blocks)


def _ratio(planned: float, timed: float) -> float:
    return planned / timed if timed else 0.0


def _difference(costs: StepCosts, layout: Layout) -> str:
    """Say on how many ranks and hosts the passes are planned, which is not where they were timed."""
    planned = counted(layout.devices.number, "device")
    return f"and are planned on {planned}{_on_hosts(layout.devices.num_nodes)} as if on those"


def _on_hosts(number: int | None) -> str:
    return "" if number is None else " within 1 host" if number == 1 else f" on {number} hosts"
