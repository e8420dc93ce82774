from __future__ import annotations

import pytest

from bexplore.errors import UserInputError
from bexplore.planning.request import Amount, Devices, Work, parse_batch_sizes, parse_devices, parse_rate


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


def test_amounts_that_say_the_same_cannot_be_mixed():
    with pytest.raises(UserInputError, match="--tokens and --steps"):
        Work(tokens=1e9, steps=100)


@pytest.mark.parametrize("fields", [{"epochs": 2.0}, {"dataset_size": 100}])
def test_epochs_and_the_size_of_the_data_set_belong_together(fields):
    with pytest.raises(UserInputError, match="needs"):
        Work(**fields)


def test_the_last_batch_of_an_epoch_counts_whole():
    assert Work(epochs=3, dataset_size=100).num_steps(64, None) == 6


def test_tokens_are_samples_times_their_mean_length():
    assert Work(tokens=1e6).num_steps(10, 1000.0) == 100
    with pytest.raises(UserInputError, match="no sequence length"):
        Work(tokens=1e6).num_steps(10, None)
