"""A line for each thing that an exploration needs; what is missing is said with what to type."""

from __future__ import annotations

import sys
import time

import pytest

from bexplore.actions import doctor
from bexplore.actions.doctor import Status
from bexplore.engine.process.launcher import KEY_VARIABLE
from bexplore.engine.protocol.messages import Done, Failed
from bexplore.measurement.probe import Outcome
from tests.unit.config.builders import Folder, sections

CPU = {"device": "cpu", "device_name": "x", "capability": "y", "total_memory_bytes": None, "free_memory_bytes": None}


def test_an_accelerator_that_torch_does_not_use_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "accelerator_name", lambda: "NVIDIA H100")
    assert doctor._device_line(CPU).status is Status.WARNING


@pytest.mark.parametrize(
    ("installed", "status"),
    [({"triton": "3.6.0"}, Status.OK), ({"pytorch-triton-rocm": "3.6.0"}, Status.OK), ({}, Status.PROBLEM)],
)
def test_triton_may_come_with_any_of_torchs_builds(monkeypatch, installed, status):
    monkeypatch.setattr(doctor, "package_version", lambda name: installed.get(name, "absent"))
    assert doctor._triton().status is status


def test_tritons_launcher_needs_a_c_compiler_and_pythons_header(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in doctor._launcher().message
    monkeypatch.setenv("CC", sys.executable)
    assert (doctor._launcher().status, doctor._launcher().fix) == (Status.PROBLEM, "apt install python3-dev")
    (tmp_path / "Python.h").write_text("")
    assert doctor._launcher().status is Status.OK


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Done(values={"is_right": True}), Status.OK),
        (Done(values={"is_right": False}), Status.PROBLEM),
        (Failed(outcome=Outcome.CRASHED, reason="no ptxas"), Status.PROBLEM),
    ],
)
def test_a_kernel_is_built_and_run_on_an_accelerator_and_what_it_lacks_is_told(monkeypatch, answer, status):
    monkeypatch.setattr(doctor, "_answer", lambda request, environment: answer)
    assert list(doctor._kernel(CPU, {})) == []
    [check] = doctor._kernel(CPU | {"device": "cuda:0"}, {})
    assert check.status is status and getattr(answer, "reason", "") in check.message


def test_a_device_without_an_account_of_its_memory_is_a_warning():
    check = doctor._device_line(CPU | {"device": "mps:0"})
    assert check.status is Status.WARNING and "explore.memory_budget" in check.fix


def test_equal_work_that_takes_unequal_time_is_noise():
    waits = iter([0.001, 0.004] * 1000)
    assert doctor._noise(0.2, lambda: time.sleep(next(waits))).status is Status.WARNING


def ranks(tmp_path, launcher: str | None, monkeypatch, *, installed: str = "absent", key: str = ""):
    """The check of a job of four ranks, on a machine without any launcher but torch's."""
    monkeypatch.setattr(doctor, "package_version", lambda name: installed)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name if name == sys.executable else None)
    monkeypatch.setenv(KEY_VARIABLE, key)
    settings = {"launcher": launcher, "parallelism": {"data_parallel_shard_degree": 4}, "rendezvous": "node1:29400"}
    [check] = doctor._ranks(Folder(tmp_path).load(sections(num_csx=4, explore=settings)))
    return check


@pytest.mark.parametrize(
    ("launcher", "installed", "key", "status", "told"),
    [
        (None, "absent", "", Status.OK, "one rank of 4: the times hold no communication"),
        ("torchrun", "absent", "", Status.OK, "4 ranks, started by torchrun"),
        ("srun", "absent", "", Status.PROBLEM, "there is no program srun"),
        ("mpirun -n 4 {worker}", "absent", "", Status.PROBLEM, "there is no program mpirun"),
        ("ray", "absent", "", Status.PROBLEM, "the package ray is absent"),
        ("ray", "2.60.0", "", Status.OK, "4 ranks, started by ray"),
        ("external", "absent", "", Status.PROBLEM, "and it is not set"),
        ("external", "absent", "secret", Status.OK, "4 ranks, started by you"),
    ],
)
def test_what_starts_the_ranks_is_checked(tmp_path, monkeypatch, launcher, installed, key, status, told):
    check = ranks(tmp_path, launcher, monkeypatch, installed=installed, key=key)

    assert (check.name, check.status) == ("ranks", status)
    assert told in check.message
    assert bool(check.fix) is (status is Status.PROBLEM)
    assert "secret" not in check.message


def test_a_job_of_one_device_has_no_check_of_ranks(tmp_path):
    assert list(doctor._ranks(Folder(tmp_path).load(sections(explore={"device": "cpu"})))) == []
