"""What holds a job back beside its micro-batch size, with the evidence and what to try.

While a device is not saturated, doubling the size should about double the throughput; where it does not, something else
is the limit. Source: google-research/tuning_playbook, "Determining the feasible batch sizes". Shapes: NVIDIA's matrix
multiplication guide, and stas00/ml-engineering, training/performance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bexplore.host.accelerators import Device
from bexplore.job import Job, Precision
from bexplore.measurement.probe import Compilation, Observation, Outcome
from bexplore.trace.cost_model import CostModel
from bexplore.units import format_seconds

GROWS = 1.6  # throughput per doubling from which a device counts as not yet saturated; 2 would be ideal
FLAT = 1.15  # throughput per doubling below which more samples buy nothing
BUSY_ARITHMETIC = 0.4  # model-flops utilization that well-tuned training reaches; above it nothing is wrong
BUSY_MEMORY = 0.6  # share of the published bandwidth that streaming kernels reach
IDLE_ARITHMETIC = 0.1  # below it an accelerator mostly waits
SHORT_PASS_S = (
    0.05  # launches of a pass take milliseconds: where the peak is unknown, a longer pass is not blamed on them
)
LARGE_UPDATE = 0.1  # share of an optimizer step from which the update is worth a look
LOW_INTENSITY = 10.0  # operations per byte below which memory, not arithmetic, limits every device of today
LOW_WAVE_EFFICIENCY = 0.8
TILE = (128, 256)  # rows and columns of the matrix tiles that cuBLAS prefers
PLAYBOOK = "google-research/tuning_playbook"
SHAPES = "NVIDIA matrix multiplication guide"
TF32_CAPABILITY = 8.0  # of the first NVIDIA devices with TF32; Inductor warns from here on too (`_warn_tf32_disabled`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One finding.

    Attributes:
        kind: `input`, `compute`, `bandwidth`, `launch`, `capacity`, `update`, `graph_breaks`, `saturated`, `precision`
            or `shape`.
        finding: What was seen, with the numbers.
        action: What to try; empty where nothing needs to be done.
        source: Where the rule comes from.
        evidence: The same numbers by name, units in the names.
    """

    kind: str
    finding: str
    action: str = ""
    source: str = PLAYBOOK
    evidence: Mapping[str, float] = field(default_factory=dict)


def find_bottlenecks(
    job: Job,
    observations: Sequence[Observation],
    *,
    micro_batch_size: int | None,
    accumulation_steps: int | None = None,
    cost_model: CostModel | None = None,
    device: Device | None = None,
    device_info: Mapping[str, Any] | None = None,
    loader: Mapping[str, Any] | None = None,
) -> tuple[Bottleneck, ...]:
    """Name the bottlenecks of a job, the weightiest first; empty where nothing was seen.

    Args:
        job: What was run.
        observations: Every probe.
        micro_batch_size: The recommended size; None where there is none.
        accumulation_steps: Of the user's global batch size; None if unknown.
        cost_model: The trace.
        device: Published figures of the device; None where they are not known: then nothing is said of its peaks.
        device_info: What torch says of the device.
        loader: What timing the user's own data loader said; None where there is none.
    """
    speeds = _speeds(observations)
    if not speeds or micro_batch_size not in speeds:
        return ()
    facts = device_info or {}
    on_accelerator = str(facts.get("device", job.device)).partition(":")[0] not in ("cpu", "auto", "")
    found = _input(job, observations, micro_batch_size, accumulation_steps, loader)
    found += _scaling(job, speeds, micro_batch_size, cost_model, device, on_accelerator)
    found += _capacity(speeds, observations, micro_batch_size)
    found += _update(job, observations, micro_batch_size, accumulation_steps)
    found += _graph_breaks(observations)
    if on_accelerator:
        found += _float32_matrices(job, facts)
        found += shape_hints(job, micro_batch_size, num_multiprocessors=facts.get("num_multiprocessors"))
    return tuple(found)


def _speeds(observations: Sequence[Observation]) -> dict[int, float]:
    """Median samples/s by size, of the kind of compilation that ran most sizes: kinds are not mixed in one curve."""
    by_kind: dict[Compilation, dict[int, list[float]]] = {}
    for item in observations:
        if item.is_measured:
            by_kind.setdefault(item.probe.compilation, {}).setdefault(item.micro_batch_size, []).append(
                item.samples_per_s
            )
    if not by_kind:
        return {}
    chosen = max(by_kind.values(), key=len)
    return {size: float(np.median(chosen[size])) for size in sorted(chosen)}


