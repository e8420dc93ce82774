"""Which probe is worth most per second, and whether any is worth its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation, Purpose
from bexplore.measurement.statistics import Array, Index
from bexplore.search.evidence import Evidence
from bexplore.search.policy.probe_cost import PASS_SD, Costs, expected_pass_s
from bexplore.search.posterior.posterior import LIKELY_FITS, Posterior
from bexplore.search.posterior.throughput import Draws
from bexplore.search.settings import SearchSettings

# sensitivity.md is benchmarks/results/sensitivity.md: what half and double of each figure do to searches.
# Source: sensitivity.md. Sizes that are ranked; probability of fitting below which a size is not probed, and of being
# near the best below which a measured size is not measured again; weight of being the best among what is ranked.
MAX_CANDIDATES = 32
MAX_CANDIDATES_OF_VARIANT = 12  # of each, where a job has several. Source: sensitivity.md, variants
MAX_RIVALS = 48  # of the leader, in a job of several variants. Source: sensitivity.md, variants
MIN_FEASIBLE = 0.02
MIN_REPLICATE_NEAR_BEST = 0.05
BEST_WEIGHT = 2
# Source: sensitivity.md. Utility: this much for a size within the tolerance, the rest falls to 0 with the gap to the
# best, ln(samples/s).
NEAR_WEIGHT = 0.8
GAP_SCALE = 0.10
# Source: sensitivity.md. Bins of a probe's outcome; ln(samples/s), noise within a probe.
NUM_BINS = 8
WITHIN_PROBE_SD = 0.004
# Source: sensitivity.md. A probe is put off whose passes take this many times the seconds spent so far, if its size is
# no faster than the nearest smaller one that ran: early, the posterior is wide where nothing was seen.
MOST_RISK = 3.0
PUT_OFF = 1e-9  # Source: a sort key below any other
# Source: sensitivity.md. Expected gain in utility below which no single probe is informative.
WORTHLESS = 0.004
# The noise draws are the same at every decision (common random numbers), so that the order of candidates does not
# depend on chance in the draws. Source: arbitrary; from the search's seed, each seed would replay another search.
NOISE_SEED = 11
# Noise of passes beyond which a machine is shared, and drifts. Source: that of a machine of one's own, `PASS_SD`.
SHARED_PASS_SD = PASS_SD
# Source: sensitivity.md. Sizes beside a contender; probability of being near the best below which a size is left out; a
# size is as good a comparison as the leader from this share of its probability on.
MOST_OTHERS = 3
MIN_NEAR_BEST = 0.1
AS_LIKELY = 0.75
# A round with a further contender must stay short beside the drift; two sizes with a longer round are timed alone.
# Source: on a shared machine of two cores the standard deviation of ln(A / B) of equal work was 5.2 % in rounds of 8 s,
# and 8.7 % in rounds of 16 s, as in separate visits; sensitivity.md.
MAX_ROUND_S = 4.0
MAX_ROUND_OF_TWO_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The probe that is worth most per second."""

    index: int  # position in the posterior's domain
    value: float  # expected gain in utility (0 to 1) of the recommendation after the probe
    is_contender: bool = False  # whether it compares the last two contenders


