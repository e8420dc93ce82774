"""A small plot of throughput over size, in characters of a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from bexplore.measurement.probe import Observation
from bexplore.search.posterior.credible_band import Band


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of the marks: the band, its middle, a measurement, the best one, a failure, the axis."""

    band: str
    middle: str
    dot: str
    best: str
    failure: str
    axis: str


UNICODE, ASCII = Glyphs("░", "─", "●", "◆", "×", "│"), Glyphs(":", "-", "o", "@", "x", "|")
LABEL = 8  # characters left of the axis


def plot(
    band: Band, observations: Sequence[Observation], *, best: int | None, width: int, height: int, glyphs: Glyphs
) -> Text:
    """Draw the belief and the measurements; sizes on a logarithmic axis, throughput from 0.

    Args:
        band: The belief.
        observations: Every probe.
        best: The size that is recommended just now.
        width: Characters in all, at least 20.
        height: Lines in all, the one with the sizes included; at least 3.
        glyphs: Which characters the terminal has.
    """
    columns, rows = width - LABEL - 1, height - 1
    measured = [item for item in observations if item.is_measured]
    shown = [index for index in range(len(band.sizes)) if band.fits[index] > 0.02]
    tried = [item.micro_batch_size for item in observations]
    first, last = float(min(band.sizes[0], *tried)), float(max(band.sizes[-1], *tried))
    highest = max(max(item.samples_per_s for item in measured), max((band.high[i] for i in shown), default=0.0))
    cells = [[(" ", "")] * columns for _ in range(rows)]

    def column(size: float) -> int:
        share = math.log(size / first) / math.log(last / first) if last > first else 0.0
        return min(columns - 1, max(0, round(share * (columns - 1))))

    def row(speed: float) -> int:
        return min(rows - 1, max(0, rows - 1 - round(speed / highest * (rows - 1))))

    places = [column(float(size)) for size in band.sizes]
    for at in range(columns):
        # The belief knows sizes, not columns: the nearest size on the left speaks for a column without its own.
        index = max((i for i in shown if places[i] <= at), default=None)
        if index is None or (at > places[index] and index == shown[-1]):
            continue
        for line in range(row(band.high[index]), row(band.low[index]) + 1):
            cells[line][at] = (glyphs.band, "dim")
        cells[row(band.middle[index])][at] = (glyphs.middle, "cyan")
    for item in observations:
        at = column(float(item.micro_batch_size))
        if not item.is_measured:
            cells[rows - 1][at] = (glyphs.failure, "red")
        elif item.micro_batch_size != best:
            cells[row(item.samples_per_s)][at] = (glyphs.dot, "")
    for item in measured:
        if item.micro_batch_size == best:
            cells[row(item.samples_per_s)][column(float(best))] = (glyphs.best, "bold green")
    return _assemble(cells, highest, _ticks(first, last, columns, column), glyphs)


def _assemble(cells: list[list[tuple[str, str]]], highest: float, ticks: str, glyphs: Glyphs) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(cells):
        label = f"{highest:.4g}" if number == 0 else "0" if number == len(cells) - 1 else ""
        text.append(f"{label:>{LABEL}}{glyphs.axis}", style="dim")
        for character, style in line:
            text.append(character, style=style or None)
        text.append("\n")
    text.append(f"{'size':>{LABEL}} {ticks}", style="dim")
    return text


def _ticks(first: float, last: float, columns: int, column: Callable[[float], int]) -> str:
    """Powers of two below their columns, as many as fit."""
    line = [" "] * columns
    for power in range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1):
        label, at = str(2**power), column(2.0**power)
        start = min(at, columns - len(label))
        if all(character == " " for character in line[max(0, start - 1) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    return "".join(line)