def _doubling(speeds: Mapping[int, float], small: int, large: int) -> float:
    """Factor of throughput for each doubling of the size, between two sizes."""
    return (speeds[large] / speeds[small]) ** (1.0 / math.log2(large / small))


def _input(
    job: Job,
    observations: Sequence[Observation],
    best: int,
    accumulation_steps: int | None,
    loader: Mapping[str, Any] | None,
) -> list[Bottleneck]:
    """Whether the loader gives samples as fast as the step takes them; what it could not give is said too."""
    if not loader:
        return []
    if loader["problem"]:
        return [
            Bottleneck(
                kind="input",
                finding=f"the data loader could not be timed: {loader['problem']}",
                action=f"iterate over {job.model.get('loader')} alone",
            )
        ]
    pass_s, update_s = _pass_and_update_s(observations, best)
    steps = accumulation_steps or 1
    taken = steps * best / (steps * pass_s + update_s)
    given = loader["samples_per_s"]
    if given >= taken:
        return []
    workers = loader["num_workers"]
    counted = "" if workers is None else f" with {workers} worker{'' if workers == 1 else 's'}"
    return [
        Bottleneck(
            kind="input",
            finding=(
                f"the input pipeline is the limit: the loader gives {given:.4g} samples/s{counted}, the step takes "
                f"{taken:.4g}"
            ),
            action="raise num_workers, decode and augment less for each sample, or store samples already prepared",
            evidence={"loader_samples_per_s": given, "step_samples_per_s": taken},
        )
    ]


def _pass_and_update_s(observations: Sequence[Observation], size: int) -> tuple[float, float]:
    """Median seconds of a pass and of an update at a size; 0 for an update that was not timed."""
    own = [item for item in observations if item.is_measured and item.micro_batch_size == size]
    updates = [item.update_time_s for item in own if item.update_times_s]
    return float(np.median([item.pass_time_s for item in own])), float(np.median(updates)) if updates else 0.0


def _scaling(
    job: Job, speeds: dict[int, float], best: int, model: CostModel | None, device: Device | None, on_accelerator: bool
) -> list[Bottleneck]:
    """Whether throughput grows at the small end as it should, and what it meets if not."""
    base = min(speeds)
    second = next((size for size in speeds if size >= 2 * base), None)
    if second is None:
        return []
    factor = _doubling(speeds, base, second)
    seen = (
        f"from size {base} to {second} throughput {'grows' if factor >= 1 else 'falls to'} {factor:.2f}x per doubling "
        f"({speeds[base]:.4g} to {speeds[second]:.4g} samples/s)"
    )
    evidence = {"micro_batch_size": second, "base_micro_batch_size": base, "throughput_per_doubling": factor}
    pass_s = {size: size / speed for size, speed in speeds.items()}
    utilization = _utilization(job, model, device, best, pass_s[best])
    bandwidth = _bandwidth_share(model, device, best, pass_s[best])
    if bandwidth is not None and bandwidth >= BUSY_MEMORY:
        finding = f"{seen}; size {best} moves {bandwidth:.0%} of the device's bandwidth"
        return [_memory_bound(finding, evidence | {"bandwidth_share": bandwidth})]
    if utilization is not None and utilization >= BUSY_ARITHMETIC:
        return [
            Bottleneck(
                kind="compute",
                finding=f"{seen}; size {best} reaches {utilization:.0%} of the peak arithmetic: it is well used",
                evidence=evidence | {"mfu": utilization},
            )
        ]
    if on_accelerator and _is_launch_bound(pass_s, best, utilization):
        return [_launch_bound(pass_s, best, utilization)]
    if factor >= GROWS:
        return []
    intensity = None if model is None else model.hardware_flops(best) / model.bytes_moved(best)
    if intensity is not None and intensity < LOW_INTENSITY:
        finding = f"{seen}; a pass does only {intensity:.2g} operations for each byte that it moves"
        return [_memory_bound(finding, evidence | {"flops_per_byte": intensity})]
    return [dataclasses.replace(_saturated(seen, base, factor, on_accelerator), evidence=evidence)]


