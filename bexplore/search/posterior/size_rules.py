"""Rules of the sizes at which a program runs: their prior weights, and what the text of an error says of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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

# Weight that a text gives to the rule it names, to one that it only suggests, and to a broken program whose error is
# one of programming, or speaks of something else than sizes: little enough that multiples of 48 and of 20 are tried
# before. The prior weights of all rules are near 1 in sum. Source: benchmarks/structured_failures.py.
NAMED, SUGGESTED, PROGRAMMING, UNRELATED = 20.0, 1.0, 30.0, 4.0
LARGEST_NUMBER = 2**31  # Source: beyond are addresses and seeds

# Source: errors that no size of a batch mends (docs.python.org, built-in exceptions; PyTorch, `addmm`).
_PROGRAMMING = re.compile(
    r"\b(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|SyntaxError|IndentationError|"
    r"KeyError|FileNotFoundError|PermissionError|NotImplementedError|TypeError)\b|shapes cannot be multiplied"
)
# Where the error was raised, which the engine and the observer append.
_LOCATION = re.compile(r"\s*(?:\([^()]*:\d+\)| on rank \d+)$")
_MESSAGE = re.compile(r"^[\w.]+: *(?=\S)")
# What a message names that speaks of sizes, shapes or memory, and a line that reads them. Source: the messages below.
_SPEAKS_OF_SIZES = re.compile(
    r"\d|siz|shape|dim|batch|\bbs\b|sampl|length|element|channel|even|odd\b|pair|divisi?b|divid|multipl|group|chunk|split|"
    r"queue|count|number|few|many|least|most|more|less|larg|small|big|long|short|enough|empty|align|strid|broadcast|"
    r"match|memory|alloc|buffer|space|limit|capacity|resource|cuda|cudnn|cublas|kernel",
    re.IGNORECASE,
)
_READS_SIZES = re.compile(r"%|//|len\(|siz|shape", re.IGNORECASE)
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_NUMBER = r"(?<![\w.])(\d+)(?![\w]|\.\d)"

# Public messages. "divisible by": TRL, `GRPOConfig` ("must be evenly divisible by the number of generations per prompt
# (8)"); Transformer Engine, `assert_dim_for_fp8_exec` ("height divisible by 8 and width divisible by 16"); PyTorch,
# `torch._scaled_mm` ("Expected trailing dimension of mat1 to be divisible by 16"), GroupNorm and torchao ("divisble");
# DeepSpeed ("is not equal to micro_batch_per_gpu * gradient_acc_step * world_size"); einops ("can't divide axis of
# length 3 in chunks of 8"). MoCo, `_dequeue_and_enqueue`: `assert self.K % batch_size == 0`.
_DIVISIBLE = r"(?:divisi?ble|divided|aligned)(?: \w+)? (?:by|to)|multiples? of|in chunks of|groups? of"
_BY_NUMBER = re.compile(rf"(?:{_DIVISIBLE})\D{{0,60}}?{_NUMBER}", re.IGNORECASE)
_NUMBER_BY = re.compile(rf"{_NUMBER}\D{{0,40}}(?:{_DIVISIBLE})", re.IGNORECASE)
_DIVISIBLE_AT_ALL = re.compile(rf"{_DIVISIBLE}|\bdivid(?:e|es|isor)", re.IGNORECASE)
_WHOLE_BY_BATCH = re.compile(
    r"(?:queue|memory bank|bank|buffer|global|total|effective)[^.]{0,60}?(?:divisi?ble by|multiple of)[^.]{0,40}?"
    r"(?:micro[-_ ]?)?(?:batch|bs\b)",
    re.IGNORECASE,
)
# `self.K % batch_size == 0`, `4096 % 3 != 0`, `n % 8`: of an assertion, or of a condition that raises.
_MODULO = re.compile(r"([\w.\[\]()]+)\s*%\s*\(?\s*([\w.]+)[)\s]*(?:(==|!=|>)\s*(\d+))?")
_ASSERTION, _CONDITION = re.compile(r"^assert\b"), re.compile(r"^(?:el)?if\b.*\braise\b")
_ORDERED = re.compile(r"([\w.()\[\]]+)\s*(>=|<=|>|<)\s*(\d+)")
_BATCH_NAME = re.compile(r"batch|\bbs\b|\bn\b|\bb\b|len\(|shape\[0\]|size\(0\)", re.IGNORECASE)
_EVEN = re.compile(r"\b(?:an? )?even\b(?! (?:if|though|when|with))(?=[^.]{0,60}\b(?:size|number|batch|sample))|"
                   r"\b(?:size|number|batch|samples?)[^.]{0,60}\beven\b(?! (?:if|though|when|with))|"
                   r"\bodd (?:batch|number|size)|\bin pairs\b", re.IGNORECASE)  # fmt: skip
_POWER = re.compile(r"powers? of (?:two|2)", re.IGNORECASE)
# PyTorch, `torch.nn.functional._verify_batch_size`; scikit-learn, "Found array with 1 sample(s) ... a minimum of 2".
_PER_CHANNEL = re.compile(r"more than 1 (?:value per channel|spatial element|sample)|requires at least 2 samples", re.I)
_AT_LEAST = re.compile(rf"(?:at least|minimum(?: \w+)? of|no fewer than|not less than)\D{{0,20}}?{_NUMBER}", re.I)
_MORE_THAN = re.compile(rf"(?:more than|greater than|larger than|exceed)\D{{0,20}}?{_NUMBER}", re.IGNORECASE)
_OR_EQUAL = re.compile(r"(?:greater|larger|more|bigger) than or equal", re.IGNORECASE)
_AT_MOST = re.compile(
    rf"(?:at most|no more than|up to|exceeds?|maximum(?: [\w-]+){{0,3}}? (?:of|is)|less than or equal to|"
    rf"smaller than or equal to|only (?:has|have|holds)|"
    rf"out of (?:bounds|range).{{0,40}}? with size)\D{{0,30}}?{_NUMBER}",
    re.IGNORECASE,
)
_MUST = re.compile(r"must|should|expected|requires?|needs?|has to|at least", re.IGNORECASE)
# PyTorch, `view` and `reshape`; a slice of every second sample against the others; `stack` of unequal chunks.
_VIEW = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)")
_UNEQUAL = re.compile(
    r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)|"
    r"equal size, but got \[(\d+).*?\] at entry 0 and \[(\d+)"
)


class RuleKind(StrEnum):
    """The form of a rule, in which k is its number and r its remainder."""

    ALL = "all"  # every size runs
    NONE = "none"  # the program is broken
    MULTIPLES = "multiples"  # of k
    AT_LEAST = "at_least"  # k
    NO_REMAINDER = "no_remainder"  # of r, divided by k
    POWERS_OF_TWO = "powers_of_two"
    UNKNOWN_DIVISORS = "unknown_divisors"  # of a number that nothing tells: powers of two, which divide most queues
    DIVISORS = "divisors"  # of k, as of a queue or of a global batch
    NO_DIVISORS = "no_divisors"  # of k, as of the samples of an epoch less one, whose last batch holds one sample


@dataclass(frozen=True, slots=True)
class SizeRule:
    """One rule."""

    kind: RuleKind  # its form
    number: int = 0  # k of the form; 0 where it has none
    remainder: int = 0  # r of the form

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
            case RuleKind.POWERS_OF_TWO | RuleKind.UNKNOWN_DIVISORS:
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
            case RuleKind.UNKNOWN_DIVISORS:
                return "powers of two, the likeliest divisors of what its error names"
            case RuleKind.DIVISORS:
                return f"divisors of {k}"
            case RuleKind.NO_DIVISORS:
                return f"sizes that do not divide {k}"
            case RuleKind.NONE:
                return "no size"
            case _:
                return "every size"


@lru_cache(maxsize=1)
def prior_weights() -> Mapping[SizeRule, float]:
    """Return the weight of each rule before anything is known of a program but that some size of it fails."""
    weights = {SizeRule(RuleKind.ALL): ALL_WEIGHT, SizeRule(RuleKind.NONE): NONE_WEIGHT}
    weights |= _shares(MULTIPLES_WEIGHT, {SizeRule(RuleKind.MULTIPLES, k): w for k, w in _weigh_multiples().items()})
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


def _weigh_multiples() -> dict[int, float]:
    found = {}
    for k in range(2, MOST_MULTIPLE + 1):
        odd = k // (k & -k)
        if odd in FAMILY_WEIGHTS or k <= MOST_ODD_MULTIPLE:
            found[k] = FAMILY_WEIGHTS.get(odd, OTHER_FAMILY_WEIGHT) / k**FAMILY_POWER
    return found


def _shares(total: float, weights: Mapping[SizeRule, float]) -> dict[SizeRule, float]:
    whole = sum(weights.values())
    return {rule: total * weight / whole for rule, weight in weights.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What texts tell."""

    weights: dict[SizeRule, float] = field(default_factory=dict)  # weight of each rule that they name or suggest
    ends: dict[int, float] = field(default_factory=dict)  # weight of each size that they name as the largest

    def add(self, rule: SizeRule, weight: float) -> None:
        """Take a rule over, with the most weight that any text gives it."""
        self.weights[rule] = max(weight, self.weights.get(rule, 0.0))


