"""The data of a report, read from the files of a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.diagnosis.bottlenecks import find_bottlenecks_so_far
from bexplore.host.accelerators import published_device
from bexplore.host.json_files import parse_json
from bexplore.job import Job
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.probe import Observation
from bexplore.measurement.profile import Profile
from bexplore.planning.api import plan_as_in_file
from bexplore.planning.evidence import find_measured_bottlenecks
from bexplore.planning.step import Plan
from bexplore.run.facts import SizeFacts, find_size_facts
from bexplore.run.parts.checks import Bottleneck
from bexplore.run.parts.row import View
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run, program_of_answer
from bexplore.trace.cost_model import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """The data of a run."""

    run: Run  # the run on disk
    meta: Mapping[str, Any]  # its job, environment and settings
    job: Job  # the job, with the settings of the answer
    result: RunResult  # the result, or the latest recommendation of an unfinished run; all fields None before the first
    is_finished: bool  # whether `result` is final
    observations: tuple[Observation, ...]  # every probe, in order, of all variants
    confidences: tuple[tuple[int, int], ...]  # (probes, score) of each recommendation, in order
    cost_model: CostModel | None  # the trace of that job; None for none
    budget_bytes: int | None  # the memory budget in force; None if unknown
    bottlenecks: tuple[Bottleneck, ...] = ()  # what limits the speed; of an unfinished run by its probes so far
    names: tuple[str, ...] = ()  # settings in words, by variant; empty for a job with one
    profile: Profile | None = None  # what the last profile of its steps shows; None for none
    # The training by the file's own numbers; None where it gives too few, or the run is unfinished.
    plan: Plan | None = None
    error: str = ""  # why the run ended without a result; empty where it did not
    hint: str = ""  # what to do about it; empty for nothing

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
    def verb(self) -> str:
        """Return how their times are known: `measured` or `estimated`."""
        return "estimated" if self.result.is_estimated else "measured"

    @property
    def peak_flops_per_s(self) -> float | None:
        """Return the published peak of the arithmetic that the job uses; None where it is not in the table."""
        return self.job.peak_flops_per_s(published_device(self.result.device_info))

    @property
    def sizes(self) -> list[SizeFacts]:
        """Return the facts of each measured size, ascending."""
        speeds = self.result.answer.speeds
        return find_size_facts(self.job, self.measured, speeds, self.cost_model, self.peak_flops_per_s)


def read_report_data(run: Run) -> ReportData:
    """Read a run; only `meta.json` is required.

    A run that was killed has no result: its last recommendation replaces it, without a band and without the device. One
    that ended with an error has none: what it recommended before did not hold.

    Raises:
        UserInputError: A file of the run is missing or damaged.
    """
    meta, observations = run.meta(), tuple(run.journal.read())
    records = _lines(run.directory / "events.jsonl")
    recommendations = [record for record in records if record.get("event") == "recommendation"]
    answers = [record for record in records if record.get("event") in ("result", "recommendation")]
    stored = run.result()
    error, hint = run.error() if stored is None else ("", "")
    result = stored or RunResult.from_record(answers[-1] if answers and not error else {})
    job, cost_model, names = program_of_answer(run, meta, result)
    profile = run.profile()
    if stored is not None:
        bottlenecks = (*stored.checks.bottlenecks, *find_measured_bottlenecks(run, profile))
    else:
        own = [item for item in observations if item.probe.variant == result.choice.variant]
        bottlenecks = find_bottlenecks_so_far(job, result, own, cost_model)
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
        bottlenecks=bottlenecks,
        names=names,
        profile=profile,
        plan=None if stored is None or stored.micro_batch_size is None else plan_as_in_file(run),
        error=error,
        hint=hint,
    )


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
