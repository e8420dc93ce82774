"""Explorations on an emulated device: the output has what is true there, and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.builders import ROOT

EXPLORE = """
    import sys
    from pathlib import Path

    Path("programs.py").write_text((Path({root!r}) / "tests/jobs/programs.py").read_text())
    Path("job.yaml").write_text('''
    train_input: {{batch_size: 64, micro_batch_size: explore}}
    explore:
      device: cuda
      max: 32
      max_probes: 3
      compile: {compile}
      workload: {{model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"}}
    ''')
    from bexplore.cli import main
    if __name__ == "__main__":
        try:
            main(["explore", "job.yaml", "--json"])
        except SystemExit as end:
            assert not end.code, end.code
"""


@pytest.mark.parametrize("compile", ["false", "true"])
def test_a_job_is_explored_and_its_result_says_that_the_device_is_emulated(emulate, tmp_path, monkeypatch, compile):
    monkeypatch.chdir(tmp_path)
    events = [json.loads(line) for line in emulate(EXPLORE.format(root=str(ROOT), compile=compile))]

    kinds = {event["event"] for event in events}
    result = events[-1]
    assert "probe" in kinds and "recommendation" not in kinds
    assert result["device_info"]["is_emulated"] is True
    assert result["warnings"][0].startswith("NVIDIA H100 80GB HBM3 is emulated: ")
    assert result["gradient_equivalence"] is None or "emulated" in result["gradient_equivalence"]["message"]
    assert all(event["peak_memory_bytes"] for event in events if event["event"] == "probe")


JOB = """
train_input: {batch_size: 64, micro_batch_size: explore}
explore:
  max_probes: 5
  compile: false
  emulate: true
  memory_budget: 30MiB
  workload: {model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"}
"""


def test_a_device_is_named_and_the_largest_size_that_fits_it_is_found(bexplore, tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # versions of torch differ in how long the usual one is held
    (tmp_path / "programs.py").write_text((ROOT / "tests" / "jobs" / "programs.py").read_text())
    (tmp_path / "job.yaml").write_text(JOB)

    events = [
        json.loads(line) for line in bexplore("explore", "job.yaml", "--device-name", "h100", "--json").split("\n")[:-1]
    ]

    result = events[-1]
    assert not any(event["event"] == "recommendation" for event in events)
    probes = {event["micro_batch_size"]: event["outcome"] for event in events if event["event"] == "probe"}
    assert result["micro_batch_size"] == max(size for size, outcome in probes.items() if outcome == "measured")
    assert "out_of_memory" in probes.values()
    assert result["samples_per_s"] is None and result["confidence"] is None
    assert result["peak_memory_bytes"] == pytest.approx(result["predicted_peak_memory_bytes"], rel=0.05)
    text = bexplore("explore", "job.yaml", "--device-name", "h100")
    assert "is the largest size that ran on NVIDIA H100 80GB HBM3, emulated" in text and "BEXP202" not in text
    page = (tmp_path / result["run_dir"] / "report.html").read_text()
    assert "emulated" in page and "samples/s" not in page
    assert "knows no time of a step" in bexplore("plan", result["run_dir"], status=2)
    written = bexplore("apply", "job.yaml", "--device-name", "h100", "--change-batch-size", "--yes")
    assert "its speed is not known" in written
    assert f"micro_batch_size: {result['micro_batch_size']}" in (tmp_path / "job.yaml").read_text()


TRAIN = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int)
parser.add_argument("--out")
size = parser.parse_args().size
assert torch.cuda.device_count() == 2
data = torch.utils.data.TensorDataset(torch.randn(4096, 8))
model = torch.nn.Linear(8, 8 * 2**20, bias=False).cuda(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    for (batch,) in torch.utils.data.DataLoader(data, size):
        model(batch.cuda(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_command_is_explored_on_as_many_devices_as_are_named(bexplore, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--", "python3", "train.py", "--size", "{micro_batch_size}", "--out", "{output_dir}")

    settings = ("--set", "explore.max_probes=8", "--set", "explore.emulate=true")
    lines = bexplore("explore", "--device-name", "2xl4", *settings, "--json", *words).split("\n")

    result = json.loads(lines[-2])
    bytes_of_sample = 8 * 2**20 * 4
    fits = (21.95 - 1.5) * 2**30 / bytes_of_sample  # less the context, the weights and their gradients
    assert 0.4 * fits < result["micro_batch_size"] <= fits
    assert result["device_info"]["is_emulated"]


def test_doctor_says_that_the_device_is_emulated_and_compares_no_result(emulate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = """
    from bexplore.cli import main
    if __name__ == "__main__":
        try:
            main(["doctor"])
        except SystemExit as end:
            pass
    """
    (line,) = [line for line in emulate(program) if "kernel " in line]
    assert line.startswith("ok ") and "emulated" in line
