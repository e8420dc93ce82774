"""Limits of a job other than its micro-batch size, each with evidence and an action.

While a device is not saturated, doubling the size should about double the throughput; where it does not, something else
is the limit. Source: google-research/tuning_playbook, "Determining the feasible batch sizes". Shapes: NVIDIA's matrix
multiplication guide, and stas00/ml-engineering, training/performance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from bexplore.host.accelerators import Device, published_device
from bexplore.job import Job, Parallelism, Precision, device_kind
from bexplore.measurement.probe import Compilation, Observation, Outcome
from bexplore.run.facts import estimated
from bexplore.run.parts.checks import PLAYBOOK, Bottleneck
from bexplore.run.parts.ranks import RanksPart
from bexplore.run.result import RunResult
from bexplore.trace.cost_model import CostModel, describe_unknown
from bexplore.units import counted, format_rate, format_seconds

GROWS = 1.6  # throughput per doubling from which a device counts as not yet saturated; 2 would be ideal
STILL_GROWS = 1.3  # the same beside the memory limit, where the last step is shorter than a doubling
# A size is compared with one that is smaller by a factor between these. Nearer than 1.2, growth per doubling has four
# times the noise of the ratio (1 / log2(1.2)); farther than 4, it is the mean of more than two doublings, of which only
# the last one tells whether the end is flat.
NEAR_END, FAR_FROM_END = 1.2, 4.0
FLAT = 1.15  # throughput per doubling below which larger sizes gain nothing
BUSY_ARITHMETIC = 0.4  # model-flops utilization that well-tuned training reaches
BUSY_MEMORY = 0.6  # share of the published bandwidth that streaming kernels reach
IDLE_ARITHMETIC = 0.1  # below it an accelerator mostly waits
# Launches of a pass take milliseconds: where the peak is unknown, they do not explain a longer pass.
SHORT_PASS_S = 0.05
# Share of an estimated pass that goes to launches and to waiting for the host, from which they limit it.
MOST_OF_A_PASS = 0.5
LARGE_COMMUNICATION = 0.1  # share of a pass above which communication that nothing hides is reported
LARGE_UPDATE = 0.1  # share of an optimizer step from which the update is reported
# Share of a step that reads its batches, or waits for them, from which that is reported, and from which it is the limit
# whatever larger sizes gain.
LARGE_READING, MOST_IS_READING = 0.2, 0.5  # Source: chosen
LOW_INTENSITY = 10.0  # operations per byte below which memory, not arithmetic, limits every device of today
LOW_WAVE_EFFICIENCY = 0.8
TILE = (128, 256)  # rows and columns of the matrix tiles that cuBLAS prefers
SHAPES = "NVIDIA matrix multiplication guide"
TRACE = "the trace"
COMMUNICATION = "PyTorch DDP (arXiv 2006.15704) and FSDP (arXiv 2304.11277)"
TF32_CAPABILITY = 8.0  # of the first NVIDIA devices with TF32; Inductor warns from here on too (`_warn_tf32_disabled`)


Evidence = TypeVar("Evidence")
Values = Mapping[str, Any]
When: TypeAlias = Callable[[Evidence], Values | None]


@dataclass(frozen=True, slots=True)
class Rule(Generic[Evidence]):
    """One rule. Its texts are templates of `str.format` over the values that `when` returns."""

    kind: str  # as in `Bottleneck`
    text: str  # what was seen
    action: str  # what to try; empty where nothing needs to be done
    source: str  # where the rule comes from
    # Returns the values: numbers, which are the evidence, and words; None where the rule does not apply.
    when: When[Evidence]


def rule(
    rules: list[Rule[Evidence]], kind: str, text: str, action: str = "", source: str = PLAYBOOK
) -> Callable[[When[Evidence]], When[Evidence]]:
    """Append a rule to a list; the function below is its `when`."""

    def append(when: When[Evidence]) -> When[Evidence]:
        rules.append(Rule(kind, text, action, source, when))
        return when

    return append


def evaluate_rules(rules: Iterable[Rule[Evidence]], evidence: Evidence) -> Iterator[Bottleneck]:
    """Yield a finding for each rule that applies, in order."""
    for one in rules:
        values = one.when(evidence)
        if values is not None:
            yield Bottleneck(
                kind=one.kind,
                finding=one.text.format(**values),
                action=one.action.format(**values),
                source=one.source,
                evidence={name: value for name, value in values.items() if not isinstance(value, str)},
            )


@dataclass(frozen=True, kw_only=True)
class JobEvidence:
    """The measurements of a job."""

    job: Job  # the job that ran
    observations: Sequence[Observation]  # every probe, at the speed that the result tells of its size
    micro_batch_size: int | None  # the recommended size; None for none
    # Passes of an optimizer step of the user's global batch size; None if unknown.
    accumulation_steps: int | None = None
    cost_model: CostModel | None = None  # the trace; None for none
    device_info: Mapping[str, Any] = field(default_factory=dict)  # torch's description of the device; empty if unknown
    loader: Mapping[str, Any] | None = None  # the timing of the user's own data loader; None where there is none
    maximum: int | None = None  # the largest size that the configuration allows; None for no bound
    parallel: RanksPart | None = None  # the ranks at the recommended size; None for a job of one device
    is_of_command: bool = False  # whether a training command ran, which takes no keys of bexplore

    def name_key(self, key: str, in_training: str) -> str:
        """Return the words for a key of the configuration; for a command those for its own code."""
        return in_training if self.is_of_command else key

    @cached_property
    def device(self) -> Device | None:
        """Published figures of the device; None where it is not in the table."""
        return published_device({"device": self.job.device} | dict(self.device_info))

    @property
    def device_kind(self) -> str:
        """`cpu`, `cuda` and so on."""
        return device_kind(str(self.device_info.get("device", self.job.device)))

    @property
    def is_on_accelerator(self) -> bool:
        """Whether the device is known not to be the CPU."""
        return self.device_kind not in ("cpu", "auto", "")

    @property
    def refused(self) -> list[int]:
        """Return the sizes that did not fit into memory."""
        return [item.micro_batch_size for item in self.observations if item.outcome is Outcome.OUT_OF_MEMORY]

    @cached_property
    def speeds(self) -> dict[int, float]:
        """Return the median samples/s by size, of the one kind of compilation that ran most sizes."""
        by_kind: dict[Compilation, dict[int, list[float]]] = {}
        for item in self.observations:
            if item.is_measured:
                of_kind = by_kind.setdefault(item.probe.compilation, {})
                of_kind.setdefault(item.micro_batch_size, []).append(item.samples_per_s)
        chosen = max(by_kind.values(), key=len, default={})
        return {size: float(np.median(chosen[size])) for size in sorted(chosen)}

    @property
    def waiting_share(self) -> float | None:
        """The share of an estimated pass that launches and waiting for the host take; None for a measured one."""
        own = (item for item in self.observations if item.is_estimated and item.micro_batch_size == self.best)
        shares = next((item.details["estimate"]["shares"] for item in own), None)
        return None if shares is None else sum(shares.get(bound, 0.0) for bound in ("launch", "host"))

    @cached_property
    def pass_and_update_s(self) -> tuple[float, float]:
        """Return the median seconds of a pass and of an update of the recommended size; 0 for an untimed update.

        They are those of the latest probe that ran as the training will, or else of the latest one.
        """
        own = [item for item in self.observations if item.is_measured and item.micro_batch_size == self.best]
        last = ([item for item in own if not item.probe.compilation.is_for_search] or own)[-1]
        return last.pass_time_s, last.update_time_s if last.update_times_s else 0.0

    @property
    def details(self) -> Mapping[str, Any]:
        """The details of the latest probe that measured the recommended size; empty where none did."""
        own = (item for item in reversed(self.observations) if item.is_measured and not item.is_estimated)
        return next((item.details for item in own if item.micro_batch_size == self.micro_batch_size), {})

    @property
    def share_of_reading(self) -> float:
        """The share of a command's step, 0 to 1, that reads its batches or waits for them; 0 if unknown."""
        return float(self.details.get("share_of_reading", 0.0))

    @property
    def best(self) -> int:
        """The recommended size, where there is one."""
        assert self.micro_batch_size is not None  # `find_bottlenecks` checks it
        return self.micro_batch_size

    @property
    def not_counted(self) -> Mapping[str, float]:
        """Share of the bytes moved, by name, of operators whose operations are not known and count as 0."""
        return {} if self.cost_model is None else self.cost_model.unknown

    @property
    def model_flops_utilization(self) -> float | None:
        """Return the share, 0 to 1, of the published arithmetic at the recommended size; None if unknown.

        It is too low where operations are not counted.
        """
        peak = self.job.peak_flops_per_s(self.device)
        if self.cost_model is None or peak is None or not self.cost_model.has_operations:
            return None
        return self.cost_model.model_flops(self.best) * self.speeds[self.best] / self.best / peak

    @property
    def bandwidth_share(self) -> float | None:
        """Return the share, 0 to 1, of the published bandwidth at the recommended size; None if unknown."""
        peak = self.device.bandwidth_bytes_per_s if self.device is not None else None
        if self.cost_model is None or not peak or not self.cost_model.bytes_moved:
            return None
        return self.cost_model.bytes_moved(self.best) * self.speeds[self.best] / self.best / peak

    def growth(self, small: int, large: int) -> float:
        """Return the factor of throughput per doubling of the size, between two sizes."""
        return float((self.speeds[large] / self.speeds[small]) ** (1.0 / math.log2(large / small)))

    @cached_property
    def small_growth(self) -> Values | None:
        """Growth of throughput at the smallest sizes; None where fewer than two were measured."""
        base = min(self.speeds)
        second = next((size for size in self.speeds if size >= 2 * base), None)
        if second is None:
            return None
        growth = self.growth(base, second)
        return {
            "seen": f"from size {base} to {second} throughput {'grows' if growth >= 1 else 'falls to'} {growth:.2f}x "
            f"per doubling ({format_rate(self.speeds[base])} to {format_rate(self.speeds[second])} samples/s)",
            "size": str(self.best),
            "micro_batch_size": second,
            "base_micro_batch_size": base,
            "throughput_per_doubling": growth,
        }


