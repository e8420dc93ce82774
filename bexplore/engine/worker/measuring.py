"""The measurement of one size by a session: compile, read the memory of a step, time passes, time updates.

The program may be compiled ahead of the first probe (`Session.prepare`). Order of a probe: (the pass that compiles) - a
step of two passes and an update, whose peak memory is read - timed passes that add to existing gradients, as
accumulation does, of the size alone or in rounds with others - timed updates. The optimizer's states appear at the
first update, so the peak is read after it, and once in a process: a size that is measured again keeps its peak.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bexplore.engine.worker.compilation import CompilerAccount
from bexplore.engine.worker.peak_memory import num_alloc_retries, release_cached_memory
from bexplore.engine.worker.session import Session, StepMemory
from bexplore.engine.worker.step_checks import FEWEST_SAMPLES, check_step
from bexplore.engine.worker.steps import BatchMix, len_of
from bexplore.engine.worker.timing import RanPass, Timed, headline, run_pass, time_size
from bexplore.errors import UserInputError
from bexplore.job.lengths import BatchShape, Lengths
from bexplore.measurement.probe import Compilation, Probe
from bexplore.units import counted
from bexplore.workloads import Batch
from bexplore.workloads.workload import find_num_positions, find_unfused, name_optimizers

MAX_UPDATES = 3
# Pairs in which batches of another collation are timed beside those of the training.
COLLATION_PAIRS = 3
# Source: `format_dealloc_msg` in torch/_inductor/cudagraph_trees.py; pytorch issues 169545 and 96693.
WARNING_OF_CUDA_GRAPHS = (
    "with CUDA graphs a pass that finds no gradient leaves one in the graph's own memory, and the next pass overwrites "
    "it: to accumulate, set p.grad = torch.zeros_like(p) for each trained parameter after a first step, and clear with "
    "zero_grad(set_to_none=False); it was measured so"
)


class NotFiniteError(Exception):
    """The loss is NaN or infinite, so that times may not be those of a real step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """One size that ran."""

    timed: Timed
    memory: StepMemory  # of the step whose peak was read
    update_times_s: list[float]  # seconds of updates; empty for an evaluation
    first_pass_s: float  # seconds of the pass that compiled; 0 where nothing was left to compile
    account: CompilerAccount  # the compiler's work before passes were timed
    late: CompilerAccount  # the compiler's work while they were
    num_alloc_retries: int  # of the caching allocator
    num_repeated_passes: int  # those that ran again because the compiler had run in them
    has_gradients: bool  # whether a pass left any

    @property
    def num_graphs(self) -> int:
        """Graphs that the compiler made."""
        return self.account.num_graphs + self.late.num_graphs

    def as_record(self, *, is_compiled: bool) -> dict[str, Any]:
        """Return all fields but those that the session knows alone; compiler's figures only of a compiled program."""
        peak, account, late = self.memory.peak, self.account, self.late
        return {
            **self.timed.values,
            "update_times_s": self.update_times_s,
            "compile_time_s": self._compile_time_s,
            "peak_memory_bytes": peak.allocated_bytes if peak else None,
            "resident_memory_bytes": self.memory.resident_bytes,
            "num_alloc_retries": self.num_alloc_retries,
            "num_graphs": self.num_graphs if is_compiled else None,
            "num_graph_breaks": len(account.graph_breaks) if is_compiled else None,
            "graph_break_reasons": tuple(map(str, account.graph_breaks)),
            "num_recompiles": account.num_recompiles + late.num_recompiles if is_compiled else None,
            "warnings": self._warnings(),
            "details": {
                "recompile_reasons": account.recompile_reasons + late.recompile_reasons,
                "compiler_s": account.compile_time_s + late.compile_time_s,
                "num_repeated_passes": self.num_repeated_passes,
                **self.timed.details,
            },
        }

    @property
    def _compile_time_s(self) -> float:
        """Seconds of building: the first pass beyond a warm one, or the compiler's account where longer."""
        if not self.account.num_graphs:
            return self.late.compile_time_s
        usual_s = float(np.median(self.timed.pass_times_s))
        return max(self.first_pass_s - usual_s, self.account.compile_time_s) + self.late.compile_time_s

    def _warnings(self) -> list[str]:
        warnings = []
        if self.late.num_graphs:
            warnings.append(
                f"the compiler ran {self.late.num_graphs} times while passes were timed: these were run again"
            )
        if self.num_alloc_retries:
            warnings.append(
                f"the caching allocator ran out and retried {self.num_alloc_retries} times while this size was "
                "measured: throughput near the memory limit suffers from it"
            )
        return warnings


