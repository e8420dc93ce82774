"""Explorations of a training command with real starts: the step of the training's own accumulation, and its bounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bexplore.api import explore
from bexplore.command import watch
from bexplore.config.load import load_config
from bexplore.exploration.base import ExploreOptions
from bexplore.measurement.probe import REAL_STEP, Observation
from bexplore.run.events import AlreadyFinished, JobEvent, Planned
from bexplore.search.result import ProbeFinished
from tests.engine.command_starts import TRAIN, marked_processes, training

# Reads a file and options as a user's own script does, and trains.
SCRIPT = f"""\
import argparse, json, runpy, sys
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--out", required=True)
parser.add_argument("--gradient_accumulation_steps", type=int)
given = parser.parse_args()
config = json.load(open(given.config))
steps = given.gradient_accumulation_steps or config["gradient_accumulation_steps"]
sys.argv = ["train", "--micro-batch-size", str(config["micro_batch_size"]), "--accumulation", str(steps)]
sys.argv += ["--out", given.out]
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
"""

Explore = Callable[..., list[JobEvent]]


@pytest.fixture
def explored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explore:
    """Explores two sizes of a job file, with further words of its command; returns the events."""
    monkeypatch.chdir(tmp_path)
    for name in ("LEAST_TIMED_S", "MOST_TIMED_S"):
        monkeypatch.setattr(watch, name, 0.2)
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(accumulation: int, *words: str) -> list[JobEvent]:
        (tmp_path / "job.json").write_text(
            json.dumps({"micro_batch_size": "explore", "gradient_accumulation_steps": accumulation})
        )
        command = [sys.executable, "train.py", "{config}", "--out", "{output_dir}", *words]
        overrides = [f"explore.command={json.dumps(command)}", 'explore.env={"OMP_NUM_THREADS": "1"}']
        overrides += ["explore.candidates=[2, 8]", "explore.max_probes=3"]
        return list(explore(load_config(tmp_path / "job.json", overrides=overrides), ExploreOptions(model_dir="run")))

    return run


def probes_of(events: list[JobEvent]) -> list[Observation]:
    return [event.observation for event in events if isinstance(event, ProbeFinished)]


def starts(folder: Path) -> int:
    """Return how many starts the only run of a folder has had."""
    (probes,) = folder.rglob("probes")
    return sum(1 for path in probes.iterdir() if (path / "log.txt").exists())


def test_the_accumulation_of_the_file_runs_at_the_end_for_the_result(explored, tmp_path):
    events = explored(5)

    *searched, real = probes_of(events)
    result = events[-1].result
    assert real.is_measured, real.reason
    assert (real.details[REAL_STEP], real.details["passes_per_step"]) == (5, 5)
    assert set(real.details["verdicts"].values()) == {"verified"}
    assert {one.details["passes_per_step"] for one in searched} == {2}
    assert real.micro_batch_size == result.micro_batch_size
    assert result.batch.batch_size == 5 * result.micro_batch_size
    (own,) = [one for one in result.batch.global_batch_sizes if one.global_batch_size == result.batch.batch_size]
    assert (own.accumulation_steps, own.step_time_s) == (5, real.details["step_time_s"])
    assert isinstance(explored(5)[0], AlreadyFinished)
    assert marked_processes(tmp_path) == []


def test_another_accumulation_goes_on_with_the_run_and_needs_one_start(explored, tmp_path):
    before = probes_of(explored(5))
    num_starts = starts(tmp_path)

    events = explored(3)

    (real,) = probes_of(events)
    assert (real.details[REAL_STEP], real.details["passes_per_step"]) == (3, 3)
    assert real.probe.number == before[-1].probe.number + 1
    assert starts(tmp_path) == num_starts + 1
    assert events[-1].result.batch.batch_size == 3 * real.micro_batch_size
    assert events[-1].result.search.num_probes == len(before) + 1


def test_what_a_word_of_the_command_fixes_is_what_every_start_has(explored, tmp_path):
    events = explored(5, "--gradient_accumulation_steps", "3")

    observations, result = probes_of(events), events[-1].result
    assert {one.details["passes_per_step"] for one in observations} == {3}
    own = [one for one in result.batch.global_batch_sizes if one.global_batch_size == result.batch.batch_size]
    assert [one.accumulation_steps for one in own] == [3]
    assert own[0].step_time_s in [one.details["step_time_s"] for one in observations]
    assert not [warning for warning in result.warnings if "accumulation" in warning]


def test_a_probe_whose_start_is_not_shared_has_no_more_than_the_announced_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "LEAST_TIMED_S", 0.2)
    overrides = [f"explore.command={json.dumps(list(training('--batched-dataset').argv))}"]
    overrides += ["explore.candidates=[2, 8]", "explore.max_probes=1"]

    events = list(explore(load_config(None, overrides=overrides), ExploreOptions(model_dir="run")))

    (planned,) = [event for event in events if isinstance(event, Planned)]
    assert " up to 3 times, " in planned.notices[0]
    assert (len(probes_of(events)), starts(tmp_path)) == (1, 1)  # the first size has a start of its own anyway
