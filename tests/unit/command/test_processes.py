"""The processes of a start: which of them are its own, and what is left of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from bexplore.command.processes import Start
from tests.builders import wait_for

SLEEPS = "import time; time.sleep(60)"


@pytest.fixture
def started(tmp_path: Path):
    """Return a function that starts a shell line or a Python program."""
    starts = []

    def start(*argv: str) -> Start:
        starts.append(Start(argv, env={}, folder=tmp_path))
        return starts[-1]

    yield start
    for one in starts:
        assert one.end() == []


def test_what_neither_launches_nor_waits_to_leave_is_killed_without_running_on(started, tmp_path):
    line = f"trap 'touch {tmp_path}/trapped' TERM; touch {tmp_path}/began; sleep 60; touch {tmp_path}/after"
    start = started("bash", "-c", line)
    wait_for(tmp_path / "began")

    assert start.end() == []

    assert not (tmp_path / "trapped").exists() and not (tmp_path / "after").exists()


def test_a_process_in_a_session_and_an_environment_of_its_own_is_still_of_the_start(started, tmp_path):
    line = (
        f"setsid {sys.executable} -c '{SLEEPS}' & echo $! > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid"
    )
    start = started("bash", "-c", line)
    wait_for(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())

    while pid not in start.alive():
        time.sleep(0.01)
    assert start.end() == []

    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_has_the_observer_and_no_mark_is_of_the_start(started, tmp_path):
    path = f"PYTHONPATH={tmp_path}/observer:/elsewhere"
    written = f"echo $! > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid"
    line = f"env -i {path} setsid {sys.executable} -c '{SLEEPS}' & {written}"
    start = started("bash", "-c", line)
    wait_for(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())

    while pid not in start.alive():
        time.sleep(0.01)


def test_a_process_that_was_killed_from_outside_is_gone(started):
    start = started(sys.executable, "-c", SLEEPS)
    assert start.pid in start.alive()

    os.kill(start.pid, signal.SIGKILL)
    while start.return_code is None:
        time.sleep(0.01)

    assert start.return_code == -signal.SIGKILL
    assert start.alive() == []


def test_a_command_that_ran_until_it_was_ended_has_no_status(started):
    start = started(sys.executable, "-c", SLEEPS)

    assert start.end() == []

    assert start.return_code is None
