"""A small plot of throughput over size, in characters of a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from bexplore.measurement.probe import Observation
from bexplore.search.posterior.posterior import CredibleBand
from bexplore.units import format_count, format_rate


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of the band, its median, a measurement, the recommended size, a failure and the axis."""

    band: str
    middle: str
    dot: str
    best: str
    failure: str
    axis: str


UNICODE, ASCII = Glyphs("░", "─", "●", "◆", "×", "│"), Glyphs(":", "-", "o", "@", "x", "|")
LABEL = 8  # characters left of the axis


def plot(
    band: CredibleBand | None,
    observations: Sequence[Observation],
    *,
    best: int | None,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> Text:
    """Draw the band and the measurements; sizes on a logarithmic axis, throughput from 0.

    Args:
        band: The search's posterior; None draws the measurements alone.
        observations: Every probe; at least one is measured.
        best: The recommended size; None for none.
        width: Characters in all, at least 20.
        height: Lines in all, the one with the sizes included; at least 3.
        glyphs: The characters that the terminal has.
    """
    columns, rows = width - LABEL - 1, height - 1
    measured = [item for item in observations if item.is_measured]
    tried = [float(item.micro_batch_size) for item in observations]
    shown = [] if band is None else band.shown(max(tried))
    first, last = min([*tried, *(row[0] for row in shown)]), max([*tried, *(row[0] for row in shown)])
    highest = max([item.samples_per_s for item in measured] + [row[3] for row in shown])
    cells = [[(" ", "")] * columns for _ in range(rows)]

    def column(size: float) -> int:
        share = math.log(size / first) / math.log(last / first) if last > first else 0.0
        return min(columns - 1, max(0, round(share * (columns - 1))))

    def row(speed: float) -> int:
        return min(rows - 1, max(0, rows - 1 - round(speed / highest * (rows - 1))))

    places = [column(size) for size, *_ in shown]
    ends = [*places[1:], *(place + 1 for place in places[-1:])]  # a size also fills the columns up to the next one
    for (_, low, middle, high), start, end in zip(shown, places, ends, strict=True):
        for at in range(start, max(end, start + 1)):
            for line in range(row(high), row(low) + 1):
                cells[line][at] = (glyphs.band, "dim")
            cells[row(middle)][at] = (glyphs.middle, "cyan")
    for item in sorted(observations, key=lambda item: item.micro_batch_size == best):  # which is drawn over the others
        mark = (glyphs.best, "bold green") if item.micro_batch_size == best else (glyphs.dot, "")
        at = column(float(item.micro_batch_size))
        if item.is_measured:
            cells[row(item.samples_per_s)][at] = mark
        else:
            cells[rows - 1][at] = (glyphs.failure, "red")
    return _assemble(cells, highest, _ticks(first, last, columns, column), glyphs)


def _assemble(cells: list[list[tuple[str, str]]], highest: float, ticks: str, glyphs: Glyphs) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    top = format_rate(highest) if highest < 1000 else format_count(highest)  # as short as the label is wide
    for number, line in enumerate(cells):
        label = top if number == 0 else "0" if number == len(cells) - 1 else ""
        text.append(f"{label:>{LABEL}}{glyphs.axis}", style="dim")
        for character, style in line:
            text.append(character, style=style or None)
        text.append("\n")
    text.append(f"{'size':>{LABEL}} {ticks}", style="dim")
    return text


def _ticks(first: float, last: float, columns: int, column: Callable[[float], int]) -> str:
    """Return powers of two below their columns, as many as fit."""
    line = [" "] * columns
    for power in range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1):
        label, at = str(2**power), column(2.0**power)
        start = min(at, columns - len(label))
        if all(character == " " for character in line[max(0, start - 1) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    return "".join(line)
