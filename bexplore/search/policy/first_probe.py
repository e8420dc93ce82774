"""The probe of a search in which nothing was measured yet, and whether a job runs at all."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Outcome, Purpose
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decision import Decision, StopReason
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.posterior.joint import Variant
from bexplore.search.posterior.memory import LIMIT_IS_WITHIN
from bexplore.search.posterior.runnable import BROKEN, PLAUSIBLE, RunBelief
from bexplore.search.settings import SearchSettings
from bexplore.search.space import OWN_REASONS, MemoryPrior, Space

EARLY_FAILURES = 4  # after which a search without a measurement gives up. Source: benchmarks/results/sensitivity.md
DIFFERENT = 4  # times the largest size that failed is a clearly different one. Source: likewise, sensitivity.md
STRUCTURED_FAILURES = 8  # likewise, of one text, where rules are plausible. Source: results/structured_failures.md
# Of the probability that a size runs, what twice the size must add to be tried first: a pass of twice the size takes up
# to twice as long. Source: benchmarks/results/structured_failures.md.
DOUBLING_PRICE = 0.02
# Probability of the likeliest other size to run, below which the base runs alone. Source: `runnable.PLAUSIBLE`.
UNLIKELY = PLAUSIBLE
_OF_PROGRAM = (Outcome.CRASHED, Outcome.COMPILE_FAILED, Outcome.NOT_FINITE)


def first_probe(
    space: Space,
    finished: Sequence[Evidence],
    in_flight: Sequence[Evidence],
    settings: SearchSettings,
    variants: Sequence[Variant],
    num_unassigned: int = 0,
) -> Decision:
    """Decide before any measurement, after as many explorers that choose a size right now."""
    ahead = list(in_flight)
    decision = _next(space, finished, ahead, settings, variants)
    for _ in range(num_unassigned):
        if decision.stop_reason is not None:
            break
        assert decision.micro_batch_size is not None  # there is no reason to stop
        ahead.append(Evidence(micro_batch_size=decision.micro_batch_size, outcome=None, variant=decision.variant))
        decision = _next(space, finished, ahead, settings, variants)
    return decision


def _next(
    space: Space,
    finished: Sequence[Evidence],
    in_flight: Sequence[Evidence],
    settings: SearchSettings,
    variants: Sequence[Variant],
) -> Decision:
    """Return the first probe: the file's own variant, then those that fit by their traces, the fastest first."""
    stops = []
    for number in sorted(range(len(variants)), key=lambda number: _order_of_first(space, variants, number)):
        own = [item for item in finished if item.variant == number]
        ahead = [item for item in in_flight if item.variant == number]
        decision = _first(space, own, ahead, settings, variants[number].memory)
        if decision.stop_reason is None:
            return dataclasses.replace(decision, variant=number)
        stops.append(decision)
    return stops[0]


def _order_of_first(space: Space, variants: Sequence[Variant], number: int) -> tuple[bool, bool, float]:
    memory = variants[number].memory
    budget = memory.budget_bytes if memory else None
    fits = memory is None or memory.peak_bytes is None or not budget or memory.peak_bytes(space.base) <= budget
    return not fits, number != 0, -variants[number].log_speed


