"""The lengths of samples in a result: padding, memory at typical and longest batches, other collations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bexplore.job import Job
from bexplore.job.lengths import Lengths
from bexplore.measurement.probe import Observation
from bexplore.trace.cost_model import MemoryByLength

# The longest sample that fits is searched up to this factor of the longest that there is.
_FARTHEST = 16
# Keys of a model's configuration that bound its sequences. Source: configurations of the package transformers.
_NAMES_OF_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCollation:
    """Another way to make batches of the same samples.

    Attributes:
        padding_share: Share of its tokens that is padding, 0 to 1.
        predicted: Its tokens/s over those of the training's collation, if a token of a row costs the same.
        measured: Likewise, by passes of the recommended size; None where it was not run.
    """

    padding_share: float
    predicted: float
    measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsResult:
    """The lengths of the training's samples and what follows from them at the recommended size.

    Attributes:
        source: Where the lengths are from.
        collation: How samples become a batch.
        mean: Mean tokens of a sample.
        median: Median tokens of a sample.
        longest: Tokens of the longest row.
        typical: Median tokens of a row of a batch.
        typical_rows: Rows of a batch whose rows are typical.
        micro_batch_tokens: Tokens of a batch, padding included, where they are what is explored; else None.
        padding_share: Share of the tokens of a batch that is padding, 0 to 1.
        tokens_per_s: Tokens of samples, without padding, in a second of passes.
        typical_memory_bytes: Peak of a step of typical batches, by the trace; None without traces.
        longest_that_fits: Tokens of the longest row whose batch fits the memory budget, by the trace, and for which the
            model has positions; None without.
        num_lengths: Different lengths of batches at the size.
        is_static: Whether each of them is a program of its own.
        compile_time_s: Seconds to compile one program; None where that was not measured.
        others: Other collations, by name.
    """

    source: str
    collation: str
    mean: float
    median: int
    longest: int
    typical: int
    typical_rows: int
    micro_batch_tokens: int | None
    padding_share: float
    tokens_per_s: float | None
    typical_memory_bytes: int | None
    longest_that_fits: int | None
    num_lengths: int
    is_static: bool
    compile_time_s: float | None
    others: Mapping[str, OtherCollation] = field(default_factory=dict)


def lengths_result(
    job: Job,
    micro_batch_size: int,
    ran: Observation | None,
    *,
    is_in_tokens: bool,
    memory: MemoryByLength | None,
    budget_bytes: float | None,
) -> LengthsResult | None:
    """Return what the lengths of a job's samples mean at a size; None where all are as long.

    Args:
        is_in_tokens: Whether the tokens of a batch are explored.
        ran: The observation that verifies the size.
        memory: Traces at several lengths.
        budget_bytes: The memory budget.
    """
    lengths = job.lengths
    if lengths is None:
        return None
    rows = lengths.batch_lengths(micro_batch_size)
    typical = int(np.median(rows))
    typical_rows = lengths.num_rows(micro_batch_size, typical)
    typical_bytes = None if memory is None else memory.peak_memory_bytes(typical_rows, typical)
    fits = None
    if memory is not None and budget_bytes is not None:
        limit = min(_positions(job) or _FARTHEST * lengths.longest, _FARTHEST * lengths.longest)
        fits = memory.longest_that_fits(micro_batch_size, budget_bytes, limit=limit)
    return LengthsResult(
        source=lengths.source,
        collation=lengths.collation.value,
        mean=lengths.mean,
        median=lengths.quantile(0.5),
        longest=lengths.longest,
        typical=typical,
        typical_rows=typical_rows,
        micro_batch_tokens=micro_batch_size * lengths.longest if is_in_tokens else None,
        padding_share=lengths.padding_share(micro_batch_size),
        tokens_per_s=None if ran is None else ran.samples_per_s * lengths.mean * lengths.samples_per_row(),
        typical_memory_bytes=typical_bytes,
        longest_that_fits=fits,
        num_lengths=len(np.unique(rows)),
        is_static=job.compile.enabled and job.compile.dynamic is False,
        compile_time_s=_compile_time_s(ran),
        others=_others(lengths, micro_batch_size, ran),
    )


def _positions(job: Job) -> int | None:
    """Return the longest sequence that the model has positions for; None where its configuration does not say."""
    config: Mapping[str, Any] = job.model.get("config") or job.model
    found = (config.get(name) for name in _NAMES_OF_POSITIONS)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _compile_time_s(ran: Observation | None) -> float | None:
    """Return the seconds of one compilation: a forward and a backward graph make one program."""
    if ran is None or not ran.compile_time_s or not ran.num_graphs:
        return None
    return ran.compile_time_s / max(1, 1 + (ran.num_recompiles or 0))


def _others(lengths: Lengths, micro_batch_size: int, ran: Observation | None) -> dict[str, OtherCollation]:
    timed: Mapping[str, Any] = ran.details.get("collations", {}) if ran is not None else {}
    own_filled = 1.0 - lengths.padding_share(micro_batch_size)
    found = {}
    for other in lengths.others:
        padding_share = other.padding_share(micro_batch_size)
        over_own = timed.get(other.collation.value)  # seconds of a pass over those of the own collation
        samples = other.samples_per_row() / lengths.samples_per_row()
        found[other.collation.value] = OtherCollation(
            padding_share=padding_share,
            predicted=(1.0 - padding_share) / own_filled,
            measured=None if over_own is None else samples / over_own,
        )
    return found
