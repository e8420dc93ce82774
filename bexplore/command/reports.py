"""What the observer wrote: one record for each process, rank and error of a probe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bexplore.host.json_files import parse_json
from bexplore.units import counted

Place = tuple[str, int]  # host and process id: containers may have equal ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of a rank."""

    ended_s: float  # when its last update ended, on the clock of the process or of its device
    num_passes: int
    num_fetches: int  # micro-batches that its loaders returned
    num_samples: int  # sum of their leading dimensions
    num_elements: int  # elements of their tensors
    num_updates: int  # calls of optimizers
    update_s: float  # seconds of these calls, without backward passes inside of them
    evaluation_s: float = 0.0  # seconds of an evaluation that ran in it
    read_s: float = 0.0  # seconds in which its thread read its batches from loaders, or waited for them
    # Fewest passes before one of its updates: those of one optimizer, where several train on the same batch
    num_passes_of_update: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The record of a process that trained."""

    # `observed` after the last step that was asked for; `ended` where the training ended before; `no_step` after many
    # passes; `no_batch` after epochs without one
    outcome: str
    rank: int
    world_size: int  # ranks that the training has by its own account
    steps: tuple[Step, ...]  # its optimizer steps in order
    rows: Mapping[int, int]  # leading dimension -> number of micro-batches from loaders that had it
    # Leading dimension and elements of the inputs of the model, where those were watched
    forward_rows: tuple[tuple[int, int], ...]
    num_samples: int | None  # of an epoch of the loader that its batches came from; None if unknown
    digests: tuple[str, ...]  # of its first batches; equal ones are one replica's work
    memory: Mapping[str, int | None]  # bytes by name: peaks, before and after, and counts of the allocator
    record: Mapping[str, Any]  # all of it
    # Fetches and passes of its process before this probe, in a start that serves several sizes
    before: Mapping[str, int] = field(default_factory=dict)
    # The first step in which its model was given a batch of the probe's size; None if none was seen
    own_from_step: int | None = None
    awaits_own_batches: bool = False  # whether the calls of its model are watched for that
    # Samples, tokens without padding, and elements of its micro-batches, in the order of reading; empty if unknown
    tokens: tuple[tuple[int, int, int], ...] = ()
    elements_of_parts: tuple[int, ...] = ()  # by call of `forward_rows`, with those of earlier parts of its batch

    @property
    def num_loader_workers(self) -> int:
        """Processes that load its batches; 0 where it loads them itself."""
        return int(self.record.get("read_ahead", {}).get("num_workers", 0))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Rank:
        """Read a record."""
        return cls(
            outcome=record["outcome"],
            rank=record["rank"],
            world_size=record["world_size"],
            steps=tuple(Step(**step) for step in record["steps"]),
            rows={int(rows): count for rows, count in record["rows"].items()},
            forward_rows=tuple((rows, elements) for rows, elements in record["forward_rows"]),
            num_samples=record["num_samples"],
            digests=tuple(record["digests"]),
            memory=record["memory"],
            before=record["before"],
            own_from_step=record["own_from_step"],
            awaits_own_batches=record["awaits_own_batches"],
            tokens=tuple((rows, num_tokens, elements) for rows, num_tokens, elements in record["tokens"]),
            elements_of_parts=tuple(record["elements_of_parts"]),
            record=record,
        )


def share_batches(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return the ranks with the batches that each of them trained with, where a few ranks load those of all.

    Source: `dispatch_batches` of accelerate, by which the first rank reads a batch for every rank and sends them on.
    """
    loading = [rank for rank in ranks if rank.rows]
    num_served = len(ranks) // len(loading) if loading else 1
    num_fetches = sum(step.num_fetches for rank in loading for step in rank.steps)
    num_passes = sum(step.num_passes for rank in loading for step in rank.steps)
    if num_served == 1 or not num_passes or round(num_fetches / num_passes) != num_served:
        return tuple(ranks)
    return tuple(_divide_batches(rank, num_served) if rank.rows else rank for rank in ranks)


