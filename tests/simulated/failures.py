"""Programs that fail at some sizes, by rules as real ones have them, with texts that name the rule or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class FailureKind(StrEnum):
    """Why a program fails at some sizes."""

    GROUPS = "groups"
    EIGHT_BIT = "eight_bit"
    EVEN = "even"
    NOT_ONE = "not_one"
    AT_LEAST = "at_least"
    REMAINDER = "remainder"
    UP_TO = "up_to"
    QUEUE = "queue"
    LAST_OF_ONE = "last_of_one"
    REMAINDER_UP_TO = "remainder_up_to"
    GROUPS_UP_TO = "groups_up_to"
    FLAKY = "flaky"


# Texts that name the rule, by kind; `silent` ones name nothing. Some are not in the search's table.
SILENT = (
    "ValueError: bad input",
    "RuntimeError: expected sizes to match",
    "AssertionError: ",
    "IndexError: list index",
)
NAMED: dict[FailureKind, Sequence[str]] = {
    FailureKind.GROUPS: (
        "ValueError: the batch size ({n}) must be divisible by the number of generations ({k})",
        "AssertionError: got {n} samples, which is not a multiple of {k}",
        "RuntimeError: shape '[-1, {wide}]' is invalid for input of size {elements}",
    ),
    FailureKind.EIGHT_BIT: (
        "AssertionError: FP8 execution requires 2D matrices with height divisible by {k}, but got dims=[{n}, 768]",
        "RuntimeError: Expected trailing dimension of mat1 to be divisible by {k} but got mat1 shape: ({n}x64).",
    ),
    FailureKind.EVEN: ("ValueError: the batch size must be even, got {n}", "AssertionError: samples come in pairs"),
    FailureKind.NOT_ONE: ("ValueError: Expected more than 1 value per channel when training, got [1, 64]",),
    FailureKind.AT_LEAST: ("ValueError: need at least {k} samples for the statistics, got {n}",),
    FailureKind.QUEUE: (
        "AssertionError: queue size {k} must be divisible by the batch size {n}",
        "AssertionError: {k} % {n}",
    ),
    FailureKind.UP_TO: (
        "IndexError: index {k} is out of bounds for dimension 0 with size {k}",
        "ValueError: {n} samples exceed the maximum batch size of {k}",
    ),
}


TRACEBACK = '  File "train.py", line 9, in step\n    raise Failure\n'  # of each of them: its line names no size


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredFailure:
    """Which sizes of one program fail, and with which text."""

    kind: FailureKind  # its kind
    runs: Callable[[int], bool]  # whether a size runs
    text: Callable[[int], str]  # of a size that fails
    flaky_probe: int = -1  # the probe that fails once, whatever its size; -1 for none

    def reason(self, size: int, number: int) -> str | None:
        """Return the error of a probe; None where it runs."""
        return self.text(size) if not self.runs(size) or number == self.flaky_probe else None


def draw_failure(seed: int, *, largest: int) -> StructuredFailure:
    """Draw a program of which some size up to `largest` runs; equal arguments give equal programs."""
    rng = np.random.default_rng([seed, 81])
    kind = FailureKind(rng.choice([kind.value for kind in FailureKind]))
    k, rule = _RULES[kind](rng, largest)
    named = NAMED.get(kind, ())
    pattern = str(rng.choice(named if named and rng.random() < 0.5 else SILENT))
    return StructuredFailure(
        kind=kind,
        runs=rule,
        text=lambda n: pattern.format(n=n, k=k, wide=16 * k, elements=16 * n),
        flaky_probe=int(rng.integers(1, 5)) if kind is FailureKind.FLAKY else -1,
    )


Drawn = tuple[int, Callable[[int], bool]]


def _multiples(choices: Sequence[int]) -> Callable[[np.random.Generator, int], Drawn]:
    def draw(rng: np.random.Generator, largest: int) -> Drawn:
        k = int(rng.choice([k for k in choices if k <= largest // 2] or [2]))
        return k, lambda n: n % k == 0

    return draw


def _least(rng: np.random.Generator, largest: int) -> Drawn:
    k = int(np.exp(rng.uniform(np.log(2), np.log(max(3, largest / 4)))))
    return k, lambda n: n >= k


def _remainder(rng: np.random.Generator, largest: int) -> Drawn:
    k = int(rng.integers(2, 9))
    r = int(rng.integers(0, 2))
    return k, lambda n: n % k != r


def _up_to(rng: np.random.Generator, largest: int) -> Drawn:
    k = int(np.exp(rng.uniform(np.log(2), np.log(largest))))
    return k, lambda n: n <= k


def _queue(rng: np.random.Generator, largest: int) -> Drawn:
    k = int(rng.choice([96, 240, 256, 512, 720, 1000, 4096, 65536]))
    return k, lambda n: k % n == 0


def _last_of_one(rng: np.random.Generator, largest: int) -> Drawn:
    k = int(rng.integers(largest, 50 * largest))
    return k, lambda n: n > 1 and k % n != 1


def _both(first: Callable[..., Drawn], second: Callable[..., Drawn]) -> Callable[[np.random.Generator, int], Drawn]:
    def draw(rng: np.random.Generator, largest: int) -> Drawn:
        k, one = first(rng, largest)
        end = max(second(rng, largest)[0], 2 * k)
        return k, lambda n: one(n) and n <= end

    return draw


_RULES: dict[FailureKind, Callable[[np.random.Generator, int], Drawn]] = {
    FailureKind.GROUPS: _multiples([2, 3, 4, 5, 6, 8, 8, 10, 12, 16, 24]),
    FailureKind.EIGHT_BIT: _multiples([8, 16, 32]),
    FailureKind.EVEN: _multiples([2]),
    FailureKind.NOT_ONE: lambda rng, largest: (2, lambda n: n > 1),
    FailureKind.AT_LEAST: _least,
    FailureKind.REMAINDER: _remainder,
    FailureKind.UP_TO: _up_to,
    FailureKind.QUEUE: _queue,
    FailureKind.LAST_OF_ONE: _last_of_one,
    FailureKind.REMAINDER_UP_TO: _both(_remainder, _up_to),
    FailureKind.GROUPS_UP_TO: _both(_multiples([2, 4, 8]), _up_to),
    FailureKind.FLAKY: lambda rng, largest: (0, lambda n: True),
}
