"""When the search asks for reduced depths."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation, Observation, Probe
from bexplore.search import loop
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.search_builders import CurveRunner

DEPTHS = Depths(whole=48, block_share=0.95, high=12)


def compilations(pass_scale: float, **settings) -> tuple[list[Compilation], loop.Result]:
    """What a search runs whose passes take so much longer than those of a job that saturates at 1000 samples/s."""
    runner = CurveRunner(lambda size: 1000.0 / pass_scale * size / (size + 30.0))
    events = list(
        loop.explore(runner, space=Space.from_sizes(range(1, 65)), settings=SearchSettings(depths=DEPTHS, **settings))
    )
    return [probe.compilation for probe in runner.probes], events[-1]


def test_a_deep_model_of_long_passes_is_searched_at_reduced_depth_from_its_second_probe_on_and_verified_whole():
    asked, result = compilations(100.0)

    assert asked[0] is Compilation.SHARED
    assert set(asked[1:-1]) == {Compilation.REDUCED}
    assert asked[-1] is Compilation.EXACT
    assert result.full_over_reduced == pytest.approx(1.0, abs=0.02)


def test_a_deep_model_of_short_passes_is_searched_whole_since_two_more_compilations_would_cost_more():
    asked, result = compilations(1.0)

    assert Compilation.REDUCED not in asked
    assert result.full_over_reduced is None


def test_a_deep_model_on_a_noisy_machine_is_searched_whole_since_noise_grows_on_the_way_to_the_full_depth():
    runner = CurveRunner(lambda size: 10.0 * size / (size + 30.0))
    rng = np.random.default_rng(0)

    def noisy(probe: Probe) -> Observation:
        found = runner(probe)
        factors = np.exp(0.06 * rng.standard_normal(len(found.pass_times_s)))
        return dataclasses.replace(found, pass_times_s=tuple(np.multiply(found.pass_times_s, factors).tolist()))

    list(loop.explore(noisy, space=Space.from_sizes(range(1, 65)), settings=SearchSettings(depths=DEPTHS)))

    assert all(probe.compilation is not Compilation.REDUCED for probe in runner.probes)


def test_short_passes_are_searched_at_reduced_depth_too_where_it_is_asked_for():
    asked, _ = compilations(1.0, forces_reduced_depth=True)

    assert asked[1] is Compilation.REDUCED


def test_the_reduced_search_begins_with_the_size_that_ran_whole():
    runner = CurveRunner(lambda size: 10.0 * size / (size + 30.0))
    list(loop.explore(runner, space=Space.from_sizes(range(1, 65)), settings=SearchSettings(depths=DEPTHS)))

    assert runner.probes[0].micro_batch_size == runner.probes[1].micro_batch_size


def test_a_search_whose_model_does_not_run_with_fewer_blocks_goes_on_whole_and_does_not_ask_again():
    runner = CurveRunner(lambda size: 10.0 * size / (size + 30.0))
    asked = []

    def needs_every_block(probe: Probe) -> Observation:
        asked.append(probe.compilation)
        if probe.compilation is not Compilation.REDUCED:
            return runner(probe)
        return dataclasses.replace(
            runner(dataclasses.replace(probe, compilation=Compilation.SHARED)), needs_full_depth=True
        )

    list(loop.explore(needs_every_block, space=Space.from_sizes(range(1, 65)), settings=SearchSettings(depths=DEPTHS)))

    assert asked.count(Compilation.REDUCED) == 1
    assert len(set(runner.sizes)) >= 3
    assert asked[-1] is Compilation.EXACT


def test_a_level_of_its_own_at_reduced_depth_does_not_move_the_answer_or_its_speed():
    """Extrapolated times that are all 8 % too good."""

    def answer(factor: float) -> loop.Result:
        runner = CurveRunner(lambda size: 10.0 * size / (size + 30.0))

        def biased(probe: Probe) -> Observation:
            found = runner(probe)
            if probe.compilation is Compilation.REDUCED:
                found = dataclasses.replace(found, pass_times_s=tuple(s / factor for s in found.pass_times_s))
            return found

        settings = SearchSettings(depths=DEPTHS)
        return list(loop.explore(biased, space=Space.from_sizes(range(1, 65)), settings=settings))[-1]

    true, biased = answer(1.0), answer(1.08)

    assert biased.recommendation.samples_per_s == pytest.approx(true.recommendation.samples_per_s, rel=0.03)
    assert biased.full_over_reduced == pytest.approx(1.0 / 1.08, rel=0.01)
