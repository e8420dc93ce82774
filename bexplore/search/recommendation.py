"""The recommendation: a size, its speed relative to the base, and its confidence score."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array
from bexplore.search.calibration import Grounds, score
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import Posterior

WANTED_SCORE = 90  # of `regret_bound_90`. Source: its definition
# Standard errors of two sizes' own measurements beyond which their ratio is clipped. Source: 99.7 % of a normal
# one; benchmarks/results/sensitivity.md.
ALLOWED_SDS = 3.0
# Standard errors of the difference of two sizes' own measurements, within which the slower may be recommended.
# Source: 95 % of a normal one, as GAIN_QUANTILES.
SURE_SDS = 1.96
GAIN_QUANTILES = (0.025, 0.975)  # Source: 95 %, `measurement.statistics.LEVEL`
MEAN_WEIGHT = 1e-3  # Source: a tie-break: below the probability of half a draw, for a tenth in throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended size, one of those that ran.

    Attributes:
        micro_batch_size: Samples of one pass.
        relative_performance: Its samples/s over the base's, by the posterior.
        confidence: P(it is within the tolerance of the best that fits) in percent, 0 to 98.
        samples_per_s: Of the pass, as measured; of the user's own compilation, once that ran.
        smallest_within_tolerance: The smallest of `within_tolerance`.
        within_tolerance: Sizes that ran and are within the tolerance of this one, the fastest first.
        base_micro_batch_size: The smallest candidate.
        num_probes: Probes so far, all outcomes.
        elapsed_s: Seconds since the exploration started.
        regret_bound_90: Upper bound, with a score of 90, of its regret: the share of the best feasible speed that it
            misses. At most the tolerance where the confidence is 90 or more; None for no bound below 1.
        left_to_gain: Expected regret, 0 to 1.
        relative_performance_interval: 95 % interval of `relative_performance`; None for the base itself.
        variant: Which variant of the job; the base is of `base_variant`.
        base_variant: The first variant of which the smallest candidate fits.
    """

    micro_batch_size: int
    relative_performance: float
    confidence: int
    samples_per_s: float
    smallest_within_tolerance: int
    base_micro_batch_size: int
    num_probes: int
    elapsed_s: float = 0.0
    within_tolerance: tuple[int, ...] = ()
    regret_bound_90: float | None = None
    left_to_gain: float = 0.0
    relative_performance_interval: tuple[float, float] | None = None
    variant: int = 0
    base_variant: int = 0


def recommend(
    posterior: Posterior,
    evidence: Sequence[Evidence],
    *,
    base: int,
    tolerance: float,
    size: int | None = None,
    base_variant: int = 0,
) -> Recommendation | None:
    """Recommend the measured size that is most likely within the tolerance of the best that fits.

    Sizes that ran in the user's own compilation go first, once any did. None where every measured size was dropped.

    Args:
        size: The measured size to recommend; None for the posterior's choice.
    """
    mean = posterior.mean
    best = _most_likely(posterior, tolerance) if size is None else posterior.index(size)
    if best is None:
        return None
    near = posterior.near_best(tolerance).mean(axis=0)
    variant, chosen = int(posterior.variants[best]), int(posterior.sizes[best])
    base_index = posterior.index(base, base_variant)
    low, gain, high = _gain(posterior, best, base_index)
    ran = (posterior.measured > 0) & posterior.open & (posterior.variants == variant)
    within = posterior.sizes[ran & (mean >= mean[best] + math.log1p(-tolerance))].tolist()
    own = nearest_to_the_users(
        [item for item in evidence if item.is_measured and (item.micro_batch_size, item.variant) == (chosen, variant)]
    )
    grounds = grounds_of(posterior, evidence)
    regrets = posterior.regret(chosen, variant)
    return Recommendation(
        micro_batch_size=chosen,
        relative_performance=math.exp(gain),
        relative_performance_interval=None if best == base_index else (math.exp(low), math.exp(high)),
        confidence=score(float(near[best]), grounds, tolerance=tolerance),
        samples_per_s=float(np.exp(np.median([item.log_throughput for item in own]))),
        smallest_within_tolerance=min(within),
        base_micro_batch_size=base,
        num_probes=len(evidence),
        within_tolerance=tuple(sorted(within, key=lambda size: -mean[posterior.index(size, variant)])),
        regret_bound_90=_regret_bound(regrets, grounds, tolerance=tolerance),
        left_to_gain=float(regrets.mean()),
        variant=variant,
        base_variant=base_variant,
    )


