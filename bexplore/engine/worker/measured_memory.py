"""Real steps of a job that cannot be traced, at a few small sizes: what they allocate, and what they compute.

Of each size one pass is counted without the compiler, as its operators run; then a step is watched by the profiler as
the peak of a probe is. See `trace.measured`, which fits them.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from bexplore.engine.protocol.failures import classify_exception
from bexplore.engine.worker.peak_memory import list_changes, release_cached_memory, storages
from bexplore.engine.worker.session import Session
from bexplore.engine.worker.timing import eagerly
from bexplore.engine.worker.torch_private import memory_events_by_range
from bexplore.measurement.probe import Compilation, Outcome
from bexplore.trace.cost_model import NOTHING, CostModel, MemoryByLength, Phase, Polynomial, describe_unknown
from bexplore.trace.measured import FEWEST_SIZES, FittedSteps, MeasuredStep, fit_steps
from bexplore.trace.operations import count_flops, find_unknown, map_shapes, model_share
from bexplore.trace.tracer import make_fingerprint
from bexplore.workloads import Batch
from bexplore.workloads.torch_private import TorchDispatchMode

# A size that would take longer is not measured where two were. Seconds; a judgement: a search takes minutes.
LONG_S = 60.0
_COUNTED = ("hardware_flops", "model_flops", "bytes_moved")
_RANGE = "bexplore: "  # names the halves of a step in a profile


_MakeBatch: TypeAlias = Callable[[int], Batch]  # from a number of rows


def measure_untraced(session: Session, sizes: Sequence[int]) -> CostModel:
    """Return the cost model of steps at small sizes; of a number of tokens also of those of the shortest samples.

    There a batch has most rows, and may need most memory.
    """
    model, lengths = _measure_sizes(session, sizes, session.make_batch), session.job.lengths
    shortest = () if lengths is None else lengths.extreme_batches(sizes[0])[1:]
    if lengths is None or not shortest:
        return model
    length = shortest[0].length
    try:
        other = _measure_sizes(session, sizes, lambda rows: session.batches.make_of_length(rows, length))
    except Exception as error:  # the border of the user's code
        note = (
            f"memory is that of the longest samples, {lengths.longest} tokens: the shortest, {length} tokens, of which "
            f"a batch has more rows, could not be measured: {type(error).__name__}"
        )
        return dataclasses.replace(model, notes=(*model.notes, note))
    by_length = MemoryByLength(models={lengths.longest: model, length: other}, lengths=lengths)
    return dataclasses.replace(model, by_length=by_length)


def _measure_sizes(session: Session, sizes: Sequence[int], make_batch: _MakeBatch) -> CostModel:
    """Return the cost model of steps at the first three of these ascending sizes that agree.

    A size that fails is left out: a batch of one is too few for some models. The error is raised where fewer than two
    are left.
    """
    began_s = time.perf_counter()
    steps: list[MeasuredStep] = []
    unknown: dict[str, float] = {}  # shares of bytes at the last size
    failure: Exception | None = None
    for size in sizes:
        started_s = time.perf_counter()
        try:
            steps.append(_measure_step(session, size, make_batch, unknown))
        except Exception as error:  # the border of the user's code
            failure = error
            if steps and classify_exception(error).outcome is Outcome.OUT_OF_MEMORY:
                break
            steps.clear()  # sizes that follow each other are fitted
            continue
        is_long = 2 * (time.perf_counter() - started_s) > LONG_S  # the next size takes twice this one's seconds
        if (len(steps) >= FEWEST_SIZES and fit_steps(steps).is_confirmed) or (len(steps) > 1 and is_long):
            break
    if len(steps) < 2:
        raise failure or ValueError(f"one size alone, {sizes[0]}, tells nothing of others")
    return _make_cost_model(session, fit_steps(steps), unknown, time.perf_counter() - began_s)


def _measure_step(
    session: Session, micro_batch_size: int, make_batch: _MakeBatch, unknown: dict[str, float]
) -> MeasuredStep:
    session.begin_probe()
    with session.around_steps():
        batch = make_batch(micro_batch_size)
        if not session.is_compiled or session.compilation is not Compilation.EAGER:
            session.compile_pass(batch)
        session.report(stage="memory", headroom_bytes=session.growth_bytes(batch))
        counting = _count_pass(session, batch)
        unknown |= counting.unknown
        resident, alive = _list_resident(session, batch)
        changes = _watch_step(session, batch, alive)
    session.steps.clear_gradients()
    release_cached_memory(session.device)
    return MeasuredStep(
        micro_batch_size=micro_batch_size, resident=resident, changes=changes, counts=dict(counting.counts)
    )


def _watch_step(session: Session, batch: Batch, alive: Mapping[int, int]) -> dict[Phase, list[int]]:
    """Return the changes of memory in the passes and in the update of a step; of an evaluation those of a pass."""
    steps = session.steps

    def passes() -> None:
        if not steps.zeros_stand_for_a_pass:
            steps.forward_backward(batch, is_last=False)
        steps.forward_backward(batch)

    halves = {Phase.BACKWARD: passes, Phase.UPDATE: steps.update} if session.is_training else {Phase.FORWARD: passes}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for phase, run in halves.items():
            with torch.profiler.record_function(_RANGE + phase):
                run()
    each = memory_events_by_range(profiler, session.device.type, [_RANGE + phase for phase in halves])
    changes = list_changes(itertools.chain.from_iterable(each.values()), alive=alive)
    lengths = zip(halves, map(len, each.values()), strict=True)
    return {phase: list(itertools.islice(changes, length)) for phase, length in lengths}


def _list_resident(session: Session, batch: Batch) -> tuple[dict[str, int], dict[int, int]]:
    """Return the bytes that are alive before a step by their kind, and of each storage by its address."""
    parameters, buffers, states, lasting, _ = session.steps.alive()
    kinds = {
        "weights": parameters,
        "buffers": buffers,
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer states": states,
        "batch": batch,
        "kept by the step": lasting,
    }
    known: dict[int, int] = {}
    sizes = {}
    for label, tree in kinds.items():
        own = {address: size for address, size in storages([tree]).items() if address not in known}
        sizes[label] = sum(own.values())
        known |= own
    sizes["gradient buckets"] = session.steps.bucket_bytes
    if session.device.type == "cuda":
        sizes["workspaces of libraries"] = max(0, torch.cuda.memory_allocated(session.device) - sum(sizes.values()))
    return sizes, known


class _CountingMode(TorchDispatchMode):
    """Counts the operations of what runs inside by the rules of the trace, and the bytes that operators touch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._unknown_bytes: Counter[str] = Counter()

    @property
    def unknown(self) -> dict[str, float]:
        """Share of all bytes of each operator whose operations are not known, the largest first."""
        total = max(1, self.counts["bytes_moved"])
        return {name: moved / total for name, moved in self._unknown_bytes.most_common()}

    def __torch_dispatch__(
        self, operator: Any, _types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        named = keywords or {}
        result = operator(*arguments, **named)
        shapes = map_shapes((arguments, named, result))
        flops = count_flops(operator, *shapes)
        self.counts["hardware_flops"] += flops or 0
        self.counts["model_flops"] += round(model_share(operator, Polynomial(flops or 0))(1))
        moved = 0 if operator.is_view else sum(_count_bytes((arguments, named, result)))
        self.counts["bytes_moved"] += moved
        if flops is None and (name := find_unknown(operator)):
            self._unknown_bytes[name] += moved
        return result


def _count_bytes(values: Any) -> Iterator[int]:
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf.numel() * leaf.itemsize


def _count_pass(session: Session, batch: Batch) -> _CountingMode:
    """Count a pass without the compiler, which leaves its gradients.

    Of ranks that share the work nothing is counted: their tensors stand for those of all, and gradients are not theirs.
    """
    counting = _CountingMode()
    if not session.job.parallelism.is_distributed:
        with eagerly(), counting:
            session.steps.forward_backward(batch)
    return counting


def _make_cost_model(session: Session, fitted: FittedSteps, unknown: dict[str, float], seconds: float) -> CostModel:
    parameters = session.steps.parameters()
    compiler = f"torch {torch.__version__.split('+')[0]}"
    notes = []
    if not fitted.is_confirmed:
        notes.append("memory does not grow by the same bytes from size to size: the last two sizes are extrapolated")
    return CostModel(
        fingerprint=make_fingerprint(session.job, compiler, ("measured",), parameters, []),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        model_flops=fitted.counts["model_flops"],
        hardware_flops=fitted.counts["hardware_flops"],
        bytes_moved=NOTHING if session.is_meant_to_compile else fitted.counts["bytes_moved"],  # fusion saves some
        resident=fitted.resident,
        peaks=fitted.peaks,
        relative_sd=fitted.relative_sd,
        trace_s=seconds,
        device=session.device.type,
        device_name=torch.cuda.get_device_name(session.device) if session.device.type == "cuda" else "",
        compiler=compiler,
        notes=(*notes, *describe_unknown(unknown)),
        unknown=unknown,
        measured_at=fitted.measured_at,
    )
