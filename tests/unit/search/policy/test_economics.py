"""When to stop: a second of search for a second of training."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation
from bexplore.search.loop import explore
from bexplore.search.policy.acquisition import MOST_RISK
from bexplore.search.policy.decide import decide
from bexplore.search.policy.decision import StopReason
from bexplore.search.policy.economics import expected_savings, next_probe, training_time_s
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.search_builders import CurveRunner, measured

EXACT = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False, target_confidence=98)
SIZES = Space.of([8, 16, 32, 64, 128, 256])
SEEN = [measured(8, 100.0), measured(64, 260.0), measured(256, 255.0)]


def saturating(size: int) -> float:
    return 300.0 * size / (size + 12.0)


def test_the_same_search_goes_on_for_a_training_of_a_week_and_ends_for_one_of_a_minute():
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
        *_, result = explore(CurveRunner(saturating), space=SIZES, settings=settings)
        assert isinstance(result, Result)
        return result.recommendation.num_probes

    assert probes(training_time_s) <= probes(10.0 * training_time_s)


def test_a_probe_of_short_passes_is_expected_to_cost_what_its_steps_take_at_least():
    sizes, seen = Space.of([8, 16, 32]), [measured(8, 100_000.0)]
    costs = [
        decide(sizes, seen, dataclasses.replace(EXACT, start_time_s=0.0, compile_time_s=0.0, least_passes_s=seconds))
        for seconds in (0.0, 5.0)
    ]

    assert costs[0].expected_s < 1.0
    assert costs[1].expected_s == pytest.approx(5.0)
    assert costs[1].next_probe.cost_s == pytest.approx(5.0)


def test_a_training_of_known_samples_takes_as_long_as_the_recommended_size_needs_for_them():
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


def test_a_probe_saves_less_than_the_whole_training_however_much_faster_a_size_may_be():
    fitted = fit_posterior(Space.of(range(1, 3_000)), [measured(1, 40.0)])
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
    fitted = fit_posterior(Space.of([8, 16, 32]), [measured(8, 100.0), measured(16, 101.0)])
    candidates, leader = np.arange(3), fitted.index(16)
    costs = Costs.learnt([measured(8, 100.0)], EXACT)
    cheap = next_probe(fitted, EXACT, dataclasses.replace(costs, compile_s=0.0), leader=leader, candidates=candidates)
    dear = next_probe(fitted, EXACT, dataclasses.replace(costs, compile_s=1e6), leader=leader, candidates=candidates)
    assert cheap.savings_over_cost > 1.0
    assert dear.savings_over_cost < 1.0
    assert dear.cost_s > 1e6


def test_what_is_left_to_gain_shrinks_as_more_is_seen():
    told = [
        event.left_to_gain
        for event in explore(CurveRunner(saturating), space=SIZES, settings=dataclasses.replace(EXACT, max_probes=6))
        if hasattr(event, "left_to_gain")
    ]
    assert told[0] > 0.1
    assert told[-1] < 0.02


def test_the_first_probe_of_a_slow_job_does_not_take_many_times_what_was_spent():
    every_size = Space.of(range(1, 3_000))
    shared = dataclasses.replace(EXACT, search_compilation=Compilation.SHARED, user_compilation=Compilation.SHARED)

    def first_look(samples_per_s: float) -> int:
        base = measured(1, samples_per_s, compilation=Compilation.SHARED, elapsed_s=30.0)
        return decide(every_size, [base], shared).micro_batch_size

    slow, quick = first_look(40.0), first_look(40_000.0)
    assert 7 * slow / 40.0 <= MOST_RISK * 35.0  # the fewest passes, if nothing is gained; 35 s: a start, a compilation
    assert slow < 600 < quick
