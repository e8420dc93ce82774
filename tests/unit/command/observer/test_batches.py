"""The samples of a batch, which batches are the training's, and what its evaluations take."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bexplore.command.observer.bexplore_observer.batches import (
    Fetches,
    count_evaluation_seconds,
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
    assert read_leading_dimension([tensor(*shape) for shape in shapes], 16) == expected


def test_of_two_leading_dimensions_as_usual_that_of_the_size_counts(tensor):
    questions_and_answers = [tensor(4, 16), tensor(4, 16), tensor(8, 64), tensor(8, 64)]

    assert [read_leading_dimension(questions_and_answers, size) for size in (4, 8, 2)] == [4, 8, 8]
    assert read_leading_dimension([*questions_and_answers, tensor(8)], 4) == 8


def test_equal_batches_have_equal_digests(tensor):
    assert digest([tensor(4, 2)], "strided") == digest([tensor(4, 2)], "strided")
    assert digest([tensor(4, 2)], "strided") != digest([tensor(4, 3)], "strided")


def read(fetches: Fetches, key: tuple[int, bool], step: int, num_passes: int, rows: int = 4) -> None:
    if fetches.reading != key:
        fetches.turn_to(key, num_passes)
    account = fetches.sets.get(key) or fetches.begin(key)
    account.micro_batches.extend((step, rows, 10 * rows, 5 * rows))


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


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param([4], [4], {4: 8}, id="samples of another domain"),
        pytest.param([4], [28], {4: 8}, id="samples without labels"),
        pytest.param([4], [2, 2, 2], {4: 8}, id="pieces of noise"),
        pytest.param([28], [4], {4: 8}, id="the size is read last"),
        pytest.param([3], [1], {4: 8}, id="parts of a batch"),
        pytest.param([3, 3], [1, 1], {4: 16}, id="parts of two micro-batches"),
        pytest.param([30], [20], {50: 8}, id="packed"),
    ],
)
def test_of_data_sets_read_for_one_pass_those_of_the_size_count(before, after, expected):
    fetches = Fetches(lambda: 4)
    for step in range(8):
        for key, of_set in ((TRAINING, before), (EVALUATION, after)):
            for rows in of_set:
                read(fetches, key, step, num_passes=step, rows=rows)
    fetches.turn_to(None, 8)

    assert fetches.count_rows() == expected and fetches.count() == sum(expected.values())
    assert fetches.count_together() == {before[0] + after[0]: 8} or len(after) > 1
    assert fetches.find_evaluations() == []
    steps: list[dict] = [{} for _ in range(8)]
    fetches.add_to(steps)
    rows = sum(count * one for one, count in expected.items())
    assert sum(step["num_samples"] for step in steps) == rows


@pytest.mark.parametrize("passes_of_each", [True, False])
def test_data_sets_with_passes_of_their_own_all_count(passes_of_each):
    fetches = Fetches(lambda: 4)
    for step in range(8):
        read(fetches, TRAINING, step, num_passes=2 * step)
        read(fetches, EVALUATION, step, num_passes=2 * step + passes_of_each)
    fetches.turn_to(None, 16)

    assert fetches.count_rows() == {4: 16}


def test_a_data_set_always_read_without_gradients_is_an_evaluations():
    fetches = Fetches()
    for step in range(8):
        read(fetches, TRAINING, step, num_passes=step)
        read(fetches, EVALUATION, step, num_passes=step + 1)
        fetches.turn.is_off = True
    fetches.turn_to(None, 8)

    assert fetches.count_rows() == {4: 8}


STEP_S, NUM_STEPS = 0.1, 24
AFTER_UPDATE, AFTER_READING = 0.01, 0.04  # seconds after the update before, of a step that reads its batch in between


def find_seconds(off_s: dict[int, list[float]], at_s: float, *, reads: bool = True) -> list[float]:
    """Return the seconds that are found in each step.

    Args:
        off_s: Step -> times without gradients in it, one after the other.
        at_s: Seconds after the update before at which they begin.
        reads: Whether steps read their batches between two passes.
    """
    ended_s, fetched_s, off, now_s = [], [], [], 0.0
    for step in range(NUM_STEPS):
        times_s = off_s.get(step, [])
        began_s = now_s + at_s
        for seconds in times_s:
            off.append((began_s, began_s + seconds))
            began_s += 1.001 * seconds
        added_s = 1.001 * sum(times_s)
        fetched_s.append(now_s + 0.02 + (added_s if at_s == AFTER_UPDATE else 0.0) if reads else 0.0)
        now_s += STEP_S + added_s
        ended_s.append(now_s)
    return count_evaluation_seconds(ended_s, fetched_s[1:], off, [])


def every(number: int, times_s: list[float]) -> dict[int, list[float]]:
    return {step: times_s for step in range(number, NUM_STEPS, number)}


@pytest.mark.parametrize("times_s", [[65.0], [0.05] * 100], ids=["at once", "in many short times"])
@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_an_evaluation_is_found_however_few_steps_an_epoch_has(number, times_s):
    off_s = every(number, times_s)

    seconds = find_seconds(off_s, AFTER_UPDATE)

    assert seconds == [pytest.approx(sum(off_s.get(step, []))) for step in range(NUM_STEPS)]


@pytest.mark.parametrize("times_s", [[65.0], [0.05] * 100], ids=["at once", "in many short times"])
def test_without_a_loader_what_most_steps_do_not_have_is_an_evaluation(times_s):
    off_s = every(3, times_s)

    assert [second > 0.0 for second in find_seconds(off_s, AFTER_UPDATE, reads=False)] == [
        s in off_s for s in range(NUM_STEPS)
    ]


def test_what_each_step_does_without_gradients_is_of_it():
    assert find_seconds(every(1, [0.02] * 4), AFTER_UPDATE) == [0.0] * NUM_STEPS  # an average of the weights
    assert find_seconds(every(1, [0.02] * 4), AFTER_READING) == [0.0] * NUM_STEPS  # metrics
    assert find_seconds(every(1, [10.0]), AFTER_READING) == [0.0] * NUM_STEPS  # text that it generates from its batch