def measure(session: Session, probe: Probe, *, pass_budget_s: float) -> dict[str, Any]:
    """Run one size for real; whatever the user's step or the compiler raises passes through."""
    as_large_ran = probe.micro_batch_size <= max(session.usual_pass_s, default=0)
    session.begin_probe()
    with session.around_steps(is_known_to_fit=as_large_ran):
        ran = _run(session, probe, pass_budget_s)
    session.num_graphs += ran.num_graphs
    _check_step(session, probe, has_gradients=ran.has_gradients)
    record = ran.as_record(is_compiled=session.is_meant_to_compile)
    return record | {
        "warnings": record["warnings"] + warn_of_cuda_graphs(session, probe),
        "ran_eagerly": not session.is_meant_to_compile or session.num_graphs == 0,
        "details": record["details"] | _details(session, probe),
    }


def _run(session: Session, probe: Probe, pass_budget_s: float) -> ProbeFacts:
    """Compile where that is due, read the peak of a step, and time passes and updates."""
    size, steps = probe.micro_batch_size, session.steps
    num_repeated = steps.num_repeated
    timed_batch = session.make_timed_batch(size)
    first_pass_s = _compile(session, timed_batch, probe)

    batch, memory, memory_batch = _read_worst(session, timed_batch, probe)

    passes, known = _passes_at_hand(session, timed_batch, memory)
    others, why_alone = _make_others(session, probe)
    account = session.watch.take()
    num_retries = num_alloc_retries(session.device)
    timed = _time_passes(
        session,
        probe,
        {size: timed_batch} | others,
        passes=passes,
        known=known,
        budget_s=pass_budget_s,
        why_alone=why_alone,
    )
    if not math.isfinite(timed.loss):
        raise NotFiniteError(f"the loss of a pass over {counted(len_of(batch), 'sample')} is {timed.loss}")
    session.usual_pass_s[size] = float(np.median(timed.pass_times_s))
    has_gradients = any(gradient is not None for _, gradient in steps.gradients())
    collations = _time_collations(session, timed_batch, probe)

    session.report(stage="updates")
    update_times_s = steps.time_updates(MAX_UPDATES, batch) if session.is_training else []
    num_retries = num_alloc_retries(session.device) - num_retries
    return ProbeFacts(
        timed=dataclasses.replace(timed, details={**timed.details, **collations, **memory_batch}),
        memory=memory,
        update_times_s=update_times_s,
        first_pass_s=first_pass_s,
        account=account,
        late=session.watch.take(),
        num_alloc_retries=num_retries + (memory.peak.num_alloc_retries if memory.peak else 0),
        num_repeated_passes=steps.num_repeated - num_repeated,
        has_gradients=has_gradients,
    )


def _compile(session: Session, timed_batch: Batch | BatchMix, probe: Probe) -> float:
    """Return the seconds of the pass that compiled, now or ahead of the probe; 0 where nothing was left to compile."""
    is_known = probe.micro_batch_size in session.usual_pass_s and not probe.purpose.is_verification
    seconds = (0.0 if is_known else session.compile_pass(timed_batch)) or session.first_pass_s
    session.first_pass_s = 0.0
    return seconds


