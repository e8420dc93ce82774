"""The trace of a configuration: of its job, of each of its variants, or of one rank of so many devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.engine.process.limits import Progress
from bexplore.engine.process.pool import Workers
from bexplore.engine.program_client import recall_or_trace, trace_lengths
from bexplore.errors import BexploreError, EngineError, UserInputError
from bexplore.estimate.calibrations import recall
from bexplore.estimate.processor import find_program_sd
from bexplore.exploration.emulated import parse_device_name
from bexplore.exploration.memory_budget import (
    count_gradient_bytes,
    describe_absent_memory,
    find_memory_account,
    resolve_budget,
)
from bexplore.exploration.setup import add_loader_lengths
from bexplore.exploration.untraced import measure_untraced
from bexplore.exploration.variants import operations_over_file, trace_all
from bexplore.host.accelerators import Device, device_by_name
from bexplore.host.machine import torch_is_for_cpu
from bexplore.job import Job, device_kind
from bexplore.job.lengths import Collation
from bexplore.run import run_directory
from bexplore.run.event_records import listed_sizes, trace_record
from bexplore.run.selection import TracedVariant
from bexplore.search.space import candidate_sizes
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.cost_model import CostModel
from bexplore.trace.pass_times import describe_communication, estimate_pass, estimate_update, find_links
from bexplore.units import counted

_TOO_OLD = "GPUTooOldForTriton"  # an exception of torch/_inductor/exc.py: Triton starts at compute capability 7.0


def trace_job(
    config: Config,
    *,
    num_devices: Sequence[int] = (),
    micro_batch_sizes: Sequence[int] | None = None,
    device_name: str | None = None,
    model_dir: str | None = None,
    fresh: bool = False,
    on_progress: Progress = lambda message: None,
) -> list[dict[str, Any]]:
    """Trace a job; return a `trace` event for each number of devices, else for each variant, else of the job itself.

    Args:
        config: The job.
        num_devices: Numbers of devices that share the job, none of which is needed; empty for the job's own.
        micro_batch_sizes: Sizes whose peak is listed, the same in all events; None for powers of two.
        device_name: A device, present or not, whose program and memory are traced; None for this machine's.
        model_dir: Folder of the workers' logs; None for the configuration's own.
        fresh: Trace again, even if an unchanged job was traced before.
        on_progress: Called with the workers' progress messages, and before the trace of each number of devices.

    Raises:
        EngineError: The program can be neither traced nor measured. A variant beside the file's own settings says so in
            its event.
        UserProgramError: The program itself fails.
        UserInputError: The job is wrong, its device's memory is unknown, or so many devices cannot share the work.
    """
    config = add_loader_lengths(config, on_progress)
    shared = [
        share_among_devices(config, number) for number in num_devices
    ]  # all are checked before the first is traced
    tracer = _Tracer(config, device_name, model_dir=model_dir, fresh=fresh, on_progress=on_progress)
    if shared:
        traced = []
        for number, one in zip(num_devices, shared, strict=True):
            on_progress({"stage": "trace", "num_devices": number})
            traced.append((one, tracer.trace(one)))
        return tracer.records(traced, micro_batch_sizes)
    if config.variants:
        return _trace_variants(tracer, config, micro_batch_sizes)
    cost_model = tracer.trace(config)
    (record,) = tracer.records([(config, cost_model)], micro_batch_sizes)
    return [record | {"peak_memory_bytes_by_length": tracer.by_length(config, cost_model, record["peak_memory_bytes"])}]


def trace_devices(
    config: Config,
    device_names: Sequence[str],
    *,
    prices: Mapping[str, float] | None = None,
    on_progress: Progress = lambda message: None,
    **given: Any,
) -> list[dict[str, Any]]:
    """Trace a job for each of some devices, none of which need be here; return their `trace` events.

    Args:
        prices: Of an hour of a device, by its name as in `device_names`, in any currency; None for none.
        given: Further arguments of `trace_job`.
    """
    if config.variants:
        raise UserInputError(
            "several devices are compared for one combination of settings, and explore.settings has several",
            hint="name one device, or leave explore.settings out",
        )
    for name in device_names:  # all are checked before the first is traced
        device_by_name(name)
    records = []
    for name in device_names:
        on_progress({"stage": "trace", "device_name": name})
        (record,) = trace_job(config, device_name=name, on_progress=on_progress, **given)
        estimate, price = record["estimate"], (prices or {}).get(name)
        if estimate is not None:
            cost = None if price is None else price / 3600 / estimate["samples_per_s"] * 1e6
            record["estimate"] = estimate | {"price_per_device_hour": price, "cost_per_million_samples": cost}
        records.append(record | {"named_device": name})
    return records


def _trace_variants(tracer: _Tracer, config: Config, micro_batch_sizes: Sequence[int] | None) -> list[dict[str, Any]]:
    on_device = config.on_device(tracer.device_name)  # the file's own job too: `auto` is no device
    variants, traces = on_device.variants, trace_all(on_device, tracer.log_dir, gpu=tracer.gpu, fresh=tracer.fresh)
    known: list[CostModel | str] = [tracer.measure(config, one) if isinstance(one, str) else one for one in traces[:1]]
    for variant, one in zip(variants[1:], traces[1:], strict=True):
        known.append(_try_to_measure(tracer, config.with_variant(variant), one) if isinstance(one, str) else one)
    traced = [TracedVariant.of(variant, trace) for variant, trace in zip(variants, known, strict=True)]
    models = [
        (config.with_variant(variant), one.cost_model)
        for variant, one in zip(variants, traced, strict=True)
        if one.cost_model is not None
    ]
    records = iter(tracer.records(models, micro_batch_sizes))
    unknown = dict.fromkeys(tracer.record(*models[0], ())) | {"event": "trace"} | trace_record(None)
    return [
        (unknown if one.cost_model is None else next(records))
        | {"name": one.name, "settings": dict(one.settings), "reason": one.reason}
        | {"operations_over_file": operations_over_file(traced, number, config.minimum)}
        for number, one in enumerate(traced)
    ]


def _try_to_measure(tracer: _Tracer, config: Config, reason: str) -> CostModel | str:
    """Measure a variant that cannot be traced; return why there is nothing of it where that fails too."""
    try:
        return tracer.measure(config, reason)
    except BexploreError as error:
        return error.message


def share_among_devices(config: Config, num_devices: int) -> Config:
    """Return the job as so many devices share it: the batch of a replica stays, and the global one follows.

    Without `explore.parallelism` they are replicas of DistributedDataParallel with its defaults.
    """
    options, parallelism = config.settings.parallelism, config.job.parallelism
    if options is None and "step" in config.job.model:
        raise UserInputError(
            "a step of your own decides itself how its ranks share the work, and explore.parallelism is absent",
            hint="write explore.parallelism: what makes the step is given the mesh of the ranks",
        )
    takes_the_rest = options is not None and options.data_parallel_shard_degree == -1
    if takes_the_rest and parallelism.data_parallel_replicate_degree == 1:
        parallelism = dataclasses.replace(parallelism, data_parallel_shard_degree=num_devices)
    shared = parallelism.with_ranks(num_devices)
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


class _Tracer:
    """What the traces of one call share: the device, and where their workers write."""

    def __init__(
        self, config: Config, device_name: str | None, *, model_dir: str | None, fresh: bool, on_progress: Progress
    ) -> None:
        folder = run_directory.model_directory(config.mode, model_dir or config.model_dir) / "traces"
        self.log_dir = folder / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
        self.model_dir, self.fresh, self.on_progress = model_dir, fresh, on_progress
        emulated = config.settings.device_name
        self.device: Device | None = None  # that was named; None for the job's own
        if device_name:
            self.device = device_by_name(device_name)
        elif emulated:
            self.device = parse_device_name(emulated)[1]
        self.device_info = (
            _device_info_here(config, self.log_dir) if self.device is None else _device_info_of(self.device)
        )

    @property
    def device_name(self) -> str:
        """The device as torch names it."""
        return str(self.device_info["device"])

    @property
    def gpu(self) -> GpuProperties | None:
        """The device of a CUDA job, present or absent."""
        if self.device is not None:
            return GpuProperties.from_device(self.device)
        return GpuProperties.from_device_info(self.device_info)

    def trace(self, config: Config) -> CostModel:
        """Trace one job, in a worker of its own: the ranks of a process are those of its first job."""
        traced = recall_or_trace(
            self._job(config),
            self.log_dir,
            lambda message: None,
            gpu=self.gpu,
            fresh=self.fresh,
            limit_s=config.settings.trace_time_limit_s,
        )
        return self.measure(config, traced) if isinstance(traced, str) else traced

    def records(
        self, traced: Sequence[tuple[Config, CostModel]], micro_batch_sizes: Sequence[int] | None
    ) -> list[dict[str, Any]]:
        """Return the `trace` event of each job; all list the same sizes."""
        if micro_batch_sizes is None and len(traced) > 1:
            largest = max(self.record(*one, ())["max_micro_batch_size"] or 0 for one in traced)
            own = traced[0][0]
            micro_batch_sizes = listed_sizes(largest, minimum=own.minimum, maximum=own.maximum)
        return [self.record(*one, micro_batch_sizes) for one in traced]

    def record(self, config: Config, cost_model: CostModel, micro_batch_sizes: Sequence[int] | None) -> dict[str, Any]:
        """Return the `trace` event of a job, with the memory budget of one of its ranks."""
        job, parallelism = self._job(config), config.job.parallelism
        budget = resolve_budget(
            config.settings,
            self.device_info,
            num_replicas=config.num_replicas,
            gradient_bytes=count_gradient_bytes(job, cost_model.num_parameters),
            is_traced_for_ranks=parallelism.is_distributed,
        )
        record = trace_record(
            cost_model,
            budget_bytes=budget.budget_bytes,
            judged_by=find_memory_account(job.device),
            minimum=config.minimum,
            maximum=config.maximum,
            micro_batch_sizes=micro_batch_sizes,
        )
        return (
            {"event": "trace", "num_devices": parallelism.num_ranks, "parallelism": dataclasses.asdict(parallelism)}
            | record
            | {"settings": {}}
            | {"memory_budget_bytes": budget.budget_bytes, "why_budget": budget.why}
            | {"estimate": self._estimate(config, job, cost_model, record)}
            | {"notes": [*record["notes"], *_notes(config), *_note_of_batch(cost_model, config.minimum)]}
        )

    def _estimate(
        self, config: Config, job: Job, cost_model: CostModel, record: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the estimated time of a pass at each listed size; None without figures of the device.

        Those of a processor are measured by `bexplore doctor --calibrate`. The compiler's kernels for a processor are
        others than for a device: without Triton there is no estimate.
        """
        is_its_program = cost_model.device == "cuda" or not job.compile.enabled
        device = self.device
        known = device or (recall() if device_kind(job.device) == "cpu" else None)
        if known is None or not (is_its_program or device is None) or not cost_model.kernels:
            return None
        largest, minimum = record["max_micro_batch_size"], record["bounds"][0]
        listed = [int(size) for size in record["peak_memory_bytes"]]
        if largest is None:
            return None
        fitting = candidate_sizes("all", minimum=minimum, maximum=largest)
        given: dict[str, Any] = {
            "replica_batch_size": config.replica_batch_size,
            "network_bytes_per_s": config.settings.network_bandwidth,
        }
        passes = {size: estimate_pass(known, job, cost_model, size, **given) for size in sorted({*listed, *fitting})}
        estimated = {size: one for size, one in passes.items() if one is not None}
        if len(estimated) < len(passes):
            return None
        best = max(fitting, key=lambda size: size / estimated[size].seconds)
        update = estimate_update(known, cost_model)
        return {
            "device_name": known.name,
            "pass_s": {str(size): estimated[size].seconds for size in listed},
            "replica_s": {str(size): estimated[size].replica_s for size in listed},
            "communication": describe_communication(
                estimated[best], job, find_links(known, job, config.settings.network_bandwidth)
            ),
            "update_s": None if update is None else update.seconds,
            "relative_sd": math.hypot(find_program_sd(known), estimated[best].relative_sd),  # of samples_per_s
            "micro_batch_size": best,
            "samples_per_s": best / estimated[best].seconds,
        }

    def by_length(
        self, config: Config, at_longest: CostModel, sizes: Iterable[str]
    ) -> dict[str, dict[str, int]] | None:
        """Return peaks by length of a batch and by size; None where all samples are as long, or untraceable at others.

        The lengths are the longest, and those that half and a tenth of the samples exceed; of a number of tokens the
        shortest, too.
        """
        job = self._job(config)
        if job.lengths is None:
            return None
        memory = trace_lengths(job, at_longest, self.log_dir, self.on_progress, gpu=self.gpu, fresh=self.fresh)
        if memory is None:
            return None
        lengths, sizes = job.lengths, list(sizes)
        shown = dict.fromkeys((lengths.quantile(0.5), lengths.quantile(0.9), lengths.longest))
        if lengths.collation is Collation.TOKENS:
            shown = dict.fromkeys((lengths.extreme_batches(1)[-1].length, *shown))
        return {
            str(length): {size: memory.peak_memory_bytes(lengths.num_rows(int(size), length), length) for size in sizes}
            for length in shown
        }

    def measure(self, config: Config, reason: str) -> CostModel:
        """Return what real steps tell of a job that cannot be traced; raise where they fail."""
        if self.device is not None and _TOO_OLD in reason:
            eager = "the compiler has no kernels for such a device; trace its eager program: set explore.compile: false"
            raise EngineError(f"this job cannot be traced: {reason}", hint=eager)
        return measure_untraced(
            config.on_device(self.device_name),
            reason,
            self.log_dir,
            self.on_progress,
            is_absent=self.device is not None,
        )

    def _job(self, config: Config) -> Job:
        return config.on_device(self.device_name).job


def _notes(config: Config) -> list[str]:
    options, parallelism = config.settings.parallelism, config.job.parallelism
    notes = []
    if options is None and parallelism.is_distributed:
        notes.append("explore.parallelism is absent: each device has a whole copy (DistributedDataParallel)")
    if options is not None and options.mixed_precision_param is not None and not parallelism.is_sharded:
        notes.append(f"{parallelism}: nothing is sharded, so mixed_precision_param is not in force")
    return notes


def _note_of_batch(cost_model: CostModel, micro_batch_size: int) -> list[str]:
    """Return which batch needs most memory, where batches of one size have other numbers of rows."""
    if cost_model.by_length is None:
        return []
    num_rows, length = cost_model.by_length.worst_batch(micro_batch_size)
    rows = f"{counted(num_rows, 'row')} of {length} tokens at size {micro_batch_size}"
    return [f"the peak is that of the batch that needs most memory: {rows}"]


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
    return {"device": "cuda:0"} | describe_absent_memory(device.total_memory_bytes)
