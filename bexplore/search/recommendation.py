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
from bexplore.search.posterior.joint import shift_log_throughput
from bexplore.search.posterior.posterior import Posterior

WANTED_SCORE = 90  # of `regret_bound_90`. Source: its definition
# Standard errors of two sizes' own measurements beyond which their ratio is clipped. Source: 99.7 % of a normal
# one; benchmarks/results/sensitivity.md.
ALLOWED_SDS = 3.0
# Standard errors of the difference of two sizes' own measurements, within which the slower may be recommended.
# Source: benchmarks/results/stopping.md, "error of a difference".
SURE_SDS = 1.0
# Probability from which a smaller size is told as one within the tolerance. Source: chosen: below it two noisy
# measurements that are a third apart may lie within the tolerance in the mean.
SURELY_WITHIN = 0.8
GAIN_QUANTILES = (0.025, 0.975)  # Source: 95 %, `measurement.statistics.LEVEL`
MEAN_WEIGHT = 1e-3  # Source: a tie-break: below the probability of half a draw, for a tenth in throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The estimate of one size: the posterior of the user's own compilation, at the machine's speed at the end."""

    micro_batch_size: int  # samples of one pass
    samples_per_s: float  # of the pass
    interval: tuple[float, float]  # 95 % interval of `samples_per_s`
    variant: int = 0  # which variant of the job

    @property
    def pass_time_s(self) -> float:
        """Seconds of a pass."""
        return self.micro_batch_size / self.samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended size, one of those that ran."""

    micro_batch_size: int  # samples of one pass
    relative_performance: float  # its samples/s over the base's, both as in `speeds`
    confidence: int  # p(it is within the tolerance of the best that fits) in percent, 0 to 98
    samples_per_s: float  # of the pass, in the user's own compilation, as in `speeds`
    smallest_within_tolerance: int  # the smallest of `within_tolerance` that is surely so
    base_micro_batch_size: int  # the smallest size of `base_variant` that ran
    num_probes: int  # probes so far, all outcomes
    elapsed_s: float = 0.0  # seconds since the exploration started
    within_tolerance: tuple[int, ...] = ()  # sizes that ran and are within the tolerance of this one, the fastest first
    # Upper bound, with a score of 90, of its regret: the share of the best feasible speed that it misses. At most the
    # tolerance where the confidence is 90 or more; None for no bound below 1.
    regret_bound_90: float | None = None
    left_to_gain: float = 0.0  # expected regret, 0 to 1
    # 95 % interval of `relative_performance`; None for the base itself.
    relative_performance_interval: tuple[float, float] | None = None
    variant: int = 0  # which variant of the job; the base is of `base_variant`
    base_variant: int = 0  # the first variant that ran
    # The one estimate of each size that ran, of every variant, in ascending order; all that is printed of a size's
    # speed follows from it.
    speeds: tuple[Speed, ...] = ()

    def speed(self, micro_batch_size: int) -> Speed | None:
        """Return the estimate of a size of its own variant; None where it did not run."""
        own = (one for one in self.speeds if one.variant == self.variant)
        return next((one for one in own if one.micro_batch_size == micro_batch_size), None)


def recommend(
    posterior: Posterior,
    evidence: Sequence[Evidence],
    *,
    tolerance: float,
    size: int | None = None,
    variant: int = 0,
    base_variant: int = 0,
) -> Recommendation | None:
    """Recommend the measured size that is most likely within the tolerance of the best that fits.

    Sizes that ran in the user's own compilation go first, unless another one is faster by more than the tolerance. None
    where every measured size was dropped.

    Args:
        size: The measured size to recommend; None for the posterior's choice.
        base_variant: The first variant that ran.
    """
    best = _most_likely(posterior, tolerance) if size is None else posterior.index(size, variant)
    if best is None:
        return None
    near = posterior.near_best(tolerance).mean(axis=0)
    variant, chosen = int(posterior.variants[best]), int(posterior.sizes[best])
    base = int(np.flatnonzero((posterior.measured > 0) & (posterior.variants == base_variant))[0])
    log_speed = log_speeds(posterior, best)
    gain = float(log_speed[best] - log_speed[base])
    low, high = _gain_interval(posterior, best, base)
    ran = (posterior.measured > 0) & posterior.open & (posterior.variants == variant)
    within = np.flatnonzero(ran & (log_speed >= log_speed[best] + math.log1p(-tolerance)))
    within = posterior.sizes[within[np.argsort(-log_speed[within], kind="stable")]].tolist()
    surely = [one for one in within if _is_within(posterior, one, best, tolerance)]
    grounds = count_grounds(posterior, evidence)
    regrets = np.abs(posterior.regret(chosen, variant))  # no negative zero
    return Recommendation(
        micro_batch_size=chosen,
        relative_performance=math.exp(gain),
        relative_performance_interval=None if best == base else (math.exp(min(low, gain)), math.exp(max(high, gain))),
        confidence=score(float(near[best]), grounds, tolerance=tolerance),
        samples_per_s=math.exp(log_speed[best]),
        smallest_within_tolerance=min([chosen, *surely]),
        base_micro_batch_size=int(posterior.sizes[base]),
        num_probes=len(evidence),
        within_tolerance=tuple(within),
        regret_bound_90=_regret_bound(regrets, grounds, tolerance=tolerance),
        left_to_gain=float(regrets.mean()),
        variant=variant,
        base_variant=base_variant,
        speeds=_speeds(posterior, log_speed),
    )


def _is_within(posterior: Posterior, size: int, best: int, tolerance: float) -> bool:
    """Return whether a size is surely within the tolerance of the best, or faster."""
    other = posterior.index(size, int(posterior.variants[best]))
    gains = posterior.log_throughput[:, other] - posterior.log_throughput[:, best]
    return bool((gains >= math.log1p(-tolerance)).mean() >= SURELY_WITHIN)


def consistent_with(posterior: Posterior, speeds: Sequence[Speed]) -> Posterior:
    """Shift the draws of each size so that their mean is its one estimate."""
    shift = np.zeros(len(posterior.sizes))
    for one in speeds:
        at = posterior.index(one.micro_batch_size, one.variant)
        shift[at] = math.log(one.samples_per_s) - posterior.mean[at]
    return shift_log_throughput(posterior, shift)


def log_speeds(posterior: Posterior, best: int) -> Array:
    """Return (D,), ln(samples/s) of each size: the posterior's mean, beside the best as its own measurements allow it.

    Args:
        best: Position of the recommended size, to whose mean the others are clipped where both were measured.
    """
    mean = posterior.mean
    reach = _allowed(posterior, best)
    own = posterior.own_level - posterior.own_level[best]
    return np.where(np.isnan(own), mean, mean[best] + np.clip(mean - mean[best], own - reach, own + reach))


def _gain_interval(posterior: Posterior, best: int, base: int) -> tuple[float, float]:
    """Return the 95 % interval of ln of a size's speed over the base's, clipped as `log_speeds`."""
    gains = posterior.log_throughput[:, best] - posterior.log_throughput[:, base]
    low, high = np.quantile(gains, GAIN_QUANTILES)
    own = posterior.own_level[best] - posterior.own_level[base]
    if math.isfinite(own):
        reach = float(_allowed(posterior, best)[base])
        low, high = np.clip([low, high], own - reach, own + reach)
    return float(low), float(high)


def _allowed(posterior: Posterior, best: int) -> Array:
    """Return (D,), how far ln of a size's speed over the best's may lie from what both sizes' own measurements give."""
    covariance = posterior.own_level_covariance
    variance = np.diag(covariance) + covariance[best, best] - 2.0 * covariance[best]
    return ALLOWED_SDS * np.sqrt(np.maximum(variance, 0.0))