_TRANSFER: list[Rule[JobEvidence]] = []
_GROWTH: list[Rule[JobEvidence]] = []  # each explains the same growth: the first that applies is taken
_STEP: list[Rule[JobEvidence]] = []
MOVE_LESS = "use bfloat16, fuse element-wise work (torch.compile does), or widen the matrices"


def find_bottlenecks(evidence: JobEvidence) -> tuple[Bottleneck, ...]:
    """Return the bottlenecks of a job, the most important first; empty where there is no evidence of any."""
    if evidence.micro_batch_size not in evidence.speeds:
        return ()
    found = [*evaluate_rules(_TRANSFER, evidence)]
    if evidence.share_of_reading < MOST_IS_READING:
        found += [*evaluate_rules(_GROWTH, evidence)][:1]
    found += evaluate_rules(_STEP, evidence)
    if evidence.is_on_accelerator:
        multiprocessors = evidence.device_info.get("num_multiprocessors")
        found += find_shape_hints(evidence.job, evidence.best, num_multiprocessors=multiprocessors)
    return tuple(found)


def find_bottlenecks_so_far(
    job: Job, result: RunResult, observations: Iterable[Observation], cost_model: CostModel | None
) -> tuple[Bottleneck, ...]:
    """Return the bottlenecks of a run that has not finished, by its latest recommendation.

    Args:
        job: The job, with the settings of the recommendation.
        result: The recommendation.
        observations: The probes with those settings.
        cost_model: The trace of that job; None for none.
    """
    batch = result.batch.nearest
    evidence = JobEvidence(
        job=job,
        observations=[estimated(item, result.answer.speeds) for item in observations],
        micro_batch_size=result.micro_batch_size,
        accumulation_steps=None if batch is None else batch.accumulation_steps,
        cost_model=cost_model,
        device_info=result.device_info,
        is_of_command=result.batch.num_replicas is not None,
    )
    return find_bottlenecks(evidence)


