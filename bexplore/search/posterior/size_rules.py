"""Rules by which a program runs at some sizes and fails at others, whatever memory it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class RuleKind(StrEnum):
    """The form of a rule, in which k is its number and r its remainder."""

    ALL = "all"  # every size runs
    NONE = "none"  # the program is broken
    MULTIPLES = "multiples"  # of k
    AT_LEAST = "at_least"  # k
    NO_REMAINDER = "no_remainder"  # of r, divided by k
    POWERS_OF_TWO = "powers_of_two"
    DIVISORS = "divisors"  # of k, as of a queue or of a global batch
    NO_DIVISORS = "no_divisors"  # of k, as of the samples of an epoch less one, whose last batch holds one sample


@dataclass(frozen=True, slots=True)
class SizeRule:
    """One rule.

    Attributes:
        kind: Its form.
        number: k of the form; 0 where it has none.
        remainder: r of the form.
    """

    kind: RuleKind
    number: int = 0
    remainder: int = 0

    def runs(self, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, of each size, whether the program runs at it."""
        k = self.number
        match self.kind:
            case RuleKind.NONE:
                return np.zeros(sizes.shape, dtype=np.bool_)
            case RuleKind.MULTIPLES:
                return sizes % k == 0
            case RuleKind.AT_LEAST:
                return sizes >= k
            case RuleKind.NO_REMAINDER:
                return sizes % k != self.remainder
            case RuleKind.POWERS_OF_TWO:
                return (sizes & (sizes - 1)) == 0
            case RuleKind.DIVISORS:
                return k % sizes == 0
            case RuleKind.NO_DIVISORS:
                return k % sizes != 0
            case _:
                return np.ones(sizes.shape, dtype=np.bool_)

    @property
    def words(self) -> str:
        """The sizes at which the program runs, as words behind "runs at"."""
        k = self.number
        match self.kind:
            case RuleKind.MULTIPLES:
                return "even sizes" if k == 2 else f"multiples of {k}"
            case RuleKind.AT_LEAST:
                return f"sizes from {k} on"
            case RuleKind.NO_REMAINDER if self.remainder == 0:
                return "odd sizes" if k == 2 else f"sizes that are no multiple of {k}"
            case RuleKind.NO_REMAINDER:
                return f"sizes without a remainder of {self.remainder} modulo {k}"
            case RuleKind.POWERS_OF_TWO:
                return "powers of two"
            case RuleKind.DIVISORS:
                return f"divisors of {k}"
            case RuleKind.NO_DIVISORS:
                return f"sizes that do not divide {k}"
            case RuleKind.NONE:
                return "no size"
            case _:
                return "every size"


# Prior weights among programs of which some size fails for a reason of its own. Source: the figures of
# benchmarks/results/structured_failures.md are those of these values, which were set by hand and not varied one by one.
ALL_WEIGHT = 0.30  # the failure is isolated, or the end of the range. Source: benchmarks/results/structured_failures.md
NONE_WEIGHT = 0.30  # Source: likewise, structured_failures.md in benchmarks/results
MULTIPLES_WEIGHT, AT_LEAST_WEIGHT, REMAINDER_WEIGHT = 0.30, 0.15, 0.10  # Source: benchmarks/results, likewise
POWERS_WEIGHT, DIVISORS_WEIGHT = 0.02, 0.003  # Source: benchmarks/results/structured_failures.md
# Among multiples of k, the weight of k is its family's over k to this power. Source: tiles of kernels, groups and pairs
# are powers of two (NVIDIA, "Matrix multiplication background", 2023: 8, 16, 64 and 128); group sizes are small.
FAMILY_WEIGHTS = {1: 8.0, 3: 2.0, 5: 1.0}  # odd part of k. Source: the line above
OTHER_FAMILY_WEIGHT, FAMILY_POWER = 0.3, 0.5  # Source: the lines above
MOST_MULTIPLE, MOST_ODD_MULTIPLE = 512, 64  # Source: a file of half a thousand groups is none that we have seen
MOST_LEAST = 64  # Source: likewise: the k of "at least k"; 2 has as much weight as all others
MOST_MODULUS = 12  # of a remainder. Source: beyond, the sizes that fail are isolated among those that run
# Batches and queues of which sizes must be divisors. Source: round numbers; powers of two are a rule of their own.
ROUND_NUMBERS = (60, 96, 100, 120, 192, 240, 360, 480, 500, 720, 960, 1000)


@lru_cache(maxsize=1)
def prior_weights() -> Mapping[SizeRule, float]:
    """Return the weight of each rule before anything is known of a program but that some size of it fails."""
    weights = {SizeRule(RuleKind.ALL): ALL_WEIGHT, SizeRule(RuleKind.NONE): NONE_WEIGHT}
    weights |= _shares(MULTIPLES_WEIGHT, {SizeRule(RuleKind.MULTIPLES, k): w for k, w in _multiples().items()})
    least = {SizeRule(RuleKind.AT_LEAST, k): 1.0 / k for k in range(3, MOST_LEAST + 1)}
    least[SizeRule(RuleKind.AT_LEAST, 2)] = sum(least.values())
    weights |= _shares(AT_LEAST_WEIGHT, least)
    remainders = {
        SizeRule(RuleKind.NO_REMAINDER, k, r): (3.0 if r < 2 else 1.0) / k
        for k in range(2, MOST_MODULUS + 1)
        for r in range(k)
        if (k, r) != (2, 1)  # these are the even sizes
    }
    weights |= _shares(REMAINDER_WEIGHT, remainders)
    weights[SizeRule(RuleKind.POWERS_OF_TWO)] = POWERS_WEIGHT
    return weights | _shares(DIVISORS_WEIGHT, {SizeRule(RuleKind.DIVISORS, k): 1.0 for k in ROUND_NUMBERS})


def _multiples() -> dict[int, float]:
    found = {}
    for k in range(2, MOST_MULTIPLE + 1):
        odd = k // (k & -k)
        if odd in FAMILY_WEIGHTS or k <= MOST_ODD_MULTIPLE:
            found[k] = FAMILY_WEIGHTS.get(odd, OTHER_FAMILY_WEIGHT) / k**FAMILY_POWER
    return found


def _shares(total: float, weights: Mapping[SizeRule, float]) -> dict[SizeRule, float]:
    whole = sum(weights.values())
    return {rule: total * weight / whole for rule, weight in weights.items()}
