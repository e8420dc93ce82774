"""`trace_job`: a job in, its cost model out, without device memory and without building code."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bexplore.errors import WITHOUT_TRACE, BexploreError, TraceError, UserProgramError
from bexplore.estimate.dispatch import Dispatch
from bexplore.host.causes import find_cause, find_place, join_explanation, list_causes
from bexplore.host.torch_interfaces import version_warnings
from bexplore.job import Job, Mode, Parallelism, Precision
from bexplore.trace.activation_budget import Missing
from bexplore.trace.cost_model import (
    NOTHING,
    TYPICAL_SIZE,
    Buffer,
    CostModel,
    Event,
    Peak,
    Phase,
    Place,
    Polynomial,
    TracedKernel,
    describe_unknown,
    find_peaks,
)
from bexplore.trace.fake_build import build_fake
from bexplore.trace.inductor import Observe
from bexplore.trace.kernel_shapes import stream_kernel
from bexplore.trace.operations import Cost
from bexplore.trace.operators import blas_workspace_bytes, count_blas_workspaces
from bexplore.trace.passes import (
    PRIMES,
    SMALL_PRIMES,
    SMALLEST_PRIMES,
    SmallSizes,
    TracedPass,
    TracedUpdate,
    choose_probe_batch,
    is_compiled,
    list_modules,
    trace_pass,
    trace_update,
    unique,
)
from bexplore.trace.real_values import RealValues, ValuesNeededError
from bexplore.trace.repeated_blocks import KEPT_BLOCKS, Repeat, find_repeats, inner_blocks, lengthen
from bexplore.trace.torch_private import storage_bytes
from bexplore.units import format_bytes
from bexplore.workloads import Workload

# Standard deviations of the relative error of the memory. Source: benchmarks/results/trace.md, rounded up.
_SD = 0.02
_SD_WITH_CONVOLUTIONS = 0.04  # their workspaces are not in any plan
_SD_OF_ANOTHER_BACKEND = 0.10  # not measured: kernels, and so fusion, differ
# Of the CPU's program for a CUDA device: its slope is 87 % too high for BERT with dropout, 17 % too low for a LLaMA.
_SD_OF_CPU_PROGRAM = 0.4
# Of a program for a CUDA device, whose libraries take memory that is in no plan. Not measured on a device yet: growth
# with the size is 0.79 to 0.98 of the reported memory of whole processes. Source: benchmarks/results/trace_cuda.md.
_SD_ON_CUDA = 0.1
# Share of the peak by which another order of the operators must be lower for a trace at smaller sizes: a judgement, the
# error that remains is below the standard deviation.
_WORTH_A_TRACE = 0.01
_OBJECTS_BETWEEN_COLLECTIONS = 200_000  # Python has 700

Values = tuple[RealValues, RealValues]  # those of passes, and of updates


def trace_job(job: Job, *, full_depth: bool = False, observe: Observe | None = None, why_cpu: str = "") -> CostModel:
    """Trace a step of a job once, through the compiler's own fusion and memory plan.

    Everything runs on fake tensors: no device memory is taken and no code is built. The compiler's state is reset
    before and after, so earlier programs of this process are compiled anew at their next call: use a separate process.
    A job that cannot be traced is a TraceError with the reason in one line.

    Args:
        full_depth: Whether to trace every one of many identical blocks, for `observe`.
        observe: Called with each planned graph of the compiler and the micro-batch size of the trace.
        why_cpu: Reason why a CUDA job without a device here is traced for the CPU, for a note.
    """
    started = time.perf_counter()
    local_job, notes = _move_to_this_machine(job, why_cpu)
    try:
        with _collect_seldom(), _use_meshes(local_job):
            values, small = (RealValues(local_job), RealValues(local_job, of_updates=True)), SmallSizes()
            model = _trace(local_job, full_depth, observe, PRIMES, values, small)
            model = _add_small(local_job, full_depth, model, values, small)
    except UserProgramError as error:
        if local_job is job:
            raise
        raise _explain(error.__cause__ or error) from error  # it may fail only because of the other device
    except BexploreError:
        raise
    except Exception as error:  # a user's model may fail under fake tensors in any way
        raise _explain(error) from error
    return dataclasses.replace(
        model,
        notes=(*notes, *model.notes),
        relative_sd=max(model.relative_sd, _SD_OF_CPU_PROGRAM if local_job is not job else 0.0),
        trace_s=time.perf_counter() - started,
    )


@contextlib.contextmanager
def _collect_seldom() -> Iterator[None]:
    """Collect garbage seldom: what the compiler makes lives until the graph is planned.

    A ResNet 50 for CUDA, three pairs of traces on two cores: medians 41.0 s of processor time without, 40.0 s so.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _use_meshes(job: Job) -> contextlib.AbstractContextManager[None]:
    if not job.parallelism.is_distributed:
        return contextlib.nullcontext()
    from bexplore.workloads.parallel import use_real_meshes  # a second of imports, which one device does without

    return use_real_meshes()


