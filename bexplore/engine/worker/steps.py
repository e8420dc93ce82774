"""Passes of a built workload: run, timed, and the tensors that live meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from bexplore.engine.worker.own_process import longest_wait_s, waits_s
from bexplore.engine.worker.peak_memory import storage_bytes
from bexplore.engine.worker.torch_private import zero_in_place
from bexplore.job import Mode
from bexplore.workloads import Batch, Workload

WARM_DEVICE_S = 0.3
# On an accelerator passes are timed back to back, for so long at least: the host then queues a pass while the device
# still computes the one before, as in training. A pass alone begins on an idle device, and the Python code ahead of its
# first kernel (guards, milliseconds) counts; over 50 ms that is a few per cent of it at most. Seconds, passes.
BACK_TO_BACK_S = 0.05
MAX_BACK_TO_BACK = 200
# Updates that a gradient scaler may skip before the first that counts: `torch.amp.GradScaler` starts at a scale of 2^16
# and halves it with each overflow, so that after 24 it is 2^-8.
MAX_SKIPPED_UPDATES = 24

# A pass in which the compiler ran is run again, so many times at most. What changes between two passes is made symbolic
# when it changes first (`automatic_dynamic_shapes` and `specialize_float` in torch/_dynamo/config.py): a program that
# is compiled once more after that is compiled in each pass.
MAX_REPEATED_PASSES = 3

# A parameter, and what it has as a gradient.
Gradient = tuple[torch.nn.Parameter, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class BatchMix:
    """Batches of different lengths whose passes are timed as one: the mean over their shares."""

    batches: tuple[Batch, ...]  # of one size
    shares: tuple[float, ...]  # share of the training's batches for which each stands, in samples of a micro-batch

    @classmethod
    def num_mean_passes(cls, batch: Batch | BatchMix) -> float:
        """Return how many times the seconds that a timing of it tells the timing takes.

        A batch of a number of tokens has more samples than the micro-batch for which its seconds are told.
        """
        return len(batch.batches) / sum(batch.shares) if isinstance(batch, cls) else 1


class CompiledEachPassError(Exception):
    """The compiler runs in each pass, so that none can be timed."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The slowest rank's view of one timed call, which all ranks share, so that they decide alike."""

    seconds: float  # of the slowest rank
    waited_s: float  # as `Steps.waited_s`, of the rank that waited longest
    num_compilations: int  # begun during the call, on the rank with most


class Ranks(Protocol):
    """The other ranks of a distributed job."""

    def begin_together(self) -> None:
        """Wait until every rank is here."""

    def agree(self, own: Agreement) -> Agreement:
        """Return the largest of each number over all ranks."""

    def worst_loss(self, loss: float) -> float:
        """Return the largest loss; one that is not finite goes before."""


class Alone:
    """The only rank that is there."""

    def begin_together(self) -> None:
        """Wait for nobody."""

    def agree(self, own: Agreement) -> Agreement:
        """Return what was given."""
        return own

    def worst_loss(self, loss: float) -> float:
        """Return what was given."""
        return loss


