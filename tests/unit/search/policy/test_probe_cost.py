"""What a probe is expected to cost, learnt from what probes have cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation
from bexplore.search.evidence import Evidence
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.settings import SearchSettings
from tests.unit.search.builders import measured, saturating

SETTINGS = SearchSettings(search_compilation=Compilation.SHARED)
SIZES = (64, 8, 32, 4, 16)
UNSEEN = np.array([2 / saturating(2), 48 / saturating(48)])  # seconds of a pass


def probe_of(size: int, **fields) -> Evidence:
    return measured(size, saturating(size), compilation=Compilation.SHARED, update_time_s=0.01, **fields)


def estimate_s(evidence: list[Evidence], pass_s: np.ndarray = UNSEEN) -> np.ndarray:
    costs = Costs.learnt(evidence, SETTINGS)
    return costs.estimate_s(pass_s, compilation=Compilation.SHARED, fresh_worker=False)


def passes_alone_s(sizes: tuple[int, ...] = SIZES) -> list[float]:
    """Seconds of warm probes that run the passes of their own size and nothing else."""
    costs = Costs.learnt([probe_of(size) for size in sizes], SETTINGS)
    pass_s = np.array([size / saturating(size) for size in sizes])
    return costs.estimate_s(pass_s, compilation=Compilation.SHARED, fresh_worker=False).tolist()


def probes_that_took(seconds: list[float]) -> list[Evidence]:
    return [probe_of(size, elapsed_s=elapsed_s) for size, elapsed_s in zip(SIZES, seconds, strict=False)]


@pytest.mark.parametrize(("overhead_s", "times"), [(0.0, 1.0), (0.5, 1.0), (0.0, 20.0), (0.5, 4.0)])
def test_a_probe_costs_what_warm_probes_have_cost(overhead_s, times):
    own_s = np.array(passes_alone_s())
    passes_s = own_s - 0.02  # two updates
    learnt = probes_that_took((overhead_s + 0.02 + times * passes_s).tolist())
    expected = overhead_s + 0.02 + times * (estimate_s([probe_of(size) for size in SIZES]) - 0.02)
    assert estimate_s(learnt) == pytest.approx(expected, rel=1e-6)


def test_one_warm_probe_shows_what_the_next_like_it_costs():
    [known] = probes_that_took([7.0])
    assert estimate_s([known], np.array([64 / saturating(64)])) == pytest.approx([7.0], rel=0.05)


def test_probes_that_cost_less_than_their_passes_are_no_discount():
    usual = estimate_s([probe_of(size) for size in SIZES])
    assert estimate_s(probes_that_took([0.5 * seconds for seconds in passes_alone_s()])) == pytest.approx(usual)


def test_a_probe_that_started_a_worker_or_compiled_tells_nothing_of_warm_ones():
    usual = [probe_of(size) for size in SIZES]
    for fields in ({"start_time_s": 2.0}, {"compile_time_s": 2.0}):
        first = dataclasses.replace(usual[0], elapsed_s=60.0, **fields)
        assert estimate_s([first, *usual[1:]]) == pytest.approx(estimate_s(usual))


def test_passes_that_take_a_least_time_are_counted_once():
    settings = dataclasses.replace(SETTINGS, least_passes_s=30.0)
    known = [probe_of(size, elapsed_s=30.02) for size in SIZES]
    costs = Costs.learnt(known, settings)
    expected_s = costs.estimate_s(UNSEEN, compilation=Compilation.SHARED, fresh_worker=False)
    assert expected_s == pytest.approx([30.02] * 2, rel=0.01)


def test_other_sizes_that_are_timed_in_turn_are_expected_once():
    pass_s = np.array([32 / saturating(32)])
    in_turn = {"compilation": Compilation.SHARED, "fresh_worker": False, "others_s": 5.0}
    unknown = Costs.learnt([probe_of(size) for size in SIZES], SETTINGS)
    alone_s = estimate_s([probe_of(size) for size in SIZES], pass_s)
    assert unknown.estimate_s(pass_s, **in_turn) == pytest.approx(alone_s + 5.0)
    known = Costs.learnt(probes_that_took([seconds + 5.0 for seconds in passes_alone_s()]), SETTINGS)
    assert known.estimate_s(pass_s, **in_turn) == pytest.approx(alone_s + 5.0, rel=0.01)
