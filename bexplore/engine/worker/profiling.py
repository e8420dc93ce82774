"""Profile a few steps of a size: a trace for Chrome or Perfetto, and a record of memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bexplore.engine.worker.steps import Steps, synchronize
from bexplore.engine.worker.torch_private import recording_memory
from bexplore.measurement.profile import (
    BATCH,
    PASS,
    PREFIX,
    STEP,
    UPDATE,
    Profile,
    memory_timeline,
    profile_of,
    read_trace,
)
from bexplore.workloads import Batch

NUM_STEPS = 2
PASSES_PER_STEP = 2  # so that old and new gradients meet


def profile_steps(
    steps: Steps,
    device: torch.device,
    make_batch: Callable[[], Batch],
    *,
    micro_batch_size: int,
    trace_path: Path,
    is_training: bool,
) -> Profile:
    """Profile steps, write the trace and the record of memory, and return what they show.

    Args:
        make_batch: Makes a batch of the size, which has run before.
        trace_path: A JSON file, or one that ends in `.gz`.
        is_training: Whether updates follow the passes.
    """
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
    return profile_of(
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
