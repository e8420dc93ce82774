"""Other programs on the device, its clocks and its limits, as its driver's own tool tells of them."""

from __future__ import annotations

import itertools
import os
import threading

import pytest

from bexplore.host.contention import DeviceContention, clock_events, compute_processes, selector

H100 = "NVIDIA H100 80GB HBM3"
UUID = "1e6a2c1d-5a51-7a33-9d0c-6a1f0c6b2f1e"
FACTS = {"device": "cuda:0", "device_name": H100, "uuid": UUID, "pci_bus_id": "00000000:1b:00.0"}


# What nvidia-smi prints in its documented format, by what it is asked: --format=csv,noheader.
NOT_ACTIVE, POWER, HEAT = (
    "Not Active, Not Active, Not Active",
    "Not Active, Not Active, Active",
    "Active, Active, Active",
)
ONE = {"00000000:1b:00.0": POWER}
EIGHT = {f"00000000:{bus:02x}:00.0": NOT_ACTIVE for bus in range(0x20, 0x27)} | {"00000000:1b:00.0": HEAT}
MIG = {"00000000:1b:00.0": "[N/A], [N/A], [N/A]"}


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


@pytest.mark.parametrize(
    ("clocks", "events"),
    [(ONE, {"power limit"}), (EIGHT, {"hardware slowdown", "heat", "power limit"}), (MIG, set()), ({}, set())],
    ids=["one device", "eight devices", "MIG", "another host's device"],
)
def test_the_clocks_are_those_of_the_jobs_own_device(driver, clocks, events):
    driver(clocks)
    assert clock_events(selector(FACTS)) == events


def test_where_there_is_no_driver_nothing_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert clock_events("00000000:1b:00.0") == frozenset()
    assert compute_processes("00000000:1b:00.0") == []


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


def test_the_power_limit_alone_is_no_warning_and_heat_is(driver, monkeypatch):
    driver(ONE)
    usual = watched(monkeypatch)
    assert (usual.clock_events, usual.warnings()) == ({"power limit"}, [])
    usual.clock_events |= {"heat"}
    assert usual.warnings() == ["the device's clocks were held down (heat): the times are too long"]


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        ("4194304, 518 MiB\n", ""),  # in a container the one id that is shown is the worker's
        ("4001, 518 MiB\n4002, 1024 MiB\n", "1.00 GiB of its memory (process 4002)"),
        ("4001, [N/A]\n4002, [N/A]\n", "meanwhile (process 4002)"),
        ("", ""),
    ],
)
def test_other_processes_on_the_device_are_a_warning(driver, monkeypatch, processes, told):
    driver(ONE, processes)
    warnings = watched(monkeypatch).warnings()
    assert told in " ".join(warnings) if told else warnings == []


def test_neighbours_in_other_mig_instances_are_no_warning(driver, monkeypatch):
    driver(MIG, "4001, [N/A]\n4002, [N/A]\n4003, [N/A]\n")
    assert watched(monkeypatch, FACTS | {"device_name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}).warnings() == []
