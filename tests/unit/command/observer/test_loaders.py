"""What loaders return: lists of samples that are cut to a size, batches that are dropped, epochs without any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bexplore.command.observer.bexplore_observer import loaders
from bexplore.command.observer.bexplore_observer.loaders import IndexLists


class LoaderIterator:
    """What the observer needs of a loader's iterator: the command's lists of sixteen samples, and shorter last ones."""

    def __init__(self, num_samples: int, length: int = 16) -> None:
        numbers = list(range(num_samples))
        self._sampler_iter: Iterator = iter([numbers[at : at + length] for at in range(0, num_samples, length)])


def next_index(iterator: LoaderIterator):
    return next(iterator._sampler_iter)


def lists_of(size: int, longest: int | None = 16) -> IndexLists:
    lists = IndexLists()
    lists.begin(size, longest)
    return lists


def all_of(lists: IndexLists, iterator: LoaderIterator) -> list:
    found = []
    with pytest.raises(StopIteration):
        while True:
            found.append(lists.take_next(iterator, next_index))
    return found


def test_without_a_capacity_the_lists_are_those_of_the_command():
    assert all_of(lists_of(4, None), LoaderIterator(20)) == [list(range(16)), [16, 17, 18, 19]]


def test_an_epoch_of_cut_lists_keeps_its_samples():
    samples = [sample for one in all_of(lists_of(4), LoaderIterator(34)) for sample in one]

    assert samples == list(range(34))


def test_every_list_has_the_size_but_the_last_of_an_epoch():
    lengths = [len(one) for one in all_of(lists_of(6), LoaderIterator(35))]

    assert lengths == [6, 6, 6, 6, 3]  # four samples of each list of sixteen make no batch


def test_longer_lists_and_single_indices_are_not_cut():
    lists = lists_of(4)

    assert all_of(lists, LoaderIterator(40, length=20)) == [list(range(20)), list(range(20, 40))]
    single = LoaderIterator(0)
    single._sampler_iter = iter([7])
    assert lists.take_next(single, next_index) == 7
    assert lists.num_cut == 0


def with_longest(num_samples: int, **settings) -> tuple[IndexLists, LoaderIterator]:
    lists, iterator = lists_of(4, None), LoaderIterator(num_samples, length=4)
    iterator._index_sampler = SimpleNamespace(sampler=range(num_samples))
    lists.sample_lengths = list(range(100, 140))
    lists.put_longest({"memory_step": 1, "longest_samples": [30, 20, 10]} | settings)
    return lists, iterator


@pytest.mark.parametrize(("accumulation", "places"), [(1, [1]), (2, [2, 3])])
def test_the_step_whose_memory_is_read_has_the_longest_samples(accumulation, places):
    lists, iterator = with_longest(40, accumulation=accumulation)
    taken = all_of(lists, iterator)

    assert [place for place, one in enumerate(taken) if one == [30, 20, 10, 30]] == places
    assert len(taken) == 10
    assert (lists.num_of_longest, lists.awaits_longest) == (len(places), False)


@pytest.mark.parametrize(("num_samples", "num_ranks", "is_of_data"), [(40, 1, True), (12, 1, False), (20, 2, True)])
def test_only_data_of_as_many_samples_is_given_its_longest(monkeypatch, num_samples, num_ranks, is_of_data):
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    lists, iterator = with_longest(num_samples)
    all_of(lists, iterator)

    assert lists.num_of_longest == is_of_data


def test_a_list_tells_the_tokens_of_its_samples_of_a_sampler_of_the_users_own_too():
    lists, iterator = with_longest(40)
    iterator._index_sampler, iterator._dataset = SimpleNamespace(), range(40)
    all_of(lists, iterator)
    tokens = []
    for _ in range(3):
        lists.is_stale(iterator)
        tokens.append(lists.num_tokens)

    assert tokens == [100 + 101 + 102 + 103, 130 + 120 + 110 + 130, 108 + 109 + 110 + 111]


def test_batches_that_were_loaded_ahead_are_stale_once_the_size_changes():
    lists, iterator = lists_of(4), LoaderIterator(64)
    for _ in range(3):
        lists.take_next(iterator, next_index)
    assert not lists.is_stale(iterator)

    lists.begin(8, 16)
    lists.take_next(iterator, next_index)

    assert [lists.is_stale(iterator) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("longest", [16, None])
def test_the_list_of_a_batch_tells_its_length_and_its_epochs_samples(longest):
    lists, iterator = lists_of(16, longest), LoaderIterator(20)
    iterator._index_sampler = SimpleNamespace(sampler=range(20))
    all_of(lists, iterator)

    lengths = []
    for _ in range(2):
        assert not lists.is_stale(iterator)
        lengths.append(lists.length)

    assert lengths == [16, 4]
    assert lists.num_samples == 20


def test_an_epoch_of_persistent_workers_begins_without_a_rest():
    lists, iterator = lists_of(4), LoaderIterator(16)
    lists.take_next(iterator, next_index)
    iterator._sampler_iter = LoaderIterator(16)._sampler_iter

    assert lists.take_next(iterator, next_index) == [0, 1, 2, 3]
    assert not lists.is_stale(iterator)


def test_the_longest_list_is_that_of_the_whole_start():
    lists, iterator = lists_of(8), LoaderIterator(32)
    lists.take_next(iterator, next_index)

    lists.begin(2, 16)
    lists.take_next(iterator, next_index)

    assert lists.longest_cut == 16


def test_epochs_without_a_batch_end_the_wait_for_one(observe, read_record, monkeypatch):
    observer, now_s = observe(), iter(range(1, 100, 2))
    monkeypatch.setattr(loaders, "clock", lambda: next(now_s))

    for _ in range(loaders.EMPTY_EPOCHS):
        observer.loaders.note_end_of_epoch(Epoch(num_yielded=0))

    assert read_record()["outcome"] == "no_batch"


@pytest.mark.parametrize(
    ("refusals", "is_evaluation", "is_told"),
    [
        pytest.param([0, 1, 2], False, True, id="of one batch after the other"),
        pytest.param([1, 1, 1], False, False, id="of one, as of a compiler that tries kernels"),
        pytest.param([0, 0, 0], False, False, id="of none"),
        pytest.param([0, 1, 2], True, False, id="in an evaluation"),
    ],
)
def test_memory_that_is_refused_without_a_pass_is_told(observe, fake_torch, settings, refusals, is_evaluation, is_told):
    observer, found = observe(), iter(refusals)
    fake_torch.cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_allocated=lambda index: 1,
        memory_stats=lambda index: {"num_ooms": next(found)},
    )

    for _ in range(4):
        observer.loaders.note_use((1, True, 0))
        observer.loaders.fetches.is_off = is_evaluation

    told = [json.loads(path.read_text()) for path in Path(settings["reports"]).glob("error-*.json")]
    assert [one["chain"][0]["type"] for one in told] == ["MemoryError"] * is_told


class Epoch:
    """What is asked of a loader's iterator."""

    def __init__(self, num_yielded: int) -> None:
        self._num_yielded = num_yielded