def _read_worst(
    session: Session, timed_batch: Batch | BatchMix, probe: Probe
) -> tuple[Batch, StepMemory, dict[str, Any]]:
    """Return the batch that needs most memory, its step's memory, and its shape for the observation.

    It is run once typical ones have run, as late in a training: blocks that a caching allocator has kept for typical
    batches may be too small for it.
    """
    lengths = session.job.lengths
    if not isinstance(timed_batch, BatchMix) or lengths is None:
        return timed_batch, _read_memory(session, timed_batch, probe), {}
    session.report(stage="typical batches", headroom_bytes=session.growth_bytes())
    for one in timed_batch.batches:
        session.steps.forward_backward(one)
    session.steps.clear_gradients()
    batch = session.make_batch(probe.micro_batch_size)
    memory = _read_memory(session, batch, probe)
    longest, *others = lengths.extreme_batches(probe.micro_batch_size)
    worst = longest
    for shape in others:
        session.steps.clear_gradients()
        other = session.batches.make_of_length(*shape)
        of_other = _read_memory(session, other, probe, shape)
        if of_other.used_bytes > memory.used_bytes:
            batch, memory, worst = other, of_other, shape
    return batch, memory, {"memory_batch": list(worst)}


def _read_memory(session: Session, batch: Batch, probe: Probe, shape: BatchShape | None = None) -> StepMemory:
    """Read the memory of a step of a batch; one of another shape than that of the longest samples is named by it."""
    session.report(stage="memory", headroom_bytes=session.growth_bytes(batch))
    size = probe.micro_batch_size
    if probe.purpose.is_verification:
        return session.memory_step.verify(batch, size, shape)
    # At the best samples/s of this process; 0 while nothing was timed.
    per_sample_s = (seconds / known for known, seconds in session.usual_pass_s.items())
    expected_pass_s = size * min(per_sample_s, default=0.0)
    return session.memory_step.run(batch, size, shape, expected_pass_s=expected_pass_s)


def _passes_at_hand(
    session: Session, timed_batch: Batch | BatchMix, memory: StepMemory
) -> tuple[Sequence[RanPass], Sequence[RanPass]]:
    """Return passes that show how long one takes, and those of them that count."""
    if isinstance(timed_batch, BatchMix):
        return [run_pass(session.steps, timed_batch)], ()
    return memory.passes, memory.passes_that_count


def _make_others(session: Session, probe: Probe) -> tuple[dict[int, Batch | BatchMix], str]:
    """Return the batches, by size, that the probe is interleaved with; nothing of them is left to compile.

    Where one of them fails there are none, and the reason: the probe's own size is what counts.
    """
    if session.uses_cuda_graphs and probe.interleaved_with:
        return {}, "the CUDA graphs of another size would hold memory beside this one's"
    batches: dict[int, Batch | BatchMix] = {}
    try:
        for size in probe.interleaved_with:
            batches[size] = session.make_timed_batch(size)
            if size not in session.usual_pass_s:  # it ran in an earlier process
                session.compile_pass(batches[size])
                session.usual_pass_s[size] = session.steps.time_pass(batches[size])
    except Exception as error:  # of the other size, in any way; the observation keeps it
        return {}, headline(error)
    return batches, ""


def _time_passes(
    session: Session,
    probe: Probe,
    batches: dict[int, Batch | BatchMix],
    *,
    passes: Sequence[RanPass],
    known: Sequence[RanPass],
    budget_s: float,
    why_alone: str,
) -> Timed:
    """Time a size, interleaved with others; alone where they fail together."""
    session.report(stage="passes")
    session.steps.pass_times_by_kind_s.clear()  # those of the step whose memory was read do not count
    own = probe.micro_batch_size
    time_with = functools.partial(
        time_size,
        session.steps,
        probe=probe,
        usual_pass_s=session.usual_pass_s | {own: passes[-1].seconds},
        budget_s=budget_s,
        known=known,
        report=session.report,
    )
    if len(batches) > 1:
        try:
            return time_with(batches)
        except Exception as error:  # of any kind: the size alone meets its own error again, which is reported
            why_alone = headline(error)
    alone = {own: batches[own]}
    if not why_alone:
        return time_with(alone)
    batches.clear()
    session.steps.clear_gradients()
    release_cached_memory(session.device)
    timed = time_with(alone)
    return dataclasses.replace(timed, details={**timed.details, "not_interleaved": why_alone})


