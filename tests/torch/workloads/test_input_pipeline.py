"""The figure of the user's data loader, in process."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.errors import UserInputError
from bexplore.workloads import input_pipeline
from bexplore.workloads.input_pipeline import time_loader
from tests.builders import imported_job


def job(loader: str, **arguments):
    made = imported_job()
    return dataclasses.replace(made, model=made.model | {"loader": f"loaders:{loader}", "arguments": arguments})


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(input_pipeline, "TIMED_S", 0.2)


def test_a_loader_gives_what_its_slowest_part_allows(short):
    speed = time_loader(job("slow"), 2)

    assert speed.num_workers == 0
    assert 20 < speed.samples_per_s <= 100  # a hundredth of a second a sample at least
    assert speed.num_batches >= 3


def test_the_loaders_own_workers_work_and_their_start_is_not_counted(short):
    speed = time_loader(job("slow", num_workers=2), 2)

    assert speed.num_workers == 2
    assert 20 < speed.samples_per_s <= 200
    assert speed.first_batch_s > 0


def test_any_iterable_of_batches_is_a_loader(short):
    speed = time_loader(job("quick"), 2)

    assert speed.num_workers is None
    assert speed.samples_per_s > 1000


@pytest.mark.parametrize(("loader", "said"), [("too_small", "gave no batch"), ("no_loader", "not an iterable")])
def test_what_is_no_loader_is_refused(loader, said):
    with pytest.raises(UserInputError, match=said):
        time_loader(job(loader), 4)