def _speeds(posterior: Posterior, log_speed: Array) -> tuple[Speed, ...]:
    """Return the estimates of the sizes that ran; an interval is that of the draws, shifted with their mean."""
    ran = np.flatnonzero(posterior.measured > 0)
    shift = log_speed[ran] - posterior.mean[ran]
    low, high = np.quantile(posterior.log_throughput[:, ran], GAIN_QUANTILES, axis=0) + shift
    return tuple(
        Speed(
            micro_batch_size=int(posterior.sizes[index]),
            samples_per_s=math.exp(log_speed[index]),
            interval=(math.exp(least), math.exp(most)),
            variant=int(posterior.variants[index]),
        )
        for index, least, most in zip(ran, low, high, strict=True)
    )


def _most_likely(posterior: Posterior, tolerance: float) -> int | None:
    """Return the position of the measured size most likely within the tolerance of the best; None for no such size."""
    measured, exactly = ((counts > 0) & posterior.open for counts in (posterior.measured, posterior.measured_exactly))
    if not measured.any():
        return None
    eligible = exactly if _leads(posterior, exactly, measured, tolerance) else measured
    eligible = eligible & ~_is_slower(posterior, eligible, tolerance)  # its own measurements outweigh those of others
    near = posterior.near_best(tolerance).mean(axis=0)
    return int(np.argmax(np.where(eligible, near + MEAN_WEIGHT * posterior.mean, -np.inf)))


def _leads(posterior: Posterior, some: NDArray[np.bool_], all_of_them: NDArray[np.bool_], tolerance: float) -> bool:
    """Return whether no size is faster than the best of some by more than the tolerance, in one account at least.

    The accounts are the posterior's mean, and what the sizes' own measurements say: the first may follow the prior, the
    second a single measurement.
    """
    if not some.any():
        return False
    accounts = (posterior.mean, posterior.own_level)
    return any(one[some].max() >= one[all_of_them].max() + math.log1p(-tolerance) for one in accounts)


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


def count_grounds(posterior: Posterior, evidence: Sequence[Evidence]) -> Grounds:
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


def keep_nearest_program(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return, of probes of one size, those of the program nearest to the user's own."""
    nearness = (lambda kind: not kind.is_for_search, lambda kind: kind is Compilation.SHARED, lambda kind: True)
    kept = ([item for item in evidence if is_near(item.compilation)] for is_near in nearness)
    return next((items for items in kept if items), [])
