"""How devices share the work of a planned job: their batches, and whether a rank's part fits its memory.

A rank holds its share of the weights, gradients and optimizer states, of which there are more where fewer devices share
a model, and the activations of its micro-batch, which tensor-parallel ranks share. Source: FSDP, arXiv 2304.11277,
section 3; Megatron-LM, arXiv 2205.05198, section 4.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bexplore.errors import UserInputError, require
from bexplore.estimate.collectives import Interconnect, Network
from bexplore.host.accelerators import COLLECTIVES_BYTES
from bexplore.job import Parallelism
from bexplore.job.batching import divisors, nearest, valid_global_batch_sizes
from bexplore.planning.costs import StepCosts
from bexplore.planning.request import Devices, PlanRequest
from bexplore.units import counted, format_bytes

# Share by which a batch that was given in tokens may be moved to one that the devices share well. Source: half of the
# last digit of a batch that is stated with one, such as 4M for the 4,194,304 of 2,048 samples of 2,048 tokens (LLaMA).
ROUNDING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How devices share the work of a planned job: all that its steps depend on but the batch."""

    costs: StepCosts  # of a step, as it was timed or traced
    request: PlanRequest  # what is asked for
    network: Network | None  # speeds between replicas, where these were not timed together; None if unknown
    devices: Devices  # all of them
    parallelism: Parallelism  # of one pipeline stage's devices

    @property
    def num_replicas(self) -> int:
        """Data-parallel replicas."""
        return self.parallelism.num_replicas

    @property
    def pipeline_stages(self) -> int:
        """Devices that share the layers of a replica."""
        return self.request.pipeline_stages

    @property
    def is_as_timed(self) -> bool:
        """Whether its ranks share the work as those that were timed did, on as many hosts as far as these are known."""
        hosts = (self.devices.num_nodes, self.costs.num_hosts)
        is_on_other_hosts = None not in hosts and hosts[0] != hosts[1]
        return self.parallelism == self.costs.parallelism and self.pipeline_stages == 1 and not is_on_other_hosts

    @property
    def is_divided_as_timed(self) -> bool:
        """Whether a replica has as many devices as in the job."""
        same = self.parallelism.tensor_parallel_degree == self.costs.parallelism.tensor_parallel_degree
        return same and self.pipeline_stages == 1

    @property
    def division(self) -> float:
        """By what the pass of a rank that was timed is divided."""
        own = self.costs.parallelism.tensor_parallel_degree
        return self.pipeline_stages * self.parallelism.tensor_parallel_degree / own

    @property
    def parameters_over_timed(self) -> float:
        """Parameters of a rank over those of the rank that was timed."""
        own, planned = self.costs.parallelism, self.parallelism
        timed = own.data_parallel_shard_degree * own.tensor_parallel_degree
        return timed / (planned.data_parallel_shard_degree * planned.tensor_parallel_degree * self.pipeline_stages)

    @property
    def activations_over_timed(self) -> float:
        """The same of activations; a pipeline's stage keeps as many micro-batches as it has fewer layers."""
        return self.costs.parallelism.tensor_parallel_degree / self.parallelism.tensor_parallel_degree

    @property
    def holds_more(self) -> bool:
        """Whether a rank may need more memory than the one that was timed."""
        return max(self.parameters_over_timed, self.activations_over_timed) > 1


def count_devices_of_replica(costs: StepCosts, request: PlanRequest) -> int:
    """Return the devices that share one replica."""
    tensor = request.tensor_parallel_degree or costs.parallelism.tensor_parallel_degree
    return request.pipeline_stages * tensor


