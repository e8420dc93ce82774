"""Plans of a job: one for each number of devices and each batch size, or those around the time that was wished."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bexplore.errors import UserInputError
from bexplore.job.batching import MAX_SAMPLES, divisors
from bexplore.planning.cautions import with_cautions
from bexplore.planning.layout import devices_of_replica, layout_of
from bexplore.planning.nearest import divisible_batch, rounded_batch
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.plan import SECONDS_PER_DAY, Plan, as_record, make_plan
from bexplore.planning.request import Amount, Devices, PlanRequest
from bexplore.planning.request_checks import check_request, options_without_effect
from bexplore.planning.step_costs import OtherSettings, StepCosts
from bexplore.units import counted, format_count, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Devices and a batch size that cannot be planned.

    Attributes:
        devices: Of them.
        batch_size: The global batch size.
        reason: Why.
        hint: What to type in its place.
    """

    devices: Devices
    batch_size: int
    reason: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The plans of a job.

    Attributes:
        costs: What is known of its steps.
        plans: In the order that was asked for.
        refused: What was asked for and cannot be.
        notes: Lines that qualify all plans.
    """

    costs: StepCosts
    plans: tuple[Plan, ...]
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a `training_plan` event for each plan, and a `training_plan_refused` event for what cannot be."""
        shared = {"origin": self.costs.origin, "notes": list(self.notes)}
        others = [dataclasses.asdict(one) for one in self.other_settings]
        for plan in self.plans:
            yield as_record(plan) | shared | {"other_settings": others}
        for one in self.refused:
            yield {
                "event": "training_plan_refused",
                "num_devices": one.devices.number,
                "global_batch_size": one.batch_size,
                "reason": one.reason,
                "hint": one.hint,
            }

    @property
    def other_settings(self) -> tuple[OtherSettings, ...]:
        """What other settings of the job change."""
        return self.costs.other_settings


def make_plans(
    costs: StepCosts, request: PlanRequest, network: NetworkFigures | None = None, *, is_network_given: bool = True
) -> Plans:
    """Return the plans of a job.

    Args:
        costs: What is known of its steps.
        request: What is wanted.
        network: Speeds between replicas, where these were not timed together; None if unknown.
        is_network_given: Whether the user has named it; a note follows where it has no effect.

    Raises:
        UserInputError: Nothing of it can be planned; the message has the nearest that can.
    """
    check_request(costs, request, network)
    amounts = request.batch_sizes or (_own_batch(costs),)
    if request.until_s is not None and not request.devices:
        plans = [plan for amount in amounts for plan in _in_time(costs, request, amount, network)]
        return _finished(costs, request, plans, (), network, is_network_given)
    plans, refused = [], []
    for devices in request.devices or (_own_devices(costs, request),):
        for amount in amounts:
            try:
                plans.append(_plan(costs, request, devices, amount, network))
            except UserInputError as error:
                size = max(1, round(amount.in_samples(costs.tokens_per_sample, "--batch-size")))
                refused.append(Refused(devices=devices, batch_size=size, reason=error.message, hint=error.hint))
    if not plans:
        raise UserInputError(refused[0].reason, hint=refused[0].hint)
    return _finished(costs, request, plans, refused, network, is_network_given)


def _plan(
    costs: StepCosts, request: PlanRequest, devices: Devices, amount: Amount, network: NetworkFigures | None
) -> Plan:
    """Return the plan of a batch on some devices; tokens become samples that these can share."""
    layout = layout_of(costs, request, devices)
    samples = _samples(costs, amount)
    if not amount.is_tokens:
        return make_plan(costs, request, layout, round(samples), network)
    batch = rounded_batch(costs, layout.num_replicas, samples)
    plan = make_plan(costs, request, layout, batch, network)
    return _with_rounding(costs, plan, amount, f"the nearest that {counted(layout.num_replicas, 'replica')} can share")


def _with_rounding(costs: StepCosts, plan: Plan, amount: Amount, how: str) -> Plan:
    """Say in the basis of a plan what became of a batch in tokens."""
    samples = _samples(costs, amount)
    if plan.global_batch_size == samples:
        return plan
    line = (
        f"a batch of {format_count(amount.number)} tokens is {samples:,.6g} samples: rounded to "
        f"{plan.global_batch_size:,}, {how}"
    )
    return dataclasses.replace(plan, basis=(line, *plan.basis))


def _finished(
    costs: StepCosts,
    request: PlanRequest,
    plans: Sequence[Plan],
    refused: Sequence[Refused],
    network: NetworkFigures | None,
    is_network_given: bool,
) -> Plans:
    is_given = network is not None and is_network_given
    without_effect = options_without_effect(costs, request, plans, is_network_given=is_given)
    return Plans(
        costs=costs,
        plans=with_cautions(costs, plans, network),
        refused=tuple(refused),
        notes=(*costs.notes, *_notes(costs, request, plans, network), *without_effect),
    )