def _time_collations(session: Session, timed_batch: Batch | BatchMix, probe: Probe) -> dict[str, Any]:
    """Time the final answer's batches as other collations would make them, in pairs with its own.

    Not where each length is compiled, or recorded into a CUDA graph, by itself: that would take more than it tells.
    """
    lengths = session.job.lengths
    is_dear = session.batches.compile_each_length or session.uses_cuda_graphs
    if not probe.purpose.is_verification or lengths is None or is_dear:
        return {}
    over_own: dict[str, float] = {}
    try:
        for other in lengths.others:
            over_own[other.collation.value] = _seconds_over(session, timed_batch, probe.micro_batch_size, other)
    except Exception as error:  # of batches that the training does not have: the answer stands without them
        return {"collations": over_own, "why_no_collation": headline(error)}
    return {"collations": over_own}


def _seconds_over(session: Session, timed_batch: Batch | BatchMix, micro_batch_size: int, other: Lengths) -> float:
    """Return the seconds of a pass of other batches over those of the timed ones."""
    batch = session.batches.make_timed(micro_batch_size, other)
    session.compile_pass(batch)
    session.report(stage="passes")
    pairs = [(run_pass(session.steps, batch), run_pass(session.steps, timed_batch)) for _ in range(COLLATION_PAIRS)]
    return float(np.median([one.seconds / own.seconds for one, own in pairs]))


def _check_step(session: Session, probe: Probe, *, has_gradients: bool) -> None:
    """Check once that a step of the user's own trains, with fewer samples than were just run."""
    is_concerned = session.is_training and session.workload.make_other_batch is not None
    is_settled = session.is_checked or (has_gradients and probe.micro_batch_size < FEWEST_SAMPLES)
    if not is_concerned or is_settled or probe.purpose.is_verification:
        return
    session.report(stage="step check")
    try:
        with session.around_steps():
            session.is_checked = check_step(session.workload, session.steps.parameters(), probe.micro_batch_size)
    except UserInputError:
        raise
    except Exception as error:  # without the compiler it may lack memory: what was measured stands all the same
        session.is_checked, session.why_unchecked = True, headline(error)
    session.steps.clear_gradients()
    release_cached_memory(session.device)


def _details(session: Session, probe: Probe) -> dict[str, Any]:
    """Return what is true of the session, whatever a probe has shown."""
    workload = session.workload
    return {
        "samples_are_seen": workload.samples_are_seen,
        "optimizers": name_optimizers(workload.optimizers),
        "unfused_optimizers": name_optimizers(find_unfused(workload.optimizers)),
        "why_unchecked": session.why_unchecked,
        "shared_mode": session.shared_mode if session.compilation is Compilation.SHARED else None,
        **({} if session.job.lengths is None else {"num_positions": find_num_positions(workload)}),
        **_parallel_details(session, probe),
    }


def _parallel_details(session: Session, probe: Probe) -> dict[str, Any]:
    """Return what a rank of several reports of its passes beside their times; nothing for one device."""
    if not session.job.parallelism.is_distributed:
        return {}
    steps = session.steps
    timed = [times_s for size, *times_s in steps.pass_times_by_kind_s if size == probe.micro_batch_size]
    share = steps.reduction_share(probe.micro_batch_size)
    details = {
        "accumulation_steps": round(1.0 / share) if share else None,
        "pass_times_by_kind_s": [(inner_s, last_s) for inner_s, last_s, _ in timed],
        "own_inner_pass_s": float(np.median([own_s for _, _, own_s in timed])) if timed else None,
        "products_per_s": session.products_per_s,
    }
    return {"parallel": details}


def warn_of_cuda_graphs(session: Session, probe: Probe) -> list[str]:
    """Return the warning for the verification of a training whose passes are recorded into CUDA graphs."""
    is_concerned = session.uses_cuda_graphs and session.is_training and probe.purpose.is_verification
    return [WARNING_OF_CUDA_GRAPHS] if is_concerned else []
