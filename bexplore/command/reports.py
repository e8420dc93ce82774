"""What the observer wrote: one record for each process, rank and error of a probe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
    """

    ended_s: float
    num_passes: int
    num_fetches: int
    num_samples: int
    num_elements: int
    num_updates: int
    update_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The record of a process that trained.

    Attributes:
        outcome: `observed` after the last step that was asked for; `ended` where the training ended before; `no_step`.
        rank: Its rank.
        world_size: Ranks that the training has by its own account.
        steps: Its optimizer steps in order.
        rows: Leading dimension -> number of micro-batches from loaders that had it.
        forward_rows: Leading dimension and elements of the model's inputs, where they were looked at.
        digests: Of its first batches; equal ones are one replica's work.
        memory: Bytes by name: see `observed_memory` of the runner.
        record: All of it.
    """

    outcome: str
    rank: int
    world_size: int
    steps: tuple[Step, ...]
    rows: Mapping[int, int]
    forward_rows: tuple[tuple[int | None, int], ...]
    digests: tuple[str, ...]
    memory: Mapping[str, int | None]
    record: Mapping[str, Any]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Rank:
        """Read a record."""
        return cls(
            outcome=record["outcome"],
            rank=record["rank"],
            world_size=record["world_size"],
            steps=tuple(Step(**step) for step in record["steps"]),
            rows={int(rows): count for rows, count in record["rows"].items() if rows != "None"},
            forward_rows=tuple((rows, elements) for rows, elements in record["forward_rows"]),
            digests=tuple(record["digests"]),
            memory=record["memory"],
            record=record,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """All that the processes of a probe have written so far.

    Attributes:
        hellos: One record for each process that imported torch.
        ranks: By rank.
        errors: The first error of each process, the earliest first.
        num_steps: Optimizer steps so far, by process id.
    """

    hellos: tuple[Mapping[str, Any], ...] = ()
    ranks: tuple[Rank, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
    num_steps: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Reports:
        """Read the reports of a probe."""
        ranks = sorted((Rank.of(record) for record in _records(folder, "rank-*.json")), key=lambda one: one.rank)
        return cls(
            hellos=tuple(_records(folder, "hello-*.json")),
            ranks=tuple(ranks),
            errors=tuple(sorted(_records(folder, "error-*.json"), key=lambda one: one["at_s"])),
            num_steps=dict(_progress(path) for path in folder.glob("steps-*")),
        )

    @property
    def world_size(self) -> int:
        """Ranks that the training has by its own account; 0 before the first record."""
        return max((rank.world_size for rank in self.ranks), default=0)

    @property
    def are_whole(self) -> bool:
        """Whether every rank has its record."""
        return bool(self.ranks) and len({rank.rank for rank in self.ranks}) >= self.world_size


def _records(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]


def _progress(path: Path) -> tuple[int, int]:
    pid, words = int(path.name.rpartition("-")[2]), path.read_text().split()
    return pid, int(words[0]) if words else 0