def _move_to_this_machine(job: Job, why_cpu: str) -> tuple[Job, list[str]]:
    device = torch.device(job.device)
    if device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available()):
        return job, []
    precision = Precision.AUTOCAST_BFLOAT16 if job.precision is Precision.AUTOCAST_FLOAT16 else job.precision
    why = why_cpu or f"torch {torch.__version__} sees no {device.type} device here"
    note = f"an estimate: the memory is that of the CPU's program, since {why}"
    return dataclasses.replace(job, device="cpu", precision=precision), [note]


def _add_small(job: Job, full_depth: bool, model: CostModel, values: Values, known: SmallSizes) -> CostModel:
    """Add the memory of small sizes, where what the compiler keeps, or the order of its operators, depends on them."""
    if not is_compiled(job):
        return model
    keeps_other = job.activation_memory_budget not in (0.0, 1.0)
    small, largest_small = None, 0
    for primes, larger, is_needed in ((SMALLEST_PRIMES, SMALL_PRIMES, False), (SMALL_PRIMES, PRIMES, keeps_other)):
        size = primes[0]
        if is_needed or known.order_bytes[size] > _WORTH_A_TRACE * model.peak_memory_bytes(size):
            with contextlib.suppress(TraceError):  # each of these primes divides a dimension: a larger one stands
                own = _trace(job, full_depth, None, primes, values, known)
                small = dataclasses.replace(own, small=small, largest_small=largest_small)
                largest_small = math.isqrt(size * larger[0])
    return dataclasses.replace(model, small=small, largest_small=largest_small)


def _trace(
    job: Job,
    full_depth: bool,
    observe: Observe | None,
    primes: Sequence[int],
    values: Values,
    known: SmallSizes,
) -> CostModel:
    while True:
        try:
            return _trace_with(job, full_depth, observe, primes, values, known)
        except ValuesNeededError as needed:  # once of the passes, and once of the updates
            needed.values.observe()


