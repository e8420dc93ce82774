"""The step of a global batch on so many devices: its passes, its update, its communication and its bubble.

`global batch size = accumulation steps x replicas x micro-batch size`. A pipeline of p stages takes m + p - 1 passes of
a stage for m micro-batches, (p - 1) / (m + p - 1) of them idle (Source: Narayanan et al., arXiv 2104.04473, section
2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bexplore.errors import UserInputError
from bexplore.job import Precision
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.planning.layout import Layout
from bexplore.planning.nearest import refuse_batch
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.rank_memory import memory_caution, sizes_that_fit
from bexplore.planning.request import PlanRequest
from bexplore.planning.step_communication import communication_in_step
from bexplore.planning.step_costs import PassCost, StepCosts
from bexplore.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The seconds of a step, in parts where these are known; fields as in `Plan`."""

    seconds: float
    micro_batch_size: int | None
    accumulation_steps: int | None
    passes_s: float | None = None
    update_s: float | None = None
    communication_s: float | None = None
    bubble_s: float | None = None
    network: NetworkFigures | None = None
    is_measured: bool = False
    is_predicted: bool = False
    basis: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def step_of(
    costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int, network: NetworkFigures | None
) -> Step:
    """Return the step of a global batch.

    Raises:
        UserInputError: The batch cannot be shared so, or does not fit.
    """
    if request.speeds:
        return _whole_step(costs, request, layout, batch_size)
    sizes = costs.feasible_sizes(batch_size, layout.num_replicas)
    if not sizes:
        raise refuse_batch(costs, request, layout, batch_size)
    steps = [
        _timed_step(costs, request, layout, (batch_size, size), network)
        for size in sizes_that_fit(costs, layout, sizes)
    ]
    return _fastest(steps)


def _fastest(steps: Sequence[Step]) -> Step:
    """Return the fastest step; one of a size that did not run, where it is faster by more than can be told apart."""
    best = min(steps, key=_seconds)
    ran = min((step for step in steps if not step.is_predicted), key=_seconds, default=best)
    return best if best.seconds < (1 - INDIFFERENCE_ZONE) * ran.seconds else ran


def _seconds(step: Step) -> tuple[float, int]:
    return step.seconds, step.micro_batch_size or 0


