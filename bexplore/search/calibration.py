"""The confidence score: what a probability of the belief has been worth, given what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_SCORE = 98  # the rest is kept for everything that the model cannot represent
LEAST_PROBABILITY = 1e-3  # or most, less than 1: a few hundred draws tell none more closely
USUAL_TOLERANCE, LEAST_TOLERANCE = 0.02, 0.001
USUAL_CANDIDATES, MOST_CANDIDATES = 8, 64  # beyond the last, sizes are neighbours that tell of each other
# Of the log-odds, in the order of `terms_of`. Fitted by benchmarks/fit_calibration.py: results/calibration.md there.
WEIGHTS = (0.799, 0.892, 0.053, -0.1, 0.292)
# The same while one size alone was measured, or others only with neighbours that hid them: what is said of the others
# then is nothing but the prior. Between a tenth and nine tenths nearly none is right, beyond that nearly all are (the
# same file): too few to fit.
WEIGHTS_OF_ONE_SIZE = (-1.0, 1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What a probability rests on, beside the belief.

    Attributes:
        num_sizes: Sizes that were measured without neighbours that hid them.
        num_candidates: Sizes that there are.
    """

    num_sizes: int
    num_candidates: int

    @property
    def is_one_size(self) -> bool:
        """Whether no two sizes were held against each other."""
        return self.num_sizes <= 1


def score(probability: float, grounds: Grounds, *, tolerance: float) -> int:
    """The confidence score, 0 to 98, of a raw posterior probability.

    Args:
        probability: That the size is within the tolerance of the best, as the belief has it.
        grounds: What it rests on.
        tolerance: Share of the best that counts as a tie.
    """
    weights = WEIGHTS_OF_ONE_SIZE if grounds.is_one_size else WEIGHTS
    terms = terms_of(probability, grounds, tolerance=tolerance)
    log_odds = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    return min(MAX_SCORE, int(100.0 / (1.0 + math.exp(-log_odds))))


def terms_of(probability: float, grounds: Grounds, *, tolerance: float) -> tuple[float, ...]:
    """What the weights are of: 1, the log-odds of the belief, and what changes their worth.

    Low odds are worth less than high ones; among many candidates odds tell less than among few; a wide tolerance is met
    more often than a belief in smooth curves expects.
    """
    clipped = min(max(probability, LEAST_PROBABILITY), 1.0 - LEAST_PROBABILITY)
    raw = math.log(clipped / (1.0 - clipped))
    candidates = math.log2(min(grounds.num_candidates, MOST_CANDIDATES) / USUAL_CANDIDATES)
    return 1.0, raw, min(raw, 0.0), raw * candidates, math.log(max(tolerance, LEAST_TOLERANCE) / USUAL_TOLERANCE)
