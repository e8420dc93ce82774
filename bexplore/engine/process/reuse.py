"""Which worker runs a probe: when one must go, when its program is worth keeping, and when it is as good as before."""

from __future__ import annotations

from bexplore.engine.process.pool import Worker
from bexplore.engine.protocol.messages import Done, Failed
from bexplore.engine.protocol.shared_mode import SharedMode
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe


def must_replace(
    worker: Worker, probe: Probe, *, shared_mode: SharedMode, largest_measured: int, uses_cuda_graphs: bool
) -> bool:
    """Return whether a worker must not run a probe: it is good for more of the same program only.

    Args:
        shared_mode: The kind of shared program that the search uses.
        largest_measured: The largest size that is known to run, samples; 0 for none.
        uses_cuda_graphs: Whether the job's passes are recorded into CUDA graphs: those of an earlier size stay, and
            hold memory that the allocator cannot give back.
    """
    if worker.compilation is None:
        return False
    own_program_per_size = probe.compilation is Compilation.EXACT or (
        probe.compilation is Compilation.SHARED and (shared_mode is SharedMode.STATIC or uses_cuda_graphs)
    )
    return (
        probe.fresh_worker
        or probe.compilation is not worker.compilation
        or (probe.micro_batch_size > largest_measured and not worker.has_headroom)
        or (own_program_per_size and probe.micro_batch_size != worker.micro_batch_size)
        or not worker.process.is_alive
    )


def is_worth_keeping(worker: Worker, probe: Probe, *, shared_mode: SharedMode, on_cpu: bool) -> bool:
    """Return whether a later probe may need a worker's program; two workers do not share an accelerator's memory.

    Args:
        shared_mode: The kind of shared program that the search uses.
    """
    has_shared_program = worker.compilation is Compilation.SHARED and shared_mode is not SharedMode.STATIC
    return has_shared_program and not probe.compilation.is_for_search and on_cpu and worker.process.is_alive


def may_go_on(answer: Done | Failed, refused: Observation, *, largest_measured: int) -> bool:
    """Return whether a worker is as good as before a size that it has refused.

    Not where a larger size ran: then it is the process, not the size, that lacks the memory.

    Args:
        largest_measured: The largest size that is known to run, samples; 0 for none.
    """
    if refused.outcome is not Outcome.OUT_OF_MEMORY:
        return False
    is_larger = refused.micro_batch_size > largest_measured > 0
    # An answer that is done was over the budget: nothing was refused.
    return is_larger and (isinstance(answer, Done) or answer.is_reusable)