def read(clues: Clues, size: int, reason: str, failing_line: str = "") -> None:
    """Add what one failure tells."""
    text = _HEX.sub("", _LOCATION.sub("", reason))
    if _PROGRAMMING.search(text):
        clues.add(SizeRule(RuleKind.NONE), PROGRAMMING)
        return
    is_read = _SPEAKS_OF_SIZES.search(text) or _READS_SIZES.search(failing_line)
    if failing_line and _MESSAGE.match(text) and not is_read:
        clues.add(SizeRule(RuleKind.NONE), UNRELATED)
    for rule, weight in (*_divisibility(text, size), *_conditions(text, failing_line, size), *_shapes(text, size)):
        clues.add(rule, weight)
    if _EVEN.search(text):
        clues.add(SizeRule(RuleKind.MULTIPLES, 2), NAMED)
    if _POWER.search(text):
        clues.add(SizeRule(RuleKind.POWERS_OF_TWO), NAMED)
    if _PER_CHANNEL.search(text):
        for rule, weight in _single_sample(size):
            clues.add(rule, weight)
        return
    _read_bounds(clues, size, text, failing_line)


def _read_bounds(clues: Clues, size: int, text: str, failing_line: str) -> None:
    """Add least and largest sizes that the failing line or the message names."""
    for is_least, number in _bounds(failing_line):
        if is_least and number > size:
            clues.add(SizeRule(RuleKind.AT_LEAST, number), NAMED)
        elif not is_least and 0 < number < size:
            clues.ends[number] = NAMED
    _read_limits(clues, size, text)


