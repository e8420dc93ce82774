"""One probe, or one trace, of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.config import Config
from bexplore.engine import EngineRunner, RunnerSettings, Workers
from bexplore.engine.process.timeouts import Progress
from bexplore.engine.program_client import recall_or_trace
from bexplore.errors import BexploreError, EngineError, UserInputError, UserProgramError
from bexplore.exploration import run_directory
from bexplore.exploration.event_records import trace_record
from bexplore.exploration.memory_budget import gradient_bytes_of, judged_by, memory_of_absent_device, resolve_budget
from bexplore.host.accelerators import Device, device_by_name
from bexplore.host.machine import torch_is_for_cpu
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.trace.gpu_properties import GpuProperties


def probe_once(
    config: Config,
    *,
    micro_batch_size: int,
    compilation: str,
    model_dir: str | None,
    on_progress: Progress = lambda message: None,
) -> Observation:
    """Compile and run one size for real.

    Args:
        config: The job.
        micro_batch_size: The size.
        compilation: `exact`, `shared` or `eager`.
        model_dir: Folder of the worker's log; None for the configuration's own.
        on_progress: Called with the worker's progress messages.

    Raises:
        UserInputError: The job itself is wrong.
        EngineError: The device cannot be used.
    """
    folder = run_directory.model_directory(config.mode, model_dir or config.model_dir) / "probes"
    run_dir = folder / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
    probe = Probe(
        number=0,
        micro_batch_size=micro_batch_size,
        compilation=Compilation(compilation),
        purpose=Purpose.VERIFY,
        max_passes=config.explore.passes_per_probe,
        time_limit_s=config.explore.probe_time_limit_s,
    )
    if config.command is not None:
        return CommandRunner(config.command, CommandSettings(run_dir=run_dir, on_progress=on_progress))(probe)
    with Workers(run_dir) as workers:
        device_info = workers.device_info(config.job.device, on_progress=on_progress)
        budget = resolve_budget(config.explore, device_info, num_replicas=config.num_replicas, gradient_bytes=None)
        settings = RunnerSettings(
            job=config.on_device(device_info["device"]).job,
            run_dir=run_dir,
            budget_bytes=budget.budget_bytes,
            device_info=device_info,
            free_memory_bytes=device_info["free_memory_bytes"],
        )
        return EngineRunner(settings, workers=workers, on_progress=on_progress)(probe)


def trace_once(
    config: Config,
    *,
    micro_batch_sizes: Sequence[int] | None,
    device_name: str | None,
    model_dir: str | None,
    fresh: bool = False,
    on_progress: Progress = lambda message: None,
) -> dict[str, Any]:
    """Trace the step; return the `trace` event.

    Args:
        config: The job.
        micro_batch_sizes: Sizes whose peak is listed; None for powers of two.
        device_name: A device, present or not, whose program and memory are traced; None for this machine's.
        model_dir: Folder of the worker's log; None for the configuration's own.
        fresh: Trace again, even if an unchanged job was traced before.
        on_progress: Called with the workers' progress messages.

    Raises:
        EngineError: The program cannot be traced.
        UserProgramError: The program also fails without the trace.
        UserInputError: The job itself is wrong, or its device's memory is unknown.
    """
    folder = run_directory.model_directory(config.mode, model_dir or config.model_dir) / "traces"
    device = device_by_name(device_name) if device_name else None
    log_dir = folder / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
    device_info = _device_info_here(config, log_dir) if device is None else _device_info_of(device)
    job = config.on_device(str(device_info["device"])).job
    gpu = GpuProperties.of_device_info(device_info) if device is None else GpuProperties.of_device(device)
    traced = recall_or_trace(job, log_dir, lambda message: None, gpu=gpu, fresh=fresh)
    if isinstance(traced, str):
        raise _untraceable(config, traced, is_here=device is None, model_dir=model_dir, on_progress=on_progress)
    gradient_bytes = gradient_bytes_of(job, traced.num_parameters)
    budget = resolve_budget(
        config.explore, device_info, num_replicas=config.num_replicas, gradient_bytes=gradient_bytes
    )
    record = trace_record(
        traced,
        budget_bytes=budget.budget_bytes,
        judged_by=judged_by(job.device),
        minimum=config.minimum,
        maximum=config.maximum,
        micro_batch_sizes=micro_batch_sizes,
    )
    return {"event": "trace"} | record | {"memory_budget_bytes": budget.budget_bytes, "why_budget": budget.why}


def _untraceable(
    config: Config, reason: str, *, is_here: bool, model_dir: str | None, on_progress: Progress
) -> BexploreError:
    """Return the error of a job that cannot be traced; one eager pass shows whether the program itself fails."""
    message = f"this job cannot be traced: {reason}"
    if not is_here:
        return EngineError(message)
    size = config.minimum
    run = probe_once(config, micro_batch_size=size, compilation="eager", model_dir=model_dir, on_progress=on_progress)
    if run.is_measured:
        return EngineError(
            message, hint=f"it runs at size {size}: bexplore explore {config.typed} works without a trace"
        )
    if run.outcome is Outcome.CRASHED:
        failure = f"your program fails at micro_batch_size {size}: {run.reason}"
        return UserProgramError(failure, traceback_text=run.traceback_text)
    return EngineError(f"{message}; at size {size} it ends as {run.outcome.value}: {run.reason}")


def _device_info_here(config: Config, log_dir: Path) -> dict[str, Any]:
    """Return torch's description of the job's device; its name alone where torch does not see it."""
    device = config.job.device
    if device == "cpu" or (device == "auto" and torch_is_for_cpu()):
        return {"device": "cpu"}
    with Workers(log_dir) as workers:
        try:
            return workers.device_info(device)
        except UserInputError:
            return {"device": device}


def _device_info_of(device: Device) -> dict[str, Any]:
    """Return torch's description of an idle device of the table."""
    return {"device": "cuda:0"} | memory_of_absent_device(device.total_memory_bytes)
