"""The lengths of samples: padding, memory at typical and longest batches, other collations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bexplore.job import Job
from bexplore.job.lengths import Lengths
from bexplore.measurement.probe import Observation
from bexplore.run.parts.row import Row, View
from bexplore.trace.cost_model import MemoryByLength
from bexplore.units import counted, format_bytes, format_seconds

# The longest sample that fits is searched up to this factor of the longest that there is.
_FARTHEST = 16
_COLLATIONS = {
    "longest": "padded to the longest of a batch",
    "max": "padded to the longest of all",
    "sorted": "sorted by length, padded to the longest of a batch",
    "buckets": "in buckets, padded to the longest of a batch",
    "packed": "packed into rows of the longest length",
    "tokens": "sorted by length, as many as have so many tokens with their padding",
}
_OTHERS = {"sorted": "sorting by length", "packed": "packing"}
# Distinct programs after which torch.compile gives a frame up. Source: `recompile_limit` in torch/_dynamo/config.py.
_MOST_PROGRAMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCollation:
    """Another way to make batches of the same samples."""

    padding_share: float  # share of its tokens that is padding, 0 to 1
    predicted: float  # its tokens/s over those of the training's collation, if a token of a row costs the same
    measured: float | None = None  # likewise, by passes of the recommended size; None where it was not run


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsPart:
    """The lengths of the training's samples and what follows from them at the recommended size."""

    source: str  # where the lengths are from
    collation: str  # how samples become a batch
    mean: float  # mean tokens of a sample
    median: int  # median tokens of a sample
    longest: int  # tokens of the longest row
    typical: int  # median tokens of a row of a batch
    typical_rows: int  # rows of a batch whose rows are typical
    micro_batch_tokens: int | None  # tokens of a batch, padding included, where they are what is explored; else None
    padding_share: float  # share of the tokens of a batch that is padding, 0 to 1
    tokens_per_s: float | None  # tokens of samples, without padding, in a second of passes
    typical_memory_bytes: int | None  # peak of a step of typical batches, by the trace; None without traces
    # Tokens of the longest row whose batch fits the memory budget, by the trace, and for which the model has positions;
    # None without.
    longest_that_fits: int | None
    num_lengths: int  # different lengths of batches at the size
    is_static: bool  # whether each of them is a program of its own
    compile_time_s: float | None  # seconds to compile one program; None where that was not measured
    num_positions: int | None = None  # tokens of the longest row that the model takes; None where that is not known
    others: Mapping[str, OtherCollation] = field(default_factory=dict)  # other collations, by name
    # Rows and tokens of the batch with which memory was read, the one that needs most; None where nothing ran.
    peak_batch: tuple[int, int] | None = None

    def rows(self, view: View) -> Iterator[Row]:
        """Yield the lengths of samples and batches, the longest that fit, padding, and the programs of lengths."""
        if self.micro_batch_tokens is not None:
            yield Row("tokens", _tokens_sentence(self, self.micro_batch_tokens))
        yield Row("lengths", _lengths_sentence(self))
        yield Row("longest samples", _longest_sentence(self))
        others = [_gain_words(name, one) for name, one in self.others.items()]
        if others:
            yield Row("padding", "; ".join(others))
        if self.is_static and self.num_lengths > 1:
            yield Row("programs", _programs_sentence(self))


def find_lengths(
    job: Job,
    micro_batch_size: int,
    ran: Observation | None,
    *,
    is_in_tokens: bool,
    memory: MemoryByLength | None,
) -> LengthsPart | None:
    """Return what the lengths of a job's samples mean at a size; None where all are as long.

    Args:
        is_in_tokens: Whether the tokens of a batch are explored.
        ran: The observation that verifies the size.
        memory: Traces at several lengths.
    """
    budget_bytes = ran.memory_budget_bytes if ran else None
    lengths = job.lengths
    if lengths is None:
        return None
    rows = lengths.batch_lengths(micro_batch_size)
    typical = int(np.median(rows))
    typical_rows = lengths.num_rows(micro_batch_size, typical)
    typical_bytes = None if memory is None else memory.peak_memory_bytes(typical_rows, typical)
    fits, positions = None, job.num_positions or (ran.details.get("num_positions") if ran is not None else None)
    if memory is not None and budget_bytes is not None:
        limit = min(positions or _FARTHEST * lengths.longest, _FARTHEST * lengths.longest)
        fits = memory.longest_that_fits(micro_batch_size, budget_bytes, limit=limit)
    return LengthsPart(
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
        num_positions=positions,
        num_lengths=len(np.unique(rows)),
        is_static=job.compile.enabled and job.compile.dynamic is False,
        peak_batch=_peak_batch(lengths, micro_batch_size, ran),
        compile_time_s=_compile_time_s(ran),
        others=_others(lengths, micro_batch_size, ran),
    )