def _notes(
    costs: StepCosts, request: PlanRequest, plans: Sequence[Plan], network: NetworkFigures | None
) -> Iterator[str]:
    """Yield what qualifies all plans: slow parts of the network, and the nearest to a time that none meets."""
    if network is not None:
        yield from (f"the network: {line}" for line in (*network.slow, *network.notes))
    if request.until_s is not None and not any(plan.is_in_time for plan in plans):
        yield _nearest_in_time(costs, request, plans, network)


def _nearest_in_time(
    costs: StepCosts, request: PlanRequest, plans: Sequence[Plan], network: NetworkFigures | None
) -> str:
    """Say which time the devices meet that were given, and which number of devices meets the time."""
    fastest = min(plans, key=lambda plan: plan.training_time_s or 0.0)
    days = (fastest.training_time_s or 0.0) / SECONDS_PER_DAY
    text = (
        f"none of these is done in {format_seconds(request.until_s)}: type --until {_rounded_up(days)}d for "
        f"{counted(fastest.num_devices, 'device')}"
    )
    all_devices = dataclasses.replace(request, devices=())
    amount = Amount(number=fastest.global_batch_size)
    enough = next((plan for plan in _all_plans(costs, all_devices, amount, network) if plan.is_in_time), None)
    if enough is None:
        return f"{text}; no number of devices is done by then with a batch of {fastest.global_batch_size}"
    return f"{text}, or --devices {enough.num_devices}"


def _samples(costs: StepCosts, amount: Amount) -> float:
    """Return a global batch in samples.

    Raises:
        UserInputError: Its tokens do not hold a sample, or hold more than a batch can have.
    """
    samples = amount.in_samples(costs.tokens_per_sample, "--batch-size")
    if samples < 0.5:
        raise UserInputError(
            f"a global batch of {format_count(amount.number)} tokens holds no sample, which has "
            f"{format_count(costs.tokens_per_sample)}",
            hint=f"type --batch-size '{round(costs.tokens_per_sample or 1)} tokens' or more",
        )
    if samples > MAX_SAMPLES:
        raise UserInputError(
            f"a global batch of {samples:,.4g} samples is more than {MAX_SAMPLES:,}",
            hint="type fewer, such as --batch-size '4M tokens'",
        )
    return samples


def _own_batch(costs: StepCosts) -> Amount:
    """Return the batch of the file.

    Raises:
        UserInputError: It gives none.
    """
    if costs.batch_size is None:
        raise UserInputError("the file gives no batch_size", hint="type --batch-size 512, or '4M tokens'")
    return Amount(number=costs.batch_size)


def _own_devices(costs: StepCosts, request: PlanRequest) -> Devices:
    """Return the devices of the file's own numbers."""
    return Devices(number=costs.num_replicas * devices_of_replica(costs, request))


def _in_time(costs: StepCosts, request: PlanRequest, amount: Amount, network: NetworkFigures | None) -> list[Plan]:
    """Return the plan with the fewest devices that ends in time, behind the one before it, which does not.

    Raises:
        UserInputError: None does; the message has the fastest.
    """
    plans = _all_plans(costs, request, amount, network)
    samples = counted(f"{_samples(costs, amount):,.6g}", "sample")
    if not plans:
        raise UserInputError(
            f"no number of devices shares a batch of {samples} with a size that ran",
            hint="type --devices to see why, or another --batch-size",
        )
    index = next((place for place, plan in enumerate(plans) if plan.is_in_time), None)
    if index is None:
        fastest = min(plans, key=lambda plan: plan.training_time_s or 0.0)
        days = (fastest.training_time_s or 0.0) / SECONDS_PER_DAY
        wished = (request.until_s or 0.0) / SECONDS_PER_DAY
        raise UserInputError(
            f"a global batch of {samples} is not trained in {wished:.3g} days on any number of "
            f"devices: the fastest takes {days:.3g} days on {fastest.num_devices}",
            hint=f"type --until {_rounded_up(days)}d, or a larger --batch-size, which more devices can share",
        )
    return plans[max(0, index - 1) : index + 1]


def _rounded_up(days: float) -> str:
    """Write days with four digits, none of which is less, and without an exponent, which no duration has."""
    digits = max(0, 3 - math.floor(math.log10(days))) if days else 0
    return f"{math.ceil(days * 10**digits) / 10**digits:.{digits}f}"


def _all_plans(costs: StepCosts, request: PlanRequest, amount: Amount, network: NetworkFigures | None) -> list[Plan]:
    """Return a plan for each number of replicas that divides the batch, ascending."""
    samples = _samples(costs, amount)
    batch = divisible_batch(costs, samples) if amount.is_tokens else round(samples)
    plans = []
    for replicas in divisors(batch):
        devices = Devices(number=replicas * devices_of_replica(costs, request))
        try:
            plan = make_plan(costs, request, layout_of(costs, request, devices), batch, network)
        except UserInputError:
            continue  # this number is none of a choice that the user did not make
        plans.append(_with_rounding(costs, plan, amount, "which many numbers of devices can share"))
    return plans
