"""The candidate sizes, the prior of their memory, and what outcomes leave of the candidates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bexplore.errors import UserInputError
from bexplore.job.batching import divisors, even_candidates
from bexplore.measurement.probe import Outcome
from bexplore.search.evidence import Evidence
from bexplore.units import counted

# Up to here every integer is a candidate; beyond, steps of at most 0.2 %. Source: a tenth of the indifference zone.
DENSE_LIMIT = 4096
# Largest candidate without any bound: no `max`, no trace, no batch to divide. Source: chosen; what runs out of memory
# ends the growth before, as a rule.
DEFAULT_MAXIMUM = 4096
STEP_GROWTH = 8  # times the step, from one stretch to the next. Source: multiples of 8 and 64 align with kernels' tiles
# A size that crashed, hung or failed to compile is not tried again; one that had run before, after so many failures.
# Source: two independent accidents of a process are rare; a rule of the search's specification and no tuned value.
MAX_FAILURES_PER_SIZE = 2
OWN_REASONS = (Outcome.COMPILE_FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.NOT_FINITE)
# Larger sizes are candidates only on request: one pass would be a larger batch than the largest published. Samples:
# Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020 (65,536). Tokens:
# Source: Llama team, "The Llama 3 herd of models", 2024, section 3.4.1 (16 million).
MOST_SAMPLES = 65_536
MOST_TOKENS = 2**24
# Standard deviation of a traced peak's relative error, where the trace names none. Source: above all that the trace
# names for a program of the same device (0.02 to 0.10), benchmarks/results/trace.md.
TRACE_SD = 0.12
RULES_OF_A_BATCH = ("divisors", "even")  # of the samples of one replica in an optimizer step
RULES = ("all", "powers_of_two", *RULES_OF_A_BATCH)


class MemoryAccount(StrEnum):
    """The account of a step's memory that is compared with the budget."""

    TENSORS = "tensors"  # live tensors, which a trace predicts
    RESIDENT = "resident"  # resident memory of the process: its heap keeps free pieces between tensors
    RESERVED = "reserved"  # whole segments, reserved by an accelerator's caching allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrior:
    """Peak memory, as expected before anything ran."""

    # Expected peak bytes of the live tensors by micro-batch size; None without a trace.
    peak_bytes: Callable[[int], float] | None = None
    relative_sd: float = TRACE_SD  # standard deviation of the tensors' true peak around `peak_bytes`, as a fraction
    budget_bytes: float | None = None  # the memory budget in force; None for no limit
    # The account that must fit the budget. Other accounts than the tensors' exceed `peak_bytes` by an amount that
    # probes correct.
    judged_by: MemoryAccount = MemoryAccount.TENSORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What outcomes leave of a space."""

    space: Space  # all candidates
    # The smallest size that does not fit; infinity for none. A success at or above an out-of-memory size refutes it
    # (fragmentation, another process on the device). An out-of-memory of a verification, the user's own program in a
    # fresh process, is never refuted.
    smallest_out_of_memory: float
    first_unfilled: float  # the smallest candidate that the data of a replica does not fill; infinity for none
    dropped: frozenset[int]  # sizes that are out whatever becomes of other sizes

    @property
    def open_sizes(self) -> tuple[int, ...]:
        """The sizes that may still be tried, or tried again."""
        limit = self.smallest_out_of_memory
        return tuple(size for size in self.space.sizes if size < limit and size not in self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The candidate sizes of one exploration, in ascending order without repeats."""

    sizes: tuple[int, ...]  # every micro-batch size that may be tried
    may_extend: bool = True  # whether sizes between these may be tried, too, where none of these is likely to run

    def __post_init__(self) -> None:
        if not self.sizes:
            raise UserInputError("no candidate micro-batch size", hint="widen explore.candidates, min or max")
        if self.sizes[0] < 1:
            raise UserInputError(f"micro-batch size {self.sizes[0]} is below 1", hint="use sizes of 1 and above")
        if any(left >= right for left, right in zip(self.sizes, self.sizes[1:], strict=False)):
            raise UserInputError("candidate micro-batch sizes must ascend without repeats")

    @classmethod
    def from_sizes(cls, sizes: Iterable[int]) -> Space:
        """Return the space of these sizes, sorted, repeats removed."""
        return cls(sizes=tuple(sorted(set(sizes))))

    def including(self, sizes: Iterable[int]) -> Space:
        """Return the space with further sizes."""
        return Space(sizes=tuple(sorted({*self.sizes, *sizes})), may_extend=self.may_extend)

    def reaching(self, tried: Iterable[int]) -> Space:
        """Return the space with the sizes beyond its ends that an earlier part of the exploration tried.

        What ran stays a candidate, even if less memory is free now than it was then. Between its ends, sizes that
        outcomes have added are added again by these outcomes, and the space is the one of its study.
        """
        return self.including(size for size in tried if not self.base <= size <= self.sizes[-1])

    @property
    def base(self) -> int:
        """The smallest candidate, to which every relative performance refers."""
        return self.sizes[0]

    def after(self, seen: Sequence[Evidence]) -> Remaining:
        """Return what these outcomes leave of the space."""
        ran = {item.micro_batch_size for item in seen if item.is_measured}
        largest_ok = max(ran, default=0)
        refused = (item for item in seen if item.outcome is Outcome.OUT_OF_MEMORY)
        standing = (item for item in refused if item.micro_batch_size > largest_ok or item.purpose.is_verification)
        unfilled = self._unfilled(seen, largest_ok)
        return Remaining(
            space=self,
            smallest_out_of_memory=min((item.micro_batch_size for item in standing), default=math.inf),
            first_unfilled=min(unfilled, default=math.inf),
            dropped=_dropped(seen, ran) | unfilled,
        )

    def _unfilled(self, seen: Sequence[Evidence], largest_ok: int) -> frozenset[int]:
        """Return the sizes above those that ran that the data of a replica does not fill."""
        known = [item.max_samples for item in seen if item.max_samples is not None]
        most = max(largest_ok, min(known)) if known else math.inf
        return frozenset(size for size in self.sizes if size > most)


