"""Compiled and eager passes of one size, timed in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from bexplore.engine.eager_comparison import are_enough
from bexplore.engine.protocol.messages import CompareEager
from bexplore.engine.worker.steps import MAX_BACK_TO_BACK, BatchMix, Steps
from bexplore.measurement.statistics import TIMING_S
from bexplore.workloads import Batch


class Timing(NamedTuple):
    """Passes of one kind that ran one after another.

    Attributes:
        num_passes: How many.
        seconds: Of all of them; where batches of several lengths alternate, as if each had the mean length.
    """

    num_passes: int
    seconds: float

    @property
    def pass_s(self) -> float:
        """Mean seconds of a pass."""
        return self.seconds / self.num_passes


def eagerly() -> AbstractContextManager[Any]:
    """Return a context that leaves the compiler out."""
    return torch.compiler.set_stance("force_eager")


def time_pairs(
    steps: Steps,
    batch: Batch | BatchMix,
    request: CompareEager,
    *,
    usual_pass_s: float,
    is_warm: bool,
    report: Callable[[], None],
) -> tuple[list[Timing], list[Timing]]:
    """Time compiled and eager passes in pairs, each pair the other way round than the one before.

    A steady change of the machine's speed affects both alike, and neither always has the other's caches.

    Args:
        usual_pass_s: About how long a compiled pass takes.
        is_warm: Whether the first pass of a kind takes what the next ones take.

    Returns:
        The compiled and the eager timings; as many of both.
    """
    num_batches = BatchMix.num_batches(batch)
    kinds: dict[bool, Callable[[], AbstractContextManager[Any]]] = {False: nullcontext, True: eagerly}
    last_s, timings, spent_s = dict.fromkeys(kinds, usual_pass_s), {kind: list[Timing]() for kind in kinds}, 0.0
    for kind, context in kinds.items() if not is_warm else ():
        with context():
            last_s[kind] = steps.timed_pass(batch)
        spent_s += last_s[kind] * num_batches

    def enough() -> bool:
        compiled_s, eager_s = ([one.pass_s for one in timings[kind]] for kind in kinds)
        is_spent = spent_s >= request.budget_s
        return are_enough(compiled_s, eager_s, tolerance=request.tolerance, is_spent=is_spent)

    order = list(kinds)
    while not enough():
        for kind in order:
            with kinds[kind]():
                timings[kind].append(_timing(steps, batch, last_s[kind]))
            last_s[kind] = timings[kind][-1].pass_s
            spent_s += timings[kind][-1].seconds * num_batches
            report()
        order.reverse()
    return timings[False], timings[True]


def _timing(steps: Steps, batch: Batch | BatchMix, pass_s: float) -> Timing:
    """Time passes of which one takes about so many seconds until they have lasted `TIMING_S`, those of all lengths."""
    num_passes, seconds, num_batches = 0, 0.0, BatchMix.num_batches(batch)
    while seconds * num_batches < TIMING_S:
        wanted = math.ceil((TIMING_S / num_batches - seconds) / max(pass_s, 1e-6))
        together = min(max(1, wanted), MAX_BACK_TO_BACK)
        pass_s = steps.timed_pass(batch, together)
        num_passes, seconds = num_passes + together, seconds + together * pass_s
    return Timing(num_passes, seconds)
