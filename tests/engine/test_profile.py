from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bexplore.actions.probe import probe_once
from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.measurement.profile import PASS, STEP, UPDATE
from bexplore.run.run_directory import find_runs
from tests.builders import ROOT

JOB = """
train_input: {batch_size: 8, micro_batch_size: explore}
model: {name: gpt2, vocab_size: 64, hidden_size: 16, num_hidden_layers: 1, num_heads: 2, max_position_embeddings: 16}
explore: {compile: false, max: 4, effort: quick, seed: 0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A job, an exploration of it, and the profile of a probe that followed."""
    folder = tmp_path_factory.mktemp("profile")
    (folder / "job.yaml").write_text(JOB)
    bexplore = (sys.executable, "-m", "bexplore")
    for command in (("explore", "job.yaml", "-q"), ("probe", "job.yaml", "--micro-batch-size", "2", "--json")):
        further = ("--profile", "trace.json.gz") if command[0] == "probe" else ()
        done = subprocess.run(
            [*bexplore, *command, *further], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


def test_a_profile_is_printed_behind_the_probe(folder):
    probe, profile = map(json.loads, (folder / "printed").read_text().splitlines())
    assert (probe["event"], profile["event"]) == ("probe", "profile")
    assert {STEP, PASS, UPDATE} <= set(profile["regions_s"])
    assert sum(one["share"] for one in profile["top"]) <= 1.0 + 1e-9
    assert profile["micro_batch_size"] == 2


def test_the_trace_and_the_timeline_of_memory_are_files(folder):
    assert (folder / "trace.json.gz").stat().st_size > 0
    timeline = json.loads((folder / "trace_memory.json").read_text())
    assert timeline
    assert min(one["total_bytes"] for one in timeline) >= 0


def test_the_report_of_the_same_job_links_the_profile(folder):
    (run,) = find_runs(next(folder.glob("local_compile_train/*")))
    assert run.profile() is not None
    bexplore = (sys.executable, "-m", "bexplore", "report", str(run.directory))
    done = subprocess.run(bexplore, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    page = (run.directory / "report.html").read_text()
    assert f"file://{folder / 'trace.json.gz'}" in page
    assert "Where the time goes at size 2" in page
    assert "The training by the file" in page


@pytest.mark.parametrize("name", ["trace.txt", "no/such/trace.json"])
def test_a_trace_that_cannot_be_written_is_an_error_before_anything_runs(folder, name):
    with pytest.raises(UserInputError) as error:
        probe_once(
            load_config(folder / "job.yaml"),
            micro_batch_size=1,
            compilation="eager",
            model_dir=None,
            trace_path=folder / name,
        )
    assert error.value.hint


def test_a_training_command_is_not_profiled(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("explore: {command: [python, train.py, '{micro_batch_size}'], writes_are_fine: true}\n")
    with pytest.raises(UserInputError, match="training command"):
        probe_once(
            load_config(path), micro_batch_size=1, compilation="exact", model_dir=None, trace_path=ROOT / "t.json"
        )
