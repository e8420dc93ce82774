"""Micro-batch size x accumulation steps x replicas, and which global batch sizes are valid with them.

The *replica batch size* is the samples of one replica in one optimizer step. It is cut into `accumulation_steps`
micro-batches of `micro_batch_size` samples, and `num_replicas` replica batches make the *global* batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bexplore.errors import UserInputError
from bexplore.units import counted

# The indifference zone: two micro-batch sizes whose samples/s are within this share of each other count as equal. The
# default of `explore.tolerance`. Source: the term, Bechhofer, "A single-sample multiple decision procedure for ranking
# means of normal populations", 1954; the value, about the noise of a probe (1 %) of both sizes.
INDIFFERENCE_ZONE = 0.02
MAX_SAMPLES = 10**9  # of a batch or a micro-batch; beyond, the number is a slip


class Divisibility(StrEnum):
    """Rule by which a global batch is cut into micro-batches.

    Source: the Cerebras documentation, releases 2.0 to 2.2 (strict) and 2.5 (even).
    """

    STRICT = "strict"  # every micro-batch is whole
    EVEN = "even"  # the replica batch is cut into equal parts; the last may be smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatchSize:
    """A global batch size that is valid with a micro-batch size."""

    global_batch_size: int  # samples of one optimizer step over all replicas
    accumulation_steps: int  # micro-batches of one replica in one optimizer step
    num_tokens: int | None = None  # tokens of one optimizer step; None where the sequence length is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The micro-batches of one replica in one optimizer step."""

    micro_batch_size: int  # samples of each micro-batch but, with the even rule, perhaps the last
    accumulation_steps: int  # micro-batches in one optimizer step
    replica_batch_size: int  # samples of one replica in one optimizer step
    last_micro_batch_size: int  # samples of the last micro-batch; where they are fewer, weight the loss by samples


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive integer, ascending."""
    _require_positive(number, "number")
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def even_candidates(replica_batch_size: int) -> tuple[int, ...]:
    """Return the sizes that cut a replica batch evenly: `{ceil(P / k) : k = 1..P}`, descending.

    133 gives 133, 67, 45, 34, 27, 23, 19, 17, 15, 14, 13, ... 1.

    Source: the even rule of the Cerebras documentation, release 2.5.
    """
    _require_positive(replica_batch_size, "replica_batch_size")
    root = math.isqrt(replica_batch_size)
    # A part count above sqrt(P) gives a size of at most sqrt(P), which is tested directly: 2 sqrt(P) divisions in all.
    large = {-(-replica_batch_size // k) for k in range(1, root + 2)}
    small = {size for size in range(1, root + 2) if is_even_split(replica_batch_size, size)}
    return tuple(sorted(large | small, reverse=True))


def is_even_split(replica_batch_size: int, micro_batch_size: int) -> bool:
    """Return whether `micro_batch_size` is `ceil(P / k)` for some k of 1..P."""
    if not 1 <= micro_batch_size <= replica_batch_size:
        return False
    accumulation_steps = -(-replica_batch_size // micro_batch_size)
    return -(-replica_batch_size // accumulation_steps) == micro_batch_size


def divide_among_replicas(global_batch_size: int, num_replicas: int, rule: Divisibility = Divisibility.STRICT) -> int:
    """Return the samples of one replica in a step: the exact share (strict) or the largest one (even)."""
    _require_positive(global_batch_size, "batch_size")
    _require_positive(num_replicas, "num_replicas")
    if global_batch_size < num_replicas:
        raise UserInputError(
            f"batch_size {global_batch_size} is smaller than the {num_replicas} replicas: some would have no sample",
            hint=f"type batch_size: {num_replicas}, or fewer replicas",
        )
    if rule is Divisibility.STRICT and global_batch_size % num_replicas:
        below = global_batch_size // num_replicas * num_replicas
        raise UserInputError(
            f"batch_size {global_batch_size} is not a multiple of the {num_replicas} replicas",
            hint=f"type batch_size: {_either(below or None, below + num_replicas)}, or set explore.divisibility: even",
        )
    return -(-global_batch_size // num_replicas)


def split(
    global_batch_size: int, num_replicas: int, micro_batch_size: int, rule: Divisibility = Divisibility.STRICT
) -> Split:
    """Cut a global batch into micro-batches, or raise an error with the nearest numbers that fit.

    With the even rule a size that is not allowed moves to the nearest one that is: 168 of 337 becomes 169 in 2 parts.
    """
    _require_positive(micro_batch_size, "micro_batch_size")
    replica_batch_size = divide_among_replicas(global_batch_size, num_replicas, rule)
    if micro_batch_size > replica_batch_size:
        raise UserInputError(
            f"micro_batch_size {micro_batch_size} is above the {replica_batch_size} samples that one replica has "
            f"(batch_size {global_batch_size} on {counted(num_replicas, 'replica')})",
            hint=f"type micro_batch_size: {replica_batch_size}, or a larger batch_size",
        )
    if rule is Divisibility.STRICT and replica_batch_size % micro_batch_size:
        near = nearest(divisors(replica_batch_size), micro_batch_size)
        raise UserInputError(
            f"one replica's {replica_batch_size} samples are not a multiple of micro_batch_size {micro_batch_size}",
            hint=f"type micro_batch_size: {_either(*near)}, or set explore.divisibility: even",
        )
    allowed = _nearest_even_split(replica_batch_size, micro_batch_size)
    accumulation_steps = -(-replica_batch_size // allowed)
    return Split(
        micro_batch_size=allowed,
        accumulation_steps=accumulation_steps,
        replica_batch_size=replica_batch_size,
        last_micro_batch_size=replica_batch_size - allowed * (accumulation_steps - 1),
    )


def valid_global_batch_sizes(
    micro_batch_size: int,
    num_replicas: int,
    near: int | None = None,
    rule: Divisibility | str = Divisibility.STRICT,
    tokens_per_sample: float | None = None,
    *,
    count: int = 5,
) -> tuple[GlobalBatchSize, ...]:
    """Return valid global batch sizes for a micro-batch size, ascending: those nearest to the user's own.

    Strict: the multiples of `micro_batch_size * num_replicas`. Even: every global size whose replica batch is cut
    into equal parts of `micro_batch_size`; there are many, so the nearest are listed.

    Args:
        micro_batch_size: Samples of one replica in one pass.
        num_replicas: Data-parallel replicas.
        near: The user's global batch size. It is in the result if it is valid; if not, the result has valid sizes on
            both sides wherever there are any below. None lists the smallest ones.
        rule: `strict` or `even`.
        tokens_per_sample: Mean tokens of a sample; None leaves `num_tokens` unknown.
        count: How many to list, at least 2.

    Raises:
        UserInputError: A number that is not positive, or a rule that is not known.
    """
    _require_positive(micro_batch_size, "micro_batch_size")
    _require_positive(num_replicas, "num_replicas")
    center = near if near is not None else micro_batch_size * num_replicas
    _require_positive(center, "batch_size")
    around = _strict_around if _divisibility(rule) is Divisibility.STRICT else _even_around
    return tuple(
        GlobalBatchSize(
            global_batch_size=size,
            accumulation_steps=-(-size // (micro_batch_size * num_replicas)),
            num_tokens=None if tokens_per_sample is None else round(size * tokens_per_sample),
        )
        for size in around(center, micro_batch_size, num_replicas, max(2, count))
    )


def is_valid_global_batch_size(
    global_batch_size: int, micro_batch_size: int, num_replicas: int, rule: Divisibility | str = Divisibility.STRICT
) -> bool:
    """Return whether a global batch is cut by the micro-batch size and the replicas under the rule."""
    if min(global_batch_size, micro_batch_size, num_replicas) < 1 or global_batch_size < num_replicas:
        return False
    if _divisibility(rule) is Divisibility.STRICT:
        return global_batch_size % (micro_batch_size * num_replicas) == 0
    return is_even_split(-(-global_batch_size // num_replicas), micro_batch_size)


def nearest(sizes: Sequence[int], target: int) -> tuple[int | None, int | None]:
    """Return the largest of `sizes` at or below a target and the smallest at or above it; None for none."""
    return (
        max((size for size in sizes if size <= target), default=None),
        min((size for size in sizes if size >= target), default=None),
    )


def near_value_message(
    global_batch_size: int, micro_batch_size: int, num_replicas: int, rule: Divisibility | str = Divisibility.STRICT
) -> str:
    """Write whether a global batch size is valid with a micro-batch size, and if not, the nearest that are."""
    with_what = f"micro_batch_size {micro_batch_size} on {counted(num_replicas, 'replica')}"
    if is_valid_global_batch_size(global_batch_size, micro_batch_size, num_replicas, rule):
        steps = -(-global_batch_size // (micro_batch_size * num_replicas))
        return f"batch_size {global_batch_size} is valid with {with_what}: {counted(steps, 'accumulation step')}"
    listed = valid_global_batch_sizes(micro_batch_size, num_replicas, global_batch_size, rule)
    below, above = nearest([size.global_batch_size for size in listed], global_batch_size)
    return f"batch_size {global_batch_size} is not valid with {with_what}; nearest: {_either(below, above)}"


def sizes_that_keep(replica_batch_size: int, rule: Divisibility | str) -> tuple[int, ...]:
    """Return all micro-batch sizes that cut a replica batch under the rule, ascending."""
    if _divisibility(rule) is Divisibility.STRICT:
        return divisors(replica_batch_size)
    return tuple(reversed(even_candidates(replica_batch_size)))


def _nearest_even_split(replica_batch_size: int, micro_batch_size: int) -> int:
    """Return the allowed size nearest to a target, the larger of two that are equally near."""
    accumulation_steps = -(-replica_batch_size // micro_batch_size)
    below = -(-replica_batch_size // accumulation_steps)
    if below == micro_batch_size or accumulation_steps == 1:
        return below
    above = -(-replica_batch_size // (accumulation_steps - 1))
    return above if above - micro_batch_size <= micro_batch_size - below else below


def _strict_around(center: int, micro_batch_size: int, num_replicas: int, count: int) -> list[int]:
    """Return `count` multiples around `center`, ascending, the nearest on both sides among them."""
    unit = micro_batch_size * num_replicas
    first = max(1, center // unit - (count - 1) // 2)
    return [unit * multiple for multiple in range(first, first + count)]


def _even_around(center: int, micro_batch_size: int, num_replicas: int, count: int) -> list[int]:
    """Return `count` global sizes around `center` with replica batches cut evenly into `micro_batch_size`.

    For k accumulation steps the replica batches are (m - 1) k + 1 ... m k, so the valid global sizes are the interval
    R ((m - 1) k) + 1 ... R m k. The nearest of them are those of the steps around center / (R m); each interval is
    thinned to its end (all micro-batches whole) unless the target itself lies in it.
    """
    whole = micro_batch_size * num_replicas
    around = max(1, -(-center // whole))
    ends: set[int] = set()
    for steps in range(max(1, around - count), around + count + 1):
        first, last = num_replicas * (micro_batch_size - 1) * steps + 1, whole * steps
        first = max(first, num_replicas)
        ends.update((min(max(center, first), last), last))
    below = sorted((size for size in ends if size <= center), reverse=True)
    above = sorted(size for size in ends if size > center)
    num_below = max(min(len(below), (count + 1) // 2), count - len(above))
    return sorted(below[:num_below] + above[: count - min(num_below, len(below))])


def _divisibility(rule: Divisibility | str) -> Divisibility:
    try:
        return Divisibility(rule)
    except ValueError:
        raise UserInputError(f'divisibility must be strict or even, not "{rule}"', hint="type strict") from None


def _require_positive(number: int, name: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UserInputError(f"{name} must be a positive integer, not {number!r}", hint=f"type {name}: 1 or more")


def _either(below: int | None, above: int | None) -> str:
    """Write one or two numbers for a hint."""
    numbers = [str(number) for number in dict.fromkeys((below, above)) if number is not None]
    return " or ".join(numbers)
