"""What a result tells of settings: the front of memory against speed, and what is gained over the file's own."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from bexplore.measurement.probe import Compilation
from bexplore.run.parts.choice import FrontPoint, compare_with_file, front_candidates, pareto_front
from bexplore.search.posterior.joint import JointPosterior, Variant, fit_joint
from bexplore.search.space import MemoryPrior, Space
from tests.builders import observed
from tests.unit.exploration.variant_builders import trace
from tests.unit.search.builders import measured

GIB = 2**30
NONE, FULL = {"activation_checkpointing": "none"}, {"activation_checkpointing": "full"}


def point(memory: int, speed: float, *, ran: bool = True) -> FrontPoint:
    return FrontPoint(settings={}, micro_batch_size=1, peak_memory_bytes=memory, samples_per_s=speed, ran=ran)


def is_no_worse(one: FrontPoint, other: FrontPoint) -> bool:
    return one.peak_memory_bytes <= other.peak_memory_bytes and one.samples_per_s >= other.samples_per_s


# The front


def test_a_point_that_another_beats_in_memory_and_speed_is_not_on_the_front():
    assert pareto_front([point(2, 10.0), point(1, 5.0), point(3, 9.0)]) == (point(1, 5.0), point(2, 10.0))


def test_the_front_ascends_in_both():
    points = [point(memory, speed) for memory in range(1, 6) for speed in (memory % 3, 10 - memory, memory**1.5)]
    front = pareto_front(points)

    for one, other in itertools.pairwise(front):
        assert one.peak_memory_bytes < other.peak_memory_bytes
        assert one.samples_per_s < other.samples_per_s
    assert all(any(is_no_worse(two, one) for two in front) for one in points)


def test_of_two_equal_points_the_one_that_ran_is_on_the_front():
    assert pareto_front([point(1, 5.0, ran=False), point(1, 5.0)]) == (point(1, 5.0),)
    assert pareto_front([]) == ()


# The points


@pytest.fixture(scope="module")
def posterior() -> JointPosterior:
    """The file's own settings fit up to size 8, those of variant 1 up to all of 32, a tenth slower."""
    memory = [
        MemoryPrior(peak_bytes=lambda size: size * GIB, budget_bytes=8.5 * GIB, relative_sd=0.02),
        MemoryPrior(peak_bytes=lambda size: size * GIB / 4, budget_bytes=8.5 * GIB, relative_sd=0.02),
    ]
    evidence = [measured(1, 50.0), measured(8, 200.0)]
    evidence += [measured(8, 180.0, variant=1), measured(32, 270.0, variant=1)]
    return fit_joint(
        Space.from_sizes(range(1, 33)),
        [Variant(memory=one) for one in memory],
        evidence,
        seed=0,
        user_compilation=Compilation.EXACT,
    )


def variant_ran(number: int, size: int, peak_gib: float):
    item = observed(size, peak_memory_bytes=int(peak_gib * GIB))
    return dataclasses.replace(item, probe=dataclasses.replace(item.probe, variant=number))


def points(posterior: JointPosterior, **fields) -> dict[tuple[str, int], FrontPoint]:
    options = {
        "observations": [variant_ran(0, 8, 8.2), variant_ran(0, 8, 8.1), variant_ran(1, 32, 7.9)],
        "settings": [NONE, FULL],
        "cost_models": [trace(0.0, 1.0), trace(0.0, 0.25)],
    }
    found = front_candidates(posterior, **options | fields)
    return {(one.settings["activation_checkpointing"], one.micro_batch_size): one for one in found}


def test_what_ran_has_its_largest_measured_peak_and_the_speed_of_the_posterior(posterior):
    ran = points(posterior)["none", 8]

    assert (ran.ran, ran.peak_memory_bytes) == (True, int(8.2 * GIB))
    assert ran.samples_per_s == pytest.approx(200.0, rel=0.02)


def test_powers_of_two_and_the_largest_that_are_likely_to_fit_are_predicted(posterior):
    found = points(posterior)

    assert {size for name, size in found if name == "none"} == {1, 2, 4, 8}
    assert {size for name, size in found if name == "full"} == {1, 2, 4, 8, 16, 32}
    predicted = found["full", 16]
    assert (predicted.ran, predicted.peak_memory_bytes) == (False, 4 * GIB)
    assert 150.0 < predicted.samples_per_s < 300.0


def test_of_a_variant_without_a_trace_only_what_ran_is_shown(posterior):
    found = points(posterior, cost_models=[trace(0.0, 1.0), None])

    assert [size for name, size in found if name == "full"] == [32]


# The gain


def test_the_gain_is_over_the_best_size_of_the_files_own_settings(posterior):
    speed, (low, high) = compare_with_file(posterior, 32, 1)

    assert speed == pytest.approx(270.0 / 200.0, rel=0.03)
    assert low < speed < high


def test_the_files_own_settings_gain_nothing_over_themselves(posterior):
    assert compare_with_file(posterior, 8, 0) == (1.0, None)


def test_there_is_no_gain_over_settings_that_fit_at_no_size():
    memory = MemoryPrior(peak_bytes=lambda size: 20 * GIB, budget_bytes=GIB, relative_sd=0.02)
    small = MemoryPrior(peak_bytes=lambda size: GIB / 2, budget_bytes=GIB, relative_sd=0.02)
    evidence = [measured(size, 10.0 * size, variant=1) for size in (1, 2)]
    variants = [Variant(memory=memory), Variant(memory=small, log_speed=math.log(0.8))]
    posterior = fit_joint(Space.from_sizes(range(1, 5)), variants, evidence, seed=0, user_compilation=Compilation.EXACT)

    assert compare_with_file(posterior, 2, 1) == (None, None)