def _trace_with(
    job: Job,
    full_depth: bool,
    observe: Observe | None,
    primes: Sequence[int],
    values: Values,
    known: SmallSizes,
) -> CostModel:
    of_passes, of_updates = values
    workload, fake_mode = build_fake(job)
    probe_batch = choose_probe_batch(workload, fake_mode, primes, known.fixed)
    # Of a CUDA device memory is not known well enough for the order of operators to count.
    small = known if primes is PRIMES and torch.device(job.device).type == "cpu" else None
    # Without compilation a tensor has no block, and the whole model is quick to trace. Blocks that are compiled one by
    # one share a program, whose buffers do not name their block. Replicas split the program by the bytes of its
    # parameters, so that few blocks seldom stand for all, and to try them takes twice the time of all.
    are_steady = not workload.is_compiled_by_block and not job.parallelism.is_replicated_only
    truncates = is_compiled(job) and not full_depth and are_steady
    repeats = [repeat for module in list_modules(workload) if truncates for repeat in find_repeats(module)]
    traced, missing = _trace_steady(workload, fake_mode, probe_batch, repeats, observe, of_passes, small)
    parameters = unique(parameter for module in list_modules(workload) for parameter in module.parameters())
    events = traced.events
    for repeat, times in missing.items():
        gradient_bytes = _count_gradient_bytes(repeat, traced.trained)
        for block, number in times.items():
            events = lengthen(repeat, events, gradient_bytes, block, number)
    resident, update = _list_resident(workload, traced), Cost()
    growing: tuple[str, ...] = ()
    if job.mode is Mode.TRAIN:
        trained = _find_trained(parameters, repeats, traced.trained)
        own, before_pass, before_update = gradient_memory(
            job.parallelism,
            gradient_bytes=storage_bytes(trained),
            bucket_bytes=workload.bucket_bytes,
            accumulated=traced.accumulated,
        )
        updated = trace_update(workload, trained, fake_mode, probe_batch, batch=traced.batch, values=of_updates)
        update = _sum_costs(updated.costs, {})
        resident += [*own, Buffer(label="optimizer states", size=Polynomial(updated.state_bytes))]
        resident += _list_lasting(traced, updated)
        growing = _find_growing(traced, updated)
        events = events | {
            Phase.FORWARD: [*before_pass, *events[Phase.FORWARD]],
            Phase.UPDATE: [*before_update, *updated.events],
        }
    else:
        # A model of forces has a gradient within its forward pass.
        events = {Phase.FORWARD: [event for phase in traced.events for event in events[phase]]}
    costs = [*traced.costs, *_list_missing_accumulations(traced, missing)]
    cost, unknown = _sum_costs(costs, missing), _list_unknown(costs, missing)
    compiler = f"torch {torch.__version__.split('+')[0]}"
    return CostModel(
        fingerprint=make_fingerprint(job, compiler, traced.operators, parameters, repeats),
        num_parameters=sum(parameter.numel() for parameter in parameters),  # of shared ones all elements
        model_flops=cost.model_flops,
        hardware_flops=cost.hardware_flops,
        bytes_moved=cost.bytes_moved,
        kernels=cost.kernels,
        dispatches=cost.dispatches,
        update_kernels=update.kernels,
        update_dispatches=update.dispatches,
        unknown=unknown,
        resident=tuple(resident),
        peaks=_find_all_peaks(resident, events),
        relative_sd=_choose_relative_sd(job, traced.operators),
        trace_s=0.0,
        device=torch.device(job.device).type,
        device_name=torch.cuda.get_device_name() if torch.device(job.device).type == "cuda" else "",
        compiler=compiler,
        notes=(
            *_list_notes(job, traced, len(workload.compiled_modules) if workload.is_compiled_by_block else 1),
            *describe_unknown(unknown),
        ),
        growing=growing,
        num_blocks=_count_blocks(workload, repeats, missing),
    )


def gradient_memory(
    parallelism: Parallelism, *, gradient_bytes: int, bucket_bytes: int, accumulated: Polynomial
) -> tuple[list[Buffer], list[Event], list[Event]]:
    """Return the gradients that live during the whole step, from before its last pass on, and from the update on.

    DistributedDataParallel holds buckets of one more copy from its construction on. As views of them gradients take
    nothing of their own, unless a pass that reduces nothing has made them. Sharded gradients that are reduced in the
    last pass alone are whole until then. Source: torch/csrc/distributed/c10d/reducer.cpp; `unsharded_accumulated_grad`
    in torch/distributed/fsdp/_fully_shard/_fsdp_param.py; both checked by the allocator: benchmarks/results/
    distributed_trace.md.

    Args:
        gradient_bytes: Of one copy, as the optimizer reads it: of sharded parameters, the rank's shards.
        bucket_bytes: Of all gradient buckets.
        accumulated: What the passes before the last have left.
    """
    gradients = Buffer(label="gradients", size=Polynomial(gradient_bytes))
    buckets = Buffer(label="gradient buckets", size=Polynomial(bucket_bytes))
    if parallelism.is_sharded and parallelism.synchronizes_last:
        whole = Event(accumulated, Place("gradients of all shards"))
        return [], [whole], [Event(gradients.size, Place(gradients.label))]
    if not bucket_bytes:
        return [gradients], [], []
    if not parallelism.gradient_as_bucket_view:
        return [gradients, buckets], [], []
    beside = [Event(buckets.size, Place(buckets.label))] if parallelism.synchronizes_last else []
    return [gradients], beside, []


