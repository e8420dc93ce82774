"""The cost model of a job that cannot be traced: real steps at a few small sizes, fitted moment by moment.

An eager step allocates and frees in the same order at every size, so that two steps tell how each allocation grows, and
a third whether that is so. What they give is the whole step at any size, as a trace has it: the highest moment of a
large step is found although another one is the highest of a small step. Where the order differs from size to size the
peaks of the passes and of the update are fitted instead, through the last two sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bexplore.trace.cost_model import Buffer, Event, Peak, Phase, Place, Polynomial, find_peaks

# Sizes of one measurement: three that agree are enough, further ones are for those that do not.
FEWEST_SIZES = 3
MOST_SIZES = 5
# Standard deviations of the relative error of the memory. Source: benchmarks/results/untraced.md, rounded up.
_SD = 0.02
_SD_OF_PEAKS = 0.05  # where peaks alone were fitted
_OTHER = "activations and workspaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """What one step of a size was seen to allocate and to count."""

    micro_batch_size: int
    resident: Mapping[str, int]  # bytes by kind of state, alive before the step
    changes: Mapping[Phase, Sequence[int]]  # bytes of each allocation, negative for an end, in their order
    counts: Mapping[str, int]  # operations and bytes of a pass by their names in `CostModel`


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSteps:
    """The fields of a cost model that measured steps give."""

    measured_at: tuple[int, ...]  # the sizes that were fitted
    resident: tuple[Buffer, ...]
    peaks: Mapping[Phase, tuple[Peak, ...]]
    counts: Mapping[str, Polynomial]
    relative_sd: float
    is_confirmed: bool  # whether every value lies on its polynomial at more sizes than the polynomial needs


@dataclass(frozen=True, slots=True)
class _Fit:
    polynomial: Polynomial
    is_confirmed: bool


def fit_steps(steps: Sequence[MeasuredStep]) -> FittedSteps:
    """Fit the steps of ascending sizes, two at least; the last three count, and confirm each other or do not."""
    sizes = [step.micro_batch_size for step in steps]
    fits: list[_Fit] = []

    def fit(values: Sequence[int]) -> Polynomial:
        fits.append(_fit(sizes, values))
        return fits[-1].polynomial

    resident = tuple(
        Buffer(label=label, size=fit([step.resident.get(label, 0) for step in steps])) for label in steps[-1].resident
    )
    errors = []
    peaks = {}
    for phase in steps[-1].changes:
        each = [step.changes[phase] for step in steps]
        matching = _count_matching(each)
        if matching >= min(FEWEST_SIZES, len(steps)):
            own = list(zip(*each[-matching:], strict=True))
            events = [Event(_remember(fits, _fit(sizes[-matching:], values)), Place(_OTHER)) for values in own]
            peaks[phase] = find_peaks(resident, events)
            continue
        highest = [sum(step.resident.values()) + _highest(step.changes[phase]) for step in steps]
        found = _fit(sizes, highest)
        # With one size more than a line needs: the smallest one may be the one that differs.
        fits.append(_Fit(found.polynomial, is_confirmed=found.is_confirmed and len(steps) > FEWEST_SIZES))
        line = found.polynomial
        errors += [abs(line(size) - value) / value for size, value in zip(sizes, highest, strict=True)][-FEWEST_SIZES:]
        peaks[phase] = (Peak(size=line, buffers=resident),)
    return FittedSteps(
        measured_at=tuple(sizes[-FEWEST_SIZES:]),
        resident=resident,
        peaks=peaks,
        counts={name: _fit(sizes, [step.counts[name] for step in steps]).polynomial for name in steps[-1].counts},
        relative_sd=max(_SD_OF_PEAKS, *errors) if errors else _SD,
        is_confirmed=all(one.is_confirmed for one in fits),
    )


def _remember(fits: list[_Fit], fit: _Fit) -> Polynomial:
    fits.append(fit)
    return fit.polynomial


def _count_matching(each: Sequence[Sequence[int]]) -> int:
    """Return of how many of the last steps the changes are as many, and the same ones are ends."""
    last = each[-1]
    count = 0
    for changes in reversed(each):
        if len(changes) != len(last) or any((one < 0) != (other < 0) for one, other in zip(changes, last, strict=True)):
            break
        count += 1
    return count


def _highest(changes: Sequence[int]) -> int:
    running = highest = 0
    for change in changes:
        running += change
        highest = max(highest, running)
    return highest


def _fit(sizes: Sequence[int], values: Sequence[int]) -> _Fit:
    """Return the line through the last three values, else the parabola through four, else the line through two."""
    line = _draw_line(sizes[-2:], values[-2:])
    if len(values) < FEWEST_SIZES:
        return _Fit(line, is_confirmed=False)
    if _meets(line, sizes[-3], values[-3]):
        return _Fit(line, is_confirmed=True)
    if len(values) > FEWEST_SIZES:
        parabola = _draw_parabola(sizes[-3:], values[-3:])
        if _meets(parabola, sizes[-4], values[-4]):
            return _Fit(parabola, is_confirmed=True)
    return _Fit(line, is_confirmed=False)


def _meets(polynomial: Polynomial, size: int, value: int) -> bool:
    return abs(polynomial(size) - value) < 1.0  # bytes and operations are whole numbers


def _draw_line(sizes: Sequence[int], values: Sequence[int]) -> Polynomial:
    (low, high), (first, last) = sizes, values
    slope, rest = divmod(last - first, high - low)
    exact = slope if not rest else (last - first) / (high - low)
    return Polynomial(first - exact * low, exact)


def _draw_parabola(sizes: Sequence[int], values: Sequence[int]) -> Polynomial:
    """Return Newton's polynomial through three values."""
    (first, second, third), (low, middle, high) = values, sizes
    slope = (second - first) / (middle - low)
    quadratic = ((third - second) / (high - middle) - slope) / (high - low)
    return Polynomial(first - slope * low + quadratic * low * middle, slope - quadratic * (low + middle), quadratic)