@rule(_TRANSFER, "input", "the data loader could not be timed: {problem}", "iterate over {loader} alone")
def _find_loader_problem(evidence: JobEvidence) -> Values | None:
    if not evidence.loader or not evidence.loader["problem"]:
        return None
    return {"problem": evidence.loader["problem"], "loader": str(evidence.job.model.get("loader"))}


@rule(
    _TRANSFER,
    "input",
    "the largest batch of the data loader has a size of {largest_batch}, not {micro_batch_size}: so many never come",
    "set explore.max to {largest_batch}, or let the loader take its batch size from its argument",
)
def _find_small_batches(evidence: JobEvidence) -> Values | None:
    loader = evidence.loader
    if not loader or loader["problem"] or loader["largest_batch"] >= loader["micro_batch_size"]:
        return None
    return {name: loader[name] for name in ("largest_batch", "micro_batch_size")}


@rule(
    _TRANSFER,
    "input",
    "the input pipeline is the limit: the loader gives {given} samples/s{workers}, the step takes {taken}",
    "raise num_workers, decode and augment less for each sample, or store samples already prepared",
)
def _find_slow_loader(evidence: JobEvidence) -> Values | None:
    loader = evidence.loader
    if not loader or loader["problem"]:
        return None
    pass_s, update_s = evidence.pass_and_update_s
    steps = evidence.accumulation_steps or 1
    taken, given = steps * evidence.best / (steps * pass_s + update_s), loader["samples_per_s"]
    if given >= taken:
        return None
    workers = "" if loader["num_workers"] is None else f" with {counted(loader['num_workers'], 'worker')}"
    return {
        "loader_samples_per_s": given,
        "step_samples_per_s": taken,
        "given": format_rate(given),
        "taken": format_rate(taken),
        "workers": workers,
    }


