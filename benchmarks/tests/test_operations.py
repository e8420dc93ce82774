"""The trace counts what a closed form of the configuration gives."""

from __future__ import annotations

import pytest

from benchmarks.operations import count
from bexplore.job import Mode


@pytest.mark.parametrize(
    "name", ["llama", "mixtral", "deepseek_v3", "bart", "vit", "mobilenet_v2", "efficientnet", "convnext"]
)
def test_operations_of_a_training_step_are_those_in_closed_form(name):
    traced, by_hand = count(name, Mode.TRAIN)
    assert traced == pytest.approx(by_hand, rel=1e-9)
