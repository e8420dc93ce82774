"""Limits of a job other than its micro-batch size, each with evidence and an action.

While a device is not saturated, doubling the size should about double the throughput; where it does not, something else
is the limit. Source: google-research/tuning_playbook, "Determining the feasible batch sizes". Shapes: NVIDIA's matrix
multiplication guide, and stas00/ml-engineering, training/performance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from bexplore.host.accelerators import Device, published_device
from bexplore.job import Job, Parallelism, Precision, device_kind
from bexplore.measurement.probe import Compilation, Observation, Outcome
from bexplore.measurement.profile import BATCH, STEP, UPDATE, Profile, ProfiledCollective
from bexplore.run.bottleneck import Bottleneck
from bexplore.run.parallel_result import ParallelResult
from bexplore.trace.cost_model import CostModel
from bexplore.units import counted, format_seconds

GROWS = 1.6  # throughput per doubling from which a device counts as not yet saturated; 2 would be ideal
STILL_GROWS = 1.3  # the same beside the memory limit, where the last step is shorter than a doubling
NEAR_BEST = 1.5  # a size is compared with one that is smaller by at least this factor
FLAT = 1.15  # throughput per doubling below which larger sizes gain nothing
BUSY_ARITHMETIC = 0.4  # model-flops utilization that well-tuned training reaches
BUSY_MEMORY = 0.6  # share of the published bandwidth that streaming kernels reach
IDLE_ARITHMETIC = 0.1  # below it an accelerator mostly waits
# Launches of a pass take milliseconds: where the peak is unknown, they do not explain a longer pass.
SHORT_PASS_S = 0.05
LARGE_COMMUNICATION = 0.1  # share of a pass above which communication that nothing hides is reported
EXPLAINS = 0.5  # share of exposed communication from which the bandwidth is its reason, and below which waiting is
LARGE_UPDATE = 0.1  # share of an optimizer step from which the update is reported
LOW_INTENSITY = 10.0  # operations per byte below which memory, not arithmetic, limits every device of today
LOW_WAVE_EFFICIENCY = 0.8
# Of profiled steps; the three are judgements, like those above.
LARGE_INPUT = 0.05  # share of a profiled step that batches may take; a loader's workers prepare them beside it
BUSY_DEVICE = 0.8  # share of a profiled step below which a device mostly waits for launches
FEW_MATRICES = 0.4  # share of kernel time below which most of it moves memory
TILE = (128, 256)  # rows and columns of the matrix tiles that cuBLAS prefers
SHAPES = "NVIDIA matrix multiplication guide"
COMMUNICATION = "PyTorch DDP (arXiv 2006.15704) and FSDP (arXiv 2304.11277)"
TF32_CAPABILITY = 8.0  # of the first NVIDIA devices with TF32; Inductor warns from here on too (`_warn_tf32_disabled`)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEvidence:
    """What `bexplore network` has timed between the devices that train.

    Attributes:
        slow: Ranks and links that hold the others up, a sentence each.
        speeds: Bandwidths by name, bytes/s: of the slowest link, and of the median one.
        seconds: Returns how long collectives take at the bandwidth that was timed; None for one that was not timed.
        exposed_s: Seconds of a pass of the run that communication added to it; None if unknown.
        explained_s: Seconds that all collectives of such a pass take at that bandwidth; None if unknown.
    """

    slow: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    seconds: Callable[[ProfiledCollective], float | None] = lambda collective: None
    exposed_s: float | None = None
    explained_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobEvidence:
    """The measurements of a job.

    Attributes:
        job: The job that ran.
        observations: Every probe, at the speed that the result tells of its size.
        micro_batch_size: The recommended size; None for none.
        accumulation_steps: Passes of an optimizer step of the user's global batch size; None if unknown.
        cost_model: The trace; None for none.
        device_info: torch's description of the device; empty if unknown.
        loader: The timing of the user's own data loader; None where there is none.
        parallel: The ranks at the recommended size; None for a job of one device.
    """

    job: Job
    observations: Sequence[Observation]
    micro_batch_size: int | None
    accumulation_steps: int | None = None
    cost_model: CostModel | None = None
    device_info: Mapping[str, Any] = field(default_factory=dict)
    loader: Mapping[str, Any] | None = None
    parallel: ParallelResult | None = None

    @cached_property
    def device(self) -> Device | None:
        """Return the published figures of the device; None where it is not in the table."""
        return published_device({"device": self.job.device} | dict(self.device_info))

    @property
    def device_kind(self) -> str:
        """Return `cpu`, `cuda` and so on."""
        return device_kind(str(self.device_info.get("device", self.job.device)))

    @property
    def is_on_accelerator(self) -> bool:
        """Whether the device is known not to be the CPU."""
        return self.device_kind not in ("cpu", "auto", "")

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

    @cached_property
    def pass_and_update_s(self) -> tuple[float, float]:
        """Return the median seconds of a pass and of an update of the recommended size; 0 for an untimed update.

        They are those of the latest probe that ran as the training will, or else of the latest one.
        """
        own = [item for item in self.observations if item.is_measured and item.micro_batch_size == self.best]
        last = ([item for item in own if not item.probe.compilation.is_for_search] or own)[-1]
        return last.pass_time_s, last.update_time_s if last.update_times_s else 0.0

    @property
    def best(self) -> int:
        """Return the recommended size, where there is one."""
        assert self.micro_batch_size is not None  # `find_bottlenecks` checks it
        return self.micro_batch_size

    @property
    def model_flops_utilization(self) -> float | None:
        """Return the share, 0 to 1, of the published arithmetic at the recommended size; None if unknown."""
        peak = self.job.peak_flops_per_s(self.device)
        if self.cost_model is None or peak is None:
            return None
        return self.cost_model.model_flops(self.best) * self.speeds[self.best] / self.best / peak

    @property
    def bandwidth_share(self) -> float | None:
        """Return the share, 0 to 1, of the published bandwidth at the recommended size; None if unknown."""
        peak = self.device.bandwidth_bytes_per_s if self.device is not None else None
        if self.cost_model is None or not peak:
            return None
        return self.cost_model.bytes_moved(self.best) * self.speeds[self.best] / self.best / peak

    def growth(self, small: int, large: int) -> float:
        """Return the factor of throughput per doubling of the size, between two sizes."""
        return float((self.speeds[large] / self.speeds[small]) ** (1.0 / math.log2(large / small)))


def find_bottlenecks(evidence: JobEvidence) -> tuple[Bottleneck, ...]:
    """Return the bottlenecks of a job, the most important first; empty where there is no evidence of any."""
    if evidence.micro_batch_size not in evidence.speeds:
        return ()
    rules = (_input, _communication, _scaling, _capacity, _update, _graph_breaks, _float32_matrices)
    found = [item for rule in rules if (item := rule(evidence)) is not None]
    if evidence.is_on_accelerator:
        multiprocessors = evidence.device_info.get("num_multiprocessors")
        found += shape_hints(evidence.job, evidence.best, num_multiprocessors=multiprocessors)
    return tuple(found)


def _input(evidence: JobEvidence) -> Bottleneck | None:
    """Compare the loader's samples/s with those of a step; report a loader that could not be timed."""
    loader = evidence.loader
    if not loader:
        return None
    if loader["problem"]:
        return Bottleneck(
            kind="input",
            finding=f"the data loader could not be timed: {loader['problem']}",
            action=f"iterate over {evidence.job.model.get('loader')} alone",
        )
    pass_s, update_s = evidence.pass_and_update_s
    steps = evidence.accumulation_steps or 1
    taken = steps * evidence.best / (steps * pass_s + update_s)
    given = loader["samples_per_s"]
    if given >= taken:
        return None
    workers = loader["num_workers"]
    with_workers = "" if workers is None else f" with {counted(workers, 'worker')}"
    return Bottleneck(
        kind="input",
        finding=f"the input pipeline is the limit: the loader gives {given:.4g} samples/s{with_workers}, the step "
        f"takes {taken:.4g}",
        action="raise num_workers, decode and augment less for each sample, or store samples already prepared",
        evidence={"loader_samples_per_s": given, "step_samples_per_s": taken},
    )


