"""One decision: given everything that was observed, probe this next, or stop for that reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bexplore import posterior as belief
from bexplore.acquisition import Costs, expected_pass_s, fantasy, rank
from bexplore.evidence import Evidence
from bexplore.posterior import Posterior
from bexplore.probe import Compilation, Outcome, Purpose
from bexplore.recommendation import Recommendation, SearchSettings, recommend
from bexplore.space import MemoryPrior, Space

EARLY_FAILURES = 4  # failed probes before anything was measured after which the search gives up


class StopReason(StrEnum):
    """Why an exploration ended; `explorer.explore` may also end with its caller's own words."""

    TARGET_CONFIDENCE = "target_confidence"
    NOTHING_LEFT = "nothing_left"
    MAX_PROBES = "max_probes"
    TIME_BUDGET = "time_budget"
    INTERRUPTED = "interrupted"
    NOTHING_FITS = "nothing_fits"
    BROKEN_PROGRAM = "broken_program"
    NOTHING_MEASURED = "nothing_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next.

    Attributes:
        stop_reason: Why to stop; None to go on.
        micro_batch_size: The size to probe; 0 where the search stops.
        purpose: Why.
        compilation: Which program.
        fresh_worker: Whether a new process must run it.
        expected_s: Seconds that the probe is expected to cost.
        recommendation: What to recommend now; None where nothing was measured.
        posterior: The belief; None where nothing was measured.
    """

    stop_reason: StopReason | None = None
    micro_batch_size: int = 0
    purpose: Purpose = Purpose.SEARCH
    compilation: Compilation = Compilation.SHARED
    fresh_worker: bool = False
    expected_s: float = 0.0
    recommendation: Recommendation | None = None
    posterior: Posterior | None = None


def decide(
    space: Space,
    evidence: Sequence[Evidence],
    settings: SearchSettings,
    *,
    memory: MemoryPrior | None = None,
    num_unassigned: int = 0,
) -> Decision:
    """Decide on the next probe; a pure function of its arguments.

    Args:
        space: The candidates.
        evidence: Every probe in order; those in flight have no outcome.
        settings: What is wanted.
        memory: What the trace says of memory.
        num_unassigned: Askers that are about to choose and have not said what: that many best choices are left to them.
    """
    finished = [item for item in evidence if item.outcome is not None]
    in_flight = [item for item in evidence if item.outcome is None]
    if not any(item.is_measured for item in finished):
        return _first(space, finished, in_flight, settings)
    fitted = belief.fit(space, finished, memory=memory, seed=settings.seed, user_compilation=settings.user_compilation)
    best = recommend(fitted, finished, base=space.base, tolerance=settings.tolerance)
    spent = sum(item.elapsed_s for item in finished)
    if in_flight:
        imagined = [_imagined(fitted, item) for item in in_flight]
        fitted_ahead = belief.fit(
            space,
            finished + imagined,
            memory=memory,
            seed=settings.seed,
            user_compilation=settings.user_compilation,
        )
    else:
        fitted_ahead = fitted
    costs = Costs.learnt(finished, settings)
    choices = rank(fitted_ahead, settings, costs)
    reason = _stop_reason(best, len(evidence), spent, bool(choices), settings)
    known = {"recommendation": best, "posterior": fitted}
    if reason is not None:
        if _wants_verification(fitted, best, settings):
            return _verification(fitted, best, settings, costs, known)
        return Decision(stop_reason=reason, **known)
    index = choices[min(num_unassigned, len(choices) - 1)].index
    size = int(fitted_ahead.sizes[index])
    compilation = settings.search_compilation
    return Decision(
        micro_batch_size=size,
        purpose=_purpose(size, finished, space),
        compilation=compilation,
        fresh_worker=False,
        expected_s=float(costs.of(expected_pass_s(fitted_ahead)[index], compilation=compilation, fresh_worker=False)),
        **known,
    )


def _imagined(fitted: Posterior, item: Evidence) -> Evidence:
    guess = fantasy(fitted, item)
    if guess is None:
        return dataclasses.replace(item, outcome=Outcome.OUT_OF_MEMORY)
    return dataclasses.replace(guess, outcome=Outcome.MEASURED)


def _purpose(size: int, finished: Sequence[Evidence], space: Space) -> Purpose:
    if all(item.micro_batch_size != size or not item.is_measured for item in finished):
        return Purpose.SEARCH
    return Purpose.BASE if size == space.base else Purpose.REPLICATE


def _stop_reason(
    best: Recommendation, num_probes: int, spent_s: float, any_choice: bool, settings: SearchSettings
) -> StopReason | None:
    if best.confidence >= settings.target_confidence:
        return StopReason.TARGET_CONFIDENCE
    if num_probes >= settings.max_probes - (1 if _verifies(settings) else 0):
        return StopReason.MAX_PROBES
    if settings.time_budget_s is not None and spent_s >= settings.time_budget_s:
        return StopReason.TIME_BUDGET
    return None if any_choice else StopReason.NOTHING_LEFT


def _verifies(settings: SearchSettings) -> bool:
    return settings.verify_exact and settings.search_compilation is not settings.user_compilation


def _wants_verification(fitted: Posterior, best: Recommendation, settings: SearchSettings) -> bool:
    return _verifies(settings) and not fitted.measured_exactly[fitted.index(best.micro_batch_size)]


def _verification(
    fitted: Posterior, best: Recommendation, settings: SearchSettings, costs: Costs, known: dict
) -> Decision:
    pass_s = float(expected_pass_s(fitted)[fitted.index(best.micro_batch_size)])
    return Decision(
        micro_batch_size=best.micro_batch_size,
        purpose=Purpose.VERIFY,
        compilation=settings.user_compilation,
        fresh_worker=True,
        expected_s=float(costs.of(pass_s, compilation=settings.user_compilation, fresh_worker=True)),
        **known,
    )


def _first(
    space: Space, finished: Sequence[Evidence], in_flight: Sequence[Evidence], settings: SearchSettings
) -> Decision:
    """The base first; where it fails for a reason of its own, a size that is clearly different."""
    open_sizes = space.open_sizes(finished)
    failures = [item for item in finished if item.outcome is not Outcome.OUT_OF_MEMORY]
    if same_everywhere(space, finished):
        return Decision(stop_reason=StopReason.BROKEN_PROGRAM)
    if not open_sizes:
        return Decision(stop_reason=StopReason.NOTHING_MEASURED if failures else StopReason.NOTHING_FITS)
    if len(failures) >= EARLY_FAILURES:
        return Decision(stop_reason=StopReason.NOTHING_MEASURED)
    tried = {item.micro_batch_size for item in (*failures, *in_flight)}
    untried = [size for size in open_sizes if size not in tried] or list(open_sizes)
    size = untried[0] if not tried else untried[int(np.argmin([abs(np.log(s / (4 * max(tried)))) for s in untried]))]
    costs = Costs.learnt(finished, settings)
    return Decision(
        micro_batch_size=size,
        purpose=Purpose.BASE if size == space.base else Purpose.SEARCH,
        compilation=settings.search_compilation,
        fresh_worker=bool(finished),
        expected_s=float(costs.of(0.0, compilation=settings.search_compilation, fresh_worker=True)),
    )


def same_everywhere(space: Space, finished: Sequence[Evidence]) -> bool:
    """Whether nothing was measured and two sizes failed for one reason (one size twice, where only one exists)."""
    causes: dict[tuple[Outcome | None, str], list[int]] = {}
    for item in finished:
        if item.outcome in (Outcome.CRASHED, Outcome.COMPILE_FAILED, Outcome.NOT_FINITE):
            causes.setdefault((item.outcome, _without_numbers(item.reason)), []).append(item.micro_batch_size)
    enough = min(2, len(space.sizes))
    return any(len(set(sizes)) >= enough and len(sizes) >= 2 for sizes in causes.values())


def _without_numbers(reason: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", reason)
