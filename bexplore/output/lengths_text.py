"""The lengths of samples in a result, in sentences; the summary and the report have the same."""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.run.lengths_result import LengthsResult, OtherCollation
from bexplore.units import format_bytes, format_seconds

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


def lengths_rows(lengths: LengthsResult | None) -> Iterator[tuple[str, str]]:
    """Yield rows of the summary, a label and a sentence each; none where all samples are as long."""
    if lengths is None:
        return
    if lengths.micro_batch_tokens is not None:
        yield "tokens", tokens_sentence(lengths, lengths.micro_batch_tokens)
    yield "lengths", lengths_sentence(lengths)
    yield "longest samples", longest_sentence(lengths)
    others = [_gain(name, one) for name, one in lengths.others.items()]
    if others:
        yield "padding", "; ".join(others)
    if lengths.is_static and lengths.num_lengths > 1:
        yield "programs", programs_sentence(lengths)


def tokens_sentence(lengths: LengthsResult, tokens: int) -> str:
    """Return what a batch of a number of tokens holds."""
    return (
        f"micro_batch_tokens {tokens}: the longest samples, {lengths.longest} tokens, in "
        f"{tokens // lengths.longest} rows, or typical ones, {lengths.typical} tokens, in "
        f"{lengths.typical_rows}"
    )


def lengths_sentence(lengths: LengthsResult) -> str:
    """Return the lengths of samples and of batches, and the tokens per second."""
    speed = "" if lengths.tokens_per_s is None else f"; {lengths.tokens_per_s:,.0f} tokens/s without padding"
    return (
        f"mean {lengths.mean:.0f}, median {lengths.median}, longest {lengths.longest} tokens ({lengths.source}), "
        f"{_COLLATIONS[lengths.collation]}: at this size half of the rows have up to {lengths.typical} tokens, and "
        f"{lengths.padding_share:.0%} of the tokens are padding{speed}"
    )


def longest_sentence(lengths: LengthsResult) -> str:
    """Return that the size ran with the longest samples, and what the trace says of other lengths."""
    text = f"ran with a batch of the longest samples, {lengths.longest} tokens each, after typical ones"
    if lengths.typical_memory_bytes is not None:
        text += f"; a batch of {lengths.typical} tokens needs {format_bytes(lengths.typical_memory_bytes)} by the trace"
    if lengths.longest_that_fits:
        text += f", and rows of up to {lengths.longest_that_fits} tokens fit the budget"
    return text


def programs_sentence(lengths: LengthsResult) -> str:
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


def _gain(name: str, other: OtherCollation) -> str:
    measured = "" if other.measured is None else f", {other.measured:.2f}x as timed at this size"
    return (
        f"{_OTHERS[name]} leaves {other.padding_share:.0%} of padding: {other.predicted:.2f}x the tokens/s by the "
        f"count of tokens{measured}"
    )
