"""The lengths of a training's samples, and of the batches that its collation makes of them.

A batch is as long as its longest sample, so a larger micro-batch pads more: the speed of a size is a mean over the
batches that a collation makes at it. Batches of all sizes are cut from one sequence of samples, so that sizes are
compared on the same data. A few batches stand for all of a size: see `typical_batches`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Samples of the sequence from which the batches of every size are cut: so many that the longest batch of 64 samples is
# seen 1,024 times. Source: benchmarks/results/lengths_draws.md.
NUM_SAMPLES = 2**16
# Batches that stand for all of a size: with four, the mean of a polynomial of the third degree in the length is exact,
# also after their lengths are rounded. Source: benchmarks/results/lengths_draws.md.
NUM_BATCHES = 4
# Batches whose lengths differ less than this, as variance over squared mean, are one length: were a pass quadratic in
# it, its mean would be so much longer at most.
ALIKE = 1e-3
# Distinct lengths of a distribution; more are put together.
MAX_DISTINCT = 1000
# Batches over which samples are sorted. Source: `LengthGroupedSampler` (mega_batch_mult) of the package transformers.
SORTED_BATCHES = 50
_ORDER_SEED = 0  # of the sequence of samples

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Collation(StrEnum):
    """How samples of different lengths become a batch."""

    LONGEST = "longest"  # padded to the longest sample of the batch
    MAXIMUM = "max"  # padded to the longest sample of all
    SORTED = "sorted"  # as `longest`, of samples that are sorted by length within many batches
    BUCKETS = "buckets"  # as `longest`, of samples of one bucket
    PACKED = "packed"  # several samples in each row of the longest length
    TOKENS = "tokens"  # sorted, and as many samples as have a number of tokens, padding included


class BatchShape(NamedTuple):
    """The rows of a batch and their length."""

    num_rows: int
    length: int  # tokens of a row, padding included


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalBatch:
    """One of the batches that stand for all of a size."""

    length: int  # tokens of a row, padding included
    num_rows: int  # its rows: the micro-batch size, but for batches of a number of tokens
    share: float  # share of the batches of the size for which it stands, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of the lengths of samples, and how they become batches."""

    values: tuple[int, ...]  # distinct lengths, ascending
    weights: tuple[float, ...]  # share of each, which add up to 1
    collation: Collation = Collation.LONGEST  # how samples become a batch
    multiple_of: int = 1  # rows are padded to a multiple of this
    buckets: tuple[int, ...] = ()  # ascending upper bounds of buckets; for `buckets` alone
    argument: str = "sequence_length"  # name by which the user's own callables take the length of a batch
    source: str = field(default="", compare=False)  # where the distribution is from, in words

    @classmethod
    def from_samples(
        cls, lengths: Sequence[int] | Integers, weights: Sequence[float] | None = None, **fields: Any
    ) -> Lengths:
        """Return the distribution of lengths, one a sample or with weights.

        More than `MAX_DISTINCT` distinct lengths become the means of as many equal shares; the longest stays.
        """
        found, index = np.unique(np.asarray(lengths, dtype=np.int64), return_inverse=True)
        counts = np.bincount(index, weights=None if weights is None else np.asarray(weights, dtype=float))
        shares = counts / counts.sum()
        if len(found) > MAX_DISTINCT:
            found, shares = _put_together(found, shares)
        kept = shares > 0
        values, kept_shares = found[kept].tolist(), shares[kept].tolist()
        return cls(values=tuple(values), weights=tuple(kept_shares), **fields)

    def truncated(self, longest: int) -> Lengths:
        """Return the distribution of samples that are cut off behind a length."""
        if self.values[-1] <= longest:
            return self
        cut = Lengths.from_samples([min(value, longest) for value in self.values], self.weights)
        return dataclasses.replace(self, values=cut.values, weights=cut.weights)

    @property
    def longest(self) -> int:
        """Tokens of the longest row, padded to a multiple."""
        return _up(self.values[-1], self.multiple_of)

    @property
    def mean(self) -> float:
        """Mean tokens of a sample, without padding."""
        return float(np.dot(self.values, self.weights))

    def quantile(self, share: float) -> int:
        """Return the smallest length that a share of the samples, 0 to 1, does not exceed."""
        cumulative = np.cumsum(self.weights)
        return self.values[min(int(np.searchsorted(cumulative, share - 1e-12)), len(self.values) - 1)]

    @property
    def others(self) -> tuple[Lengths, ...]:
        """Distributions of the same samples under collations that usually pad less; none where nothing is padded."""
        if self.collation is Collation.PACKED or self.quantile(0) == self.values[-1]:
            return ()
        is_sorted = self.collation in (Collation.SORTED, Collation.TOKENS)
        less = (Collation.SORTED, Collation.PACKED)[is_sorted:]
        return tuple(dataclasses.replace(self, collation=collation, buckets=()) for collation in less)

    @property
    def varies(self) -> bool:
        """Whether batches have different lengths."""
        shortest = _up(self.values[0], self.multiple_of)
        return self.collation not in (Collation.MAXIMUM, Collation.PACKED) and shortest != self.longest

    def batch_lengths(self, micro_batch_size: int) -> Integers:
        """Return the length of each batch that the collation makes of the sequence of samples.

        Of packed samples a batch has as many rows; where it has a number of tokens, the longest samples in as many.
        """
        return _batch_lengths(self, micro_batch_size)

    def num_rows(self, micro_batch_size: int, length: int) -> int:
        """Return the rows of a batch of a length."""
        if self.collation is not Collation.TOKENS:
            return micro_batch_size
        return micro_batch_size * self.longest // length

    def extreme_batches(self, micro_batch_size: int) -> tuple[BatchShape, ...]:
        """Return the batches of which one needs most memory: the longest and, with most rows, the shortest.

        The shortest counts where a batch has a number of tokens: what a sample holds whatever its length, such as a
        picture, then is highest. Memory of `rows * (fixed + linear * length + quadratic * length^2)` is convex in the
        length while `rows * length` stays, so that no batch between the two needs more. Elsewhere all batches have as
        many rows, and the longest needs most.
        """
        longest = BatchShape(self.num_rows(micro_batch_size, self.longest), self.longest)
        if self.collation is not Collation.TOKENS:
            return (longest,)
        shortest = _shortest_batch(self, micro_batch_size)
        return tuple(dict.fromkeys((longest, BatchShape(self.num_rows(micro_batch_size, shortest), shortest))))

    def typical_batches(self, micro_batch_size: int) -> tuple[TypicalBatch, ...]:
        """Return the batches that stand for all of a size, the shortest first; their shares add up to 1.

        Their lengths are the nodes, and their shares the weights, of the Gauss quadrature of the distribution of
        lengths of batches (Golub and Welsch, Mathematics of Computation 23, 1969): where the seconds of a pass are a
        polynomial of the length of degree 2 n - 1 at most, n passes give their mean over all batches. Lengths are then
        rounded to ones that occur, and the shares solved for again, exact to degree n - 1.
        """
        return _typical_batches(self, micro_batch_size)

    def samples_of_batch(self, micro_batch_size: int, length: int) -> Integers:
        """Return lengths of the samples of a batch of a length: the longest, and the quantiles of those that fit."""
        places = (np.arange(micro_batch_size) + 0.5) / micro_batch_size
        fit = np.asarray([value for value in self.values if value <= length] or [length])
        cumulative = np.cumsum(self.weights[: len(fit)])
        samples = fit[np.minimum(np.searchsorted(cumulative, places * cumulative[-1]), len(fit) - 1)]
        return np.append(samples[:-1], length)

    def samples_per_row(self) -> float:
        """Return the mean samples in a row; 1 but for packed samples."""
        if self.collation is not Collation.PACKED:
            return 1.0
        samples = _sequence(self)[:_PACKED_SAMPLES]
        return len(samples) / _num_packed_rows(samples, self.longest)

    def padding_share(self, micro_batch_size: int) -> float:
        """Return the share of the tokens of batches, 0 to 1, that is padding."""
        if self.collation is Collation.TOKENS:
            return _padding_of_tokens(self, micro_batch_size)
        rows = float(np.mean(self.batch_lengths(micro_batch_size)))
        return max(0.0, 1.0 - self.mean * self.samples_per_row() / rows)


