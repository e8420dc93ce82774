"""One size of a configuration, compiled and run for real, and profiled where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.config import Config
from bexplore.engine.open_runner import open_runner
from bexplore.engine.process.limits import Progress
from bexplore.engine.process.pool import Workers
from bexplore.errors import UserInputError
from bexplore.exploration.emulated import hide_times
from bexplore.exploration.memory_budget import (
    resolve_budget,
)
from bexplore.exploration.setup import add_loader_lengths, find_lone_environment, make_runner_settings
from bexplore.measurement.probe import Compilation, Observation, Probe, Purpose
from bexplore.measurement.profile import Profile
from bexplore.run import run_directory
from bexplore.run.fingerprint import Fingerprint


def probe_once(
    config: Config,
    *,
    micro_batch_size: int,
    compilation: str,
    model_dir: str | None,
    trace_path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    on_progress: Progress = lambda message: None,
) -> Probed:
    """Compile and run one size for real.

    Args:
        config: The job.
        micro_batch_size: The size.
        compilation: `exact`, `shared` or `eager`.
        model_dir: Folder of the worker's log; None for the configuration's own.
        trace_path: Chrome trace of a few steps, which are profiled after the measurement; None to profile none.
        environment: Variables of the processes that are started, such as those of an emulated device.
        on_progress: Called with the worker's progress messages.

    Raises:
        UserInputError: The job itself is wrong, or is a training command, whose steps are not profiled.
        EngineError: The device cannot be used.
    """
    _check_trace_path(config, trace_path)
    config = add_loader_lengths(config, on_progress)
    folder = run_directory.model_directory(config.mode, model_dir or config.model_dir) / "probes"
    run_dir = folder / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
    probe = Probe(
        number=0,
        micro_batch_size=micro_batch_size,
        compilation=Compilation(compilation),
        purpose=Purpose.VERIFY,
        max_passes=config.settings.passes_per_probe,
        time_limit_s=config.settings.probe_time_limit_s,
    )
    environment = environment or {}
    if config.command is not None:
        run_dir.mkdir(run_directory.PRIVATE, parents=True, exist_ok=True)
        settings = CommandSettings(run_dir=run_dir, environment=environment, on_progress=on_progress)
        runner = CommandRunner(config.command, settings)
        return Probed(observation=hide_times(runner, lambda: bool(runner.device_info.get("is_emulated")))(probe))
    with Workers(run_dir, {**environment, **find_lone_environment(config)}) as workers:
        device_info = workers.device_info(config.job.device, on_progress=on_progress)
        if trace_path is not None and device_info["is_emulated"]:
            raise UserInputError("an emulated device has no times to profile", hint="leave `trace_path` out")
        budget = resolve_budget(
            config.settings,
            device_info,
            num_replicas=config.num_replicas,
            gradient_bytes=None,
            is_traced_for_ranks=config.job.parallelism.is_distributed,
            num_ranks_here=config.num_ranks_here,
        )
        of_engine = make_runner_settings(
            config.on_device(device_info["device"]),
            device_info,
            run_dir=run_dir,
            budget_bytes=budget.budget_bytes,
            environment=environment,
        )
        with open_runner(of_engine, workers=workers, on_progress=on_progress) as engine:
            observation = hide_times(engine, lambda: bool(device_info["is_emulated"]))(probe)
            if trace_path is None or not observation.is_measured:
                return Probed(observation=observation)
            profile = engine.profile(micro_batch_size=micro_batch_size, trace_path=trace_path.resolve())
    return Probed(observation=observation, profile=profile, run=_remember_profile(config, folder.parent, profile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One size that was run."""

    observation: Observation  # what was measured
    profile: Profile | None = None  # what a profile of its steps shows; None where none was made
    run: run_directory.Run | None = None  # the run of this job whose report links the profile; None for none


def _check_trace_path(config: Config, trace_path: Path | None) -> None:
    if trace_path is None:
        return
    if config.command is not None:
        raise UserInputError(
            "`trace_path` does not work with training commands",
            hint="use the profiler of your framework, with the size that was found",
        )
    if not trace_path.name.removesuffix(".gz").endswith(".json") or trace_path.is_dir():
        raise UserInputError(
            f"{trace_path} is no name of a trace", hint="name it `trace_path=trace.json`, or trace.json.gz"
        )
    if not trace_path.resolve().parent.is_dir():
        raise UserInputError(f"{trace_path}: no such folder", hint=f"mkdir -p {trace_path.parent}")


def _remember_profile(config: Config, folder: Path, profile: Profile) -> run_directory.Run | None:
    own = Fingerprint(config=config, folder_name=folder.name).fingerprint()
    run = next((one for one in run_directory.find_runs(folder) if one.meta().get("fingerprint") == own), None)
    if run is not None:
        run.remember_profile(profile)
    return run
