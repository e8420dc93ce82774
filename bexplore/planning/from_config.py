"""The costs of a step as a trace predicts them: operations and memory, and no seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bexplore.actions.one_shot import trace_once, trace_variants
from bexplore.config.config import Config
from bexplore.config.sections.variants import changes_training
from bexplore.engine.process.timeouts import Progress
from bexplore.exploration.memory_budget import gradient_bytes_of
from bexplore.host.accelerators import device_by_name, published_device
from bexplore.planning.step_costs import OtherSettings, StepCosts, peak_of


def costs_of_config(
    config: Config, *, device_name: str | None, model_dir: str | None, on_progress: Progress = lambda message: None
) -> StepCosts:
    """Trace a job, or recall its trace, and return what it tells of the steps.

    Args:
        device_name: A device, present or not; None for this machine's.
        model_dir: Folder of the worker's log; None for the configuration's own.
        on_progress: Called with the workers' progress messages.

    Raises:
        BexploreError: As `trace_once`.
    """
    options: dict[str, Any] = {"micro_batch_sizes": None, "device_name": device_name, "model_dir": model_dir}
    options["on_progress"] = on_progress
    records = trace_variants(config, **options) if config.variants else [trace_once(config, **options)]
    own, job = records[0], config.job
    present = published_device({"device": own["device"], "device_name": own["device_name"]})
    device = device_by_name(device_name) if device_name else present
    return StepCosts(
        title=f"{config.path.name}: {own['num_parameters']:,} parameters",
        origin=f"predicted by a trace of {config.path.name}",
        parallelism=job.parallelism,
        num_replicas=config.num_replicas,
        model_flops=None if job.lengths is not None else own["flops_per_sample"],  # those of the longest sample
        hardware_flops=None if job.lengths is not None else own["hardware_flops_per_sample"],
        num_parameters=own["num_parameters"],
        gradient_bytes=gradient_bytes_of(job, own["num_parameters"]),
        sizes=_largest(config, own),
        device_name=own["device_name"] if device is None else device.name,
        is_on_cpu=device is None and not own["device_name"],
        precision=job.precision,
        peak_flops_per_s=None if device is None else peak_of(job, device.bfloat16_flops_per_s),
        tokens_per_sample=job.tokens_per_sample,
        micro_batch_size=config.fixed_size,
        batch_size=config.batch_size,
        max_steps=config.max_steps,
        divisibility=config.divisibility,
        other_settings=tuple(_other_settings(records)),
        notes=(*own["notes"], *_notes(config, records)),
    )


def _largest(config: Config, record: Mapping[str, Any]) -> int:
    """Return the file's own size, or the largest that fits by the trace."""
    return config.fixed_size or int(record["max_micro_batch_size"] or 0)


def _notes(config: Config, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    own = records[0]
    if not _largest(config, own):
        yield "not even one sample fits on a device by the trace: share the model among more, or name a larger device"
    if any(_has_other_precision(record, own) for record in records[1:]):
        yield "settings of another precision are left out: operations do not tell how much faster their arithmetic is"


def _has_other_precision(record: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    name = "precision"
    return bool(record["settings"].get(name) != own["settings"].get(name))


def _other_settings(records: Sequence[Mapping[str, Any]]) -> Iterator[OtherSettings]:
    """Yield what other settings of the same precision cost by their operations, used as well as the job's own."""
    own = records[0]
    for record in records[1:]:
        if _has_other_precision(record, own):
            continue
        if record.get("operations_over_file") and record["max_micro_batch_size"]:
            yield OtherSettings(
                settings=record["settings"],
                micro_batch_size=record["max_micro_batch_size"],
                time_share=record["operations_over_file"],
                is_measured=False,
                changes_training=tuple(changes_training(record["settings"], own["settings"])),
            )
