"""Interleaved sizes: what the machine did meanwhile meets all of them, and is separated from what is theirs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bexplore.measurement.interleaving import InterleavedTiming, estimate_interleaved
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.search.evidence import Evidence


def wandering(num_rounds: int, *, seed: int = 0, sd: float = 0.1) -> np.ndarray:
    """(num_rounds,), factors of a machine that changes its speed as it likes."""
    return np.exp(sd * np.random.default_rng(seed).standard_normal(num_rounds).cumsum())


def test_what_affects_all_sizes_alike_does_not_touch_their_levels():
    machine = wandering(12)

    levels = estimate_interleaved({4: 1.0 * machine, 8: 1.9 * machine, 16: 4.0 * machine})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(1.9)
    assert levels[16].pass_time_s / levels[4].pass_time_s == pytest.approx(4.0)
    assert max(level.log_se for level in levels.values()) == pytest.approx(0.0, abs=1e-9)


def test_a_round_that_was_disturbed_counts_for_little():
    rng = np.random.default_rng(1)
    times_s = {size: seconds * np.exp(0.01 * rng.standard_normal(15)) for size, seconds in ((4, 1.0), (8, 2.0))}
    times_s[8][3] *= 5.0

    levels = estimate_interleaved(times_s)

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("num_sizes", [2, 3, 4])
def test_the_standard_error_is_that_of_repeated_experiments(num_sizes: int):
    rng = np.random.default_rng(2)
    found, told = [], []
    for _ in range(600):
        levels = estimate_interleaved(
            {size: np.exp(0.05 * rng.standard_normal(20)) for size in range(1, num_sizes + 1)}
        )
        found.append(math.log(levels[1].pass_time_s / levels[2].pass_time_s))
        told.append(math.hypot(levels[1].log_se, levels[2].log_se))

    assert np.mean(told) == pytest.approx(np.std(found), rel=0.15)


def test_one_round_does_not_know_its_own_noise():
    levels = estimate_interleaved({4: [1.0], 8: [1.8]})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(1.8)
    assert math.isnan(levels[4].log_se)


def test_a_round_that_took_far_longer_does_not_count_even_of_two():
    levels = estimate_interleaved({4: [1.0, 40.0], 8: [2.0, 2.02]})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(2.0, rel=0.02)
    assert math.isnan(levels[4].log_se)
    assert levels[4].num_timings < 2


def test_a_round_in_which_all_took_far_longer_does_not_count():
    """What a busy machine takes from sizes is not the same share of each."""
    levels = estimate_interleaved({4: [1.0, 9.0, 1.01, 1.0], 8: [2.0, 5.0, 2.0, 2.02]})

    assert levels[4].pass_time_s == pytest.approx(1.0, rel=0.02)
    assert levels[8].pass_time_s == pytest.approx(2.0, rel=0.02)
    assert levels[4].num_timings == pytest.approx(3.0)


def test_rounds_of_a_size_that_scatters_by_itself_all_count():
    levels = estimate_interleaved({4: [1.0] * 10, 8: [1.5, 2.4] * 5})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(math.sqrt(1.5 * 2.4), rel=0.02)
    assert levels[8].num_timings == pytest.approx(10.0)


def test_sizes_undisturbed_in_different_rounds_are_compared_across_them():
    levels = estimate_interleaved({4: [1.0, 40.0], 8: [60.0, 2.0]})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(2.0, rel=0.02)
    assert levels[4].num_timings < 1


@pytest.mark.parametrize("disturbed", [(1.0, 50.0), (50.0, 1.0), (1.0, 50.0, 1.01), (50.0, 60.0, 1.0)])
def test_few_passes_of_a_size_alone_leave_out_what_was_disturbed(disturbed: tuple[float, ...]):
    probe = Probe(number=0, micro_batch_size=4)
    observation = Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=disturbed)

    assert observation.estimates[4].pass_time_s == pytest.approx(1.0, rel=0.01)
    assert Evidence.from_observation(observation).num_passes == sum(seconds < 2.0 for seconds in disturbed)


def rounds_of(*times_s: tuple[float, float], is_screening: bool, **changes: Any) -> InterleavedTiming:
    """Rounds of size 8 against size 4, as many as are asked for."""
    limits = {"max_rounds": 10, "budget_s": 100.0, "tolerance": 0.02} | changes
    rounds = InterleavedTiming(size=8, is_screening=is_screening, num_passes={8: 1, 4: 1}, **limits)
    for own_s, other_s in times_s:
        if rounds.are_enough:
            break
        rounds.add({8: own_s, 4: other_s})
    return rounds


def num_rounds(rounds: InterleavedTiming) -> int:
    return len(rounds.interleaved_times_s[8])


def test_rounds_that_agree_end_after_the_fewest():
    assert num_rounds(rounds_of(*[(0.2, 0.1)] * 50, is_screening=False)) == 4
    assert num_rounds(rounds_of(*[(0.8, 0.4)] * 50, is_screening=False)) == 2
    assert num_rounds(rounds_of(*[(9.0, 4.0)] * 50, is_screening=False, budget_s=8.0)) == 2


def test_a_screening_ends_at_a_surely_worse_size_contenders_go_on():
    worse = [(0.25, 0.1)] * 50

    assert num_rounds(rounds_of(*worse, is_screening=True)) == 2
    assert num_rounds(rounds_of(*worse, is_screening=False)) == 4


def test_a_size_that_only_seems_worse_is_timed_longer():
    noisy = [(0.25, 0.1), (0.18, 0.1)] * 25

    assert num_rounds(rounds_of(*noisy, is_screening=True)) == 10


@pytest.mark.parametrize("is_screening", [True, False])
def test_whoever_takes_more_for_a_tie_has_fewer_rounds(is_screening: bool):
    noisy = [(0.22, 0.1), (0.2, 0.1), (0.18, 0.1)] * 25
    counts = [
        num_rounds(rounds_of(*noisy, is_screening=is_screening, max_rounds=75, tolerance=share))
        for share in (0.02, 0.05, 0.5)
    ]

    assert counts[0] > counts[1] >= counts[2] == 4


def test_a_size_that_may_count_as_a_tie_is_not_clearly_worse():
    a_tenth_behind = [(0.222, 0.1)] * 50

    assert num_rounds(rounds_of(*a_tenth_behind, is_screening=True, tolerance=0.01)) == 2
    assert num_rounds(rounds_of(*a_tenth_behind, is_screening=True, tolerance=0.05)) == 4


def test_the_seconds_of_the_rounds_are_bounded():
    noisy = [(0.25, 0.1), (0.15, 0.1)] * 25

    assert num_rounds(rounds_of(*noisy, is_screening=False, max_rounds=50, budget_s=2.9)) == 10


def test_a_disturbed_round_is_repeated_and_its_seconds_do_not_count():
    disturbed = [(0.8, 0.4), (0.8, 40.0), *[(0.8, 0.4)] * 50]

    assert num_rounds(rounds_of(*disturbed, is_screening=False, budget_s=8.0)) == 3


def test_rounds_end_where_one_after_the_other_is_disturbed():
    disturbed = [(0.8, 0.4), *[(0.8, 40.0)] * 50]

    assert num_rounds(rounds_of(*disturbed, is_screening=False, max_rounds=6)) == 12


def alone(*times_s: float, **changes: Any) -> int:
    """How many rounds of size 8 alone, of such seconds, are asked for."""
    limits = {"max_rounds": 10, "budget_s": 100.0, "tolerance": 0.02} | changes
    rounds = InterleavedTiming(size=8, is_screening=False, num_passes={8: 1}, **limits)
    for seconds in times_s:
        if rounds.are_enough:
            break
        rounds.add({8: seconds})
    return num_rounds(rounds)


def test_rounds_of_a_size_alone_that_agree_end_after_the_fewest():
    assert alone(*[0.2] * 50) == 4
    assert alone(*[1.0] * 50) == 2
    assert alone(*[5.0] * 50, budget_s=4.0) == 2


def test_a_disturbed_round_of_a_size_alone_is_repeated():
    assert alone(1.0, 2.5, *[1.0] * 50) == 3


def test_whoever_takes_more_for_a_tie_has_fewer_rounds_of_a_size_alone():
    noisy = [1.0, 1.02, 0.98, 1.01] * 50

    assert alone(*noisy, max_rounds=100, tolerance=0.02) > 20 > 10 > alone(*noisy, max_rounds=100, tolerance=0.1)


def test_one_disturbed_round_does_not_make_a_size_clearly_worse():
    assert num_rounds(rounds_of((0.2, 0.1), (20.0, 0.1), *[(0.2, 0.1)] * 50, is_screening=True)) == 5


def probe(number: int, size: int, **fields) -> Probe:
    return Probe(number=number, micro_batch_size=size, max_passes=4, **fields)
