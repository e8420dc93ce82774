"""Evaluations that the observer finds in steps by the times without gradients, and those of checkpoints."""

from __future__ import annotations

import pytest

from bexplore.command.observer.bexplore_observer.batches import count_evaluation_seconds

STEP_S, NUM_STEPS = 0.1, 24
AFTER_UPDATE, AFTER_READING = 0.01, 0.04  # seconds after the update before, of a step that reads its batch in between


def found(off_s: dict[int, list[float]], at_s: float, *, reads: bool = True) -> list[float]:
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

    seconds = found(off_s, AFTER_UPDATE)

    assert seconds == [pytest.approx(sum(off_s.get(step, []))) for step in range(NUM_STEPS)]


@pytest.mark.parametrize("times_s", [[65.0], [0.05] * 100], ids=["at once", "in many short times"])
def test_without_a_loader_what_most_steps_do_not_have_is_an_evaluation(times_s):
    off_s = every(3, times_s)

    assert [second > 0.0 for second in found(off_s, AFTER_UPDATE, reads=False)] == [
        s in off_s for s in range(NUM_STEPS)
    ]


def test_what_each_step_does_without_gradients_is_of_it():
    assert found(every(1, [0.02] * 4), AFTER_UPDATE) == [0.0] * NUM_STEPS  # an average of the weights
    assert found(every(1, [0.02] * 4), AFTER_READING) == [0.0] * NUM_STEPS  # metrics
    assert found(every(1, [10.0]), AFTER_READING) == [0.0] * NUM_STEPS  # text that it generates from its batch