def _read_limits(clues: Clues, size: int, text: str) -> None:
    """Add least and largest sizes that a message names."""
    for number in _limits(_AT_LEAST, text):
        if number > size:
            clues.add(SizeRule(RuleKind.AT_LEAST, number), NAMED)
    if _MUST.search(text):
        extra = 0 if _OR_EQUAL.search(text) else 1
        for number in _limits(_MORE_THAN, text):
            if number + extra > size:
                clues.add(SizeRule(RuleKind.AT_LEAST, number + extra), NAMED)
    for number in _limits(_AT_MOST, text):
        if number < size:
            clues.ends[number] = NAMED


def _limits(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    for found in pattern.finditer(text):
        if 0 < int(found[1]) < LARGEST_NUMBER:
            yield int(found[1])


def _divisibility(text: str, size: int) -> Iterator[tuple[SizeRule, float]]:
    """Yield the readings of "X must be divisible by Y": multiples of Y, or divisors of X where Y is the size."""
    if not _DIVISIBLE_AT_ALL.search(text):
        return
    if _WHOLE_BY_BATCH.search(text):
        yield SizeRule(RuleKind.UNKNOWN_DIVISORS), SUGGESTED
    for number in _limits(_BY_NUMBER, text):
        if number != size:
            yield from _multiples(number)
    for number in _limits(_NUMBER_BY, text):
        if number > size:
            yield SizeRule(RuleKind.DIVISORS, number), NAMED


def _multiples(number: int) -> Iterator[tuple[SizeRule, float]]:
    """Yield multiples of a number and of its divisors: rows may be samples times tokens, ranks or accumulation."""
    for divisor in range(2, min(number, 4096) + 1):
        if number % divisor == 0:
            yield SizeRule(RuleKind.MULTIPLES, divisor), NAMED if divisor == number else SUGGESTED


def _conditions(text: str, failing_line: str, size: int) -> Iterator[tuple[SizeRule, float]]:
    """Yield what an assertion or a condition that raises says of a remainder."""
    must_hold = not _CONDITION.search(failing_line)
    for source in (text, failing_line):
        for left, right, sign, remainder in _MODULO.findall(source):
            is_of_zero = remainder in ("", "0")
            if right.isdigit() and int(right) > 1 and (source is failing_line or int(right) != size):
                if is_of_zero and (sign == "==") == must_hold:
                    yield from _multiples(int(right))
                elif (sign == "==") != must_hold and remainder:
                    yield SizeRule(RuleKind.NO_REMAINDER, int(right), int(remainder)), NAMED
                else:
                    yield from ((rule, SUGGESTED) for rule, _ in _multiples(int(right)))
            elif left.isdigit() and int(left) > size:
                yield SizeRule(RuleKind.DIVISORS, int(left)), NAMED
            elif _BATCH_NAME.search(right) and not _BATCH_NAME.search(left):
                yield SizeRule(RuleKind.UNKNOWN_DIVISORS), NAMED


def _bounds(failing_line: str) -> Iterator[tuple[bool, int]]:
    """Yield whether an assertion or a condition that raises bounds the size from below, and the bound."""
    is_assertion = bool(_ASSERTION.search(failing_line))
    if not is_assertion and not _CONDITION.search(failing_line):
        return
    for name, sign, number in _ORDERED.findall(failing_line):
        if not _BATCH_NAME.search(name):
            continue
        holds_above = sign.startswith(">") == is_assertion
        strict = (len(sign) == 1) == is_assertion
        yield holds_above, int(number) + (0 if not strict else 1 if holds_above else -1)


def _shapes(text: str, size: int) -> Iterator[tuple[SizeRule, float]]:
    """Yield the multiples at which a view or a split into equal parts is possible."""
    view = _VIEW.search(text)
    if view:
        known = [int(part) for part in view[1].split(",") if part.strip()]
        elements, part = int(view[2]), math.prod(one for one in known if one > 0)
        if elements % size == 0 and -1 in known:
            each = elements // size
            k = part // math.gcd(part, each)
            if k > 1:
                yield SizeRule(RuleKind.MULTIPLES, k), NAMED
        elif elements % size == 0 and math.prod(known) < elements:  # what is over is the remainder
            kept = size * math.prod(known) // elements
            yield from _of_remainder(size, size - kept)
    unequal = _UNEQUAL.search(text)
    if unequal:
        first, second = sorted(int(one) for one in unequal.groups() if one)
        if second - first == 1 and first + second == size:
            yield SizeRule(RuleKind.MULTIPLES, 2), NAMED
        elif second + first <= size:
            yield from ((rule, SUGGESTED) for rule, _ in _of_remainder(size, size % max(second, 1)))


def _of_remainder(size: int, remainder: int) -> Iterator[tuple[SizeRule, float]]:
    if remainder <= 0:
        return
    for k in range(max(2, remainder + 1), 65):
        if size % k == remainder:
            yield SizeRule(RuleKind.MULTIPLES, k), SUGGESTED / k


def _single_sample(size: int) -> Iterator[tuple[SizeRule, float]]:
    """Yield what a layer says that needs two samples: of size 1 itself, of others that their last batch holds one."""
    if size == 1:
        yield SizeRule(RuleKind.AT_LEAST, 2), NAMED
        return
    for times in range(1, 13):  # the samples of an epoch less one are a multiple of each size that fails
        yield SizeRule(RuleKind.NO_DIVISORS, times * size), NAMED / times
