"""The protocol of a whole training step: where it is written, and the example that follows it."""

from __future__ import annotations

import torch

from bexplore.config.load import load_config
from bexplore.config.training_step import methods
from bexplore.workloads import build
from bexplore.workloads.workload import find_unfused, name_optimizers
from tests.builders import ROOT

CONFIGS = ROOT / "configs"


def test_the_methods_are_written_as_one_would_write_them():
    assert methods(is_training=True) == {
        "make_batch": "def make_batch(self, micro_batch_size: int) -> Any",
        "forward_backward": "def forward_backward(self, batch: Any) -> torch.Tensor",
        "update": "def update(self) -> None",
    }
    assert set(methods(is_training=False)) == {"make_batch", "evaluate"}


def test_the_example_of_a_step_trains_what_is_not_frozen():
    workload = build(load_config(CONFIGS / "own_step.yaml").on_device("cpu").job)
    before = [[parameter.clone() for parameter in module.parameters()] for module in workload.compiled_modules]

    workload.forward_backward(workload.make_batch(4))
    workload.update()

    moved = [
        any((old != new).any() for old, new in zip(olds, module.parameters(), strict=True))
        for olds, module in zip(before, workload.compiled_modules, strict=True)
    ]
    assert moved == [False, True, True]


def test_optimizers_that_could_be_fused_are_those_that_can_and_are_not():
    weights = [torch.nn.Parameter(torch.zeros(1))]
    made = [torch.optim.Adam(weights), torch.optim.SGD(weights, fused=True), torch.optim.Rprop(weights)]

    class Lion(torch.optim.Optimizer):
        def step(self) -> None: ...

    assert name_optimizers(find_unfused(made)) == ["torch.optim.Adam"]
    assert name_optimizers([*made, Lion(weights, {})])[-1].endswith("Lion")
