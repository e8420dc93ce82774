"""What a report shows: the files of a run directory, read, and the belief formed again from its observations."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.batching import INDIFFERENCE_ZONE
from bexplore.exploration.run_directory import Run
from bexplore.host.accelerators import Device, published_device
from bexplore.host.json_files import read_json
from bexplore.job import Job
from bexplore.measurement.probe import Compilation, Observation, Outcome
from bexplore.measurement.statistics import PairedRatio, paired_ratio
from bexplore.search.posterior.credible_band import Band, band_of
from bexplore.search.space import MemoryAccount, MemoryPrior, candidate_sizes
from bexplore.trace.cost_model import CostModel

# The curve is drawn up to this factor beyond the last size that was tried or fits: further out nothing is known.
MARGIN = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeData:
    """What was measured of one size: its exact probe where it has one, else its latest.

    Attributes:
        observation: The probe that speaks for the size.
        tokens_per_s: Tokens per second of the pass; None where samples are not sequences.
        flops_per_s: Model operations per second of the pass; None without a trace.
        mfu: Model-flops utilization, 0 to 1; None where the peak is not known.
        hfu: The same with recomputation counted.
    """

    observation: Observation
    tokens_per_s: float | None
    flops_per_s: float | None
    mfu: float | None
    hfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sizes that took turns, in all probes that timed both.

    Attributes:
        micro_batch_size: The one.
        reference: The other.
        speed_over: Samples/s of the one over those of the other; a pair is a round of turns.
    """

    micro_batch_size: int
    reference: int
    speed_over: PairedRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """A run, read.

    Attributes:
        run: Where it is.
        meta: What was explored.
        job: The same, as a job.
        result: The last words; of an unfinished run its last recommendation; empty where it had none.
        is_finished: Whether they are the last words.
        observations: Every probe, in order.
        confidences: (probes, score) of each recommendation, in order.
        cost_model: The trace; None where there was none.
        device: Published figures of the device; None where it is not in the table.
        device_info: What torch said of the device; empty where unknown.
        budget_bytes: The memory budget in force; None if unknown.
        band: The belief; None where nothing was measured.
    """

    run: Run
    meta: Mapping[str, Any]
    job: Job
    result: Mapping[str, Any]
    is_finished: bool
    observations: tuple[Observation, ...]
    confidences: tuple[tuple[int, int], ...]
    cost_model: CostModel | None
    device: Device | None
    device_info: Mapping[str, Any]
    budget_bytes: int | None
    band: Band | None

    @property
    def micro_batch_size(self) -> int | None:
        """The size to use; None where nothing is recommended."""
        return self.result.get("micro_batch_size")

    @property
    def tolerance(self) -> float:
        """Within which sizes are as good as each other."""
        return float(self.meta.get("search_specification", {}).get("settings", {}).get("tolerance", INDIFFERENCE_ZONE))

    @property
    def measured(self) -> tuple[Observation, ...]:
        """The probes that have times."""
        return tuple(item for item in self.observations if item.is_measured)

    @property
    def peak_flops_per_s(self) -> float | None:
        """Published peak of the arithmetic that the job uses; None where it is not in the table."""
        if self.device is None or self.job.precision == "float32":
            return None
        return self.device.bfloat16_flops_per_s

    def sizes(self) -> list[SizeData]:
        """A line for each measured size, ascending."""
        spokesmen: dict[int, Observation] = {}
        for item in self.measured:
            known = spokesmen.get(item.micro_batch_size)
            if known is None or not (_is_exact(known) and not _is_exact(item)):
                spokesmen[item.micro_batch_size] = item
        return [self._size(spokesmen[size]) for size in sorted(spokesmen)]

    def comparisons(self) -> list[Comparison]:
        """Each size beside the recommended one, where both took turns; ascending.

        Where the recommended size took none, the one that stands in most probes' turns takes its place.
        """
        turns = [item.interleaved_times_s for item in self.measured if item.interleaved_times_s]
        counts = Counter(size for times in turns for size in times)
        if not counts:
            return []
        best = self.micro_batch_size
        most = max(counts, key=lambda size: (counts[size], size))
        reference = best if best is not None and best in counts else most
        compared = []
        for size in sorted(set(counts) - {reference}):
            shared = [times for times in turns if size in times and reference in times]
            own_s, others_s = (
                [seconds / one for times in shared for seconds in times[one]] for one in (size, reference)
            )  # seconds of a sample
            if own_s:
                ratio = paired_ratio(others_s, own_s)
                compared.append(Comparison(micro_batch_size=size, reference=reference, speed_over=ratio))
        return compared

    def _size(self, item: Observation) -> SizeData:
        length, model, peak = self.job.sequence_length, self.cost_model, self.peak_flops_per_s
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
    """Read a run; only `meta.json` must be there.

    Raises:
        UserInputError: A file of the run is missing or is not ours.
    """
    meta, observations = run.meta(), tuple(run.journal.read())
    job = Job.from_dict(meta["job"])
    trace = run.directory / "trace.json"
    model = CostModel.from_dict(read_json(trace)) if trace.exists() else None
    events = _lines(run.directory / "events.jsonl")
    device_info = next((line for line in _lines(run.directory / "log.jsonl") if line.get("event") == "device"), {})
    result = run.result()
    recommendations = [event for event in events if event.get("event") == "recommendation"]
    budget = next((item.memory_budget_bytes for item in reversed(observations) if item.memory_budget_bytes), None)
    return ReportData(
        run=run,
        meta=meta,
        job=job,
        result=result or (recommendations[-1] if recommendations else {}),
        is_finished=result is not None,
        observations=observations,
        confidences=tuple((event["num_probes"], event["confidence"]) for event in recommendations),
        cost_model=model,
        device=published_device({"device": job.device} | dict(device_info)),
        device_info=device_info,
        budget_bytes=budget,
        band=_band(meta, observations, model, budget, str(device_info.get("device", job.device))),
    )