# Samples that are packed at a time. Source: benchmarks/results/lengths_draws.md.
_PACKED_SAMPLES = 2048


@functools.lru_cache(maxsize=8)
def _sequence(lengths: Lengths) -> Integers:
    """Return lengths of samples in a random order, of which each occurs as often as its share asks for."""
    places = (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES
    index = np.minimum(np.searchsorted(np.cumsum(lengths.weights), places), len(lengths.values) - 1)
    samples = np.asarray(lengths.values, dtype=np.int64)[index]
    return np.random.default_rng(_ORDER_SEED).permutation(samples)


@functools.lru_cache(maxsize=4096)
def _batch_lengths(lengths: Lengths, micro_batch_size: int) -> Integers:
    found = _longest_rows(lengths, micro_batch_size)
    found.setflags(write=False)  # it is shared
    return found


def _longest_rows(lengths: Lengths, micro_batch_size: int) -> Integers:
    if lengths.collation in (Collation.MAXIMUM, Collation.PACKED) or micro_batch_size >= NUM_SAMPLES:
        return np.asarray([lengths.longest])
    samples = _sequence(lengths)
    match lengths.collation:
        case Collation.TOKENS:
            longest = np.asarray([samples[-1] for samples in _batches_of_tokens(lengths, micro_batch_size)])
        case Collation.SORTED:
            longest = _longest_of(_sort_in_windows(samples, SORTED_BATCHES * micro_batch_size), micro_batch_size)
        case Collation.BUCKETS:
            bounds = np.searchsorted(lengths.buckets, samples)
            parts = [_longest_of(samples[bounds == bucket], micro_batch_size) for bucket in np.unique(bounds)]
            longest = np.concatenate(parts)
        case _:
            longest = _longest_of(samples, micro_batch_size)
    return -(-longest // lengths.multiple_of) * lengths.multiple_of


def _batches_of_tokens(lengths: Lengths, micro_batch_size: int) -> list[Integers]:
    """Return the samples of each batch, ascending: as many as have the tokens of some of the longest, padded."""
    budget = micro_batch_size * lengths.longest
    batches: list[Integers] = []
    sorted_samples = np.sort(_sequence(lengths))
    first = 0
    for place, length in enumerate(sorted_samples.tolist()):
        if (place + 1 - first) * _up(length, lengths.multiple_of) > budget:
            batches.append(sorted_samples[first:place])
            first = place
    return [*batches, sorted_samples[first:]]


def _shortest_batch(lengths: Lengths, micro_batch_size: int) -> int:
    """Return the length of the batch of the shortest samples, of which as many are as have so many tokens."""
    padded = _ascending_rows(lengths)
    tokens = padded * np.arange(1, len(padded) + 1)  # of a batch of the first, of the first two, ...
    num_fitting = int(np.searchsorted(tokens, micro_batch_size * lengths.longest, side="right"))
    return int(padded[num_fitting - 1])


@functools.lru_cache(maxsize=8)
def _ascending_rows(lengths: Lengths) -> Integers:
    return np.sort(-(-_sequence(lengths) // lengths.multiple_of) * lengths.multiple_of)


@functools.lru_cache(maxsize=4096)
def _padding_of_tokens(lengths: Lengths, micro_batch_size: int) -> float:
    batches = _batches_of_tokens(lengths, micro_batch_size)
    rows = sum(len(samples) * _up(int(samples[-1]), lengths.multiple_of) for samples in batches)
    return 1.0 - sum(int(samples.sum()) for samples in batches) / rows


def _longest_of(samples: Integers, micro_batch_size: int) -> Integers:
    """Return the longest sample of each batch; a last batch that is not full counts where it is the only one."""
    whole = len(samples) // micro_batch_size * micro_batch_size
    if whole == 0:
        return samples.max(keepdims=True)
    return samples[:whole].reshape(-1, micro_batch_size).max(axis=1)


def _sort_in_windows(samples: Integers, window: int) -> Integers:
    return np.concatenate([np.sort(samples[start : start + window]) for start in range(0, len(samples), window)])


def _num_packed_rows(samples: Integers, capacity: int) -> int:
    """Return the rows into which samples are packed, each into the fullest row that has room, the longest first."""
    counts = [0] * (capacity + 1)  # of rows, by the tokens that are left in them
    num_rows = 0
    for length in sorted(samples.tolist(), reverse=True):
        room = next((left for left in range(length, capacity) if counts[left]), None)
        if room is None:
            room, num_rows = capacity, num_rows + 1
        else:
            counts[room] -= 1
        counts[room - length] += 1
    return num_rows


@functools.lru_cache(maxsize=4096)
def _typical_batches(lengths: Lengths, micro_batch_size: int) -> tuple[TypicalBatch, ...]:
    support, counts = np.unique(lengths.batch_lengths(micro_batch_size), return_counts=True)
    shares = counts / counts.sum()
    mean = float(support @ shares)
    if float((support - mean) ** 2 @ shares) <= ALIKE * mean**2:
        support, shares = support[[np.abs(support - mean).argmin()]], np.ones(1)
    elif len(support) > NUM_BATCHES:
        support, shares = _quadrature(support, shares, NUM_BATCHES)
    return tuple(
        TypicalBatch(length=int(length), num_rows=lengths.num_rows(micro_batch_size, int(length)), share=float(share))
        for length, share in zip(support, shares, strict=True)
    )


def _quadrature(support: Integers, shares: Floats, num_nodes: int) -> tuple[Integers, Floats]:
    """Return nodes of the support, and positive weights, with the first moments of the whole distribution.

    Where rounding has moved a node so far that a weight would be negative, fewer nodes do.
    """
    center, scale = float(support.mean()), float(np.ptp(support)) / 2
    places = (support - center) / scale
    for count in range(num_nodes, 0, -1):
        basis = np.linalg.qr(np.sqrt(shares)[:, None] * np.vander(places, count, increasing=True))[0].T
        nodes = np.linalg.eigvalsh(basis * places @ basis.T)  # of the operator "times the length" on the polynomials
        rounded = np.unique(support[np.abs(places[:, None] - nodes).argmin(axis=0)])
        moments = np.vander(places, len(rounded), increasing=True).T @ shares
        weights = np.linalg.solve(np.vander((rounded - center) / scale, len(rounded), increasing=True).T, moments)
        if (weights > 0).all():
            return rounded, np.asarray(weights, dtype=np.float64)
    raise AssertionError("the weight of one node is 1")


def _put_together(found: Integers, shares: Floats) -> tuple[Integers, Floats]:
    """Return the means of equal shares of a distribution; the longest length stays as it is."""
    part = np.minimum((np.cumsum(shares[:-1]) * (MAX_DISTINCT - 1)).astype(int), MAX_DISTINCT - 2)
    weight = np.bincount(part, weights=shares[:-1], minlength=MAX_DISTINCT - 1)
    total = np.bincount(part, weights=shares[:-1] * found[:-1], minlength=MAX_DISTINCT - 1)
    kept = weight > 0
    means = np.rint(total[kept] / weight[kept]).astype(np.int64)
    return np.append(means, found[-1]), np.append(weight[kept], shares[-1])


def _up(length: int, multiple_of: int) -> int:
    return math.ceil(length / multiple_of) * multiple_of