def _communication(evidence: JobEvidence) -> Bottleneck | None:
    """Report communication that computation does not hide, where all ranks ran."""
    parallel = evidence.parallel
    if parallel is None or not parallel.holds_communication or parallel.parallel_efficiency is None:
        return None
    assert parallel.exposed_communication_s is not None  # known with the efficiency
    share = 1.0 - parallel.parallel_efficiency
    if share <= LARGE_COMMUNICATION:
        return None
    # Ranks on the processors of one host also wait for each other's work, which one rank alone does not.
    shared = "" if evidence.is_on_accelerator else ", or on the processors of a host, which its ranks share"
    return Bottleneck(
        kind="communication",
        finding=f"communication is the limit: {format_seconds(parallel.exposed_communication_s)} of a pass, "
        f"{share:.0%}, are spent on it beyond what computation hides ({parallel.description}){shared}",
        action=_less_communication(evidence.job.parallelism, parallel.accumulation_steps),
        source=COMMUNICATION,
        evidence={
            "communication_share": share,
            "exposed_communication_s": parallel.exposed_communication_s,
            "num_ranks": parallel.num_ranks,
        },
    )


def _less_communication(parallelism: Parallelism, accumulation_steps: int | None) -> str:
    """Return what makes communication rarer or hides more of it, and is not set already.

    A larger micro-batch is none of it: the search has tried the sizes that fit.
    """
    ways = []
    if parallelism.num_replicas > 1:
        ways.append(_rarer_reductions(parallelism, accumulation_steps))
    if parallelism.is_sharded and parallelism.fsdp_reshard_after_forward != "never":
        ways.append("fsdp_reshard_after_forward: never (gathers parameters once a pass, and holds them)")
    if parallelism.is_sharded:
        ways.append("a higher data_parallel_replicate_degree (HSDP: fewer ranks share a copy)")
    if parallelism.is_replicated_only and not parallelism.gradient_as_bucket_view:
        ways.append("gradient_as_bucket_view: true (copies no gradients)")
    return f"{', '.join([*ways, 'fewer devices'])} or a faster link between them"