def rank(
    posterior: Posterior,
    settings: SearchSettings,
    costs: Costs,
    *,
    last: tuple[int, int] = (0, 0),
    extra_s: Array | float = 0.0,
) -> list[Choice]:
    """Rank every candidate probe, the one that is worth most per second first.

    Where no single probe is informative, or a contender would be measured again, the last two contenders alternate. In
    a job of several variants that probe then goes first whose outcome explains most of whether the leader is near the
    best: what is left open is rarely one size, and often a variant that has not run.

    Source: the value of information of Frazier's knowledge gradient, with the outcome cut into bins.

    Args:
        last: Variant and size of the last probe.
        extra_s: (D,), seconds beyond the usual cost of a probe, of variants that have no program yet.
    """
    near = posterior.near_best(settings.tolerance)
    candidates = _candidates(posterior, near)
    if not len(candidates):
        return []
    utility = _utility(posterior, near)
    measured = np.flatnonzero((posterior.measured > 0) & posterior.open)
    contenders = _contenders(posterior, near, measured) if len(measured) else ()
    rivals = _rivals(posterior, contenders, settings.tolerance)
    if len(rivals):
        candidates = np.union1d(candidates, rivals)
    cost = extra_s + costs.estimate_s(
        expected_pass_s(posterior), compilation=settings.search_compilation, fresh_worker=False
    )
    # Every exploration starts a worker and compiles, beside which the seconds of short probes do not count.
    cost_s = cost + costs.program_s
    risky = _risk_s(posterior, costs) > MOST_RISK * costs.spent_s

    def ranked_by(worth: Array, candidates: NDArray[np.intp], values: Array) -> list[Choice]:
        per_second = np.maximum(worth, 1e-12) / cost_s[candidates]
        order = np.argsort(-np.where(risky[candidates], PUT_OFF * per_second, per_second), kind="stable")
        return [Choice(index=int(candidates[i]), value=float(values[i])) for i in order]

    values = _values(utility, measured, candidates, _members(posterior, candidates))
    ranked = ranked_by(values, candidates, values)
    if not contenders:
        return ranked
    is_replicate = posterior.measured[ranked[0].index] > 0 and (len(rivals) > 0 or ranked[0].index in contenders)
    if ranked[0].value >= WORTHLESS and not is_replicate:
        return ranked
    if len(rivals):
        information = _information(near[:, contenders[0]], _members(posterior, rivals))
        return ranked_by(information, rivals, np.full(len(rivals), ranked[0].value))
    first = min(contenders, key=lambda index: _order(posterior, index, last))
    return [Choice(index=first, value=ranked[0].value, is_contender=True), *ranked]


def _candidates(posterior: Posterior, near: NDArray[np.bool_]) -> NDArray[np.intp]:
    probability_near = near.mean(axis=0)
    fits = posterior.feasible.mean(axis=0)
    best = np.bincount(posterior.values.argmax(axis=1), minlength=len(posterior.sizes)) / len(near)
    allowed = posterior.open & (fits > MIN_FEASIBLE)
    again = posterior.measured > 0
    allowed &= ~again | (probability_near > MIN_REPLICATE_NEAR_BEST)
    merit = np.where(allowed, probability_near + BEST_WEIGHT * best, -1.0)
    order = np.argsort(-merit, kind="stable")
    order = order[_is_among_first(posterior.variants[order])]
    return order[merit[order] >= 0]