def _gain(posterior: Posterior, best: int, base: int) -> tuple[float, float, float]:
    """Return ln of a size's speed over the base's: low end, mean and high end of the 95 % interval.

    Where both were measured, the three are clipped to what their own measurements allow.
    """
    gains = posterior.log_throughput[:, best] - posterior.log_throughput[:, base]
    found = np.append(np.quantile(gains, GAIN_QUANTILES), gains.mean(dtype=np.float64))
    own = posterior.own_level[best] - posterior.own_level[base]
    if math.isfinite(own):
        both = posterior.own_level_covariance[np.ix_([best, base], [best, base])]
        reach = ALLOWED_SDS * math.sqrt(max(float(np.trace(both) - 2.0 * both[0, 1]), 0.0))
        found = np.clip(found, own - reach, own + reach)
    low, high, mean = map(float, found)
    return low, mean, high


def _most_likely(posterior: Posterior, tolerance: float) -> int | None:
    """Return the position of the measured size most likely within the tolerance of the best; None for no such size."""
    measured, exactly = ((counts > 0) & posterior.open for counts in (posterior.measured, posterior.measured_exactly))
    eligible = exactly if exactly.any() else measured
    if not eligible.any():
        return None
    eligible &= ~_is_slower(posterior, eligible, tolerance)  # its own measurements outweigh those of others
    near = posterior.near_best(tolerance).mean(axis=0)
    return int(np.argmax(np.where(eligible, near + MEAN_WEIGHT * posterior.mean, -np.inf)))


def _is_slower(posterior: Posterior, eligible: NDArray[np.bool_], tolerance: float) -> NDArray[np.bool_]:
    """Return (D,), whether a size is slower, by their own measurements, than the eligible one with the highest level.

    Slower by more than the tolerance, and beyond the error of the difference: one run that was too fast is no proof.
    """
    own = np.where(eligible, posterior.own_level, -np.inf)
    top = int(np.argmax(own))
    covariance = np.nan_to_num(posterior.own_level_covariance)
    variance = np.diag(covariance) + covariance[top, top] - 2.0 * covariance[top]
    error = SURE_SDS * np.sqrt(np.maximum(variance, 0.0))
    return np.asarray(own < own[top] + math.log1p(-tolerance) - error)


def grounds_of(posterior: Posterior, evidence: Sequence[Evidence]) -> Grounds:
    """Return the grounds of a posterior."""
    seen = {(item.micro_batch_size, item.variant) for item in evidence if item.is_measured and item.is_clear}
    return Grounds(num_sizes=len(seen), num_candidates=int(posterior.represented.sum()))


def _regret_bound(regrets: Array, grounds: Grounds, *, tolerance: float) -> float | None:
    """Return the smallest share that reaches the wanted score, the inverse of a tolerance's score; None for 1."""
    missed = np.sort(regrets)
    shares = np.sort(np.append(missed, tolerance))

    def score_of(share: float) -> int:
        probability = float(np.searchsorted(missed, share, side="right")) / len(missed)
        return score(probability, grounds, tolerance=share)

    needed = bisect_left(shares, WANTED_SCORE, key=score_of)
    share = float(shares[needed]) if needed < len(shares) else 1.0
    return share if share < 1.0 else None


def nearest_to_the_users(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return, of probes of one size, those of the program nearest to the user's own."""
    nearness = (lambda kind: not kind.is_for_search, lambda kind: kind is Compilation.SHARED, lambda kind: True)
    kept = ([item for item in evidence if is_near(item.compilation)] for is_near in nearness)
    return next((items for items in kept if items), [])
