"""What to know before a plan is used, each with its source."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from bexplore.diagnosis.bottlenecks import LARGE_COMMUNICATION, LARGE_UPDATE
from bexplore.job.batching import (
    INDIFFERENCE_ZONE,
    is_valid_global_batch_size,
    nearest,
    valid_global_batch_sizes,
)
from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.plan import Plan
from bexplore.planning.published import usual_batch_tokens
from bexplore.planning.step_costs import StepCosts
from bexplore.run.bottleneck import PLAYBOOK
from bexplore.units import counted, format_count, format_share

# Samples/s that a doubled global batch must gain for it to be worth its larger batch. Source: a tenth of the factor of
# two of google-research/tuning_playbook, "Determining the feasible batch sizes and estimating training throughput".
LEAST_GAIN_OF_BATCH = 1.05


def with_cautions(costs: StepCosts, plans: Sequence[Plan], network: NetworkFigures | None = None) -> tuple[Plan, ...]:
    """Return the plans, each with its cautions.

    Args:
        network: Speeds between replicas that plans may rest on.
    """
    return tuple(
        dataclasses.replace(plan, cautions=(*plan.cautions, *_cautions(costs, plan, plans, network))) for plan in plans
    )


def _cautions(costs: StepCosts, plan: Plan, plans: Sequence[Plan], network: NetworkFigures | None) -> Iterator[str]:
    yield from _of_batch(costs, plan)
    yield from _of_parts(plan)
    yield from _of_size(costs, plan)
    if network is not None and plan.network is not None:
        yield from _of_network(costs, plan, network)
    if costs.is_measured:  # the speed of whole steps that is given for a trace is the same for every batch
        yield from _of_growth(plan, plans)


def _of_batch(costs: StepCosts, plan: Plan) -> Iterator[str]:
    if costs.num_parameters is None or plan.global_batch_tokens is None:
        return
    usual = usual_batch_tokens(costs.num_parameters)
    if usual is None or usual.is_usual(plan.global_batch_tokens):
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


def _of_size(costs: StepCosts, plan: Plan) -> Iterator[str]:
    """Warn of a micro-batch smaller than the one that was found, or that fits."""
    size, useful = plan.micro_batch_size, costs.largest_useful_size
    if not size or size >= useful:
        return
    replicas = counted(plan.num_replicas, "replica")
    if plan.accumulation_steps == 1 and plan.num_replicas * useful > plan.global_batch_size:
        which = "that was found" if costs.is_measured else "that fits by the trace"
        yield (
            f"{replicas} {'has' if plan.num_replicas == 1 else 'have'} {counted(size, 'sample')} of the batch each, "
            f"less than the micro-batch size {useful} {which}: the batch cannot feed so many devices ({PLAYBOOK})"
        )
    elif is_valid_global_batch_size(plan.global_batch_size, useful, plan.num_replicas, costs.divisibility):
        if _slowdown(costs, size, useful) > INDIFFERENCE_ZONE:
            yield f"micro-batch size {useful} that was found does not fit here, and {size} takes its place"
    elif _slowdown(costs, size, useful) > INDIFFERENCE_ZONE:
        listed = valid_global_batch_sizes(useful, plan.num_replicas, plan.global_batch_size, costs.divisibility)
        near = nearest([one.global_batch_size for one in listed], plan.global_batch_size)
        yield (
            f"micro-batch size {useful} that was found does not divide a batch of {plan.global_batch_size} on "
            f"{replicas}, and a pass of {size} takes {_slowdown(costs, size, useful):.0%} longer a sample: it divides "
            f"{' and '.join(str(one) for one in dict.fromkeys(near) if one is not None)}"
        )


def _slowdown(costs: StepCosts, size: int, useful: int) -> float:
    """Return by what share a sample takes longer at a size than at another; 0 where no pass is known."""
    own, other = costs.cost_of(size), costs.cost_of(useful)
    return 0.0 if own is None or other is None else (own.seconds / size) / (other.seconds / useful) - 1


def _of_network(costs: StepCosts, plan: Plan, network: NetworkFigures) -> Iterator[str]:
    """Warn of a network that was timed between other ranks than those of the plan."""
    if network.stated_bytes_per_s is not None:
        return
    action = "time it on the machines that will train, by bexplore network"
    if network.num_ranks != plan.num_replicas:
        yield f"the network was timed between {network.num_ranks} ranks, and replicas are {plan.num_replicas}: {action}"
    if plan.num_nodes is not None and plan.num_nodes != network.num_hosts:
        yield (
            f"the network was timed on {counted(network.num_hosts, 'host')}, and the plan has "
            f"{counted(plan.num_nodes, 'node')}: {action}"
        )
    if costs.is_on_cpu != (network.backend == "gloo") and network.backend:
        job = "the CPU" if costs.is_on_cpu else "an accelerator"
        yield f"the network was timed by {network.backend}, and the job trains on {job}: {action}"
    timed, own = network.device_name, costs.device_name
    if timed and own and not costs.is_on_cpu and timed != own:
        yield f'the network was timed between devices of "{timed}", and the job ran on "{own}": {action}'


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
