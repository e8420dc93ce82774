"""How the devices of a plan share its work."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bexplore.errors import UserInputError
from bexplore.job import Parallelism
from bexplore.planning.request import Devices, PlanRequest
from bexplore.planning.step_costs import StepCosts
from bexplore.units import counted


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

    def has_ranks_of(self, costs: StepCosts) -> bool:
        """Whether it has as many ranks as were timed, which share the work alike."""
        return self.parallelism == costs.parallelism and self.pipeline_stages == 1

    def has_other_hosts(self, costs: StepCosts) -> bool:
        """Whether it is said to have another number of hosts than the ranks that were timed."""
        return None not in (self.devices.num_nodes, costs.num_hosts) and self.devices.num_nodes != costs.num_hosts

    def divides_as(self, costs: StepCosts) -> bool:
        """Whether a replica has as many devices as in the job."""
        same = self.parallelism.tensor_parallel_degree == costs.parallelism.tensor_parallel_degree
        return same and self.pipeline_stages == 1

    def division(self, costs: StepCosts) -> float:
        """Return by what the pass of a rank that was timed is divided."""
        own = costs.parallelism.tensor_parallel_degree
        return self.pipeline_stages * self.parallelism.tensor_parallel_degree / own


def devices_of_replica(costs: StepCosts, request: PlanRequest) -> int:
    """Return the devices that share one replica."""
    tensor = request.tensor_parallel_degree or costs.parallelism.tensor_parallel_degree
    return request.pipeline_stages * tensor


def layout_of(costs: StepCosts, request: PlanRequest, devices: Devices) -> Layout:
    """Return how so many devices share the work.

    Raises:
        UserInputError: They cannot: a replica takes another number of them.
    """
    stages, of_replica = request.pipeline_stages, devices_of_replica(costs, request)
    tensor = of_replica // stages
    if costs.num_blocks and stages > costs.num_blocks:
        raise UserInputError(
            f"{counted(stages, 'pipeline stage')} cannot share the {counted(costs.num_blocks, 'block')} of the model",
            hint=f"type --pipeline-stages {costs.num_blocks} or fewer",
        )
    if devices.number % of_replica:
        below = devices.number // of_replica * of_replica
        near = [number for number in (below, below + of_replica) if number]
        raise UserInputError(
            f"{counted(devices.number, 'device')} {'is' if devices.number == 1 else 'are'} not a multiple of the "
            f"{of_replica} of a replica "
            f"({counted(stages, 'pipeline stage')} of {counted(tensor, 'tensor-parallel rank')})",
            hint=f"type --devices {' or '.join(map(str, near))}",
        )
    parallelism = dataclasses.replace(costs.parallelism, tensor_parallel_degree=tensor)
    return Layout(devices=devices, parallelism=parallelism.of_ranks(devices.number // stages), pipeline_stages=stages)