def _is_among_first(variants: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of some ordered positions are among the first of their variant: each has its share of candidates."""
    most = MAX_CANDIDATES if not variants.any() else MAX_CANDIDATES_OF_VARIANT
    place = np.empty(len(variants), dtype=np.int64)
    for variant in np.unique(variants):
        own = variants == variant
        place[own] = np.arange(own.sum())
    return place < most


def _risk_s(posterior: Posterior, costs: Costs) -> Array:
    """Return (D,), seconds of a probe's passes at the speed of the nearest smaller size that ran."""
    measured = np.flatnonzero(posterior.measured > 0)
    at = np.arange(len(posterior.sizes))
    below = measured[np.maximum(np.searchsorted(measured, at, side="right") - 1, 0)]
    # of a variant that has not run, at the speed that is expected of it
    known = np.where(posterior.variants[below] == posterior.variants, below, at)
    return costs.fewest_passes_s(posterior.sizes / np.exp(posterior.mean[known]))


def _utility(posterior: Posterior, near: NDArray[np.bool_]) -> Draws:
    gap = np.full_like(posterior.values, np.inf)  # where a size does not fit, or none does
    np.subtract(posterior.best, posterior.values, out=gap, where=posterior.feasible)
    close = np.clip(1.0 - gap / np.float32(GAP_SCALE), 0.0, 1.0)
    return np.float32(1 - NEAR_WEIGHT) * close + np.float32(NEAR_WEIGHT) * near


def _members(posterior: Posterior, candidates: NDArray[np.intp]) -> Draws:
    """Return (C, bins, S), which draws each bin of the outcome of each candidate's probe holds: 1 or 0.

    The draws are sorted by the probe's outcome and cut into bins of equal number; those in which the candidate does not
    fit are the last bin.
    """
    num_draws, num_candidates = len(posterior.feasible), len(candidates)
    fits = posterior.feasible[:, candidates]
    normal = np.random.default_rng(NOISE_SEED).standard_normal((num_draws, num_candidates), dtype=np.float32)
    noise = normal * np.hypot(posterior.probe_sd, WITHIN_PROBE_SD).astype(np.float32)[:, None]
    found = np.where(fits, posterior.log_throughput[:, candidates] + noise, np.float32(np.inf))
    order = np.argsort(np.ascontiguousarray(found.T), axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(num_draws)[None, :], axis=1)
    bins = np.where(fits.T, rank * NUM_BINS // np.maximum(fits.sum(axis=0), 1)[:, None], NUM_BINS)
    return (bins[:, None, :] == np.arange(NUM_BINS + 1)[None, :, None]).astype(np.float32)


def _values(utility: Draws, measured: NDArray[np.intp], candidates: NDArray[np.intp], member: Draws) -> Array:
    """Return (C,), expected gain of the best recommendation when each candidate is probed.

    In each bin of the outcome the best option is taken. A candidate is no option where it does not fit. One half of a
    bin's draws chooses the best option and the other half values it, since the best of many noisy means is biased
    upwards.
    """
    gains = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        known = member[:, :, half] @ utility[half, measured]  # (C, bins, M)
        own = member[:, :, half] @ utility[half, candidates].T[:, :, None]
        own[:, NUM_BINS] = 0.0
        gains.append(np.concatenate([known, own], axis=2))
    chosen = [gain.argmax(axis=2, keepdims=True) for gain in gains]
    valued = [np.take_along_axis(gains[1 - i], chosen[i], axis=2).sum(axis=(1, 2)) for i in (0, 1)]
    now = utility[:, measured].sum(axis=0).max(initial=0.0)
    return (valued[0] + valued[1] - now) / len(utility)


def _rivals(posterior: Posterior, contenders: Sequence[int], tolerance: float) -> NDArray[np.intp]:
    """Return the leader, and the positions that are most often better by more than the tolerance, in order.

    None where there is one variant, or nothing was measured.
    """
    if not contenders or not posterior.variants.any():
        return np.zeros(0, dtype=np.intp)
    leader = contenders[0]
    margin = posterior.values[:, [leader]] - np.float32(math.log1p(-tolerance))
    better = np.where(posterior.open, (posterior.values > margin).mean(axis=0), 0.0)
    better[leader] = 1.0
    order = np.argsort(-better, kind="stable")[:MAX_RIVALS]
    return order[better[order] > 0.0]


def _information(near_leader: NDArray[np.bool_], member: Draws) -> Array:
    """Return (C,), variance of the probability that the leader is near the best, which each probe's outcome explains.

    Where no outcome of one probe changes the recommendation, this is what decides when the search may end. Two halves
    of a bin's draws estimate the same probability, since the square of one noisy estimate is biased upwards.
    """
    deviation = near_leader - near_leader.mean()
    halves = (slice(0, None, 2), slice(1, None, 2))
    first, second = (
        (member[:, :, half] @ deviation[half].astype(np.float32)) / np.maximum(member[:, :, half].sum(axis=2), 1.0)
        for half in halves
    )
    weights = member.mean(axis=2)
    return np.asarray((weights * first * second).sum(axis=1), dtype=np.float64)


def _contenders(posterior: Posterior, near: NDArray[np.bool_], measured: NDArray[np.intp]) -> tuple[int, ...]:
    """Return the leader, and the size that is most often the best where the leader is not good enough."""
    leader = int(measured[np.argmax(near[:, measured].mean(axis=0))])
    confirmation = ~near[:, leader]
    values = np.where(posterior.open[None, :], posterior.values, -np.inf)
    rows = values[confirmation] if confirmation.any() else values
    winners = np.bincount(rows.argmax(axis=1), minlength=len(posterior.sizes))
    winners[leader] = 0
    return (leader, int(winners.argmax())) if winners.any() else (leader,)


def _order(posterior: Posterior, index: int, last: tuple[int, int]) -> tuple[int, bool]:
    """Return a sort key: the fewest measurements first, and never the same twice in a row."""
    own = int(posterior.variants[index]), int(posterior.sizes[index])
    return int(posterior.measured[index]), own == last


def fantasy(posterior: Posterior, item: Evidence) -> Evidence | None:
    """Return the expected outcome of a probe in flight, for parallel explorers; None if it will hardly fit."""
    index = posterior.index(item.micro_batch_size, item.variant)
    if index >= len(posterior.sizes) or posterior.feasible[:, index].mean() < LIKELY_FITS:
        return None
    return Evidence(
        micro_batch_size=item.micro_batch_size,
        outcome=item.outcome,
        log_throughput=float(posterior.log_throughput[:, index].mean()),
        log_throughput_se=math.nan,
        compilation=item.compilation,
        variant=item.variant,
    )


def interleaved_with(
    fitted: Posterior,
    finished: Sequence[Evidence],
    settings: SearchSettings,
    costs: Costs,
    *,
    index: int,
    purpose: Purpose,
    compilation: Compilation,
) -> tuple[int, ...]:
    """Return sizes that ran in the same program, to be timed interleaved with a probe.

    A screened size is compared with one of the best, the quickest of those about as likely near the best; contenders
    with all others that keep a round short. None on a machine whose passes repeat well, unless the search began
    interleaved; none whose rounds are longer than the drift; none where every size has a program or a process of its
    own.
    """
    if compilation not in (Compilation.SHARED, Compilation.EAGER) or compilation is not settings.search_compilation:
        return ()
    if costs.pass_sd <= SHARED_PASS_SD and not any(item.interleaved for item in finished):
        return ()
    same_program = [item for item in finished if item.is_measured and item.compilation is compilation]
    ran = [size for item in same_program for size in item.timed_sizes]
    pass_s = expected_pass_s(fitted)
    is_short = pass_s + pass_s[index] <= MAX_ROUND_OF_TWO_S
    is_other = np.arange(len(fitted.sizes)) != index
    others = np.flatnonzero(fitted.open & np.isin(fitted.sizes, ran) & is_short & is_other)
    if not len(others):
        return ()
    near = fitted.near_best(settings.tolerance).mean(axis=0)
    if purpose in (Purpose.SEARCH, Purpose.BASE):
        as_good = others[near[others] >= AS_LIKELY * near[others].max()]
        chosen = [as_good[np.argmin(pass_s[as_good])]]
    else:
        chosen = _interleaved_contenders(others, near, pass_s, round_s=float(pass_s[index]))
    return tuple(int(fitted.sizes[i]) for i in chosen)


def _interleaved_contenders(others: Index, near: Array, pass_s: Array, *, round_s: float) -> list[np.intp]:
    """Return the size most likely near the best, and further ones that are likely enough and fit into the round."""
    leader, *rest = others[np.argsort(-near[others], kind="stable")]
    chosen, round_s = [leader], round_s + float(pass_s[leader])
    for other in rest:
        if len(chosen) == MOST_OTHERS or near[other] < MIN_NEAR_BEST:
            break
        if round_s + pass_s[other] <= MAX_ROUND_S:
            chosen.append(other)
            round_s += float(pass_s[other])
    return chosen
