"""`CostModel`: memory, operations and traffic of one job as functions of the micro-batch size.

A step is a sequence of allocations and frees whose sizes are polynomials of the micro-batch size; its memory is that of
the few moments that are the highest for some size. `trace_job` makes a cost model; evaluating it needs no torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from bexplore.estimate.collectives import Collective, Exchange
from bexplore.estimate.dispatch import Dispatch
from bexplore.estimate.kernels import Attention, Kernel, MatrixProduct, Stream, Work
from bexplore.job.batching import MAX_SAMPLES
from bexplore.job.lengths import BatchShape, Collation, Lengths
from bexplore.units import format_share

NUM_BUFFERS = 8  # of a peak that are named
TYPICAL_SIZE = 8  # only orders names of buffers that grow differently, and gives shares of bytes
_PARTS = (1, 2, 4)  # of the longest length, at which is traced
_FEWEST_TOKENS = 8  # a shorter length is traced for no job
_FAR = 4  # between lengths of a larger ratio one is traced, too
_NUM_NODES = 3  # traced lengths through which memory at another length goes


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

        That size is a prime that divides no dimension but those that contain the samples.
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
    """The origin of a buffer."""

    label: str  # source line and operator for people, such as `model.py:33 gelu`
    # Qualified names of the modules in whose forward the buffer is made, the innermost last, such as `decoder >
    # decoder.blocks.1 > decoder.positions`; empty outside of any
    module: str = ""
    is_recomputed: bool = False  # whether the backward pass computes again what the forward pass has computed


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation or, with a negative size, the end of one."""

    size: Polynomial  # signed bytes
    place: Place  # origin of the buffer, the same for an allocation and its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Memory of one place of the source at a peak."""

    label: str  # the place, such as `model.py:33 gelu`, or the kind of state, such as `weights`
    size: Polynomial  # bytes

    def as_record(self) -> list[Any]:
        """Return label and coefficients in one list: a trace has thousands of buffers."""
        return [self.label, *self.size.as_record()]

    @classmethod
    def from_record(cls, record: Sequence[Any]) -> Buffer:
        """Rebuild a buffer from `as_record`."""
        return cls(label=record[0], size=Polynomial.from_record(record[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A moment of the step that is the highest for some micro-batch sizes."""

    size: Polynomial  # bytes alive at that moment
    buffers: tuple[Buffer, ...]  # largest buffers alive, largest first


class KernelKind(StrEnum):
    """What decides the time of a kernel."""

    PRODUCT = "product"  # sizes: rows, columns, inner dimension, batch
    ATTENTION = "attention"  # sizes: operations that a causal mask leaves, bytes read and written
    ATTENTION_BACKWARD = "attention_backward"
    # sizes: bytes read and written, those of its largest new result, operations of a convolution of single channels
    STREAM = "stream"
    # Collectives of ranks that share matrices; sizes: bytes of the whole tensor
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"

    @property
    def is_collective(self) -> bool:
        """Whether it is no kernel of a device alone."""
        return self in _COLLECTIVES


_COLLECTIVES = frozenset(map(KernelKind, Collective))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """A kernel of a pass, whose sizes grow with the micro-batch size."""

    kind: KernelKind
    sizes: tuple[Polynomial, ...]  # by kind
    itemsize: int = 0  # bytes of an element, where arithmetic counts
    allows_tf32: bool = False  # as of `MatrixProduct`
    calls: float = 1.0  # in a pass
    work: Work = Work.POINTWISE  # of a stream, its costliest
    window: int = 0  # points of the window of a convolution; 0 for another product
    is_weight_gradient: bool = False  # as of `MatrixProduct`

    def at(self, micro_batch_size: int) -> Kernel:
        """Return the kernel at a size."""
        sizes = [size(micro_batch_size) for size in self.sizes]
        if self.kind is KernelKind.STREAM:
            flops = sizes[2] if len(sizes) > 2 else 0.0
            return Stream(num_bytes=sizes[0], work=self.work, result_bytes=sizes[1], flops=flops)
        if self.kind is KernelKind.PRODUCT:
            rows, columns, inner, batch = map(round, sizes)
            return MatrixProduct(
                rows=rows,
                columns=columns,
                inner=inner,
                batch=batch,
                itemsize=self.itemsize,
                window=self.window,
                is_weight_gradient=self.is_weight_gradient,
                allows_tf32=self.allows_tf32,
            )
        is_backward = self.kind is KernelKind.ATTENTION_BACKWARD
        return Attention(flops=sizes[0], num_bytes=sizes[1], is_backward=is_backward, itemsize=self.itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Cost of a training step of one replica, for every micro-batch size at once.

    Attributes:
        fingerprint: Sixteen hexadecimal digits: the same for the same traced program, on every machine.
        num_parameters: Elements of all parameters, shared ones once.
        model_flops: Operations of a pass without recomputation, as the model-flops utilization (MFU) counts them. A
            fused attention backward counts twice its forward. Convention of `torch.utils.flop_counter`: matrix
            products, convolutions and attention alone; a multiplication and an addition are two operations; a causal
            mask does not halve fused attention. A transformer has 6 N + 12 L h s a token (Source: PaLM, arXiv
            2204.02311, appendix B).
        hardware_flops: Operations of a pass with the recomputation that the compiler keeps, as the hardware-flops
            utilization (HFU) counts them, by the same convention. A fused attention backward counts 2.5 times its
            forward (Source: arXiv 2205.05198).
        bytes_moved: Fewest bytes that the kernels of a pass read and write.
        kernels: Kernels of a pass, equal ones once; empty where they were not recorded.
        dispatches: How often the host makes each kind of call in a pass.
        update_kernels: Kernels of the update, as of a pass.
        update_dispatches: Calls of the host in it.
        resident: Buffers alive during the whole step: weights, gradients, optimizer states, the batch.
        peaks: For each phase, the moments that are the highest for some size.
        relative_sd: Standard deviation of the relative error of the memory, from the benchmark of the trace.
        trace_s: Seconds that the trace took.
        device: Device type of the traced program; the numbers are an estimate where the job's is another.
        device_name: Name of the accelerator by its driver; empty for the CPU's program.
        compiler: Versions that made the program, such as `torch 2.13.0`.
        notes: Lines that qualify the numbers.
        growing: What a step of the user's own keeps more of after each step, a line each.
        unknown: Share of all bytes moved, by name, of each operator whose operations are not known and count as 0.
        num_blocks: Length of each run of identical blocks in the model; 0 without a run, and if lengths differ.
        small: The same step as it is compiled for small sizes, where the compiler's choice of what to keep for the
            backward pass, or its order of operators, depends on the size; None where it does not.
        largest_small: The largest size whose memory is that of `small`.
        remembered_from: Time of the trace (ISO 8601, UTC) if an earlier run made it; else None.
        by_length: Traces at several lengths, where batches of one size have other numbers of rows: memory is that of
            the batch that needs most. None where it is that of the longest samples.
        measured_at: Sizes of the real steps that were measured instead of a trace; empty for a trace.
        why_untraced: Why there is no trace, in one line; empty for a trace.
    """

    fingerprint: str
    num_parameters: int
    model_flops: Polynomial
    hardware_flops: Polynomial
    bytes_moved: Polynomial
    resident: tuple[Buffer, ...]
    peaks: Mapping[Phase, tuple[Peak, ...]]
    relative_sd: float
    trace_s: float
    device: str
    compiler: str
    device_name: str = ""
    kernels: tuple[TracedKernel, ...] = ()
    dispatches: Mapping[Dispatch, float] = field(default_factory=dict)
    update_kernels: tuple[TracedKernel, ...] = ()
    update_dispatches: Mapping[Dispatch, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    unknown: Mapping[str, float] = field(default_factory=dict)
    num_blocks: int = 0
    small: CostModel | None = None
    largest_small: int = 0
    remembered_from: str | None = None
    by_length: MemoryByLength | None = None
    measured_at: tuple[int, ...] = ()
    why_untraced: str = ""

    @property
    def has_operations(self) -> bool:
        """Whether operations are known: of ranks that were measured they are not, and are zero."""
        return not self.measured_at or bool(self.hardware_flops)

    @property
    def flops_per_sample(self) -> float:
        """Model operations of a pass for one sample, as the model-flops utilization counts them."""
        return self.model_flops(1)

    @property
    def hardware_flops_per_sample(self) -> float:
        """Operations of a pass for one sample, recomputation included."""
        return self.hardware_flops(1)

    def kernel_calls(self, micro_batch_size: int) -> dict[Kernel, float]:
        """Return how often a pass runs each kernel; empty where they were not recorded."""
        return _count_calls(self.kernels, micro_batch_size)

    def exchanges(self, micro_batch_size: int, num_ranks: int) -> tuple[Exchange, ...]:
        """Return the collectives of a pass of ranks that share matrices, so many of them in a group."""
        return tuple(
            Exchange(
                collective=Collective(traced.kind.value),
                num_bytes=traced.calls * traced.sizes[0](micro_batch_size),
                num_ranks=num_ranks,
                num_messages=traced.calls,
            )
            for traced in self.kernels
            if traced.kind.is_collective
        )

    def update_kernel_calls(self) -> dict[Kernel, float]:
        """Return how often an update runs each kernel; empty in evaluation, and where they were not recorded."""
        return _count_calls(self.update_kernels, 1)

    def activation_bytes(self, micro_batch_size: int) -> float:
        """Return the most bytes that a pass takes beside what is alive during the whole step."""
        phases = self.phases(micro_batch_size)
        passes = max((size for name, size in phases.items() if name != Phase.UPDATE.value), default=0)
        return max(0.0, passes - math.fsum(buffer.size(micro_batch_size) for buffer in self.resident))

    def peak_memory_bytes(self, micro_batch_size: int) -> int:
        """Return the bytes that the allocator holds at the highest moment of a step.

        The step has two accumulation passes, so that old and new gradients meet, and is not the first: the optimizer
        has its states.
        """
        return max(self.phases(micro_batch_size).values())

    def phases(self, micro_batch_size: int) -> dict[str, int]:
        """Return the peak bytes by phase: `forward`, `backward`, `update`; evaluation has the first alone."""
        if self.by_length is not None:
            return self.by_length.phases(*self.by_length.worst_batch(micro_batch_size))
        return {
            phase.value: max(math.ceil(peak.size(micro_batch_size)) for peak in peaks)
            for phase, peaks in self._choose_peaks(micro_batch_size).items()
        }

    def peak_at(self, micro_batch_size: int) -> tuple[Phase, Peak]:
        """Return the highest moment of a step and the phase in which it lies."""
        return max(
            ((phase, peak) for phase, peaks in self._choose_peaks(micro_batch_size).items() for peak in peaks),
            key=lambda moment: moment[1].size(micro_batch_size),
        )

    def _choose_peaks(self, micro_batch_size: int) -> Mapping[Phase, tuple[Peak, ...]]:
        if self.small is not None and micro_batch_size <= self.largest_small:
            return self.small._choose_peaks(micro_batch_size)
        return self.peaks

    def largest_buffers(self, micro_batch_size: int) -> list[tuple[str, int]]:
        """Return the places of the source, or kinds of state, that hold most bytes at the peak, largest first."""
        if self.by_length is not None:
            num_rows, length = self.by_length.worst_batch(micro_batch_size)
            return self.by_length.nearest(length).largest_buffers(num_rows)
        _, peak = self.peak_at(micro_batch_size)
        sizes = [(buffer.label, round(buffer.size(micro_batch_size))) for buffer in peak.buffers]
        return sorted((item for item in sizes if item[1] > 0), key=lambda item: -item[1])

    def max_micro_batch_size(self, budget_bytes: float, limit: int = MAX_SAMPLES) -> int:
        """Return the largest size up to `limit` whose peak is within the budget; 0 where not even one sample fits."""
        return bisect.bisect_right(range(1, limit + 1), budget_bytes, key=self.peak_memory_bytes)


def _count_calls(kernels: Sequence[TracedKernel], micro_batch_size: int) -> dict[Kernel, float]:
    calls: dict[Kernel, float] = {}
    for traced in (one for one in kernels if not one.kind.is_collective):
        kernel = traced.at(micro_batch_size)
        calls[kernel] = calls.get(kernel, 0.0) + traced.calls
    return calls


def describe_source(measured_at: Sequence[int], why_untraced: str) -> str:
    """Return what memory comes from: "the trace", or the sizes of the steps that were run and why there is no trace."""
    if not measured_at:
        return "the trace"
    *first, last = map(str, measured_at)
    return f"steps measured at {', '.join(first)} and {last}, not traced: {why_untraced}"


def describe_unknown(unknown: Mapping[str, float]) -> tuple[str, ...]:
    """Return a line that names the operators whose operations are not counted; none where all are known."""
    if not unknown:
        return ()
    named = ", ".join(f"{name} ({format_share(share)} of the bytes moved)" for name, share in unknown.items())
    return (f"operations count as 0 where they are not known: {named}; MFU is too low, a plan by MFU too short",)


def traced_lengths(lengths: Lengths) -> tuple[int, ...]:
    """Return the lengths at which a job is traced, the longest first."""
    step = lengths.multiple_of
    found = [lengths.longest / part for part in _PARTS]
    if lengths.collation is Collation.TOKENS:
        shortest = max(lengths.extreme_batches(1)[-1].length, _FEWEST_TOKENS)
        found = [length for length in found if length > shortest]
        if found and found[-1] > _FAR * shortest:
            found.append(math.sqrt(found[-1] * shortest))
        found.append(shortest)
    padded = dict.fromkeys(math.ceil(length / step) * step for length in found)
    return tuple(length for length in padded if length >= _FEWEST_TOKENS or length == lengths.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByLength:
    """The traces of one job at several lengths of its samples."""

    models: Mapping[int, CostModel]  # by length, tokens
    lengths: Lengths  # of the samples

    def peak_memory_bytes(self, num_rows: int, length: int) -> int:
        """Return the peak of a step whose batches have a number of rows and a length."""
        return max(self.phases(num_rows, length).values())

    def phases(self, num_rows: int, length: int) -> dict[str, int]:
        """Return the peak of such a step by phase: a polynomial through the nearest traced lengths."""
        near = sorted(self.models, key=lambda traced: abs(math.log(traced / length)))[:_NUM_NODES]
        peaks = {traced: self.models[traced].phases(num_rows) for traced in near}
        return {
            phase: round(_interpolate({traced: found[phase] for traced, found in peaks.items()}, length))
            for phase in peaks[near[0]]
        }

    def nearest(self, length: int) -> CostModel:
        """Return the trace at the length nearest to one."""
        return self.models[min(self.models, key=lambda traced: abs(math.log(traced / length)))]

    def worst_batch(self, micro_batch_size: int) -> BatchShape:
        """Return the batch of the collation that needs most memory: an extreme one, or at a traced length between."""
        lengths, extremes = self.lengths, self.lengths.extreme_batches(micro_batch_size)
        between = [length for length in self.models if extremes[-1].length < length < extremes[0].length]
        shapes = [*extremes, *(BatchShape(lengths.num_rows(micro_batch_size, length), length) for length in between)]
        return max(shapes, key=lambda shape: self.peak_memory_bytes(*shape))

    def longest_that_fits(self, micro_batch_size: int, budget_bytes: float, *, limit: int) -> int:
        """Return the largest length up to a limit whose peak is within a budget; 0 where none is.

        One trace tells nothing of other lengths.
        """
        if len(self.models) == 1:
            limit = min(limit, *self.models)
        of_tokens = self.lengths.collation is Collation.TOKENS

        def peak(length: int) -> int:
            rows = max(1, self.lengths.num_rows(micro_batch_size, length)) if of_tokens else micro_batch_size
            return self.peak_memory_bytes(rows, length)

        shortest = self.lengths.longest if of_tokens else 1  # shorter rows of a number of tokens are more
        num_fitting = bisect.bisect_right(range(shortest, limit + 1), budget_bytes, key=peak)
        return shortest - 1 + num_fitting if num_fitting else 0


def _interpolate(values: Mapping[int, float], place: int) -> float:
    """Return the polynomial through some values at a place (Lagrange)."""
    return sum(value * _weight(at, list(values), place) for at, value in values.items())


def _weight(at: int, places: Sequence[int], place: int) -> float:
    return math.prod((place - other) / (at - other) for other in places if other != at)


def find_peaks(resident: Sequence[Buffer], events: Sequence[Event], *, past: Sequence[Event] = ()) -> tuple[Peak, ...]:
    """Find the moments that are the highest for some micro-batch size; their maximum at b is the memory needed at b."""
    held = [*(buffer.size for buffer in resident), *(event.size for event in past)]
    start = np.array(sum(held, start=NOTHING).as_record())
    deltas = np.array([event.size.as_record() for event in events]).reshape(-1, 3)
    running = start + np.vstack([np.zeros(3), np.cumsum(deltas, axis=0)])
    return tuple(
        Peak(
            size=Polynomial.from_record([_whole(value) for value in running[index]]),
            buffers=_find_largest(resident, [*past, *events[:index]]),
        )
        for index in _find_upper_envelope(running)
    )


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else float(value)


def _find_upper_envelope(running: np.ndarray) -> list[int]:
    """Return the rows of (num_moments, 3) coefficients that are the maximum for some b >= 1, by growing b."""
    order = np.lexsort((-running[:, 0], -running[:, 1], -running[:, 2]))
    kept: list[int] = []
    for index in order:
        if not any(np.all(running[other] >= running[index]) for other in kept):
            kept.append(int(index))
    kept.reverse()  # the steepest last
    if np.any(running[kept, 2]):
        return kept
    return _find_hull([(float(running[index, 0]), float(running[index, 1]), index) for index in kept])


def _find_hull(lines: Sequence[tuple[float, float, int]]) -> list[int]:
    """Return those lines (constant, slope, index), by growing slope, that form the upper hull at b >= 1."""
    hull: list[tuple[float, float, int]] = []
    for line in lines:
        while hull and _crossing(hull[-1], line) <= (_crossing(hull[-2], hull[-1]) if len(hull) > 1 else 1.0):
            hull.pop()
        hull.append(line)
    return [index for _, _, index in hull]


def _crossing(first: tuple[float, float, int], second: tuple[float, float, int]) -> float:
    return (first[0] - second[0]) / (second[1] - first[1])


def _find_largest(resident: Sequence[Buffer], past: Sequence[Event]) -> tuple[Buffer, ...]:
    alive: dict[str, Polynomial] = {buffer.label: buffer.size for buffer in resident}
    for event in past:
        alive[event.place.label] = alive.get(event.place.label, Polynomial()) + event.size
    at_typical_size = sorted(alive.items(), key=lambda item: -item[1](TYPICAL_SIZE))
    return tuple(Buffer(label=label, size=size) for label, size in at_typical_size[:NUM_BUFFERS] if size(1) > 0)
