"""The observer inside a training: the steps that it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.command.probe_folder import ProbeFolder
from bexplore.config.command import Command

TRAINING = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = {optimizer}
def backward():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    return loss
for _ in range(20):
    {step}
"""
TRAININGS = {
    "accumulation": ("torch.optim.AdamW(model.parameters())", "backward(); backward(); optimizer.step()", 2),
    "closures": ("torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=0)", "optimizer.step(backward)", 3),
}


@pytest.fixture
def record_of(tmp_path: Path):
    """Runs a script under the observer and returns the record of its rank."""

    def run(script: str, env: dict[str, str] | None = None) -> dict:
        command = Command(argv=(sys.executable, "-c", script), env=env or {})
        folder = ProbeFolder(path=tmp_path / "probe")
        settings = {"micro_batch_size": 4, "accumulation": 1, "max_steps": 8, "memory_step": 1}
        settings |= {"profile_memory": False, "memory_limit_bytes": None}
        values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=folder.path)
        variables = folder.write(command, values, settings)
        folder.release()
        subprocess.run(command.argv, env=os.environ | variables, check=True, timeout=120)
        return json.loads(next(folder.reports.glob("rank-*.json")).read_text())

    return run


@pytest.mark.parametrize("name", TRAININGS)
def test_every_step_is_counted_once_from_the_first_on(record_of, name):
    optimizer, step, num_passes = TRAININGS[name]
    record = record_of(TRAINING.format(optimizer=optimizer, step=step))
    assert [step["num_passes"] for step in record["steps"]] == [num_passes] * 8
    assert [step["num_updates"] for step in record["steps"]] == [1] * 8


def test_a_compiled_step_has_the_graphs_and_breaks_that_it_has_without_the_observer(record_of):
    script = TRAINING.format(optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="step()")
    compiled = "@torch.compile(backend='eager')\ndef step():\n    backward()\n    optimizer.step()\nfor _"
    script = script.replace("for _", compiled, 1)
    counted = """
counters = torch._dynamo.utils.counters
print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
"""
    alone = subprocess.run([sys.executable, "-c", script + counted], check=True, capture_output=True, text=True)

    compiler = record_of(script)["compiler"]

    assert [compiler["num_graphs"], compiler["num_graph_breaks"]] == [int(word) for word in alone.stdout.split()]


def test_the_python_path_of_the_commands_own_environment_stays(record_of, tmp_path):
    (tmp_path / "module_of_the_user.py").write_text("import torch\n")
    script = "import module_of_the_user\n" + TRAINING.format(
        optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="backward(); optimizer.step()"
    )
    assert len(record_of(script, {"PYTHONPATH": str(tmp_path)})["steps"]) == 8


def test_trackers_are_off_where_a_launcher_has_carried_the_python_path_alone(tmp_path):
    folder = ProbeFolder(path=tmp_path / "probe")
    command = Command(argv=("train",), env={"COMET_MODE": "offline"})
    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=folder.path)
    path = folder.write(command, values, {})["PYTHONPATH"]
    script = "import os; print(os.environ['WANDB_MODE'], os.environ['COMET_MODE'])"

    env = {"PYTHONPATH": path, "WANDB_MODE": "online"}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["disabled", "offline"]


def test_a_report_that_cannot_be_written_does_not_reach_the_training(tmp_path):
    folder = ProbeFolder(path=tmp_path / "probe")
    command = Command(argv=("train",))
    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=folder.path)
    settings = {"micro_batch_size": 4, "accumulation": 1, "max_steps": 1000, "memory_step": 1}
    variables = folder.write(command, values, settings)
    training = TRAINING.format(optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="backward(); break_it()")
    script = f"""
import shutil
def break_it():
    optimizer.step()
    shutil.rmtree({str(folder.reports)!r}, ignore_errors=True)
{training}
print("trained")
"""

    done = subprocess.run([sys.executable, "-c", script], env=os.environ | variables, capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, "trained"), done.stderr
