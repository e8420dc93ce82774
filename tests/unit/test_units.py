from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.errors import UserInputError
from bexplore.units import (
    counted,
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    format_share,
    parse_bytes,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GiB", 80 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("512M", 512 * 2**20),
        ("12gib", 12 * 2**30),
        (" 2 TiB ", 2 * 2**40),
        (".5k", 512),
        ("1024", 1024),
        (1024, 1024),
        (1e9, 10**9),
    ],
)
def test_sizes_are_read_as_the_standards_have_them(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10min", 600), ("90s", 90), ("1h30m", 5400), ("250 ms", 0.25), ("1 h 5 min 3 s", 3903), ("2.5", 2.5), (7, 7)],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("parse", [parse_bytes, parse_seconds])
@pytest.mark.parametrize(
    "value", ["", "fast", "-3", "0", "1 2", "3 parsecs", math.nan, math.inf, True, None, [], "1e3"]
)
def test_what_is_no_quantity_is_refused_with_its_value(parse, value):
    with pytest.raises(UserInputError) as refused:
        parse(value)
    assert str(value) in refused.value.message
    assert refused.value.hint


def test_a_number_without_a_unit_between_others_is_refused():
    with pytest.raises(UserInputError):
        parse_seconds("1h30")


def test_a_long_text_is_cut_in_the_message():
    with pytest.raises(UserInputError) as refused:
        parse_bytes("9" * 100_000 + "x")
    assert len(refused.value.message) < 120


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (1023.7 * 2**20, "1.00 GiB"),
        (80 * 2**30, "80.0 GiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_sizes_are_shown_with_three_digits(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5e-5, "50 us"),
        (0.25, "250 ms"),
        (8.312, "8.31 s"),
        (59.99, "1 min"),
        (125, "2 min 5 s"),
        (3599.7, "1 h"),
        (3840, "1 h 4 min"),
        (4425, "1 h 14 min"),
        (math.nan, "unknown"),
        (None, "unknown"),
        (-8.312, "-8.31 s"),
        (math.inf, "without end"),
    ],
)
def test_durations_are_shown_as_people_say_them(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_rate(0.21254), "0.2125"),
        (format_rate(97.344), "97.34"),
        (format_rate(999.96), "1,000"),
        (format_rate(11_312.6), "11,313"),
        (format_rate(2.5e6), "2,500,000"),
        (format_flops(2.7183e9), "2.72 GFLOP"),
        (format_flops(9.996e11), "1.00 TFLOP"),
        (format_flops(512), "512 FLOP"),
        (format_flops(3.2e24), "3200 ZFLOP"),
    ],
)
def test_large_rates_and_operations_have_no_exponent(shown, text):
    assert shown == text


def test_an_unknown_size_is_not_shown_as_zero():
    assert format_bytes(None) == "unknown"


@given(st.integers(min_value=1, max_value=2**60))
def test_a_shown_size_is_read_back_within_half_a_percent(num_bytes):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.006, abs=1)


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_a_shown_duration_is_read_back_nearly(seconds):
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=0.01, abs=1e-5)


def test_one_thing_is_counted_without_an_s():
    assert [counted(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]


def test_a_noun_that_ends_with_an_s_is_counted_with_es():
    assert [counted(number, "process") for number in (1, 2)] == ["1 process", "2 processes"]


def test_a_share_is_shown_as_nothing_or_all_only_where_it_is():
    shares = (0.0, 0.004, 0.006, 0.03, 0.25, 0.994, 0.996, 1.0)
    assert [format_share(share) for share in shares] == ["0%", "<1%", "1%", "3%", "25%", "99%", ">99%", "100%"]