def _rarer_reductions(parallelism: Parallelism, accumulation_steps: int | None) -> str:
    if parallelism.gradient_sync != "every":
        return "a larger batch_size (more accumulation steps, of which the last alone reduces)"
    if accumulation_steps == 1:
        return "a larger batch_size with explore.parallelism.gradient_sync: last (reduces once in more passes)"
    return "explore.parallelism.gradient_sync: last (reduces gradients once a step)"


def _scaling(evidence: JobEvidence) -> Bottleneck | None:
    """Explain where throughput grows less at the small end than it should."""
    speeds, best = evidence.speeds, evidence.best
    base = min(speeds)
    second = next((size for size in speeds if size >= 2 * base), None)
    if second is None:
        return None
    growth = evidence.growth(base, second)
    seen = (
        f"from size {base} to {second} throughput {'grows' if growth >= 1 else 'falls to'} {growth:.2f}x per doubling "
        f"({speeds[base]:.4g} to {speeds[second]:.4g} samples/s)"
    )
    numbers = {"micro_batch_size": second, "base_micro_batch_size": base, "throughput_per_doubling": growth}
    utilization, bandwidth = evidence.model_flops_utilization, evidence.bandwidth_share
    if bandwidth is not None and bandwidth >= BUSY_MEMORY:
        finding = f"{seen}; size {best} moves {bandwidth:.0%} of the device's bandwidth"
        return _memory_bound(finding, numbers | {"bandwidth_share": bandwidth})
    if utilization is not None and utilization >= BUSY_ARITHMETIC:
        finding = f"{seen}; size {best} reaches {utilization:.0%} of the peak arithmetic, which is good use"
        return Bottleneck(kind="compute", finding=finding, evidence=numbers | {"mfu": utilization})
    launch = _launch_bound(evidence, utilization) if evidence.is_on_accelerator else None
    if launch is not None or growth >= GROWS:
        return launch
    model = evidence.cost_model
    intensity = None if model is None else model.hardware_flops(best) / model.bytes_moved(best)
    if intensity is not None and intensity < LOW_INTENSITY:
        finding = f"{seen}; a pass does only {intensity:.2g} operations for each byte that it moves"
        return _memory_bound(finding, numbers | {"flops_per_byte": intensity})
    return _saturated(seen, numbers, on_accelerator=evidence.is_on_accelerator)


def _memory_bound(finding: str, numbers: Mapping[str, float]) -> Bottleneck:
    return Bottleneck(
        kind="bandwidth",
        finding=f"memory bandwidth is the limit: {finding}",
        action="use bfloat16, fuse element-wise work (torch.compile does), or widen the matrices",
        evidence=numbers,
    )


