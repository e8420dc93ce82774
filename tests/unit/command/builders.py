"""Builders of the records of ranks."""

from __future__ import annotations

from bexplore.command.reports import Rank, Step


def step(ended_s: float, *, passes: int = 1, rows: int = 4, update_s: float = 0.0) -> Step:
    """Return a step whose loader returned a micro-batch for each pass."""
    samples = passes * rows
    return Step(
        ended_s=ended_s,
        num_passes=passes,
        num_fetches=passes,
        num_samples=samples,
        num_elements=10 * samples,
        num_updates=1,
        update_s=update_s,
    )


def rank(
    number: int = 0, *, rows: int = 4, seconds: float = 1.0, passes: int = 1, update_s: float = 0.0, **fields
) -> Rank:
    """Return the record of a rank with eight steps, unless others are given."""
    steps = tuple(step(seconds * index, rows=rows, passes=passes, update_s=update_s) for index in range(1, 9))
    facts = {"outcome": "observed", "rank": number, "world_size": 1, "steps": steps, "rows": {rows: 8}}
    facts |= {"forward_rows": (), "num_samples": None, "digests": ("a",), "memory": {}, "record": {}}
    return Rank(**facts | fields)
