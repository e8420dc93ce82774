"""The second answer: the fastest size that keeps the user's global batch size.

It follows the search, with probes of its own, which run the training's own program. Like every measurement they are
evidence: a size that keeps the batch size and turns out to be the fastest is the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bexplore.measurement.probe import Purpose
from bexplore.search.evidence import Evidence, without_first_signals
from bexplore.search.policy.acquisition import MIN_REPLICATE_NEAR_BEST
from bexplore.search.policy.decision import Decision, StopReason
from bexplore.search.policy.probe_cost import Costs, expected_pass_s
from bexplore.search.posterior.posterior import Posterior, fit_posterior
from bexplore.search.posterior.runnable import extended
from bexplore.search.recommendation import Recommendation, recommend
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryPrior, Space

# Probes at most, and never more than the search may have. Source: benchmarks/results/keep_batch_size.md: one finds as
# good an answer as three (98.1 % and 97.5 % of 320 simulated jobs); the second is for a first that does not run.
MOST_PROBES = 2


def decide(
    space: Space,
    evidence: Sequence[Evidence],
    settings: SearchSettings,
    *,
    keeping: Sequence[int],
    free: Recommendation,
    memory: MemoryPrior | None = None,
) -> Decision:
    """Decide on the next probe for the second answer; a pure function of its arguments.

    A recommendation of the search that keeps the batch size is the answer. Otherwise sizes that keep it run in the
    training's program, the likeliest first, until the best of them reaches the target confidence.

    Args:
        keeping: Sizes that keep the batch size; candidates of the search or not.

    Returns:
        A probe, or a stop; `recommendation` and `posterior` are of the sizes that keep the batch size alone.
    """
    evidence = without_first_signals(evidence)
    everything = extended(space, evidence).including(keeping)
    evidence = [dataclasses.replace(item, variant=0) for item in evidence if item.variant == free.variant]
    fitted = fit_posterior(
        everything,
        evidence,
        memory=memory,
        seed=settings.seed,
        user_compilation=settings.user_compilation,
        covered=keeping,
    ).among(keeping)
    own = free.micro_batch_size if free.micro_batch_size in keeping else None
    ran_exactly = fitted.open & (fitted.measured_exactly > 0)
    eligible = dataclasses.replace(fitted, open=ran_exactly) if ran_exactly.any() else fitted
    best = recommend(eligible, evidence, tolerance=settings.tolerance, size=own)
    best = best and dataclasses.replace(best, variant=free.variant)
    stop = Decision(stop_reason=StopReason.NOTHING_LEFT, recommendation=best, posterior=fitted)
    if own is not None or _may_end(fitted, evidence, settings, best, goal=free.confidence):
        return stop
    index = _likeliest(fitted, settings.tolerance)
    if index is None:
        return stop
    probe = _probe(fitted, evidence, settings, index)
    return dataclasses.replace(probe, recommendation=best, variant=free.variant)


def _may_end(
    fitted: Posterior,
    evidence: Sequence[Evidence],
    settings: SearchSettings,
    best: Recommendation | None,
    *,
    goal: int,
) -> bool:
    num_probes = sum(item.purpose is Purpose.KEEP_BATCH_SIZE for item in evidence)
    spent_s = sum(item.elapsed_s for item in evidence)
    ran_exactly = bool(((fitted.measured_exactly > 0) & fitted.open).any())
    if num_probes >= min(MOST_PROBES, settings.max_probes):
        return True
    if best is None or not ran_exactly:
        return False
    is_late = settings.time_budget_s is not None and spent_s >= settings.time_budget_s
    return is_late or best.confidence >= min(settings.target_confidence, goal)


def _likeliest(fitted: Posterior, tolerance: float) -> int | None:
    """Return the size most likely near the best of those that did not run exactly; None if none is likely enough."""
    near = fitted.near_best(tolerance).mean(axis=0)
    merit = np.where(fitted.open & (fitted.measured_exactly == 0), near, -1.0)
    index = int(np.argmax(merit))
    ran_exactly = bool(((fitted.measured_exactly > 0) & fitted.open).any())
    return index if merit[index] >= (MIN_REPLICATE_NEAR_BEST if ran_exactly else 0.0) else None


def _probe(fitted: Posterior, evidence: Sequence[Evidence], settings: SearchSettings, index: int) -> Decision:
    costs, fresh = Costs.learnt(evidence, settings), settings.verify_exact
    pass_s = expected_pass_s(fitted)[index]
    compilation = settings.user_compilation
    return Decision(
        micro_batch_size=int(fitted.sizes[index]),
        purpose=Purpose.KEEP_BATCH_SIZE,
        compilation=compilation,
        fresh_worker=fresh,
        max_passes=costs.passes(float(pass_s), compilation=compilation, fresh_worker=fresh),
        expected_s=float(costs.estimate_s(pass_s, compilation=compilation, fresh_worker=fresh)),
        posterior=fitted,
    )
