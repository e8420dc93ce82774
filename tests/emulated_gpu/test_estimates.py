"""Speeds of trainings on an emulated device: estimated by the kernels that an unmodified step is seen to run."""

from __future__ import annotations

import json

import pytest

TRAIN = """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int)
parser.add_argument("--accumulation", type=int)
parser.add_argument("--out")
parser.add_argument("--mode", default="eager")
parser.add_argument("--batches", type=int, default=16)
parser.add_argument("--evaluates", action="store_true")
own = parser.parse_args()
layers = (nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), nn.LayerNorm(1024))
model = nn.Sequential(*layers).cuda()
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
sample = torch.randn(own.size, 256, 1024)
if own.mode == "captured":
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        model = torch.cuda.make_graphed_callables(model, (sample.cuda().requires_grad_(),))
elif own.mode != "eager":
    model = torch.compile(model, mode=own.mode)
optimizer = torch.optim.AdamW([p for one in layers for p in one.parameters()], lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(own.batches * own.size, 256, 1024))
tests = torch.utils.data.TensorDataset(torch.randn(8 * own.size, 256, 1024))
for _ in range(1000):
    with torch.no_grad():
        for (batch,) in torch.utils.data.DataLoader(tests, own.size) if own.evaluates else ():
            model(batch.cuda())
    for number, (batch,) in enumerate(torch.utils.data.DataLoader(data, own.size)):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=own.mode != "captured"):
            loss = model(batch.cuda().requires_grad_()).float().square().mean()
        loss.backward()
        if (number + 1) % own.accumulation:
            continue
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""
COMMAND = ("--size", "{micro_batch_size}", "--accumulation", "{accumulation}", "--out", "{output_dir}")


SIZE = 16
# Six products of a pass, of 16 x 256 rows, on tensor cores that are never idle; seconds.
LEAST_S = 6 * 2 * SIZE * 256 * 1024 * 4096 / 989e12


@pytest.fixture
def explore(bexplore, tmp_path):
    """Explore one size of the training on an H100, in a mode; returns the events."""
    (tmp_path / "train.py").write_text(TRAIN)

    def run(mode: str, *words: str) -> list[dict]:
        settings = ("--set", f"explore.candidates=[{SIZE}]", "--model-dir", "-".join((mode, *words)), "--json")
        command = ("python3", "train.py", *COMMAND, "--mode", mode, *words)
        lines = bexplore("explore", "--device-name", "h100", *settings, "--", *command).splitlines()
        return [json.loads(line) for line in lines]

    return run


def test_a_command_has_an_estimated_speed_and_its_result_says_that_nothing_ran(explore):
    events = explore("eager")

    result = events[-1]
    assert any(event["event"] == "recommendation" for event in events)
    assert [event["outcome"] for event in events if event["event"] == "probe"] == ["estimated"]
    assert result["device_info"]["is_estimated"] and not result["device_info"]["is_emulated"]
    assert "estimated for NVIDIA H100 80GB HBM3, not run" in " ".join(result["warnings"])
    assert LEAST_S < result["pass_time_s"] < 10 * LEAST_S
    assert result["update_time_s"] > 8_400_000 * 4 * 4 / 3.35e12  # weights, gradients and two states, read once


@pytest.mark.parametrize("batches", ["2", "4", "16"])
def test_an_evaluation_is_of_no_pass(explore, batches):
    alone, beside = (explore("eager", "--batches", batches, *words)[-1] for words in ((), ("--evaluates",)))

    assert beside["pass_time_s"] == pytest.approx(alone["pass_time_s"], rel=0.1)


def test_graphs_have_the_kernels_of_their_capture_and_compiled_ones_move_fewer_bytes(explore):
    modes = ("eager", "captured", "default", "reduce-overhead")
    results = {mode: explore(mode)[-1] for mode in modes}
    device_s = {mode: _device_s(result) for mode, result in results.items()}

    assert device_s["captured"] == pytest.approx(device_s["eager"], rel=0.1)
    assert LEAST_S < device_s["default"] < device_s["eager"]
    assert device_s["reduce-overhead"] == pytest.approx(device_s["default"], rel=0.1)
    for recorded, usual in (("captured", "eager"), ("reduce-overhead", "default")):
        assert results[recorded]["pass_time_s"] < results[usual]["pass_time_s"]  # a recorded graph waits for no host


def _device_s(result: dict) -> float:
    """Seconds of a pass in which the device works."""
    return result["pass_time_s"] * (1.0 - result["estimate"]["shares"][str(SIZE)]["host"])