def _launch_bound(evidence: JobEvidence, utilization: float | None) -> Bottleneck | None:
    """Report an accelerator that idles while a pass takes hardly longer than one of half the size."""
    pass_s, best = {size: size / speed for size, speed in evidence.speeds.items()}, evidence.best
    half = max((size for size in pass_s if size <= best / 2), default=None)
    is_idle = pass_s[best] < SHORT_PASS_S if utilization is None else utilization < IDLE_ARITHMETIC
    if half is None or not is_idle or pass_s[best] / pass_s[half] >= (best / half) ** math.log2(2 / GROWS):
        return None
    idle = "" if utilization is None else f", and only {utilization:.0%} of the peak arithmetic is used"
    return Bottleneck(
        kind="launch",
        finding=f"launch overhead is the limit: a pass of size {best} takes {format_seconds(pass_s[best])}, one of "
        f"size {half} {format_seconds(pass_s[half])}{idle}",
        action="try larger sizes, or explore.compile: {mode: reduce-overhead} (CUDA graphs; to accumulate with them, "
        "allocate .grad once and clear with zero_grad(set_to_none=False))",
        evidence={"pass_time_s": pass_s[best], "half_micro_batch_size": half, "half_pass_time_s": pass_s[half]}
        | ({} if utilization is None else {"mfu": utilization}),
    )


def _saturated(seen: str, numbers: Mapping[str, float], *, on_accelerator: bool) -> Bottleneck:
    what = "the device" if on_accelerator else "the processor"
    if numbers["throughput_per_doubling"] > FLAT:
        finding = f"{what} is half saturated at the smallest sizes: {seen}, where 2x would be ideal"
        return Bottleneck(kind="saturated", finding=finding, evidence=numbers)
    samples = counted(int(numbers["base_micro_batch_size"]), "sample")
    return Bottleneck(
        kind="saturated",
        finding=f"{what} is busy with {samples} already: {seen}",
        action="profile one pass: neither arithmetic nor memory is known to be full" if on_accelerator else "",
        evidence=numbers,
    )


def _capacity(evidence: JobEvidence) -> Bottleneck | None:
    """Report throughput that still grows where the memory ends."""
    refused = [item.micro_batch_size for item in evidence.observations if item.outcome is Outcome.OUT_OF_MEMORY]
    speeds, best = evidence.speeds, evidence.best
    below = max((size for size in speeds if size <= best / NEAR_BEST), default=None)
    if not refused or best != max(speeds) or below is None:
        return None
    growth = evidence.growth(below, best)
    if growth < STILL_GROWS:
        return None
    return Bottleneck(
        kind="capacity",
        finding=f"memory is the limit: throughput still grows {growth:.2f}x per doubling at size {best}, and "
        f"{min(refused)} does not fit",
        action="activation checkpointing, bfloat16 or a sharded optimizer make room for larger sizes",
        evidence={"throughput_per_doubling": growth, "refused_micro_batch_size": min(refused)},
    )


def _update(evidence: JobEvidence) -> Bottleneck | None:
    """Report a large share of the optimizer's update in a step."""
    if not evidence.accumulation_steps:
        return None
    pass_s, update_s = evidence.pass_and_update_s
    passes_s = evidence.accumulation_steps * pass_s
    share = update_s / (passes_s + update_s)
    if share < LARGE_UPDATE:
        return None
    named = [name for item in evidence.observations for name in item.details.get("unfused_optimizers", ())]
    fused = "".join(f" or {name}(fused=True)" for name in dict.fromkeys(named))
    return Bottleneck(
        kind="update",
        finding=f"the optimizer's update takes {share:.0%} of a step of "
        f"{counted(evidence.accumulation_steps, 'accumulation step')} ({format_seconds(update_s)} beside "
        f"{format_seconds(passes_s)} of passes)",
        action=f"a larger global batch spreads it over more passes{fused}",
        evidence={"update_share": share, "update_time_s": update_s, "pass_time_s": pass_s},
    )


