"""The fit of the confidence score: that it finds what is true, and weighs what it is made from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import fit_calibration
from benchmarks.fit_calibration import Message, bands, fit, shares_of
from bexplore.search.calibration import Grounds, log_odds_terms
from tests.simulated.simulator import Family

TRUE_WEIGHTS = (0.5, 0.8, 0.1, -0.1, 0.3)


def messages(count: int, *, group: str = Family.SMOOTH.value) -> list[Message]:
    """Whether each is right is drawn with the probability that the true weights give it."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(count):
        grounds = Grounds(num_sizes=3, num_candidates=int(2 ** rng.uniform(1, 7)))
        probability, tolerance = float(rng.uniform()), float(rng.choice([0.01, 0.02, 0.05, 0.1]))
        log_odds = np.dot(TRUE_WEIGHTS, log_odds_terms(probability, grounds, tolerance=tolerance))
        found.append(
            Message(
                group=group,
                seed=seed,
                grounds=grounds,
                tolerance=tolerance,
                probability=probability,
                is_right=bool(rng.random() < 1.0 / (1.0 + math.exp(-log_odds))),
            )
        )
    return found


def test_the_fit_finds_the_weights_that_made_the_outcomes():
    assert fit(messages(40_000)) == pytest.approx(TRUE_WEIGHTS, abs=0.15)


def test_scores_by_the_weights_found_are_as_often_right_as_they_say():
    some = messages(20_000)
    rows = [row for row in bands(some, fit(some)) if row["count"] > 300]
    assert len(rows) >= 5
    assert all(abs(row["score"] - row["true"]) < 5.0 for row in rows)


def test_recorded_sweeps_are_half_of_all_weight_whatever_their_number():
    few = messages(10, group="recorded, noise 1%")
    worlds = [message for family in Family for message in messages(50, group=family.value)]
    recorded = [
        message for noise in fit_calibration.NOISES for message in messages(10, group=f"recorded, noise {noise:.0%}")
    ]
    shares = shares_of([*recorded, *worlds])
    assert shares.sum() == pytest.approx(1.0)
    assert shares[: len(recorded)].sum() == pytest.approx(0.5)
    assert len(set(np.round(shares_of(few), 12))) == 1
