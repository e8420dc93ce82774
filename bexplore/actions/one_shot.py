"""One probe, or one trace, of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.config import Config
from bexplore.engine.all_ranks import AllRanksRunner
from bexplore.engine.process.pool import Workers
from bexplore.engine.process.timeouts import Progress
from bexplore.engine.program_client import recall_or_trace
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.errors import BexploreError, EngineError, UserInputError, UserProgramError
from bexplore.exploration.emulated import named_device, without_times
from bexplore.exploration.memory_budget import (
    MemoryBudget,
    gradient_bytes_of,
    judged_by,
    memory_of_absent_device,
    resolve_budget,
)
from bexplore.exploration.setup import environment_alone, launcher_of, with_loader_lengths, worker_key
from bexplore.exploration.variants import operations_over_file, trace_all, trace_lengths
from bexplore.host.accelerators import Device, device_by_name
from bexplore.host.machine import torch_is_for_cpu
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.measurement.profile import Profile
from bexplore.run import run_directory
from bexplore.run.event_records import listed_sizes, trace_record
from bexplore.run.fingerprint import Fingerprint
from bexplore.run.selection import TracedVariant
from bexplore.search.space import MemoryAccount
from bexplore.trace.cost_model import CostModel
from bexplore.trace.gpu_properties import GpuProperties


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
    config = with_loader_lengths(config, on_progress)
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
    environment = environment or {}
    if config.command is not None:
        run_dir.mkdir(run_directory.PRIVATE, parents=True, exist_ok=True)
        settings = CommandSettings(run_dir=run_dir, environment=environment, on_progress=on_progress)
        runner = CommandRunner(config.command, settings)
        return Probed(observation=without_times(runner, lambda: bool(runner.device_info.get("is_emulated")))(probe))
    with Workers(run_dir, {**environment, **environment_alone(config)}) as workers:
        device_info = workers.device_info(config.job.device, on_progress=on_progress)
        if trace_path is not None and device_info["is_emulated"]:
            raise UserInputError("a profile is of times, and an emulated device has none", hint="leave --profile out")
        budget = resolve_budget(
            config.explore,
            device_info,
            num_replicas=config.num_replicas,
            gradient_bytes=None,
            is_traced_for_ranks=config.job.parallelism.is_distributed,
            num_ranks_here=config.num_ranks_here,
        )
        of_engine = RunnerSettings(
            job=config.on_device(device_info["device"]).job,
            run_dir=run_dir,
            budget_bytes=budget.budget_bytes,
            device_info=device_info,
            free_memory_bytes=device_info["free_memory_bytes"],
            environment=environment,
            replica_batch_size=config.replica_batch_size,
            launcher=launcher_of(config),
            worker_key=worker_key(),
        )
        kind = EngineRunner if of_engine.launcher is None else AllRanksRunner
        with kind(of_engine, workers=workers, on_progress=on_progress) as engine:
            observation = without_times(engine, lambda: bool(device_info["is_emulated"]))(probe)
            if trace_path is None or not observation.is_measured:
                return Probed(observation=observation)
            profile = engine.profile(micro_batch_size=micro_batch_size, trace_path=trace_path.resolve())
    return Probed(observation=observation, profile=profile, run=_remember_profile(config, folder.parent, profile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One size that was run.

    Attributes:
        observation: What was measured.
        profile: What a profile of its steps shows; None where none was made.
        run: The run of this job whose report links the profile; None for none.
    """

    observation: Observation
    profile: Profile | None = None
    run: run_directory.Run | None = None


def _check_trace_path(config: Config, trace_path: Path | None) -> None:
    if trace_path is None:
        return
    if config.command is not None:
        raise UserInputError(
            "the steps of a training command are not profiled: its program is its own",
            hint="use the profiler of your framework, with the size that was found",
        )
    if not trace_path.name.removesuffix(".gz").endswith(".json") or trace_path.is_dir():
        raise UserInputError(f"{trace_path} is no name of a trace", hint="type --profile trace.json, or trace.json.gz")
    if not trace_path.resolve().parent.is_dir():
        raise UserInputError(f"{trace_path}: no such folder", hint=f"mkdir -p {trace_path.parent}")


