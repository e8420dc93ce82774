from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.errors import UserInputError
from bexplore.job.batching import (
    Divisibility,
    divide_among_replicas,
    divisors,
    even_candidates,
    is_even_split,
    is_valid_global_batch_size,
    near_value_message,
    nearest,
    sizes_that_keep,
    split,
    valid_global_batch_sizes,
)

small = st.integers(min_value=1, max_value=400)
rules = st.sampled_from(list(Divisibility))


def sizes_of(*arguments, **options) -> list[int]:
    return [size.global_batch_size for size in valid_global_batch_sizes(*arguments, **options)]


def test_the_even_sizes_of_133_are_those_of_the_documentation():
    assert even_candidates(133)[:12] == (133, 67, 45, 34, 27, 23, 19, 17, 15, 14, 13, 12)
    assert even_candidates(133)[-1] == 1


def test_34_of_133_is_4_micro_batches_of_which_the_last_is_smaller():
    cut = split(133, 1, 34, Divisibility.EVEN)
    assert (cut.micro_batch_size, cut.accumulation_steps, cut.last_micro_batch_size) == (34, 4, 31)


def test_168_of_337_moves_to_169_under_the_even_rule():
    cut = split(673, 2, 168, Divisibility.EVEN)
    assert (cut.replica_batch_size, cut.micro_batch_size, cut.accumulation_steps) == (337, 169, 2)


def test_of_two_sizes_that_are_equally_near_a_wish_moves_to_the_larger():
    assert split(133, 1, 25, Divisibility.EVEN).micro_batch_size == 27  # 23 is as near


@given(small, small)
def test_a_wish_moves_to_the_nearest_allowed_size(replica_batch_size, wish):
    if wish > replica_batch_size:
        return
    moved = split(replica_batch_size, 1, wish, Divisibility.EVEN).micro_batch_size
    distances = {size: abs(size - wish) for size in even_candidates(replica_batch_size)}
    assert moved == max(size for size, distance in distances.items() if distance == min(distances.values()))


@pytest.mark.parametrize("rule", list(Divisibility))
def test_121_of_120_is_an_error(rule):
    with pytest.raises(UserInputError, match="micro_batch_size 121 is above the 120 samples"):
        split(240, 2, 121, rule)


def test_a_batch_not_divisible_by_replicas_is_refused_with_neighbours():
    with pytest.raises(UserInputError, match="673 is not a multiple of the 2 replicas") as refused:
        divide_among_replicas(673, 2)
    assert "672 or 674" in refused.value.hint


def test_a_micro_batch_that_does_not_divide_is_refused_with_neighbours():
    with pytest.raises(UserInputError, match="120 samples are not a multiple of micro_batch_size 50") as refused:
        split(240, 2, 50)
    assert "40 or 60" in refused.value.hint


def test_a_batch_smaller_than_the_replicas_is_refused_under_both_rules():
    for rule in Divisibility:
        with pytest.raises(UserInputError, match="batch_size 3 is smaller than the 4 replicas"):
            divide_among_replicas(3, 4, rule)


def test_the_strict_sizes_are_multiples_around_the_wish():
    assert sizes_of(16, 4, 512) == [384, 448, 512, 576, 640]
    assert sizes_of(16, 4, 500) == [320, 384, 448, 512, 576]


def test_without_a_wish_the_smallest_are_listed():
    assert sizes_of(6, 2, count=3) == [12, 24, 36]


def test_tokens_are_counted_where_the_sequence_length_is_known():
    known, unknown = (valid_global_batch_sizes(8, 2, 32, tokens_per_sample=length)[0] for length in (1024, None))
    assert known.num_tokens == known.global_batch_size * 1024
    assert unknown.num_tokens is None


def test_the_message_on_the_batch_counts_steps_or_names_neighbours():
    assert (
        near_value_message(512, 16, 4)
        == "batch_size 512 is valid with micro_batch_size 16 on 4 replicas: 8 accumulation steps"
    )
    assert near_value_message(16, 16, 1).endswith("on 1 replica: 1 accumulation step")
    assert near_value_message(500, 16, 4).endswith("nearest: 448 or 512")
    assert near_value_message(10, 16, 4).endswith("nearest: 64")


