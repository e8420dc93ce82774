"""Times passes: of a size alone or in rounds with others, compiled beside eager, and under the profiler."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bexplore.engine.protocol.answers import are_enough
from bexplore.engine.protocol.messages import CompareEager
from bexplore.engine.worker.steps import MAX_BACK_TO_BACK, BatchMix, Steps, synchronize
from bexplore.engine.worker.torch_private import recording_memory
from bexplore.measurement.interleaving import BUDGETS_OF_CONTENDERS, InterleavedTiming, passes_per_timing
from bexplore.measurement.probe import Probe, Purpose
from bexplore.measurement.profile import (
    BATCH,
    PASS,
    PREFIX,
    STEP,
    UPDATE,
    Profile,
    memory_timeline,
    read_profile,
    read_trace,
)
from bexplore.measurement.statistics import TIMING_S
from bexplore.workloads import Batch

Report = Callable[..., None]
NUM_STEPS = 2
PASSES_PER_STEP = 2  # so that old and new gradients meet


class RanPass(NamedTuple):
    """A pass of a probe's size, or the mean of several that ran back to back."""

    seconds: float
    scheduler_wait_s: float  # for how long one of its threads waited for a processor
    loss: float  # of its samples
    num_passes: int = 1  # how many it is the mean of


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What was timed of a probe's size."""

    pass_times_s: list[float]  # seconds of the passes that count, in order; each may be the mean of several
    scheduler_wait_fraction: float  # as `Observation` has it
    loss: float  # of the last pass of the probe's size
    interleaved_times_s: Mapping[int, list[float]] = field(default_factory=dict)  # as `Observation` has it
    details: Mapping[str, Any] = field(default_factory=dict)  # extra facts by name, JSON values only

    @property
    def values(self) -> dict[str, Any]:
        """By the field names of `Observation`, without the details."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "details"}


def headline(error: Exception) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def time_size(
    steps: Steps,
    batches: Mapping[int, Batch],
    probe: Probe,
    *,
    usual_pass_s: Mapping[int, float],
    budget_s: float,
    known: Sequence[RanPass] = (),
    report: Report,
) -> Timed:
    """Time rounds of passes, a short visit to each size in turn, until the rounds suffice.

    `known` passes of the probe's own size have just run and count: the first visit, or a round each if it is alone.
    `report` is called with the seconds of each pass of the own size, and without them for other sizes.
    """
    own, is_alone = probe.micro_batch_size, len(batches) == 1
    is_screening = probe.purpose is Purpose.SEARCH and not is_alone
    num_mean = {size: BatchMix.num_mean_passes(batch) for size, batch in batches.items()}
    num_times = {size: _num_times_of_visit(steps, usual_pass_s[size], num_mean[size]) for size in batches}
    last_s = {size: usual_pass_s[size] for size in batches}
    rounds = InterleavedTiming(
        size=own,
        max_rounds=probe.max_passes,
        budget_s=budget_s * (1 if is_screening or is_alone else BUDGETS_OF_CONTENDERS),
        is_screening=is_screening,
        tolerance=probe.tolerance,
        num_passes={
            size: num_times[size] * num_mean[size] * steps.num_back_to_back(usual_pass_s[size]) for size in batches
        },
    )
    ran: list[RanPass] = []

    def visit(size: int) -> float:
        is_own = size == own
        passes = list(known) if is_own and not ran else []
        for _ in range(0 if passes else num_times[size]):
            passes.append(run_pass(steps, batches[size], last_s[size]))
            last_s[size] = passes[-1].seconds
        if is_own:
            ran.extend(passes)
        report(**{"pass_time_s": passes[-1].seconds} if is_own else {})
        return float(np.median([one.seconds for one in passes]))

    if is_alone:
        ran.extend(known)
        for one in known:
            rounds.add({own: one.seconds})
    rounds.take([own, *(size for size in batches if size != own)], visit)
    return Timed(
        pass_times_s=[one.seconds for one in ran],
        interleaved_times_s={} if is_alone else rounds.interleaved_times_s,
        scheduler_wait_fraction=float(np.median([one.scheduler_wait_s / one.seconds for one in ran])),
        loss=ran[-1].loss,
        details=_back_to_back(ran),
    )


def run_pass(steps: Steps, batch: Batch, last_s: float = 0.0) -> RanPass:
    """Run a pass, timed; or as many back to back as the seconds of the last one ask for."""
    num_passes = steps.num_back_to_back(last_s)
    seconds = steps.time_pass(batch, num_passes)
    return RanPass(seconds, steps.waited_s, steps.loss(), num_passes)


def _num_times_of_visit(steps: Steps, pass_s: float, num_mean_passes: float) -> int:
    """Return how often a size is timed in a round, each time for one pass of each length or several back to back."""
    return passes_per_timing(steps.num_back_to_back(pass_s) * pass_s * num_mean_passes)


def _back_to_back(ran: Sequence[RanPass]) -> dict[str, list[int]]:
    """Return how many passes each recorded time is the mean of; nothing where each is of one."""
    num_passes = [one.num_passes for one in ran]
    return {"num_back_to_back": num_passes} if max(num_passes) > 1 else {}


class Timing(NamedTuple):
    """Passes of one kind that ran one after another."""

    num_passes: int  # how many
    seconds: float  # of all of them; where batches of several lengths alternate, as if each had the mean length

    @property
    def pass_s(self) -> float:
        """Mean seconds of a pass."""
        return self.seconds / self.num_passes


def eagerly() -> AbstractContextManager[Any]:
    """Return a context that leaves the compiler out."""
    return torch.compiler.set_stance("force_eager")


def time_pairs(
    steps: Steps,
    batch: Batch | BatchMix,
    request: CompareEager,
    *,
    usual_pass_s: float,
    is_warm: bool,
    report: Callable[[], None],
) -> tuple[list[Timing], list[Timing]]:
    """Time compiled and eager passes in pairs, each pair the other way round than the one before.

    A steady change of the machine's speed affects both alike, and neither always has the other's caches.
    """
    num_mean_passes = BatchMix.num_mean_passes(batch)
    kinds: dict[bool, Callable[[], AbstractContextManager[Any]]] = {False: nullcontext, True: eagerly}
    last_s, timings, spent_s = dict.fromkeys(kinds, usual_pass_s), {kind: list[Timing]() for kind in kinds}, 0.0
    for kind, context in kinds.items() if not is_warm else ():
        with context():
            last_s[kind] = steps.time_pass(batch)
        spent_s += last_s[kind] * num_mean_passes

    def enough() -> bool:
        compiled_s, eager_s = ([one.pass_s for one in timings[kind]] for kind in kinds)
        is_spent = spent_s >= request.budget_s
        return are_enough(compiled_s, eager_s, tolerance=request.tolerance, is_spent=is_spent)

    order = list(kinds)
    while not enough():
        for kind in order:
            with kinds[kind]():
                timings[kind].append(_timing(steps, batch, last_s[kind]))
            last_s[kind] = timings[kind][-1].pass_s
            spent_s += timings[kind][-1].seconds * num_mean_passes
            report()
        order.reverse()
    return timings[False], timings[True]


def _timing(steps: Steps, batch: Batch | BatchMix, pass_s: float) -> Timing:
    """Time passes of which one takes about so many seconds until they have lasted `TIMING_S`, those of all lengths."""
    num_passes, seconds, num_mean_passes = 0, 0.0, BatchMix.num_mean_passes(batch)
    while seconds * num_mean_passes < TIMING_S:
        wanted = math.ceil((TIMING_S / num_mean_passes - seconds) / max(pass_s, 1e-6))
        together = min(max(1, wanted), MAX_BACK_TO_BACK)
        pass_s = steps.time_pass(batch, together)
        num_passes, seconds = num_passes + together, seconds + together * pass_s
    return Timing(num_passes, seconds)


def profile_steps(
    steps: Steps,
    device: torch.device,
    make_batch: Callable[[], Batch],
    *,
    micro_batch_size: int,
    trace_path: Path,
    is_training: bool,
) -> Profile:
    """Profile steps, write the trace and the record of memory, and return what they show."""
    is_cuda = device.type == "cuda"
    stem = trace_path.name.removesuffix(".gz").removesuffix(".json")
    memory_path = trace_path.with_name(f"{stem}_memory.{'pickle' if is_cuda else 'json'}")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with (
        recording_memory(memory_path) if is_cuda else contextlib.nullcontext(),
        profile(activities=activities, profile_memory=True, record_shapes=True) as profiled,
    ):
        for _ in range(NUM_STEPS):
            with record_function(f"{PREFIX}{STEP}"):
                _run_step(steps, make_batch, is_training=is_training)
                synchronize(device)
    profiled.export_chrome_trace(str(trace_path))
    events = read_trace(trace_path)
    if not is_cuda:
        memory_path.write_text(json.dumps(memory_timeline(events)))
    return read_profile(
        events,
        micro_batch_size=micro_batch_size,
        num_steps=NUM_STEPS,
        passes_per_step=PASSES_PER_STEP,
        trace_path=str(trace_path),
        memory_path=str(memory_path),
    )


def _run_step(steps: Steps, make_batch: Callable[[], Batch], *, is_training: bool) -> None:
    for number in range(PASSES_PER_STEP):
        with record_function(f"{PREFIX}{BATCH}"):
            batch = make_batch()
        with record_function(f"{PREFIX}{PASS}"):
            steps.forward_backward(batch, is_last=number == PASSES_PER_STEP - 1)
    if is_training:
        with record_function(f"{PREFIX}{UPDATE}"):
            steps.update()