def _dropped(seen: Sequence[Evidence], ran: set[int]) -> frozenset[int]:
    failures: Counter[int] = Counter()
    for item in seen:
        if item.outcome in OWN_REASONS:
            is_certain = item.micro_batch_size not in ran  # else another try may pass, whatever the first one was for
            failures[item.micro_batch_size] += MAX_FAILURES_PER_SIZE if is_certain else 1
        elif item.outcome is Outcome.OUT_OF_MEMORY:
            failures[item.micro_batch_size] += 1
    return frozenset(size for size, count in failures.items() if count >= MAX_FAILURES_PER_SIZE)


def default_candidates(minimum: int, maximum: int) -> tuple[int, ...]:
    """Return every size that can matter from `minimum` to `maximum`, both included.

    Every integer up to 4096; beyond, multiples of 8, from 32768 on multiples of 64, and so on: adjacent sizes are at
    most 0.2 % apart, and every power of two is among them.
    """
    _check_bounds(minimum, maximum)
    sizes = {minimum, maximum}
    start, step = 1, 1
    while start <= maximum:
        end = DENSE_LIMIT * step
        first = max(start, -(-minimum // step) * step)
        sizes.update(range(first, min(end, maximum) + 1, step))
        start, step = end, STEP_GROWTH * step
    return tuple(sorted(sizes))


def largest_wanted(sequence_length: int | None) -> int:
    """Return the largest candidate where the user gives no bound: no published batch is larger.

    Args:
        sequence_length: Tokens a sample; None where samples are not sequences.
    """
    return min(MOST_SAMPLES, max(1, MOST_TOKENS // (sequence_length or 1)))


def candidate_sizes(
    rule: str | Sequence[int], *, minimum: int, maximum: int, replica_batch_size: int | None = None
) -> tuple[int, ...]:
    """Return the candidate sizes of a rule of `explore.candidates`.

    Args:
        rule: `all`, `powers_of_two`, `divisors` (of the replica batch size), `even` (the ceilings of the replica batch
            size over 1, 2, 3 ...), or the sizes themselves.
        replica_batch_size: Samples of one replica in an optimizer step, for `divisors` and `even`.
    """
    _check_bounds(minimum, maximum)
    if not isinstance(rule, str):
        sizes: Iterable[int] = rule
    elif rule == "all":
        sizes = default_candidates(minimum, maximum)
    elif rule == "powers_of_two":
        sizes = (1 << exponent for exponent in range(maximum.bit_length()))
    elif rule in RULES_OF_A_BATCH:
        sizes = _restricted(rule, replica_batch_size)
    else:
        raise UserInputError(f"unknown candidate rule {rule!r}", hint=f"use one of {', '.join(RULES)}, or a list")
    kept = tuple(sorted({size for size in sizes if minimum <= size <= maximum}))
    if not kept:
        raise UserInputError(
            f"no candidate micro-batch size from {minimum} to {maximum} under the rule {rule!r}",
            hint="widen explore.min and explore.max, or choose another rule",
        )
    return kept


def describe_candidates(rule: str | Sequence[int], *, minimum: int, maximum: int | str) -> str:
    """Return the candidates of a rule in words.

    Args:
        maximum: The largest, or words for it where it is not known yet.
    """
    if isinstance(rule, str):
        return f"sizes by the rule '{rule}' from {minimum} to {maximum}"
    kept = [size for size in rule if minimum <= size and (isinstance(maximum, str) or size <= maximum)]
    return f"{counted(len(kept), 'given size')} from {min(kept)} to {max(kept)}" if kept else "no given size"


def geometric_middle(sizes: Sequence[int], *, largest: int) -> int:
    """Return the largest size that is not above the geometric mean of the smallest and the largest that counts.

    Args:
        largest: Sizes beyond do not count; the smallest always does.
    """
    within = [size for size in sizes if size <= largest] or [sizes[0]]
    return max(size for size in within if size * size <= within[0] * within[-1])


def _restricted(rule: str, replica_batch_size: int | None) -> Iterable[int]:
    if replica_batch_size is None:
        raise UserInputError(f"the candidate rule {rule!r} needs a batch_size", hint="set batch_size, or use 'all'")
    return even_candidates(replica_batch_size) if rule == "even" else divisors(replica_batch_size)


def _check_bounds(minimum: int, maximum: int) -> None:
    if minimum < 1:
        raise UserInputError(f"smallest micro-batch size {minimum} is below 1", hint="use min: 1")
    if maximum < minimum:
        raise UserInputError(
            f"largest micro-batch size {maximum} is below the smallest, {minimum}", hint=f"use max: {minimum} or more"
        )