def _remember_profile(config: Config, folder: Path, profile: Profile) -> run_directory.Run | None:
    """Store a profile with the newest run of the same job, if there is one."""
    own = Fingerprint(config=config, folder_name=folder.name).fingerprint()
    run = next((one for one in run_directory.find_runs(folder) if one.meta().get("fingerprint") == own), None)
    if run is not None:
        run.remember_profile(profile)
    return run


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
    config = with_loader_lengths(config, on_progress)
    tracing = _Tracing.begin(config, device_name, model_dir=model_dir, fresh=fresh, on_progress=on_progress)
    record = tracing.trace(config).record(micro_batch_sizes)
    return record | {"peak_memory_bytes_by_length": tracing.by_length(config, record["peak_memory_bytes"])}


def trace_devices(
    config: Config,
    *,
    num_devices: Sequence[int],
    micro_batch_sizes: Sequence[int] | None,
    device_name: str | None,
    model_dir: str | None,
    fresh: bool = False,
    on_progress: Progress = lambda message: None,
) -> list[dict[str, Any]]:
    """Trace one rank of the job on each number of devices, none of which is needed; return the `trace` events.

    Args:
        config: The job.
        num_devices: Numbers of devices, each from 1 on.
        micro_batch_sizes: Sizes whose peak is listed, the same in all events; None for powers of two.
        device_name: As in `trace_once`.
        model_dir: As in `trace_once`.
        fresh: As in `trace_once`.
        on_progress: Called with the workers' progress messages, and before each trace.

    Raises:
        EngineError: As in `trace_once`.
        UserProgramError: As in `trace_once`.
        UserInputError: As in `trace_once`; or so many devices cannot share the work.
    """
    shared = [on_devices(config, number) for number in num_devices]  # all are checked before the first is traced
    config = with_loader_lengths(config, on_progress)
    tracing = _Tracing.begin(config, device_name, model_dir=model_dir, fresh=fresh, on_progress=on_progress)
    traces = []
    for number, one in zip(num_devices, shared, strict=True):
        on_progress({"stage": "trace", "num_devices": number})
        traces.append(tracing.trace(one))
    if micro_batch_sizes is None:
        largest = max(trace.record(())["max_micro_batch_size"] or 0 for trace in traces)
        micro_batch_sizes = listed_sizes(largest, minimum=config.minimum, maximum=config.maximum)
    return [trace.record(micro_batch_sizes) for trace in traces]


def trace_variants(
    config: Config,
    *,
    micro_batch_sizes: Sequence[int] | None,
    device_name: str | None,
    model_dir: str | None,
    fresh: bool = False,
    on_progress: Progress = lambda message: None,
) -> list[dict[str, Any]]:
    """Trace each variant of a job; return a `trace` event for each, that of the file's own settings first.

    Args:
        config: The job, with variants.
        micro_batch_sizes: Sizes whose peak is listed, the same in all events; None for powers of two.
        device_name: As in `trace_once`.
        model_dir: As in `trace_once`.
        fresh: As in `trace_once`.
        on_progress: As in `trace_once`.

    Raises:
        EngineError: As in `trace_once`, of the file's own settings; other variants that cannot be traced say why.
        UserProgramError: As in `trace_once`.
        UserInputError: As in `trace_once`.
    """
    config = with_loader_lengths(config, on_progress)
    tracing = _Tracing.begin(config, device_name, model_dir=model_dir, fresh=fresh, on_progress=on_progress)
    on_device = config.on_device(str(tracing.device_info["device"]))  # the file's own job too: `auto` is no device
    variants, traces = on_device.variants, trace_all(on_device, tracing.log_dir, gpu=tracing.gpu, fresh=fresh)
    traced = [TracedVariant.of(variant, trace) for variant, trace in zip(variants, traces, strict=True)]
    if traced[0].cost_model is None:
        raise tracing.untraceable(config, traced[0].reason)
    models = {
        number: tracing.judged(config.of_variant(variant), one.cost_model)
        for number, (variant, one) in enumerate(zip(variants, traced, strict=True))
        if one.cost_model is not None
    }
    if micro_batch_sizes is None:
        largest = max(model.record(())["max_micro_batch_size"] or 0 for model in models.values())
        micro_batch_sizes = listed_sizes(largest, minimum=config.minimum, maximum=config.maximum)
    unknown = dict.fromkeys(models[0].record(())) | {"event": "trace"} | trace_record(None)
    return [
        (models[number].record(micro_batch_sizes) if number in models else unknown)
        | {"name": one.name, "settings": dict(one.settings), "reason": one.reason}
        | {"operations_over_file": operations_over_file(traced, number, config.minimum)}
        for number, one in enumerate(traced)
    ]