def _first(
    space: Space,
    finished: Sequence[Evidence],
    in_flight: Sequence[Evidence],
    settings: SearchSettings,
    memory: MemoryPrior | None,
) -> Decision:
    """Decide before any measurement: the base first; where it fails for its own reason, the likeliest size to run."""
    open_sizes = space.after(finished).open_sizes
    failures = [item for item in finished if item.outcome is not Outcome.OUT_OF_MEMORY]
    belief = RunBelief.from_evidence(space, finished)
    if same_everywhere(space, finished) and (belief is None or _is_broken(belief, open_sizes)):
        return Decision(stop_reason=StopReason.BROKEN_PROGRAM)
    if len(finished) >= settings.max_probes and all(item.outcome in _OF_PROGRAM for item in finished):
        return Decision(stop_reason=StopReason.BROKEN_PROGRAM)
    if not open_sizes:
        return Decision(stop_reason=StopReason.NOTHING_MEASURED if failures else StopReason.NOTHING_FITS)
    if len(failures) >= EARLY_FAILURES and not same_everywhere(space, finished):
        return Decision(stop_reason=StopReason.NOTHING_MEASURED)
    tried = {item.micro_batch_size for item in (*failures, *in_flight)}
    untried = [size for size in open_sizes if size not in tried] or list(open_sizes)
    size = untried[0]
    if (
        tried
        and belief is not None
        and any(item.outcome in (Outcome.CRASHED, Outcome.COMPILE_FAILED) for item in failures)
    ):
        size = _likeliest(belief, np.array(untried, dtype=np.int64), space, memory)
    elif tried:
        size = untried[int(np.argmin([abs(np.log(size / (DIFFERENT * max(tried)))) for size in untried]))]
    costs = Costs.learnt(finished, settings)
    return Decision(
        micro_batch_size=size,
        purpose=Purpose.BASE if size == space.base else Purpose.SEARCH,
        compilation=settings.search_compilation,
        fresh_worker=bool(finished),
        max_passes=settings.max_passes,
        expected_s=float(costs.estimate_s(np.array(0.0), compilation=settings.search_compilation, fresh_worker=True)),
    )


def _is_broken(belief: RunBelief, open_sizes: Sequence[int]) -> bool:
    """Return whether no rule that lets another size run is worth a further probe."""
    return not open_sizes or belief.broken >= BROKEN or len(belief.failed) >= STRUCTURED_FAILURES


def _likeliest(belief: RunBelief, sizes: NDArray[np.int64], space: Space, memory: MemoryPrior | None) -> int:
    """Return the size most likely to run and to fit: of rules that are as likely, one that many of them let run."""
    fits = np.array([_fits(int(size), space, memory) for size in sizes])
    merit = belief.probability(sizes) * fits * (1.0 - DOUBLING_PRICE) ** np.log2(sizes / sizes[0])
    return int(sizes[int(np.argmax(merit))])


def _fits(size: int, space: Space, memory: MemoryPrior | None) -> float:
    if memory is not None and memory.peak_bytes is not None and memory.budget_bytes:
        peak = memory.peak_bytes(size)
        return 0.5 * math.erfc((peak - memory.budget_bytes) / (math.sqrt(2.0) * memory.relative_sd * peak))
    span = math.log(space.sizes[-1] / space.base)
    return 1.0 - LIMIT_IS_WITHIN * (math.log(size / space.base) / span) ** 2 if span else 1.0


def same_everywhere(space: Space, finished: Sequence[Evidence]) -> bool:
    """Return whether nothing was measured and two sizes failed for one reason (one, where only one exists)."""
    causes: dict[tuple[Outcome | None, str], list[int]] = {}
    for item in finished:
        if item.outcome in _OF_PROGRAM:
            causes.setdefault((item.outcome, without_numbers(item.reason)), []).append(item.micro_batch_size)
    enough = min(2, len(space.sizes))
    return any(len(set(sizes)) >= enough for sizes in causes.values())


def only_base_runs(space: Space, finished: Sequence[Evidence]) -> bool:
    """Return whether the base ran and every other size that was tried failed, by no rule that names other sizes."""
    kept = [item for item in finished if not item.is_beyond_data]
    failed = [item for item in kept if item.outcome in OWN_REASONS and item.micro_batch_size != space.base]
    others = [item for item in kept if item not in failed]
    if not failed or not all(item.is_measured and item.timed_sizes == (space.base,) for item in others):
        return False
    belief = RunBelief.from_evidence(space, finished)
    if belief is None or belief.words is None or not belief.excludes_by_rule:
        return True
    beyond = np.array([size for size in space.sizes if size != space.base], dtype=np.int64)
    allowed = beyond[belief.likeliest_rule.runs(beyond)]
    has_failed = np.isin(allowed, belief.failed)
    untried = allowed[~has_failed]
    return bool(has_failed.any()) and (not len(untried) or float(belief.probability(untried).max()) < UNLIKELY)


def without_numbers(reason: str) -> str:
    """Return a reason without its numbers, by which failures at different sizes compare equal."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", reason)