def _whole_step(costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int) -> Step:
    """Return a step by the speed of whole steps, in which update, communication and bubble are."""
    seconds, basis = _whole_step_s(costs, request, batch_size)
    size = _largest_size(costs, request, layout, batch_size)
    caution = memory_caution(costs, layout, size) if size is not None else _untraced(costs, layout)
    return Step(
        seconds=seconds / layout.devices.number,
        micro_batch_size=size,
        accumulation_steps=None if size is None else -(-batch_size // (size * layout.num_replicas)),
        basis=(basis,),
        cautions=(caution,) if caution else (),
    )


def _largest_size(costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int) -> int | None:
    """Return the largest size that fits by the trace and divides the batch; None where the trace is of other ranks.

    Raises:
        UserInputError: The replicas cannot share the batch.
    """
    if batch_size < layout.num_replicas:
        raise refuse_batch(costs, request, layout, batch_size)
    if not costs.sizes or not layout.divides_as(costs):
        return None
    sizes = costs.feasible_sizes(batch_size, layout.num_replicas)
    if not sizes:
        raise refuse_batch(costs, request, layout, batch_size)
    return max(sizes)


def _untraced(costs: StepCosts, layout: Layout) -> str:
    if layout.divides_as(costs):
        return ""
    return (
        "sizes and memory of a device are not known: the trace is not of these pipeline stages and tensor-parallel "
        "ranks, whose efficiency is in the speed that was given"
    )


def _whole_step_s(costs: StepCosts, request: PlanRequest, batch_size: int) -> tuple[float, str]:
    """Return the device-seconds of a step by the utilization or the throughput of a device, and their basis."""
    if request.rate is not None:
        rate = request.rate.in_samples(costs.tokens_per_sample, "--throughput")
        return batch_size / rate, "the throughput of one device, as stated"
    utilization, name = (request.mfu, "model") if request.mfu is not None else (request.hfu, "hardware")
    operations = costs.model_flops if request.mfu is not None else costs.hardware_flops
    if operations is None or costs.peak_flops_per_s is None or utilization is None:
        raise _unknown_utilization(costs, request.speeds[0], has_operations=operations is not None)
    basis = (
        f"{operations:.4g} operations a sample at a {name}-flops utilization of {utilization:.3g} of "
        f"{costs.peak_flops_per_s / 1e12:.0f} TFLOP/s, of the whole step"
    )
    return operations * batch_size / (utilization * costs.peak_flops_per_s), basis


def _unknown_utilization(costs: StepCosts, option: str, *, has_operations: bool) -> UserInputError:
    throughput = "--throughput '24000 tokens/s' of one device"
    if not has_operations:
        return UserInputError(
            f"{option} needs the operations of a sample, which differ with the lengths of this job's samples",
            hint=f"give {throughput}",
        )
    if costs.precision is Precision.FLOAT32:
        return UserInputError(
            f"{option} needs a published peak, and float32 has no peak in the table, whose figures are of 16-bit "
            "arithmetic",
            hint=f"give {throughput}, or set explore.precision: bfloat16",
        )
    device = f'"{costs.device_name}"' if costs.device_name else "the CPU"
    return UserInputError(
        f"{option} needs a published peak, and {device} has none in the table",
        hint=f"name a device by --device-name h100, or give {throughput}",
    )


def _timed_step(
    costs: StepCosts, request: PlanRequest, layout: Layout, batch: tuple[int, int], network: NetworkFigures | None
) -> Step:
    """Return a step by the passes and the update that were timed.

    Args:
        batch: The global batch size and the micro-batch size.
    """
    batch_size, size = batch
    cost = costs.cost_of(size)
    assert cost is not None  # it is a feasible size
    accumulation, division = -(-batch_size // (size * layout.num_replicas)), layout.division(costs)
    exchanged = communication_in_step(costs, request, layout, cost, accumulation, network)
    pass_s = exchanged.pass_s / division
    passes_s, bubble_s, update_s = (
        accumulation * pass_s,
        (layout.pipeline_stages - 1) * pass_s,
        _update_s(costs, layout),
    )
    basis = (_pass_basis(size, cost), exchanged.basis, _division_basis(costs, layout))
    cautions = (exchanged.caution, memory_caution(costs, layout, size))
    return Step(
        seconds=passes_s + bubble_s + (update_s or 0.0) + (exchanged.exposed_s or 0.0),
        micro_batch_size=size,
        accumulation_steps=accumulation,
        passes_s=passes_s,
        update_s=update_s,
        communication_s=exchanged.exposed_s,
        bubble_s=bubble_s if layout.pipeline_stages > 1 else None,
        network=exchanged.network,
        is_measured=_is_as_timed(costs, layout) and cost.is_exact,
        is_predicted=cost.is_predicted,
        basis=tuple(filter(None, basis)),
        cautions=tuple(filter(None, cautions)),
    )


def _pass_basis(size: int, cost: PassCost) -> str:
    if cost.is_predicted:
        return f"passes of size {size}: predicted between sizes that ran; it did not run"
    how = "as the training runs them" if cost.is_exact else "in the search's program, scaled to the training's"
    return f"passes of size {size}: measured {how}"


def _division_basis(costs: StepCosts, layout: Layout) -> str:
    division = layout.division(costs)
    if division == 1:
        return ""
    return (
        f"work divided by {division:g}: {counted(layout.pipeline_stages, 'pipeline stage')}, "
        f"{counted(layout.parallelism.tensor_parallel_degree, 'tensor-parallel rank')} (timed with "
        f"{costs.parallelism.tensor_parallel_degree}); what these exchange is left out"
    )


def _is_as_timed(costs: StepCosts, layout: Layout) -> bool:
    """Whether the ranks that were timed are those of the plan."""
    same = layout.has_ranks_of(costs) and not layout.has_other_hosts(costs)
    return same and (costs.holds_communication or not costs.parallelism.is_distributed)


def _update_s(costs: StepCosts, layout: Layout) -> float | None:
    """Return the seconds of an update of one rank's share of the parameters, in proportion to that share."""
    if costs.update_s is None:
        return None
    own, planned = costs.parallelism, layout.parallelism
    shares = planned.data_parallel_shard_degree / own.data_parallel_shard_degree
    return costs.update_s / (shares * layout.division(costs))
