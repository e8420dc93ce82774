"""The step whose peak memory is read: two passes and an update, as accumulation has them.

The first pass is there for its gradients, to which the
second adds. Where passes are long on a CPU, gradients of zeros stand for it, and the second pass is the first that
counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bexplore.engine.worker.own_process import DataLimit
from bexplore.engine.worker.peak_memory import PeakMemory, measure_peak
from bexplore.engine.worker.steps import Gradient, Steps, attach_zeros, with_dense_gradients
from bexplore.engine.worker.timing import RanPass, run_pass
from bexplore.workloads import Batch

# From here on the timed pass of this step counts too: the profiler's share of it is below 1 %, and nothing is left to
# warm up. Measured at 15 new sizes of a BERT: the first pass takes 0.0 +- 1.6 % longer than others. Seconds.
LONG_PASS_S = 1.0
# Steps over which the peak of the final answer is read, the first of two accumulation passes and the others of one:
# what a first step hides, such as states that appear late and a cache that fragments, is in it. The pass that compiles
# ends with an update too. Steps.
STEPS_OF_VERIFICATION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The memory of a step, and its timed passes."""

    peak: PeakMemory | None  # of its tensors; None where the device keeps no account
    # Most bytes for the job meanwhile: reserved by the caching allocator, else resident in the process; None where the
    # kernel keeps no account.
    resident_bytes: int | None
    passes: tuple[RanPass, ...]  # those of the step that were timed

    @property
    def passes_that_count(self) -> tuple[RanPass, ...]:
        """Those that are so long that being watched did not change them."""
        return tuple(one for one in self.passes if one.seconds >= LONG_PASS_S)


class MemoryStep:
    """Reads the peak of a step of a workload, once a size."""

    def __init__(self, steps: Steps, device: torch.device, limit: DataLimit, *, is_training: bool) -> None:
        self._steps, self._device, self._limit = steps, device, limit
        self._is_training = is_training
        self._known: dict[int, StepMemory] = {}  # of sizes that this process has measured
        self._trained: list[torch.nn.Parameter] | None = None  # have a gradient between passes; None if not known

    def run(self, batch: Batch, micro_batch_size: int, *, expected_pass_s: float) -> StepMemory:
        """Run a step; a size that this process has measured runs one pass, and keeps its memory."""
        known = self._known.get(micro_batch_size)
        if known is not None:
            return dataclasses.replace(known, passes=(run_pass(self._steps, batch),))
        is_long = needs_no_warm_up(self._device, expected_pass_s) and self._steps.zeros_stand_for_a_pass
        return self._measured(batch, micro_batch_size, num_steps=1, zeros_for=self._trained if is_long else None)

    def verify(self, batch: Batch, micro_batch_size: int) -> StepMemory:
        """Run the steps of the final answer, whose peak is always read."""
        return self._measured(batch, micro_batch_size, num_steps=STEPS_OF_VERIFICATION, zeros_for=None)

    def peak_of_one(self, batch: Batch) -> PeakMemory | None:
        """Return the peak of one step of another program than the one that is measured."""
        return self._peak_during(lambda: self._take(batch, 1), batch)

    def _peak_during(self, step: Callable[[], Any], batch: Batch) -> PeakMemory | None:
        alive, hidden_bytes = self._steps.alive(batch), self._steps.bucket_bytes
        return measure_peak(step, self._device, alive=alive, hidden_bytes=hidden_bytes)

    def _measured(
        self, batch: Batch, micro_batch_size: int, *, num_steps: int, zeros_for: Sequence[torch.nn.Parameter] | None
    ) -> StepMemory:
        gradients: list[Gradient] = []
        passes: list[RanPass] = []
        resident: list[int | None] = []

        def steps() -> None:
            ran, left = self._take(batch, num_steps, zeros_for)
            passes.extend(ran)
            gradients.extend(left)

        peak = self._peak_during(lambda: resident.append(self._limit.resident_during(steps)), batch)
        self._steps.attach(gradients)
        self._trained = with_dense_gradients(gradients)
        reserved = peak.reserved_bytes if peak else None
        memory = StepMemory(
            peak=peak, resident_bytes=resident[-1] if reserved is None else reserved, passes=tuple(passes)
        )
        # Retries of the allocator are those of this step, and of no later one.
        no_retries = peak and dataclasses.replace(peak, num_alloc_retries=0)
        self._known[micro_batch_size] = dataclasses.replace(memory, peak=no_retries)
        return memory

    def _take(
        self, batch: Batch, num_steps: int, zeros_for: Sequence[torch.nn.Parameter] | None = None
    ) -> tuple[list[RanPass], list[Gradient]]:
        """Run a pass, and steps of a pass and an update; return the passes and the gradients before the last update.

        Zeros for these parameters are as good as the first pass, where they are given.
        """
        if zeros_for is None:
            self._steps.forward_backward(batch, is_last=False)
        else:
            attach_zeros(zeros_for)
        passes = []
        for _ in range(num_steps):
            passes.append(run_pass(self._steps, batch))
            gradients = self._steps.gradients()
            if self._is_training:
                self._steps.update()
        return passes, gradients


def needs_no_warm_up(device: torch.device, pass_s: float) -> bool:
    """Return whether the first pass of a size takes what the next ones take; accelerators load kernels in it."""
    return device.type == "cpu" and pass_s >= LONG_PASS_S