def _graph_breaks(evidence: JobEvidence) -> Bottleneck | None:
    reasons = {reason for item in evidence.observations for reason in item.graph_break_reasons}
    count = max((item.num_graph_breaks or 0 for item in evidence.observations), default=0)
    if not count:
        return None
    return Bottleneck(
        kind="graph_breaks",
        finding=f"the compiler breaks the step {counted(count, 'time')}: {min(reasons, default='')}",
        action="each break costs launches and fusions; explore.compile: {fullgraph: true} makes it an error",
        source="torch.compile's documentation",
        evidence={"num_graph_breaks": count},
    )


def _float32_matrices(evidence: JobEvidence) -> Bottleneck | None:
    """Report float32 matrices that do not use the device's TF32 tensor cores, unless the job decides it."""
    job = evidence.job
    capability = float(evidence.device_info.get("capability") or 0.0) if evidence.device_kind == "cuda" else 0.0
    is_decided = job.precision is not Precision.FLOAT32 or job.torch.float32_matmul_precision is not None
    if capability < TF32_CAPABILITY or is_decided:
        return None
    return Bottleneck(
        kind="precision",
        finding=f"float32 matrices do not use the TF32 tensor cores of this device (capability {capability:g})",
        action="if 10 bits of mantissa are enough, call torch.set_float32_matmul_precision('high') in the training "
        "and set explore.torch: {float32_matmul_precision: high}",
        source="PyTorch's notes on CUDA semantics, TensorFloat-32",
        evidence={"capability": capability},
    )


def network_bottlenecks(network: NetworkEvidence | None) -> tuple[Bottleneck, ...]:
    """Return what the timed network holds up: slow ranks and links, and what it explains of a pass's communication."""
    if network is None:
        return ()
    slow = [
        Bottleneck(
            kind="communication",
            finding=f"a part of the network is slow, and every collective waits for it: {sentence}",
            action="look for another job on that host, a link that fell back to a lower rate, or a disturbed cable; "
            "train without the host until then",
            source="bexplore network",
            evidence=network.speeds,
        )
        for sentence in network.slow
    ]
    return (*slow, *_explained_pass(network))


def _explained_pass(network: NetworkEvidence) -> Iterator[Bottleneck]:
    if not network.exposed_s or network.exposed_s < 0 or network.explained_s is None:
        return
    reason, action = _reason(network.exposed_s, network.explained_s)
    yield Bottleneck(
        kind="communication",
        finding=f"communication adds {format_seconds(network.exposed_s)} to a pass; at the bandwidth that was timed "
        f"its collectives take {format_seconds(network.explained_s)} in all: {reason}",
        action=action,
        source="bexplore network",
        evidence={"exposed_communication_s": network.exposed_s, "explained_s": network.explained_s},
    )


def _reason(exposed_s: float, explained_s: float) -> tuple[str, str]:
    """Return why ranks communicate for some seconds, of which the bandwidth explains others, and what to try."""
    if explained_s >= EXPLAINS * exposed_s:
        return "the bandwidth explains it", "accumulate more passes in a step, or shard over fewer devices"
    waits = "most of it is waiting for a slower rank, or many small messages"
    return (
        waits,
        "compare the ranks' own speeds and batches, and raise bucket_cap_mb; a faster link would change little",
    )


def profile_bottlenecks(profile: Profile, network: NetworkEvidence | None = None) -> tuple[Bottleneck, ...]:
    """Return what limits profiled steps; empty where their profile shows nothing of it.

    Args:
        network: What was timed beside the run; None for nothing.
    """
    found = (
        _profiled_input(profile),
        _profiled_launches(profile),
        _profiled_network(profile, network),
        _profiled_bandwidth(profile),
        _profiled_update(profile),
    )
    return tuple(one for one in found if one is not None)


def _profiled_input(profile: Profile) -> Bottleneck | None:
    """Report batches that the device waits for."""
    step_s, batch_s = profile.regions_s.get(STEP), profile.regions_s.get(BATCH, 0.0)
    share = max(profile.copy_share or 0.0, batch_s / step_s if step_s and profile.copy_share is None else 0.0)
    if share <= LARGE_INPUT:
        return None
    return Bottleneck(
        kind="input",
        finding=f"making and copying batches takes {share:.0%} of a profiled step, beside which nothing is computed",
        action="prepare batches in workers of the loader, pin their memory, and copy with non_blocking=True",
        evidence={"input_share": share},
    )