@rule(
    _TRANSFER,
    "input",
    "reading its batches takes {share_of_reading:.0%} of a step ({taken} of {of_step}), {how}",
    "{workers}, prepare less for each sample, or store samples already prepared",
)
def _find_slow_reading(evidence: JobEvidence) -> Values | None:
    share, num_workers = evidence.share_of_reading, evidence.details.get("num_loader_workers", 0)
    if share < LARGE_READING:
        return None
    pass_s, update_s = evidence.pass_and_update_s
    step_s = evidence.details["micro_batches_per_step"] * pass_s + update_s
    return {
        "share_of_reading": share,
        "num_loader_workers": num_workers,
        "taken": format_seconds(share * step_s),
        "of_step": format_seconds(step_s),
        "how": f"with {counted(num_workers, 'worker')}" if num_workers else "in the process that trains",
        "workers": "raise num_workers" if num_workers else "give the loader workers (num_workers)",
    }


@rule(
    _TRANSFER,
    "communication",
    "communication is the limit: {exposed} of a pass, {communication_share:.0%}, are spent on it beyond what "
    "computation hides ({ranks}){shared}",
    "{ways} or a faster link between them",
    COMMUNICATION,
)
def _find_exposed_communication(evidence: JobEvidence) -> Values | None:
    parallel = evidence.parallel
    if parallel is None or not parallel.holds_communication or parallel.parallel_efficiency is None:
        return None
    assert parallel.exposed_communication_s is not None  # known with the efficiency
    share = 1.0 - parallel.parallel_efficiency
    if share <= LARGE_COMMUNICATION:
        return None
    return {
        "communication_share": share,
        "exposed_communication_s": parallel.exposed_communication_s,
        "num_ranks": parallel.num_ranks,
        "exposed": format_seconds(parallel.exposed_communication_s),
        "ranks": parallel.description,
        # Ranks on the processors of one host also wait for each other's work, which one rank alone does not.
        "shared": "" if evidence.is_on_accelerator else ", or on the processors of a host, which its ranks share",
        "ways": _list_ways_to_communicate_less(evidence.job.parallelism, parallel.accumulation_steps),
    }


def _list_ways_to_communicate_less(parallelism: Parallelism, accumulation_steps: int | None) -> str:
    # What is not set already. A larger micro-batch is none of it: the search has tried the sizes that fit.
    ways = []
    if parallelism.num_replicas > 1:
        ways.append(_name_rarer_reductions(parallelism, accumulation_steps))
    if parallelism.is_sharded and parallelism.fsdp_reshard_after_forward != "never":
        ways.append("fsdp_reshard_after_forward: never (gathers parameters once a pass, and holds them)")
    if parallelism.is_sharded:
        ways.append("a higher data_parallel_replicate_degree (HSDP: fewer ranks share a copy)")
    if parallelism.is_replicated_only and not parallelism.gradient_as_bucket_view:
        ways.append("gradient_as_bucket_view: true (copies no gradients)")
    return ", ".join([*ways, "fewer devices"])


