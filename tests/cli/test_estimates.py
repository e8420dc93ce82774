"""A tiny job, estimated for a GPU that is not here by the command line: explored, planned, applied."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

JOB = """\
train_input: {batch_size: 48, micro_batch_size: explore}
model: {name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}
runconfig: {model_dir: m}
explore: {compile: false, max: 16, max_probes: 3}
"""


def bexplore(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bexplore", *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_job_is_estimated_planned_and_applied_for_a_named_device(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)

    explored = bexplore(tmp_path, "explore", "job.yaml", "--device-name", "h100", "--json")
    events = [json.loads(line) for line in explored.stdout.splitlines()]
    assert {event["outcome"] for event in events if event["event"] == "probe"} == {"estimated"}
    assert [event for event in events if event["event"] == "recommendation"]
    assert events[-1]["estimate"]["device_name"] == "NVIDIA H100 80GB HBM3"

    planned = bexplore(tmp_path, "plan", "local_compile_train/m", "--tokens", "1M")
    assert "estimated for NVIDIA H100 80GB HBM3, not run" in planned.stdout

    refused = bexplore(tmp_path, "apply", "job.yaml", "--yes", "--keep-batch-size", "-o", "tuned.yaml")
    assert refused.returncode == 2 and "no finished run of this job" in refused.stderr

    words = ("--device-name", "h100", "--yes", "--keep-batch-size", "-o", "tuned.yaml")
    applied = bexplore(tmp_path, "apply", "job.yaml", *words)
    assert "estimated for NVIDIA H100 80GB HBM3, not run: " in applied.stdout
    assert "micro_batch_size: explore" not in (tmp_path / "tuned.yaml").read_text()