def _peak_batch(lengths: Lengths, micro_batch_size: int, ran: Observation | None) -> tuple[int, int] | None:
    if ran is None:
        return None
    num_rows, length = ran.details.get("memory_batch") or lengths.extreme_batches(micro_batch_size)[0]
    return int(num_rows), int(length)


def _compile_time_s(ran: Observation | None) -> float | None:
    """Return the seconds of one compilation: a forward and a backward graph make one program."""
    if ran is None or not ran.compile_time_s or not ran.num_graphs:
        return None
    return ran.compile_time_s / max(1, 1 + (ran.num_recompiles or 0))


def _others(lengths: Lengths, micro_batch_size: int, ran: Observation | None) -> dict[str, OtherCollation]:
    # an emulated device has no times
    timed: Mapping[str, Any] = {} if ran is None or ran.is_emulated else ran.details.get("collations", {})
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


def _tokens_sentence(lengths: LengthsPart, tokens: int) -> str:
    """Return what a batch of a number of tokens holds."""
    return (
        f"micro_batch_tokens {tokens}: the longest samples, {lengths.longest} tokens, in "
        f"{tokens // lengths.longest} rows, or typical ones, {lengths.typical} tokens, in "
        f"{lengths.typical_rows}"
    )


def _lengths_sentence(lengths: LengthsPart) -> str:
    """Return the lengths of samples and of batches, and the tokens per second."""
    speed = "" if lengths.tokens_per_s is None else f"; {lengths.tokens_per_s:,.0f} tokens/s without padding"
    return (
        f"mean {lengths.mean:.0f}, median {lengths.median}, longest {lengths.longest} tokens ({lengths.source}), "
        f"{_COLLATIONS[lengths.collation]}: at this size half of the rows have up to {lengths.typical} tokens, and "
        f"{lengths.padding_share:.0%} of the tokens are padding{speed}"
    )


def _longest_sentence(lengths: LengthsPart) -> str:
    """Return with which batch the size ran when memory was read, and what the trace says of other lengths."""
    text = f"ran with a batch of the longest samples, {lengths.longest} tokens each, after typical ones"
    if lengths.micro_batch_tokens is not None and lengths.peak_batch is not None:
        num_rows, length = lengths.peak_batch
        which = "longest" if length == lengths.longest else "shortest"
        text = (
            f"needs most memory with the {which} samples, {counted(num_rows, 'row')} of {length} tokens: ran with "
            "these after typical ones"
        )
    if lengths.typical_memory_bytes is not None:
        text += f"; a batch of {lengths.typical} tokens needs {format_bytes(lengths.typical_memory_bytes)} by the trace"
    if lengths.longest_that_fits:
        text += f", and rows of up to {lengths.longest_that_fits} tokens fit the budget"
        if lengths.num_positions is None and lengths.longest_that_fits > lengths.longest:
            text += ", if the model takes them: its positions are not known"
    return text


def _programs_sentence(lengths: LengthsPart) -> str:
    """Return what compiling each length as a program of its own costs."""
    cost = ""
    if lengths.compile_time_s is not None:
        each_s = lengths.compile_time_s
        cost = f", {format_seconds(each_s)} each, {format_seconds(each_s * lengths.num_lengths)} in the first epoch"
    beyond = f"; torch.compile gives up after {_MOST_PROGRAMS}" if lengths.num_lengths > _MOST_PROGRAMS else ""
    return (
        f"compile.dynamic: false makes a program for each length, {lengths.num_lengths} at this size{cost}{beyond}; "
        "compile.dynamic: null makes one for all"
    )


def _gain_words(name: str, other: OtherCollation) -> str:
    measured = "" if other.measured is None else f", {other.measured:.2f}x as timed at this size"
    return (
        f"{_OTHERS[name]} leaves {other.padding_share:.0%} of padding: {other.predicted:.2f}x the tokens/s by the "
        f"count of tokens{measured}"
    )