def _name_rarer_reductions(parallelism: Parallelism, accumulation_steps: int | None) -> str:
    if parallelism.gradient_sync != "every":
        return "a larger batch_size (more accumulation steps, of which the last alone reduces)"
    if accumulation_steps == 1:
        return "a larger batch_size with explore.parallelism.gradient_sync: last (reduces once in more passes)"
    return "explore.parallelism.gradient_sync: last (reduces gradients once a step)"


@rule(
    _GROWTH,
    "bandwidth",
    "memory bandwidth is the limit: {seen}; size {size} moves {bandwidth_share:.0%} of the device's bandwidth",
    MOVE_LESS,
)
def _find_full_bandwidth(evidence: JobEvidence) -> Values | None:
    growth, share = evidence.small_growth, evidence.bandwidth_share
    return None if growth is None or share is None or share < BUSY_MEMORY else {**growth, "bandwidth_share": share}


@rule(_GROWTH, "compute", "{seen}; size {size} reaches {least}{mfu:.0%} of the peak arithmetic, which is good use")
def _find_full_arithmetic(evidence: JobEvidence) -> Values | None:
    growth, share = evidence.small_growth, evidence.model_flops_utilization
    if growth is None or share is None or share < BUSY_ARITHMETIC:
        return None
    return {**growth, "mfu": share, "least": "at least " if evidence.not_counted else ""}


@rule(
    _GROWTH,
    "launch",
    "launch overhead is the limit: a pass of size {size} takes {time}, one of size {half_micro_batch_size} "
    "{half_time}{idle}",
    "{larger}{reduce_overhead} (CUDA graphs; to accumulate with them, allocate .grad once and clear with "
    "zero_grad(set_to_none=False))",
)
def _find_launches(evidence: JobEvidence) -> Values | None:
    # An accelerator that idles while a pass takes hardly longer than one of half the size.
    utilization, best = evidence.model_flops_utilization, evidence.best
    pass_s = {size: size / speed for size, speed in evidence.speeds.items()}
    half = max((size for size in pass_s if size <= best / 2), default=None)
    if evidence.not_counted:  # it is more than is known
        utilization = None
    is_idle = pass_s[best] < SHORT_PASS_S if utilization is None else utilization < IDLE_ARITHMETIC
    if evidence.small_growth is None or not evidence.is_on_accelerator or half is None or not is_idle:
        return None
    if evidence.waiting_share is not None and evidence.waiting_share < MOST_OF_A_PASS:
        return None
    if pass_s[best] / pass_s[half] >= (best / half) ** math.log2(2 / GROWS):
        return None
    return {
        "pass_time_s": pass_s[best],
        "half_micro_batch_size": half,
        "half_pass_time_s": pass_s[half],
        "larger": _name_larger_sizes(evidence),
        "reduce_overhead": evidence.name_key(
            "explore.compile: {mode: reduce-overhead}", "torch.compile(model, mode='reduce-overhead') in the training"
        ),
        "size": str(best),
        "time": format_seconds(pass_s[best]),
        "half_time": format_seconds(pass_s[half]),
        "idle": "" if utilization is None else f", and only {utilization:.0%} of the peak arithmetic is used",
    } | ({} if utilization is None else {"mfu": utilization})


def _name_larger_sizes(evidence: JobEvidence) -> str:
    """Return the way to larger sizes; empty where those that ran were not faster, or the next one does not fit."""
    if evidence.best < max(evidence.speeds) or evidence.refused:
        return ""
    return "a larger explore.max, or " if evidence.maximum == evidence.best else "larger sizes, or "


def _find_little_growth(evidence: JobEvidence) -> Values | None:
    growth = evidence.small_growth
    return None if growth is None or growth["throughput_per_doubling"] >= GROWS else growth


@rule(
    _GROWTH,
    "bandwidth",
    "memory bandwidth is the limit: {seen}; a pass does only {flops_per_byte:.2g} operations for each byte that "
    "it moves",
    MOVE_LESS,
)
def _find_low_intensity(evidence: JobEvidence) -> Values | None:
    growth, model = _find_little_growth(evidence), evidence.cost_model
    if growth is None or model is None or evidence.not_counted or not (model.bytes_moved and model.hardware_flops):
        return None
    intensity = model.hardware_flops(evidence.best) / model.bytes_moved(evidence.best)
    return None if intensity >= LOW_INTENSITY else {**growth, "flops_per_byte": intensity}


