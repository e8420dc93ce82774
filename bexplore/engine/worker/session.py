"""One built and compiled job inside a worker, and how one size of it is measured.

The program may be compiled ahead of the first probe (`prepare`). Order of a probe: (the pass that compiles) - a step
of two passes and an update, whose peak memory is read - timed passes that add to existing gradients, as accumulation
does, of the size alone or in rounds with others - timed updates. The optimizer's states appear at the first
update, so the peak is read after it, and once in a process: a size that is measured again keeps its peak.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
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
from bexplore.engine.worker.memory_step import MemoryStep, ProbeFacts, StepMemory, needs_no_warm_up
from bexplore.engine.worker.own_process import COMPILER_BYTES, DataLimit, Placement
from bexplore.engine.worker.peak_memory import idle_bytes, num_alloc_retries, release_cached_memory
from bexplore.engine.worker.step_checks import FEWEST_SAMPLES, check_step
from bexplore.engine.worker.steps import BatchMix, Ranks, Steps, len_of, warm_device
from bexplore.engine.worker.timing import (
    RanPass,
    Report,
    SizeTimer,
    eagerly,
    headline,
    profile_steps,
    run_pass,
    time_pairs,
)
from bexplore.engine.worker.torch_private import around_compilations
from bexplore.errors import UserInputError
from bexplore.job import Mode
from bexplore.job.lengths import Lengths
from bexplore.measurement.probe import Compilation, Probe
from bexplore.measurement.profile import Profile
from bexplore.workloads import Batch, Workload, build
from bexplore.workloads.optimizers import could_be_fused, names_of

MAX_UPDATES = 3
# Pairs in which batches of another collation are timed beside those of the training.
COLLATION_PAIRS = 3
# Source: `format_dealloc_msg` in torch/_inductor/cudagraph_trees.py; pytorch issues 169545 and 96693.
WARNING_OF_CUDA_GRAPHS = (
    "with CUDA graphs a pass that finds no gradient leaves one in the graph's own memory, and the next pass overwrites "
    "it: to accumulate, set p.grad = torch.zeros_like(p) for each trained parameter after a first step, and clear with "
    "zero_grad(set_to_none=False); it was measured so"
)

# A step that was refused memory has left nothing behind, when the process holds no more than this beyond what it held
# before: pages of small objects, which the C library does not give back. Bytes.
REMAINS_BYTES = 16 * 2**20


class NotFiniteError(Exception):
    """The loss is NaN or infinite, so that times may not be those of a real step."""


class Session:
    """A job that lives in this process, compiled one way.

    Args:
        request: What it is built from, on the device of this rank. Where the workload does not allow the kind of shared
            program that is wanted, the next one is taken.
        report: Called with `stage=...` or `pass_time_s=...` as the probe goes on.
        ranks: The other ranks of the job; None where none is there.
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
        self.num_session_graphs = 0
        self._idle_before_bytes = 0  # what this process held before the probe
        self._first_pass_s = 0.0
        self._timed_batch: tuple[int, Batch] | None = None
        self._is_checked = False  # whether the step was seen to train, or why that cannot be
        self._why_unchecked = ""
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
        self._memory_step = MemoryStep(self.steps, self.device, self.limit, is_training=self.is_training)
        self._timer = SizeTimer(
            self.steps,
            self.device,
            uses_cuda_graphs=self.uses_cuda_graphs,
            make_batch=self._make_timed_batch,
            compile_pass=self._compile_pass,
            report=report,
        )
        self._compile(block_classes, request.artifacts_dir, largest_size)
        report(stage="warm")
        self._products_per_s = warm_device(self.device)

    def _compile(
        self, block_classes: list[type[torch.nn.Module]], artifacts_dir: str | None, largest_size: int | None
    ) -> None:
        """Have the workload compiled when it first runs."""
        if self.workload.is_compiled_by_block and self.batches.serve_several_sizes:
            with self._around_steps():
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
        """Compile with one size ahead of the first probe, which then reports the compilation as its own.

        Raises:
            Exception: Whatever the user's step or the compiler raised.
        """
        with self._around_steps():
            self._first_pass_s = self._compile_pass(self._make_timed_batch(micro_batch_size))

    def measure(self, probe: Probe, *, pass_budget_s: float) -> dict[str, Any]:
        """Run one size for real.

        Args:
            probe: The size, and the upper bound on timed passes.
            pass_budget_s: Stop timing passes once this many seconds are spent and the fewest are done.

        Returns:
            Facts by the field names of `Observation`.

        Raises:
            NotFiniteError: The loss is not finite.
            UserInputError: The step trains nothing.
            Exception: Whatever the user's step or the compiler raised.
        """
        self.steps.clear_gradients()
        self._idle_before_bytes = self._idle_bytes()
        as_large_ran = probe.micro_batch_size <= max(self._timer.usual_pass_s, default=0)
        with self._around_steps(is_known_to_fit=as_large_ran):
            ran = self._run(probe, pass_budget_s)
        self.num_session_graphs += ran.num_graphs
        is_compiled = self.compilation is not Compilation.EAGER and self.job.compile.enabled
        self._check_step(probe, has_gradients=ran.has_gradients)
        record = ran.as_record(is_compiled=is_compiled)
        return record | {
            "warnings": record["warnings"] + self._warnings_of_cuda_graphs(probe),
            "ran_eagerly": not is_compiled or self.num_session_graphs == 0,
            "details": record["details"] | self._details(probe),
        }

    def _run(self, probe: Probe, pass_budget_s: float) -> ProbeFacts:
        """Compile where that is due, read the peak of a step, and time passes and updates."""
        repeated = self.steps.num_repeated
        timed_batch = self._make_timed_batch(probe.micro_batch_size)
        is_known = probe.micro_batch_size in self._timer.usual_pass_s and not probe.purpose.is_verification
        first_pass_s = (0.0 if is_known else self._compile_pass(timed_batch)) or self._first_pass_s
        self._first_pass_s = 0.0
        batch = self._longest_after(timed_batch, probe.micro_batch_size)
        memory = self._memory(batch, probe)
        passes, known = self._passes_that_ran(timed_batch, memory)
        others = self._timer.batches_of_others(probe)
        account = self.watch.take()
        retries = num_alloc_retries(self.device)
        self.report(stage="passes")
        self.steps.pass_times_by_kind_s.clear()  # those of the step whose memory was read do not count
        timed = self._timer.time(timed_batch, others, probe, passes, known=known, budget_s=pass_budget_s)
        if not math.isfinite(timed.loss):
            raise NotFiniteError(f"the loss of a pass over {len_of(batch)} samples is {timed.loss}")
        self._timer.usual_pass_s[probe.micro_batch_size] = float(np.median(timed.pass_times_s))
        has_gradients = any(gradient is not None for _, gradient in self.steps.gradients())
        collations = self._time_collations(timed_batch, probe)
        self.report(stage="updates")
        update_times_s = self.steps.timed_updates(MAX_UPDATES, batch) if self.is_training else []
        retries = num_alloc_retries(self.device) - retries
        return ProbeFacts(
            timed=dataclasses.replace(timed, details={**timed.details, **collations}),
            memory=memory,
            update_times_s=update_times_s,
            first_pass_s=first_pass_s,
            account=account,
            late=self.watch.take(),
            num_alloc_retries=retries + (memory.peak.num_alloc_retries if memory.peak else 0),
            num_repeated_passes=self.steps.num_repeated - repeated,
            has_gradients=has_gradients,
        )

    def _longest_after(self, timed_batch: Batch | BatchMix, micro_batch_size: int) -> Batch:
        """Return the batch whose memory is read: the longest, once typical ones have run, as late in a training.

        Blocks that a caching allocator has kept for typical batches may be too small for the longest.
        """
        if not isinstance(timed_batch, BatchMix):
            return timed_batch
        self.report(stage="typical batches", headroom_bytes=self.limit.growth_bytes(self.steps.live_bytes()))
        for one in timed_batch.batches:
            self.steps.forward_backward(one)
        self.steps.clear_gradients()
        return self._make_batch(micro_batch_size)

    def _passes_that_ran(
        self, timed_batch: Batch | BatchMix, memory: StepMemory
    ) -> tuple[Sequence[RanPass], Sequence[RanPass]]:
        """Return passes that show how long one takes, and those of them that count."""
        if isinstance(timed_batch, BatchMix):
            return [run_pass(self.steps, timed_batch)], ()
        return memory.passes, memory.passes_that_count

    def _time_collations(self, timed_batch: Batch | BatchMix, probe: Probe) -> dict[str, Any]:
        """Time the final answer's batches as other collations would make them, in pairs with its own.

        Not where each length is compiled, or recorded into a CUDA graph, by itself: that would take more than it tells.
        """
        lengths = self.job.lengths
        is_dear = self.batches.compile_each_length or self.uses_cuda_graphs
        if not probe.purpose.is_verification or lengths is None or is_dear:
            return {}
        over_own: dict[str, float] = {}
        try:
            for other in lengths.others:
                over_own[other.collation.value] = self._seconds_over(timed_batch, probe.micro_batch_size, other)
        except Exception as error:  # of batches that the training does not have: the answer stands without them
            return {"collations": over_own, "why_no_collation": headline(error)}
        return {"collations": over_own}

    def _seconds_over(self, timed_batch: Batch | BatchMix, micro_batch_size: int, other: Lengths) -> float:
        """Return the seconds of a pass of other batches over those of the timed ones."""
        batch = self.batches.timed(micro_batch_size, other)
        self._compile_pass(batch)
        self.report(stage="passes")
        pairs = [(run_pass(self.steps, batch), run_pass(self.steps, timed_batch)) for _ in range(COLLATION_PAIRS)]
        return float(np.median([one.seconds / own.seconds for one, own in pairs]))

    def _details(self, probe: Probe) -> dict[str, Any]:
        """Return what is true of the session, whatever a probe has shown."""
        return {
            "samples_are_seen": self.workload.samples_are_seen,
            "optimizers": names_of(self.workload.optimizers),
            "unfused_optimizers": names_of(could_be_fused(self.workload.optimizers)),
            "why_unchecked": self._why_unchecked,
            "shared_mode": self.shared_mode if self.compilation is Compilation.SHARED else None,
            **self._parallel_details(probe),
        }

    def _parallel_details(self, probe: Probe) -> dict[str, Any]:
        """Return what a rank of several reports of its passes beside their times; nothing for one device."""
        if not self.job.parallelism.is_distributed:
            return {}
        timed = [times_s for size, *times_s in self.steps.pass_times_by_kind_s if size == probe.micro_batch_size]
        share = self.steps.reduction_share(probe.micro_batch_size)
        details = {
            "accumulation_steps": round(1.0 / share) if share else None,
            "pass_times_by_kind_s": [(inner_s, last_s) for inner_s, last_s, _ in timed],
            "own_inner_pass_s": float(np.median([own_s for _, _, own_s in timed])) if timed else None,
            "products_per_s": self._products_per_s,
        }
        return {"parallel": details}

    def _check_step(self, probe: Probe, *, has_gradients: bool) -> None:
        """Check once that a step of the user's own trains, with fewer samples than were just run.

        Raises:
            UserInputError: It does not.
        """
        is_concerned = self.is_training and self.workload.make_other_batch is not None
        is_settled = self._is_checked or (has_gradients and probe.micro_batch_size < FEWEST_SAMPLES)
        if not is_concerned or is_settled or probe.purpose.is_verification:
            return
        self.report(stage="step check")
        try:
            with self._around_steps():
                self._is_checked = check_step(self.workload, self.steps.parameters(), probe.micro_batch_size)
        except UserInputError:
            raise
        except Exception as error:  # without the compiler it may lack memory: what was measured stands all the same
            self._is_checked, self._why_unchecked = True, headline(error)
        self.steps.clear_gradients()
        release_cached_memory(self.device)

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

        Raises:
            Exception: Whatever the user's step raised.
        """
        if self._timed_batch is None or self._timed_batch[0] != micro_batch_size:
            self._timed_batch = (micro_batch_size, self._make_timed_batch(micro_batch_size))
        batch = self._timed_batch[1]
        if round_number is not None:
            self._placement.take_slot(round_number, torch.get_num_threads())
        self.watch.take()
        began_cpu_s = time.process_time()
        together = self.steps.num_back_to_back(self._timer.usual_pass_s.get(micro_batch_size, 0.0))
        counts = [min(together, num_passes - done) for done in range(0, num_passes, together)]
        times_s = [self.steps.timed_pass(batch, count) for count in counts]
        cpu_time_s = (time.process_time() - began_cpu_s) * len(times_s) / num_passes
        loss = self.steps.loss()
        num_compiled = self.watch.take().num_graphs
        return {"pass_times_s": times_s, "cpu_time_s": cpu_time_s, "loss": loss, "num_compiled": num_compiled}

    def compare_eager(self, request: CompareEager) -> dict[str, Any]:
        """Time compiled and eager passes of a size that was measured before, in pairs.

        Returns:
            `compiled_timings`, `eager_timings`: pairs of a number of passes and their seconds;
            `eager_peak_memory_bytes`.

        Raises:
            Exception: Whatever the user's step raised.
        """
        self.report(stage="eager")
        usual_s = self._timer.usual_pass_s.get(request.micro_batch_size, 0.0)
        with self._around_steps():
            batch = self._make_batch(request.micro_batch_size)
            self.report(stage="eager")
            with eagerly():
                peak = self._memory_step.peak_of_one(batch)
            compiled, eager = time_pairs(
                self.steps,
                self._make_timed_batch(request.micro_batch_size),
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
        """Profile steps of a size that was measured before; what the profiler itself holds is not limited.

        Raises:
            Exception: Whatever the user's step raised, or what kept the trace from being written.
        """
        self.report(stage="profile")
        with self._around_steps():
            self._compiler_begins()  # no compiler, but as little bound by the budget: the profiler holds its events
            return profile_steps(
                self.steps,
                self.device,
                lambda: self._make_batch(micro_batch_size),
                micro_batch_size=micro_batch_size,
                trace_path=trace_path,
                is_training=self.is_training,
            )

    @contextmanager
    def _around_steps(self, *, is_known_to_fit: bool = False) -> Iterator[None]:
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
        self.report(headroom_bytes=self.limit.growth_bytes(self.steps.live_bytes()))

    def _make_batch(self, micro_batch_size: int) -> Batch:
        self.report(stage="batch")
        return self.batches.longest(micro_batch_size)

    def _make_timed_batch(self, micro_batch_size: int) -> Batch | BatchMix:
        self.report(stage="batch")
        return self.batches.timed(micro_batch_size)

    def _memory(self, batch: Batch, probe: Probe) -> StepMemory:
        self.report(stage="memory", headroom_bytes=self.limit.growth_bytes(self.steps.live_bytes(batch)))
        size = probe.micro_batch_size
        if probe.purpose.is_verification:
            return self._memory_step.verify(batch, size)
        return self._memory_step.run(batch, size, expected_pass_s=self._expected_pass_s(size))

    def _compile_pass(self, timed_batch: Batch | BatchMix) -> float:
        """Run a pass and an update where something may still have to be built; return the seconds of building passes.

        Each length of a mix runs one pass: a program may serve one length alone.
        """
        batch, *others = timed_batch.batches if isinstance(timed_batch, BatchMix) else (timed_batch,)
        one_program = self.compilation is Compilation.SHARED and self.shared_mode.serves_every_size
        if self.is_compiled and one_program:
            return 0.0
        if self.compilation is Compilation.EAGER:
            self.report(stage="first pass", headroom_bytes=self.limit.growth_bytes(self.steps.live_bytes(batch)))
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

    def _expected_pass_s(self, micro_batch_size: int) -> float:
        """Return the seconds of a pass at the best samples/s of this process; 0 while nothing was timed."""
        per_sample_s = (seconds / size for size, seconds in self._timer.usual_pass_s.items())
        return micro_batch_size * min(per_sample_s, default=0.0)

    def _warnings_of_cuda_graphs(self, probe: Probe) -> list[str]:
        is_concerned = self.uses_cuda_graphs and self.is_training and probe.purpose.is_verification
        return [WARNING_OF_CUDA_GRAPHS] if is_concerned else []
