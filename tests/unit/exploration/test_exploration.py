"""What an exploration compiles ahead of its first probe."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.exploration.exploration import EngineExploration
from bexplore.exploration.memory_budget import MemoryBudget
from bexplore.exploration.resumable import ExploreOptions
from bexplore.job import TorchSettings
from bexplore.trace.cost_model import CostModel
from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Peak, Phase

GIB = 2**30
BUDGET = MemoryBudget(budget_bytes=64 * GIB, reserve_bytes=0, why="")
ONE_GIB_A_SAMPLE = CostModel(
    fingerprint="",
    num_parameters=1,
    model_flops=Polynomial(0, 1),
    hardware_flops=Polynomial(0, 1),
    bytes_moved=Polynomial(0, 1),
    resident=(),
    peaks={Phase.FORWARD: (Peak(size=Polynomial(0, GIB), buffers=()),)},
    relative_sd=0.02,
    trace_s=0.0,
    device="cuda",
    compiler="",
)


def config(tmp_path: Path, device: str, compile_mode: str = "default") -> Config:
    path = tmp_path / "job.yaml"
    path.write_text(
        "train_input: {micro_batch_size: explore, batch_size: 8}\n"
        f"explore:\n  device: {device}\n  compile: {{mode: {compile_mode}}}\n  torch: {{cudnn_benchmark: true}}\n"
        "  workload: {model: programs:perceptron, batch: programs:samples, loss: programs:cross_entropy}\n"
    )
    return load_config(path)


@pytest.mark.parametrize(
    ("device", "compile_mode", "cost_model", "size"),
    [
        ("cuda:0", "default", ONE_GIB_A_SAMPLE, 7),  # between 1 and the 60 that fit by three standard deviations
        ("cuda:0", "default", dataclasses.replace(ONE_GIB_A_SAMPLE, relative_sd=1.0), 4),
        ("cuda:0", "default", None, 1),
        ("cuda:0", "reduce-overhead", ONE_GIB_A_SAMPLE, 1),  # each size has a worker of its own
        ("cpu", "default", ONE_GIB_A_SAMPLE, 1),
    ],
)
def test_kernels_that_are_tuned_at_their_first_launch_meet_a_middle_size(
    tmp_path, device, compile_mode, cost_model, size
):
    exploration = EngineExploration(config(tmp_path, device, compile_mode), ExploreOptions())

    assert exploration._probe_to_prepare(cost_model, BUDGET).micro_batch_size == size
    assert exploration._first_probe(cost_model, BUDGET).micro_batch_size == 1


def test_settings_of_torch_reach_the_job(tmp_path):
    assert config(tmp_path, "cpu").job.torch == TorchSettings(cudnn_benchmark=True)
