"""The figure of the user's data loader, in process."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from bexplore.errors import UserInputError
from bexplore.workloads import loader
from bexplore.workloads.loader import time_loader
from tests.builders import imported_job


def job(loader: str, **arguments):
    made = imported_job()
    return dataclasses.replace(made, model=made.model | {"loader": f"loaders:{loader}", "arguments": arguments})


@pytest.fixture
def clock(monkeypatch):
    """Lets a batch arrive at each of these intervals, s: the first of them first, the last of them for ever."""

    def install(*intervals_s: float) -> None:
        waits = itertools.chain([0.0], intervals_s, itertools.repeat(intervals_s[-1]))
        arrivals = itertools.accumulate(waits)
        monkeypatch.setattr(loader, "time", SimpleNamespace(perf_counter=lambda: next(arrivals)))

    return install


def test_a_loader_gives_what_its_slowest_part_allows(clock):
    clock(0.02)

    speed = time_loader(job("plain"), 2)

    assert speed.num_workers == 0
    assert speed.samples_per_s == pytest.approx(2 / 0.02)
    assert speed.elapsed_s > loader.TIMED_S
    assert speed.num_batches == round(speed.elapsed_s / 0.02)


def test_the_loaders_own_workers_work_and_their_start_is_not_counted(clock):
    clock(7.0, 0.0, 0.01)  # a batch of each worker comes with their start

    speed = time_loader(job("plain", num_workers=2), 2)

    assert speed.num_workers == 2
    assert speed.samples_per_s == pytest.approx(2 / 0.01)
    assert speed.first_batch_s == 7.0


def test_any_iterable_of_batches_is_a_loader(clock):
    clock(0.5)

    speed = time_loader(job("quick"), 2)

    assert speed.num_workers is None
    assert speed.samples_per_s == pytest.approx(2 / 0.5)


def test_the_largest_batch_of_a_small_data_set_is_known(clock):
    clock(0.5)

    assert time_loader(job("plain"), 100).largest_batch == 64


def test_a_loader_that_is_slower_than_the_limit_is_not_waited_for(clock):
    clock(loader.LONGEST_S)

    assert time_loader(job("quick"), 2).num_batches == 1


@pytest.mark.parametrize(("loader", "said"), [("too_small", "gave no batch"), ("no_loader", "not an iterable")])
def test_what_is_no_loader_is_refused(loader, said):
    with pytest.raises(UserInputError, match=said):
        time_loader(job(loader), 4)
