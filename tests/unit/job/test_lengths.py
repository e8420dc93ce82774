"""Lengths of samples: their distribution, the batches that a collation makes of them, and those that stand for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bexplore.job.lengths import (
    ALIKE,
    MAX_DISTINCT,
    NUM_BATCHES,
    NUM_SAMPLES,
    SORTED_BATCHES,
    Collation,
    Lengths,
    _batches_of_tokens,
)

UNIFORM = Lengths.from_samples(np.arange(1, 513))
SKEWED = Lengths.from_samples(np.random.default_rng(1).lognormal(5.0, 0.7, 20_000).astype(int) + 1)
TWO_HUMPS = Lengths.from_samples([*range(10, 20), *range(480, 500)])


def lengths(*samples: int, **fields: Any) -> Lengths:
    return Lengths.from_samples(samples, **fields)


def collated(samples: Lengths, collation: str) -> Lengths:
    buckets = (64, 128, 256) if collation == "buckets" else ()
    return Lengths(values=samples.values, weights=samples.weights, collation=Collation(collation), buckets=buckets)


# The distribution


def test_typical_batches_keep_the_mean_where_their_lengths_are_rounded_far():
    lengths = Lengths.from_samples([2, 3, 6, 9, 19, 1162], [39, 1, 599, 334, 2, 25])
    typical = lengths.typical_batches(1)

    assert sum(one.share * one.length for one in typical) == pytest.approx(lengths.batch_lengths(1).mean(), rel=1e-6)


def test_each_length_has_its_share_of_the_samples():
    found = lengths(20, 10, 20, 40)
    assert (found.values, found.weights) == ((10, 20, 40), (0.25, 0.5, 0.25))


def test_weights_count_as_samples_in_any_unit():
    found = lengths(20, 10, 10, weights=[0.5, 1.0, 0.5])
    assert (found.values, found.weights) == ((10, 20), (0.75, 0.25))


def test_a_length_without_weight_does_not_occur():
    assert lengths(10, 20, 99, weights=[1, 1, 0]) == lengths(10, 20)


def test_the_source_is_no_part_of_the_distribution():
    assert lengths(10, source="here") == lengths(10, source="there")


@pytest.mark.parametrize("weights", [None, np.geomspace(1, 1e4, 5000)])
def test_many_lengths_are_put_together_and_keep_mean_and_longest(weights):
    samples = np.unique(np.geomspace(100, 100_000, 5000).astype(int))
    weights = None if weights is None else weights[: len(samples)]
    found = Lengths.from_samples(samples, weights)

    assert 0.5 * MAX_DISTINCT < len(found.values) <= MAX_DISTINCT
    assert found.values == tuple(sorted(set(found.values)))
    assert sum(found.weights) == pytest.approx(1)
    assert found.mean == pytest.approx(np.average(samples, weights=weights), abs=0.5)
    assert found.longest == samples[-1]
    assert found.weights[-1] == pytest.approx(1 / len(samples) if weights is None else weights[-1] / weights.sum())


def test_as_many_distinct_lengths_as_are_kept_stay_as_they_are():
    assert lengths(*range(1, MAX_DISTINCT + 1)).values == tuple(range(1, MAX_DISTINCT + 1))


def test_a_quantile_is_the_length_that_so_many_samples_do_not_exceed():
    found = lengths(10, 20, 30, 40)
    assert [found.quantile(share) for share in (0, 0.25, 0.26, 0.5, 0.75, 0.76, 1)] == [10, 10, 20, 20, 30, 40, 40]


def test_samples_are_cut_off_behind_a_length():
    assert lengths(10, 20, 30, 40).truncated(25) == lengths(10, 20, 25, 25)
    assert lengths(10, 20).truncated(20) == lengths(10, 20)


def test_what_is_cut_off_keeps_its_collation_and_its_source():
    cut = lengths(10, 40, multiple_of=8, collation=Collation.BUCKETS, buckets=(16,), source="here").truncated(20)
    assert (cut.multiple_of, cut.collation, cut.buckets, cut.source) == (8, Collation.BUCKETS, (16,), "here")


def test_a_multiple_pads_rows_and_not_samples():
    found = lengths(10, 20, 33, multiple_of=16)

    assert (found.longest, found.mean) == (48, 21)
    assert set(found.batch_lengths(1)) == {16, 32, 48}
    assert lengths(16, multiple_of=16).longest == 16


# Batches


@pytest.mark.parametrize("size", [2, 3, 64, 1000])
def test_batches_of_all_sizes_are_cut_from_the_same_samples(size):
    samples = SKEWED.batch_lengths(1)
    whole = NUM_SAMPLES // size

    assert len(samples) == NUM_SAMPLES
    assert SKEWED.batch_lengths(size).tolist() == samples[: whole * size].reshape(whole, size).max(axis=1).tolist()


def test_each_length_is_drawn_as_often_as_its_share_asks_for():
    found = lengths(10, 20, 30, weights=[1, 2, 5])
    values, counts = np.unique(found.batch_lengths(1), return_counts=True)

    assert values.tolist() == [10, 20, 30]
    assert counts.tolist() == [NUM_SAMPLES / 8, NUM_SAMPLES / 4, NUM_SAMPLES * 5 / 8]


def test_samples_come_in_no_order_of_length():
    samples = UNIFORM.batch_lengths(1)
    assert abs(np.corrcoef(samples, np.arange(len(samples)))[0, 1]) < 0.02


@pytest.mark.parametrize("size", [NUM_SAMPLES // 2 + 1, NUM_SAMPLES, 10**9])
def test_a_batch_of_more_samples_than_are_drawn_is_as_long_as_the_longest(size):
    assert SKEWED.batch_lengths(size).tolist() == [SKEWED.longest]


@pytest.mark.parametrize("collation", ["max", "packed"])
@pytest.mark.parametrize("size", [1, 64])
def test_rows_of_the_longest_length_make_batches_of_that_length_alone(collation, size):
    assert collated(UNIFORM, collation).batch_lengths(size).tolist() == [512]


def test_sorted_samples_are_sorted_within_as_many_as_a_sampler_takes():
    samples = UNIFORM.batch_lengths(1)[: SORTED_BATCHES * 4]
    first = collated(UNIFORM, "sorted").batch_lengths(4)[:SORTED_BATCHES]

    assert first.tolist() == np.sort(samples)[3::4].tolist()


def test_a_batch_holds_samples_of_one_bucket():
    found = lengths(10, 20, 90, 100, collation=Collation.BUCKETS, buckets=(50, 100))
    rows = found.batch_lengths(64)

    assert set(rows) == {20, 100}
    assert np.mean(rows == 20) == 0.5
    assert set(lengths(10, 20, 90, 100).batch_lengths(64)) == {100}


def test_a_sample_as_long_as_a_bucket_is_in_it():
    found = lengths(50, 51, collation=Collation.BUCKETS, buckets=(50, 100))
    assert set(found.batch_lengths(64)) == {50, 51}


def test_samples_longer_than_all_buckets_have_one_of_their_own():
    found = lengths(10, 99, collation=Collation.BUCKETS, buckets=(50,))
    assert set(found.batch_lengths(64)) == {10, 99}


def test_a_bucket_with_fewer_samples_than_a_batch_makes_one():
    found = lengths(10, 99, weights=[999, 1], collation=Collation.BUCKETS, buckets=(50, 100))
    assert np.count_nonzero(found.batch_lengths(1024) == 99) == 1


def test_a_batch_of_a_number_of_tokens_has_more_rows_of_shorter_samples():
    found = collated(lengths(10, 20, 50), "tokens")

    assert [found.num_rows(3, length) for length in (10, 20, 50)] == [15, 7, 3]
    assert collated(UNIFORM, "longest").num_rows(3, 10) == 3
    assert [one.num_rows for one in found.typical_batches(3)] == [15, 7, 3]


@pytest.mark.parametrize("size", [1, 4, 64])
def test_batches_of_so_many_tokens_have_rows_for_all_samples(size):
    found = collated(SKEWED, "tokens")
    rows = found.batch_lengths(size).tolist()

    assert rows[-1] == SKEWED.longest
    assert NUM_SAMPLES <= sum(found.num_rows(size, length) for length in rows) < 1.05 * NUM_SAMPLES


@pytest.mark.parametrize(
    ("collation", "samples", "varies"),
    [
        ("longest", (10, 20), True),
        ("sorted", (10, 20), True),
        ("buckets", (10, 20), True),
        ("max", (10, 20), False),
        ("packed", (10, 20), False),
        ("tokens", (10, 20), True),
        ("longest", (20, 20), False),
    ],
)
def test_batches_vary_in_length_where_samples_do_and_rows_follow_them(collation, samples, varies):
    assert collated(lengths(*samples), collation).varies is varies


# The samples of one batch


def test_the_longest_sample_of_a_batch_is_as_long_as_its_rows():
    assert lengths(10, 20, 30, 40).samples_of_batch(1, 30).tolist() == [30]
    assert lengths(10, 20, 30, 40).samples_of_batch(4, 30).tolist() == [10, 20, 20, 30]


@pytest.mark.parametrize("length", [1, 7, 200, SKEWED.longest])
def test_a_batch_holds_no_sample_that_is_longer_than_its_rows(length):
    samples = SKEWED.samples_of_batch(32, length)

    assert len(samples) == 32
    assert samples.max() == length
    assert samples.min() >= 1


def test_the_samples_of_a_large_batch_are_distributed_as_all_are():
    samples = SKEWED.samples_of_batch(4096, SKEWED.longest)
    assert samples.mean() == pytest.approx(SKEWED.mean, rel=0.01)


# The batches that stand for all


@pytest.mark.parametrize("samples", [UNIFORM, SKEWED, TWO_HUMPS], ids=["uniform", "skewed", "two humps"])
@pytest.mark.parametrize("collation", ["longest", "sorted", "buckets"])
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_cubic_s_mean_over_typical_batches_is_that_over_all(samples, collation, size):
    found = collated(samples, collation)
    typical, rows = found.typical_batches(size), found.batch_lengths(size)

    for power in range(len(typical)):
        mean = sum(one.share * one.length**power for one in typical)
        assert mean == pytest.approx(np.mean(rows.astype(float) ** power), rel=1e-9)


@pytest.mark.parametrize("samples", [UNIFORM, SKEWED], ids=["uniform", "skewed"])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_small_sizes_have_four_typical_batches(samples, size):
    assert len(samples.typical_batches(size)) == NUM_BATCHES == 4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    st.sampled_from(["longest", "max", "sorted", "buckets", "packed", "tokens"]),
    st.sampled_from([1, 3, 32, 5000]),
)
def test_typical_batches_are_few_that_occur_with_the_shares_of_all(samples, collation, size):
    found = collated(lengths(*samples), collation)
    typical = found.typical_batches(size)

    assert 1 <= len(typical) <= NUM_BATCHES
    assert sum(one.share for one in typical) == pytest.approx(1)
    assert all(one.share > 0 for one in typical)
    assert [one.length for one in typical] == sorted({one.length for one in typical})
    assert {one.length for one in typical} <= set(found.batch_lengths(size).tolist())


def test_no_typical_batch_has_a_negative_share_at_lengths_far_apart():
    apart = lengths(2, 3, 6, 9, 19, 1162, weights=[39, 1, 599, 334, 2, 25])
    typical = apart.typical_batches(1)

    assert all(one.share > 0 for one in typical)
    assert sum(one.share for one in typical) == pytest.approx(1)
    assert sum(one.share * one.length for one in typical) == pytest.approx(apart.mean, rel=0.06)


def test_up_to_four_lengths_are_typical_each_with_its_share():
    typical = lengths(10, 20, 20, 40).typical_batches(1)
    assert [(one.length, one.share) for one in typical] == [(10, 0.25), (20, 0.5), (40, 0.25)]


def test_a_size_whose_batches_are_nearly_alike_needs_one():
    (typical,) = UNIFORM.typical_batches(128)
    rows = UNIFORM.batch_lengths(128)

    assert len(set(rows)) > 1
    assert rows.var() / rows.mean() ** 2 < ALIKE
    assert typical.share == 1.0
    assert abs(typical.length - rows.mean()) <= np.abs(rows - rows.mean()).min() + 1e-9
    assert len(UNIFORM.typical_batches(8)) > 1


@pytest.mark.parametrize("collation", ["max", "packed"])
def test_batches_of_one_length_are_one_typical_batch(collation):
    (typical,) = collated(UNIFORM, collation).typical_batches(4)
    assert (typical.length, typical.num_rows, typical.share) == (512, 4, 1.0)


# Padding and packing


def test_a_larger_batch_pads_more():
    shares = [SKEWED.padding_share(size) for size in (1, 2, 8, 64, 512)]

    assert shares[0] == pytest.approx(0, abs=1e-3)
    assert shares == sorted(set(shares))


def test_the_padding_of_a_batch_is_what_its_longest_sample_adds():
    # of two samples of 10 and 20 tokens a quarter of batches are 10 long: 17.5 on average, for 15 tokens of samples
    assert lengths(10, 20).padding_share(2) == pytest.approx(1 - 15 / 17.5, abs=0.005)
    assert collated(lengths(10, 20), "max").padding_share(1) == pytest.approx(0.25)
    assert lengths(10, multiple_of=16).padding_share(1) == pytest.approx(6 / 16)
    assert lengths(10, multiple_of=16, collation=Collation.TOKENS).padding_share(1) == pytest.approx(6 / 16)


def test_sorting_pads_less_than_the_samples_order_packing_least():
    longest, of_sorted, packed, maximum = (
        collated(SKEWED, word).padding_share(32) for word in ("longest", "sorted", "packed", "max")
    )
    assert packed < of_sorted < longest < maximum


@pytest.mark.parametrize("collation", ["buckets", "tokens"])
def test_batches_of_samples_that_are_much_alike_pad_less(collation):
    assert collated(UNIFORM, collation).padding_share(32) < UNIFORM.padding_share(32)


def rows_of(samples: list[int], capacity: int) -> int:
    """Rows of samples, the longest first, each in the row with the least room that is enough."""
    left: list[int] = []
    for length in sorted(samples, reverse=True):
        rooms = [(room, row) for row, room in enumerate(left) if room >= length]
        if rooms:
            left[min(rooms)[1]] -= length
        else:
            left.append(capacity - length)
    return len(left)


@pytest.mark.parametrize("samples", [SKEWED, TWO_HUMPS, lengths(5, 6, 8, 19, 22, 30)], ids=["skewed", "humps", "few"])
def test_samples_are_packed_into_the_rows_that_have_least_room(samples):
    drawn = samples.batch_lengths(1)[:2048].tolist()
    expected = len(drawn) / rows_of(drawn, samples.longest)

    assert collated(samples, "packed").samples_per_row() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("samples", "fields", "expected"),
    [
        ((10, 5), {}, 4 / 3),  # a row for each 10, and for each two 5
        ((10, 7, 3), {}, 3 / 2),  # a 7 and a 3 share one
        ((10, 6, 6), {}, 1.0),
        ((5, 5), {"multiple_of": 16}, 3.0),
    ],
)
def test_a_row_holds_as_many_samples_as_there_is_room_for(samples, fields, expected):
    found = lengths(*samples, collation=Collation.PACKED, **fields)
    assert found.samples_per_row() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("collation", ["longest", "max", "sorted", "buckets"])
def test_a_padded_row_holds_one_sample(collation):
    assert collated(UNIFORM, collation).samples_per_row() == 1.0


# Other collations


@pytest.mark.parametrize(
    ("collation", "others"),
    [
        ("longest", ["sorted", "packed"]),
        ("max", ["sorted", "packed"]),
        ("buckets", ["sorted", "packed"]),
        ("sorted", ["packed"]),
        ("tokens", ["packed"]),
        ("packed", []),
    ],
)
def test_others_are_the_collations_of_the_same_samples_that_pad_less(collation, others):
    found = collated(SKEWED, collation)

    assert [other.collation.value for other in found.others] == others
    assert {(other.values, other.weights, other.buckets) for other in found.others} <= {
        (found.values, found.weights, ())
    }
    assert all(other.padding_share(32) < found.padding_share(32) for other in found.others)


def test_samples_of_one_length_need_no_other_collation():
    assert lengths(10, 10).others == ()


@pytest.mark.parametrize("collation", [one for one in Collation if one is not Collation.TOKENS])
def test_rows_that_stay_need_most_memory_at_the_longest(collation):
    found = lengths(10, 20, 90, multiple_of=8, collation=collation, buckets=(50, 100))
    assert found.extreme_batches(4) == ((4, 96),)


def test_a_number_of_tokens_has_most_rows_of_the_shortest_samples():
    assert lengths(8, 32, 256, collation=Collation.TOKENS).extreme_batches(2) == ((2, 256), (64, 8))


def test_a_rare_short_sample_makes_no_batch_of_its_own():
    rare = Lengths.from_samples([1, 32, 64], [1e-5, 0.5, 0.5], collation=Collation.TOKENS)
    assert rare.extreme_batches(2) == ((2, 64), (4, 32))


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.sampled_from([1, 8]),
    st.integers(1, 40),
    st.tuples(*(st.integers(0, 1000) for _ in range(3))),
)
@settings(max_examples=40, deadline=None)
def test_no_batch_of_a_number_of_tokens_needs_more_than_the_extreme_ones(samples, multiple_of, size, memory):
    fixed, linear, quadratic = memory
    given_lengths = lengths(*samples, multiple_of=multiple_of, collation=Collation.TOKENS)

    def needed(num_rows: int, length: int) -> int:
        return num_rows * (fixed + linear * length + quadratic * length**2)

    batches = _batches_of_tokens(given_lengths, size)
    worst = max(needed(len(one), -(-int(one[-1]) // multiple_of) * multiple_of) for one in batches)
    assert worst <= max(needed(*shape) for shape in given_lengths.extreme_batches(size))
