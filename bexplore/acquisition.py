"""Which probe is worth most per second, and whether any is worth its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.evidence import Evidence
from bexplore.posterior import Posterior
from bexplore.probe import Compilation
from bexplore.recommendation import SearchSettings

Array = NDArray[np.float64]

MAX_CANDIDATES = 40
MIN_FEASIBLE = 0.02  # a size less likely to fit than this is not probed
MIN_REPLICATE_NEAR_BEST = 0.05  # a measured size less likely near the best than this is not measured again
NUM_BINS = 8
NEAR_WEIGHT = 0.8  # utility: this much for being within the tolerance, the rest for being close to it
GAP_SCALE = 0.10  # ln(samples/s) at which the rest of the utility is gone
WITHIN_PROBE_SD = 0.004
COST_POWER = 0.7  # below 1: a cheap probe is not worth just any repetition
WORTHLESS = 0.004  # expected gain in utility below which no single probe tells anything
WARM_UP_PASSES = 3
STOP_WEIGHT = 0.0
STOP_FROM = 0.8
STOP_TO = 0.92
NEAR = [None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that a probe costs, learnt from the probes so far.

    Attributes:
        start_s: To start a worker.
        compile_s: To compile one program.
        update_s: Updates of one probe.
        warm_shared: Whether a worker with the shared program is alive.
        num_passes: Timed and warm-up passes of a probe.
    """

    start_s: float
    compile_s: float
    update_s: float
    warm_shared: bool
    num_passes: int

    @classmethod
    def learnt(cls, evidence: Sequence[Evidence], settings: SearchSettings) -> Costs:
        """What the probes so far say; the settings' guesses where none says anything."""
        starts = [item.start_time_s for item in evidence if item.start_time_s > 0]
        compiles = [item.compile_time_s for item in evidence if item.compile_time_s > 0]
        updates = [item.update_time_s for item in evidence if item.update_time_s > 0]
        last = evidence[-1] if evidence else None
        return cls(
            start_s=float(np.median(starts)) if starts else settings.start_time_s,
            compile_s=float(np.median(compiles)) if compiles else settings.compile_time_s,
            update_s=2.0 * float(np.median(updates)) if updates else 0.0,
            warm_shared=last is not None and last.is_measured and last.compilation is not Compilation.EXACT,
            num_passes=settings.max_passes + WARM_UP_PASSES,
        )

    def of(self, pass_s: Array | float, *, compilation: Compilation, fresh_worker: bool) -> Array | float:
        """Seconds of a probe whose pass takes `pass_s`."""
        running = self.num_passes * pass_s + self.update_s
        if compilation is not Compilation.EXACT and self.warm_shared and not fresh_worker:
            return running
        return running + self.start_s + (0.0 if compilation is Compilation.EAGER else self.compile_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The probe that is worth most per second.

    Attributes:
        index: Position in the posterior's domain.
        value: Expected gain in utility (0 to 1) of the recommendation after it.
    """

    index: int
    value: float


def expected_pass_s(posterior: Posterior) -> Array:
    """(D,), seconds of a pass, pessimistic where little is known."""
    slow = posterior.log_throughput.mean(axis=0) - 0.5 * posterior.log_throughput.std(axis=0)
    return posterior.sizes / np.exp(slow)


def rank(posterior: Posterior, settings: SearchSettings, costs: Costs) -> list[Choice]:
    """Every candidate probe, the one that is worth most per second first.

    Source: the value of information of Frazier's knowledge gradient, with the outcome cut into bins.
    """
    near = posterior.near_best(settings.tolerance)
    candidates = _candidates(posterior, near)
    if not len(candidates):
        return []
    utility = _utility(posterior, near)
    NEAR[0] = near
    measured = np.flatnonzero((posterior.measured > 0) & posterior.open)
    cost = costs.of(expected_pass_s(posterior), compilation=settings.search_compilation, fresh_worker=False)
    values = _values(posterior, utility, measured, candidates)
    worth = np.maximum(values, 1e-12) / np.asarray(cost)[candidates] ** COST_POWER
    order = np.argsort(-worth, kind="stable")
    ranked = [Choice(index=int(candidates[i]), value=float(values[i])) for i in order]
    if ranked[0].value >= WORTHLESS:
        return ranked
    duel = _duel(posterior, near, measured)
    return (
        [choice for choice in ranked if choice.index == duel] + [c for c in ranked if c.index != duel]
        if duel
        else ranked
    )


def _candidates(posterior: Posterior, near: NDArray[np.bool_]) -> NDArray[np.intp]:
    probability_near = near.mean(axis=0)
    fits = posterior.feasible.mean(axis=0)
    values = np.where(posterior.feasible, posterior.log_throughput, -np.inf)
    best = np.bincount(values.argmax(axis=1), minlength=len(posterior.sizes)) / len(values)
    allowed = posterior.open & (fits > MIN_FEASIBLE)
    again = posterior.measured > 0
    allowed &= ~again | (probability_near > MIN_REPLICATE_NEAR_BEST)
    merit = np.where(allowed, probability_near + 2 * best, -1.0)
    order = np.argsort(-merit, kind="stable")[:MAX_CANDIDATES]
    return order[merit[order] >= 0]


def _utility(posterior: Posterior, near: NDArray[np.bool_]) -> Array:
    values = np.where(posterior.feasible, posterior.log_throughput, -np.inf)
    gap = values.max(axis=1, keepdims=True) - values
    return NEAR_WEIGHT * near + (1 - NEAR_WEIGHT) * np.clip(1 - gap / GAP_SCALE, 0.0, 1.0)


def _values(posterior: Posterior, utility: Array, measured: NDArray[np.intp], candidates: NDArray[np.intp]) -> Array:
    """(C,), expected gain of the best recommendation when each candidate is probed.

    The draws are sorted by what the probe would find and cut into bins; in each bin the best option is taken. Draws in
    which the candidate does not fit are a bin of their own, in which it is no option.
    """
    num_draws, num_candidates = len(utility), len(candidates)
    fits = posterior.feasible[:, candidates]
    normal = np.random.default_rng(11).standard_normal((num_draws, num_candidates))
    found = posterior.log_throughput[:, candidates] + normal * np.hypot(posterior.probe_sd, WITHIN_PROBE_SD)[:, None]
    order = np.argsort(np.where(fits, found, np.inf), axis=0)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(num_draws)[:, None], axis=0)
    bins = np.where(fits, rank * NUM_BINS // np.maximum(fits.sum(axis=0), 1), NUM_BINS)
    member = (bins.T[:, None, :] == np.arange(NUM_BINS + 1)[None, :, None]).astype(float)  # (C, bins, S)
    known = (member @ utility[:, measured]).max(axis=2)  # (C, bins)
    own = (member @ utility[:, candidates].T[:, :, None])[:, :, 0]
    own[:, NUM_BINS] = 0.0
    now = utility[:, measured].sum(axis=0).max()
    gain = (np.maximum(known, own).sum(axis=1) - now) / num_draws
    if STOP_WEIGHT:
        near = NEAR[0].astype(float)
        size = member.sum(axis=2)
        kn = (member @ near[:, measured]).max(axis=2)
        ow = (member @ near[:, candidates].T[:, :, None])[:, :, 0]
        ow[:, NUM_BINS] = 0.0
        conf = np.maximum(kn, ow) / np.maximum(size, 1)
        stop = (np.clip((conf - STOP_FROM) / (STOP_TO - STOP_FROM), 0, 1) * size).sum(axis=1) / num_draws
        gain = gain + STOP_WEIGHT * stop
    return gain


def _duel(posterior: Posterior, near: NDArray[np.bool_], measured: NDArray[np.intp]) -> int | None:
    """Leader or challenger, whichever is known less: where near-tied sizes get their replicates."""
    leader = int(measured[np.argmax(near[:, measured].mean(axis=0))])
    doubt = ~near[:, leader]
    values = np.where(posterior.feasible & posterior.open[None, :], posterior.log_throughput, -np.inf)
    rows = values[doubt] if doubt.any() else values
    winners = np.bincount(rows.argmax(axis=1), minlength=len(posterior.sizes))
    winners[leader] = 0
    if not winners.any():
        return leader
    challenger = int(winners.argmax())
    spread = posterior.log_throughput.std(axis=0)
    known_less = (posterior.measured[challenger], -spread[challenger]) <= (posterior.measured[leader], -spread[leader])
    return challenger if known_less else leader


def fantasy(posterior: Posterior, item: Evidence) -> Evidence | None:
    """What a probe in flight will probably find, so that a parallel asker looks elsewhere; None if it will not fit."""
    index = posterior.index(item.micro_batch_size)
    if index >= len(posterior.sizes) or posterior.feasible[:, index].mean() < 0.5:
        return None
    return Evidence(
        micro_batch_size=item.micro_batch_size,
        outcome=item.outcome,
        log_throughput=float(posterior.log_throughput[:, index].mean()),
        log_throughput_se=math.nan,
        compilation=item.compilation,
    )
