"""A plan: the step of a global batch on so many devices, and what the training takes with it.

`global batch size = accumulation steps x replicas x micro-batch size`. A step is its passes, the update, what
communication is not hidden, and the bubble of a pipeline: of m micro-batches over p stages m + p - 1 passes of a stage,
(p - 1) / (m + p - 1) of them idle (Source: Narayanan et al., arXiv 2104.04473, section 2.2). Model-flops utilization is
the operations of the model over what the devices could do at their published peak (Source: PaLM, arXiv 2204.02311,
appendix B); hardware-flops utilization counts recomputed ones too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bexplore.errors import UserInputError
from bexplore.job import Parallelism
from bexplore.job.batching import is_valid_global_batch_size, near_value_message
from bexplore.planning.communication import Communication, communication_of
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.request import Devices, PlanRequest
from bexplore.planning.step_costs import PassCost, StepCosts
from bexplore.units import counted

SECONDS_PER_HOUR, SECONDS_PER_DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to train. None means unknown, never 0.

    Attributes:
        num_devices: Devices of all nodes.
        num_nodes: Nodes; None where that was not said.
        num_replicas: Data-parallel replicas.
        global_batch_size: Samples of an optimizer step.
        global_batch_tokens: Its tokens.
        micro_batch_size: Samples of one replica in one pass.
        accumulation_steps: Passes of a step.
        num_steps: Optimizer steps of the training.
        step_time_s: Seconds of a step.
        passes_s: Of its passes, the part that computes.
        update_s: Of its update.
        communication_s: Of its communication, what computation does not hide.
        bubble_s: Of its pipeline's bubble.
        training_time_s: Seconds of all steps.
        device_hours: Of all devices.
        price: Of the device-hours.
        samples_per_s: Of all replicas.
        tokens_per_s: Of all replicas.
        mfu: Model-flops utilization, 0 to 1.
        hfu: Hardware-flops utilization.
        is_measured: Whether the step was timed as it is planned, on as many ranks.
        basis: Where its figures are from, a sentence each.
        is_in_time: Whether it ends within the time that was wished.
        cautions: What to know before it is used.
    """

    num_devices: int
    num_nodes: int | None
    num_replicas: int
    global_batch_size: int
    global_batch_tokens: float | None
    micro_batch_size: int | None
    accumulation_steps: int | None
    num_steps: int | None
    step_time_s: float
    passes_s: float | None
    update_s: float | None
    communication_s: float | None
    bubble_s: float | None
    training_time_s: float | None
    device_hours: float | None
    price: float | None
    samples_per_s: float
    tokens_per_s: float | None
    mfu: float | None
    hfu: float | None
    is_measured: bool
    basis: tuple[str, ...] = ()
    is_in_time: bool | None = None
    cautions: tuple[str, ...] = ()

    def share(self, part_s: float | None) -> float | None:
        """Return the share of a part of the step, 0 to 1."""
        return None if part_s is None else part_s / self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How devices share the work.

    Attributes:
        devices: All of them.
        parallelism: Of one pipeline stage's devices.
        pipeline_stages: Devices that share the layers of a replica.
    """

    devices: Devices
    parallelism: Parallelism
    pipeline_stages: int

    @property
    def num_replicas(self) -> int:
        """Data-parallel replicas."""
        return self.parallelism.num_replicas


def layout_of(costs: StepCosts, request: PlanRequest, devices: Devices) -> Layout:
    """Return how so many devices share the work.

    Raises:
        UserInputError: They cannot: a replica takes another number of them.
    """
    stages, own = request.pipeline_stages, costs.parallelism
    tensor = request.tensor_parallel_degree or own.tensor_parallel_degree
    of_replica = stages * tensor
    if devices.number % of_replica:
        near = [
            n for n in (devices.number // of_replica * of_replica, -(-devices.number // of_replica) * of_replica) if n
        ]
        raise UserInputError(
            f"{counted(devices.number, 'device')} are not a multiple of the {of_replica} of a replica "
            f"({counted(stages, 'pipeline stage')} of {counted(tensor, 'tensor-parallel rank')})",
            hint=f"type --devices {' or '.join(map(str, near))}",
        )
    parallelism = dataclasses.replace(own, tensor_parallel_degree=tensor).of_ranks(devices.number // stages)
    return Layout(devices=devices, parallelism=parallelism, pipeline_stages=stages)


def make_plan(
    costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int, network: NetworkFigures | None
) -> Plan:
    """Return the plan of a global batch size on some devices.

    Raises:
        UserInputError: The batch cannot be shared so.
    """
    step = _step(costs, request, layout, batch_size, network)
    num_steps = _num_steps(costs, request, batch_size)
    training_s = None if num_steps is None else num_steps * step.seconds / request.effective_time
    hours = None if training_s is None else training_s * layout.devices.number / SECONDS_PER_HOUR
    tokens = None if costs.tokens_per_sample is None else batch_size * costs.tokens_per_sample
    return Plan(
        num_devices=layout.devices.number,
        num_nodes=layout.devices.num_nodes,
        num_replicas=layout.num_replicas,
        global_batch_size=batch_size,
        global_batch_tokens=tokens,
        micro_batch_size=step.micro_batch_size,
        accumulation_steps=step.accumulation_steps,
        num_steps=num_steps,
        step_time_s=step.seconds,
        passes_s=step.passes_s,
        update_s=step.update_s,
        communication_s=step.communication_s,
        bubble_s=step.bubble_s,
        training_time_s=training_s,
        device_hours=hours,
        price=None if hours is None or request.price_per_device_hour is None else hours * request.price_per_device_hour,
        samples_per_s=batch_size / step.seconds,
        tokens_per_s=None if tokens is None else tokens / step.seconds,
        mfu=_utilization(costs.model_flops, costs, layout, batch_size / step.seconds),
        hfu=_utilization(costs.hardware_flops, costs, layout, batch_size / step.seconds),
        is_measured=step.is_measured,
        basis=step.basis,
        is_in_time=None if request.until_s is None or training_s is None else training_s <= request.until_s,
    )


def feasible_sizes(costs: StepCosts, batch_size: int, num_replicas: int) -> list[int]:
    """Return the micro-batch sizes with which a global batch is valid, ascending."""
    known: Sequence[int] = sorted(costs.passes) or range(1, min(costs.sizes, batch_size) + 1)
    rule = costs.divisibility
    return [size for size in known if is_valid_global_batch_size(batch_size, size, num_replicas, rule)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The seconds of a step, in parts where these are known."""

    seconds: float
    micro_batch_size: int | None
    accumulation_steps: int | None
    passes_s: float | None = None
    update_s: float | None = None
    communication_s: float | None = None
    bubble_s: float | None = None
    is_measured: bool = False
    basis: tuple[str, ...] = ()


