"""Plans of a job: one for each number of devices and each batch size, or those around the time that was wished."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bexplore.errors import UserInputError
from bexplore.job.batching import divisors
from bexplore.planning.cautions import with_cautions
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.plan import SECONDS_PER_DAY, Plan, as_record, layout_of, make_plan
from bexplore.planning.request import Devices, PlanRequest
from bexplore.planning.step_costs import OtherSettings, StepCosts
from bexplore.units import counted, format_count


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


def make_plans(costs: StepCosts, request: PlanRequest, network: NetworkFigures | None = None) -> Plans:
    """Return the plans of a job.

    Args:
        costs: What is known of its steps.
        request: What is wanted.
        network: Speeds between replicas, where these were not timed together; None if unknown.

    Raises:
        UserInputError: Nothing of it can be planned; the message has the nearest that can.
    """
    _check(costs, request)
    sizes = _batch_sizes(costs, request)
    if request.until_s is not None and not request.devices:
        plans = [plan for size in sizes for plan in _in_time(costs, request, size, network)]
        return _finished(costs, plans, (), network)
    plans, refused = [], []
    for devices in request.devices or (_own_devices(costs, request),):
        for size in sizes:
            try:
                plans.append(make_plan(costs, request, layout_of(costs, request, devices), size, network))
            except UserInputError as error:
                refused.append(Refused(devices=devices, batch_size=size, reason=error.message, hint=error.hint))
    if not plans:
        raise UserInputError(refused[0].reason, hint=refused[0].hint)
    return _finished(costs, plans, refused, network)


def _finished(
    costs: StepCosts, plans: Sequence[Plan], refused: Sequence[Refused], network: NetworkFigures | None
) -> Plans:
    slow = tuple(f"the network: {line}" for line in network.slow) if network is not None else ()
    return Plans(costs=costs, plans=with_cautions(costs, plans), refused=tuple(refused), notes=(*costs.notes, *slow))


def _check(costs: StepCosts, request: PlanRequest) -> None:
    given = " and ".join(request.speeds)
    if costs.is_measured and given:
        raise UserInputError(
            f"{given} gives the speed of a CONFIG, and this job was measured",
            hint="leave it out, or name the configuration in place of the run",
        )
    if not costs.is_measured and not given:
        raise UserInputError(
            "a trace gives operations and memory, and no seconds",
            hint="type --mfu 0.4 (well-tuned training reaches 0.3 to 0.5) and --device-name, or --throughput '24000 "
            "tokens/s' of one device; or explore first, and plan the run",
        )
    if len(request.speeds) > 1:
        raise UserInputError(f"{given} each give the speed", hint=f"keep one of them, such as {request.speeds[0]}")
    if request.until_s is not None and not request.work.is_given and costs.max_steps is None:
        raise UserInputError(
            "--until needs to know how much is trained, and the file gives no steps",
            hint="type --tokens 300B, --samples, --steps, or --epochs and --dataset-size",
        )


def _batch_sizes(costs: StepCosts, request: PlanRequest) -> list[int]:
    """Return the global batch sizes in samples.

    Raises:
        UserInputError: None is known; or tokens do not hold a sample.
    """
    if not request.batch_sizes:
        if costs.batch_size is None:
            raise UserInputError("the file gives no batch_size", hint="type --batch-size 512, or '4M tokens'")
        return [costs.batch_size]
    found = []
    for amount in request.batch_sizes:
        samples = amount.in_samples(costs.tokens_per_sample, "--batch-size")
        if round(samples) < 1:
            raise UserInputError(
                f"a global batch of {format_count(amount.number)} tokens holds no sample, which has "
                f"{format_count(costs.tokens_per_sample)}",
                hint=f"type --batch-size '{round(costs.tokens_per_sample or 1)} tokens' or more",
            )
        found.append(round(samples))
    return found


def _own_devices(costs: StepCosts, request: PlanRequest) -> Devices:
    """Return the devices of the file's own numbers."""
    tensor = request.tensor_parallel_degree or costs.parallelism.tensor_parallel_degree
    return Devices(number=costs.num_replicas * tensor * request.pipeline_stages)


def _in_time(costs: StepCosts, request: PlanRequest, batch_size: int, network: NetworkFigures | None) -> list[Plan]:
    """Return the plan with the fewest devices that ends in time, behind the one before it, which does not.

    Raises:
        UserInputError: None does; the message has the fastest.
    """
    plans = _all_plans(costs, request, batch_size, network)
    if not plans:
        raise UserInputError(
            f"no number of devices shares a batch of {counted(batch_size, 'sample')} with a size that ran",
            hint="type --devices to see why, or another --batch-size",
        )
    index = next((place for place, plan in enumerate(plans) if plan.is_in_time), None)
    if index is None:
        fastest = min(plans, key=lambda plan: plan.training_time_s or 0.0)
        days = (fastest.training_time_s or 0.0) / SECONDS_PER_DAY
        wished = (request.until_s or 0.0) / SECONDS_PER_DAY
        raise UserInputError(
            f"a global batch of {counted(batch_size, 'sample')} is not trained in {wished:.3g} days on any number of "
            f"devices: the fastest takes {days:.3g} days on {fastest.num_devices}",
            hint=f"type --until {_rounded_up(days)}d, or a larger --batch-size, which more devices can share",
        )
    return plans[max(0, index - 1) : index + 1]


def _rounded_up(days: float) -> str:
    return f"{days * 1.001:.4g}"


def _all_plans(costs: StepCosts, request: PlanRequest, batch_size: int, network: NetworkFigures | None) -> list[Plan]:
    """Return a plan for each number of replicas that divides the batch, ascending."""
    tensor = request.tensor_parallel_degree or costs.parallelism.tensor_parallel_degree
    plans = []
    for replicas in divisors(batch_size):
        devices = Devices(number=replicas * tensor * request.pipeline_stages)
        try:
            plans.append(make_plan(costs, request, layout_of(costs, request, devices), batch_size, network))
        except UserInputError:
            continue  # this number is none of a choice that the user did not make
    return plans
