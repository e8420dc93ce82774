"""What to recommend, how much faster it is than the base, and how sure that is."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation
from bexplore.search.calibration import Grounds, score
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import Array, Posterior

WANTED_SCORE = 90  # at which it is told how far a size may be from the best
ALLOWED_SDS = 3.0  # from what two sizes say by themselves, beyond which no relative performance is told
HIDDEN_SD = 0.1  # ln(samples/s), from busy neighbours, above which a probe tells next to nothing of its size


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How long to search, for what, and what a probe costs.

    Attributes:
        tolerance: Two sizes within this share of each other are as good as each other.
        target_confidence: Stop at this score (0 to 98).
        max_probes: Stop after this many probes, the exact verification included.
        time_budget_s: Stop after this many seconds; None for no limit.
        training_time_s: Seconds of the training that the answer is for: a probe that saves less than it costs is none.
        training_samples: Samples of the training, of one replica, where they are known: they tell its seconds.
        seed: Of the draws of the belief.
        search_compilation: Program of the search's probes.
        user_compilation: Program that the user will run.
        verify_exact: Run the winner once more as the user will compile it, where the search did not.
        max_passes: Upper bound on timed passes of a probe.
        probe_time_limit_s: A probe ends as `timed_out` beyond it; None for no limit.
        start_time_s: Seconds to start a worker; a guess until one was seen.
        compile_time_s: Seconds to compile; a guess until one was seen.
        depths: At which the search may run instead of the whole depth, where that is cheaper; None for never.
        forces_reduced_depth: Run there even where it is not cheaper.
    """

    tolerance: float = 0.02
    target_confidence: int = 90
    max_probes: int = 16
    time_budget_s: float | None = None
    training_time_s: float = 36_000.0
    training_samples: int | None = None
    seed: int = 0
    search_compilation: Compilation = Compilation.SHARED
    user_compilation: Compilation = Compilation.EXACT
    verify_exact: bool = True
    max_passes: int = 10
    probe_time_limit_s: float | None = None
    start_time_s: float = 5.0
    compile_time_s: float = 30.0
    depths: Depths | None = None
    forces_reduced_depth: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The size to use, of those that were run.

    Attributes:
        micro_batch_size: Samples of one pass.
        relative_performance: Its samples/s over those of the base, as the belief has them.
        confidence: P(it is within the tolerance of the best that fits) in percent, 0 to 98.
        samples_per_s: Of the pass, as measured; of the program that the user will run, once that ran.
        smallest_within_tolerance: The smallest of `within_tolerance`.
        within_tolerance: Sizes that were run and are within the tolerance of this one, the fastest first.
        base_micro_batch_size: The smallest candidate.
        num_probes: Probes so far, all outcomes.
        elapsed_s: Seconds since the exploration started.
        regret_bound_90: Share of the speed of the best that fits which it misses at most, with a score of 90: at most
            the tolerance where the confidence is 90 or more. None where no such share below 1 is known.
        left_to_gain: Share of the speed of the best that fits which it is expected to miss, 0 to 1.
        relative_performance_interval: Between which `relative_performance` lies with 95 %; None where it is 1.
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


