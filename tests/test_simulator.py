"""Worlds with a known answer, and that the search finds it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.errors import NothingFitsError
from bexplore.explorer import Result, explore
from bexplore.probe import Compilation, Outcome, Probe
from bexplore.recommendation import SearchSettings
from bexplore.simulator import Family, SimulatedRunner, World, draw_world, with_caching_allocator
from bexplore.space import MemoryAccount

SETTINGS = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False)
NUM_WORLDS = 40


def test_a_family_and_a_seed_are_one_world():
    first, second, other = (draw_world(Family.ROUGH, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.log_throughput, second.log_throughput)
    assert first.space != other.space or not np.array_equal(first.log_throughput, other.log_throughput)


@pytest.mark.parametrize("family", Family)
def test_every_family_has_finite_curves_and_a_memory_limit_that_rises_with_the_size(family: Family):
    for seed in range(10):
        world = draw_world(family, seed)
        assert np.isfinite(world.log_throughput).all()
        assert (np.diff(world.peak_bytes) > 0).all()
        assert min(world.regret(size) for size in world.throughputs) == 0.0


def test_the_runner_answers_with_noise_around_the_truth_and_charges_what_it_did():
    world = draw_world(Family.SMOOTH, 3)
    runner = SimulatedRunner(world, seed=0, shared_compile=True)
    size = world.space.base
    found = [runner(Probe(number=number, micro_batch_size=size)).samples_per_s for number in range(30)]
    assert np.median(found) == pytest.approx(world.throughputs[size], rel=0.02)
    assert runner.cost_s == pytest.approx(
        world.start_s + world.compile_s + 300 * size / world.throughputs[size], rel=0.05
    )


def test_a_size_beyond_the_budget_runs_out_of_memory():
    world = next(world for world in (draw_world(Family.SMOOTH, seed) for seed in range(50)) if not world.fits.all())
    size = world.space.sizes[int(np.argmin(world.fits))]
    assert SimulatedRunner(world, seed=0)(Probe(number=0, micro_batch_size=size)).outcome is Outcome.OUT_OF_MEMORY
    assert world.regret(size) == 1.0


@pytest.mark.parametrize(("family", "least"), [(Family.SMOOTH, 0.85), (Family.ROUGH, 0.8), (Family.CLIFFS, 0.75)])
def test_the_search_finds_a_size_within_the_tolerance_in_most_worlds(family: Family, least: float):
    right, probes, count = 0, 0, 0
    for seed in range(NUM_WORLDS):
        world = draw_world(family, seed)
        try:
            *_, result = explore(
                SimulatedRunner(world, seed=seed), space=world.space, settings=SETTINGS, memory=world.memory
            )
        except NothingFitsError:
            assert not world.fits.any()
            continue
        assert isinstance(result, Result)
        assert result.recommendation.micro_batch_size in world.throughputs
        count += 1
        probes += result.recommendation.num_probes
        right += world.regret(result.recommendation.micro_batch_size) <= 0.02
    assert right / count >= least
    assert probes / count <= 8.0


def test_a_caching_allocator_reserves_more_than_lives_up_to_the_budget_and_retries_there():
    world = with_caching_allocator(next(w for w in worlds(Family.SMOOTH, 50) if not w.fits.all()), seed=0)
    assert (world.peak_bytes < world.lowest_limit_bytes).all()
    assert (world.lowest_limit_bytes[world.fits] <= world.budget_bytes).all()
    runner = SimulatedRunner(world, seed=0)
    for number, size in enumerate(world.throughputs):
        found = runner(Probe(number=number, micro_batch_size=size))
        wanted = world.reserved_bytes[world.space.sizes.index(size)]
        assert found.held_memory_bytes == round(min(wanted, world.budget_bytes))
        assert found.num_alloc_retries == int(wanted > world.budget_bytes)


def test_a_search_that_judges_reserved_memory_probes_few_sizes_that_do_not_fit():
    cached = [with_caching_allocator(world, seed) for seed, world in enumerate(worlds(Family.ROUGH, 14))]
    refused = num_refused(cached, MemoryAccount.RESERVED)
    assert refused <= 1
    assert refused < num_refused(cached, MemoryAccount.TENSORS)


def worlds(family: Family, count: int) -> list[World]:
    return [draw_world(family, seed) for seed in range(count)]


def num_refused(cached: list[World], account: MemoryAccount) -> int:
    """Probes out of memory where the search judges by an account, right or wrong."""
    refused = 0
    for world in cached:
        memory = dataclasses.replace(world.memory, judged_by=account)
        *_, result = explore(SimulatedRunner(world, seed=1), space=world.space, settings=SETTINGS, memory=memory)
        refused += result.outcomes.get("out_of_memory", 0)
    return refused
