"""Allocations and frees of a training step, in order, and their peak as a function of the micro-batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from bexplore.job import Parallelism

NUM_BUFFERS = 8  # of a peak that are named
_TYPICAL_SIZE = 8  # only orders the names of buffers that grow differently


@dataclass(frozen=True, slots=True)
class Polynomial:
    """`constant + linear b + quadratic b^2`, where b is the micro-batch size.

    Nearly every size in a training step is affine in b; in a contrastive loss, which compares all samples with each
    other, sizes are quadratic.
    """

    constant: float = 0
    linear: float = 0
    quadratic: float = 0

    def __call__(self, micro_batch_size: int) -> float:
        """Return the value at a micro-batch size."""
        return self.constant + micro_batch_size * (self.linear + micro_batch_size * self.quadratic)

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial(self.constant + other.constant, self.linear + other.linear, self.quadratic + other.quadratic)

    def __neg__(self) -> Polynomial:
        return self.times(-1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        """Return the product up to b^2: a stride and a size that both grow make no higher power."""
        return Polynomial(
            self.constant * other.constant,
            self.constant * other.linear + self.linear * other.constant,
            self.constant * other.quadratic + self.linear * other.linear + self.quadratic * other.constant,
        )

    def __bool__(self) -> bool:
        return bool(self.constant or self.linear or self.quadratic)

    def times(self, factor: float) -> Polynomial:
        """Return the polynomial multiplied by a number."""
        return Polynomial(self.constant * factor, self.linear * factor, self.quadratic * factor)

    def as_record(self) -> list[float]:
        """Return the three coefficients for JSON, the constant first."""
        return [self.constant, self.linear, self.quadratic]

    @classmethod
    def from_record(cls, coefficients: Sequence[float]) -> Polynomial:
        """Rebuild a polynomial from `as_record`."""
        return cls(*coefficients)

    @classmethod
    def from_value(cls, value: int, probe_batch: int) -> Polynomial:
        """Return the polynomial that has a value at one micro-batch size.

        Args:
            probe_batch: That size, a prime that divides no dimension but those that contain the samples.
        """
        if value % probe_batch:
            return cls(value)
        if value % (probe_batch * probe_batch):
            return cls(0, value // probe_batch)
        return cls(0, 0, value // (probe_batch * probe_batch))

    @classmethod
    def interpolate(cls, function: Callable[[int], int], base: int) -> Polynomial:
        """Interpolate a function at `base`, `2 base` and `3 base`; exact up to degree two.

        A size that is rounded up to a multiple is met within the rounding.
        """
        first, second, third = (function(multiple * base) for multiple in (1, 2, 3))
        if third - second == second - first:  # the usual case, kept in whole numbers
            slope, rest = divmod(second - first, base)
            if not rest:
                return cls(first - slope * base, slope)
        quadratic = (third - 2 * second + first) / (2 * base * base)
        linear = (second - first) / base - 3 * base * quadratic
        return cls(first - base * (linear + base * quadratic), linear, quadratic)


NOTHING = Polynomial()


class Phase(StrEnum):
    """The three parts of an optimizer step, in the order in which they run."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a buffer.

    Attributes:
        label: Source line and operator for people, such as `model.py:33 gelu`.
        module: Qualified names of the modules in whose forward the buffer is made, the innermost last, such as
            `decoder > decoder.blocks.1 > decoder.positions`; empty outside of any.
        is_recomputed: Whether the backward pass computes again what the forward pass has computed.
    """

    label: str
    module: str = ""
    is_recomputed: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation or, with a negative size, the end of one.

    Attributes:
        size: Signed bytes.
        place: Origin of the buffer, the same for an allocation and its end.
    """

    size: Polynomial
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Memory of one place of the source at a peak.

    Attributes:
        label: The place, such as `model.py:33 gelu`, or the kind of state, such as `weights`.
        size: Bytes.
    """

    label: str
    size: Polynomial

    def as_record(self) -> list[Any]:
        """Return label and coefficients in one list: a trace has thousands of buffers."""
        return [self.label, *self.size.as_record()]

    @classmethod
    def from_record(cls, record: Sequence[Any]) -> Buffer:
        """Rebuild a buffer from `as_record`."""
        return cls(label=record[0], size=Polynomial.from_record(record[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A moment of the step that is the highest for some micro-batch sizes.

    Attributes:
        size: Bytes alive at that moment.
        buffers: Largest buffers alive, largest first.
    """

    size: Polynomial
    buffers: tuple[Buffer, ...]


