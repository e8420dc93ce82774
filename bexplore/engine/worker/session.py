"""A job that is built and compiled in this process: its batches, its limits, its passes, and what it has shown."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bexplore.engine.protocol.messages import CompareEager, ProbeRequest
from bexplore.engine.worker.batches import Batches, mark_inputs, sample_dimensions
from bexplore.engine.worker.compilation import (
    CompilerCounters,
    Toolchain,
    compile_workload,
    feasible_mode,
    keep_artifacts_in,
    repeated_classes,
)
from bexplore.engine.worker.device import bound_memory
from bexplore.engine.worker.own_process import COMPILER_BYTES, DataLimit, Placement
from bexplore.engine.worker.peak_memory import PeakMemory, idle_bytes, measure_peak
from bexplore.engine.worker.steps import (
    BatchMix,
    Gradient,
    Ranks,
    Steps,
    attach_zeros,
    warm_device,
    with_dense_gradients,
)
from bexplore.engine.worker.timing import (
    RanPass,
    Report,
    eagerly,
    profile_steps,
    run_pass,
    time_pairs,
)
from bexplore.engine.worker.torch_private import around_compilations
from bexplore.job import Mode
from bexplore.job.lengths import BatchShape
from bexplore.measurement.probe import Compilation
from bexplore.measurement.profile import Profile
from bexplore.workloads import Batch, Workload, build

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
    def used_bytes(self) -> int:
        """Peak of the tensors, else what the process held; 0 where neither is known."""
        return self.peak.allocated_bytes if self.peak else self.resident_bytes or 0

    @property
    def passes_that_count(self) -> tuple[RanPass, ...]:
        """Those that are so long that being watched did not change them."""
        return tuple(one for one in self.passes if one.seconds >= LONG_PASS_S)


class MemoryStep:
    """Reads the peak of a step of a workload, once a size and shape of its batch."""

    def __init__(self, steps: Steps, device: torch.device, limit: DataLimit, *, is_training: bool) -> None:
        self._steps, self._device, self._limit = steps, device, limit
        self._is_training = is_training
        # Of sizes that this process has measured, and shapes other than that of the longest samples.
        self._known: dict[tuple[int, BatchShape | None], StepMemory] = {}
        self._trained: list[torch.nn.Parameter] | None = None  # have a gradient between passes; None if not known

    def run(
        self, batch: Batch, micro_batch_size: int, shape: BatchShape | None = None, *, expected_pass_s: float
    ) -> StepMemory:
        """Run a step; a size that this process has measured runs one pass, and keeps its memory."""
        known = self._known.get((micro_batch_size, shape))
        if known is not None:
            return dataclasses.replace(known, passes=(run_pass(self._steps, batch),))
        is_long = needs_no_warm_up(self._device, expected_pass_s) and self._steps.zeros_stand_for_a_pass
        zeros_for = self._trained if is_long else None
        return self._measure(batch, (micro_batch_size, shape), num_steps=1, zeros_for=zeros_for)

    def verify(self, batch: Batch, micro_batch_size: int, shape: BatchShape | None = None) -> StepMemory:
        """Run the steps of the final answer, whose peak is always read."""
        return self._measure(batch, (micro_batch_size, shape), num_steps=STEPS_OF_VERIFICATION, zeros_for=None)

    def peak_of_one(self, batch: Batch) -> PeakMemory | None:
        """Return the peak of one step of another program than the one that is measured."""
        return self._peak_during(lambda: self._take(batch, 1), batch)

    def _peak_during(self, step: Callable[[], Any], batch: Batch) -> PeakMemory | None:
        alive, hidden_bytes = self._steps.alive(batch), self._steps.bucket_bytes
        return measure_peak(step, self._device, alive=alive, hidden_bytes=hidden_bytes)

    def _measure(
        self,
        batch: Batch,
        key: tuple[int, BatchShape | None],
        *,
        num_steps: int,
        zeros_for: Sequence[torch.nn.Parameter] | None,
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
        self._known[key] = dataclasses.replace(memory, peak=no_retries)
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


# A step that was refused memory has left nothing behind, when the process holds no more than this beyond what it held
# before: pages of small objects, which the C library does not give back. Bytes.
REMAINS_BYTES = 16 * 2**20


class Session:
    """A job that lives in this process, compiled one way.

    Where the workload does not allow the kind of shared program that is wanted, the next one is taken.
    """

    def __init__(self, request: ProbeRequest, *, report: Report, ranks: Ranks | None = None) -> None:
        self.job = job = request.job
        self.compilation = compilation = request.probe.compilation
        self.budget_bytes = budget_bytes = request.budget_bytes
        self.report = report
        self.device = torch.device(job.device)
        self.is_training = job.mode is Mode.TRAIN
        self.uses_cuda_graphs = compilation is not Compilation.EAGER and job.compile.uses_cuda_graphs(job.device)
        self.has_states = False
        self.is_compiled = False
        self.num_graphs = 0  # that the compiler has made for all probes
        self.usual_pass_s: dict[int, float] = {}  # median of each size that ran in this process
        self._idle_before_bytes = 0  # what this process held before the probe
        self.first_pass_s = 0.0  # of the pass that compiled ahead of a probe; 0 for none
        self._timed_batch: tuple[int, Batch] | None = None
        self.is_checked = False  # whether the step was seen to train, or cannot be checked
        self.why_unchecked = ""  # empty where it was checked, or will be
        self._placement = Placement()
        self.watch = CompilerCounters()
        self.toolchain = Toolchain(job, is_compiled=compilation is not Compilation.EAGER)
        self.limit = DataLimit(budget_bytes if self.device.type == "cpu" else None)
        bound_memory(self.device, budget_bytes)
        report(stage="build")
        with self.limit.around_building():
            self.workload: Workload = build(job)
        block_classes = repeated_classes(self.workload)
        self.steps = Steps(
            self.workload,
            self.device,
            uses_cuda_graphs=self.uses_cuda_graphs,
            ranks=ranks,
            replica_batch_size=request.replica_batch_size,
        )
        self.shared_mode = feasible_mode(self.workload, request.shared_mode, block_classes)
        # Where kernels do not depend on the number of samples, none needs to be expected.
        largest_size = None if self.device.type == "cpu" else request.largest_size
        self.batches = Batches(self.workload, compilation, self.shared_mode, largest_size=largest_size)
        self.memory_step = MemoryStep(self.steps, self.device, self.limit, is_training=self.is_training)
        self._compile(block_classes, request.artifacts_dir, largest_size)
        report(stage="warm")
        self.products_per_s = warm_device(self.device)

    def _compile(
        self, block_classes: list[type[torch.nn.Module]], artifacts_dir: str | None, largest_size: int | None
    ) -> None:
        """Have the workload compiled when it first runs."""
        if self.workload.is_compiled_by_block and self.batches.serve_several_sizes:
            with self.around_steps():
                dimensions = sample_dimensions(self.workload)
            mark_inputs(self.workload.compiled_modules, dimensions, self.batches.mark)
        compile_workload(
            self.workload,
            self.job.compile,
            self.compilation,
            self.shared_mode,
            block_classes,
            largest_size=largest_size,
        )
        if artifacts_dir is not None:
            self.toolchain.wait()
            keep_artifacts_in(Path(artifacts_dir))

    def prepare(self, micro_batch_size: int) -> None:
        """Compile with one size ahead of the first probe, which then reports the compilation as its own."""
        with self.around_steps():
            self.first_pass_s = self.compile_pass(self.make_timed_batch(micro_batch_size))

    @property
    def is_meant_to_compile(self) -> bool:
        """Whether the program is one of the compiler's, whether or not it makes a graph of it."""
        return self.compilation is not Compilation.EAGER and self.job.compile.enabled

    def begin_probe(self) -> None:
        """Note what this process holds before a size is run."""
        self.steps.clear_gradients()
        self._idle_before_bytes = self._idle_bytes()

    def growth_bytes(self, batch: Batch = ()) -> int | None:
        """Return what steps may add to the tensors that live now, a batch among them; None for no limit."""
        return self.limit.growth_bytes(self.steps.live_bytes(batch))

    def try_recover(self) -> bool:
        """Let go of a step that was refused memory; whether this process is as it was before it.

        Never with CUDA graphs: their memory pools outlive `empty_cache`, and a refusal while one is recorded leaves the
        graph half-made.
        """
        if self.uses_cuda_graphs or not self.is_compiled or (self.is_training and not self.has_states):
            return False
        self._timed_batch = None
        self.steps.clear_gradients()
        self.watch.take()  # what was compiled for the refused size is not the next one's
        gc.collect()
        return self._idle_bytes() <= self._idle_before_bytes + REMAINS_BYTES

    @property
    def has_headroom(self) -> bool:
        """Whether a refusal in this process would show that a larger size does not fit."""
        return self.limit.has_headroom(self.steps.live_bytes())

    def _idle_bytes(self) -> int:
        return self.limit.idle_bytes() if self.device.type == "cpu" else idle_bytes(self.device)

    def time_passes(self, micro_batch_size: int, num_passes: int, *, round_number: int | None = None) -> dict[str, Any]:
        """Time some passes of a size that has been measured before, so that nothing is left to compile.

        Args:
            round_number: Two workers that are compared run a round on the same processors; None to leave that open.

        Returns:
            `pass_times_s`, means of those that ran back to back; `cpu_time_s`, processor seconds of this process for
            as many passes as there are times; `loss`; `num_compiled`, which is not 0 where the compiler ran after all.
        """
        if self._timed_batch is None or self._timed_batch[0] != micro_batch_size:
            self._timed_batch = (micro_batch_size, self.make_timed_batch(micro_batch_size))
        batch = self._timed_batch[1]
        if round_number is not None:
            self._placement.take_slot(round_number, torch.get_num_threads())
        self.watch.take()
        began_cpu_s = time.process_time()
        together = self.steps.num_back_to_back(self.usual_pass_s.get(micro_batch_size, 0.0))
        counts = [min(together, num_passes - done) for done in range(0, num_passes, together)]
        times_s = [self.steps.time_pass(batch, count) for count in counts]
        cpu_time_s = (time.process_time() - began_cpu_s) * len(times_s) / num_passes
        loss = self.steps.loss()
        num_compiled = self.watch.take().num_graphs
        return {"pass_times_s": times_s, "cpu_time_s": cpu_time_s, "loss": loss, "num_compiled": num_compiled}

    def compare_eager(self, request: CompareEager) -> dict[str, Any]:
        """Time compiled and eager passes of a size that was measured before, in pairs.

        Returns:
            `compiled_timings`, `eager_timings`: pairs of a number of passes and their seconds;
            `eager_peak_memory_bytes`.
        """
        self.report(stage="eager")
        usual_s = self.usual_pass_s.get(request.micro_batch_size, 0.0)
        with self.around_steps():
            batch = self.make_batch(request.micro_batch_size)
            self.report(stage="eager")
            with eagerly():
                peak = self.memory_step.peak_of_one(batch)
            compiled, eager = time_pairs(
                self.steps,
                self.make_timed_batch(request.micro_batch_size),
                request,
                usual_pass_s=usual_s,
                is_warm=needs_no_warm_up(self.device, usual_s),
                report=lambda: self.report(stage="eager"),
            )
        return {
            "compiled_timings": compiled,
            "eager_timings": eager,
            "eager_peak_memory_bytes": peak.allocated_bytes if peak else None,
        }

    def profile(self, micro_batch_size: int, trace_path: Path) -> Profile:
        """Profile steps of a size that was measured before; what the profiler itself holds is not limited."""
        self.report(stage="profile")
        with self.around_steps():
            self._compiler_begins()  # no compiler, but as little bound by the budget: the profiler holds its events
            return profile_steps(
                self.steps,
                self.device,
                lambda: self.make_batch(micro_batch_size),
                micro_batch_size=micro_batch_size,
                trace_path=trace_path,
                is_training=self.is_training,
            )

    @contextmanager
    def around_steps(self, *, is_known_to_fit: bool = False) -> Iterator[None]:
        """Limit the memory of what runs inside, but for the compiler's."""
        # Without gradients, which a probe that failed half-way may have left.
        self.steps.clear_gradients()
        with (
            self.limit.around_steps(self.steps.live_bytes(), is_known_to_fit=is_known_to_fit),
            around_compilations(self._compiler_begins, self._compiler_ends),
        ):
            if self.toolchain.is_busy:
                self.limit.lift()  # the C++ compilers that it starts inherit the limit
            yield

    def _compiler_begins(self) -> None:
        self.steps.note_compilation()
        self.limit.lift()
        self.report(headroom_bytes=COMPILER_BYTES)

    def _compiler_ends(self) -> None:
        self.limit.lower()
        self.report(headroom_bytes=self.growth_bytes())

    def make_batch(self, micro_batch_size: int) -> Batch:
        """Return a batch of the longest samples."""
        self.report(stage="batch")
        return self.batches.longest(micro_batch_size)

    def make_timed_batch(self, micro_batch_size: int) -> Batch | BatchMix:
        """Return what a pass of a size is timed with."""
        self.report(stage="batch")
        return self.batches.make_timed(micro_batch_size)

    def compile_pass(self, timed_batch: Batch | BatchMix) -> float:
        """Run a pass and an update where something may still have to be built; return the seconds of building passes.

        Each length of a mix runs one pass: a program may serve one length alone.
        """
        batch, *others = timed_batch.batches if isinstance(timed_batch, BatchMix) else (timed_batch,)
        one_program = self.compilation is Compilation.SHARED and self.shared_mode.serves_every_size
        if self.is_compiled and one_program:
            return 0.0
        if self.compilation is Compilation.EAGER:
            self.report(stage="first pass", headroom_bytes=self.growth_bytes(batch))
        else:
            self.report(stage="compile")
        seconds = self.steps.first_pass(batch)
        for other in others:
            before, further_s = self.steps.num_compilations, self.steps.first_pass(other)
            seconds += further_s if self.steps.num_compilations > before else 0.0
        if self.uses_cuda_graphs:
            self.steps.keep_gradients()
        if self.is_training and not self.has_states:
            self.steps.first_update(batch)
            self.has_states = True
        self.steps.clear_gradients()
        self.is_compiled = True
        self.toolchain.wait()
        return seconds
