"""Pairs of compiled and eager passes: what they may cost, whatever a pass is made of."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.messages import CompareEager
from bexplore.engine.worker.steps import BatchMix
from bexplore.engine.worker.timing import time_pairs

PASS_S = 0.05


class StepsOfOneSpeed:
    """Steps whose passes take as long whatever their length, and that count what they spent."""

    def __init__(self) -> None:
        self.spent_s, self._number = 0.0, 0

    def time_pass(self, batch: object, num_passes: int = 1) -> float:
        self.spent_s += num_passes * PASS_S * BatchMix.num_batches(batch)
        self._number += 1
        return PASS_S * (1.3 if self._number % 2 else 0.7)  # so noisy that the pairs never suffice


@pytest.mark.parametrize("num_lengths", [1, 4])
def test_pairs_over_several_lengths_spend_their_budget_once(num_lengths):
    steps = StepsOfOneSpeed()
    batch = BatchMix(tuple(range(num_lengths)), (1 / num_lengths,) * num_lengths)
    request = CompareEager(micro_batch_size=1, budget_s=4.0, tolerance=0.001)

    time_pairs(steps, batch, request, usual_pass_s=PASS_S, is_warm=True, report=lambda: None)

    assert 0.7 * request.budget_s < steps.spent_s < 1.5 * request.budget_s