def find_peaks(resident: Sequence[Buffer], events: Sequence[Event], *, past: Sequence[Event] = ()) -> tuple[Peak, ...]:
    """Find the moments that are the highest for some micro-batch size; their maximum at b is the memory needed at b.

    Args:
        resident: Buffers alive during the whole step.
        past: Events of earlier phases.
    """
    start = np.array(_sum_of([*(buffer.size for buffer in resident), *(event.size for event in past)]).as_record())
    deltas = np.array([event.size.as_record() for event in events]).reshape(-1, 3)
    running = start + np.vstack([np.zeros(3), np.cumsum(deltas, axis=0)])
    return tuple(
        Peak(
            size=Polynomial.from_record([_whole(value) for value in running[index]]),
            buffers=_largest(resident, [*past, *events[:index]]),
        )
        for index in _upper_envelope(running)
    )


def _sum_of(sizes: Iterable[Polynomial]) -> Polynomial:
    return sum(sizes, start=Polynomial())


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else float(value)


def _upper_envelope(running: np.ndarray) -> list[int]:
    """Return the rows of (num_moments, 3) coefficients that are the maximum for some b >= 1, by growing b."""
    order = np.lexsort((-running[:, 0], -running[:, 1], -running[:, 2]))
    kept: list[int] = []
    for index in order:
        if not any(np.all(running[other] >= running[index]) for other in kept):
            kept.append(int(index))
    kept.reverse()  # the steepest last
    if np.any(running[kept, 2]):
        return kept
    return _hull([(float(running[index, 0]), float(running[index, 1]), index) for index in kept])


def _hull(lines: Sequence[tuple[float, float, int]]) -> list[int]:
    """Return those lines (constant, slope, index), by growing slope, that form the upper hull at b >= 1."""
    hull: list[tuple[float, float, int]] = []
    for line in lines:
        while hull and _crossing(hull[-1], line) <= (_crossing(hull[-2], hull[-1]) if len(hull) > 1 else 1.0):
            hull.pop()
        hull.append(line)
    return [index for _, _, index in hull]


def _crossing(first: tuple[float, float, int], second: tuple[float, float, int]) -> float:
    return (first[0] - second[0]) / (second[1] - first[1])


def _largest(resident: Sequence[Buffer], past: Sequence[Event]) -> tuple[Buffer, ...]:
    alive: dict[str, Polynomial] = {buffer.label: buffer.size for buffer in resident}
    for event in past:
        alive[event.place.label] = alive.get(event.place.label, Polynomial()) + event.size
    at_typical_size = sorted(alive.items(), key=lambda item: -item[1](_TYPICAL_SIZE))
    return tuple(Buffer(label=label, size=size) for label, size in at_typical_size[:NUM_BUFFERS] if size(1) > 0)


def gradient_memory(
    parallelism: Parallelism, *, gradient_bytes: int, bucket_bytes: int, accumulated: Polynomial
) -> tuple[list[Buffer], list[Event], list[Event]]:
    """Return the gradients that live during the whole step, from before its last pass on, and from the update on.

    DistributedDataParallel holds buckets of one more copy from its construction on. As views of them gradients take
    nothing of their own, unless a pass that reduces nothing has made them. Sharded gradients that are reduced in the
    last pass alone are whole until then. Source: torch/csrc/distributed/c10d/reducer.cpp; `unsharded_accumulated_grad`
    in torch/distributed/fsdp/_fully_shard/_fsdp_param.py; both checked by the allocator: benchmarks/results/
    distributed_trace.md.

    Args:
        gradient_bytes: Of one copy, as the optimizer reads it: of sharded parameters, the rank's shards.
        bucket_bytes: Of all gradient buckets.
        accumulated: What the passes before the last have left.
    """
    gradients = Buffer(label="gradients", size=Polynomial(gradient_bytes))
    buckets = Buffer(label="gradient buckets", size=Polynomial(bucket_bytes))
    if parallelism.is_sharded and parallelism.synchronizes_last:
        whole = Event(accumulated, Place("gradients of all shards"))
        return [], [whole], [Event(gradients.size, Place(gradients.label))]
    if not bucket_bytes:
        return [gradients], [], []
    if not parallelism.gradient_as_bucket_view:
        return [gradients, buckets], [], []
    beside = [Event(buckets.size, Place(buckets.label))] if parallelism.synchronizes_last else []
    return [gradients], beside, []
