"""Memory that a control group limits: the budget is the group's, and its kills are counted. Groups are folders here."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from bexplore.host import machine

GIB = 2**30
NO_LIMIT = 9223372036854771712  # of version 1: LONG_MAX, rounded down to a page


class Host:
    """Files of a host that has control groups of a version.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path, version: int, path: str, *, root: str = "/") -> None:
        self.version, self.mount = version, folder / "sys/fs/cgroup"
        (folder / "proc/self").mkdir(parents=True)
        membership = f"4:cpu,memory:{path}\n0::/" if version == 1 else f"0::{path}"
        options = "rw,memory" if version == 1 else "rw,nsdelegate"
        (folder / "proc/self/cgroup").write_text(f"9:name=systemd:/\n{membership}\n")
        kind = "cgroup" if version == 1 else "cgroup2"
        (folder / "proc/self/mountinfo").write_text(
            "22 1 0:5 / /proc rw - proc proc rw\n"
            f"35 24 0:30 {root} {self.mount} rw,nosuid shared:9 - {kind} x {options}\n"
        )

    def group(self, path: str, *, limit: int | None, used: int, cache: int = 0, kills: int = 0) -> None:
        """Write the files of a group, by its path below the mount."""
        folder = self.mount / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if self.version == 1:
            files = {"memory.limit_in_bytes": limit or NO_LIMIT, "memory.usage_in_bytes": used}
            files |= {"memory.stat": f"cache 7\ntotal_inactive_file {cache}"}
            files |= {"memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}"}
        else:
            files = {"memory.max": limit or "max", "memory.current": used, "memory.high": "max"}
            files |= {"memory.stat": f"anon 7\ninactive_file {cache}", "memory.events": f"oom 1\noom_kill {kills}"}
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")


@pytest.fixture
def host_of(tmp_path, monkeypatch):
    """Return a function that makes a host with 64 GiB, of which 48 are available."""
    memory = type(psutil.virtual_memory())._make
    zeros = dict.fromkeys(psutil.virtual_memory()._fields, 0) | {"total": 64 * GIB, "available": 48 * GIB}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(zeros.values()))
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    return lambda *arguments, **options: Host(tmp_path, *arguments, **options)


@pytest.mark.promise("a control group limits memory (container, Slurm, systemd)", "the budget is of its limit")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "root", "own"),
    [("/", "/", "/"), ("/slurm/job_7", "/", "/slurm/job_7"), ("/docker/ab", "/docker/ab", "/"), ("/../x", "/", "/")],
)
def test_memory_is_that_of_the_group_of_this_process(host_of, version, path, root, own):
    host_of(version, path, root=root).group(own, limit=8 * GIB, used=3 * GIB, cache=GIB)

    assert machine.available_memory_bytes() == 6 * GIB
    assert machine.total_memory_bytes() == 8 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_that_holds_the_own_one_limits_it_too(host_of, version):
    host = host_of(version, "/job/step")
    host.group("/job/step", limit=None, used=GIB)
    host.group("/job", limit=4 * GIB, used=2 * GIB)

    assert machine.available_memory_bytes() == 2 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_limit_memory_is_that_of_the_host(host_of, version):
    host_of(version, "/job").group("/job", limit=None, used=GIB)

    assert (machine.available_memory_bytes(), machine.total_memory_bytes()) == (48 * GIB, 64 * GIB)


def test_a_host_without_groups_has_its_own_memory(host_of):
    assert machine.available_memory_bytes() == 48 * GIB


def test_a_group_over_its_limit_has_no_memory_left(host_of):
    host_of(2, "/job").group("/job", limit=GIB, used=2 * GIB)

    assert machine.available_memory_bytes() == 0


@pytest.mark.promise("the kernel kills a worker at the limit of its control group", "it ran out of memory")
@pytest.mark.parametrize("version", [1, 2])
def test_kills_in_the_group_of_this_process_are_counted(host_of, version):
    host = host_of(version, "/job")
    host.group("/job", limit=GIB, used=0, kills=2)
    before = machine.oom_kills()
    host.group("/job", limit=GIB, used=0, kills=3)

    assert machine.oom_kills() == before + 1
