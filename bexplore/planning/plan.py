"""A plan: the step of a global batch on so many devices, and what the training takes with it.

Model-flops utilization is the operations of the model over what the devices could do at their published peak (Source:
PaLM, arXiv 2204.02311, appendix B); hardware-flops utilization counts recomputed ones too.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bexplore.planning.layout import Layout
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.request import PlanRequest
from bexplore.planning.step import step_of
from bexplore.planning.step_costs import StepCosts

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
        network: The speeds by which communication was reckoned, in words; None where none were used.
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
    network: str | None = None
    basis: tuple[str, ...] = ()
    is_in_time: bool | None = None
    cautions: tuple[str, ...] = ()

    def share(self, part_s: float | None) -> float | None:
        """Return the share of a part of the step, 0 to 1."""
        return None if part_s is None else part_s / self.step_time_s


def make_plan(
    costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int, network: NetworkFigures | None
) -> Plan:
    """Return the plan of a global batch size on some devices.

    Raises:
        UserInputError: The batch cannot be shared so, or does not fit.
    """
    step = step_of(costs, request, layout, batch_size, network)
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
        network=None if step.network is None else str(step.network),
        basis=step.basis,
        cautions=step.cautions,
        is_in_time=None if request.until_s is None or training_s is None else training_s <= request.until_s,
    )


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