def lay_out(costs: StepCosts, request: PlanRequest, network: Network | None, devices: Devices) -> Layout:
    """Return how so many devices share the work; an error names the nearest numbers that can.

    Args:
        network: Speeds between replicas, timed or stated; None for those that are published of the devices' links.
    """
    stages, of_replica = request.pipeline_stages, count_devices_of_replica(costs, request)
    require(
        not costs.num_blocks or stages <= costs.num_blocks,
        f"{counted(stages, 'pipeline stage')} cannot share the {counted(costs.num_blocks, 'block')} of the model",
        f"type `pipeline_stages={costs.num_blocks}` or fewer",
    )
    if devices.number % of_replica:
        below = devices.number // of_replica * of_replica
        raise UserInputError(
            f"{counted(devices.number, 'device')} cannot be divided among replicas of {of_replica} devices",
            hint=f"type `devices={_either((below or None, below + of_replica))}`",
        )
    tensor = of_replica // stages
    parallelism = dataclasses.replace(costs.parallelism, tensor_parallel_degree=tensor)
    parallelism = parallelism.with_ranks(devices.number // stages)
    network = network or _find_links(costs, devices)
    return Layout(costs=costs, request=request, network=network, devices=devices, parallelism=parallelism)


def _find_links(costs: StepCosts, devices: Devices) -> Interconnect | None:
    """Return the published links between some devices; None where one is unknown, or ranks were timed together."""
    links = None if costs.holds_communication else costs.interconnect
    if links is not None and devices.num_nodes is not None:
        in_node = dataclasses.replace(links.links, num_devices=devices.number // devices.num_nodes)
        links = dataclasses.replace(links, links=in_node)
    return links if links is not None and links.knows(devices.number) else None


def refuse_batch(layout: Layout, batch_size: int) -> UserInputError:
    """Return the error of a batch that the replicas cannot share, with the nearest batches and devices that can."""
    costs, replicas = layout.costs, layout.num_replicas
    listed = [one for size in sorted(costs.passes) or [1] for one in _near_batches(costs, size, replicas, batch_size)]
    possible = [
        number
        for number in divisors(batch_size)
        if costs.feasible_sizes(batch_size, number) or not (costs.is_measured or costs.sizes)
    ]
    of_replica = count_devices_of_replica(costs, layout.request)
    devices = _either(nearest([number * of_replica for number in possible], layout.devices.number))
    sizes = " with a micro-batch size that ran" if costs.is_measured else ""
    return UserInputError(
        f"a global batch of {counted(batch_size, 'sample')} cannot be divided among {counted(replicas, 'replica')}"
        f"{sizes}",
        hint=f"type `batch_sizes={_either(nearest(listed, batch_size))}`"
        + (f", or `devices={devices}`" if devices else ""),
    )


def _near_batches(costs: StepCosts, size: int, num_replicas: int, near: int) -> list[int]:
    listed = valid_global_batch_sizes(size, num_replicas, near, costs.divisibility)
    return [one.global_batch_size for one in listed]


def _either(near: Iterable[int | None]) -> str:
    return " or ".join(str(number) for number in dict.fromkeys(near) if number is not None)


def round_batch(costs: StepCosts, num_replicas: int, samples: float) -> int:
    """Return the global batch near a number of samples that some replicas share with the best size that allows it.

    The recommended size comes first, then larger before smaller ones; where none has a multiple within `ROUNDING`, the
    nearest multiple of any is taken.
    """
    recommended = costs.micro_batch_size
    sizes = sorted(costs.passes or range(1, max(1, costs.sizes) + 1), key=lambda size: (size != recommended, -size))
    wanted = max(1, round(samples))
    best = None
    for size in sizes:
        batch = min(_near_batches(costs, size, num_replicas, wanted), key=lambda one: abs(one - samples))
        if abs(batch - samples) <= ROUNDING * samples:
            return batch
        if best is None or abs(batch - samples) < abs(best - samples):
            best = batch
    return wanted if best is None else best


def round_to_many_divisors(costs: StepCosts, samples: float) -> int:
    """Return a global batch near a number of samples that many numbers of replicas can share.

    It is the nearest multiple, within `ROUNDING`, of the recommended size and the highest power of two.
    """
    batch = round_batch(costs, 1, samples)
    unit = costs.largest_useful_size or 1
    while unit <= samples:
        multiple = max(1, round(samples / unit)) * unit
        if abs(multiple - samples) <= ROUNDING * samples:
            batch = multiple
        unit *= 2
    return batch


def keep_sizes_that_fit(layout: Layout, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that fit a rank, all where that is not known; an error names the need of the smallest."""
    if not layout.holds_more:
        return list(sizes)
    budget = layout.costs.memory_budget_bytes
    needs = {size: _needed_bytes(layout, size) for size in sizes}
    fitting = [size for size, need in needs.items() if need is None or need <= (budget or math.inf)]
    if fitting:
        return fitting
    smallest, own = min(sizes), layout.costs.parallelism
    raise UserInputError(
        f"a rank of {layout.parallelism} needs {format_bytes(needs[smallest])} with micro-batch size {smallest}, of "
        f"{format_bytes(budget)}: by the trace it holds {layout.parameters_over_timed:.3g} times the parameters of the "
        "rank that was measured",
        hint=f"type `devices={own.num_ranks}` or more, and no smaller "
        f"`tensor_parallel_degree` than {own.tensor_parallel_degree}",
    )


def find_memory_caution(layout: Layout, size: int) -> str:
    """Return what a rank holds that was not measured and may not fit; empty for nothing."""
    if layout.holds_more and _needed_bytes(layout, size) is None:
        return (
            f"a rank of {layout.parallelism} holds {layout.parameters_over_timed:.3g} times the parameters of the rank "
            "that was measured: whether these fit is not known"
        )
    extra = _extra_bytes_of_replicas(layout)
    peak, budget = _peak_bytes(layout.costs, size), layout.costs.memory_budget_bytes
    if not extra or peak is None or budget is None or peak + extra <= budget:
        return ""
    return (
        f"one device was measured alone: a replica of several may need up to {format_bytes(extra)} more for gradient "
        f"buckets and collectives, {format_bytes(peak + extra)} of {format_bytes(budget)} with micro-batch size {size}"
    )


def _needed_bytes(layout: Layout, size: int) -> float | None:
    """Return the peak of a rank by the trace's shares of states and activations; None without a trace."""
    peak, model = _peak_bytes(layout.costs, size), layout.costs.cost_model
    if model is None or peak is None:
        return None
    states = min(peak, sum(buffer.size(0) for buffer in model.resident))
    return states * layout.parameters_over_timed + (peak - states) * layout.activations_over_timed


def _peak_bytes(costs: StepCosts, size: int) -> float | None:
    """Return the peak of a size on a rank as it was timed: measured, or by the trace."""
    cost = costs.passes.get(size)
    if cost is not None and cost.peak_bytes is not None:
        return cost.peak_bytes
    return None if costs.cost_model is None else costs.cost_model.peak_memory_bytes(size)


def _extra_bytes_of_replicas(layout: Layout) -> float:
    """Return what a replica holds beside what one device alone does. Source: as for `memory_budget._reserve`."""
    costs = layout.costs
    is_timed_alone = not costs.parallelism.is_distributed and costs.num_replicas == 1
    if not is_timed_alone or not layout.parallelism.is_replicated_only:
        return 0.0
    buckets = (costs.gradient_bytes or 0.0) / layout.division
    return buckets + (0 if costs.is_on_cpu else COLLECTIVES_BYTES)
