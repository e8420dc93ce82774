"""How sure an estimated order of sizes is."""

from __future__ import annotations

import numpy as np
import pytest

from bexplore.estimate.collectives import PassExposure, StepExposure
from bexplore.estimate.confidence import ErrorDraws, SizeEstimate

TOLERANCE = 0.02


def sizes(*speeds: tuple[int, float], own_sd: float = 0.03, **fields) -> list[SizeEstimate]:
    return [SizeEstimate(micro_batch_size=b, seconds=b / speed, own_sd=own_sd, **fields) for b, speed in speeds]


def sureness(estimates: list[SizeEstimate], micro_batch_size: int, **fields) -> float:
    return float((ErrorDraws(estimates, **fields).regrets(micro_batch_size) <= TOLERANCE).mean())


def test_a_lone_size_is_the_fastest_whatever_its_error():
    assert sureness(sizes((4, 100.0), own_sd=0.5), 4) == 1.0


def test_a_size_of_twice_the_speed_is_surely_the_fastest():
    assert sureness(sizes((8, 100.0), (16, 200.0)), 16) > 0.99


@pytest.mark.parametrize("factor", [2, 4, 32])
def test_equally_fast_sizes_are_less_sure_the_farther_apart_they_are(factor):
    near, far = (sureness(sizes((8, 100.0), (8 * f, 100.0)), 8) for f in (factor, 2 * factor))
    assert far <= near + 0.02
    assert near < 0.75


def test_sizes_that_are_nearly_the_same_have_their_error_in_common():
    close, apart = sizes((64, 100.0), (65, 100.0)), sizes((64, 100.0), (96, 100.0))
    assert sureness(close, 64) > sureness(apart, 64)


def test_exact_shapes_leave_sizes_unsure_by_how_far_they_are_apart():
    near, far = (sureness(sizes((8, 100.0), (8 * factor, 100.0), own_sd=0.0), 8) for factor in (2, 64))
    assert 0.5 < far < near - 0.03 < 0.97


def test_a_host_that_takes_as_long_as_the_kernels_of_a_small_size_makes_larger_sizes_surer():
    quick, slow = (sizes((8, 100.0), (16, 98.0), host_s=host_s) for host_s in (0.0, 0.08))
    assert sureness(slow, 16) > sureness(quick, 16) + 0.2


def test_the_host_of_all_sizes_is_the_same():
    waiting = ErrorDraws(sizes((1, 1e4), (2, 1e4), host_s=0.1))
    assert waiting.log_ratio_sd((1, 0), (2, 0)) < 1e-6  # both wait for the same calls
    assert np.ptp(waiting.log_speed[:, 0]) > 0.5


def test_a_size_that_may_not_fit_is_no_surer_than_that_it_fits():
    tight = [*sizes((8, 100.0), memory_share=0.5), *sizes((16, 200.0), memory_share=1.0)]
    assert sureness(tight, 16, memory_sd=0.05) == pytest.approx(0.5, abs=0.06)


def test_a_faster_size_that_cannot_fit_takes_nothing_from_the_others():
    beyond = [*sizes((8, 100.0), memory_share=0.5), *sizes((16, 200.0), memory_share=3.0)]
    assert sureness(beyond, 8, memory_sd=0.05) == 1.0


def test_the_share_of_right_answers_is_that_of_the_score_where_the_errors_are_these():
    random, told, right = np.random.default_rng(7), [], []
    estimates = sizes(*((2**n, 100.0 * (1 - 0.8 ** (n + 1))) for n in range(8)))
    draws = ErrorDraws(estimates)
    for number in range(400):  # each draw of another seed is a world
        world = ErrorDraws(estimates, seed=1000 + number).log_speed[0]
        best = int(random.integers(4, 8))
        told.append(float((draws.regrets(2**best) <= TOLERANCE).mean()))
        right.append(world[best] >= world.max() + np.log1p(-TOLERANCE))
    assert np.mean(right) == pytest.approx(np.mean(told), abs=0.08)


def test_links_whose_speed_is_unsure_leave_sizes_unsure_of_which_one_waits_longer():
    last = PassExposure(beside_s=0.3, last_s=0.05, beside_share=0.0)
    exchanged = StepExposure(inner=PassExposure(), last=last, last_share=1.0)
    waiting = sizes((8, 100.0), (16, 55.0), own_sd=0.0, communication=exchanged)  # as fast as each other at 0.44 of it
    sure, unsure = (sureness(waiting, 16, doubling_sd=0.0, link_sd=link_sd) for link_sd in (0.0, 0.8))
    assert sure == 1.0 and unsure < 0.95


def test_one_rank_has_the_same_draws_whatever_the_links():
    alone = ErrorDraws(sizes((8, 100.0), (16, 90.0)), link_sd=0.5)
    assert (alone.log_speed == ErrorDraws(sizes((8, 100.0), (16, 90.0))).log_speed).all()
