"""When to stop: a second of search for a second of training."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation
from bexplore.search.loop import run_search
from bexplore.search.policy.decide import decide
from bexplore.search.policy.decision import StopReason, expected_savings, next_probe, training_time_s
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.unit.search.builders import CurveRunner, measured

EXACT = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False, target_confidence=98)
SIZES = Space.from_sizes([8, 16, 32, 64, 128, 256])
SEEN = [measured(8, 100.0), measured(64, 260.0), measured(256, 255.0)]


def saturating(size: int) -> float:
    return 300.0 * size / (size + 12.0)


def test_a_search_goes_on_for_a_week_of_training_and_ends_for_a_minute():
    week, minute = (dataclasses.replace(EXACT, training_time_s=seconds) for seconds in (7 * 86_400.0, 60.0))

    assert decide(SIZES, SEEN, week).stop_reason is None
    ended = decide(SIZES, SEEN, minute)
    assert ended.stop_reason is StopReason.COSTS_MORE_THAN_IT_SAVES
    assert ended.next_probe.saves * 60.0 <= ended.next_probe.cost_s
    assert ended.recommendation.micro_batch_size in (64, 256)


@pytest.mark.parametrize("training_time_s", [1.0, 100.0, 3_600.0, 36_000.0, 1e7])
def test_an_exploration_ends_with_fewer_probes_the_shorter_the_training(training_time_s):
    def probes(seconds: float) -> int:
        settings = dataclasses.replace(EXACT, training_time_s=seconds)
        *_, result = run_search(CurveRunner(saturating), space=SIZES, settings=settings)
        assert isinstance(result, Result)
        return result.recommendation.num_probes

    assert probes(training_time_s) <= probes(10.0 * training_time_s)


def test_a_probe_of_short_passes_costs_at_least_its_steps():
    sizes, seen = Space.from_sizes([8, 16, 32]), [measured(8, 100_000.0)]
    costs = [
        decide(sizes, seen, dataclasses.replace(EXACT, start_time_s=0.0, compile_time_s=0.0, least_passes_s=seconds))
        for seconds in (0.0, 5.0)
    ]

    assert costs[0].expected_s < 1.0
    assert costs[1].expected_s == pytest.approx(5.0)
    assert costs[1].next_probe.cost_s == pytest.approx(5.0)


def test_a_training_of_known_samples_takes_the_recommended_sizes_time():
    fitted = fit_posterior(SIZES, SEEN)
    samples = dataclasses.replace(EXACT, training_samples=260_000, training_time_s=1.0)

    assert training_time_s(fitted, samples, fitted.index(64)) == pytest.approx(1_000.0, rel=0.05)
    assert training_time_s(fitted, EXACT, fitted.index(64)) == 36_000.0


def test_no_probe_saves_more_than_is_left_to_gain():
    fitted = fit_posterior(SIZES, SEEN)
    leader = fitted.index(64)
    savings = expected_savings(fitted, leader=leader, candidates=np.arange(len(SIZES.sizes)))
    assert (savings >= 0.0).all()
    # A share more of the leader's speed is a larger number than the same as a share less of the best's.
    gains = np.maximum(fitted.best[:, 0] - fitted.log_throughput[:, leader], 0.0)
    assert savings.max() <= gains.mean() + 1e-6


def test_a_probe_saves_less_than_the_whole_training():
    fitted = fit_posterior(Space.from_sizes(range(1, 3_000)), [measured(1, 40.0)])
    savings = expected_savings(fitted, leader=0, candidates=np.arange(len(fitted.sizes)))
    assert 0.5 < savings.max() < 1.0


def test_a_size_that_surely_does_not_fit_saves_nothing():
    fitted = fit_posterior(SIZES, SEEN)
    feasible = fitted.feasible.copy()
    feasible[:, fitted.index(128)] = False
    candidates = np.array([fitted.index(128), fitted.index(32)])
    savings = expected_savings(dataclasses.replace(fitted, feasible=feasible), leader=2, candidates=candidates)
    assert savings[0] == 0.0


def test_where_probes_are_noisy_one_of_them_saves_less():
    fitted = fit_posterior(SIZES, SEEN)
    leader, candidates = fitted.index(64), np.array([fitted.index(32), fitted.index(128)])
    noisy = dataclasses.replace(fitted, probe_sd=np.full_like(fitted.probe_sd, 0.5))
    clear, blurred = (expected_savings(belief, leader=leader, candidates=candidates) for belief in (fitted, noisy))
    assert (blurred < clear).all()


def test_a_dear_probe_gives_way_to_a_cheap_one_that_saves_nearly_as_much():
    fitted = fit_posterior(SIZES, SEEN)
    leader, candidates = fitted.index(64), np.array([fitted.index(32), fitted.index(128)])
    saves = [
        next_probe(fitted, EXACT, leader=leader, candidates=candidates[[i]], cost_s=np.ones(1), least_times=np.ones(1))
        for i in (0, 1)
    ]
    better = int(saves[1].saves > saves[0].saves)
    for dear_s in (1.0, 1e6):
        cost_s = np.where(np.arange(2) == better, dear_s, 1.0)
        found = next_probe(fitted, EXACT, leader=leader, candidates=candidates, cost_s=cost_s, least_times=np.ones(2))
        assert found.index == candidates[better if dear_s == 1.0 else 1 - better]
        assert found.pays


def test_a_probe_that_must_save_more_gives_way_to_one_that_need_not():
    fitted = fit_posterior(SIZES, SEEN)
    leader, candidates = fitted.index(64), np.array([fitted.index(32), fitted.index(128)])
    for patient in (0, 1):
        least_times = np.where(np.arange(2) == patient, 1e6, 1.0)
        found = next_probe(
            fitted, EXACT, leader=leader, candidates=candidates, cost_s=np.ones(2), least_times=least_times
        )
        assert (found.index, found.pays) == (candidates[1 - patient], True)
    assert not next_probe(
        fitted, EXACT, leader=leader, candidates=candidates, cost_s=np.ones(2), least_times=np.full(2, 1e9)
    ).pays