def on_devices(config: Config, num_devices: int) -> Config:
    """Return the job as so many devices share it: the batch of a replica stays, and the global one follows.

    Without `explore.parallelism` they are replicas of DistributedDataParallel with its defaults.

    Raises:
        UserInputError: So many devices cannot share the work, or a step of the user's own decides that by itself.
    """
    options, parallelism = config.explore.parallelism, config.job.parallelism
    if options is None and "step" in config.job.model:
        raise UserInputError(
            "a step of your own decides itself how its ranks share the work, and explore.parallelism is absent",
            hint="write explore.parallelism: what makes the step is given the mesh of the ranks",
        )
    takes_the_rest = options is not None and options.data_parallel_shard_degree == -1
    if takes_the_rest and parallelism.data_parallel_replicate_degree == 1:
        parallelism = dataclasses.replace(parallelism, data_parallel_shard_degree=num_devices)
    shared = parallelism.of_ranks(num_devices)
    if shared.is_replicated_only and shared.tensor_parallel_degree > 1:
        raise UserInputError(
            f"{num_devices} devices are {shared.num_replicas} whole copies of {shared.tensor_parallel_degree} ranks, "
            "and DistributedDataParallel takes no matrices that ranks share",
            hint=f"shard the copies (leave explore.parallelism.data_parallel_shard_degree out), or type "
            f"{shared.tensor_parallel_degree}",
        )
    of_replica = config.replica_batch_size
    return dataclasses.replace(
        config,
        job=dataclasses.replace(config.job, parallelism=shared, num_replicas=shared.num_replicas),
        num_replicas=shared.num_replicas,
        batch_size=of_replica and of_replica * shared.num_replicas,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tracing:
    """What the traces of one command share: the device, and where they write.

    Attributes:
        device: The device that was named; None for the job's own.
        device_info: torch's description of the device.
        log_dir: Receives the logs of the workers.
        model_dir: Folder of the user's results; None for the configuration's own.
        fresh: Whether traces of earlier runs are ignored.
        on_progress: Called with the workers' progress messages.
    """

    device: Device | None
    device_info: dict[str, Any]
    log_dir: Path
    model_dir: str | None
    fresh: bool
    on_progress: Progress

    @classmethod
    def begin(
        cls, config: Config, device_name: str | None, *, model_dir: str | None, fresh: bool, on_progress: Progress
    ) -> _Tracing:
        folder = run_directory.model_directory(config.mode, model_dir or config.model_dir) / "traces"
        log_dir = folder / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
        emulated = config.explore.device_name
        device = device_by_name(device_name) if device_name else emulated and named_device(emulated)[1]
        return cls(
            device=device or None,
            device_info=_device_info_here(config, log_dir) if not device else _device_info_of(device),
            log_dir=log_dir,
            model_dir=model_dir,
            fresh=fresh,
            on_progress=on_progress,
        )

    def trace(self, config: Config) -> _Traced:
        """Trace one job, in a worker of its own: the ranks of a process are those of its first job."""
        job = config.on_device(str(self.device_info["device"])).job
        traced = recall_or_trace(job, self.log_dir, lambda message: None, gpu=self.gpu, fresh=self.fresh)
        if isinstance(traced, str):
            raise self.untraceable(config, traced)
        return self.judged(config, traced)

    def by_length(self, config: Config, sizes: Iterable[str]) -> dict[str, dict[str, int]] | None:
        """Return peaks by length of a batch and by size; None where all samples are as long, or untraceable at others.

        The lengths are the longest, and those that half and a tenth of the samples exceed.
        """
        job = config.on_device(str(self.device_info["device"])).job
        if job.lengths is None:
            return None
        traced = recall_or_trace(job, self.log_dir, self.on_progress, gpu=self.gpu, fresh=False)
        if isinstance(traced, str):
            return None
        memory = trace_lengths(job, traced, self.log_dir, self.on_progress, gpu=self.gpu, fresh=self.fresh)
        if memory is None:
            return None
        shown = dict.fromkeys((job.lengths.quantile(0.5), job.lengths.quantile(0.9), job.lengths.longest))
        return {str(length): {size: memory.peak_memory_bytes(int(size), length) for size in sizes} for length in shown}

    @property
    def gpu(self) -> GpuProperties | None:
        """The device of a CUDA job, present or absent."""
        if self.device is not None:
            return GpuProperties.of_device(self.device)
        return GpuProperties.of_device_info(self.device_info)

    def judged(self, config: Config, cost_model: CostModel) -> _Traced:
        """Return a traced job with the budget of one of its ranks."""
        job = config.on_device(str(self.device_info["device"])).job
        budget = resolve_budget(
            config.explore,
            self.device_info,
            num_replicas=config.num_replicas,
            gradient_bytes=gradient_bytes_of(job, cost_model.num_parameters),
            is_traced_for_ranks=job.parallelism.is_distributed,
        )
        return _Traced(config=config, cost_model=cost_model, budget=budget, judged_by=judged_by(job.device))

    def untraceable(self, config: Config, reason: str) -> BexploreError:
        """Return the error of a job that cannot be traced."""
        is_here = self.device is None
        return _untraceable(config, reason, is_here=is_here, model_dir=self.model_dir, on_progress=self.on_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """A traced job, with the budget of one of its ranks."""

    config: Config
    cost_model: CostModel
    budget: MemoryBudget
    judged_by: MemoryAccount

    def record(self, micro_batch_sizes: Sequence[int] | None) -> dict[str, Any]:
        """Return the `trace` event."""
        config, budget = self.config, self.budget
        record = trace_record(
            self.cost_model,
            budget_bytes=budget.budget_bytes,
            judged_by=self.judged_by,
            minimum=config.minimum,
            maximum=config.maximum,
            micro_batch_sizes=micro_batch_sizes,
        )
        parallelism = config.job.parallelism
        return (
            {"event": "trace", "num_devices": parallelism.num_ranks, "parallelism": dataclasses.asdict(parallelism)}
            | record
            | {"settings": {}}
            | {"memory_budget_bytes": budget.budget_bytes, "why_budget": budget.why}
            | {"notes": [*record["notes"], *_notes(config)]}
        )


def _notes(config: Config) -> list[str]:
    """Return what is assumed of how the ranks share the work."""
    options, parallelism = config.explore.parallelism, config.job.parallelism
    notes = []
    if options is None and parallelism.is_distributed:
        notes.append("explore.parallelism is absent: each device has a whole copy (DistributedDataParallel)")
    if options is not None and options.mixed_precision_param is not None and not parallelism.is_sharded:
        notes.append(f"{parallelism}: nothing is sharded, so mixed_precision_param is not in force")
    return notes


_TOO_OLD = "GPUTooOldForTriton"  # an exception of torch/_inductor/exc.py: Triton starts at compute capability 7.0


def _untraceable(
    config: Config, reason: str, *, is_here: bool, model_dir: str | None, on_progress: Progress
) -> BexploreError:
    """Return the error of a job that cannot be traced; one eager pass shows whether the program itself fails."""
    message = f"this job cannot be traced: {reason}"
    if not is_here:
        eager = "the compiler has no kernels for such a device; trace its eager program: --set explore.compile=false"
        return EngineError(message, hint=eager if _TOO_OLD in reason else "")
    size = config.minimum
    options: dict[str, Any] = {"compilation": "eager", "model_dir": model_dir, "on_progress": on_progress}
    run = probe_once(config, micro_batch_size=size, **options).observation
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
