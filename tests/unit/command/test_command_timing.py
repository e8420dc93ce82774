"""Times of steps that hold evaluations, and of batches that were read ahead at another size."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.command.reports import Rank
from bexplore.command.timing import find_own_step, share_evaluations, time_rank
from tests.unit.command.test_command_verdicts import rank, step


def evaluating(seconds: float, evaluation_s: dict[int, float], *, tells: bool = True) -> Rank:
    """Return a rank with eight steps, some of which hold evaluations; it may not tell of them, as one that waits."""
    ended_s, steps = 0.0, []
    for index in range(8):
        ended_s += seconds + evaluation_s.get(index, 0.0)
        told_s = evaluation_s.get(index, 0.0) if tells else 0.0
        steps.append(dataclasses.replace(step(ended_s), evaluation_s=0.99 * told_s))
    return dataclasses.replace(rank(), steps=tuple(steps))


def test_a_step_with_an_evaluation_counts_as_the_usual_one():
    timing = time_rank(evaluating(0.1, {5: 65.0}), num_warmup=1, micro_batch_size=4)

    assert timing.step_times_s == pytest.approx([0.1] * 7)


def test_where_most_steps_evaluate_the_seconds_are_taken_from_each():
    timing = time_rank(evaluating(0.1, dict.fromkeys(range(8), 10.0)), num_warmup=1, micro_batch_size=4)

    assert timing.step_times_s == pytest.approx([0.2] * 7)


def test_a_rank_that_waits_for_another_ones_evaluation_has_it_too():
    ranks = evaluating(0.1, {3: 65.0, 6: 65.0}), evaluating(0.1, {3: 65.0, 6: 65.0}, tells=False)

    for one in share_evaluations(ranks):
        assert time_rank(one, num_warmup=1, micro_batch_size=4).step_times_s == pytest.approx([0.1] * 7)


def test_passes_take_batches_in_the_order_in_which_they_were_read():
    ahead = dataclasses.replace(rank(), before={"num_fetches": 113, "num_passes": 100})

    assert find_own_step(ahead, 7) == 13
    assert find_own_step(rank(), 7) == 0


def test_the_calls_of_a_model_show_the_first_step_of_the_size():
    ahead = dataclasses.replace(
        rank(), before={"num_fetches": 113, "num_passes": 100}, own_from_step=5, awaits_own_batches=True
    )

    assert find_own_step(ahead, 7) == 5


def test_a_model_that_should_have_had_a_batch_of_the_size_shows_none():
    assert find_own_step(dataclasses.replace(rank(), awaits_own_batches=True), 7) is None


def with_fetches(num_fetches: int, *, num_passes: int, num_samples: int) -> Rank:
    steps = (step(0.1 * index, passes=num_passes) for index in range(1, 9))
    counts = {"num_fetches": num_fetches, "num_samples": num_samples}
    return dataclasses.replace(rank(), steps=tuple(dataclasses.replace(one, **counts) for one in steps))


@pytest.mark.parametrize(
    ("num_fetches", "num_passes", "num_samples", "per_step"),
    [
        pytest.param(2, 1, 8, 2, id="two batches of one pass"),
        pytest.param(1, 2, 4, 1, id="two losses of one batch"),
        pytest.param(1, 2, 8, 2, id="a batch that a schedule divides among two passes"),
    ],
)
def test_micro_batches_are_what_passes_take_of_the_loaders_batches(num_fetches, num_passes, num_samples, per_step):
    fetched = with_fetches(num_fetches, num_passes=num_passes, num_samples=num_samples)

    assert time_rank(fetched, num_warmup=1, micro_batch_size=4).micro_batches_per_step == per_step