def _profiled_launches(profile: Profile) -> Bottleneck | None:
    """Report a device that waits for the host between its kernels."""
    if profile.busy_share is None or profile.busy_share >= BUSY_DEVICE or profile.num_kernels is None:
        return None
    assert profile.median_kernel_s is not None  # known with the number of kernels
    return Bottleneck(
        kind="launch",
        finding=f"launch overhead is the limit: the device is idle for {1 - profile.busy_share:.0%} of a profiled "
        f"step, which has {profile.num_kernels:.0f} kernels of {format_seconds(profile.median_kernel_s)} (median)",
        action="try larger sizes, explore.compile: {mode: reduce-overhead} (CUDA graphs), or fewer graph breaks",
        evidence={"busy_share": profile.busy_share, "num_kernels": profile.num_kernels},
    )


def _profiled_network(profile: Profile, network: NetworkEvidence | None) -> Bottleneck | None:
    """Report collectives beside which nothing else is done, and what of them the timed bandwidth explains."""
    if profile.collective_share is None or profile.collective_share <= LARGE_COMMUNICATION:
        return None
    finding = (
        f"the network is the limit: for {profile.collective_share:.0%} of a profiled step "
        f"{'the device does' if profile.is_on_device else 'the processor does'} nothing but communicate"
    )
    evidence = {"communication_share": profile.collective_share}
    action = "time the links by bexplore network, accumulate more passes in a step, or shard over fewer devices"
    seconds = [] if network is None else [network.seconds(one) for one in profile.collectives]
    known = [one for one in seconds if one is not None]
    if known and len(known) == len(seconds) and STEP in profile.regions_s:
        exposed_s, explained_s = profile.collective_share * profile.regions_s[STEP], sum(known)
        reason, action = _reason(exposed_s, explained_s)
        finding += (
            f" ({format_seconds(exposed_s)}); at the bandwidth that was timed its collectives take "
            f"{format_seconds(explained_s)} in all: {reason}"
        )
        evidence |= {"exposed_communication_s": exposed_s, "explained_s": explained_s}
    return Bottleneck(kind="communication", finding=finding, action=action, source=COMMUNICATION, evidence=evidence)


def _profiled_bandwidth(profile: Profile) -> Bottleneck | None:
    """Report kernels that mostly move memory."""
    if not profile.is_on_device or profile.matrix_share is None or profile.matrix_share >= FEW_MATRICES:
        return None
    first = next((one for one in profile.top), None)
    named = "" if first is None else f"; the longest is {first.name[:60]}, {first.share:.0%}"
    return Bottleneck(
        kind="bandwidth",
        finding=f"memory bandwidth is the limit: matrix products, convolutions and attention are "
        f"{profile.matrix_share:.0%} of the time of kernels, and what only moves memory is the rest{named}",
        action="use bfloat16, fuse element-wise work (torch.compile does), or widen the matrices",
        evidence={"matrix_share": profile.matrix_share},
    )


def _profiled_update(profile: Profile) -> Bottleneck | None:
    """Report a large share of the update in a step with the profile's own few passes."""
    step_s, update_s = profile.regions_s.get(STEP), profile.regions_s.get(UPDATE)
    if not step_s or not update_s or profile.is_on_device or update_s / step_s < LARGE_UPDATE:
        return None  # on a device the region on the host is the time of its launches
    return Bottleneck(
        kind="update",
        finding=f"the optimizer's update takes {update_s / step_s:.0%} of a profiled step of "
        f"{profile.passes_per_step} passes",
        action="a larger global batch spreads it over more passes",
        evidence={"update_share": update_s / step_s, "accumulation_steps": profile.passes_per_step},
    )


def shape_hints(job: Job, micro_batch_size: int, *, num_multiprocessors: int | None) -> list[Bottleneck]:
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
            "sizes nearby may fill the last wave; the search has measured those that it could",
            {"num_tiles": tiles, "num_waves": waves, "wave_efficiency": efficiency},
        )
    ]


def _shape(finding: str, action: str, numbers: Mapping[str, float]) -> Bottleneck:
    return Bottleneck(kind="shape", finding=finding, action=action, source=SHAPES, evidence=numbers)


def _first(model: Mapping[str, Any], *names: str) -> int | None:
    return next((model[name] for name in names if isinstance(model.get(name), int)), None)
