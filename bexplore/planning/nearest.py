"""The nearest that can be planned: global batches that some devices can share, and devices that can share a batch."""

from __future__ import annotations

from collections.abc import Iterable

from bexplore.errors import UserInputError
from bexplore.job.batching import divisors, nearest, valid_global_batch_sizes
from bexplore.planning.layout import Layout, devices_of_replica
from bexplore.planning.request import PlanRequest
from bexplore.planning.step_costs import StepCosts
from bexplore.units import counted

# Share by which a batch that was given in tokens may be moved to one that the devices share well. Source: half of the
# last digit of a batch that is stated with one, such as 4M for the 4,194,304 of 2,048 samples of 2,048 tokens (LLaMA).
ROUNDING = 0.05
_MOST_LISTED = 8  # sizes in a message


def refuse_batch(costs: StepCosts, request: PlanRequest, layout: Layout, batch_size: int) -> UserInputError:
    """Return the error of a global batch that the replicas of a layout cannot share, with the nearest that they can."""
    batches, devices = near_batches(costs, layout.num_replicas, batch_size), near_devices(costs, request, batch_size)
    replicas = counted(layout.num_replicas, "replica")
    if batch_size < layout.num_replicas:
        reason = f"a global batch of {counted(batch_size, 'sample')} cannot feed {replicas}"
    else:
        reason = f"{replicas} cannot share a global batch of {counted(batch_size, 'sample')}{_sizes(costs)}"
    near = nearest(devices, layout.devices.number)
    return UserInputError(
        f"{reason}; nearest: batches of {_either(batches)}" + (f", or {_either(near)} devices" if any(near) else ""),
        hint=f"type --batch-size {_either(batches)}" + (f", or --devices {_either(near)}" if any(near) else ""),
    )


def near_batches(costs: StepCosts, num_replicas: int, batch_size: float) -> tuple[int | None, int | None]:
    """Return the nearest global batches below and above that any size which ran, or fits by the trace, divides."""
    sizes = sorted(costs.passes) or [1]
    wanted = max(1, round(batch_size))
    listed = (_valid(costs, size, num_replicas, wanted) for size in sizes)
    return nearest([one for batches in listed for one in batches], wanted)


def near_devices(costs: StepCosts, request: PlanRequest, batch_size: int) -> list[int]:
    """Return the numbers of devices that can share a global batch, ascending."""
    of_replica = devices_of_replica(costs, request)
    replicas = (number for number in divisors(batch_size) if _can_share(costs, batch_size, number))
    return [number * of_replica for number in replicas]


def rounded_batch(costs: StepCosts, num_replicas: int, samples: float) -> int:
    """Return the global batch near a number of samples that some replicas share with the best size that allows it.

    The recommended size comes first, then larger before smaller ones; where none has a multiple within `ROUNDING`, the
    nearest multiple of any is taken.
    """
    recommended = costs.micro_batch_size
    sizes = sorted(costs.passes or range(1, max(1, costs.sizes) + 1), key=lambda size: (size != recommended, -size))
    wanted, best = max(1, round(samples)), None
    for size in sizes:
        for batch in _valid(costs, size, num_replicas, wanted):
            if abs(batch - samples) <= ROUNDING * samples:
                return min(_valid(costs, size, num_replicas, wanted), key=lambda one: abs(one - samples))
            if best is None or abs(batch - samples) < abs(best - samples):
                best = batch
    return wanted if best is None else best


def divisible_batch(costs: StepCosts, samples: float) -> int:
    """Return a global batch near a number of samples that many numbers of replicas can share.

    It is the nearest multiple, within `ROUNDING`, of the recommended size and the highest power of two.
    """
    size = costs.largest_useful_size or 1
    batch = rounded_batch(costs, 1, samples)
    unit = size
    while unit <= samples:
        multiple = max(1, round(samples / unit)) * unit
        if abs(multiple - samples) <= ROUNDING * samples:
            batch = multiple
        unit *= 2
    return batch


def _can_share(costs: StepCosts, batch_size: int, num_replicas: int) -> bool:
    return bool(costs.feasible_sizes(batch_size, num_replicas)) if costs.is_measured or costs.sizes else True


def _valid(costs: StepCosts, size: int, num_replicas: int, near: int) -> Iterable[int]:
    listed = valid_global_batch_sizes(size, num_replicas, near, costs.divisibility)
    return [one.global_batch_size for one in listed]


def _sizes(costs: StepCosts) -> str:
    if not costs.is_measured:
        return " evenly"
    sizes = sorted(costs.passes)
    more = ", ..." if len(sizes) > _MOST_LISTED else ""
    return f" with a micro-batch size that ran ({', '.join(map(str, sizes[:_MOST_LISTED]))}{more})"


def _either(near: tuple[int | None, int | None]) -> str:
    return " or ".join(str(number) for number in dict.fromkeys(near) if number is not None)
