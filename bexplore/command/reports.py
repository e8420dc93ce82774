"""What the observer wrote: one record for each process, rank and error of a probe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bexplore.host.json_files import parse_json

Place = tuple[str, int]  # host and process id: containers may have equal ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of a rank.

    Attributes:
        ended_s: When its last update ended, on the clock of the process or of its device.
        num_passes: Backward passes.
        num_fetches: Micro-batches that its loaders returned.
        num_samples: Sum of their leading dimensions.
        num_elements: Elements of their tensors.
        num_updates: Calls of optimizers.
        update_s: Seconds of these calls, without backward passes inside of them.
        evaluation_s: Seconds of an evaluation that ran in it.
    """

    ended_s: float
    num_passes: int
    num_fetches: int
    num_samples: int
    num_elements: int
    num_updates: int
    update_s: float
    evaluation_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The record of a process that trained.

    Attributes:
        outcome: `observed` after the last step that was asked for; `ended` where the training ended before; `no_step`
            after many passes; `no_batch` after epochs without one.
        rank: Its rank.
        world_size: Ranks that the training has by its own account.
        steps: Its optimizer steps in order.
        rows: Leading dimension -> number of micro-batches from loaders that had it.
        forward_rows: Leading dimension and elements of the model's inputs, where they were looked at.
        num_samples: Of an epoch of the loader that its batches came from; None if unknown.
        digests: Of its first batches; equal ones are one replica's work.
        memory: Bytes by name: peaks, before and after, and counts of the allocator.
        record: All of it.
        before: Fetches and passes of its process before this probe, in a start that serves several sizes.
        own_from_step: The first step in which its model was given a batch of the probe's size; None if none was seen.
        awaits_own_batches: Whether the calls of its model were looked at for that.
    """

    outcome: str
    rank: int
    world_size: int
    steps: tuple[Step, ...]
    rows: Mapping[int, int]
    forward_rows: tuple[tuple[int | None, int], ...]
    num_samples: int | None
    digests: tuple[str, ...]
    memory: Mapping[str, int | None]
    record: Mapping[str, Any]
    before: Mapping[str, int] = field(default_factory=dict)
    own_from_step: int | None = None
    awaits_own_batches: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Rank:
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
            record=record,
        )


def with_own_batches(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return the ranks with the batches that each of them trained with, where a few ranks load those of all.

    Source: `dispatch_batches` of accelerate, by which the first rank reads a batch for every rank and sends them on.
    """
    loading = [rank for rank in ranks if rank.rows]
    num_served = len(ranks) // len(loading) if loading else 1
    num_fetches = sum(step.num_fetches for rank in loading for step in rank.steps)
    num_passes = sum(step.num_passes for rank in loading for step in rank.steps)
    if num_served == 1 or not num_passes or round(num_fetches / num_passes) != num_served:
        return tuple(ranks)
    return tuple(_share_of(rank, num_served) if rank.rows else rank for rank in ranks)


def _share_of(rank: Rank, num_served: int) -> Rank:
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
    return replace(rank, steps=tuple(steps), num_samples=num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """All that the processes of a probe have written so far.

    Attributes:
        hellos: One record for each process that imported torch.
        ranks: By rank.
        errors: The first error of each process, the earliest first.
        counts: Optimizer steps, passes, batches read for passes, and other signs of life so far, by process.
    """

    hellos: tuple[Mapping[str, Any], ...] = ()
    ranks: tuple[Rank, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
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
    def world_size(self) -> int:
        """Ranks that the training has by its own account; 0 before the first record."""
        return max((rank.world_size for rank in self.ranks), default=0)

    @property
    def are_whole(self) -> bool:
        """Whether every rank has its record."""
        return bool(self.ranks) and len({rank.rank for rank in self.ranks}) >= self.world_size


class ReportsReader:
    """Reads the reports of one probe again and again; parses a record only where it is new.

    Args:
        folder: The folder in which the processes write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, tuple[int, Any]] = {}  # name -> time of its last change, and what it holds

    def read(self) -> Reports:
        """Return the reports so far."""
        found = sorted(os.scandir(self._folder), key=lambda entry: entry.name)
        counts = (_counts(entry) for entry in found if entry.name.startswith("steps-"))
        return Reports(
            hellos=tuple(self._parsed(found, "hello-", dict)),
            ranks=tuple(sorted(self._parsed(found, "rank-", Rank.of), key=lambda rank: rank.rank)),
            errors=tuple(sorted(self._parsed(found, "error-", dict), key=lambda error: error["at_s"])),
            counts=dict(one for one in counts if one is not None),
        )

    def _parsed(self, found: Sequence[os.DirEntry[str]], kind: str, read: Callable[[Any], Any]) -> Iterator[Any]:
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


def _counts(entry: os.DirEntry[str]) -> tuple[Place, tuple[int, ...]] | None:
    """Return a process and its counts; None before it has written any."""
    host, _, pid = entry.name.removeprefix("steps-").rpartition("-")
    words = Path(entry.path).read_text().split()
    return ((host, int(pid)), tuple(map(int, words))) if words else None