def _band(
    meta: Mapping[str, Any],
    observations: Sequence[Observation],
    model: CostModel | None,
    budget: int | None,
    device: str,
) -> Band | None:
    """The belief after the last probe."""
    if not observations:
        return None
    search_specification = meta.get("search_specification", {})
    rule, settings = search_specification.get("candidates", "all"), search_specification.get("settings", {})
    minimum = min(item.micro_batch_size for item in observations)
    last = _last_size(observations, model, budget, search_specification.get("maximum"))
    given = "all" if isinstance(rule, str) else [size for size in rule if size <= last]
    return band_of(
        observations,
        sizes=candidate_sizes(given, minimum=minimum, maximum=max(last, minimum)),
        memory=MemoryPrior(
            peak_bytes=model.peak_memory_bytes if model else None,
            relative_sd=model.relative_sd if model else MemoryPrior().relative_sd,
            budget_bytes=budget,
            judged_by=judged_account(device, observations),
        ),
        seed=int(settings.get("seed", 0)),
        user_compilation=Compilation(settings.get("user_compilation", Compilation.EXACT)),
    )


def judged_account(device: str, observations: Sequence[Observation]) -> MemoryAccount:
    """The account that was judged, on whichever host the run is read."""
    if all(item.resident_memory_bytes is None for item in observations):
        return MemoryAccount.TENSORS
    return MemoryAccount.RESERVED if device.split(":")[0] == "cuda" else MemoryAccount.RESIDENT


def _last_size(
    observations: Sequence[Observation], model: CostModel | None, budget: int | None, maximum: int | None
) -> int:
    """Where the pictures end: a little beyond the last size that was tried, but not beyond what may be tried."""
    tried = [item.micro_batch_size for item in observations]
    last = max(tried)
    if model is not None and budget is not None and not any(o.outcome is Outcome.OUT_OF_MEMORY for o in observations):
        last = max(last, min(model.max_micro_batch_size(budget), 2 * last))
    last = math.ceil(MARGIN * last)
    return last if maximum is None else max(min(last, int(maximum)), max(tried))


def _is_exact(observation: Observation) -> bool:
    return not observation.probe.compilation.is_for_search


def _lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file of lines; a line that is cut short is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed
        if isinstance(record, dict):
            records.append(record)
    return records
