"""The confidence score: a probability of the posterior, calibrated by its grounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bexplore.job.batching import INDIFFERENCE_ZONE

MAX_SCORE = 98  # Source: sensitivity.md; the rest is for what no model of throughput represents
# Probabilities are clipped to this and to 1 less this. Source: half a draw of `NUM_DRAWS` (512) is 0.001.
LEAST_PROBABILITY = 1e-3
LEAST_TOLERANCE = 0.001  # Source: keeps a logarithm finite; no machine repeats as well
# Beyond the most, further candidates are correlated neighbours. Source: the terms that benchmarks/fit_calibration.py
# fits: results/calibration.md there.
USUAL_CANDIDATES, MOST_CANDIDATES = 8, 64
# Of the log-odds, in the order of `log_odds_terms`. Source:
# benchmarks/fit_calibration.py: results/calibration.md there.
WEIGHTS = (0.799, 0.892, 0.053, -0.1, 0.292)
# While a single size was measured, the rest is prior. Between a tenth and nine tenths nearly none is right, beyond
# nearly all are: too few messages to fit. Source: results/calibration.md, "one size alone".
WEIGHTS_OF_ONE_SIZE = (-1.0, 1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What a probability rests on, beside the posterior."""

    num_sizes: int  # sizes that were measured without a disturbance that hides them
    num_candidates: int  # candidates

    @property
    def is_one_size(self) -> bool:
        """Whether no two sizes were compared."""
        return self.num_sizes <= 1


def score(probability: float, grounds: Grounds, *, tolerance: float) -> int:
    """Return the confidence score, 0 to 98, of the posterior's probability that a size is within the tolerance."""
    weights = WEIGHTS_OF_ONE_SIZE if grounds.is_one_size else WEIGHTS
    terms = log_odds_terms(probability, grounds, tolerance=tolerance)
    log_odds = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    return min(MAX_SCORE, int(100.0 / (1.0 + math.exp(-log_odds))))


def log_odds_terms(probability: float, grounds: Grounds, *, tolerance: float) -> tuple[float, ...]:
    """Return the terms that the weights multiply: 1, the log-odds of the posterior, and three corrections.

    Low odds are worth less than high ones; among many candidates odds tell less than among few; a wide tolerance is met
    more often than a posterior of smooth curves expects.
    """
    clipped = min(max(probability, LEAST_PROBABILITY), 1.0 - LEAST_PROBABILITY)
    raw = math.log(clipped / (1.0 - clipped))
    candidates = math.log2(min(grounds.num_candidates, MOST_CANDIDATES) / USUAL_CANDIDATES)
    return 1.0, raw, min(raw, 0.0), raw * candidates, math.log(max(tolerance, LEAST_TOLERANCE) / INDIFFERENCE_ZONE)
