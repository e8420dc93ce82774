"""`trace_job`: a job in, its cost model out, without device memory and without building code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from bexplore.errors import BexploreError
from bexplore.job import Job, Mode
from bexplore.trace.cost_model import CostModel
from bexplore.trace.depth import KEPT_BLOCKS, MIDDLE_BLOCK, Repeat, find_repeats, lengthen, shortened
from bexplore.trace.errors import TraceError
from bexplore.trace.flops import Cost
from bexplore.trace.inductor import CompiledGraph, Observe, batch_dimension_is_dynamic, planning_only
from bexplore.trace.lifetimes import LifetimeMode, LifetimeTracker
from bexplore.trace.plan import replay
from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Buffer, Event, Phase, Place, find_peaks
from bexplore.trace.update import trace_update
from bexplore.workloads import Workload, build

_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157)


def trace_job(job: Job, *, whole_depth: bool = False, observe: Observe | None = None) -> CostModel:
    """Trace a step of a job once, through the compiler's own fusion and memory plan.

    Everything runs on fake tensors, so no device memory is taken and no code is built. The compiler's state is reset
    before and after: programs that were compiled in this process before are compiled anew at their next call, so a
    process of its own is the better place.

    Args:
        job: What to trace.
        whole_depth: Trace every one of many identical blocks, where `observe` must see them all.
        observe: As in `planning_only`.

    Raises:
        TraceError: The job cannot be traced; the message says why in one line.
        UserInputError: The job itself is wrong.
    """
    started = time.perf_counter()
    try:
        model = _trace(job, whole_depth, observe)
    except BexploreError:
        raise
    except Exception as error:  # a user's model may fail under fake tensors in any way; an exploration goes on then
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TraceError(
            f"The model cannot be traced: {type(error).__name__}: {reason}",
            hint="The exploration works without a trace; only the memory is not known beforehand.",
        ) from error
    return dataclasses.replace(model, trace_s=time.perf_counter() - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One traced forward and backward pass of a model that may be shortened."""

    events: dict[Phase, list[Event]]
    costs: list[Cost]
    operators: tuple[str, ...]
    trained: frozenset[int]
    batch_size: Polynomial


def _trace(job: Job, whole_depth: bool, observe: Observe | None) -> CostModel:
    fake_mode = FakeTensorMode()
    with fake_mode:
        workload = build(job)
    modules = _modules(workload)
    prime = _choose_prime(workload, fake_mode)
    # without compilation nobody says which block a tensor belongs to, and the whole model is quick
    repeats = [
        repeat for module in modules if job.compile.enabled and not whole_depth for repeat in find_repeats(module)
    ]
    traced = _trace_pass(workload, fake_mode, repeats, prime, observe)
    parameters = _unique(parameter for module in modules for parameter in module.parameters())
    trained = _trained_parameters(parameters, repeats, traced.trained)
    resident = [
        Buffer(label="weights", size=_bytes_of(parameters)),
        Buffer(label="buffers", size=_bytes_of(_unique(b for module in modules for b in module.buffers()))),
        Buffer(label="batch", size=traced.batch_size),
    ]
    events = {phase: traced.events[phase] for phase in (Phase.FORWARD, Phase.BACKWARD)}
    for repeat in repeats:
        events = lengthen(repeat, events, _gradient_bytes(repeat, traced.trained))
    cost = _sum_costs(traced.costs, repeats)
    if job.mode is Mode.TRAIN:
        state_bytes, events[Phase.UPDATE] = trace_update(workload, trained, fake_mode, prime)
        resident.append(Buffer(label="gradients", size=_bytes_of(trained)))
        resident.append(Buffer(label="optimizer states", size=Polynomial(state_bytes)))
    else:
        del events[Phase.BACKWARD]
    compiler = f"torch {torch.__version__.split('+')[0]}"
    return CostModel(
        fingerprint=_fingerprint(job, compiler, traced.operators, parameters, repeats),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        model_flops=cost.model_flops,
        hardware_flops=cost.hardware_flops,
        bytes_moved=cost.bytes_moved,
        resident=tuple(resident),
        peaks=_peaks(resident, events),
        relative_sd=0.02,
        trace_s=0.0,
        device=torch.device(job.device).type,
        compiler=compiler,
    )


def _peaks(resident: list[Buffer], events: dict[Phase, list[Event]]) -> dict[Phase, Any]:
    peaks = {}
    past: list[Event] = []
    for phase, own in events.items():
        if phase is Phase.UPDATE:
            past = []
        peaks[phase] = find_peaks(resident, own, past=past)
        past = [*past, *own]
    return peaks


def _sum_costs(costs: list[Cost], repeats: list[Repeat]) -> Cost:
    """The cost of a whole pass: what is in the middle block of a run counts for all blocks that were left out."""
    total = Cost(module="")
    for cost in costs:
        times = 1 + sum(repeat.copies - KEPT_BLOCKS for repeat in repeats if repeat.owns(cost.module, MIDDLE_BLOCK))
        total = Cost(
            module="",
            hardware_flops=total.hardware_flops + cost.hardware_flops.times(times),
            model_flops=total.model_flops + cost.model_flops.times(times),
            bytes_moved=total.bytes_moved + cost.bytes_moved.times(times),
        )
    return total


