"""The processes of a start, and what the driver shows of its devices by a tool that prints what a test writes."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest

from bexplore.command import start as starts
from bexplore.command.start import DeviceUse, ProbeFolder, Start
from bexplore.config.command import Command
from tests.builders import wait_for

SLEEPS = "import time; time.sleep(60)"
MEMORY = "--query-gpu=uuid,memory.used"
PROCESSES = "--query-compute-apps=gpu_uuid,pid"


@pytest.fixture
def started(tmp_path: Path):
    """Return a function that starts a shell line or a Python program."""
    begun = []

    def start(*argv: str) -> Start:
        begun.append(Start(argv, env={}, folder=tmp_path))
        return begun[-1]

    yield start
    for one in begun:
        assert one.end() == []


@pytest.mark.promise("the installed package is read-only (chmod a-w, a store of packages)", "explored as always")
def test_what_a_start_is_given_can_be_written_whatever_the_mode_of_the_package(tmp_path, monkeypatch):
    package = tmp_path / "observer"
    shutil.copytree(starts.OBSERVER, package)
    for path in (*package.rglob("*"), package):
        path.chmod(0o555)
    monkeypatch.setattr(starts, "OBSERVER", package)

    ProbeFolder(path=tmp_path / "probe").write(Command(argv=("train",)), {}, {})

    written = [path for path in (tmp_path / "probe").rglob("*") if "bexplore_observer" in path.parts]
    assert len(written) > len(list(package.glob("bexplore_observer/*.py")))
    assert all(path.stat().st_mode & stat.S_IWUSR for path in written)


def test_what_is_no_launcher_is_killed_without_running_on(started, tmp_path):
    line = f"trap 'touch {tmp_path}/trapped' TERM; touch {tmp_path}/began; sleep 60; touch {tmp_path}/after"
    start = started("bash", "-c", line)
    wait_for(tmp_path / "began")

    assert start.end() == []

    assert not (tmp_path / "trapped").exists() and not (tmp_path / "after").exists()


@pytest.mark.parametrize("launcher", ["setsid", "env -i PYTHONPATH={folder}/observer:/elsewhere setsid"])
def test_a_process_in_a_session_of_its_own_is_still_of_the_start(started, tmp_path, launcher):
    writes = f"echo $! > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid"
    start = started("bash", "-c", f"{launcher.format(folder=tmp_path)} {sys.executable} -c '{SLEEPS}' & {writes}")
    wait_for(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())

    while pid not in start.alive():
        time.sleep(0.01)
    assert start.end() == []

    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


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


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets what the tool prints for a query, call after call; the last answer stays."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f"""#!/bin/sh
folder={tmp_path}/$1
file=$(ls $folder | head -n 1)
cat $folder/$file
[ $(ls $folder | wc -l) -gt 1 ] && rm $folder/$file
exit 0
"""
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(starts, "FREE_POLL_S", 0.01)

    def prints(query: str, *answers: str) -> None:
        (tmp_path / query).mkdir()
        for index, answer in enumerate(answers):
            (tmp_path / query / str(index)).write_text(answer)

    return prints


def test_the_memory_of_an_ended_start_is_waited_for(driver):
    driver(MEMORY, "GPU-1, 500", "GPU-1, 40000", "GPU-1, 40000", "GPU-1, 510")

    assert DeviceUse().wait_until_free() == []


def test_memory_that_is_never_free_is_a_warning_about_the_next_size(driver, monkeypatch):
    monkeypatch.setattr(starts, "FREE_LIMIT_S", 0.1)
    driver(MEMORY, "GPU-1, 500\nGPU-2, 5", "GPU-1, 500\nGPU-2, 2053")

    assert DeviceUse().wait_until_free() == [
        "device GPU-2 holds 2.00 GiB more than before the start: the next size has less"
    ]


def test_others_on_the_devices_of_the_start_alone_are_a_warning(driver):
    driver(MEMORY, "GPU-1, 500\nGPU-2, 500")
    driver(PROCESSES, "GPU-1, 10\nGPU-1, 77\nGPU-2, 88")
    use = DeviceUse()

    use.look({10, 11})

    assert use.warnings() == ["other processes used device GPU-1 meanwhile (process 77): the times are noisier"]


def test_without_a_driver_nothing_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    use = DeviceUse()

    use.look({10})

    assert use.warnings() == use.wait_until_free() == []
