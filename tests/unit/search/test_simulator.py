"""Worlds with a known answer, and that the search finds it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.errors import NothingFitsError
from bexplore.measurement.probe import Compilation, Outcome, Probe
from bexplore.search.loop import run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryAccount
from tests.simulated.simulator import Family, SimulatedRunner, World, draw_world, with_caching_allocator

SETTINGS = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False)
NUM_WORLDS = 40


def test_a_family_and_a_seed_are_one_world():
    first, second, other = (draw_world(Family.ROUGH, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.log_throughput, second.log_throughput)
    assert first.space != other.space or not np.array_equal(first.log_throughput, other.log_throughput)


@pytest.mark.parametrize("family", Family)
def test_every_family_has_finite_curves_and_memory_that_rises(family: Family):
    for seed in range(10):
        world = draw_world(family, seed)
        assert np.isfinite(world.log_throughput).all()
        assert (np.diff(world.peak_bytes) > 0).all()
        assert min(world.regret(size) for size in world.throughputs) == 0.0


def by_itself(family: Family, seed: int) -> list[tuple[int, float]]:
    """(size, ln of samples/s) of the sizes that fit, each over the faster of its two neighbours."""
    world = draw_world(family, seed)
    curve = world.log_throughput[world.fits]
    return [
        (world.space.sizes[i], curve[i] - max(curve[i - 1], curve[i + 1]))  # the ends have one neighbour alone
        for i in range(1, len(curve) - 1)
    ]


def test_a_lone_peak_stands_out_by_more_than_a_smooth_curve_ever_does():
    lone, smooth = (
        [max((rise for _, rise in by_itself(family, seed)), default=0.0) for seed in range(60)]
        for family in (Family.LONE_PEAKS, Family.PEAKS)
    )
    assert np.mean(np.array(lone) > 0.02) > 0.2 > np.mean(np.array(smooth) > 0.02)
    assert max(lone) < np.log(1.15) + max(smooth)  # a peak is never more than 15 %


def test_a_shelf_has_one_deep_fall_and_the_best_on_either_side_of_it():
    sides, falls = [], []
    for world in worlds(Family.SHELVES, 60):
        curve = world.log_throughput[world.fits]
        fall = int(np.argmin(np.diff(curve)))
        falls.append(float(np.diff(curve)[fall]))
        sides.append(int(np.argmax(curve)) > fall)
    assert np.mean(np.array(falls) < np.log(0.9)) > 0.9
    assert 0.1 < np.mean(sides) < 0.9


def test_few_candidates_are_three_to_eight():
    counts = {len(world.space.sizes) for world in worlds(Family.FEW, 80)}
    assert counts == set(range(3, 9))


@pytest.mark.parametrize(("family", "least_s", "most_s"), [(Family.CPU_LIKE, 0.1, 10.0), (Family.GPU_LIKE, 0.02, 1.0)])
def test_own_machines_are_quiet_and_passes_take_what_such_devices_take(family: Family, least_s: float, most_s: float):
    shortest, longest = [], []
    for world in worlds(family, 60):
        passes_s = [size / speed for size, speed in world.throughputs.items()]
        shortest.append(min(passes_s))
        longest.append(max(passes_s))
        assert (world.run_sd, 0.003 <= world.pass_sd <= 0.01) == (0.003, True)
    assert np.mean(np.array(shortest) > 0.9 * least_s) > 0.9
    assert np.mean(np.array(longest) < 1.1 * most_s) > 0.9


def test_a_cpu_is_soon_flat_and_a_gpu_is_fastest_near_its_memory_limit():
    at = {}
    for family in (Family.CPU_LIKE, Family.GPU_LIKE):
        near = [  # the smallest size within 2 % of the best, as a share of the largest that fits
            min(size for size in world.throughputs if world.regret(size) <= 0.02) / max(world.throughputs)
            for world in worlds(family, 60)
        ]
        at[family] = float(np.median(near))
    assert at[Family.CPU_LIKE] < 0.5 < at[Family.GPU_LIKE]


def test_the_runner_answers_with_noise_and_charges_what_it_did():
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


@pytest.mark.statistics
@pytest.mark.parametrize(("family", "least"), [(Family.SMOOTH, 0.85), (Family.ROUGH, 0.8), (Family.CLIFFS, 0.75)])
def test_the_search_finds_a_size_within_the_tolerance_in_most_worlds(family: Family, least: float):
    right, probes, count = 0, 0, 0
    for seed in range(NUM_WORLDS):
        world = draw_world(family, seed)
        try:
            *_, result = run_search(
                SimulatedRunner(world, seed=seed),
                space=world.space,
                settings=SETTINGS,
                variants=(Variant(memory=world.memory),),
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


def test_a_caching_allocator_reserves_up_to_the_budget_and_retries_there():
    world = with_caching_allocator(next(w for w in worlds(Family.SMOOTH, 50) if not w.fits.all()), seed=0)
    assert (world.peak_bytes < world.lowest_limit_bytes).all()
    assert (world.lowest_limit_bytes[world.fits] <= world.budget_bytes).all()
    runner = SimulatedRunner(world, seed=0)
    for number, size in enumerate(world.throughputs):
        found = runner(Probe(number=number, micro_batch_size=size))
        wanted = world.reserved_bytes[world.space.sizes.index(size)]
        assert found.resident_memory_bytes == round(min(wanted, world.budget_bytes))
        assert found.num_alloc_retries == int(wanted > world.budget_bytes)


def test_a_search_by_reserved_memory_probes_few_sizes_too_large():
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
        *_, result = run_search(
            SimulatedRunner(world, seed=1), space=world.space, settings=SETTINGS, variants=(Variant(memory=memory),)
        )
        refused += result.outcomes.get("out_of_memory", 0)
    return refused


def test_an_exact_program_costs_start_and_compilation_as_the_shared_after():
    world = draw_world(Family.SMOOTH, 3)
    runner = SimulatedRunner(world, seed=0, shared_compile=True)
    size, other = world.space.sizes[:2]
    asked = [
        (size, Compilation.SHARED, True),
        (other, Compilation.SHARED, False),
        (size, Compilation.EXACT, True),
        (size, Compilation.EXACT, False),
        (other, Compilation.EXACT, True),
        (other, Compilation.SHARED, True),
    ]
    for number, (wanted, compilation, starts) in enumerate(asked):
        found = runner(Probe(number=number, micro_batch_size=wanted, compilation=compilation))
        paid = (world.start_s, world.compile_s) if starts else (0.0, 0.0)
        assert (found.start_time_s, found.compile_time_s) == paid, asked[number]
