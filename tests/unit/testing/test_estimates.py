"""Estimates of simulated jobs."""

from __future__ import annotations

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation
from bexplore.search.loop import run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.testing.estimates import SHAPE_SD, EstimateKind, draw_estimate
from bexplore.testing.simulator import Family, SimulatedRunner, World, draw_world

SETTINGS = SearchSettings(search_compilation=Compilation.SHARED, user_compilation=Compilation.SHARED)


def drawn(world: World, kind: EstimateKind, seed: int = 0):
    return draw_estimate(world.space, world.log_throughput, world.fits, kind, seed)


def error_of(world: World, kind: EstimateKind, seed: int = 0) -> np.ndarray:
    pass_s = drawn(world, kind, seed).pass_s
    return np.log([size / pass_s(size) for size in world.space.sizes]) - world.log_throughput


def test_an_exact_estimate_is_off_by_a_factor():
    assert np.ptp(error_of(draw_world(Family.ROUGH, 1), EstimateKind.EXACT)) == pytest.approx(0.0, abs=1e-9)


def test_a_realistic_estimate_has_the_error_that_it_claims():
    world = draw_world(Family.SMOOTH, 1)
    logs = np.log(world.space.sizes)
    error, share = error_of(world, EstimateKind.REALISTIC), np.gradient(logs)
    spread = np.sqrt(np.average((error - np.average(error, weights=share)) ** 2, weights=share))
    assert spread == pytest.approx(SHAPE_SD)


@pytest.mark.parametrize("kind", [kind for kind in EstimateKind if kind is not EstimateKind.EXACT])
def test_other_estimates_have_another_shape(kind):
    assert np.ptp(error_of(draw_world(Family.SMOOTH, 1), kind)) > 0.02


@pytest.mark.parametrize("kind", [EstimateKind.EXACT, EstimateKind.BAIT, EstimateKind.FALSE_PEAK])
def test_a_search_finds_the_best_size_whatever_the_estimate(kind):
    world = draw_world(Family.SMOOTH, 5_000_004)
    variant = Variant(memory=world.memory, speed=drawn(world, kind))
    runner = SimulatedRunner(world, seed=1, shared_compile=True)
    *_, result = run_search(runner, space=world.space, settings=SETTINGS, variants=(variant,))
    assert isinstance(result, Result)
    assert result.recommendation is not None
    assert world.regret(result.recommendation.micro_batch_size) <= 0.02
