"""The samples of a batch, and which batches are the training's."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bexplore.command.observer.bexplore_observer.batches import (
    Fetches,
    digest,
    find_tensors,
    read_leading_dimension,
)

TRAINING, EVALUATION = (1, True), (2, True)


@dataclass
class Batch:
    features: Any
    name: str = "x"


def test_tensors_are_found_in_containers_data_classes_and_other_objects(tensor):
    one, two = tensor(4, 2), tensor(4)
    trees = [
        {"a": one, "b": ["x", (two, 3)]},
        Batch(features=[one, two]),
        SimpleNamespace(data={"a": one, "b": two}),
        SimpleNamespace(store=SimpleNamespace(nodes=one, edges={"a": two})),
    ]
    for tree in trees:
        assert find_tensors(tree, tensor) == [one, two]


def test_objects_that_hold_each_other_are_searched_once(tensor):
    graph = SimpleNamespace()
    graph.itself, graph.nodes = graph, tensor(3)
    assert find_tensors(graph, tensor) == [graph.nodes]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [([], None), ([()], None), ([(4, 2)], 4), ([(4, 2), (4,), (7, 9)], 4), ([(4, 2), (7, 9)], 7), ([(), (5,)], 5)],
)
def test_the_leading_dimension_is_that_of_most_tensors(tensor, shapes, expected):
    assert read_leading_dimension([tensor(*shape) for shape in shapes]) == expected


def test_equal_batches_have_equal_digests(tensor):
    assert digest([tensor(4, 2)], "strided") == digest([tensor(4, 2)], "strided")
    assert digest([tensor(4, 2)], "strided") != digest([tensor(4, 3)], "strided")


def read(fetches: Fetches, key: tuple[int, bool], step: int, num_passes: int, rows: int = 4) -> None:
    if fetches.reading != key:
        fetches.turn_to(key, num_passes)
    account = fetches.sets.get(key) or fetches.begin(key)
    account.micro_batches.extend((step, rows, 10 * rows))


def test_a_data_set_that_no_pass_follows_is_of_an_evaluation():
    fetches = Fetches()
    for step in range(8):
        read(fetches, TRAINING, step, num_passes=step)
        if step == 5:
            read(fetches, EVALUATION, step, num_passes=step + 1, rows=16)
    fetches.turn_to(None, 8)

    assert fetches.count_rows() == {4: 8} and fetches.count() == 8
    assert len(fetches.find_evaluations()) == 1
    steps: list[dict] = [{} for _ in range(8)]
    fetches.add_to(steps)
    assert {(step["num_fetches"], step["num_samples"], step["num_elements"]) for step in steps} == {(1, 4, 40)}


def test_of_several_data_sets_for_one_pass_each_is_of_the_training():
    fetches = Fetches()
    for step in range(8):
        read(fetches, TRAINING, step, num_passes=step)
        read(fetches, EVALUATION, step, num_passes=step)
    fetches.turn_to(None, 8)

    assert fetches.count_rows() == {4: 16}


def test_a_data_set_always_read_without_gradients_is_an_evaluations():
    fetches = Fetches()
    for step in range(8):
        read(fetches, TRAINING, step, num_passes=step)
        read(fetches, EVALUATION, step, num_passes=step + 1)
        fetches.turn.is_off = True
    fetches.turn_to(None, 8)

    assert fetches.count_rows() == {4: 8}
