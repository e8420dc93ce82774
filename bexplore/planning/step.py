"""The step of a global batch on so many devices: its passes, its update, its communication and its bubble.

`global batch size = accumulation steps x replicas x micro-batch size`. A pipeline of p stages takes m + p - 1 passes of
a stage for m micro-batches, (p - 1) / (m + p - 1) of them idle (Source: Narayanan et al., arXiv 2104.04473, section
2.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bexplore.errors import UserInputError
from bexplore.estimate.collectives import Network
from bexplore.job import Precision
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.planning.costs import PassCost, StepCosts
from bexplore.planning.layout import Layout, find_memory_caution, keep_sizes_that_fit, refuse_batch
from bexplore.planning.request import show_example
from bexplore.units import counted, format_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The seconds of a step, in parts where these are known. None means unknown, never 0."""

    step_time_s: float  # seconds of a step
    micro_batch_size: int | None  # samples of one replica in one pass
    accumulation_steps: int | None  # passes of a step
    passes_s: float | None = None  # seconds of its passes, the part that computes
    update_s: float | None = None  # of its update
    communication_s: float | None = None  # of its communication, what computation does not hide
    bubble_s: float | None = None  # of its pipeline's bubble
    network: str | None = None  # the speeds by which communication was computed, in words; None where none were used
    is_measured: bool = False  # whether the step was timed as it is planned, on as many ranks
    basis: tuple[str, ...] = ()  # where its figures are from, a sentence each
    cautions: tuple[str, ...] = ()  # what to know before it is used

    def share(self, part_s: float | None) -> float | None:
        """Return the share of a part of the step, 0 to 1."""
        return None if part_s is None else part_s / self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Step):
    """One way to train: a step, and what the training takes with it."""

    num_devices: int  # devices of all nodes
    num_nodes: int | None  # nodes; None where that was not said
    num_replicas: int  # data-parallel replicas
    global_batch_size: int  # samples of an optimizer step
    global_batch_tokens: float | None  # its tokens
    num_steps: int | None  # optimizer steps of the training
    training_time_s: float | None  # seconds of all steps
    device_hours: float | None  # of all devices
    price: float | None  # of the device-hours
    samples_per_s: float  # of all replicas
    tokens_per_s: float | None  # of all replicas
    mfu: float | None  # model-flops utilization, 0 to 1
    hfu: float | None  # hardware-flops utilization
    is_in_time: bool | None = None  # whether it ends by the deadline; None without one


def plan_step(layout: Layout, batch_size: int) -> Step:
    """Return the step of a global batch; an error names the nearest batches and devices that can share it."""
    costs = layout.costs
    if layout.request.speeds:
        return _plan_whole_step(layout, batch_size)
    sizes = costs.feasible_sizes(batch_size, layout.num_replicas)
    if not sizes:
        raise refuse_batch(layout, batch_size)
    steps = [_time_step(layout, batch_size, size) for size in keep_sizes_that_fit(layout, sizes)]
    best = min(steps, key=_rank_step)
    ran = min((step for step in steps if step.micro_batch_size in costs.passes), key=_rank_step, default=best)
    # A size that did not run is taken where it is faster by more than can be told apart.
    return best if best.step_time_s < (1 - INDIFFERENCE_ZONE) * ran.step_time_s else ran


def _rank_step(step: Step) -> tuple[float, int]:
    return step.step_time_s, step.micro_batch_size or 0


# A step by the speed of whole steps, in which update, communication and bubble are.


