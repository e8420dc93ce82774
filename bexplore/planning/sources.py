"""The costs of a step: as a run has measured them, or as a trace predicts them (operations and memory, no seconds)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bexplore.config.variants import changes_training
from bexplore.engine.process.limits import Progress
from bexplore.errors import UserInputError
from bexplore.estimate.collectives import Interconnect
from bexplore.exploration.memory_budget import count_gradient_bytes
from bexplore.host.accelerators import Device, device_by_name, published_device
from bexplore.job import Job, Parallelism
from bexplore.job.batching import Divisibility
from bexplore.measurement.probe import Observation
from bexplore.planning.costs import OtherSettings, PassCost, PredictedSpeeds, StepCosts, find_peak
from bexplore.run.facts import estimated, estimated_communication, pass_times_by_kind, ranks_of
from bexplore.run.parts.estimate import describe_error
from bexplore.run.parts.ranks import find_ranks
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run, program_of_answer
from bexplore.trace.communication import find_communication
from bexplore.trace.cost_model import CostModel, describe_source, describe_unknown

if TYPE_CHECKING:
    from bexplore.config.config import Config

ALONE = "one rank of several was timed alone: its times hold no communication"
NO_SAMPLE_FITS = (
    "not even one sample fits on a device by the trace: share the model among more, or name a larger device"
)
OTHER_PRECISION = (
    "settings of another precision are left out: operations do not tell how much faster their arithmetic is"
)
COMMAND = "command"  # the workload of a job that is the user's own training command


def read_costs(run: Run) -> StepCosts:
    """Read the costs of a finished run."""
    result = run.result()
    if result is None or result.micro_batch_size is None:
        raise UserInputError(
            f"{run.directory} has no result yet", hint=f"bexplore explore {run.meta().get('typed', '')} finishes it"
        )
    if result.is_emulated:
        raise UserInputError(
            f"{run.directory} ran on an emulated device, and knows no time of a step",
            hint="bexplore plan CONFIG --device-name h100 --mfu 0.4 plans without a run",
        )
    meta = run.meta()
    job, model, _ = program_of_answer(run, meta, result)
    measured = (one for one in run.journal.read() if one.is_measured and one.probe.variant == result.choice.variant)
    own = [estimated(one, result.answer.speeds) for one in measured]
    if not own:
        raise UserInputError(
            f"{run.directory} has no measurement of its answer", hint="explore again with `fresh=True`"
        )
    ran = _find_answer(own, result)
    num_replicas = result.batch.num_replicas or int(meta["search_specification"].get("num_replicas", 1))
    is_fixed = result.batch.passes_per_step is not None and result.batch.global_batch_sizes  # by the command
    batch_size = meta.get("batch_size") or (result.batch.global_batch_sizes[0].global_batch_size if is_fixed else None)
    device = published_device(result.device_info)
    gradient_bytes = count_gradient_bytes(job, None if model is None else model.num_parameters)
    return StepCosts(
        title=str(meta["title"]),
        origin=f"{'estimated' if result.is_estimated else 'measured'} by {run.directory.name}",
        passes=dict(_read_passes(own, ran, job)),
        predicted=_read_predicted(result, meta),
        update_s=ran.update_time_s if ran.update_times_s else None,
        parallelism=_find_parallelism(job, num_replicas),
        holds_communication=bool(ranks_of(ran)) or job.workload == COMMAND,
        num_hosts=len({rank["host"] for rank in ranks_of(ran)}) or None,
        num_replicas=num_replicas,
        model_flops=_per_sample(job, model, "model_flops", result.micro_batch_size),
        hardware_flops=_per_sample(job, model, "hardware_flops", result.micro_batch_size),
        num_parameters=None if model is None else model.num_parameters,
        gradient_bytes=None if gradient_bytes is None else gradient_bytes / job.parallelism.tensor_parallel_degree,
        num_blocks=0 if model is None else model.num_blocks,
        cost_model=model,
        memory_budget_bytes=ran.memory_budget_bytes,
        device_name=str(result.device_info.get("device_name", "")),
        interconnect=_find_links(device, meta["search_specification"].get("network_bandwidth")),
        is_on_cpu=str(result.device_info.get("device", job.device)).startswith("cpu"),
        precision=job.precision,
        peak_flops_per_s=find_peak(job, None if device is None else device.bfloat16_flops_per_s),
        tokens_per_sample=job.tokens_per_sample,
        micro_batch_size=result.micro_batch_size,
        batch_size=batch_size,
        max_steps=_count_steps(result, num_replicas, batch_size),
        divisibility=Divisibility(result.batch.divisibility or Divisibility.STRICT),
        other_settings=tuple(_compare_settings_of_run(result, ran)),
        notes=(
            *_note_estimate(ran.details["estimate"] if ran.is_estimated else None),
            *((ALONE,) if job.parallelism.is_distributed and not ranks_of(ran) and not ran.is_estimated else ()),
            *(() if model is None else describe_unknown(model.unknown)),
        ),
    )


def _find_answer(own: Sequence[Observation], result: RunResult) -> Observation:
    """Return the observation that verified the answer; the last one of the size where none did."""
    of_size = [one for one in own if one.micro_batch_size == result.micro_batch_size] or list(own)
    return ([one for one in of_size if not _is_for_search(one)] or of_size)[-1]


def _read_passes(own: Sequence[Observation], ran: Observation, job: Job) -> Iterator[tuple[int, PassCost]]:
    """Yield the cost of a pass of each size that ran, in the answer's program.

    The search's program has another speed: what ran in it is scaled by the ratio of both at the answer.
    """
    of_answer = [one for one in own if one.micro_batch_size == ran.micro_batch_size]
    in_search_s = [one.pass_time_s for one in of_answer if one.probe.compilation.is_for_search]
    scale = ran.pass_time_s / float(np.median(in_search_s)) if in_search_s and not _is_for_search(ran) else 1.0
    for size in sorted({one.micro_batch_size for one in own}):
        last = min(
            (one for one in own if one.micro_batch_size == size),
            key=lambda one: (_is_for_search(one), -one.probe.number),
        )
        parallel = find_ranks(job.parallelism, last, own)
        exposed_s = None if parallel is None else parallel.exposed_communication_s
        holds = bool(ranks_of(last)) or job.workload == COMMAND
        cost = _read_pass_of_ranks(last, exposed_s, job.parallelism) if holds else _read_pass(last)
        yield size, _scale(cost, scale if _is_for_search(last) else 1.0)


def _read_pass(one: Observation) -> PassCost:
    """Return the cost of a pass of a rank that communicates with none."""
    inner_s, last_s = pass_times_by_kind(one)
    exchanged = estimated_communication(one)
    if exchanged is not None:
        inner_s = last_s = one.pass_time_s * exchanged["replica_s"] / one.details["estimate"]["pass_s"]
    seconds = next(time for time in (inner_s, last_s, one.pass_time_s) if time is not None)
    return PassCost(
        seconds=seconds,
        last_s=one.pass_time_s if last_s is None else last_s,
        is_exact=not _is_for_search(one),
        is_estimated=one.is_estimated,
        peak_bytes=one.peak_memory_bytes,
    )


def _read_pass_of_ranks(one: Observation, exposed_s: float | None, parallelism: Parallelism) -> PassCost:
    """Return the cost of a pass of ranks that ran together, with what it holds of communication.

    Args:
        exposed_s: Communication of a pass in the mean over a step that computation does not hide: what a pass of all
            ranks takes longer than that of one alone; None where none ran alone.
    """
    inner_s, last_s = pass_times_by_kind(one)
    mean_s = None if exposed_s is None else max(0.0, exposed_s)
    steps = (one.details.get("parallel") or {}).get("accumulation_steps") or 1
    if last_s is None:  # passes do not differ: gradients are reduced in each, or nobody knows
        seconds, last_s, inner_exposed_s = one.pass_time_s, one.pass_time_s, mean_s
    elif inner_s is not None and parallelism.is_replicated_only:  # nothing is exchanged before the last pass
        seconds, inner_exposed_s = inner_s, 0.0
    elif inner_s is not None:
        seconds = inner_s
        inner_exposed_s = None if mean_s is None else max(0.0, mean_s - (last_s - inner_s) / steps)
    else:  # one pass a step: what others would hold of it, by the bytes
        share = _share_of_every_pass(parallelism)
        inner_exposed_s = None if mean_s is None else mean_s * share
        seconds = last_s if mean_s is None else last_s - mean_s * (1 - share)
    return PassCost(
        seconds=seconds,
        last_s=last_s,
        exposed_s=inner_exposed_s,
        is_exact=not _is_for_search(one),
        is_estimated=one.is_estimated,
        peak_bytes=one.peak_memory_bytes,
    )


def _share_of_every_pass(parallelism: Parallelism) -> float:
    """Return the bytes that a rank sends in a pass which reduces nothing, over those of the last one."""
    exchanged = find_communication(parallelism, 1.0)
    return exchanged.sent_bytes(is_last=False) / (exchanged.sent_bytes(is_last=True) or 1.0)


def _scale(cost: PassCost, scale: float) -> PassCost:
    exposed_s = None if cost.exposed_s is None else scale * cost.exposed_s
    return dataclasses.replace(cost, seconds=scale * cost.seconds, last_s=scale * cost.last_s, exposed_s=exposed_s)


def _read_predicted(result: RunResult, meta: Mapping[str, Any]) -> PredictedSpeeds | None:
    band = result.search.throughput_band
    if band is None:
        return None
    is_free = meta.get("search_specification", {}).get("candidates", "all") == "all"
    candidates = None if is_free else frozenset(band.sizes)
    return PredictedSpeeds(sizes=band.sizes, samples_per_s=band.middle, fits=band.fits, candidates=candidates)


def _is_for_search(one: Observation) -> bool:
    return one.probe.compilation.is_for_search


def _per_sample(job: Job, model: CostModel | None, name: str, micro_batch_size: int) -> float | None:
    """Return the operations of a sample; None where they differ with its length, as the trace is of the longest."""
    if model is None or job.lengths is not None or not model.has_operations:
        return None
    return float(getattr(model, name)(micro_batch_size)) / micro_batch_size


def _find_parallelism(job: Job, num_replicas: int) -> Parallelism:
    """Return how the ranks that were timed share the work; those of a command are taken for whole copies."""
    if job.workload != COMMAND:
        return job.parallelism
    return Parallelism(data_parallel_replicate_degree=num_replicas)


def _count_steps(result: RunResult, num_replicas: int, batch_size: int | None) -> int | None:
    if result.answer.training_samples is None or not batch_size:
        return None
    return max(1, round(result.answer.training_samples * num_replicas / batch_size))


def _compare_settings_of_run(result: RunResult, ran: Observation) -> Iterator[OtherSettings]:
    """Yield what other settings of the run gain or cost, the fastest size of each, and eager passes."""
    best: dict[str, Any] = {}
    for point in result.choice.pareto_front:
        name = str(dict(point.settings))
        if dict(point.settings) != dict(result.choice.settings):
            best[name] = max(best.get(name, point), point, key=lambda one: one.samples_per_s)
    for point in best.values():
        yield OtherSettings(
            settings=dict(point.settings),
            micro_batch_size=point.micro_batch_size,
            time_share=ran.samples_per_s / point.samples_per_s,
            is_measured=point.ran,
            changes_training=tuple(changes_training(point.settings, result.choice.settings)),
        )
    if result.program.eager is not None and result.program.eager.over_compiled is not None:
        yield OtherSettings(
            settings={"compile": False},
            micro_batch_size=ran.micro_batch_size,
            time_share=1.0 / result.program.eager.over_compiled,
            is_measured=True,
        )


def trace_costs(
    config: Config, *, device_name: str | None, model_dir: str | None, on_progress: Progress = lambda message: None
) -> StepCosts:
    """Trace a job, or recall its trace, and return what it tells of the steps."""
    # Here, since these imports take longer than a plan of a run.
    from bexplore.actions.trace import trace_job

    records = trace_job(config, device_name=device_name, model_dir=model_dir, on_progress=on_progress)
    own, job = records[0], config.job
    largest = config.fixed_size or int(own["max_micro_batch_size"] or 0)
    notes = {NO_SAMPLE_FITS: not largest, OTHER_PRECISION: any(_has_other_precision(one, own) for one in records[1:])}
    present = published_device({"device": own["device"], "device_name": own["device_name"]})
    device = device_by_name(device_name) if device_name else present
    gradient_bytes = count_gradient_bytes(job, own["num_parameters"])
    return StepCosts(
        title=f"{config.path.name}: {own['num_parameters']:,} parameters",
        origin=f"predicted by {_describe_source(own, config)}",
        passes=dict(_read_estimates(own)),
        predicted=_predict_by_estimates(own),
        update_s=(own.get("estimate") or {}).get("update_s"),
        memory_budget_bytes=own["memory_budget_bytes"] if own.get("estimate") else None,
        parallelism=job.parallelism,
        num_replicas=config.num_replicas,
        model_flops=None if job.lengths is not None else own["flops_per_sample"],  # those of the longest sample
        hardware_flops=None if job.lengths is not None else own["hardware_flops_per_sample"],
        num_parameters=own["num_parameters"],
        gradient_bytes=None if gradient_bytes is None else gradient_bytes / job.parallelism.tensor_parallel_degree,
        num_blocks=own["num_blocks"],
        sizes=largest,
        device_name=own["device_name"] if device is None else device.name,
        interconnect=_find_links(device, config.settings.network_bandwidth),
        is_on_cpu=device is None and not own["device_name"],
        precision=job.precision,
        peak_flops_per_s=None if device is None else find_peak(job, device.bfloat16_flops_per_s),
        tokens_per_sample=job.tokens_per_sample,
        micro_batch_size=config.fixed_size,
        batch_size=config.batch_size,
        max_steps=config.max_steps,
        divisibility=config.divisibility,
        other_settings=tuple(_compare_traced_settings(records)),
        notes=(
            *_note_estimate(own.get("estimate")),
            *own["notes"],
            *(note for note, applies in notes.items() if applies),
        ),
    )


def _find_links(device: Device | None, network_bytes_per_s: float | None) -> Interconnect | None:
    return None if device is None else Interconnect.find(device, network_bytes_per_s)


def _read_estimates(record: Mapping[str, Any]) -> Iterator[tuple[int, PassCost]]:
    """Yield the cost of a pass of each size that a `trace` event has an estimate of, where it fits."""
    estimate = record.get("estimate")
    for size, seconds in (estimate or {"replica_s": {}})["replica_s"].items():
        if int(size) <= record["max_micro_batch_size"]:
            peak_bytes = record["peak_memory_bytes"][size]
            cost = PassCost(seconds=seconds, last_s=seconds, is_exact=False, is_estimated=True, peak_bytes=peak_bytes)
            yield int(size), cost


def _predict_by_estimates(record: Mapping[str, Any]) -> PredictedSpeeds | None:
    passes = dict(_read_estimates(record))
    if not passes:
        return None
    speeds = tuple(size / cost.seconds for size, cost in passes.items())
    return PredictedSpeeds(sizes=tuple(passes), samples_per_s=speeds, fits=(1.0,) * len(passes))


def _note_estimate(estimate: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not estimate:
        return ()
    error = describe_error(estimate["relative_sd"])
    return (f"seconds of passes are estimated for {estimate['device_name']}, not run, {error}",)


def _describe_source(record: Mapping[str, Any], config: Config) -> str:
    if not record.get("measured_at"):
        return f"a trace of {config.path.name}"
    return f"{config.path.name}: {describe_source(record['measured_at'], record['why_untraced'])}"


def _has_other_precision(record: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    return bool(record["settings"].get("precision") != own["settings"].get("precision"))


def _compare_traced_settings(records: Sequence[Mapping[str, Any]]) -> Iterator[OtherSettings]:
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
