"""Peak memory of a step by micro-batch size and by the length of its samples, from traces at a few lengths.

A trace is exact for every size at one length. Between lengths the peak of each phase is the quadratic polynomial
through the traced ones: attention grows with the square of the length, everything else in proportion. How exact that
is: benchmarks/results/lengths.md.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bexplore.job.lengths import Lengths
from bexplore.trace.cost_model import CostModel

_PARTS = (1, 2, 4)  # of the longest length, at which is traced
_FEWEST_TOKENS = 8  # a shorter length is traced for no job


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
