"""The variants that a search takes: each traced, without those that cannot fit or cannot win."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.engine.process.limits import Progress
from bexplore.engine.program_client import recall_or_trace
from bexplore.errors import UserInputError
from bexplore.host.machine import num_usable_processors
from bexplore.job import Job
from bexplore.run.selection import LeftOut, Selection, TracedVariant
from bexplore.search.posterior.joint import Variant
from bexplore.search.space import MemoryPrior
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.cost_model import CostModel
from bexplore.units import format_bytes

# A prediction is certain where it holds so many standard deviations of the trace's error away.
SURE_SDS = 3.0
# Each takes a processor core and half a gigabyte.
MAX_TRACES_AT_ONCE = 2


def select_variants(
    traced: Sequence[TracedVariant], *, budget_bytes: float, sizes: Sequence[int], is_automatic: bool
) -> Selection:
    """Leave out the variants that cannot be the answer, as far as traces can tell; the file's own stays.

    Args:
        traced: All variants, the file's own first.
        sizes: The candidates, ascending.
        is_automatic: Whether the variants are those of `auto`, which matter only where memory binds.
    """
    left_out: list[LeftOut] = []
    kept = list(traced[:1])
    if is_automatic and _surely_fits(traced[0], sizes[-1], budget_bytes):
        reason = f"memory does not bind: size {sizes[-1]}, the largest, fits with the file's own settings"
        return Selection(searched=tuple(kept), left_out=tuple(_left(one, reason) for one in traced[1:]))
    for one in traced[1:]:
        reason = _why_not(one, traced, budget_bytes=budget_bytes, sizes=sizes)
        if one.cost_model is None and is_automatic:  # chosen for what traces say of it
            reason = one.reason
        if reason:
            left_out.append(_left(one, reason))
        else:
            kept.append(one)
    return Selection(searched=tuple(kept), left_out=tuple(left_out))


def make_priors(
    searched: Sequence[TracedVariant], memory_of: Callable[[CostModel | None], MemoryPrior], *, size: int
) -> tuple[Variant, ...]:
    """Return what the search knows of each variant before anything ran.

    Args:
        memory_of: Makes the prior of memory of a trace.
        size: Samples of the pass whose operations are compared.
    """
    own = searched[0].cost_model
    return tuple(
        Variant(memory=memory_of(one.cost_model), log_speed=-_log_operations(one.cost_model, own, size))
        for one in searched
    )


def trace_all(
    config: Config,
    run_dir: Path,
    on_progress: Progress = lambda message: None,
    *,
    gpu: GpuProperties | None,
    fresh: bool,
    environment: Mapping[str, str] | None = None,
) -> list[CostModel | str]:
    """Trace each variant of a job, or the job itself; return the reason in one line where that is not possible."""
    given: dict[str, Any] = {"gpu": gpu, "fresh": fresh, "environment": environment}
    given["limit_s"] = config.settings.trace_time_limit_s
    jobs = [config.job, *(variant.job for variant in config.variants[1:])]
    if len(jobs) == 1:
        return [recall_or_trace(config.job, run_dir, on_progress, **given)]
    pool = ThreadPoolExecutor(max_workers=min(MAX_TRACES_AT_ONCE, num_usable_processors()))
    try:
        futures = [pool.submit(recall_or_trace, job, run_dir, on_progress, **given) for job in jobs]
        traced = [futures[0].result()]
        for variant, future in zip(config.variants[1:], futures[1:], strict=True):
            try:
                traced.append(future.result())
            except UserInputError as error:
                if config.settings.settings != "auto":
                    raise UserInputError(f"{variant.name}: {error.message}", hint=error.hint) from error
                traced.append(error.message)
    finally:
        pool.shutdown(cancel_futures=True)
    return traced


def operations_over_file(searched: Sequence[TracedVariant], variant: int, size: int) -> float | None:
    """Return the operations of a pass of a variant over those of the file's own settings; None if one is unknown."""
    models = searched[variant].cost_model, searched[0].cost_model
    return None if None in models else math.exp(_log_operations(*models, size))


def _log_operations(cost_model: CostModel | None, own: CostModel | None, size: int) -> float:
    if cost_model is None or own is None:
        return 0.0
    counts = cost_model.hardware_flops(size), own.hardware_flops(size)
    return math.log(counts[0] / counts[1]) if min(counts) > 0 else 0.0


def _left(variant: TracedVariant, reason: str) -> LeftOut:
    return LeftOut(name=variant.name, settings=variant.settings, reason=reason)


def _surely_fits(variant: TracedVariant, size: int, budget_bytes: float) -> bool:
    model = variant.cost_model
    return model is not None and model.peak_memory_bytes(size) * (1.0 + SURE_SDS * model.relative_sd) <= budget_bytes


def _why_not(
    variant: TracedVariant, traced: Sequence[TracedVariant], *, budget_bytes: float, sizes: Sequence[int]
) -> str:
    model = variant.cost_model
    if model is None:
        return ""
    peak = model.peak_memory_bytes(sizes[0])
    if peak > budget_bytes * (1.0 + SURE_SDS * model.relative_sd):
        return (
            f"size {sizes[0]}, the smallest, needs {format_bytes(peak)} by the trace; the budget is "
            f"{format_bytes(round(budget_bytes))}"
        )
    better = next(_better(variant, traced, sizes), None)
    return "" if better is None else f"needs no less memory than {better.name}, and no fewer operations"


def _better(variant: TracedVariant, traced: Sequence[TracedVariant], sizes: Sequence[int]) -> Iterator[TracedVariant]:
    """Yield the variants of the same program, but for what they recompute, that are better at every size.

    Of two that are equal the first is the better one. Operations and bytes tell nothing of other kernels.
    """
    model, is_before = variant.cost_model, True
    for other in traced:
        if other is variant:
            is_before = False
        elif model is not None and other.cost_model is not None and _rest(other.job) == _rest(variant.job):
            pairs = [(_costs(other.cost_model, size), _costs(model, size)) for size in _spread(sizes)]
            is_no_worse = all(theirs <= ours for pair in pairs for theirs, ours in zip(*pair, strict=True))
            if is_no_worse and (is_before or any(theirs != ours for theirs, ours in pairs)):
                yield other


def _rest(job: Job) -> Job:
    return dataclasses.replace(job, activation_checkpointing="none", activation_memory_budget=1.0)


def _costs(model: CostModel, size: int) -> tuple[float, float, float]:
    return model.peak_memory_bytes(size), model.hardware_flops(size), model.bytes_moved(size)


def _spread(sizes: Sequence[int]) -> list[int]:
    return sorted({sizes[0], sizes[-1], *(size for size in sizes if size & (size - 1) == 0)})
