"""Plans of a job: one for each number of devices and each batch size, or those around the deadline.

Model-flops utilization is the operations of the model over what the devices could do at their published peak (Source:
PaLM, arXiv 2204.02311, appendix B); hardware-flops utilization counts recomputed ones too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bexplore.errors import UserInputError, require
from bexplore.job.batching import MAX_SAMPLES, divisors
from bexplore.planning.cautions import find_cautions
from bexplore.planning.costs import StepCosts
from bexplore.planning.layout import (
    Layout,
    count_devices_of_replica,
    lay_out,
    round_batch,
    round_to_many_divisors,
)
from bexplore.planning.network import NetworkFigures
from bexplore.planning.request import Amount, Devices, PlanRequest, show_example
from bexplore.planning.step import Plan, plan_step
from bexplore.units import counted, format_count, format_seconds

SECONDS_PER_HOUR, SECONDS_PER_DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPlan:
    """Devices and a global batch size that cannot be planned; reason and hint as of an error."""

    devices: Devices
    batch_size: int
    reason: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The plans of a job."""

    costs: StepCosts  # what is known of its steps
    plans: tuple[Plan, ...]  # in the order that was asked for
    refused: tuple[RefusedPlan, ...] = ()  # what was asked for and cannot be planned
    notes: tuple[str, ...] = ()  # lines that qualify all plans

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a `training_plan` event for each plan, and a `training_plan_refused` event for what cannot be."""
        shared = {
            "origin": self.costs.origin,
            "device_name": self.costs.device_name,
            "notes": list(self.notes),
            "other_settings": [dataclasses.asdict(one) for one in self.costs.other_settings],
        }
        for plan in self.plans:
            yield {"event": "training_plan"} | dataclasses.asdict(plan) | shared
        for one in self.refused:
            yield {
                "event": "training_plan_refused",
                "num_devices": one.devices.number,
                "global_batch_size": one.batch_size,
                "reason": one.reason,
                "hint": one.hint,
            }


def make_plans(
    costs: StepCosts, request: PlanRequest, network: NetworkFigures | None = None, *, is_network_given: bool = True
) -> Plans:
    """Return the plans of a job.

    Args:
        network: Speeds between replicas, where these were not timed together; None if unknown.
        is_network_given: Whether the user has named it; a note follows where it has no effect.
    """
    _check_request(costs, request, network)
    planner = _Planner(costs=costs, request=request, network=network)
    plans, refused = planner.make_plans()
    given = {"network": network is not None and is_network_given, "overlap": request.overlap is not None}
    notes = (
        *costs.notes,
        *(() if network is None else (f"the network: {line}" for line in (*network.slow, *network.notes))),
        *planner.name_what_is_in_time(plans),
        *_name_fields_without_effect(costs, request, plans, [field for field, is_given in given.items() if is_given]),
    )
    with_cautions = (
        dataclasses.replace(plan, cautions=(*plan.cautions, *find_cautions(costs, plan, plans, network)))
        for plan in plans
    )
    return Plans(costs=costs, plans=tuple(with_cautions), refused=tuple(refused), notes=notes)


def _check_request(costs: StepCosts, request: PlanRequest, network: NetworkFigures | None) -> None:
    given = " and ".join(f"`{field}`" for field in request.speeds)
    require(
        not costs.is_measured or not given,
        f"{given} gives the speed of a CONFIG, and this job was measured",
        "leave it out, or name the configuration in place of the run",
    )
    require(
        costs.is_measured or bool(given),
        "a trace gives operations and memory, and no seconds",
        "type `mfu=0.4` (well-tuned training reaches 0.3 to 0.5) and `device_name=h100`, or "
        f"{show_example('rate', costs.tokens_per_sample)} of one device; or explore first, and plan the run",
    )
    require(
        len(request.speeds) < 2,
        f"{given} each give the speed",
        f"keep one of them, such as {given.partition(' ')[0]}",
    )
    require(
        costs.is_measured or (network is None and request.overlap is None),
        f"`network` and `overlap` belong to passes that were measured, and {given} is of whole steps, communication "
        "included",
        "leave them out; or explore first, and plan the run",
    )
    require(
        request.until_s is None or request.work.is_given or costs.max_steps is not None,
        "`until_s` needs to know how much is trained, and the file gives no steps",
        f"type {show_example('tokens', costs.tokens_per_sample)}, or `steps`, or `epochs` and `dataset_size`",
    )


def _name_fields_without_effect(
    costs: StepCosts, request: PlanRequest, plans: Sequence[Plan], of_network: Sequence[str]
) -> Iterator[str]:
    if all(plan.training_time_s is None for plan in plans):
        is_given = {"price_per_device_hour": request.price_per_device_hour is not None}
        is_given["effective_time"] = request.effective_time != 1
        for field in (name for name in is_given if is_given[name]):
            yield f"`{field}` has no effect, as nothing says how much is trained"
    if any(plan.network is not None for plan in plans):
        return
    for field in of_network:
        if all(plan.num_replicas == 1 for plan in plans):
            why = "one replica exchanges nothing with others"
        elif costs.gradient_bytes is None:
            why = "the bytes of the gradients are not known without a trace"
        elif costs.holds_communication and costs.parallelism.is_distributed:
            why = "the ranks of these plans were timed together"
        else:
            why = "no bandwidth is known: give `network`, or time it with bexplore network"
        yield f"`{field}` has no effect: {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    costs: StepCosts
    request: PlanRequest
    network: NetworkFigures | None

    def make_plans(self) -> tuple[list[Plan], list[RefusedPlan]]:
        """Return the plans that are asked for and those that cannot be made; an error where none can."""
        costs, request = self.costs, self.request
        require(
            bool(request.batch_sizes) or costs.batch_size is not None,
            "no batch_size is given",
            f"type `batch_sizes={(costs.micro_batch_size or 1) * costs.num_replicas}`",
        )
        amounts = request.batch_sizes or (Amount(number=costs.batch_size or 0),)
        if request.until_s is not None and not request.devices:
            return [plan for amount in amounts for plan in self._find_fewest_devices(amount)], []
        own_devices = Devices(number=costs.num_replicas * count_devices_of_replica(costs, request))
        plans, refused = [], []
        for devices in request.devices or (own_devices,):
            for amount in amounts:
                try:
                    plans.append(self._plan_amount(devices, amount))
                except UserInputError as error:
                    size = max(1, round(amount.in_samples(costs.tokens_per_sample, "batch_sizes")))
                    refused.append(RefusedPlan(devices=devices, batch_size=size, reason=error.message, hint=error.hint))
        if not plans:
            raise UserInputError(refused[0].reason, hint=refused[0].hint)
        return plans, refused

    def name_what_is_in_time(self, plans: Sequence[Plan]) -> Iterator[str]:
        """Yield a note where no plan is done in time: how long the fastest takes, and on how many devices one is."""
        until_s = self.request.until_s
        if until_s is None or any(plan.is_in_time for plan in plans):
            return
        fastest = min(plans, key=_training_time_s)
        text = (
            f"none of these is done in {format_seconds(until_s)}: type `until_s={fastest.training_time_s}` for "
            f"{counted(fastest.num_devices, 'device')}"
        )
        others = self._plan_all_devices(Amount(number=fastest.global_batch_size))
        enough = next((plan for plan in others if plan.is_in_time), None)
        if enough is None:
            yield f"{text}; no number of devices is done by then with a batch of {fastest.global_batch_size}"
        else:
            yield f"{text}, or `devices={enough.num_devices}`"

    def _plan_amount(self, devices: Devices, amount: Amount) -> Plan:
        """Return the plan of a batch on some devices; tokens become samples that these can share."""
        layout = lay_out(self.costs, self.request, self.network, devices)
        samples = self._count_samples(amount)
        if not amount.is_tokens:
            return _make_plan(layout, round(samples))
        plan = _make_plan(layout, round_batch(self.costs, layout.num_replicas, samples))
        how = f"the nearest that {counted(layout.num_replicas, 'replica')} can share"
        return self._explain_rounding(plan, amount, how)

    def _find_fewest_devices(self, amount: Amount) -> list[Plan]:
        """Return the plan with the fewest devices that ends in time, behind the one before it, which does not."""
        plans = self._plan_all_devices(amount)
        samples = counted(f"{self._count_samples(amount):,.6g}", "sample")
        require(
            bool(plans),
            f"no number of devices shares a batch of {samples} with a size that ran",
            "type `devices` to see why, or another batch",
        )
        index = next((place for place, plan in enumerate(plans) if plan.is_in_time), None)
        if index is not None:
            return plans[max(0, index - 1) : index + 1]
        fastest = min(plans, key=_training_time_s)
        time_s, until_s = _training_time_s(fastest), self.request.until_s or 0.0
        raise UserInputError(
            f"a global batch of {samples} is not trained in {until_s / SECONDS_PER_DAY:.3g} days on any number of "
            f"devices: the fastest takes {time_s / SECONDS_PER_DAY:.3g} days on {fastest.num_devices}",
            hint=f"type `until_s={time_s}`, or a larger batch, which more devices can share",
        )

    def _plan_all_devices(self, amount: Amount) -> list[Plan]:
        """Return a plan for each number of replicas that divides the batch, ascending."""
        samples = self._count_samples(amount)
        batch = round_to_many_divisors(self.costs, samples) if amount.is_tokens else round(samples)
        plans = []
        for replicas in divisors(batch):
            devices = Devices(number=replicas * count_devices_of_replica(self.costs, self.request))
            try:
                plan = _make_plan(lay_out(self.costs, self.request, self.network, devices), batch)
            except UserInputError:
                continue  # this number is none of a choice that the user did not make
            plans.append(self._explain_rounding(plan, amount, "which many numbers of devices can share"))
        return plans

    def _count_samples(self, amount: Amount) -> float:
        samples = amount.in_samples(self.costs.tokens_per_sample, "batch_sizes")
        one = self.costs.tokens_per_sample or 1
        require(
            samples >= 0.5,
            f"a global batch of {format_count(amount.number)} tokens holds no sample, which has {format_count(one)}",
            f"type `batch_sizes={round(one)} tokens` or more",
        )
        require(
            samples <= MAX_SAMPLES,
            f"a global batch of {samples:,.4g} samples is more than {MAX_SAMPLES:,}",
            f"type fewer, such as {show_example('batch_sizes', self.costs.tokens_per_sample)}",
        )
        return samples

    def _explain_rounding(self, plan: Plan, amount: Amount, how: str) -> Plan:
        samples = self._count_samples(amount)
        if plan.global_batch_size == samples:
            return plan
        line = (
            f"a batch of {format_count(amount.number)} tokens is {samples:,.6g} samples: rounded to "
            f"{plan.global_batch_size:,}, {how}"
        )
        return dataclasses.replace(plan, basis=(line, *plan.basis))


def _make_plan(layout: Layout, batch_size: int) -> Plan:
    costs, request, num_devices = layout.costs, layout.request, layout.devices.number
    step = plan_step(layout, batch_size)
    num_steps = _count_steps(costs, request, batch_size)
    training_s = None if num_steps is None else num_steps * step.step_time_s / request.effective_time
    hours = None if training_s is None else training_s * num_devices / SECONDS_PER_HOUR
    tokens = None if costs.tokens_per_sample is None else batch_size * costs.tokens_per_sample
    samples_per_s = batch_size / step.step_time_s

    def find_utilization(flops: float | None) -> float | None:
        if flops is None or costs.peak_flops_per_s is None:
            return None
        return flops * samples_per_s / (num_devices * costs.peak_flops_per_s)

    return Plan(
        **dataclasses.asdict(step),
        num_devices=num_devices,
        num_nodes=layout.devices.num_nodes,
        num_replicas=layout.num_replicas,
        global_batch_size=batch_size,
        global_batch_tokens=tokens,
        num_steps=num_steps,
        training_time_s=training_s,
        device_hours=hours,
        price=None if hours is None or request.price_per_device_hour is None else hours * request.price_per_device_hour,
        samples_per_s=samples_per_s,
        tokens_per_s=None if tokens is None else tokens / step.step_time_s,
        mfu=find_utilization(costs.model_flops),
        hfu=find_utilization(costs.hardware_flops),
        is_in_time=None if request.until_s is None or training_s is None else training_s <= request.until_s,
    )


def _count_steps(costs: StepCosts, request: PlanRequest, batch_size: int) -> int | None:
    if request.work.is_given:
        return request.work.num_steps(batch_size, costs.tokens_per_sample)
    if costs.max_steps is None or costs.batch_size is None:
        return costs.max_steps
    return max(1, math.ceil(costs.max_steps * costs.batch_size / batch_size))  # as many samples as the file trains


def _training_time_s(plan: Plan) -> float:
    return plan.training_time_s or 0.0
