"""The figure of the user's data loader in a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.builders import JOBS

CONFIG = """\
train_input: {batch_size: 8, micro_batch_size: {explore: {max: 4}}}
explore:
  device: cpu
  memory_budget: 512MiB
  max_probes: 3
  compile: false
  workload:
    model: programs:perceptron
    batch: programs:samples
    loss: programs:cross_entropy
    loader: loaders:slow
"""


def test_an_input_pipeline_that_is_the_limit_is_named_first_and_its_figures_are_in_the_result(tmp_path):
    for name in ("programs.py", "loaders.py"):
        (tmp_path / name).write_text((JOBS / name).read_text())
    (tmp_path / "job.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "bexplore", "explore", "job.yaml", "--json"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    again = subprocess.run(command[:-1], cwd=tmp_path, capture_output=True, text=True, check=True)

    record = json.loads(done.stdout.splitlines()[-1])
    assert 0 < record["loader"]["samples_per_s"] <= 20  # it sleeps 0.05 s for each sample
    first = record["bottlenecks"][0]
    assert first["kind"] == "input"
    assert first["evidence"]["loader_samples_per_s"] == record["loader"]["samples_per_s"]
    assert first["evidence"]["step_samples_per_s"] > record["loader"]["samples_per_s"]
    assert re.search(r"\n  input +your data loader gives", again.stdout)
    assert re.search(r"\n  limits +the input pipeline is the limit", again.stdout)
    page = next(tmp_path.glob("local*/*/run_*/report.html")).read_text()
    assert "The input pipeline is the limit" in page
    assert "your data loader gives" in page