@rule(_GROWTH, "saturated", "{device} gains less from larger sizes than it could: {seen}, where 2x would be ideal")
def _find_half_saturation(evidence: JobEvidence) -> Values | None:
    growth = _find_little_growth(evidence)
    if growth is None or growth["throughput_per_doubling"] <= FLAT:
        return None
    return {**growth, "device": "the device" if evidence.is_on_accelerator else "the processor"}


@rule(_GROWTH, "saturated", "{device} is busy with {samples} already: {seen}", "{profile}")
def _find_saturation(evidence: JobEvidence) -> Values | None:
    growth, is_on_accelerator = _find_little_growth(evidence), evidence.is_on_accelerator
    if growth is None:
        return None
    profile = "profile one pass: neither arithmetic nor memory is known to be full"
    return {
        **growth,
        "device": "the device" if is_on_accelerator else "the processor",
        "samples": counted(growth["base_micro_batch_size"], "sample"),
        "profile": profile if is_on_accelerator else "",
    }


@rule(
    _STEP,
    "capacity",
    "memory is the limit: throughput still grows {throughput_per_doubling:.2f}x per doubling at size {size}, and "
    "{refused_micro_batch_size} does not fit",
    "activation checkpointing, bfloat16 or a sharded optimizer make room for larger sizes",
)
def _find_full_memory(evidence: JobEvidence) -> Values | None:
    # Throughput that still grows where the memory ends.
    growth, refused = _find_growth_at_end(evidence), evidence.refused
    return {**growth, "refused_micro_batch_size": min(refused)} if growth and refused else None


@rule(
    _STEP,
    "maximum",
    "explore.max is the limit: throughput still grows {throughput_per_doubling:.2f}x per doubling at size {size}",
    "a larger explore.max",
)
def _find_own_maximum(evidence: JobEvidence) -> Values | None:
    return _find_growth_at_end(evidence) if evidence.maximum == evidence.best else None


def _find_growth_at_end(evidence: JobEvidence) -> Values | None:
    """Return how throughput still grows where the recommended size is the largest that ran; None where it is not."""
    speeds, best = evidence.speeds, evidence.best
    # The nearest to half of it; growth from far below says nothing of the end.
    near = (size for size in speeds if best / FAR_FROM_END <= size <= best / NEAR_END)
    below = min(near, key=lambda size: abs(math.log(2 * size / best)), default=None)
    if best != max(speeds) or below is None or evidence.growth(below, best) < STILL_GROWS:
        return None
    return {"throughput_per_doubling": evidence.growth(below, best), "size": str(best)}


@rule(
    _STEP,
    "update",
    "the optimizer's update takes {update_share:.0%} of a step of {steps} ({update} beside {passes} of passes)",
    "a larger global batch spreads it over more passes{fused}",
)
def _find_long_update(evidence: JobEvidence) -> Values | None:
    if not evidence.accumulation_steps:
        return None
    pass_s, update_s = evidence.pass_and_update_s
    passes_s = evidence.accumulation_steps * pass_s
    share = update_s / (passes_s + update_s)
    if share < LARGE_UPDATE:
        return None
    named = [name for item in evidence.observations for name in item.details.get("unfused_optimizers", ())]
    return {
        "update_share": share,
        "update_time_s": update_s,
        "pass_time_s": pass_s,
        "steps": counted(evidence.accumulation_steps, "accumulation step"),
        "update": format_seconds(update_s),
        "passes": format_seconds(passes_s),
        "fused": "".join(f" or {name}(fused=True)" for name in dict.fromkeys(named)),
    }


@rule(_STEP, "not_counted", "{note}", source=TRACE)
def _find_not_counted(evidence: JobEvidence) -> Values | None:
    if not evidence.not_counted:
        return None
    return {"note": " ".join(describe_unknown(evidence.not_counted)), "share": sum(evidence.not_counted.values())}