class Steps:
    """Runs and times the passes and updates of a workload.

    The `replica_batch_size` (samples) decides how often a pass reduces gradients; where it is None, seldom.
    """

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        *,
        uses_cuda_graphs: bool = False,
        ranks: Ranks | None = None,
        replica_batch_size: int | None = None,
    ) -> None:
        self._ranks = ranks or Alone()
        self._replica_batch_size = replica_batch_size
        self.synchronizes_last = workload.job.mode is Mode.TRAIN and workload.job.parallelism.synchronizes_last
        # Of each timing, its size and the seconds of a pass without and with the reduction of gradients, where they
        # differ; and those of the first on this rank alone.
        self.pass_times_by_kind_s: list[tuple[int, float, float, float]] = []
        self._own_s = 0.0  # of the call that was timed last, on this rank
        self._workload, self._device, self._uses_cuda_graphs = workload, device, uses_cuda_graphs
        self._last_loss = torch.tensor(float("nan"))
        self.num_compilations = 0  # begun by the compiler so far, as its session counts them
        self.num_repeated = 0  # passes that were run again so far, because the compiler ran in them
        self._kept: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._num_optimizer_steps = 0
        for optimizer in workload.optimizers:
            optimizer.register_step_post_hook(self._count_optimizer_step)
        self.waited_s = 0.0  # by a thread of the last call for a processor; of passes back to back, the mean

    def forward_backward(self, batch: Batch, *, is_last: bool = True) -> None:
        """Run one forward and backward pass, which adds to the gradients that there are."""
        if self._uses_cuda_graphs:
            # Each pass is an iteration of its own, also after one that failed between forward and backward: without
            # the mark, CUDA graph trees wait for that backward for ever (`can_start_new_generation`).
            torch.compiler.cudagraph_mark_step_begin()
        self._last_loss = self._workload.forward_backward(batch, synchronize=is_last or not self.synchronizes_last)

    def update(self) -> None:
        """Update the parameters; kept gradients are zeros afterwards, the others are gone."""
        self._workload.update()
        self._attach_kept()

    def first_update(self, batch: Batch) -> None:
        """Update until an optimizer steps: a gradient scaler skips its first updates, whose gradients overflow."""
        self.update()
        for _ in range(MAX_SKIPPED_UPDATES if self._workload.optimizers else 0):
            if self._num_optimizer_steps:
                return
            self.forward_backward(batch)
            self.update()

    def _count_optimizer_step(self, *_arguments: Any) -> None:
        self._num_optimizer_steps += 1

    def num_back_to_back(self, pass_s: float) -> int:
        """Return how many passes to time together, of which one takes about so many seconds; 0 for not known."""
        if self._device.type == "cpu" or pass_s <= 0:
            return 1
        return min(max(1, math.ceil(BACK_TO_BACK_S / pass_s)), MAX_BACK_TO_BACK)

    def first_pass(self, batch: Batch) -> float:
        """Return the seconds of a pass in which the compiler may run."""
        return self._time_call(lambda: self.forward_backward(batch)).seconds

    def time_pass(self, batch: Batch, num_passes: int = 1) -> float:
        """Return the mean seconds of passes back to back; those in which the compiler ran are run again.

        Where only the last pass of a step reduces gradients, it is the mean over the passes of a step: t_in + (t_last -
        t_in) / A, with the times of a pass without and with the reduction, and the accumulation steps A.
        """
        if isinstance(batch, BatchMix):
            return self._time_mix(batch, num_passes)
        if not self.synchronizes_last:
            return self._time_passes(batch, num_passes, is_last=True)
        share = self.reduction_share(len_of(batch))
        inner_s = 0.0 if share == 1.0 else self._time_passes(batch, num_passes, is_last=False)
        waited_s, own_inner_s = self.waited_s, self._own_s / num_passes
        last_s = self._time_passes(batch, num_passes, is_last=True)
        if share == 1.0:
            inner_s, own_inner_s = last_s, self._own_s / num_passes
        self.waited_s = waited_s + (self.waited_s - waited_s) * share
        self.pass_times_by_kind_s.append((len_of(batch), inner_s, last_s, own_inner_s))
        return inner_s + (last_s - inner_s) * share

    def _time_mix(self, mix: BatchMix, num_passes: int) -> float:
        num_before = len(self.pass_times_by_kind_s)
        times_s, waits_s = [], []
        for batch in mix.batches:
            times_s.append(self.time_pass(batch, num_passes))
            waits_s.append(self.waited_s)
        self.waited_s = _mean(waits_s, mix.shares)
        own = self.pass_times_by_kind_s[num_before:]
        if own:
            sizes, inner_s, last_s, own_inner_s = zip(*own, strict=True)
            mean = (_mean(inner_s, mix.shares), _mean(last_s, mix.shares), _mean(own_inner_s, mix.shares))
            self.pass_times_by_kind_s[num_before:] = [(sizes[0], *mean)]
        return _mean(times_s, mix.shares)

    @property
    def zeros_stand_for_a_pass(self) -> bool:
        """Whether gradients of zeros have the memory of those that a pass leaves: ranks may leave others than shards.

        Sharded gradients of a pass that reduces nothing are whole, and those in buckets are views of them.
        """
        return not self._workload.job.parallelism.is_distributed

    def reduction_share(self, micro_batch_size: int) -> float:
        """Return 1 / A, the share of the passes that reduce gradients; 0 where the batch of a replica is not known.

        A is not rounded where the size does not divide that batch: sizes are compared as their valid batch sizes are.
        """
        if self._replica_batch_size is None:
            return 0.0
        return min(1.0, micro_batch_size / self._replica_batch_size)

    def _time_passes(self, batch: Batch, num_passes: int, *, is_last: bool) -> float:
        def passes() -> None:
            for _ in range(num_passes):
                self.forward_backward(batch, is_last=is_last)

        for _ in range(1 + MAX_REPEATED_PASSES):
            agreed = self._time_call(passes)
            if agreed.num_compilations == 0:
                self.waited_s = agreed.waited_s / num_passes
                return agreed.seconds / num_passes
            self.num_repeated += num_passes
        is_static = self._workload.job.compile.dynamic is False
        way_out = "; explore.compile: {dynamic: null} lets it be a variable" if is_static else ""
        raise CompiledEachPassError(
            f"the compiler ran again in each of {1 + MAX_REPEATED_PASSES} passes of one size, so that no pass can be "
            f"timed: something that the program reads as a constant changes from pass to pass{way_out}."
        )

    def time_updates(self, num_updates: int, batch: Batch) -> list[float]:
        """Return the seconds of updates, each with the gradients that there are now; none in which the compiler ran.

        On CUDA they follow a pass, and nothing is waited for in between, as in training: the host queues the update
        while the device still computes the pass. Each has its own pair of events, since what brings the gradients back
        is host work that the queue hides; many updates between one pair would move the weights as many times.
        """
        gradients = self.gradients()
        if self._device.type == "cuda":
            return self._updates_behind_a_pass(num_updates, batch, gradients)
        times_s = []
        for _ in range(num_updates):
            self.attach(gradients)
            agreed = self._time_call(self.update)
            times_s += [agreed.seconds] if agreed.num_compilations == 0 else []
        return times_s

    def _updates_behind_a_pass(self, num_updates: int, batch: Batch, gradients: Sequence[Gradient]) -> list[float]:
        self.forward_backward(batch)
        events = []
        for _ in range(num_updates):
            self.attach(gradients)
            before = self.num_compilations
            pair = self._between_events(self.update)
            events += [pair] if self.num_compilations == before else []
        synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def _between_events(self, run: Callable[[], None]) -> tuple[Any, Any]:
        """Call between two events on the stream of the job's device, which need not be the current device."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.current_stream(self._device)
        start.record(stream)
        run()
        end.record(stream)
        return start, end

    def _time_call(self, run: Callable[[], None]) -> Agreement:
        """Time one call by device events on CUDA, by the wall clock elsewhere; all ranks get the slowest one's time."""
        self._ranks.begin_together()
        before = self.num_compilations
        seconds, waited_s = self._time_here(run)
        self._own_s = seconds
        return self._ranks.agree(Agreement(seconds, waited_s, self.num_compilations - before))

    def _time_here(self, run: Callable[[], None]) -> tuple[float, float]:
        """Return the seconds of a call, and for how long one of its threads waited for a processor."""
        synchronize(self._device)
        if self._device.type == "cuda":
            start, end = self._between_events(run)
            synchronize(self._device)
            return float(start.elapsed_time(end) / 1e3), 0.0
        before_s = waits_s()
        begin = time.perf_counter()
        run()
        synchronize(self._device)
        seconds = time.perf_counter() - begin
        return seconds, longest_wait_s(before_s, waits_s())

    def loss(self) -> float:
        """Return the loss of the last pass that was timed; of all ranks, the worst."""
        with torch.no_grad():
            return self._ranks.worst_loss(float(self._last_loss))

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return all parameters that the optimizers step and the modules hold."""
        modules = list(self._workload.compiled_modules)
        if self._workload.loss_module is not None:
            modules.append(self._workload.loss_module)
        stepped = [p for o in self._workload.optimizers for group in o.param_groups for p in group["params"]]
        own = [p for module in modules for p in module.parameters()]
        return list({id(p): p for p in stepped + own}.values())

    def gradients(self) -> list[Gradient]:
        """Return each parameter with its gradient as it is now."""
        return [(parameter, parameter.grad) for parameter in self.parameters()]

    def attach(self, gradients: Sequence[Gradient]) -> None:
        """Put gradients back that an update has cleared."""
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def note_compilation(self) -> None:
        """Count a compilation that has begun."""
        self.num_compilations += 1

    def clear_gradients(self) -> None:
        """Clear the gradients, as before the first pass of a step."""
        for parameter in self.parameters():
            parameter.grad = None
        self._attach_kept()

    def keep_gradients(self) -> None:
        """Keep the gradients that there are now in memory of their own, from the next update on.

        A pass that finds no gradient leaves its own, which lies in the memory of a CUDA graph: the next replay writes
        over it before it adds to it. Source: `format_dealloc_msg` in torch/_inductor/cudagraph_trees.py, whose remedy
        is "preallocating zeroed .grad tensors". The gradients of a first pass show which parameters are trained.
        """
        self._kept = [
            (parameter, torch.zeros_like(parameter))
            for parameter, gradient in self.gradients()
            if gradient is not None and gradient.layout is torch.strided
        ]

    def _attach_kept(self) -> None:
        if self._kept:
            zero_in_place([gradient for _, gradient in self._kept])
            self.attach(self._kept)

    def alive(self, batch: Batch = ()) -> list[Any]:
        """Return pytrees of the tensors that live between steps, and a batch."""
        modules = [m for m in [self._workload.loss_module, *self._workload.compiled_modules] if m is not None]
        buffers = [b for module in modules for b in module.buffers()]
        states = [optimizer.state for optimizer in self._workload.optimizers]
        lasting = [tensor for _, tensor in self._workload.find_lasting()]
        return [self.parameters(), buffers, [list(s.values()) for s in states], lasting, batch]

    def live_bytes(self, batch: Batch = ()) -> int:
        """Return the bytes of the distinct storages of `alive`, and of gradient buckets."""
        return storage_bytes(self.alive(batch)) + self._workload.bucket_bytes

    @property
    def bucket_bytes(self) -> int:
        """Bytes of gradient buckets, which no tensor of the modules shows."""
        return self._workload.bucket_bytes


def _mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True))


def with_dense_gradients(gradients: Sequence[Gradient]) -> list[torch.nn.Parameter] | None:
    """Return the parameters that have a gradient; None where one is sparse, whose memory no zeros stand for."""
    trained = [(parameter, gradient) for parameter, gradient in gradients if gradient is not None]
    if any(gradient.layout is not torch.strided for _, gradient in trained):
        return None
    return [parameter for parameter, _ in trained]


def attach_zeros(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Give parameters gradients of zeros, as a pass leaves gradients that the next one adds to."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)


def len_of(batch: Batch) -> int:
    """Return the samples of a batch, by its first tensor."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    return int(tensors[0].shape[0]) if tensors else 0


def warm_device(device: torch.device) -> float:
    """Keep the device busy for a moment, since an idle one starts at a low clock.

    Return the products of two matrices of 512 x 512 in a second, by which ranks are compared.
    """
    square = torch.ones(512, 512, device=device)
    began, num_products = time.perf_counter(), 0
    while time.perf_counter() - began < WARM_DEVICE_S:
        square = (square @ square).clamp_(max=1.0)
        synchronize(device)
        num_products += 1
    return num_products / (time.perf_counter() - began)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "mps":
        torch.mps.synchronize()  # there is one, and the function takes none
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
