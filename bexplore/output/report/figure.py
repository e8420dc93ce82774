"""A figure as data: axes, and marks in data coordinates, which `svg.py` and `png.py` draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis."""

    label: str  # quantity and unit
    low: float  # smallest value shown
    high: float  # largest value shown; above `low`
    is_log2: bool = False  # whether the axis is logarithmic
    ticks: tuple[float, ...] = ()  # values with a tick
    text: Callable[[float], str] = lambda value: f"{value:g}"  # value -> its text beside the tick

    def fraction(self, value: float) -> float:
        """Return the position of a value between the ends, clipped to 0 to 1."""
        low, high, at = (
            (math.log2(max(number, 1e-12)) for number in (self.low, self.high, value))
            if self.is_log2
            else (self.low, self.high, value)
        )
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through (x, y) points; its name is in the legend, its role decides the colour.

    A stepped line keeps y up to the next x.
    """

    name: str
    points: Sequence[tuple[float, float]]
    role: str
    is_stepped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The area between two lines: (x, low, high) in order."""

    name: str
    points: Sequence[tuple[float, float, float]]
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One measured value, the ends of its spread if it has one, and the text shown on hover and focus."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Measured values of one kind; `shape` is `filled`, `hollow`, `cross` or `ring`."""

    name: str
    dots: Sequence[Dot]
    role: str
    shape: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A horizontal line at a value, with its name beside it."""

    name: str
    value: float
    role: str


Mark = Line | Band | Dots | Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure."""

    key: str  # its file name without a suffix
    title: str  # its heading
    description: str  # its content in words, for screen readers
    x: Axis  # the horizontal axis
    y: Axis  # the vertical axis
    marks: tuple[Mark, ...]  # marks from back to front


def size_axis(low: float, high: float) -> Axis:
    """Return an axis of micro-batch sizes with ticks at powers of two."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    ticks = tuple(2.0**power for power in range(first, last + 1) if low <= 2.0**power <= high)
    return Axis(
        label="micro-batch size (samples)",
        low=low,
        high=max(high, low * 1.5),
        is_log2=True,
        ticks=ticks[:: max(1, math.ceil(len(ticks) / 9))] or (low,),
    )


def value_axis(label: str, highest: float, text: Callable[[float], str], *, binary: bool = False) -> Axis:
    """Return an axis from 0 to a round number above the highest value, with about five ticks."""
    base = 2.0 if binary else 10.0
    raw = max(highest, 1e-12) * 1.05 / 5
    unit = base ** math.floor(math.log(raw, base))
    factors = (1.0, 2.0) if binary else (1.0, 2.0, 2.5, 5.0, 10.0)
    step = next((unit * factor for factor in factors if unit * factor >= raw), unit * base)
    count = math.ceil(highest * 1.05 / step)
    return Axis(
        label=label, low=0.0, high=step * count, ticks=tuple(step * number for number in range(count + 1)), text=text
    )
