"""Deep models: what two reduced depths say of the whole one, when the search goes there, and what the result says."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bexplore.engine.reduced_depth import ReducedDepthRunner, full_depth_of
from bexplore.exploration.exploration import ExploreOptions, explore
from bexplore.job import CompileSettings, Job
from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.search import loop
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from bexplore.trace.tracer import trace_job
from tests.builders import imported_job, observed
from tests.search_builders import CurveRunner

GIB = 2**30
DEPTHS = Depths(whole=48, block_share=0.95, high=12)
SHALLOW = Depths(whole=8, block_share=0.9, high=4)
MODEL = {"vocab_size": 64, "hidden_size": 32, "num_heads": 2, "max_position_embeddings": 16}
REDUCED = Probe(number=0, micro_batch_size=4, max_passes=3, compilation=Compilation.REDUCED)


def deep_job(num_layers: int = 8, *, backend: str = "aot_eager_decomp_partition") -> Job:
    """`aot_eager_decomp_partition` decomposes and partitions as Inductor does but builds nothing."""
    model, settings = MODEL | {"num_layers": num_layers}, CompileSettings(backend=backend)
    return Job(workload="decoder", model=model, data={"sequence_length": 16}, sequence_length=16, compile=settings)


def test_an_affine_quantity_is_extrapolated_exactly():
    assert DEPTHS.extrapolate(3.0 + 2.0 * DEPTHS.low, 3.0 + 2.0 * DEPTHS.high) == pytest.approx(3.0 + 2.0 * 48)


def test_the_variance_factor_is_that_of_noisy_measurements_of_both_depths():
    rng = np.random.default_rng(0)
    head, block = 0.05, 0.95 / 48
    low, high = (head + depth * block for depth in (DEPTHS.low, DEPTHS.high))
    noise = 1.0 + 0.001 * rng.standard_normal((2, 20_000))

    whole = DEPTHS.extrapolate(low * noise[0], high * noise[1])

    assert np.log(whole).var() / 0.001**2 == pytest.approx(DEPTHS.variance_factor, rel=0.05)
    assert DEPTHS.cost_share == pytest.approx(low + high)


def test_no_other_depth_tells_more_per_second_than_the_one_that_is_chosen():
    chosen = Depths.of(num_blocks=48, block_share=0.95)

    others = [dataclasses.replace(chosen, high=high) for high in range(chosen.low + 1, chosen.whole)]
    assert chosen.cost_share * chosen.variance_factor == pytest.approx(
        min(other.cost_share * other.variance_factor for other in others if other.high >= 4)
    )
    assert chosen.cost_share < 0.5


@pytest.mark.parametrize(("num_blocks", "pays"), [(0, False), (7, False), (8, True), (96, True)])
def test_few_blocks_are_always_run_whole(num_blocks, pays):
    assert (Depths.of(num_blocks=num_blocks, block_share=0.9) is not None) is pays


def at_depths(low: float, high: float, **fields) -> list[Observation]:
    return [observed(4, pass_times_s=(seconds,) * 3, **fields) for seconds in (low, high)]


def test_times_and_peaks_of_the_whole_depth_come_from_both_depths():
    found = at_depths(1.0, 12.0)
    found = [dataclasses.replace(item, peak_memory_bytes=peak) for item, peak in zip(found, (100, 210), strict=True)]

    whole = full_depth_of(REDUCED, found, DEPTHS)

    assert whole.outcome is Outcome.MEASURED
    assert whole.pass_times_s == pytest.approx((48.0,) * 3)
    assert whole.peak_memory_bytes == 100 + 47 * 10
    assert whole.probe is REDUCED


def test_noise_does_not_make_a_deep_model_quicker_than_its_shallow_one():
    assert full_depth_of(REDUCED, at_depths(1.2, 1.0), DEPTHS).pass_times_s == pytest.approx((1.0,) * 3)


@pytest.mark.parametrize(
    ("block_gib", "outcome"), [(0.9 / 48, "measured"), (1.02 / 48, "measured"), (1.1 / 48, "out_of_memory")]
)
def test_an_extrapolated_peak_well_above_the_budget_is_refused_and_one_near_it_is_left_to_the_verification(
    block_gib, outcome
):
    found = [
        dataclasses.replace(item, peak_memory_bytes=round(depth * block_gib * GIB), memory_budget_bytes=GIB)
        for item, depth in zip(at_depths(1.0, 4.0), (DEPTHS.low, DEPTHS.high), strict=True)
    ]

    whole = full_depth_of(REDUCED, found, DEPTHS)

    assert whole.outcome == outcome
    assert ("1 and 12 of 48 blocks" in whole.reason) is (outcome == "out_of_memory")


def compilations(pass_scale: float, **settings) -> tuple[list[Compilation], loop.Result]:
    """What a search runs whose passes take so much longer than those of a job that saturates at 1000 samples/s."""
    runner = CurveRunner(lambda size: 1000.0 / pass_scale * size / (size + 30.0))
    events = list(
        loop.explore(runner, space=Space.of(range(1, 65)), settings=SearchSettings(depths=DEPTHS, **settings))
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


def test_a_deep_model_on_a_noisy_machine_is_searched_whole_since_noise_grows_on_the_way_to_the_whole_depth():
    runner = CurveRunner(lambda size: 10.0 * size / (size + 30.0))
    rng = np.random.default_rng(0)

    def noisy(probe: Probe) -> Observation:
        found = runner(probe)
        factors = np.exp(0.06 * rng.standard_normal(len(found.pass_times_s)))
        return dataclasses.replace(found, pass_times_s=tuple(np.multiply(found.pass_times_s, factors).tolist()))

    list(loop.explore(noisy, space=Space.of(range(1, 65)), settings=SearchSettings(depths=DEPTHS)))

    assert all(probe.compilation is not Compilation.REDUCED for probe in runner.probes)


def test_short_passes_are_searched_at_reduced_depth_too_where_it_is_asked_for():
    asked, _ = compilations(1.0, forces_reduced_depth=True)

    assert asked[1] is Compilation.REDUCED


def test_the_reduced_search_begins_with_the_size_that_ran_whole():
    runner = CurveRunner(lambda size: 10.0 * size / (size + 30.0))
    list(loop.explore(runner, space=Space.of(range(1, 65)), settings=SearchSettings(depths=DEPTHS)))

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

    list(loop.explore(needs_every_block, space=Space.of(range(1, 65)), settings=SearchSettings(depths=DEPTHS)))

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
        return list(loop.explore(biased, space=Space.of(range(1, 65)), settings=settings))[-1]

    true, biased = answer(1.0), answer(1.08)

    assert biased.recommendation.samples_per_s == pytest.approx(true.recommendation.samples_per_s, rel=0.03)
    assert biased.full_over_reduced == pytest.approx(1.0 / 1.08, rel=0.01)


def test_the_trace_counts_identical_blocks_and_their_share_of_the_operations():
    shallow, deep = (trace_job(deep_job(depth, backend="inductor")) for depth in (2, 8))

    block_flops = (deep.hardware_flops(1) - shallow.hardware_flops(1)) / 6
    assert (shallow.num_blocks, deep.num_blocks) == (0, 8)
    assert deep.block_share == pytest.approx(8 * block_flops / deep.hardware_flops(1))


def test_two_depths_tell_the_peak_of_the_whole_one_and_compile_once_each(run_on):
    with ReducedDepthRunner(run_on(deep_job()), SHALLOW) as runner:
        reduced, another = (runner(dataclasses.replace(REDUCED, micro_batch_size=size)) for size in (4, 6))
        shared = runner(dataclasses.replace(REDUCED, compilation=Compilation.SHARED))

    assert reduced.outcome is Outcome.MEASURED, reduced.reason
    assert reduced.probe.compilation is Compilation.REDUCED
    assert reduced.peak_memory_bytes == pytest.approx(shared.peak_memory_bytes, rel=0.03)
    by_depth = reduced.details["pass_times_s_by_depth"]
    assert set(by_depth) == {"1", "4"}
    assert all(len(times) >= 3 for times in by_depth.values())
    assert (reduced.num_graphs, another.num_graphs) == (2, 0)


def test_a_model_that_needs_every_block_is_run_whole_instead_and_says_so(run_on):
    with ReducedDepthRunner(run_on(imported_job("counted")), SHALLOW) as runner:
        first, second = runner(REDUCED), runner(REDUCED)

    assert [item.outcome for item in (first, second)] == [Outcome.MEASURED] * 2, first.reason
    assert {item.probe.compilation for item in (first, second)} == {Compilation.SHARED}
    assert "whole depth" in first.warnings[-1]
    assert first.needs_full_depth
    assert second.worker == first.worker


def test_an_exploration_at_reduced_depth_says_so_and_how_well_it_predicted(tmp_path):
    config = {
        "train_input": {"batch_size": 16, "micro_batch_size": {"explore": {"min": 1, "max": 4}}},
        "model": {"name": "gpt2", "num_hidden_layers": 8, "filter_size": 64, "dropout_rate": 0.0}
        | {key: value for key, value in MODEL.items()},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.001},
        "explore": {"device": "cpu", "memory_budget": "1GiB", "depth": "reduced", "max_probes": 4}
        | {"compile": {"backend": "aot_eager_decomp_partition"}},
    }
    path = tmp_path / "deep.yaml"
    path.write_text(json.dumps(config))

    events = list(explore(path, ExploreOptions(model_dir=str(tmp_path / "runs"))))

    result = events[-1].result
    kinds = [event.observation.probe.compilation for event in events if hasattr(event, "observation")]
    assert kinds[0] is Compilation.SHARED
    assert Compilation.REDUCED in kinds
    assert kinds[-1] is Compilation.EXACT
    assert 0.1 < result.full_over_reduced < 10.0  # passes of a millisecond, on whatever machine
    assert json.loads((events[-1].run.directory / "result.json").read_text())["full_over_reduced"] is not None
