"""The data of a report, read from the files of a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.host.accelerators import published_device
from bexplore.host.json_files import parse_json
from bexplore.job import Job
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.probe import Observation
from bexplore.measurement.profile import Profile
from bexplore.planning.api import plan_as_in_file
from bexplore.planning.step import Plan
from bexplore.run.facts import estimated
from bexplore.run.parts.row import View
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run, program_of_answer
from bexplore.trace.cost_model import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeData:
    """The measurements of one size.

    Attributes:
        observation: Its latest exact probe, else its latest probe, at the speed that the result tells of the size.
        tokens_per_s: Tokens per second of the pass; None where samples are not sequences.
        flops_per_s: Model operations per second of the pass; None without a trace.
        mfu: Model-flops utilization, 0 to 1; None where the peak is unknown.
        hfu: Hardware-flops utilization, which counts recomputation.
    """

    observation: Observation
    tokens_per_s: float | None
    flops_per_s: float | None
    mfu: float | None
    hfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """The data of a run.

    Attributes:
        run: The run on disk.
        meta: Its job, environment and settings.
        job: The job, with the settings of the answer.
        result: The result, or the latest recommendation of an unfinished run; all fields None before the first.
        is_finished: Whether `result` is final.
        observations: Every probe, in order, of all variants.
        confidences: (probes, score) of each recommendation, in order.
        cost_model: The trace of that job; None for none.
        budget_bytes: The memory budget in force; None if unknown.
        names: Settings in words, by variant; empty for a job with one.
        profile: What the last profile of its steps shows; None for none.
        plan: The training by the file's own numbers; None where it gives too few, or the run is unfinished.
    """

    run: Run
    meta: Mapping[str, Any]
    job: Job
    result: RunResult
    is_finished: bool
    observations: tuple[Observation, ...]
    confidences: tuple[tuple[int, int], ...]
    cost_model: CostModel | None
    budget_bytes: int | None
    names: tuple[str, ...] = ()
    profile: Profile | None = None
    plan: Plan | None = None

    @property
    def micro_batch_size(self) -> int | None:
        """Return the recommended size; None for none."""
        return self.result.micro_batch_size

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the search settings; empty if unknown."""
        settings: Mapping[str, Any] = self.meta.get("search_specification", {}).get("settings", {})
        return settings

    @property
    def tolerance(self) -> float:
        """Return the width of the indifference zone, a share of speed."""
        return float(self.settings.get("tolerance", INDIFFERENCE_ZONE))

    @property
    def view(self) -> View:
        """Return what the rows of the result depend on."""
        return self.result.view(self.tolerance, self.settings.get("target_confidence"))

    @property
    def of_answer(self) -> tuple[Observation, ...]:
        """Return the probes that have the settings of the answer."""
        return tuple(item for item in self.observations if item.probe.variant == self.result.choice.variant)

    @property
    def measured(self) -> tuple[Observation, ...]:
        """Return those of them that have times."""
        return tuple(item for item in self.of_answer if item.is_measured)

    @property
    def peak_flops_per_s(self) -> float | None:
        """Return the published peak of the arithmetic that the job uses; None where it is not in the table."""
        return self.job.peak_flops_per_s(published_device(self.result.device_info))

    def sizes(self) -> list[SizeData]:
        """Return the data of each measured size, ascending."""
        latest = {item.micro_batch_size: item for item in sorted(self.measured, key=_is_exact)}
        return [self._size(latest[size]) for size in sorted(latest)]

    def _size(self, item: Observation) -> SizeData:
        if item.is_emulated:
            return SizeData(observation=item, tokens_per_s=None, flops_per_s=None, mfu=None, hfu=None)
        item = estimated(item, self.result.answer.speeds)
        # The trace is of the longest samples: its operations are not those of batches of many lengths.
        model = self.cost_model if self.job.lengths is None else None
        length, peak = self.job.tokens_per_sample, self.peak_flops_per_s
        size, seconds = item.micro_batch_size, item.pass_time_s
        flops_per_s = None if model is None else model.model_flops(size) / seconds
        hardware = None if model is None else model.hardware_flops(size) / seconds
        return SizeData(
            observation=item,
            tokens_per_s=None if length is None else item.samples_per_s * length,
            flops_per_s=flops_per_s,
            mfu=None if peak is None or flops_per_s is None else flops_per_s / peak,
            hfu=None if peak is None or hardware is None else hardware / peak,
        )


def read_report_data(run: Run) -> ReportData:
    """Read a run; only `meta.json` is required.

    A run that was killed has no result: its last recommendation replaces it, without a band and without the device.

    Raises:
        UserInputError: A file of the run is missing or damaged.
    """
    meta, observations = run.meta(), tuple(run.journal.read())
    records = _lines(run.directory / "events.jsonl")
    recommendations = [record for record in records if record.get("event") == "recommendation"]
    answers = [record for record in records if record.get("event") in ("result", "recommendation")]
    stored = run.result()
    result = stored or RunResult.from_record(answers[-1] if answers else {})
    job, cost_model, names = program_of_answer(run, meta, result)
    return ReportData(
        run=run,
        meta=meta,
        job=job,
        result=result,
        is_finished=stored is not None,
        observations=observations,
        confidences=tuple((record["num_probes"], record["confidence"]) for record in recommendations),
        cost_model=cost_model,
        budget_bytes=next(
            (item.memory_budget_bytes for item in reversed(observations) if item.memory_budget_bytes), None
        ),
        names=names,
        profile=run.profile(),
        plan=None if stored is None or stored.micro_batch_size is None else plan_as_in_file(run),
    )


def _is_exact(observation: Observation) -> bool:
    return not observation.probe.compilation.is_for_search


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of lines, without lines that are cut short."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            record = parse_json(line)
        except ValueError:
            continue  # the last line of a run that was killed
        if isinstance(record, dict):
            records.append(record)
    return records
