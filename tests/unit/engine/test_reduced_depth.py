"""Deep models: what two reduced depths say of the whole one, when the search goes there, and what the result says."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.engine.reduced_depth import ReducedDepthRunner, full_depth_of
from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from tests.builders import observed

GIB = 2**30
DEPTHS = Depths(whole=48, block_share=0.95, high=12)
REDUCED = Probe(number=0, micro_batch_size=4, max_passes=3, compilation=Compilation.REDUCED)


@pytest.mark.parametrize(("num_blocks", "pays"), [(0, False), (7, False), (8, True), (96, True)])
def test_few_blocks_are_always_run_whole(num_blocks, pays):
    assert (Depths.of(num_blocks=num_blocks, block_share=0.9) is not None) is pays


def at_depths(low: float, high: float, **fields) -> list[Observation]:
    return [observed(4, pass_times_s=(seconds,) * 3, **fields) for seconds in (low, high)]


def test_times_and_peaks_of_the_full_depth_come_from_both_depths():
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


def probe(number: int, size: int, **fields) -> Probe:
    return Probe(number=number, micro_batch_size=size, max_passes=4, **fields)


def test_what_is_extrapolated_from_reduced_depths_is_asked_alone():
    questions = []

    class Shallow:
        def __call__(self, probe: Probe) -> Observation:
            questions.append(probe)
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY)

        def close(self) -> None: ...

        def rest(self) -> None: ...

        def at_depth(self, kept_blocks: int, num_blocks: int) -> Shallow:
            return self

    runner = ReducedDepthRunner(Shallow(), Depths(whole=48, block_share=0.95, high=12))
    runner(probe(1, 8, interleaved_with=(4,), compilation=Compilation.REDUCED))

    assert [search_specification.interleaved_with for search_specification in questions] == [()]
