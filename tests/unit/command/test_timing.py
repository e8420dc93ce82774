"""The seconds of a pass and of an update, from observed steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate

import pytest

from bexplore.command.reports import Rank, Step
from bexplore.command.timing import micro_batches_per_pass, timing_of


def steps(passes: Sequence[int], fetches: Sequence[int]) -> list[Step]:
    """Steps of a second each with so many passes and fetches."""
    ends = accumulate([1.0] * len(passes))
    return [
        Step(
            ended_s=end,
            num_passes=num_passes,
            num_fetches=num_fetches,
            num_samples=8 * num_fetches,
            num_elements=64 * num_fetches,
            num_updates=1,
            update_s=0.1,
        )
        for end, num_passes, num_fetches in zip(ends, passes, fetches, strict=True)
    ]


@pytest.mark.parametrize(
    ("passes", "fetches", "per_step"),
    [
        ([2, 2, 2, 2], [2, 2, 2, 2], 2),  # accumulation
        ([2, 2, 2, 2], [3, 1, 3, 1], 2),  # a loader that reads ahead
        ([1, 1, 2, 1], [1, 1, 2, 1], 1),  # a gradient scaler that skipped an update
        ([3, 3, 3, 3], [1, 1, 1, 1], 1),  # adversarial training
        ([4, 3, 3, 4], [1, 1, 1, 1], 1),  # closures, called again until the optimizer is content
        ([2, 1, 2, 2], [1, 1, 1, 1], 1),
        ([1, 1, 1, 1], [0, 0, 0, 0], 1),  # no loader
    ],
)
def test_a_step_has_as_many_micro_batches_as_its_loader_returned(passes, fetches, per_step):
    observed = steps(passes, fetches)
    usual = statistics.median(passes)
    assert usual * micro_batches_per_pass(observed) == pytest.approx(per_step)


def rank(observed: list[Step]) -> Rank:
    """A rank that did these steps."""
    return Rank(
        outcome="observed",
        rank=0,
        world_size=1,
        steps=tuple(observed),
        rows={},
        forward_rows=(),
        digests=(),
        memory={},
        record={},
    )


def test_a_batch_that_a_pipeline_divides_is_one_micro_batch_for_each_pass():
    observed = rank(steps([2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0]))
    timing = timing_of(observed, num_warmup=2, micro_batch_size=4)
    assert timing is not None
    assert timing.micro_batches_per_step == 2
    assert timing.pass_times_s == pytest.approx((0.45,) * 4)


def test_a_batch_with_two_losses_is_one_micro_batch():
    timing = timing_of(rank(steps([2] * 6, [1] * 6)), num_warmup=2, micro_batch_size=8)
    assert timing is not None
    assert timing.micro_batches_per_step == 1