def _choose_relative_sd(job: Job, operators: tuple[str, ...]) -> float:
    if is_compiled(job) and job.compile.backend != "inductor":
        return _SD_OF_ANOTHER_BACKEND
    if torch.device(job.device).type == "cuda":
        return _SD_ON_CUDA
    return _SD_WITH_CONVOLUTIONS if any("convolution" in line for line in operators) else _SD


def _list_notes(job: Job, traced: TracedPass, num_compiled: int) -> list[str]:
    notes = list(version_warnings(torch.__version__))
    if is_compiled(job) and job.compile.backend != "inductor":
        notes.append(f"the memory plan is Inductor's, the job's backend is {job.compile.backend}")
    graphs_of_a_pass = (2 if job.mode is Mode.TRAIN else 1) * num_compiled
    if traced.num_graphs > graphs_of_a_pass and not job.parallelism.is_replicated_only:  # split at its buckets
        notes.append(f"{traced.num_graphs} graphs a pass: the model has graph breaks")
    return notes


def _list_resident(workload: Workload, traced: TracedPass) -> list[Buffer]:
    """Return what lives during the whole step, but for gradients and the states of optimizers."""
    modules = list_modules(workload)
    resident = [
        _sum_held("weights", (parameter for module in modules for parameter in module.parameters())),
        _sum_held("buffers", (buffer for module in modules for buffer in module.buffers())),
        Buffer(label="batch", size=traced.batch_size),
    ]
    if torch.device(workload.job.device).type == "cuda":
        resident.append(Buffer(label="cuBLAS workspaces", size=Polynomial(_blas_workspaces_bytes())))
    return resident


def _list_lasting(traced: TracedPass, updated: TracedUpdate) -> list[Buffer]:
    """Return what a step of the user's own keeps after the first pass, or after the first update where that is more."""
    first, later = traced.lasting[0], updated.lasting[0]
    largest = {
        name: max(first.get(name, NOTHING), later.get(name, NOTHING), key=_typical) for name in {**first, **later}
    }
    return [Buffer(label=f"{name} of the step", size=size) for name, size in largest.items()]


def _find_growing(traced: TracedPass, updated: TracedUpdate) -> tuple[str, ...]:
    """Return a line for each attribute of a step whose tensors are more after each step; not what an update clears."""
    lines = []
    for name, last in updated.lasting[1].items():
        first, second, before_last = (one.get(name, NOTHING) for one in (*traced.lasting, updated.lasting[0]))
        of_pass, of_update = _typical(second - first), _typical(last - before_last)
        grown = max(0.0, of_update) + (max(0.0, of_pass) if _typical(before_last) >= _typical(second) else 0.0)
        if grown:
            lines.append(
                f"{name} of the step grows by {format_bytes(grown)} with each pass and update of {TYPICAL_SIZE} "
                "samples: memory is that of the first steps; what is full at some time, fill where the step is made"
            )
    return tuple(lines)


def _typical(size: Polynomial) -> float:
    return size(TYPICAL_SIZE)


def _blas_workspaces_bytes() -> int:
    properties = torch.cuda.get_device_properties()
    major, minor, *_ = torch.__version__.split(".")
    version = int(major), int(minor)
    is_rocm = torch.version.hip is not None
    number = count_blas_workspaces(environment=os.environ, torch_version=version, is_rocm=is_rocm)
    return number * blas_workspace_bytes(
        capability=(properties.major, properties.minor),
        environment=os.environ,
        torch_version=version,
        gcn_architecture=properties.gcnArchName if is_rocm else None,
    )


def _find_all_peaks(resident: list[Buffer], events: dict[Phase, list[Event]]) -> dict[Phase, tuple[Peak, ...]]:
    peaks = {}
    past: list[Event] = []
    for phase, own in events.items():
        if phase is Phase.UPDATE:
            past = []  # activations are gone, and the new gradients are added to the old
        peaks[phase] = find_peaks(resident, own, past=past)
        past = [*past, *own]
    return peaks