def _memory_bound(finding: str, evidence: Mapping[str, float]) -> Bottleneck:
    return Bottleneck(
        kind="bandwidth",
        finding=f"memory bandwidth is the limit: {finding}",
        action="use bfloat16, fuse element-wise work (torch.compile does), or widen the matrices",
        evidence=evidence,
    )


def _is_launch_bound(pass_s: Mapping[int, float], best: int, utilization: float | None) -> bool:
    """Whether even at the recommended size a pass takes hardly longer than at half of it, and arithmetic is idle."""
    half = max((size for size in pass_s if size <= best / 2), default=None)
    is_idle = pass_s[best] < SHORT_PASS_S if utilization is None else utilization < IDLE_ARITHMETIC
    return half is not None and is_idle and pass_s[best] / pass_s[half] < (best / half) ** math.log2(2 / GROWS)


def _launch_bound(pass_s: Mapping[int, float], best: int, utilization: float | None) -> Bottleneck:
    half = max(size for size in pass_s if size <= best / 2)
    idle = "" if utilization is None else f", and only {utilization:.0%} of the peak arithmetic is used"
    return Bottleneck(
        kind="launch",
        finding=(
            f"launch overhead is the limit: a pass of size {best} takes {format_seconds(pass_s[best])}, one of size "
            f"{half} {format_seconds(pass_s[half])}{idle}"
        ),
        action="try larger sizes, or explore.compile: {mode: reduce-overhead} (CUDA graphs; to accumulate with them, "
        "allocate .grad once and clear with zero_grad(set_to_none=False))",
        evidence={"pass_time_s": pass_s[best], "half_micro_batch_size": half, "half_pass_time_s": pass_s[half]}
        | ({} if utilization is None else {"mfu": utilization}),
    )


def _saturated(seen: str, base: int, factor: float, on_accelerator: bool) -> Bottleneck:
    what = "the device" if on_accelerator else "the processor"
    if factor <= FLAT:
        return Bottleneck(
            kind="saturated",
            finding=f"{what} is busy with {base} sample{'s' if base > 1 else ''} already: {seen}",
            action="" if not on_accelerator else "profile one pass: neither arithmetic nor memory is known to be full",
        )
    return Bottleneck(
        kind="saturated",
        finding=f"{what} is half saturated at the smallest sizes: {seen}, where 2x would be ideal",
        action="",
    )


def _capacity(speeds: dict[int, float], observations: Sequence[Observation], best: int) -> list[Bottleneck]:
    """Throughput still grows where the memory ends."""
    refused = [item.micro_batch_size for item in observations if item.outcome is Outcome.OUT_OF_MEMORY]
    if not refused or best != max(speeds):
        return []
    below = max((size for size in speeds if size <= best / 1.5), default=None)
    if below is None or _doubling(speeds, below, best) < GROWS - 0.3:
        return []
    return [
        Bottleneck(
            kind="capacity",
            finding=(
                f"memory is the limit: throughput still grows {_doubling(speeds, below, best):.2f}x per doubling at "
                f"size {best}, and {min(refused)} does not fit"
            ),
            action="activation checkpointing, bfloat16 or a sharded optimizer make room for larger sizes",
            evidence={
                "throughput_per_doubling": _doubling(speeds, below, best),
                "refused_micro_batch_size": min(refused),
            },
        )
    ]


def _update(
    job: Job, observations: Sequence[Observation], best: int, accumulation_steps: int | None
) -> list[Bottleneck]:
    """The optimizer's share of a step."""
    if not accumulation_steps:
        return []
    pass_s, update_s = _pass_and_update_s(observations, best)
    share = update_s / (accumulation_steps * pass_s + update_s)
    if share < LARGE_UPDATE:
        return []
    steps = f"{accumulation_steps} accumulation step{'s' if accumulation_steps > 1 else ''}"
    named = [name for item in observations for name in item.details.get("unfused_optimizers", ())]
    fused = "".join(f" or {name}(fused=True)" for name in dict.fromkeys(named))
    return [
        Bottleneck(
            kind="update",
            finding=(
                f"the optimizer's update takes {share:.0%} of a step of {steps} ({format_seconds(update_s)} beside "
                f"{format_seconds(accumulation_steps * pass_s)} of passes)"
            ),
            action=f"a larger global batch spreads it over more passes{fused}",
            evidence={"update_share": share, "update_time_s": update_s, "pass_time_s": pass_s},
        )
    ]


