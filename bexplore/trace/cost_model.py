"""`CostModel`: memory, operations and traffic of one job as functions of the micro-batch size.

`trace_job` makes a cost model; evaluating it needs no torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bexplore.job.batching import MAX_SAMPLES
from bexplore.job.lengths import Lengths
from bexplore.trace.timeline import Buffer, Peak, Phase, Polynomial

_PARTS = (1, 2, 4)  # of the longest length, at which is traced
_FEWEST_TOKENS = 8  # a shorter length is traced for no job


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Cost of a training step of one replica, for every micro-batch size at once.

    Attributes:
        fingerprint: Sixteen hexadecimal digits: the same for the same traced program, on every machine.
        num_parameters: Elements of all parameters, shared ones once.
        model_flops: Operations of a pass without recomputation, as the model-flops utilization (MFU) counts them. A
            fused attention backward counts twice its forward. Convention of `torch.utils.flop_counter`: matrix
            products, convolutions and fused attention alone; a multiplication and an addition are two operations; a
            causal mask does not halve attention. A transformer has 6 N + 12 L h s a token (Source: PaLM, arXiv
            2204.02311, appendix B).
        hardware_flops: Operations of a pass with the recomputation that the compiler keeps, as the hardware-flops
            utilization (HFU) counts them, by the same convention. A fused attention backward counts 2.5 times its
            forward (Source: arXiv 2205.05198).
        bytes_moved: Fewest bytes that the kernels of a pass read and write.
        resident: Buffers alive during the whole step: weights, gradients, optimizer states, the batch.
        peaks: For each phase, the moments that are the highest for some size.
        relative_sd: Standard deviation of the relative error of the memory, from the benchmark of the trace.
        trace_s: Seconds that the trace took.
        device: Device type of the traced program; the numbers are an estimate where the job's is another.
        device_name: Name of the accelerator by its driver; empty for the CPU's program.
        compiler: Versions that made the program, such as `torch 2.13.0`.
        notes: Lines that qualify the numbers.
        num_blocks: Length of each run of identical blocks in the model; 0 without a run, and if lengths differ.
        small: The same step as it is compiled for small sizes, where the compiler's choice of what to keep for the
            backward pass depends on the size; None where it does not.
        largest_small: The largest size whose memory is that of `small`.
        remembered_from: Time of the trace (ISO 8601, UTC) if an earlier run made it; else None.
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
    notes: tuple[str, ...] = ()
    num_blocks: int = 0
    small: CostModel | None = None
    largest_small: int = 0
    remembered_from: str | None = None

    @property
    def flops_per_sample(self) -> float:
        """Model operations of a pass for one sample, as the model-flops utilization counts them."""
        return self.model_flops(1)

    @property
    def hardware_flops_per_sample(self) -> float:
        """Operations of a pass for one sample, recomputation included."""
        return self.hardware_flops(1)

    def peak_memory_bytes(self, micro_batch_size: int) -> int:
        """Return the bytes that the allocator holds at the highest moment of a step.

        The step has two accumulation passes, so that old and new gradients meet, and is not the first: the optimizer
        has its states.
        """
        return max(self.phases(micro_batch_size).values())

    def phases(self, micro_batch_size: int) -> dict[str, int]:
        """Return the peak bytes by phase: `forward`, `backward`, `update`; evaluation has the first alone."""
        return {
            phase.value: max(math.ceil(peak.size(micro_batch_size)) for peak in peaks)
            for phase, peaks in self._peaks_of(micro_batch_size).items()
        }

    def peak_at(self, micro_batch_size: int) -> tuple[Phase, Peak]:
        """Return the highest moment of a step and the phase in which it lies."""
        return max(
            ((phase, peak) for phase, peaks in self._peaks_of(micro_batch_size).items() for peak in peaks),
            key=lambda moment: moment[1].size(micro_batch_size),
        )

    def _peaks_of(self, micro_batch_size: int) -> Mapping[Phase, tuple[Peak, ...]]:
        return self.small.peaks if self.small is not None and micro_batch_size <= self.largest_small else self.peaks

    def largest_buffers(self, micro_batch_size: int) -> list[tuple[str, int]]:
        """Return the places of the source, or kinds of state, that hold most bytes at the peak, largest first."""
        _, peak = self.peak_at(micro_batch_size)
        sizes = [(buffer.label, round(buffer.size(micro_batch_size))) for buffer in peak.buffers]
        return sorted((item for item in sizes if item[1] > 0), key=lambda item: -item[1])

    def max_micro_batch_size(self, budget_bytes: float, limit: int = MAX_SAMPLES) -> int:
        """Return the largest size up to `limit` whose peak is within the budget; 0 where not even one sample fits."""
        return bisect.bisect_right(range(1, limit + 1), budget_bytes, key=self.peak_memory_bytes)


def traced_lengths(lengths: Lengths) -> tuple[int, ...]:
    """Return the lengths at which a job is traced, the longest first."""
    step = lengths.multiple_of
    found = [math.ceil(lengths.longest / part / step) * step for part in _PARTS]
    return tuple(dict.fromkeys(length for length in found if length >= _FEWEST_TOKENS or length == lengths.longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByLength:
    """The traces of one job at several lengths of its samples.

    Attributes:
        models: By length, tokens.
    """

    models: Mapping[int, CostModel]

    def peak_memory_bytes(self, micro_batch_size: int, length: int) -> int:
        """Return the peak of a step whose batches have a size and a length."""
        by_length = {traced: model.phases(micro_batch_size) for traced, model in self.models.items()}
        phases = next(iter(by_length.values()))
        return max(
            round(_interpolate({traced: peaks[phase] for traced, peaks in by_length.items()}, length))
            for phase in phases
        )

    def longest_that_fits(self, micro_batch_size: int, budget_bytes: float, *, limit: int) -> int:
        """Return the largest length up to a limit whose peak is within a budget; 0 where none is.

        One trace tells nothing of other lengths.
        """
        if len(self.models) == 1:
            limit = min(limit, *self.models)
        return bisect.bisect_right(
            range(1, limit + 1), budget_bytes, key=lambda length: self.peak_memory_bytes(micro_batch_size, length)
        )


def _interpolate(values: Mapping[int, float], place: int) -> float:
    """Return the polynomial through some values at a place (Lagrange)."""
    return sum(value * _weight(at, list(values), place) for at, value in values.items())


def _weight(at: int, places: Sequence[int], place: int) -> float:
    return math.prod((place - other) / (at - other) for other in places if other != at)