def _trace_pass(
    workload: Workload, fake_mode: Any, repeats: list[Repeat], prime: int, observe: Observe | None
) -> _Pass:
    tracker = LifetimeTracker(prime)
    graphs: list[CompiledGraph] = []

    def run(graph: CompiledGraph, arguments: list[Any]) -> tuple[Any, ...]:
        graphs.append(graph)
        return replay(graph.plan, arguments, tracker, fake_mode)

    with shortened(repeats), planning_only(prime, run, observe), fake_mode, LifetimeMode(tracker):
        batch = workload.make_batch(prime)
        batch_size = _adopt_batch(workload, batch, tracker)
        for module in _modules(workload):
            for tensor in (*module.parameters(), *module.buffers()):
                tracker.adopt(tensor, Place("weights"))
        _compile(workload)
        workload.forward_backward(batch)
        graphs.clear()
        with tracker.record():
            workload.forward_backward(batch)
        parameters = _unique(parameter for module in _modules(workload) for parameter in module.parameters())
        trained = frozenset(id(parameter) for parameter in parameters if parameter.grad is not None)
        for parameter in parameters:
            parameter.grad = None
    return _Pass(
        events=tracker.events,
        costs=_costs(graphs),
        operators=tuple(line for graph in graphs for line in graph.operators),
        trained=trained,
        batch_size=batch_size,
    )


def _costs(graphs: list[CompiledGraph]) -> list[Cost]:
    forward_names = {cost.name for graph in graphs if not graph.is_backward for cost in graph.costs if cost.name}
    costs = []
    for graph in graphs:
        for cost in graph.costs:
            is_recomputed = graph.is_backward and cost.name in forward_names
            costs.append(dataclasses.replace(cost, model_flops=Polynomial()) if is_recomputed else cost)
    return costs


def _gradient_bytes(repeat: Repeat, trained: frozenset[int]) -> int:
    block = list(repeat.container)[repeat.start]
    return sum(parameter.numel() * parameter.itemsize for parameter in block.parameters() if id(parameter) in trained)


def _compile(workload: Workload) -> None:
    if workload.job.compile.enabled:
        for module in workload.compiled_modules:
            module.compile()


def _adopt_batch(workload: Workload, batch: Any, tracker: LifetimeTracker) -> Polynomial:
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    dimensions = workload.batch_dimensions or [0] * len(leaves)
    for leaf, dimension in zip(leaves, dimensions, strict=True):
        if dimension is not None:
            if leaf.dim() <= dimension or leaf.shape[dimension] != tracker.prime:
                raise TraceError(
                    f"A batch of {tracker.prime} samples has a tensor of shape {tuple(leaf.shape)}, whose dimension "
                    f"{dimension} is not the sample.",
                    hint="Make dimension 0 of every tensor of a batch the sample.",
                )
            batch_dimension_is_dynamic(leaf, dimension)
    by_storage = {leaf.untyped_storage()._cdata: tracker.size_of(leaf) for leaf in leaves}
    return sum(by_storage.values(), start=Polynomial())


def _choose_prime(workload: Workload, fake_mode: Any) -> int:
    """A micro-batch size that divides no dimension of a weight or of a sample."""
    sizes = {size for module in _modules(workload) for tensor in module.state_dict().values() for size in tensor.shape}
    with fake_mode:
        sizes |= {size for leaf in tree_leaves(workload.make_batch(1)) for size in getattr(leaf, "shape", ())}
    for prime in _PRIMES:
        if all(size % prime for size in sizes):
            return prime
    raise TraceError("No micro-batch size can be told apart from the dimensions of the model.")


def _trained_parameters(parameters: list[Any], repeats: list[Repeat], trained: frozenset[int]) -> list[Any]:
    """Parameters that get a gradient; a block that was left out is like the first of its run."""
    known = set(trained)
    for repeat in repeats:
        blocks = list(repeat.container)[repeat.start : repeat.start + repeat.copies]
        for block in blocks[1:]:
            for own, first in zip(block.parameters(), blocks[0].parameters(), strict=True):
                if id(first) in trained:
                    known.add(id(own))
    return [parameter for parameter in parameters if id(parameter) in known]


def _modules(workload: Workload) -> list[nn.Module]:
    return _unique([*workload.compiled_modules, *([workload.loss_module] if workload.loss_module else [])])


def _unique(items: Any) -> list[Any]:
    return list({id(item): item for item in items}.values())


def _bytes_of(tensors: list[torch.Tensor]) -> Polynomial:
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return Polynomial(sum(storages.values()))


def _fingerprint(
    job: Job, compiler: str, operators: tuple[str, ...], parameters: list[Any], repeats: list[Repeat]
) -> str:
    facts = {
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
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