def _trace_steady(
    workload: Workload,
    fake_mode: Any,
    probe_batch: int,
    repeats: list[Repeat],
    observe: Observe | None,
    values: RealValues,
    small: SmallSizes | None,
) -> tuple[TracedPass, Missing]:
    """Trace with as few blocks of each run as stand for all the others; all blocks where no few do."""
    deepest = max((repeat.copies for repeat in repeats), default=0)
    few = KEPT_BLOCKS if workload.job.activation_memory_budget == 1.0 else KEPT_BLOCKS[-1:]
    for kept_blocks in (*(kept for kept in few if kept < deepest), max(deepest, 1)):
        traced = trace_pass(
            workload,
            fake_mode,
            probe_batch,
            repeats=repeats,
            kept_blocks=kept_blocks,
            observe=observe,
            values=values,
            small=small,
        )
        missing = _count_missing(traced, repeats, kept_blocks)
        if missing is not None:
            return traced, missing
    raise AssertionError("a whole model lacks no block")


def _count_missing(traced: TracedPass, repeats: list[Repeat], kept_blocks: int) -> Missing | None:
    """Return how many blocks left out are like each that was traced; None where those do not stand for all."""
    choice = traced.choice
    if choice is not None and not choice.is_steady:
        return None
    missing = dict(choice.missing) if choice is not None else {}
    for repeat in repeats:
        if kept_blocks < repeat.copies and repeat not in missing:
            inner = inner_blocks(repeat, traced.events, kept_blocks)
            if not inner:
                return None
            missing[repeat] = dict.fromkeys(inner, (repeat.copies - kept_blocks) / len(inner))
    return missing


def _sum_costs(costs: list[Cost], missing: Missing) -> Cost:
    """Add up a whole pass: what is in a block counts for all blocks left out that are like it."""
    total = Cost()
    calls: dict[TracedKernel, float] = {}
    dispatches: dict[Dispatch, float] = {}
    for cost in costs:
        times = 1 + _times(cost, missing)
        for kernel in cost.kernels:
            alike = dataclasses.replace(kernel, calls=1.0)
            calls[alike] = calls.get(alike, 0.0) + kernel.calls * times
        for kind, number in cost.dispatches.items():
            dispatches[kind] = dispatches.get(kind, 0.0) + number * times
        total = Cost(
            hardware_flops=total.hardware_flops + cost.hardware_flops.times(times),
            model_flops=total.model_flops + cost.model_flops.times(times),
            bytes_moved=total.bytes_moved + cost.bytes_moved.times(times),
        )
    kernels = tuple(dataclasses.replace(kernel, calls=times) for kernel, times in calls.items())
    return dataclasses.replace(total, kernels=kernels, dispatches=dispatches)


def _list_unknown(costs: list[Cost], missing: Missing) -> dict[str, float]:
    """Return the share of all bytes of each operator whose operations are unknown, the largest first."""
    total = _sum_costs(costs, missing).bytes_moved(TYPICAL_SIZE)
    found: dict[str, float] = {}
    for cost in costs:
        if cost.unknown:
            moved = cost.unknown_bytes(TYPICAL_SIZE) * (1 + _times(cost, missing))
            found[cost.unknown] = found.get(cost.unknown, 0.0) + moved / max(total, moved, 1)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _times(cost: Cost, missing: Missing) -> float:
    return sum(
        times
        for repeat, blocks in missing.items()
        for block, times in blocks.items()
        if repeat.owns(cost.module, block)
    )


def _count_blocks(workload: Workload, repeats: list[Repeat], missing: Missing) -> int:
    """Return the length of each run of identical blocks; 0 where no few blocks stand for all, and if lengths differ.

    A budget of activations is one of the whole model: with few of its blocks the compiler recomputes others. Of blocks
    that ranks share one by one it is their number.
    """
    if workload.is_compiled_by_block:
        return len(workload.compiled_modules)
    lengths = {repeat.copies for repeat in repeats}
    return lengths.pop() if len(lengths) == 1 and missing and workload.job.activation_memory_budget == 1.0 else 0