@rule(
    _STEP,
    "graph_breaks",
    "the compiler breaks the step {times}: {reason}",
    "each break costs launches and fusions; {fullgraph} makes it an error",
    "torch.compile's documentation",
)
def _find_graph_breaks(evidence: JobEvidence) -> Values | None:
    reasons = {reason for item in evidence.observations for reason in item.graph_break_reasons}
    count = max((item.num_graph_breaks or 0 for item in evidence.observations), default=0)
    if not count:
        return None
    return {
        "num_graph_breaks": count,
        "times": counted(count, "time"),
        "reason": min(reasons, default=""),
        "fullgraph": evidence.name_key("explore.compile: {fullgraph: true}", "torch.compile(model, fullgraph=True)"),
    }


@rule(
    _STEP,
    "precision",
    "float32 matrices do not use the TF32 tensor cores of this device (capability {capability:g})",
    "if 10 bits of mantissa are enough, call torch.set_float32_matmul_precision('high') in the training{key}",
    "PyTorch's notes on CUDA semantics, TensorFloat-32",
)
def _find_float32_matrices(evidence: JobEvidence) -> Values | None:
    # Float32 matrices that do not use the device's TF32 tensor cores, unless the job decides it.
    job = evidence.job
    capability = float(evidence.device_info.get("capability") or 0.0) if evidence.device_kind == "cuda" else 0.0
    is_decided = job.precision is not Precision.FLOAT32 or job.torch.float32_matmul_precision is not None
    if capability < TF32_CAPABILITY or is_decided:
        return None
    key = evidence.name_key(" and set explore.torch: {float32_matmul_precision: high}", "")
    return {"capability": capability, "key": key}


def find_shape_hints(job: Job, micro_batch_size: int, *, num_multiprocessors: int | None) -> list[Bottleneck]:
    """Return shapes that tensor cores run slowly: advice, never a filter.

    Matrix sizes should be multiples of 128 bytes (A100 and later): 64 elements of 16 bits, 32 of 32 bits.
    """
    elements = 32 if job.precision is Precision.FLOAT32 else 64
    model = job.model
    hidden = _first(model, "hidden_size", "n_embd", "d_model")
    heads = _first(model, "num_heads", "num_attention_heads", "n_head")
    wide = _first(model, "intermediate_size", "n_inner", "ffn_dim", "d_ff") or (4 * hidden if hidden else None)
    named = {"vocabulary": _first(model, "vocab_size"), "hidden size": hidden, "feed-forward size": wide}
    hints = [
        _shape(
            f"{name} {size} is not a multiple of {elements}",
            f"pad it to {-(-size // elements) * elements}",
            {"elements": size, "multiple_of": elements},
        )
        for name, size in named.items()
        if size and size % elements
    ]
    if hidden and heads and (hidden // heads) % 8:
        hints.append(
            _shape(
                f"a head has {hidden // heads} elements, not a multiple of 8",
                "choose heads so that their size is a multiple of 8, better 64",
                {"elements": hidden // heads, "multiple_of": 8},
            )
        )
    if wide and job.sequence_length and num_multiprocessors:
        hints += _wave_hint(micro_batch_size * job.sequence_length, wide, num_multiprocessors)
    return hints


def _wave_hint(rows: int, columns: int, num_multiprocessors: int) -> list[Bottleneck]:
    tiles = math.ceil(rows / TILE[0]) * math.ceil(columns / TILE[1])
    waves = math.ceil(tiles / num_multiprocessors)
    efficiency = tiles / (waves * num_multiprocessors)
    if efficiency >= LOW_WAVE_EFFICIENCY:
        return []
    return [
        _shape(
            f"the feed-forward matrix of {rows} x {columns} makes {tiles} tiles, {counted(waves, 'wave')} on "
            f"{num_multiprocessors} multiprocessors, filled to {efficiency:.0%}",
            "sizes nearby may fill the last wave; the search has tried those that it could",
            {"num_tiles": tiles, "num_waves": waves, "wave_efficiency": efficiency},
        )
    ]


def _shape(finding: str, action: str, numbers: Mapping[str, float]) -> Bottleneck:
    return Bottleneck(kind="shape", finding=finding, action=action, source=SHAPES, evidence=numbers)


def _first(model: Mapping[str, Any], *names: str) -> int | None:
    return next((model[name] for name in names if isinstance(model.get(name), int)), None)
