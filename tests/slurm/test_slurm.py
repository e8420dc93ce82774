"""The Slurm cluster of one node that the tests start."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from bexplore.engine.runner import EngineRunner
from bexplore.measurement.probe import Outcome
from tests.engine.rank_jobs import job, probe, run, settings

pytestmark = pytest.mark.external

CLEANING_S = 60.0  # a busy node ends what is left of a step seconds after its tasks


def test_srun_starts_two_tasks_with_their_ranks_and_the_variables_of_its_caller(slurm):
    command = ["srun", "-n", "2", "bash", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS, $MARK"]
    env = os.environ | slurm | {"MARK": "carried"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    assert sorted(done.stdout.splitlines()) == ["0 of 2, carried", "1 of 2, carried"]


def test_ranks_that_srun_starts_are_measured_and_no_step_is_left(slurm, tmp_path, monkeypatch):
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    with EngineRunner(settings(tmp_path, job(), kind="srun")) as runner:
        found = runner(probe())

    assert found.is_measured, found.reason
    assert [one["rank"] for one in found.details["parallel"]["ranks"]] == [0, 1]
    assert steps() == []


def test_a_rank_that_srun_has_lost_is_named_and_no_step_is_left(slurm, tmp_path, monkeypatch):
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    found = run(tmp_path, job("stop", 1), kind="srun")

    assert found.outcome is Outcome.TIMED_OUT
    assert "rank 1 of 2" in found.reason
    assert steps() == []


def steps() -> list[str]:
    """Jobs and steps that the cluster holds once it had time to clean up after those that have ended."""
    until_s = time.monotonic() + CLEANING_S
    while (found := _listed()) and time.monotonic() < until_s:
        time.sleep(0.5)
    return found


def _listed() -> list[str]:
    words = (["squeue", "-h"], ["squeue", "-h", "-s"])
    listed = [subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in words]
    return [line for text in listed for line in text.splitlines()]