def _graph_breaks(observations: Sequence[Observation]) -> list[Bottleneck]:
    reasons = {reason for item in observations for reason in item.graph_break_reasons}
    count = max((item.num_graph_breaks or 0 for item in observations), default=0)
    if not count:
        return []
    return [
        Bottleneck(
            kind="graph_breaks",
            finding=f"the compiler breaks the step {count} time{'s' if count > 1 else ''}: {min(reasons, default='')}",
            action="each break costs launches and fusions; explore.compile: {fullgraph: true} makes it an error",
            source="torch.compile's documentation",
            evidence={"num_graph_breaks": count},
        )
    ]


def _float32_matrices(job: Job, facts: Mapping[str, Any]) -> list[Bottleneck]:
    """Whether float32 matrices run without the tensor cores that the device has for them, and nobody decided so."""
    is_cuda = str(facts.get("device", job.device)).partition(":")[0] == "cuda"
    capability = float(facts.get("capability") or 0.0) if is_cuda else 0.0
    is_decided = job.precision is not Precision.FLOAT32 or job.torch.float32_matmul_precision is not None
    if capability < TF32_CAPABILITY or is_decided:
        return []
    return [
        Bottleneck(
            kind="precision",
            finding=f"float32 matrices do not use the TF32 tensor cores of this device (capability {capability:g})",
            action="if 10 bits of mantissa are enough, call torch.set_float32_matmul_precision('high') in the training "
            "and set explore.torch: {float32_matmul_precision: high}",
            source="PyTorch's notes on CUDA semantics, TensorFloat-32",
            evidence={"capability": capability},
        )
    ]


def _utilization(job: Job, model: CostModel | None, device: Device | None, size: int, pass_s: float) -> float | None:
    if model is None or device is None or not device.bfloat16_flops_per_s or job.precision is Precision.FLOAT32:
        return None
    return model.model_flops(size) / pass_s / device.bfloat16_flops_per_s


def _bandwidth_share(model: CostModel | None, device: Device | None, size: int, pass_s: float) -> float | None:
    if model is None or device is None or not device.bandwidth_bytes_per_s:
        return None
    return model.bytes_moved(size) / pass_s / device.bandwidth_bytes_per_s


def shape_hints(job: Job, micro_batch_size: int, *, num_multiprocessors: int | None) -> list[Bottleneck]:
    """Shapes that tensor cores like less: advice, never a filter.

    Matrix sizes should be multiples of 128 bytes (A100 and later): 64 elements of 16 bits, 32 of 32 bits.
    """
    elements = 32 if job.precision is Precision.FLOAT32 else 64
    model = job.model
    hidden = _first(model, "hidden_size", "n_embd", "d_model")
    heads = _first(model, "num_heads", "num_attention_heads", "n_head")
    wide = _first(model, "intermediate_size", "n_inner", "ffn_dim", "d_ff") or (4 * hidden if hidden else None)
    named = {"vocabulary": _first(model, "vocab_size"), "hidden size": hidden, "feed-forward size": wide}
    hints = [
        Bottleneck(
            kind="shape",
            finding=f"{name} {size} is not a multiple of {elements}",
            action=f"pad it to {-(-size // elements) * elements}",
            source=SHAPES,
            evidence={"elements": size, "multiple_of": elements},
        )
        for name, size in named.items()
        if size and size % elements
    ]
    if hidden and heads and (hidden // heads) % 8:
        action = "choose heads so that their size is a multiple of 8, better 64"
        finding = f"a head has {hidden // heads} elements, not a multiple of 8"
        evidence = {"elements": hidden // heads, "multiple_of": 8}
        hints.append(Bottleneck(kind="shape", finding=finding, action=action, source=SHAPES, evidence=evidence))
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
        Bottleneck(
            kind="shape",
            finding=(
                f"the feed-forward matrix of {rows} x {columns} makes {tiles} tiles, {waves} wave"
                f"{'s' if waves > 1 else ''} on {num_multiprocessors} multiprocessors, filled to {efficiency:.0%}"
            ),
            action="sizes nearby may fill the last wave; the search has measured those that it could",
            source=SHAPES,
            evidence={"num_tiles": tiles, "num_waves": waves, "wave_efficiency": efficiency},
        )
    ]


def _first(model: Mapping[str, Any], *names: str) -> int | None:
    return next((model[name] for name in names if isinstance(model.get(name), int)), None)
