from __future__ import annotations

import pytest

from bexplore.cli.plan_options import (
    name_options,
    parse_bandwidth_option,
    parse_batch_sizes,
    parse_devices,
    parse_prices,
    parse_rate,
    parse_until,
    parse_whole,
)
from bexplore.errors import UserInputError
from bexplore.planning.request import Amount, Devices


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`tokens` and `steps` cannot be mixed", "--tokens and --steps cannot be mixed"),
        ("type `batch_sizes=63 or 66`, or `devices=2`", "type --batch-size 63 or 66, or --devices 2"),
        ("type `rate=24000 tokens/s`", "type --throughput '24000 tokens/s'"),
        ("type `until_s=86401`", "type --until 1.001d"),
        ("give `network`", "give --bandwidth or --network"),
        ("`unknown` is `no field`", "`unknown` is `no field`"),
    ],
)
def test_fields_of_a_request_are_named_by_their_options(text, named):
    assert name_options(text) == named


def test_batch_sizes_are_samples_unless_tokens_are_named():
    assert parse_batch_sizes("512,1024") == (Amount(number=512), Amount(number=1024))
    assert parse_batch_sizes("4M tokens, 64 samples") == (Amount(number=4e6, is_tokens=True), Amount(number=64))
    assert parse_batch_sizes("2Mtok") == (Amount(number=2e6, is_tokens=True),)


def test_devices_are_numbers_or_nodes_times_devices():
    assert parse_devices("8, 4x8") == (Devices(number=8), Devices(number=32, num_nodes=4))
    assert [str(one) for one in parse_devices("8,4x8")] == ["8", "4x8"]


@pytest.mark.parametrize("text", ["0", "-1", "4x", "x8", "8.5", "eight", "4x0", "99999999", ""])
def test_what_is_no_number_of_devices_is_refused(text):
    with pytest.raises(UserInputError) as error:
        parse_devices(text)
    assert "--devices" in error.value.message
    assert "--devices" in error.value.hint


def test_a_rate_names_what_it_counts():
    assert parse_rate("24k tokens/s") == Amount(number=24_000, is_tokens=True)
    assert parse_rate("31.5 samples/s") == Amount(number=31.5)


@pytest.mark.parametrize("text", ["24000", "24000/s", "tokens/s", "-3 tokens/s", "nan samples/s", "5 GB/s"])
def test_a_rate_without_its_unit_or_number_is_refused(text):
    with pytest.raises(UserInputError, match=r"rate|number") as error:
        parse_rate(text)
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("50GB/s", 50e9),
        ("50 GB / s", 50e9),
        ("50GBps", 50e9),
        ("25GiB/s", 25 * 2**30),
        ("400Gbit/s", 50e9),
        ("400Gb/s", 50e9),
        ("400gbps", 50e9),
        ("1.5Mbytes/s", 1.5e6),
    ],
)
def test_a_bandwidth_is_bytes_or_bits_a_second(text, bytes_per_s):
    assert parse_bandwidth_option(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["50", "50G", "50GB", "50Gbit", "50gb/s", "0GB/s", "-1GB/s", "nanGB/s", "50GB/h", ""])
def test_what_may_be_bits_or_bytes_or_is_no_bandwidth_is_refused(text):
    with pytest.raises(UserInputError, match="bandwidth") as error:
        parse_bandwidth_option(text)
    assert "--bandwidth" in error.value.hint


@pytest.mark.parametrize(("text", "near"), [("1.5", "1 or 2"), ("1.0005K", "1000 or 1001")])
def test_a_part_of_a_thing_names_the_whole_numbers_beside_it(text, near):
    assert parse_whole("0.5K", "--steps", "100") == 500
    with pytest.raises(UserInputError, match="whole number") as error:
        parse_whole(text, "--steps", "100")
    assert error.value.hint == f"type --steps {near}"


def test_a_time_without_its_unit_is_asked_for_it():
    assert parse_until("30d") == 30 * 86400
    with pytest.raises(UserInputError, match="lacks its unit") as error:
        parse_until("30")
    assert error.value.hint == "type --until 30d for days, or 30h for hours"
    with pytest.raises(UserInputError, match="--until"):
        parse_until("soon")


def test_a_comma_within_a_batch_size_is_not_taken_for_a_list():
    with pytest.raises(UserInputError, match="a comma separates") as error:
        parse_batch_sizes("1,000,000")
    assert "--batch-size 1000000" in error.value.hint


def test_more_samples_than_a_batch_has_are_refused():
    with pytest.raises(UserInputError, match="more than 1,000,000,000 samples"):
        parse_batch_sizes("4B")
    assert parse_batch_sizes("4B tokens") == (Amount(number=4e9, is_tokens=True),)


@pytest.mark.parametrize(
    ("text", "names", "prices"),
    [
        (None, ["h100"], {}),
        ("2.5", ["h100"], {"h100": 2.5}),
        ("h100=2.5, a100=1.6", ["h100", "a100"], {"h100": 2.5, "a100": 1.6}),
        ("a100=1.6", ["h100", "a100"], {"a100": 1.6}),
    ],
)
def test_prices_belong_to_devices_that_are_named(text, names, prices):
    assert parse_prices(text, names) == prices


@pytest.mark.parametrize("text", ["2.5", "l40s=1", "h100=", "h100=x", "h100=-1", "h100=nan", "h100=0"])
def test_a_price_of_no_device_or_of_no_amount_is_refused_with_an_example(text):
    with pytest.raises(UserInputError, match="--price-per-device-hour") as error:
        parse_prices(text, ["h100", "a100"])
    assert "h100=2.5" in error.value.hint