def _step(
    costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int, network: NetworkFigures | None
) -> _Step:
    if batch_size < layout.num_replicas:
        raise UserInputError(
            f"a global batch of {counted(batch_size, 'sample')} cannot feed {counted(layout.num_replicas, 'replica')}",
            hint=f"type --batch-size {layout.num_replicas}, or fewer devices",
        )
    sizes = feasible_sizes(costs, batch_size, layout.num_replicas)
    if request.speeds:
        return _whole_step(costs, request, layout, batch_size, sizes)
    if not sizes:
        size = costs.micro_batch_size or max(costs.passes)
        message = near_value_message(batch_size, size, layout.num_replicas, costs.divisibility)
        raise UserInputError(f"no size that ran divides the batch: {message}", hint="type one of these as --batch-size")
    timed = (_timed_step(costs, request, layout, (batch_size, size), network) for size in sizes)
    return min(timed, key=lambda step: (step.seconds, step.micro_batch_size or 0))


def _whole_step(costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int, sizes: Sequence[int]) -> _Step:
    """Return a step by the speed of whole steps, in which update, communication and bubble are."""
    seconds, basis = _whole_step_s(costs, request, batch_size)
    size = max(sizes, default=None)
    accumulation = None if size is None else -(-batch_size // (size * layout.num_replicas))
    return _Step(
        seconds=seconds / layout.devices.number,
        micro_batch_size=size,
        accumulation_steps=accumulation,
        basis=(basis,),
    )


def _whole_step_s(costs: StepCosts, request: PlanRequest, batch_size: int) -> tuple[float, str]:
    """Return the device-seconds of a step by the utilization or the throughput of a device, and their basis."""
    if request.rate is not None:
        rate = request.rate.in_samples(costs.tokens_per_sample, "--throughput")
        return batch_size / rate, "the throughput of one device, as stated"
    utilization, name = (request.mfu, "model") if request.mfu is not None else (request.hfu, "hardware")
    operations = costs.model_flops if request.mfu is not None else costs.hardware_flops
    if operations is None or costs.peak_flops_per_s is None or utilization is None:
        of_peak = f"published peak of {costs.device_name or 'the CPU'} in the job's precision, which is not known"
        raise UserInputError(
            f"{request.speeds[0]} needs the {'operations of the model' if operations is None else of_peak}",
            hint="name a device by --device-name h100 (peaks are those of 16-bit arithmetic), or give --throughput "
            "'24000 tokens/s' of one device",
        )
    basis = (
        f"{operations:.4g} operations a sample at a {name}-flops utilization of {utilization:.3g} of "
        f"{costs.peak_flops_per_s / 1e12:.0f} TFLOP/s, of the whole step"
    )
    return operations * batch_size / (utilization * costs.peak_flops_per_s), basis


def _timed_step(
    costs: StepCosts, request: PlanRequest, layout: Layout, batch: tuple[int, int], network: NetworkFigures | None
) -> _Step:
    """Return a step by the passes and the update that were timed.

    Args:
        batch: The global batch size and the micro-batch size.
    """
    batch_size, size = batch
    cost = costs.passes[size]
    accumulation = -(-batch_size // (size * layout.num_replicas))
    division = (
        layout.pipeline_stages * layout.parallelism.tensor_parallel_degree / costs.parallelism.tensor_parallel_degree
    )
    pass_s, exposed_s, basis = _exchange(costs, request, layout, cost, accumulation, network)
    passes_s, bubble_s = accumulation * pass_s / division, (layout.pipeline_stages - 1) * pass_s / division
    update_s = _update_s(costs, layout)
    return _Step(
        seconds=passes_s + bubble_s + (update_s or 0.0) + (exposed_s or 0.0),
        micro_batch_size=size,
        accumulation_steps=accumulation,
        passes_s=passes_s,
        update_s=update_s,
        communication_s=exposed_s,
        bubble_s=bubble_s if layout.pipeline_stages > 1 else None,
        is_measured=_is_as_timed(costs, layout) and cost.is_exact,
        basis=(_pass_basis(size, cost), *basis, *_division_basis(costs, layout, division)),
    )


def _pass_basis(size: int, cost: PassCost) -> str:
    how = "as the training runs them" if cost.is_exact else "in the search's program, scaled to the training's"
    return f"passes of size {size}: measured {how}"


def _division_basis(costs: StepCosts, layout: Layout, division: float) -> Iterator[str]:
    if division != 1:
        yield (
            f"work divided by {division:g}: {counted(layout.pipeline_stages, 'pipeline stage')}, "
            f"{counted(layout.parallelism.tensor_parallel_degree, 'tensor-parallel rank')} (timed with "
            f"{costs.parallelism.tensor_parallel_degree}); what these exchange is left out"
        )


def _is_as_timed(costs: StepCosts, layout: Layout) -> bool:
    """Whether the ranks that were timed are those of the plan."""
    same = layout.parallelism == costs.parallelism and layout.pipeline_stages == 1
    return same and (costs.holds_communication or not costs.parallelism.is_distributed)


def _update_s(costs: StepCosts, layout: Layout) -> float | None:
    """Return the seconds of an update of one rank's share of the parameters, in proportion to that share."""
    if costs.update_s is None:
        return None
    own, planned = costs.parallelism, layout.parallelism
    shares = planned.data_parallel_shard_degree / own.data_parallel_shard_degree
    shares *= planned.tensor_parallel_degree / own.tensor_parallel_degree
    return costs.update_s / (shares * layout.pipeline_stages)


def _exchange(
    costs: StepCosts,
    request: PlanRequest,
    layout: Layout,
    cost: PassCost,
    accumulation: int,
    network: NetworkFigures | None,
) -> tuple[float, float | None, tuple[str, ...]]:
    """Return the seconds of a pass without exposed communication, those of a step's communication, and their basis."""
    planned = _communication(costs, layout.parallelism, layout.pipeline_stages)
    if costs.holds_communication and costs.parallelism.is_distributed:
        return _scaled_exchange(costs, layout, cost, planned)
    if layout.num_replicas == 1:
        return cost.seconds, 0.0, ()
    if network is None or planned is None:
        return cost.seconds, None, ("communication of replicas: not known, and left out",)
    overlap = (0.0 if costs.is_on_cpu else 1.0) if request.overlap is None else request.overlap
    inner_s, last_s = (
        planned.exposed_s(network, cost.seconds / layout.pipeline_stages, overlap, is_last=last)
        for last in (False, True)
    )
    sent = planned.sent_bytes(is_last=True)
    basis = (
        f"communication: {sent / 1e6:,.4g} MB that each rank sends in the last pass of a step, {network}, "
        f"{overlap:.0%} of the computation beside it"
    )
    return cost.seconds, (accumulation - 1) * inner_s + last_s, (basis,)


def _scaled_exchange(
    costs: StepCosts, layout: Layout, cost: PassCost, planned: Communication | None
) -> tuple[float, float | None, tuple[str, ...]]:
    """Return the same where all ranks were timed: what the last pass took longer, by the bytes that each rank sends."""
    timed_s = cost.last_s - cost.seconds
    timed = _communication(costs, costs.parallelism, 1)
    if layout.parallelism == costs.parallelism and layout.pipeline_stages == 1:
        return cost.seconds, timed_s, (f"communication: timed between {costs.parallelism.num_ranks} ranks",)
    if timed is None or planned is None:
        return cost.seconds, timed_s, ("communication: as between the ranks that were timed",)
    share = planned.sent_bytes(is_last=True) / (timed.sent_bytes(is_last=True) or math.inf)
    basis = (
        f"communication: timed between {costs.parallelism.num_ranks} ranks, and by the bytes that each rank sends "
        f"{share:.3g} times that"
    )
    return cost.seconds, timed_s * share, (basis,)


def _communication(costs: StepCosts, parallelism: Parallelism, stages: int) -> Communication | None:
    if costs.gradient_bytes is None:
        return None
    share = costs.parallelism.tensor_parallel_degree / (parallelism.tensor_parallel_degree * stages)
    return communication_of(parallelism, costs.gradient_bytes * share, num_blocks=costs.num_blocks)


def _num_steps(costs: StepCosts, request: PlanRequest, batch_size: int) -> int | None:
    if request.work.is_given:
        return request.work.num_steps(batch_size, costs.tokens_per_sample)
    if costs.max_steps is None or costs.batch_size is None:
        return costs.max_steps
    return max(1, math.ceil(costs.max_steps * costs.batch_size / batch_size))  # as many samples as the file trains


def _utilization(flops: float | None, costs: StepCosts, layout: Layout, samples_per_s: float) -> float | None:
    if flops is None or costs.peak_flops_per_s is None:
        return None
    return flops * samples_per_s / (layout.devices.number * costs.peak_flops_per_s)


def as_record(plan: Plan) -> dict[str, Any]:
    """Return the `training_plan` event."""
    return {"event": "training_plan"} | dataclasses.asdict(plan)
