"""A row of a result for people: a label and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """A row of the summary and of the report."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What rows depend on beside their own part."""

    tolerance: float  # width of the indifference zone, as a share of speed
    target_confidence: float | None = None  # the requested score; None if unknown
    is_emulated: bool = False  # whether the device was emulated, so that no speed is known
    is_estimated: bool = False  # whether nothing ran, and a model tells of speed
    is_of_command: bool = False  # whether a training command ran
    num_replicas: int = 1  # data-parallel replicas that it showed
