"""What to know before a plan is used, and the global batches of published trainings by model size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bexplore.diagnosis.bottlenecks import LARGE_COMMUNICATION, LARGE_UPDATE
from bexplore.job.batching import (
    INDIFFERENCE_ZONE,
    is_valid_global_batch_size,
    nearest,
    valid_global_batch_sizes,
)
from bexplore.planning.costs import StepCosts
from bexplore.planning.network import NetworkFigures
from bexplore.planning.step import Plan
from bexplore.run.parts.checks import PLAYBOOK
from bexplore.units import counted, format_count, format_share

# Samples/s that a doubled global batch must gain for it to be worth its larger batch. Source: a tenth of the factor of
# two of google-research/tuning_playbook, "Determining the feasible batch sizes and estimating training throughput".
LEAST_GAIN_OF_BATCH = 1.05
# Parts of a step: the field of a plan, its name, the share above which it is named, and what makes it smaller.
_LARGE_PARTS = (
    ("update_s", "the update", LARGE_UPDATE, "more accumulation steps spread it"),
    (
        "communication_s",
        "communication that computation does not hide",
        LARGE_COMMUNICATION,
        "more accumulation steps spread it, or fewer devices have less of it",
    ),
    ("bubble_s", "the pipeline's bubble", LARGE_UPDATE, "more accumulation steps fill it"),
)
# Parameters of models that are compared with each other: a factor either way. Source: a choice of presentation, so that
# each model size from 100 million parameters on has at least three trainings.
ALIKE = 4.0

# Share beyond the range that is still usual. Source: papers print half a million for the 524,288 of 2^19.
PRINTED_ROUNDING = 0.1
# The most tokens of a batch of recent trainings of language models, and parameters from which models are meant.
# Source: Hugging Face, The Ultra-Scale Playbook: 4 to 60 million tokens; the smallest above with 4 million has 1.2e9.
MOST_RECENT_TOKENS, RECENT_PARAMETERS = 60e6, 1e9
RECENT = "recent trainings: Hugging Face, The Ultra-Scale Playbook"


def find_cautions(costs: StepCosts, plan: Plan, plans: Sequence[Plan], network: NetworkFigures | None) -> Iterator[str]:
    """Yield what to know of a plan, a sentence each.

    Args:
        costs: Of a step of its job.
        plan: The plan.
        plans: All plans of the request, itself included.
        network: Speeds between replicas that the plan may rest on.
    """
    yield from _check_batch(costs, plan)
    for field, name, most, action in _LARGE_PARTS:
        share = plan.share(getattr(plan, field))
        if share is not None and share > most:
            yield f"{name} is {format_share(share)} of the step: {action} ({PLAYBOOK}: fix the bottleneck first)"
    yield from _check_size(costs, plan)
    if network is not None and plan.network is not None and network.stated_bytes_per_s is None:
        yield from _compare_network(costs, plan, network)
    if costs.is_measured:  # the speed of whole steps that is given for a trace is the same for every batch
        yield from _check_growth(plan, plans)


def _check_batch(costs: StepCosts, plan: Plan) -> Iterator[str]:
    if costs.num_parameters is None or plan.global_batch_tokens is None:
        return
    usual = find_usual_batch(costs.num_parameters)
    if usual is None or usual.is_usual(plan.global_batch_tokens):
        return
    side = "less" if plan.global_batch_tokens < usual.low else "more"
    yield (
        f"a global batch of {format_count(plan.global_batch_tokens)} tokens is {side} than the "
        f"{format_count(usual.low)} to {format_count(usual.high)} with which models of about "
        f"{format_count(costs.num_parameters)} parameters were trained ({usual.sources})"
    )


def _check_size(costs: StepCosts, plan: Plan) -> Iterator[str]:
    """Warn of a micro-batch smaller than the one that was found, or that fits."""
    size, useful = plan.micro_batch_size, costs.largest_useful_size
    if not size or size >= useful:
        return
    replicas = counted(plan.num_replicas, "replica")
    if plan.accumulation_steps == 1 and plan.num_replicas * useful > plan.global_batch_size:
        yield from _check_share(costs, plan, size, useful)
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


def _check_share(costs: StepCosts, plan: Plan, size: int, useful: int) -> Iterator[str]:
    """Warn of a global batch that is smaller than a useful micro-batch of each replica, unless that costs no speed."""
    if costs.is_measured and costs.find_cost(size) and _slowdown(costs, size, useful) <= INDIFFERENCE_ZONE:
        return
    which = "that was found" if costs.is_measured else "that fits by the trace"
    larger = f"a global batch of {plan.num_replicas * useful} does"
    if plan.num_replicas == 1:
        yield f"a global batch of {size} does not use the micro-batch size {useful} {which}; {larger}"
        return
    yield (
        f"{plan.num_replicas} replicas have {counted(size, 'sample')} of the batch each, less than the micro-batch "
        f"size {useful} {which}: the batch cannot feed so many devices; fewer of them, or {larger} ({PLAYBOOK})"
    )


def _slowdown(costs: StepCosts, size: int, useful: int) -> float:
    """Return by what share a sample takes longer at a size than at another; 0 where no pass is known."""
    own, other = costs.find_cost(size), costs.find_cost(useful)
    return 0.0 if own is None or other is None else (own.seconds / size) / (other.seconds / useful) - 1


def _compare_network(costs: StepCosts, plan: Plan, network: NetworkFigures) -> Iterator[str]:
    """Yield how the ranks between which a network was timed differ from those of the plan."""
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


def _check_growth(plan: Plan, plans: Sequence[Plan]) -> Iterator[str]:
    """Warn of a batch that is twice another's on the same devices and hardly faster."""
    same = sorted({one.global_batch_size: one for one in plans if one.num_devices == plan.num_devices}.items())
    for (small, before), (large, after) in itertools.pairwise(same):
        gain = after.samples_per_s / before.samples_per_s
        if after is plan and large >= 2 * small and gain < LEAST_GAIN_OF_BATCH:
            yield (
                f"a global batch of {large} has {gain:.2f}x the samples/s of {small}: the larger one is not faster, "
                f"and takes as many samples or more to the same loss ({PLAYBOOK})"
            )