@given(replica_batch_size=small, replicas=st.integers(1, 3), rule=rules)
def test_the_sizes_that_keep_a_batch_are_those_with_which_it_is_valid(replica_batch_size, replicas, rule):
    batch_size = replica_batch_size * replicas
    valid = [m for m in range(1, batch_size + 2) if is_valid_global_batch_size(batch_size, m, replicas, rule)]

    assert list(sizes_that_keep(replica_batch_size, rule)) == valid


@pytest.mark.parametrize("arguments", [(0, 1), (-1, 1), (1, 0), (True, 1), (1.0, 1), (1, 1, 0)])
def test_numbers_that_are_not_positive_integers_are_refused(arguments):
    with pytest.raises(UserInputError, match="must be a positive integer"):
        valid_global_batch_sizes(*arguments)


def test_an_unknown_rule_is_refused():
    with pytest.raises(UserInputError, match='not "loose"'):
        valid_global_batch_sizes(1, 1, rule="loose")


@given(small)
def test_even_sizes_are_exactly_the_ceilings(replica_batch_size):
    ceilings = {-(-replica_batch_size // k) for k in range(1, replica_batch_size + 1)}
    assert even_candidates(replica_batch_size) == tuple(sorted(ceilings, reverse=True))
    assert all(
        is_even_split(replica_batch_size, size) == (size in ceilings) for size in range(0, replica_batch_size + 2)
    )


@given(st.integers(min_value=1, max_value=5000))
def test_divisors_are_all_and_only_the_divisors(number):
    assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@given(small, small, small, rules)
def test_a_split_accounts_for_every_sample(global_batch_size, num_replicas, micro_batch_size, rule):
    try:
        cut = split(global_batch_size, num_replicas, micro_batch_size, rule)
    except UserInputError:
        return
    whole = cut.micro_batch_size * (cut.accumulation_steps - 1)
    assert whole + cut.last_micro_batch_size == cut.replica_batch_size
    assert 1 <= cut.last_micro_batch_size <= cut.micro_batch_size
    assert is_valid_global_batch_size(global_batch_size, cut.micro_batch_size, num_replicas, rule)
    assert rule is Divisibility.EVEN or cut.last_micro_batch_size == micro_batch_size


@given(small, st.integers(min_value=1, max_value=12), st.integers(min_value=1, max_value=3000), rules)
def test_what_is_listed_is_valid_and_ascends(micro_batch_size, num_replicas, near, rule):
    listed = sizes_of(micro_batch_size, num_replicas, near, rule)
    assert listed == sorted(set(listed))
    for size in listed:
        assert is_valid_global_batch_size(size, micro_batch_size, num_replicas, rule)
        assert split(size, num_replicas, micro_batch_size, rule).micro_batch_size == micro_batch_size


@given(
    st.integers(min_value=1, max_value=40),
    st.integers(min_value=1, max_value=6),
    st.integers(min_value=1, max_value=600),
    rules,
)
def test_the_nearest_valid_sizes_on_both_sides_are_listed(micro_batch_size, num_replicas, near, rule):
    listed = sizes_of(micro_batch_size, num_replicas, near, rule)
    valid = [size for size in range(1, 2000) if is_valid_global_batch_size(size, micro_batch_size, num_replicas, rule)]
    assert nearest(listed, near) == nearest(valid, near)


@given(small, st.integers(min_value=1, max_value=12), st.integers(min_value=1, max_value=3000), rules)
def test_listed_accumulation_steps_are_those_of_the_split(micro_batch_size, num_replicas, near, rule):
    for size in valid_global_batch_sizes(micro_batch_size, num_replicas, near, rule):
        cut = split(size.global_batch_size, num_replicas, micro_batch_size, rule)
        assert size.accumulation_steps == cut.accumulation_steps
