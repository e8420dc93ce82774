"""A real data loader is timed apart from the step, and named where it is what holds the job back."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from bexplore.engine import runner as engine_runner
from bexplore.errors import UserInputError
from bexplore.workloads import input_pipeline
from bexplore.workloads.input_pipeline import time_loader
from tests.builders import JOBS, imported_job

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


def job(loader: str, **arguments):
    made = imported_job()
    return dataclasses.replace(made, model=made.model | {"loader": f"loaders:{loader}", "arguments": arguments})


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(input_pipeline, "TIMED_S", 0.2)


def test_a_loader_gives_what_its_slowest_part_allows(short):
    speed = time_loader(job("slow"), 2)

    assert speed.num_workers == 0
    assert 20 < speed.samples_per_s <= 100  # a hundredth of a second a sample at least
    assert speed.num_batches >= 3


def test_the_loaders_own_workers_work_and_their_start_is_not_counted(short):
    speed = time_loader(job("slow", num_workers=2), 2)

    assert speed.num_workers == 2
    assert 20 < speed.samples_per_s <= 200
    assert speed.first_batch_s > 0


def test_any_iterable_of_batches_is_a_loader(short):
    speed = time_loader(job("quick"), 2)

    assert speed.num_workers is None
    assert speed.samples_per_s > 1000


@pytest.mark.parametrize(("loader", "said"), [("too_small", "gave no batch"), ("no_loader", "not an iterable")])
def test_what_is_no_loader_is_refused(loader, said):
    with pytest.raises(UserInputError, match=said):
        time_loader(job(loader), 4)


@pytest.mark.parametrize(
    ("loader", "problem"), [("broken", "shard_007.tar"), ("hangs", "stage 'loader'"), ("too_small", "gave no batch")]
)
def test_a_loader_that_fails_or_hangs_costs_its_figure_and_nothing_else(run_on, monkeypatch, loader, problem):
    monkeypatch.setattr(engine_runner, "LOADER_LIMIT_S", 12.0)

    assert problem in run_on(job(loader)).time_loader(4)["problem"]


def test_an_input_pipeline_that_is_the_limit_is_named_first_and_its_figures_are_in_the_result(tmp_path):
    for name in ("programs.py", "loaders.py"):
        (tmp_path / name).write_text((JOBS / name).read_text())
    (tmp_path / "job.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "bexplore", "explore", "job.yaml", "--json"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    again = subprocess.run(command[:-1], cwd=tmp_path, capture_output=True, text=True, check=True)

    record = json.loads(done.stdout.splitlines()[-1])
    assert 20 < record["loader"]["samples_per_s"] <= 100
    first = record["bottlenecks"][0]
    assert first["kind"] == "input"
    assert first["evidence"]["loader_samples_per_s"] == record["loader"]["samples_per_s"]
    assert first["evidence"]["step_samples_per_s"] > 100
    assert "input     your data loader gives" in again.stdout
    assert "limits    the input pipeline is the limit" in again.stdout
    page = next(tmp_path.glob("local*/*/run_*/report.html")).read_text()
    assert "The input pipeline is the limit" in page
    assert "Your data loader gives" in page