def _divide_batches(rank: Rank, num_served: int) -> Rank:
    steps = (
        replace(
            step,
            num_fetches=step.num_fetches // num_served,
            num_samples=step.num_samples // num_served,
            num_elements=step.num_elements // num_served,
        )
        for step in rank.steps
    )
    num_samples = None if rank.num_samples is None else rank.num_samples // num_served
    return replace(rank, steps=tuple(steps), num_samples=num_samples, tokens=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """All that the processes of a probe have written so far."""

    hellos: tuple[Mapping[str, Any], ...] = ()  # one record for each process that imported torch
    ranks: tuple[Rank, ...] = ()  # by rank
    errors: tuple[Mapping[str, Any], ...] = ()  # the first error of each process, the earliest first
    # Optimizer steps, passes, batches read for passes, other signs of life so far, and as the third those that the
    # program keeps, too, by process
    counts: Mapping[Place, tuple[int, ...]] = field(default_factory=dict)

    @property
    def num_steps(self) -> dict[Place, int]:
        """Optimizer steps so far, by process that trains; one that reads alone may serve others."""
        return {place: counts[0] for place, counts in self.counts.items() if counts[0] or counts[1]}

    @property
    def num_batches(self) -> int:
        """Batches that were read for passes so far."""
        return sum(counts[2] for counts in self.counts.values())

    @property
    def has_batch(self) -> bool:
        """Whether a batch was read for a pass."""
        return any(counts[4] for counts in self.counts.values())

    @property
    def world_size(self) -> int:
        """Ranks that the training has by its own account; 0 before the first record."""
        return max((rank.world_size for rank in self.ranks), default=0)

    @property
    def num_ranks(self) -> int:
        """Ranks that have shown themselves so far, those that trained no step included."""
        started = {str(hello["rank"]) for hello in self.hellos if hello["rank"] is not None}
        return max(self.world_size, len(started))

    @property
    def are_whole(self) -> bool:
        """Whether every rank has its record."""
        return bool(self.ranks) and len({rank.rank for rank in self.ranks}) >= self.world_size


class ReportsReader:
    """Reads the reports of one probe again and again; parses a record only where it is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, tuple[int, Any]] = {}  # name -> time of its last change, and what it holds

    def read(self) -> Reports:
        """Return the reports so far."""
        found = sorted(os.scandir(self._folder), key=lambda entry: entry.name)
        counts = (_read_counts(entry) for entry in found if entry.name.startswith("steps-"))
        return Reports(
            hellos=tuple(self._parse_records(found, "hello-", dict)),
            ranks=tuple(sorted(self._parse_records(found, "rank-", Rank.from_record), key=lambda rank: rank.rank)),
            errors=tuple(sorted(self._parse_records(found, "error-", dict), key=lambda error: error["at_s"])),
            counts=dict(one for one in counts if one is not None),
        )

    def _parse_records(self, found: Sequence[os.DirEntry[str]], kind: str, read: Callable[[Any], Any]) -> Iterator[Any]:
        for entry in found:
            if not entry.name.startswith(kind) or not entry.name.endswith(".json"):
                continue
            changed_ns, record = self._records.get(entry.name, (0, None))
            now_ns = entry.stat().st_mtime_ns
            if now_ns != changed_ns:
                try:
                    record = read(parse_json(Path(entry.path).read_text()))
                except (ValueError, KeyError, TypeError, AttributeError):
                    record = None  # not the observer's: a full disk cut it, or the program wrote it
                self._records[entry.name] = (now_ns, record)
            if record is not None:
                yield record


def _read_counts(entry: os.DirEntry[str]) -> tuple[Place, tuple[int, ...]] | None:
    host, _, pid = entry.name.removeprefix("steps-").rpartition("-")
    words = Path(entry.path).read_text().split()
    return ((host, int(pid)), tuple(map(int, words))) if words else None


def find_num_samples(ranks: Sequence[Rank]) -> int | None:
    """Return the samples that an epoch has on every rank; None if unknown."""
    return min((rank.num_samples for rank in ranks if rank.num_samples is not None), default=None)


def describe_memory(reports: Reports, *, needs_least: bool) -> dict[str, Any]:
    """Return the peaks of the rank that needs most: tensors; reserved (CUDA), or resident above torch itself (CPU).

    What is held is unknown where a larger size ran in the process before, which does not give all of it back.
    """
    peaks = [rank.memory.get("peak_bytes") for rank in reports.ranks]
    held = [rank.memory.get("reserved_peak_bytes") or _count_resident_bytes(rank) for rank in reports.ranks]
    return {
        "peak_memory_bytes": max((one for one in peaks if one is not None), default=None),
        "resident_memory_bytes": max((one for one in held if one is not None and needs_least), default=None),
        "num_alloc_retries": max(int(rank.memory.get("num_alloc_retries") or 0) for rank in reports.ranks),
    }


def _count_resident_bytes(rank: Rank) -> int | None:
    peak, before = rank.memory.get("resident_peak_bytes"), rank.memory.get("resident_at_attach_bytes")
    return None if peak is None or before is None else max(0, peak - before)


def describe_compiler(reports: Reports) -> dict[str, Any]:
    """Return the compiler's counts on rank 0; a training that compiled nothing has none."""
    counters = reports.ranks[0].record["compiler"]
    if not counters or not counters["num_graphs"]:
        return {"ran_eagerly": True}
    return {
        "ran_eagerly": False,
        "num_graphs": counters["num_graphs"],
        "num_graph_breaks": counters["num_graph_breaks"],
        "graph_break_reasons": tuple(counters["graph_break_reasons"]),
        "num_recompiles": counters["num_recompiles"],
    }


def describe_swallowed(reports: Reports) -> str:
    """Return what the allocator refused in the observed steps after the first; empty for nothing.

    Refusals before are of libraries that try how much a kernel may take, and of frameworks that search for a size.
    """
    refused = max(_count_refusals(rank) for rank in reports.ranks)
    return f"the allocator refused memory {counted(refused, 'time')} in the observed steps" if refused else ""


def _count_refusals(rank: Rank) -> int:
    return int(rank.memory.get("num_ooms") or 0) - int(rank.memory.get("num_ooms_before") or 0)


def list_notes(reports: Reports) -> tuple[str, ...]:
    """Return what went wrong in the observer itself, for people."""
    return tuple(sorted({f"the observer: {note}" for rank in reports.ranks for note in rank.record["notes"]}))


def find_last_batch(reports: Reports, micro_batch_size: int) -> int | None:
    """Return the samples of the last batch of an epoch that has fewer than the others; None for none, or if unknown."""
    for rank in reports.ranks:
        rest = (rank.num_samples or 0) % micro_batch_size
        if rest and not rank.record.get("drops_last"):
            return rest
    return None


def find_kernels(reports: Reports) -> tuple[Mapping[str, Any], ...]:
    """Return what each rank asked an emulated device to do in a step; empty where a rank has recorded nothing."""
    found = [rank.record.get("kernels") for rank in reports.ranks]
    return tuple(one for one in found if one) if all(found) else ()


def describe_device(reports: Reports) -> dict[str, Any]:
    """Return the device that the training used, and its torch."""
    first = reports.ranks[0].record
    names = {"device": first["device"], "device_name": first["device_name"] or None, "torch": first["torch"]}
    names["is_emulated"] = first["is_emulated"]
    return {name: value for name, value in names.items() if value}