def _plan_whole_step(layout: Layout, batch_size: int) -> Step:
    seconds, basis = _whole_step_s(layout, batch_size)
    size = _largest_size(layout, batch_size)
    caution = find_memory_caution(layout, size) if size is not None else ""
    if not layout.is_divided_as_timed:
        caution = (
            "sizes and memory of a device are not known: the trace is not of these pipeline stages and tensor-parallel "
            "ranks, whose efficiency is in the speed that was given"
        )
    return Step(
        step_time_s=seconds / layout.devices.number,
        micro_batch_size=size,
        accumulation_steps=None if size is None else -(-batch_size // (size * layout.num_replicas)),
        basis=(basis,),
        cautions=(caution,) if caution else (),
    )


def _largest_size(layout: Layout, batch_size: int) -> int | None:
    """Return the largest size that fits by the trace and divides the batch; None where the trace is of other ranks."""
    is_traced = layout.costs.sizes > 0 and layout.is_divided_as_timed
    sizes = layout.costs.feasible_sizes(batch_size, layout.num_replicas) if is_traced else []
    if batch_size < layout.num_replicas or (is_traced and not sizes):
        raise refuse_batch(layout, batch_size)
    return max(sizes, default=None)


def _whole_step_s(layout: Layout, batch_size: int) -> tuple[float, str]:
    """Return the device-seconds of a step by the utilization or the throughput of a device, and their basis."""
    costs, request = layout.costs, layout.request
    if request.rate is not None:
        rate = request.rate.in_samples(costs.tokens_per_sample, "rate")
        return batch_size / rate, "the throughput of one device, as stated"
    utilization, name = (request.mfu, "model") if request.mfu is not None else (request.hfu, "hardware")
    operations = costs.model_flops if request.mfu is not None else costs.hardware_flops
    if operations is None or costs.peak_flops_per_s is None or utilization is None:
        raise _refuse_utilization(costs, request.speeds[0], has_operations=operations is not None)
    basis = (
        f"{format_flops(operations)} a sample at a {name}-flops utilization of {utilization:.3g} of "
        f"{costs.peak_flops_per_s / 1e12:.0f} TFLOP/s, of the whole step"
    )
    return operations * batch_size / (utilization * costs.peak_flops_per_s), basis


def _refuse_utilization(costs: StepCosts, field: str, *, has_operations: bool) -> UserInputError:
    throughput = f"{show_example('rate', costs.tokens_per_sample)} of one device"
    if not has_operations:
        return UserInputError(
            f"`{field}` needs the operations of a sample, which differ with the lengths of this job's samples",
            hint=f"give {throughput}",
        )
    if costs.precision is Precision.FLOAT32:
        return UserInputError(
            f"`{field}` needs a published peak, and float32 has no peak in the table, whose figures are of 16-bit "
            "arithmetic",
            hint=f"give {throughput}, or set explore.precision: bfloat16",
        )
    device = f'"{costs.device_name}"' if costs.device_name else "the CPU"
    return UserInputError(
        f"`{field}` needs a published peak, and {device} has none in the table",
        hint=f"name a device by `device_name=h100`, or give {throughput}",
    )


# A step by the passes and the update that were timed.


def _time_step(layout: Layout, batch_size: int, size: int) -> Step:
    costs = layout.costs
    cost = costs.find_cost(size)
    assert cost is not None  # it is a feasible size
    accumulation_steps = -(-batch_size // (size * layout.num_replicas))
    exchanged = _plan_communication(layout, cost, accumulation_steps)
    pass_s = exchanged.pass_s / layout.division
    passes_s, bubble_s = accumulation_steps * pass_s, (layout.pipeline_stages - 1) * pass_s
    update_s = _update_s(layout)
    holds_all_communication = costs.holds_communication or not costs.parallelism.is_distributed
    basis = (_describe_pass(size, cost), exchanged.basis, _describe_division(layout))
    cautions = (exchanged.caution, find_memory_caution(layout, size))
    return Step(
        step_time_s=passes_s + bubble_s + (update_s or 0.0) + (exchanged.exposed_s or 0.0),
        micro_batch_size=size,
        accumulation_steps=accumulation_steps,
        passes_s=passes_s,
        update_s=update_s,
        communication_s=exchanged.exposed_s,
        bubble_s=bubble_s if layout.pipeline_stages > 1 else None,
        network=str(layout.network) if exchanged.is_by_network else None,
        is_measured=layout.is_as_timed and holds_all_communication and cost.is_exact and not cost.is_estimated,
        basis=tuple(filter(None, basis)),
        cautions=tuple(filter(None, cautions)),
    )


def _update_s(layout: Layout) -> float | None:
    """Return the seconds of an update of one rank's share of the parameters, in proportion to that share."""
    if layout.costs.update_s is None:
        return None
    timed = layout.costs.parallelism.data_parallel_shard_degree
    return layout.costs.update_s / (layout.parallelism.data_parallel_shard_degree / timed * layout.division)


def _describe_pass(size: int, cost: PassCost) -> str:
    if cost.is_estimated:
        return f"passes of size {size}: estimated, not run"
    if cost.is_predicted:
        return f"passes of size {size}: predicted between sizes that ran; it did not run"
    how = "as the training runs them" if cost.is_exact else "in the search's program, scaled to the training's"
    return f"passes of size {size}: measured {how}"


def _describe_division(layout: Layout) -> str:
    if layout.division == 1:
        return ""
    return (
        f"work divided by {layout.division:g}: {counted(layout.pipeline_stages, 'pipeline stage')}, "
        f"{counted(layout.parallelism.tensor_parallel_degree, 'tensor-parallel rank')} (timed with "
        f"{layout.costs.parallelism.tensor_parallel_degree}); what these exchange is left out"
    )


# What the communication of replicas adds. Where all ranks ran, what their passes hold of it is known: it stays on the
# same ranks. On other ranks a network that was timed or stated tells; without one it grows with the bytes of each rank.


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepCommunication:
    pass_s: float  # seconds of a pass without it, before devices divide the work; with it where it was not timed apart
    exposed_s: float | None  # of a step, what computation does not hide; None where it is unknown
    basis: str = ""  # where it is from
    caution: str = ""  # what to know of it; empty for nothing
    is_by_network: bool = False  # whether it was computed by the speeds of the network


def _plan_communication(layout: Layout, cost: PassCost, accumulation_steps: int) -> _StepCommunication:
    costs = layout.costs
    if costs.holds_communication and costs.parallelism.is_distributed:
        return _adapt_communication(layout, cost, accumulation_steps)
    if layout.num_replicas == 1:
        return _StepCommunication(pass_s=cost.seconds, exposed_s=0.0)
    if layout.network is not None and costs.gradient_bytes is not None:
        return _compute_communication(layout, layout.network, cost.seconds, accumulation_steps)
    lacks = (
        "give `network`, or time it with bexplore network on these machines"
        if costs.gradient_bytes is not None
        else "the bytes of the gradients are not known without a trace"
    )
    return _StepCommunication(
        pass_s=cost.seconds,
        exposed_s=None,
        basis="communication of replicas: not known, and left out",
        caution=f"communication between replicas is left out: {lacks}",
    )


def _adapt_communication(layout: Layout, cost: PassCost, accumulation_steps: int) -> _StepCommunication:
    """Return it where the passes of all ranks were timed together, and hold it."""
    costs, compute_s = layout.costs, cost.compute_s
    timed = f"timed between {counted(costs.parallelism.num_ranks, 'rank')}"
    if compute_s is None:
        planned = f"{counted(layout.devices.number, 'device')}{_describe_hosts(layout.devices.num_nodes)}"
        other = "" if layout.is_as_timed else f", and are planned on {planned} as if on those"
        return _StepCommunication(
            pass_s=cost.mean_s(accumulation_steps),
            exposed_s=None,
            basis=f"communication: within the passes, {timed}",
            caution=f"the passes hold communication {timed}, which was not timed apart{other}",
        )
    if layout.is_as_timed:
        exposed_s = cost.exposed_of_step_s(accumulation_steps)
        return _StepCommunication(pass_s=compute_s, exposed_s=exposed_s, basis=f"communication: {timed}")
    if layout.num_replicas == 1 and layout.parallelism.tensor_parallel_degree == 1:
        return _StepCommunication(pass_s=compute_s, exposed_s=0.0)
    if layout.network is not None and costs.gradient_bytes is not None:
        return _compute_communication(layout, layout.network, compute_s, accumulation_steps)
    return _scale_communication(layout, cost, accumulation_steps)


def _scale_communication(layout: Layout, cost: PassCost, accumulation_steps: int) -> _StepCommunication:
    """Return what was timed times the bytes that each rank sends over those that it sent."""
    assert cost.compute_s is not None and cost.exposed_s is not None  # the caller has asked
    costs = layout.costs
    ranks = counted(costs.parallelism.num_ranks, "rank")
    caution = (
        f"communication was timed between {ranks}{_describe_hosts(costs.num_hosts)}, and is planned between "
        f"{layout.devices.number}{_describe_hosts(layout.devices.num_nodes)}: time these by bexplore network, or give "
        "`network`"
    )
    if costs.gradient_bytes is None or costs.parallelism.tensor_parallel_degree > 1:
        return _StepCommunication(
            pass_s=cost.mean_s(accumulation_steps),
            exposed_s=None,
            basis=f"communication: within the passes, as between the {ranks} that were timed",
            caution=caution,
        )
    timed = costs.find_communication(costs.parallelism)
    planned = costs.find_communication(layout.parallelism, layout.division)
    inner, last = (
        planned.sent_bytes(is_last=is_last) / (timed.sent_bytes(is_last=is_last) or math.inf)
        for is_last in (False, True)
    )
    last_s = (cost.exposed_s + cost.last_s - cost.seconds) * last
    return _StepCommunication(
        pass_s=cost.compute_s,
        exposed_s=(accumulation_steps - 1) * cost.exposed_s * inner + last_s,
        basis=f"communication: timed between {ranks}, and by the bytes that each rank sends {last:.3g} times that",
        caution=caution,
    )


def _compute_communication(
    layout: Layout, network: Network, pass_s: float, accumulation_steps: int
) -> _StepCommunication:
    """Return it by the speeds of a network, beside the computation of one device's part of the pass."""
    costs, overlap = layout.costs, layout.request.overlap
    planned = costs.find_communication(layout.parallelism, layout.division)
    if overlap is None:
        overlap = 0.0 if costs.is_on_cpu else 1.0
    inner_s, last_s = (
        float(planned.expose(network, overlap, is_last=is_last).exposed_s(pass_s / layout.division))
        for is_last in (False, True)
    )
    return _StepCommunication(
        pass_s=pass_s,
        exposed_s=(accumulation_steps - 1) * inner_s + last_s,
        basis=f"communication: {planned.sent_bytes(is_last=True) / 1e6:,.4g} MB that each rank sends in the last pass "
        f"of a step, {network}, {overlap:.0%} of the computation beside it",
        is_by_network=True,
    )


def _describe_hosts(number: int | None) -> str:
    return "" if number is None else " within 1 host" if number == 1 else f" on {number} hosts"
