"""What cannot be wanted of a job, and which options of a wish have no effect on its plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bexplore.errors import UserInputError
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.plan import Plan
from bexplore.planning.request import PlanRequest
from bexplore.planning.step_costs import StepCosts


def check_request(costs: StepCosts, request: PlanRequest, network: NetworkFigures | None) -> None:
    """Check that a wish has a speed, and nothing that contradicts what is known of the job.

    Raises:
        UserInputError: It has none, or has.
    """
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
    if not costs.is_measured and (network is not None or request.overlap is not None):
        raise UserInputError(
            "--bandwidth, --network and --overlap tell the communication of passes that were measured, and "
            f"{given} is of whole steps, communication included",
            hint=f"leave them out, with {given} as it is on so many devices; or explore first, and plan the run",
        )
    if request.until_s is not None and not request.work.is_given and costs.max_steps is None:
        raise UserInputError(
            "--until needs to know how much is trained, and the file gives no steps",
            hint="type --tokens 300B, --samples, --steps, or --epochs and --dataset-size",
        )


def options_without_effect(
    costs: StepCosts, request: PlanRequest, plans: Sequence[Plan], *, is_network_given: bool
) -> Iterator[str]:
    """Yield a note for each option that changes nothing."""
    if all(plan.training_time_s is None for plan in plans):
        given = {"--price-per-device-hour": request.price_per_device_hour is not None}
        given["--effective-time"] = request.effective_time != 1
        for option in (name for name, is_given in given.items() if is_given):
            yield (
                f"{option} has no effect, as nothing says how much is trained: type --tokens 300B, --samples, --steps, "
                "or --epochs and --dataset-size"
            )
    if all(plan.network is None for plan in plans):
        if is_network_given:
            yield f"the bandwidth or network that is given has no effect: {_why_no_network(costs, plans)}"
        if request.overlap is not None:
            yield f"--overlap has no effect: {_why_no_network(costs, plans)}"


def _why_no_network(costs: StepCosts, plans: Sequence[Plan]) -> str:
    """Return why the communication of no plan was reckoned by the speeds of a network."""
    if all(plan.num_replicas == 1 for plan in plans):
        return "one replica exchanges nothing with others"
    if costs.gradient_bytes is None:
        return "the bytes of the gradients are not known without a trace"
    if costs.holds_communication and costs.parallelism.is_distributed:
        return "the ranks of these plans were timed together, or hold communication that was not timed apart"
    return "no bandwidth is known: give --bandwidth, or time it with bexplore network"
