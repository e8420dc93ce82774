"""A tiny job, estimated for a GPU that is not here by the command line: explored, planned, applied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from bexplore.cli import setup
from bexplore.estimate.calibrations import keep
from tests.builders import calibration

JOB = """\
train_input: {batch_size: 48, micro_batch_size: explore}
model: {name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}
runconfig: {model_dir: m}
explore: {compile: false, max: 16, max_probes: 3}
"""


def bexplore(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bexplore", *words],
        cwd=folder,
        env=os.environ | {"BEXPLORE_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_job_is_estimated_planned_and_applied_for_a_named_device(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)

    explored = bexplore(tmp_path, "explore", "job.yaml", "--device-name", "h100", "--json")
    events = [json.loads(line) for line in explored.stdout.splitlines()]
    assert {event["outcome"] for event in events if event["event"] == "probe"} == {"estimated"}
    assert [event for event in events if event["event"] == "recommendation"]
    assert events[-1]["estimate"]["device_name"] == "NVIDIA H100 80GB HBM3"

    planned = bexplore(tmp_path, "plan", "local_compile_train/m", "--tokens", "1M")
    assert "estimated for NVIDIA H100 80GB HBM3, not run, to within" in planned.stdout

    refused = bexplore(tmp_path, "apply", "job.yaml", "--yes", "--keep-batch-size", "-o", "tuned.yaml")
    assert refused.returncode == 2 and "no finished run of this job" in refused.stderr

    words = ("--device-name", "h100", "--yes", "--keep-batch-size", "-o", "tuned.yaml")
    applied = bexplore(tmp_path, "apply", "job.yaml", *words)
    assert "estimated for NVIDIA H100 80GB HBM3, not run: " in applied.stdout
    assert "micro_batch_size: explore" not in (tmp_path / "tuned.yaml").read_text()


def test_one_size_at_most_is_asked_for_of_those_that_are_known_not_to_fit(tmp_path):
    """The trace says which sizes fit, within its error: the first beyond shows where memory ends."""
    limited = JOB.replace("max: 16, max_probes: 3", "memory_budget: 80 MiB, max_probes: 8")
    (tmp_path / "job.yaml").write_text(limited)

    explored = bexplore(tmp_path, "explore", "job.yaml", "--device-name", "h100", "--json")
    events = [json.loads(line) for line in explored.stdout.splitlines()]
    outcomes = [event["outcome"] for event in events if event["event"] == "probe"]
    assert outcomes.count("out_of_memory") <= 1 and outcomes.count("estimated") >= 3
    fitting = [e["micro_batch_size"] for e in events if e["event"] == "probe" and e["outcome"] == "estimated"]
    assert events[-1]["micro_batch_size"] == max(fitting)  # a pass waits for the host, whatever its size


def test_a_job_is_estimated_for_this_processor_by_what_was_measured_of_it(tmp_path, monkeypatch):
    (tmp_path / "job.yaml").write_text(JOB)
    refused = bexplore(tmp_path, "explore", "job.yaml", "--device-name", "this")
    assert refused.returncode == 2 and "bexplore doctor --calibrate" in refused.stderr

    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path / "cache"))
    keep(calibration())
    (traced,) = map(json.loads, bexplore(tmp_path, "trace", "job.yaml", "--json").stdout.splitlines())
    assert traced["estimate"]["device_name"] == "a processor"
    assert traced["estimate"]["samples_per_s"] > 0

    explored = bexplore(tmp_path, "explore", "job.yaml", "--device-name", "this", "--json")
    events = [json.loads(line) for line in explored.stdout.splitlines()]
    assert {event["outcome"] for event in events if event["event"] == "probe"} == {"estimated"}
    assert events[-1]["estimate"]["device_name"] == "a processor"


def test_what_was_measured_is_told_in_plain_lines(monkeypatch):
    monkeypatch.setattr(setup, "examine", lambda *_, **__: iter(()))
    monkeypatch.setattr(setup, "calibrate", lambda **_: calibration())
    said = CliRunner().invoke(setup.doctor, ["--calibrate"]).output
    assert "calibrated a processor, 2 threads, torch 2.13.0" in said
    assert "GFLOP/s in float32" in said
    assert "others used the processor" not in said
    monkeypatch.setattr(setup, "calibrate", lambda **_: replace(calibration(), program_sd=1.7))
    assert "others used the processor" in CliRunner().invoke(setup.doctor, ["--calibrate"]).output
    record = json.loads(CliRunner().invoke(setup.doctor, ["--calibrate", "--json"]).output.splitlines()[-1])
    assert record["event"] == "calibration" and record["name"] == "a processor"


def test_a_job_of_several_ranks_is_estimated_with_what_they_exchange(tmp_path):
    estimates = {}
    for name, section in {
        "alone": "",
        "ddp": ", parallelism: {data_parallel_shard_degree: 1, data_parallel_replicate_degree: 8}",
        "tensor": ", parallelism: {data_parallel_shard_degree: 1, tensor_parallel_degree: 2}",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(JOB.replace("max_probes: 3", f"max_probes: 3{section}"))
        traced = bexplore(tmp_path, "trace", f"{name}.yaml", "--device-name", "h100", "--json")
        estimates[name] = json.loads(traced.stdout)["estimate"]
    assert estimates["alone"]["communication"] is None
    for name in ("ddp", "tensor"):
        assert estimates[name]["communication"]["exposed_s"] > 0
    assert estimates["ddp"]["replica_s"] == estimates["alone"]["pass_s"]
    assert all(estimates["ddp"]["pass_s"][size] > alone_s for size, alone_s in estimates["alone"]["pass_s"].items())

    explored = bexplore(tmp_path, "explore", "ddp.yaml", "--device-name", "h100")
    assert "DDP over 8 ranks: NVLink at 371 GB/s, not timed" in explored.stderr
    assert "exposed; NVLink at 371 GB/s" in explored.stdout + explored.stderr
