"""What to know before a plan is used, each with its source."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from bexplore.exploration.bottlenecks import LARGE_COMMUNICATION, LARGE_UPDATE, PLAYBOOK
from bexplore.planning.plan import Plan
from bexplore.planning.published import usual_batch_tokens
from bexplore.planning.step_costs import StepCosts
from bexplore.units import counted, format_count, format_share

# Samples/s that a doubled global batch must gain for it to be worth its larger batch. Source: a tenth of the factor of
# two of google-research/tuning_playbook, "Determining the feasible batch sizes and estimating training throughput".
LEAST_GAIN_OF_BATCH = 1.05


def with_cautions(costs: StepCosts, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return the plans, each with its cautions."""
    return tuple(
        dataclasses.replace(plan, cautions=(*_cautions(costs, plan), *_of_growth(plan, plans))) for plan in plans
    )


def _cautions(costs: StepCosts, plan: Plan) -> Iterator[str]:
    yield from _of_batch(costs, plan)
    yield from _of_parts(plan)
    yield from _of_missing(costs, plan)


def _of_batch(costs: StepCosts, plan: Plan) -> Iterator[str]:
    if costs.num_parameters is None or plan.global_batch_tokens is None:
        return
    usual = usual_batch_tokens(costs.num_parameters)
    if usual is None or usual.low <= plan.global_batch_tokens <= usual.high:
        return
    side = "less" if plan.global_batch_tokens < usual.low else "more"
    yield (
        f"a global batch of {format_count(plan.global_batch_tokens)} tokens is {side} than the "
        f"{format_count(usual.low)} to {format_count(usual.high)} with which models of about "
        f"{format_count(costs.num_parameters)} parameters were trained ({usual.sources})"
    )


def _of_parts(plan: Plan) -> Iterator[str]:
    parts = (
        ("the update", plan.share(plan.update_s), LARGE_UPDATE, "more accumulation steps spread it"),
        (
            "communication that computation does not hide",
            plan.share(plan.communication_s),
            LARGE_COMMUNICATION,
            "more accumulation steps spread it, or fewer devices have less of it",
        ),
        ("the pipeline's bubble", plan.share(plan.bubble_s), LARGE_UPDATE, "more accumulation steps fill it"),
    )
    for name, share, most, action in parts:
        if share is not None and share > most:
            yield f"{name} is {format_share(share)} of the step: {action} ({PLAYBOOK}: mend the bottleneck first)"


def _of_missing(costs: StepCosts, plan: Plan) -> Iterator[str]:
    if plan.communication_s is None and plan.passes_s is not None and plan.num_replicas > 1:
        yield (
            "communication between replicas is left out: give --bandwidth, or time it with bexplore network on these "
            "machines"
        )
    largest = costs.micro_batch_size
    if largest and plan.micro_batch_size and plan.micro_batch_size < largest and plan.accumulation_steps == 1:
        yield (
            f"{counted(plan.num_replicas, 'replica')} have {plan.micro_batch_size} samples of the batch each, less "
            f"than the micro-batch size {largest} that was found: the batch cannot feed so many devices ({PLAYBOOK})"
        )


def _of_growth(plan: Plan, plans: Sequence[Plan]) -> Iterator[str]:
    """Warn of a batch that is twice another's on the same devices and hardly faster."""
    same = sorted({one.global_batch_size: one for one in plans if one.num_devices == plan.num_devices}.items())
    for (small, before), (large, after) in itertools.pairwise(same):
        gain = after.samples_per_s / before.samples_per_s
        if after is plan and large >= 2 * small and gain < LEAST_GAIN_OF_BATCH:
            yield (
                f"a global batch of {large} has {gain:.2f}x the samples/s of {small}: the larger one is not faster, "
                f"and takes as many samples or more to the same loss ({PLAYBOOK})"
            )
