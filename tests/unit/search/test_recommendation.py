"""What is recommended, and how sure the score says it is."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation, Outcome, Purpose
from bexplore.search import calibration
from bexplore.search.calibration import Grounds, score
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.joint import shift_to_present_speed
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.recommendation import Recommendation, recommend
from bexplore.search.space import Space
from tests.builders import ROOT
from tests.unit.search.builders import measured, saturating


def recommended(sizes, evidence) -> Recommendation | None:
    space = Space.from_sizes(sizes)
    belief = shift_to_present_speed(fit_posterior(space, evidence), evidence, Compilation.EXACT)
    return recommend(belief, evidence, tolerance=0.02)


def test_only_a_size_that_was_run_is_recommended():
    best = recommended([1, 2, 4, 8, 16, 32], [measured(1, 30.0), measured(4, 115.0)])
    assert best.micro_batch_size in (1, 4)


def test_the_score_is_low_at_first_and_high_when_everything_ran():
    sizes = [8, 16, 32, 64, 128]
    start = recommended(sizes, [measured(8, saturating(8))])
    end = recommended(sizes, [measured(size, saturating(size)) for size in sizes])
    assert start.confidence < 30
    assert end.confidence >= 95
    assert end.micro_batch_size == 128


def test_two_sizes_that_cannot_be_told_apart_are_both_within_the_tolerance():
    best = recommended([32, 64], [measured(32, 1000.0), measured(64, 1004.0)])
    assert best.confidence >= 90
    assert best.smallest_within_tolerance == 32


def test_a_smaller_size_that_noise_may_hide_as_slower_is_not_told_as_near():
    noise = 0.3
    ran = [(1, 80.0), (96, 199.6), (128, 289.4)]
    best = recommended([1, 2, 96, 128], [measured(size, speed, log_throughput_se=noise) for size, speed in ran])
    assert best.micro_batch_size == 128
    assert best.smallest_within_tolerance == 128


def test_sizes_that_ran_within_the_tolerance_are_told_the_fastest_first():
    best = recommended([8, 32, 48, 64], [measured(8, 500.0), measured(32, 990.0), measured(48, 1000.0)])
    assert best.within_tolerance == (48, 32)


def test_noise_keeps_the_score_low():
    quiet = [measured(32, 1000.0), measured(64, 1035.0)]
    noisy = [measured(32, 1000.0, log_throughput_se=0.08), measured(64, 1035.0, log_throughput_se=0.08)]
    assert recommended([32, 64], noisy).confidence < recommended([32, 64], quiet).confidence


@pytest.mark.parametrize("ran", [(8, 64), (8, 16, 64), (16, 32, 64)])
def test_how_far_a_size_may_be_from_the_best_inverts_its_score(ran):
    space = Space.from_sizes([8, 16, 32, 64, 128])
    evidence = [measured(size, saturating(size)) for size in ran]
    belief = fit_posterior(space, evidence)

    answers = [
        (tolerance, recommend(belief, evidence, tolerance=tolerance))
        for tolerance in (0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.3, 0.6)
    ]

    reached = [best.confidence >= 90 for _, best in answers]
    assert reached == [best.regret_bound_90 <= tolerance for tolerance, best in answers]
    assert {True, False} == set(reached)
    assert len({best.micro_batch_size for _, best in answers}) == len({best.regret_bound_90 for _, best in answers})


def test_how_far_a_size_may_be_is_not_told_where_others_may_be_far_better():
    belief = fit_posterior(Space.from_sizes([8, 16]), [measured(8, 100.0)])
    dropped = dataclasses.replace(belief, feasible=np.zeros_like(belief.feasible))
    assert recommend(belief, [measured(8, 100.0)], tolerance=0.02).regret_bound_90 is not None
    assert recommend(dropped, [measured(8, 100.0)], tolerance=0.02).regret_bound_90 is None


def test_the_base_is_the_smallest_size_that_ran_whatever_crashed_below_it():
    crashed = Evidence(micro_batch_size=1, outcome=Outcome.CRASHED, reason="misaligned address")
    alone = recommended([1, 8, 64], [crashed, measured(64, 250.0)])
    best = recommended([1, 8, 64], [crashed, measured(64, 250.0), measured(8, 100.0)])
    assert (alone.base_micro_batch_size, alone.relative_performance) == (64, 1.0)
    assert alone.relative_performance_interval is None
    assert best.base_micro_batch_size == 8
    assert abs(best.relative_performance - 2.5) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_every_factor_is_the_ratio_of_two_speeds_that_are_told(seed):
    rng = np.random.default_rng(seed)
    sizes = [1, 2, 4, 8, 16, 32]
    evidence = [
        measured(size, saturating(size) * float(np.exp(0.1 * rng.standard_normal())), compilation=compilation)
        for size in sizes
        for compilation in (Compilation.SHARED, Compilation.EXACT)
        if rng.random() < 0.7
    ]
    best = recommended(sizes, evidence)
    told = {one.micro_batch_size: one for one in best.speeds}

    assert set(told) == {item.micro_batch_size for item in evidence}
    own, base = told[best.micro_batch_size], told[best.base_micro_batch_size]
    assert best.samples_per_s == own.samples_per_s
    assert best.relative_performance == pytest.approx(own.samples_per_s / base.samples_per_s)
    assert all(one.interval[0] <= one.samples_per_s <= one.interval[1] for one in told.values())
    assert not any(one.interval[0] > own.interval[1] for one in told.values())


def test_a_much_faster_size_is_verified_before_an_exact_one_is_the_answer():
    evidence = [
        measured(4, 1162.0, compilation=Compilation.SHARED),
        measured(4, 1162.0, purpose=Purpose.VERIFY),
        measured(32, 7940.0, compilation=Compilation.SHARED),
    ]
    assert recommended([4, 8, 16, 32], evidence).micro_batch_size == 32


def test_nothing_to_regret_is_no_negative_zero():
    best = recommended([8], [measured(8, 100.0), measured(8, 100.0)])
    for value in (best.regret_bound_90, best.left_to_gain):
        assert str(value) == "0.0"


def test_relative_performance_is_relative_to_the_smallest_size_that_ran():
    best = recommended([8, 64], [measured(8, 100.0), measured(64, 250.0)])
    assert abs(best.relative_performance - 2.5) < 0.05
    assert abs(best.samples_per_s - 250.0) < 1.0


def test_the_score_is_below_100_and_rises_with_probability_and_tolerance():
    for num_sizes, num_candidates in itertools.product((1, 2, 5), (5, 100, 10_000)):
        grounds = Grounds(num_sizes=num_sizes, num_candidates=num_candidates)
        scores = [score(number / 1000, grounds, tolerance=0.02) for number in range(0, 1001, 5)]
        assert scores == sorted(scores)
        assert scores[0] <= 10
        assert scores[-1] >= 94
        wider = [score(0.8, grounds, tolerance=tolerance) for tolerance in (0.0, 0.01, 0.02, 0.1, 0.5)]
        assert wider == sorted(wider)


def test_the_weights_of_the_score_are_those_that_the_fit_found():
    found = json.loads((ROOT / "benchmarks" / "results" / "calibration.json").read_text())["found"]
    assert list(calibration.WEIGHTS) == found


def test_a_prior_guess_about_sizes_that_never_ran_is_worth_little():
    alone = recommended([8, 16, 32], [measured(8, 100.0)])
    assert alone.confidence < 20
    one, two = (Grounds(num_sizes=count, num_candidates=3) for count in (1, 2))
    assert score(0.5, one, tolerance=0.02) < score(0.5, two, tolerance=0.02)


def test_a_size_that_ran_exactly_goes_before_one_that_did_not():
    evidence = [
        measured(8, 500.0, compilation=Compilation.SHARED),
        measured(16, 505.0, compilation=Compilation.SHARED),
        measured(8, 510.0, purpose=Purpose.VERIFY),
    ]
    assert recommended([8, 16], evidence).micro_batch_size == 8


def test_the_speed_that_is_told_is_that_of_the_users_program():
    shared = [measured(size, 1000.0, compilation=Compilation.SHARED) for size in (8, 16, 16)]
    exact = measured(16, 870.0)
    assert abs(recommended([8, 16], shared).samples_per_s - 1000.0) < 1.0
    assert abs(recommended([8, 16], [*shared, exact]).samples_per_s - 870.0) < 1.0


def test_nothing_is_recommended_where_all_that_ran_was_refused_since():
    evidence = [
        measured(8, 500.0, compilation=Compilation.SHARED),
        Evidence(micro_batch_size=8, outcome=Outcome.OUT_OF_MEMORY, purpose=Purpose.VERIFY),
    ]
    assert recommended([8, 16], evidence) is None


def test_a_good_chance_is_worth_more_among_few_candidates_than_among_many():
    few, many = (score(0.9, Grounds(num_sizes=3, num_candidates=count), tolerance=0.02) for count in (4, 64))
    assert many < few
