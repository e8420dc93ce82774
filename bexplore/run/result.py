"""`RunResult`: the answer of a run, as its `result` event and its `result.json` hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.config.variants import name_settings
from bexplore.errors import UserInputError
from bexplore.host.records import from_record, to_record
from bexplore.measurement.probe import Observation, Outcome
from bexplore.run.facts import Facts, estimated_communication, ranks_of
from bexplore.run.journal import Journal
from bexplore.run.parts.answer import AnswerPart
from bexplore.run.parts.batch import BatchPart
from bexplore.run.parts.checks import ChecksPart
from bexplore.run.parts.choice import ChoicePart
from bexplore.run.parts.estimate import EstimatePart
from bexplore.run.parts.lengths import LengthsPart, find_lengths
from bexplore.run.parts.memory import MemoryPart
from bexplore.run.parts.program import ProgramPart
from bexplore.run.parts.ranks import RanksPart, find_ranks, one_rank_caution
from bexplore.run.parts.row import Row, View
from bexplore.run.parts.search import SearchPart
from bexplore.units import counted

# Parts whose fields stand at the top of the record, where scripts read them; the others are objects of their own.
AT_TOP = {
    "answer": AnswerPart,
    "search": SearchPart,
    "memory": MemoryPart,
    "batch": BatchPart,
    "program": ProgramPart,
    "checks": ChecksPart,
    "choice": ChoicePart,
}
_APART = ("parallel", "lengths", "estimate", "warnings", "device_info", "run_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run, in parts. None means unknown or not applicable, never 0."""

    answer: AnswerPart = field(default_factory=AnswerPart)  # the recommended size, its speed and its score
    search: SearchPart = field(default_factory=SearchPart)  # how the search went
    memory: MemoryPart = field(default_factory=MemoryPart)  # of the recommended size
    batch: BatchPart = field(default_factory=BatchPart)  # the global batch sizes that are valid with it
    program: ProgramPart = field(default_factory=ProgramPart)  # what ran it
    checks: ChecksPart = field(default_factory=ChecksPart)  # gradients, the data loader, limits other than the size
    choice: ChoicePart = field(default_factory=ChoicePart)  # the settings that were explored together with the size
    parallel: RanksPart | None = None  # its ranks; None for a job of one device
    lengths: LengthsPart | None = None  # the lengths of its samples; None where all are as long
    estimate: EstimatePart | None = None  # what was estimated for a device that is not here; None where it was run
    warnings: tuple[str, ...] = ()  # facts to know before the numbers are used
    # Torch's description of the device: `device`, `device_name`, `capability`, memory and more.
    device_info: Mapping[str, Any] = field(default_factory=dict)
    run_dir: str = ""  # the run directory

    @classmethod
    def find(cls, facts: Facts, run_dir: str) -> RunResult:
        """Return all that needs no further measurement."""
        job, ran, best = facts.config.job, facts.ran, facts.best
        parallelism = job.training_parallelism if facts.config.is_only_estimated else job.parallelism
        return cls(
            answer=AnswerPart.find(facts),
            search=SearchPart.find(facts),
            memory=MemoryPart.find(facts),
            batch=BatchPart.find(facts),
            program=ProgramPart.find(facts),
            choice=ChoicePart.find(facts),
            parallel=None if best is None else find_ranks(parallelism, ran, facts.own),
            lengths=None
            if best is None
            else find_lengths(
                facts.config.job,
                best.micro_batch_size,
                ran,
                is_in_tokens=facts.config.request.is_in_tokens,
                memory=facts.memory_by_length,
            ),
            estimate=EstimatePart.find(facts),
            warnings=(*_cautions(facts), *facts.searched.warnings),
            device_info=dict(facts.device_info),
            run_dir=run_dir,
        )

    @property
    def micro_batch_size(self) -> int | None:
        """The size to use; None where an interruption came before the first measurement."""
        return self.answer.micro_batch_size

    @property
    def is_emulated(self) -> bool:
        """Whether the device was emulated: the size is the largest that fits, and no speed is known."""
        return bool(self.device_info.get("is_emulated"))

    @property
    def is_estimated(self) -> bool:
        """Whether nothing ran: its speeds are those of a model, its memory is that of a trace."""
        return bool(self.device_info.get("is_estimated"))

    @property
    def has_run(self) -> bool:
        """Whether its speeds were measured on a device."""
        return not (self.is_emulated or self.is_estimated)

    @property
    def smallest_out_of_memory(self) -> int | None:
        """The smallest size beyond the answer for which memory did not suffice; None where none was tried."""
        groups = (one.micro_batch_sizes for one in self.search.failures if one.outcome == Outcome.OUT_OF_MEMORY)
        return min((size for sizes in groups for size in sizes if size > (self.micro_batch_size or 0)), default=None)

    def view(self, tolerance: float, target_confidence: float | None = None) -> View:
        """Return what its rows depend on beside their own part."""
        return View(
            tolerance=tolerance,
            target_confidence=target_confidence,
            is_emulated=self.is_emulated,
            is_estimated=self.is_estimated,
            is_of_command=self.batch.num_replicas is not None,
            num_replicas=self.batch.num_replicas or 1,
        )

    def rows(self, view: View) -> Iterator[Row]:
        """Yield the rows of all parts, in the order of the summary."""
        if self.estimate is not None:
            yield from self.estimate.rows(view, self.micro_batch_size)
        parts = (self.search, self.choice, self.answer, self.memory, self.lengths, self.parallel, self.program)
        for part in (*parts, self.checks):
            if part is not None:
                yield from part.rows(view)
        yield from (Row("warning", text) for text in self.warnings)

    def probe_rows(self) -> list[dict[str, Any]]:
        """Return a flat dictionary for each probe of the run, in order, read from its folder: the rows of a table.

        Times are in seconds, memory is in bytes; None means unknown or not applicable.

        Raises:
            UserInputError: They are not there: the run was moved or removed, or this program has changed its folder.
        """
        journal = Journal(Path(self.run_dir) / "journal.jsonl")
        rows = [_row(item) for item in journal.read()]
        if not rows and self.search.num_probes:
            raise UserInputError(
                f"{journal.path.absolute()} has none of the {counted(self.search.num_probes, 'probe')} of this result",
                hint="was the run moved, or the working folder changed? dataclasses.replace(result, run_dir=...) names "
                "where the run lies now",
            )
        return rows

    def as_record(self) -> dict[str, Any]:
        """Return the `result` event."""
        record = to_record(self)
        at_top = {name: value for part in AT_TOP for name, value in record.pop(part).items()}
        return {"event": "result"} | at_top | record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RunResult:
        """Rebuild a result from its event, or from the fields that a `recommendation` event shares with it.

        Raises:
            UserInputError: A field has another type.
        """
        rest = {name: record[name] for name in _APART if name in record}
        try:
            parts: dict[str, Any] = {
                name: from_record(kind, record, ignore_unknown=True) for name, kind in AT_TOP.items()
            }
            return dataclasses.replace(from_record(cls, rest), **parts)
        except (TypeError, ValueError) as error:
            raise UserInputError(
                f"the result of a run cannot be read: {error}",
                hint="restore result.json, or start over with `fresh=True`",
            ) from error