class PublishedBatch(NamedTuple):
    """The global batch of a published training: `batch_tokens` of an optimizer step, the largest of the training."""

    name: str
    num_parameters: float
    batch_tokens: float
    source: str


class UsualBatch(NamedTuple):
    """The range of global batches of models of one size, tokens, and the trainings that it is from."""

    low: float
    high: float
    sources: str

    def is_usual(self, batch_tokens: float) -> bool:
        """Whether a global batch lies in the range, as far as papers round it."""
        return (1 - PRINTED_ROUNDING) * self.low <= batch_tokens <= (1 + PRINTED_ROUNDING) * self.high


# Tokens of a batch where the source gives samples and their length; elsewhere as it is printed.
PUBLISHED: tuple[PublishedBatch, ...] = (
    PublishedBatch("GPT-3 125M", 125e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 350M", 350e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 760M", 760e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 1.3B", 1.3e9, 1e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 2.7B", 2.7e9, 1e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 6.7B", 6.7e9, 2e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 13B", 13e9, 2e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("GPT-3 175B", 175e9, 3.2e6, "arXiv 2005.14165, table 2.1"),
    PublishedBatch("Pythia 70M", 70e6, 1024 * 2048, "arXiv 2304.01373, section 2"),
    PublishedBatch("Pythia 410M", 410e6, 1024 * 2048, "arXiv 2304.01373, section 2"),
    PublishedBatch("Pythia 12B", 12e9, 1024 * 2048, "arXiv 2304.01373, section 2"),
    PublishedBatch("TinyLlama 1.1B", 1.1e9, 1024 * 2048, "jzhang38/TinyLlama, README.md"),
    PublishedBatch("OLMo 1B", 1.2e9, 2048 * 2048, "arXiv 2402.00838"),
    PublishedBatch("SmolLM3 3B", 3.1e9, 576 * 4096, "Hugging Face blog, smollm3"),
    PublishedBatch("LLaMA 7B", 6.7e9, 2048 * 2048, "arXiv 2302.13971, table 2"),
    PublishedBatch("Skywork-13B", 13.85e9, 3906 * 4096, "arXiv 2310.19341, section 3.5"),
    PublishedBatch("Nemotron-4 15B", 15e9, 1152 * 4096, "arXiv 2402.16819, table 2"),
    PublishedBatch("BloombergGPT 50B", 50.6e9, 2048 * 2048, "arXiv 2303.17564, table 4"),
    PublishedBatch("LLaMA 65B", 65.2e9, 2048 * 2048, "arXiv 2302.13971, table 2"),
    PublishedBatch("OPT-175B", 175e9, 1024 * 2048, "arXiv 2205.01068, table 1"),
    PublishedBatch("BLOOM 176B", 176e9, 2048 * 2048, "arXiv 2211.05100, table 3"),
    PublishedBatch("Gopher 280B", 280e9, 3072 * 2048, "arXiv 2112.11446, appendix"),
    PublishedBatch("Llama 3 405B", 405e9, 2048 * 8192, "arXiv 2407.21783, section 3.4.1"),
    PublishedBatch("Megatron-Turing NLG 530B", 530e9, 1920 * 2048, "arXiv 2201.11990, section 2.4"),
    PublishedBatch("PaLM 540B", 540e9, 2048 * 2048, "arXiv 2204.02311, section 5"),
    PublishedBatch("Megatron 1T", 1008e9, 3072 * 2048, "arXiv 2104.04473, table 1"),
)


def find_usual_batch(num_parameters: float) -> UsualBatch | None:
    """Return the range of the global batches of published models of about a size; None where none is alike."""
    alike = [one for one in PUBLISHED if 1 / ALIKE <= one.num_parameters / num_parameters <= ALIKE]
    if not alike:
        return None
    low = min(alike, key=lambda one: one.batch_tokens)
    high = max(alike, key=lambda one: one.batch_tokens)
    sources = [f"{low.name}: {low.source}", f"{high.name}: {high.source}"]
    if num_parameters < RECENT_PARAMETERS:
        return UsualBatch(low.batch_tokens, high.batch_tokens, "; ".join(dict.fromkeys(sources)))
    return UsualBatch(low.batch_tokens, MOST_RECENT_TOKENS, f"{sources[0]}; {RECENT}")