def recommend(
    posterior: Posterior,
    evidence: Sequence[Evidence],
    *,
    base: int,
    tolerance: float,
    size: int | None = None,
) -> Recommendation | None:
    """Recommend the measured size that is most likely within the tolerance of the best that fits.

    A size that ran exactly as the user will compile it goes before one that did not, once any did. None where every
    size that was measured was dropped since.

    Args:
        posterior: The belief.
        evidence: What it was formed from.
        base: The smallest candidate.
        tolerance: Two sizes within this share of each other are as good as each other.
        size: The measured size to recommend, whatever the belief prefers; None for that.
    """
    mean = posterior.mean
    best = _most_likely(posterior, tolerance) if size is None else posterior.index(size)
    if best is None:
        return None
    near = posterior.near_best(tolerance).mean(axis=0)
    base_index = posterior.index(base)
    low, gain, high = _gain(posterior, best, base_index)
    ran = (posterior.measured > 0) & posterior.open
    within = posterior.sizes[ran & (mean >= mean[best] + math.log1p(-tolerance))].tolist()
    own = [item for item in evidence if item.is_measured and item.micro_batch_size == posterior.sizes[best]]
    own = nearest_to_the_users(own)
    grounds = grounds_of(posterior, evidence)
    regrets = posterior.regret(int(posterior.sizes[best]))
    return Recommendation(
        micro_batch_size=int(posterior.sizes[best]),
        relative_performance=math.exp(gain),
        relative_performance_interval=None if best == base_index else (math.exp(low), math.exp(high)),
        confidence=score(float(near[best]), grounds, tolerance=tolerance),
        samples_per_s=float(np.exp(np.median([item.log_throughput for item in own]))),
        smallest_within_tolerance=min(within),
        base_micro_batch_size=base,
        num_probes=len(evidence),
        within_tolerance=tuple(sorted(within, key=lambda size: -mean[posterior.index(size)])),
        regret_bound_90=_at_most(regrets, grounds, tolerance=tolerance),
        left_to_gain=float(regrets.mean()),
    )


def _gain(posterior: Posterior, best: int, base: int) -> tuple[float, float, float]:
    """ln of how much faster a size is than the base: the low end, the mean and the high end of 95 %.

    Where both were measured it is none that their own measurements do not allow.
    """
    gains = posterior.log_throughput[:, best] - posterior.log_throughput[:, base]
    told = np.append(np.quantile(gains, (0.025, 0.975)), gains.mean(dtype=np.float64))
    own = posterior.own_level[best] - posterior.own_level[base]
    if math.isfinite(own):
        both = posterior.own_level_covariance[np.ix_([best, base], [best, base])]
        reach = ALLOWED_SDS * math.sqrt(max(float(np.trace(both) - 2.0 * both[0, 1]), 0.0))
        told = np.clip(told, own - reach, own + reach)
    low, high, mean = map(float, told)
    return low, mean, high


def _most_likely(posterior: Posterior, tolerance: float) -> int | None:
    """Position of the measured size that is most likely within the tolerance of the best; None where there is none."""
    measured, exactly = ((counts > 0) & posterior.open for counts in (posterior.measured, posterior.measured_exactly))
    eligible = exactly if exactly.any() else measured
    if not eligible.any():
        return None
    own = np.where(eligible, posterior.own_level, -np.inf)
    eligible &= own >= own.max() + math.log1p(-tolerance)  # what was seen outweighs what follows from others
    near = posterior.near_best(tolerance).mean(axis=0)
    return int(np.argmax(np.where(eligible, near + 1e-3 * posterior.mean, -np.inf)))


def grounds_of(posterior: Posterior, evidence: Sequence[Evidence]) -> Grounds:
    """What a belief rests on."""
    seen = {item.micro_batch_size for item in evidence if item.is_measured and item.contention_sd <= HIDDEN_SD}
    return Grounds(num_sizes=len(seen), num_candidates=int(posterior.represented.sum()))


def _at_most(regrets: Array, grounds: Grounds, *, tolerance: float) -> float | None:
    """The smallest share that reaches the wanted score: the score of a tolerance, asked the other way round."""
    missed = np.sort(regrets)
    shares = np.sort(np.append(missed, tolerance))

    def score_of(share: float) -> int:
        probability = float(np.searchsorted(missed, share, side="right")) / len(missed)
        return score(probability, grounds, tolerance=share)

    needed = bisect_left(shares, WANTED_SCORE, key=score_of)
    share = float(shares[needed]) if needed < len(shares) else 1.0
    return share if share < 1.0 else None


def nearest_to_the_users(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Of probes of one size, those of the program that is nearest to what the user will run."""
    nearness = (lambda kind: not kind.is_for_search, lambda kind: kind is Compilation.SHARED, lambda kind: True)
    kept = ([item for item in evidence if is_near(item.compilation)] for is_near in nearness)
    return next((items for items in kept if items), [])