def _row(item: Observation) -> dict[str, Any]:
    has_speed = item.is_measured and not item.is_emulated
    return {
        "number": item.probe.number,
        "micro_batch_size": item.micro_batch_size,
        "settings": name_settings(item.details.get("settings", {})),
        "purpose": item.probe.purpose.value,
        "program": item.program_name,
        "outcome": item.outcome.value,
        "reason": item.reason,
        "samples_per_s": item.samples_per_s if has_speed else None,
        "pass_time_s": item.pass_time_s if has_speed else None,
        "update_time_s": item.update_time_s if has_speed and item.update_times_s else None,
        "num_passes": len(item.pass_times_s),
        "compile_time_s": item.compile_time_s,
        "elapsed_s": item.elapsed_s,
        "peak_memory_bytes": item.peak_memory_bytes,
        "resident_memory_bytes": item.resident_memory_bytes,
        "memory_budget_bytes": item.memory_budget_bytes,
    }


def _cautions(facts: Facts) -> Iterator[str]:
    """Yield what an estimate, an emulated device, or one rank of several that ran alone, means for the numbers."""
    if facts.device_info.get("is_emulated"):
        yield (
            f"{facts.device_info.get('device_name')} is emulated: its memory, and which sizes fit, are as on a real "
            "one; no speed was measured, and a smaller size may be as fast: bexplore explore on the device itself "
            "finds it"
        )
    if facts.device_info.get("is_estimated"):
        longest = "; all samples are taken to be as long as the longest" if facts.config.job.lengths else ""
        name = facts.device_info.get("device_name")
        yield f"estimated for {name}, not run: explore on the device itself before a long training{longest}"
    parallelism, measured = facts.config.job.parallelism, [one for one in facts.observations if one.is_measured]
    exchanged = next(filter(None, map(estimated_communication, measured)), None)
    if exchanged is not None and not exchanged["is_complete"]:
        yield f"communication is counted over {exchanged['links']}: set explore.network_bandwidth"
    if parallelism.is_distributed and measured and exchanged is None and not any(map(ranks_of, measured)):
        yield one_rank_caution(parallelism)
