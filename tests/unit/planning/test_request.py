from __future__ import annotations

import pytest

from bexplore.errors import UserInputError
from bexplore.planning.plan import make_plans
from bexplore.planning.request import Amount, PlanRequest, Work
from tests.unit.planning.builders import traced


def test_amounts_that_say_the_same_cannot_be_mixed():
    with pytest.raises(UserInputError, match="`tokens` and `steps`"):
        Work(tokens=1e9, steps=100)


@pytest.mark.parametrize("fields", [{"epochs": 2.0}, {"dataset_size": 100}])
def test_epochs_and_the_size_of_the_data_set_belong_together(fields):
    with pytest.raises(UserInputError, match="needs"):
        Work(**fields)


def test_the_last_batch_of_an_epoch_counts_whole():
    assert Work(epochs=3, dataset_size=100).num_steps(64, None) == 6


def test_tokens_are_samples_times_their_mean_length():
    assert Work(tokens=1e6).num_steps(10, 1000.0) == 100
    with pytest.raises(UserInputError, match="no sequence length") as error:
        Work(tokens=1e6).num_steps(10, None)
    assert error.value.hint == "type `samples=1.2e6`"


@pytest.mark.parametrize(
    ("field", "hint"),
    [("batch_sizes", "type `batch_sizes=512`"), ("rate", "type `rate=31.5 samples/s`")],
)
def test_a_job_without_tokens_is_told_how_the_same_is_given_in_samples(field: str, hint: str):
    with pytest.raises(UserInputError) as error:
        Amount(number=4e6, is_tokens=True).in_samples(None, field)
    assert error.value.hint == hint


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": -1},
        {"tokens": float("nan")},
        {"samples": 0},
        {"steps": 1.5},
        {"steps": True},
        {"epochs": float("inf"), "dataset_size": 10},
        {"epochs": 1e300, "dataset_size": 10},
        {"epochs": 1, "dataset_size": 0},
        {"tokens": "1B"},
    ],
)
def test_an_impossible_amount_of_training_is_refused(fields):
    with pytest.raises(UserInputError, match="must be") as error:
        Work(**fields)
    assert error.value.hint.startswith("type `")


@pytest.mark.parametrize(
    "fields",
    [
        {"mfu": 1.2},
        {"mfu": 0},
        {"hfu": float("nan")},
        {"overlap": -0.1},
        {"overlap": float("nan")},
        {"effective_time": 0},
        {"effective_time": float("nan")},
        {"price_per_device_hour": float("inf")},
        {"pipeline_stages": 0},
        {"pipeline_stages": 10**20},
        {"tensor_parallel_degree": 2.5},
        {"until_s": -1.0},
        {"rate": Amount(number=0.0)},
        {"batch_sizes": (Amount(number=1.5),)},
        {"batch_sizes": (Amount(number=-4.0, is_tokens=True),)},
    ],
)
def test_an_impossible_wish_is_refused_from_python_too(fields):
    with pytest.raises(UserInputError, match="must be") as error:
        PlanRequest(**fields)
    assert error.value.hint.startswith("type `")


def test_no_overlap_at_all_is_possible():
    assert PlanRequest(overlap=0.0).overlap == 0.0


@pytest.mark.parametrize(("tokens_per_sample", "shown"), [(1000.0, "24000 tokens/s"), (None, "31.5 samples/s")])
def test_a_hint_counts_what_the_samples_of_the_job_have(tokens_per_sample, shown):
    with pytest.raises(UserInputError, match="no seconds") as error:
        make_plans(traced(tokens_per_sample=tokens_per_sample), PlanRequest(), None)
    assert f"`rate={shown}`" in error.value.hint