def _list_missing_accumulations(traced: TracedPass, missing: Missing) -> list[Cost]:
    """Return what adds up the gradients of blocks left out: no graph has it, and so no module is known of it.

    What the host does outside of graphs grows with the parameters: it is as much for each as for the traced ones.
    """
    outside: dict[Dispatch, float] = {}
    for cost in traced.costs:
        for kind, number in cost.dispatches.items():
            if kind not in (Dispatch.KERNEL, Dispatch.GRAPH):
                outside[kind] = outside.get(kind, 0.0) + number / max(len(traced.trained), 1)
    costs = []
    for repeat, times in missing.items():
        block = list(repeat.container)[repeat.start]
        number = sum(times.values())
        for parameter in (one for one in block.parameters() if id(one) in traced.trained):
            moved = Polynomial(3 * parameter.numel() * parameter.itemsize)  # reads two, writes one
            alone = stream_kernel(moved, NOTHING, [torch.ops.aten.add_.Tensor])
            kernels = (dataclasses.replace(alone, calls=number),)
            dispatches = {kind: number * each for kind, each in outside.items()}
            costs.append(Cost(bytes_moved=moved.times(number), kernels=kernels, dispatches=dispatches))
    return costs


def _count_gradient_bytes(repeat: Repeat, trained: frozenset[int]) -> int:
    block = list(repeat.container)[repeat.start]
    return sum(parameter.numel() * parameter.itemsize for parameter in block.parameters() if id(parameter) in trained)


def _find_trained(parameters: list[Any], repeats: list[Repeat], trained: frozenset[int]) -> list[Any]:
    """Return the parameters that get a gradient; a block left out is like the first of its run."""
    known = set(trained)
    for repeat in repeats:
        blocks = list(repeat.container)[repeat.start : repeat.start + repeat.copies]
        for block in blocks[1:]:
            for own, first in zip(block.parameters(), blocks[0].parameters(), strict=True):
                if id(first) in trained:
                    known.add(id(own))
    return [parameter for parameter in parameters if id(parameter) in known]


def _sum_held(label: str, tensors: Iterable[torch.Tensor]) -> Buffer:
    return Buffer(label=label, size=Polynomial(storage_bytes(tensors)))


def make_fingerprint(
    job: Job, compiler: str, operators: tuple[str, ...], parameters: list[Any], repeats: list[Repeat]
) -> str:
    """Return the fingerprint of a program: see `CostModel`."""
    parts: dict[str, Any] = {
        "compiler": compiler,
        "device": torch.device(job.device).type,
        "mode": job.mode,
        "precision": job.precision,
        "optimizer": [job.optimizer, dict(job.optimizer_arguments), job.max_gradient_norm],
        "sequence_length": job.sequence_length,
        "operators": operators,
        "parameters": [[str(parameter.dtype), *parameter.shape] for parameter in parameters],
        "depths": [repeat.copies for repeat in repeats],
    }
    if job.parallelism.is_distributed:
        parts["parallelism"] = dataclasses.asdict(job.parallelism)
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _explain(error: BaseException) -> TraceError:
    cause = find_cause(error)
    if isinstance(cause, TraceError):  # the compiler has passed it on
        return cause
    file, _, line = find_place(error).rpartition(":")
    where = f", at {Path(file).name}:{line}" if file else ""
    name = type(cause).__name__
    lines = join_explanation([line.strip() for line in str(cause).splitlines() if line.strip()])
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    reason = f"{name}: {said}" if said else name
    if _WORDS_OF_NESTED in said:
        reason = "the sizes of a nested tensor (torch.nested) depend on the values of the data"
    for names, template in _WORDS:
        if any(type(link).__name__ in names for link in list_causes(error)):
            reason = template.format(reason)
            break
    return TraceError(f"{reason.rstrip('.')}{where}", hint=WITHOUT_TRACE)


# Of an assertion of `create_symbolic_nested_int` in torch/_subclasses/fake_tensor.py, torch 2.13, which names nothing.
_WORDS_OF_NESTED = "shape_env must not be None"

# Exceptions of torch/_subclasses/fake_tensor.py and torch/fx/experimental/symbolic_shapes.py, in words.
_WORDS = (
    (
        ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"),
        "a size or a branch depends on the values of the data ({})",
    ),
    (("UnsupportedOperatorException",), "an operator has no fake kernel ({})"),
)
