"""Shares with Wilson intervals, and means with bootstrap intervals, over problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.search_problems import TOLERANCE, Answer

RESAMPLES = 400
Z = 1.96
HIGH_SCORE = 90
LOW_SCORE = 50
CLOSE = 0.1  # share of the true relative performance within which it is told well
MIN_BAND = 30  # messages below which a band of scores says nothing


def wilson(hits: int, count: int) -> tuple[float, float, float]:
    """A share and its 95 % interval (Wilson, 1927)."""
    if count == 0:
        return math.nan, math.nan, math.nan
    share = hits / count
    center = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return share, center - half, center + half


def bootstrap(answers: Sequence[Answer], statistic: Callable[[Sequence[Answer]], float]) -> tuple[float, float, float]:
    """A statistic of the answers and its 95 % interval over problems."""
    rng = np.random.default_rng(0)
    draws = [statistic([answers[i] for i in rng.integers(0, len(answers), len(answers))]) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return statistic(answers), float(low), float(high)


def mean_probes(answers: Sequence[Answer]) -> float:
    return float(np.mean([answer.num_probes for answer in answers]))


def mean_regret(answers: Sequence[Answer]) -> float:
    return float(np.mean([answer.regret for answer in answers]))


def median_cost_ratio(answers: Sequence[Answer]) -> float:
    """Cost over exhaustive cost of the median problem: a few slow jobs make up the sums."""
    return float(np.median([answer.cost_s / answer.exhaustive_cost_s for answer in answers]))


def cost_ratio(answers: Sequence[Answer]) -> float:
    """Cost over exhaustive cost, by sum."""
    return sum(answer.cost_s for answer in answers) / sum(answer.exhaustive_cost_s for answer in answers)


def static_sweep_ratio(answers: Sequence[Answer]) -> float:
    """Cost with one shared compilation over that of a sweep that compiles each size, by sum."""
    return sum(answer.cost_s for answer in answers) / sum(answer.static_sweep_cost_s for answer in answers)


def variable_cost_ratio(answers: Sequence[Answer]) -> float:
    """The same without the one start and compile that every method pays."""
    fixed = sum(answer.fixed_cost_s for answer in answers)
    whole = sum(answer.exhaustive_cost_s for answer in answers)
    return (sum(answer.cost_s for answer in answers) - fixed) / (whole - fixed)


def least_cost_ratio(answers: Sequence[Answer]) -> float:
    """The share of the exhaustive cost that is fixed: nobody can be below it."""
    return sum(answer.fixed_cost_s for answer in answers) / sum(answer.exhaustive_cost_s for answer in answers)


def messages_of(answers: Sequence[Answer]) -> np.ndarray:
    """(n, 2), score and whether it was right, of every streamed recommendation."""
    return np.array([message for answer in answers for message in answer.messages], dtype=float).reshape(-1, 2)


def bands(answers: Sequence[Answer]) -> list[dict[str, float]]:
    """Mean score and true share, both in percent, by band of ten."""
    messages = messages_of(answers)
    found = []
    for low in range(0, 100, 10):
        inside = messages[(messages[:, 0] >= low) & (messages[:, 0] < low + 10)]
        if len(inside):
            share, least, most = wilson(int(inside[:, 1].sum()), len(inside))
            row = {"from": low, "count": len(inside), "score": float(inside[:, 0].mean())}
            found.append(row | {"true": 100 * share, "low": 100 * least, "high": 100 * most})
    return found


def calibration_error(answers: Sequence[Answer]) -> float:
    """Expected calibration error over all messages, ten bands."""
    messages = messages_of(answers)
    if not len(messages):
        return math.nan
    band = np.minimum(messages[:, 0] // 10, 9)
    error = 0.0
    for value in np.unique(band):
        inside = messages[band == value]
        error += len(inside) / len(messages) * abs(inside[:, 0].mean() / 100 - inside[:, 1].mean())
    return error


def shortfalls_held(answers: Sequence[Answer]) -> dict[str, Any]:
    """How often a recommendation with a low score is as near to the best as it says, with a score of 90, that it is."""
    told = _low_shortfalls(answers)
    low = [answer for answer in answers if LOW_SCORE <= (answer.confidence or 0) < HIGH_SCORE]
    ended = [answer.regrets[-1] for answer in low if answer.regrets]
    return {
        "messages": len(told),
        "held": bootstrap(answers, lambda some: _share_held(_low_shortfalls(some))),
        "median": float(np.median([share for _, share, _ in told])) if told else math.nan,
        "ended": len(ended),
        "ended_held": _share_held(ended),
    }


def _low_shortfalls(answers: Sequence[Answer]) -> list[tuple[int, float, float]]:
    """Of scores below 90 with which a search may well end; what the first probes say holds because it says nothing."""
    low, high = LOW_SCORE, HIGH_SCORE
    return [told for answer in answers for told in answer.regrets if low <= told[0] < high]


def _share_held(told: Sequence[tuple[int, float, float]]) -> float:
    return float(np.mean([missed <= most for _, most, missed in told])) if told else math.nan


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Everything that is reported of one method on one set of problems."""
    count = len(answers)
    regrets = np.array([answer.regret for answer in answers])
    row: dict[str, Any] = {
        "problems": count,
        "within_2_percent": wilson(int((regrets <= TOLERANCE).sum()), count),
        "within_5_percent": wilson(int((regrets <= 0.05).sum()), count),
        "mean_regret": bootstrap(answers, mean_regret),
        "regret_p95": float(np.quantile(regrets, 0.95)),
        "mean_probes": bootstrap(answers, mean_probes),
        "cost_over_exhaustive": bootstrap(answers, cost_ratio),
        "median_cost_over_exhaustive": bootstrap(answers, median_cost_ratio),
        "out_of_memory_per_run": float(np.mean([answer.num_out_of_memory for answer in answers])),
    }
    if answers[0].confidence is None:
        return row
    high = [answer for answer in answers if (answer.confidence or 0) >= HIGH_SCORE]
    told = bands(answers)
    return row | {
        "share_with_score_90": len(high) / count,
        "score_90_true": wilson(sum(answer.is_right for answer in high), len(high)),
        "score_90_mean": float(np.mean([answer.confidence for answer in high])) if high else math.nan,
        "expected_calibration_error": bootstrap(answers, calibration_error),
        "worst_low_band_points": _worst_points(told, 0, LOW_SCORE),
        "worst_middle_band_points": _worst_points(told, LOW_SCORE, HIGH_SCORE),
        "bands": told,
        "stop_reasons": _counts([answer.stop_reason for answer in answers]),
        "relative_performance": relative_performance(answers),
    }


def relative_performance(answers: Sequence[Answer]) -> dict[str, Any]:
    """How near to the truth the relative performance of the recommendations is, and how often its interval holds it."""
    known = [abs(math.expm1(answer.relative_error)) for answer in answers if math.isfinite(answer.relative_error)]
    held = [answer.interval_holds for answer in answers if answer.interval_holds is not None]
    return {
        "within_10_percent": wilson(sum(error <= CLOSE for error in known), len(known)),
        "interval_holds": wilson(sum(held), len(held)),
    }


def _worst_points(told: Sequence[dict[str, float]], low: float, high: float) -> float:
    """By how many points the mean score of a band is off at most, between two scores; NaN where none says anything."""
    inside = [band for band in told if low <= band["from"] < high and band["count"] >= MIN_BAND]
    return max((abs(band["score"] - band["true"]) for band in inside), default=math.nan)


def _counts(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in sorted(set(words))}
