"""What the driver shows of the devices, by a tool that prints what a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.command import processes
from bexplore.command.processes import DeviceUse

MEMORY = "--query-gpu=uuid,memory.used"
PROCESSES = "--query-compute-apps=gpu_uuid,pid"


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
    monkeypatch.setattr(processes, "FREE_POLL_S", 0.01)

    def prints(query: str, *answers: str) -> None:
        (tmp_path / query).mkdir()
        for index, answer in enumerate(answers):
            (tmp_path / query / str(index)).write_text(answer)

    return prints


def test_the_memory_of_an_ended_start_is_waited_for(driver):
    driver(MEMORY, "GPU-1, 500", "GPU-1, 40000", "GPU-1, 40000", "GPU-1, 510")

    assert DeviceUse().wait_until_free() == []


def test_memory_that_is_never_free_is_a_warning_about_the_next_size(driver, monkeypatch):
    monkeypatch.setattr(processes, "FREE_LIMIT_S", 0.1)
    driver(MEMORY, "GPU-1, 500\nGPU-2, 5", "GPU-1, 500\nGPU-2, 2053")

    assert DeviceUse().wait_until_free() == [
        "device GPU-2 holds 2.00 GiB more than before the start: the next size has less"
    ]


def test_others_on_the_devices_of_the_start_are_a_warning_and_those_on_other_devices_are_none(driver):
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
