"""What timings of a size and pairs of compiled and eager passes may cost, whatever a pass is made of."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.messages import CompareEager
from bexplore.engine.worker.steps import BatchMix
from bexplore.engine.worker.timing import time_pairs, time_size
from bexplore.measurement.probe import Probe

PASS_S = 0.05


class StepsOfOneSpeed:
    """Steps whose batches take as long whatever their length, and that count what they spent."""

    waited_s = 0.0

    def __init__(self) -> None:
        self.spent_s, self._number = 0.0, 0

    def num_back_to_back(self, pass_s: float) -> int:
        return 1

    def loss(self) -> float:
        return 0.0

    def time_pass(self, batch: BatchMix, num_passes: int = 1) -> float:
        self.spent_s += num_passes * PASS_S * len(batch.batches)
        self._number += 1
        # so noisy that the timings never suffice
        return PASS_S * sum(batch.shares) * (0.8 + 0.7 * (self._number**2 % 101) / 101)


def mix_of(num_lengths: int, share: float) -> BatchMix:
    """Batches of as many lengths, of which a micro-batch has a share of the samples."""
    return BatchMix(tuple(range(num_lengths)), (share / num_lengths,) * num_lengths)


MIXES = [(1, 1.0), (4, 1.0), (4, 0.2)]  # the last as batches of a number of tokens are


@pytest.mark.parametrize(("num_lengths", "share"), MIXES)
def test_pairs_over_several_lengths_spend_their_budget_once(num_lengths, share):
    steps = StepsOfOneSpeed()
    request = CompareEager(micro_batch_size=1, budget_s=4.0, tolerance=0.001)

    time_pairs(
        steps, mix_of(num_lengths, share), request, usual_pass_s=share * PASS_S, is_warm=True, report=lambda: None
    )

    assert 0.7 * request.budget_s < steps.spent_s < 1.5 * request.budget_s


@pytest.mark.parametrize(("num_lengths", "share"), MIXES)
def test_a_size_with_batches_of_several_lengths_spends_its_budget_once(num_lengths, share):
    steps = StepsOfOneSpeed()
    probe = Probe(number=1, micro_batch_size=8, max_passes=200, tolerance=0.001)

    time_size(
        steps,
        {8: mix_of(num_lengths, share)},
        probe,
        usual_pass_s={8: share * PASS_S},
        budget_s=4.0,
        report=lambda **_: None,
    )

    assert 2.5 < steps.spent_s < 5.5
