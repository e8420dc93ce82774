"""The sizes that may be tried, and how an outcome narrows them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.errors import UserInputError
from bexplore.measurement.probe import Outcome, Purpose
from bexplore.search.evidence import Evidence
from bexplore.search.space import (
    Space,
    candidate_sizes,
    default_candidates,
    describe_candidates,
    geometric_middle,
)


def ended(size: int, outcome: Outcome, purpose: Purpose = Purpose.SEARCH) -> Evidence:
    return Evidence(micro_batch_size=size, outcome=outcome, purpose=purpose)


def test_every_integer_is_a_candidate_where_there_are_few():
    assert default_candidates(3, 40) == tuple(range(3, 41))


@given(st.integers(1, 5000), st.integers(0, 200_000))
def test_default_candidates_hold_bounds_and_powers_of_two_without_gaps(minimum: int, extra: int):
    maximum = minimum + extra
    sizes = default_candidates(minimum, maximum)
    assert (sizes[0], sizes[-1]) == (minimum, maximum)
    assert {2**power for power in range(18) if minimum <= 2**power <= maximum} <= set(sizes)
    assert all(right - left <= max(1, 0.002 * right) for left, right in itertools.pairwise(sizes))


def test_even_candidates_are_the_ceilings_of_the_replica_batch():
    sizes = candidate_sizes("even", minimum=12, maximum=133, replica_batch_size=133)
    assert sizes == (12, 13, 14, 15, 17, 19, 23, 27, 34, 45, 67, 133)


def test_divisor_candidates_divide_the_replica_batch():
    assert candidate_sizes("divisors", minimum=1, maximum=30, replica_batch_size=36) == (1, 2, 3, 4, 6, 9, 12, 18)


def test_candidates_depend_on_the_batch_size_only_if_the_rule_says_so():
    for rule in ("all", "powers_of_two", [3, 5]):
        free = candidate_sizes(rule, minimum=1, maximum=64)
        assert free == candidate_sizes(rule, minimum=1, maximum=64, replica_batch_size=36)


def test_a_list_is_taken_as_it_is_within_the_bounds():
    assert candidate_sizes([48, 7, 7, 300], minimum=1, maximum=64) == (7, 48)


@pytest.mark.parametrize(
    ("rule", "bounds", "words"),
    [
        ("squares", (1, 8), "squares"),
        ("divisors", (1, 8), "batch_size"),
        ("powers_of_two", (5, 7), "no candidate"),
        ("all", (0, 8), "below 1"),
        ("all", (8, 4), "below the smallest"),
    ],
)
def test_a_rule_that_leaves_nothing_is_an_error_that_says_what_to_do(rule, bounds, words):
    with pytest.raises(UserInputError, match=words) as caught:
        candidate_sizes(rule, minimum=bounds[0], maximum=bounds[1])
    assert caught.value.hint


def test_an_out_of_memory_narrows_the_space_to_what_is_smaller():
    space = Space.from_sizes([1, 2, 4, 8, 16])
    assert space.after([ended(4, Outcome.MEASURED), ended(8, Outcome.OUT_OF_MEMORY)]).open_sizes == (1, 2, 4)


def test_sizes_with_more_samples_than_the_data_are_out_unless_one_ran():
    space = Space.from_sizes([1, 64, 100, 128, 256])
    told = Evidence(micro_batch_size=1, outcome=Outcome.MEASURED, max_samples=100)

    assert space.after([told]).open_sizes == (1, 64, 100)
    assert space.after([told, ended(128, Outcome.MEASURED)]).open_sizes == (1, 64, 100, 128)


def test_a_success_above_refutes_an_out_of_memory():
    space = Space.from_sizes([1, 2, 4, 8, 16])
    seen = [ended(8, Outcome.OUT_OF_MEMORY), ended(16, Outcome.MEASURED)]
    assert space.after(seen).smallest_out_of_memory == math.inf
    assert space.after(seen).open_sizes == space.sizes


def test_a_verification_that_does_not_fit_is_never_refuted():
    space = Space.from_sizes([1, 2, 4, 8, 16])
    seen = [ended(16, Outcome.MEASURED), ended(8, Outcome.OUT_OF_MEMORY, Purpose.VERIFY)]
    assert space.after(seen).open_sizes == (1, 2, 4)


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.COMPILE_FAILED, Outcome.NOT_FINITE])
def test_a_failure_not_about_memory_drops_its_own_size_alone(outcome: Outcome):
    space = Space.from_sizes([1, 2, 4, 8])
    assert space.after([ended(4, outcome)]).open_sizes == (1, 2, 8)


def test_a_size_that_ran_before_is_dropped_after_two_failures():
    space, ran, crash = Space.from_sizes([1, 2, 4, 8]), ended(4, Outcome.MEASURED), ended(4, Outcome.CRASHED)
    assert space.after([ran, crash]).open_sizes == (1, 2, 4, 8)
    assert space.after([ran, crash, crash]).open_sizes == (1, 2, 8)


def test_a_verification_that_fails_drops_its_size_at_once():
    assert Space.from_sizes([1, 2, 4]).after([ended(4, Outcome.CRASHED, Purpose.VERIFY)]).open_sizes == (1, 2)


@pytest.mark.parametrize(
    ("sizes", "largest", "middle"),
    [((1, 2, 4, 8, 16, 32, 64), 64, 8), (range(1, 101), 100, 10), ((4, 8), 0, 4), ((4, 300), 1000, 4)],
)
def test_the_geometric_middle_is_one_of_the_sizes_that_count(sizes, largest, middle):
    assert geometric_middle(tuple(sizes), largest=largest) == middle


def test_a_replica_batch_of_a_billion_samples_has_candidates_at_once():
    powers = tuple(2**exponent for exponent in range(13))

    assert candidate_sizes("divisors", minimum=1, maximum=4096, replica_batch_size=2**30) == powers
    assert set(powers) <= set(candidate_sizes("even", minimum=1, maximum=4096, replica_batch_size=2**30))


def test_given_sizes_are_described_by_those_that_are_candidates():
    assert describe_candidates([2, 4, 64], minimum=1, maximum=4096) == "3 given sizes from 2 to 64"
    assert describe_candidates([2, 4, 64], minimum=3, maximum="what fits") == "2 given sizes from 4 to 64"
    assert describe_candidates([4], minimum=1, maximum=64) == "1 given size from 4 to 4"
    assert describe_candidates("all", minimum=1, maximum="what fits") == "sizes by the rule 'all' from 1 to what fits"
