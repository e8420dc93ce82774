"""Whether a rank of a plan holds more than the rank that was measured, and whether that fits.

A rank holds its share of the weights, gradients and optimizer states, of which there are more where fewer devices share
a model, and the activations of its micro-batch, which tensor-parallel ranks share. Source: FSDP, arXiv 2304.11277,
section 3; Megatron-LM, arXiv 2205.05198, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bexplore.errors import UserInputError
from bexplore.exploration.memory_budget import COLLECTIVES_BYTES
from bexplore.planning.layout import Layout
from bexplore.planning.step_costs import StepCosts
from bexplore.units import format_bytes


def sizes_that_fit(costs: StepCosts, layout: Layout, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that fit a rank of the layout, all where that is not known.

    Raises:
        UserInputError: None fits; the message has the need of the smallest.
    """
    if not sizes or not _holds_more(costs, layout):
        return list(sizes)
    needs = {size: _needed_bytes(costs, layout, size) for size in sizes}
    fitting = [size for size, need in needs.items() if need is None or need <= (costs.memory_budget_bytes or math.inf)]
    if fitting:
        return fitting
    smallest, own = min(sizes), costs.parallelism
    raise UserInputError(
        f"a rank of {layout.parallelism} needs {format_bytes(needs[smallest])} with micro-batch size {smallest}, of "
        f"{format_bytes(costs.memory_budget_bytes)}: by the trace it holds {_parameters_over_timed(costs, layout):.3g} "
        "times the parameters of the rank that was measured",
        hint=f"type --devices {own.num_ranks} or more, and no smaller --tensor-parallel than "
        f"{own.tensor_parallel_degree}",
    )


def memory_caution(costs: StepCosts, layout: Layout, size: int) -> str:
    """Return what a rank of a layout holds that was not measured and may not fit; empty for nothing."""
    if _holds_more(costs, layout) and _needed_bytes(costs, layout, size) is None:
        return (
            f"a rank of {layout.parallelism} holds {_parameters_over_timed(costs, layout):.3g} times the parameters of "
            "the rank that was measured: whether these fit is not known"
        )
    extra = _extra_of_replicas(costs, layout)
    peak, budget = _peak_bytes(costs, size), costs.memory_budget_bytes
    if not extra or peak is None or budget is None or peak + extra <= budget:
        return ""
    return (
        f"one device was measured alone: a replica of several may need up to {format_bytes(extra)} more for gradient "
        f"buckets and collectives, {format_bytes(peak + extra)} of {format_bytes(budget)} with micro-batch size {size}"
    )


def _parameters_over_timed(costs: StepCosts, layout: Layout) -> float:
    """Return the parameters of a rank of the layout over those of the rank that was measured."""
    own, planned = costs.parallelism, layout.parallelism
    timed = own.data_parallel_shard_degree * own.tensor_parallel_degree
    return timed / (planned.data_parallel_shard_degree * planned.tensor_parallel_degree * layout.pipeline_stages)


def _activations_over_timed(costs: StepCosts, layout: Layout) -> float:
    """Return the same of activations; a pipeline's stage keeps as many micro-batches as it has fewer layers."""
    return costs.parallelism.tensor_parallel_degree / layout.parallelism.tensor_parallel_degree


def _holds_more(costs: StepCosts, layout: Layout) -> bool:
    return max(_parameters_over_timed(costs, layout), _activations_over_timed(costs, layout)) > 1


def _needed_bytes(costs: StepCosts, layout: Layout, size: int) -> float | None:
    """Return the peak of a rank of the layout by the trace's shares of states and activations; None without one."""
    peak = _peak_bytes(costs, size)
    if costs.cost_model is None or peak is None:
        return None
    states = min(peak, sum(buffer.size(0) for buffer in costs.cost_model.resident))
    return states * _parameters_over_timed(costs, layout) + (peak - states) * _activations_over_timed(costs, layout)


def _peak_bytes(costs: StepCosts, size: int) -> float | None:
    """Return the peak of a size on a rank as it was timed: measured, or by the trace."""
    cost = costs.passes.get(size)
    if cost is not None and cost.peak_bytes is not None:
        return cost.peak_bytes
    return None if costs.cost_model is None else costs.cost_model.peak_memory_bytes(size)


def _extra_of_replicas(costs: StepCosts, layout: Layout) -> float:
    """Return what a replica holds beside what one device alone does. Source: as for `memory_budget._reserve`."""
    if costs.parallelism.is_distributed or costs.num_replicas > 1 or not layout.parallelism.is_replicated_only:
        return 0.0
    buckets = (costs.gradient_bytes or 0.0) / layout.division(costs)
    return buckets + (0 if costs.is_on_cpu else COLLECTIVES_BYTES)
