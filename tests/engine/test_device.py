"""A worker and its device."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading

import pytest

from bexplore.host.contention import DeviceContention, selector
from bexplore.measurement.probe import Probe
from tests.builders import imported_job

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
UUID = "1e6a2c1d-5a51-7a33-9d0c-6a1f0c6b2f1e"
FACTS = {"device": "cuda:0", "device_name": H100, "uuid": UUID, "pci_bus_id": "00000000:1b:00.0"}


def test_memory_that_did_not_come_back_is_told_and_awaited_once(run_on):
    runner = run_on(imported_job())
    runner._free_memory_bytes = 60 * GIB
    runner._heard({"kind": "progress", "free_memory_bytes": 40 * GIB})

    first, second = (runner(Probe(number=n, micro_batch_size=2, max_passes=2)) for n in range(2))

    assert ["were when this job began" in " ".join(one.warnings) for one in (first, second)] == [True, False]
    assert runner._free_memory_bytes == 40 * GIB


# What nvidia-smi prints in its documented format, by what it is asked: --format=csv,noheader.
NOT_ACTIVE, POWER, HEAT = (
    "Not Active, Not Active, Not Active",
    "Not Active, Not Active, Active",
    "Active, Active, Active",
)
ONE = {"00000000:1b:00.0": POWER}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """An nvidia-smi that tells of the devices, and of the processes on each of them."""
    folder = tmp_path / "driver"

    def install(clocks: dict[str, str], processes: str = "") -> None:
        folder.mkdir()
        cases = "\n".join(f'  "{bus} "*query-gpu*) echo "{states}";;' for bus, states in clocks.items())
        tool = folder / "nvidia-smi"
        (folder / "processes").write_text(processes)
        tool.write_text(
            f'#!/bin/sh\n[ "$1" = -i ] || exit 2\ncase "$2 $3" in\n{cases}\n'
            f'  *query-compute-apps*) cat "{folder}/processes";;\n  *) exit 6;;\nesac\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return install


def watched(monkeypatch, facts=FACTS) -> DeviceContention:
    """A device, watched until it was sampled twice."""
    enough, waits = threading.Event(), itertools.count()

    class Ticks(threading.Event):
        def wait(self, timeout=None):
            if next(waits) < 2:
                return False
            enough.set()
            return super().wait()

    contention = DeviceContention(facts)
    contention._ended = Ticks()
    contention.start()
    assert selector(facts) is None or enough.wait(30)
    contention.stop()
    return contention


def test_the_worker_itself_is_none_of_the_others(driver, monkeypatch):
    with Child() as pid:
        driver(ONE, f"{pid}, 518 MiB\n4002, 1024 MiB\n")
        assert "(process 4002)" in " ".join(watched(monkeypatch).warnings())


class Child:
    """A child of this process."""

    def __enter__(self) -> int:
        self._process = subprocess.Popen(["sleep", "60"])
        return self._process.pid

    def __exit__(self, *_exception: object) -> None:
        self._process.kill()
        self._process.wait()
