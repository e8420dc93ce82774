"""Checks of a machine that run a compiler or a worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bexplore.actions import doctor
from bexplore.actions.doctor import Check, Status
from bexplore.config.load import load_config
from bexplore.engine.protocol.messages import CheckCompiler, Done
from tests.builders import JOBS

JOB = """\
train_input: {{batch_size: 8, micro_batch_size: explore}}
explore:
  device: cpu
  memory_budget: 512MiB
  compile: {{backend: aot_eager}}
  workload: {{model: "programs:{model}", batch: "programs:samples", loss: "programs:cross_entropy"}}
"""
CPU = {"device": "cpu", "device_name": "x", "capability": "y", "total_memory_bytes": None, "free_memory_bytes": None}


def names(checks) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture
def no_worker(monkeypatch):
    """torch is taken to work, without starting it."""
    line = Check(name="device", status=Status.OK, message="cpu")
    monkeypatch.setattr(doctor, "_device", lambda name, environment: (CPU | {"num_threads": 1}, line))


def job(folder: Path, model: str) -> Path:
    (folder / "programs.py").write_text((JOBS / "programs.py").read_text())
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model))
    return path


def test_a_working_machine_has_no_problem_and_every_check_is_there(no_worker):
    seen = names(doctor.examine(noise_s=0.05))
    assert {"python", "torch", "device", "compiler", "memory", "threads", "cache", "run folder", "noise"} <= set(seen)
    assert [check for check in seen.values() if check.status is Status.PROBLEM] == []


def test_without_torch_it_says_what_to_install_and_goes_on(monkeypatch):
    monkeypatch.setattr(doctor, "package_version", lambda name: "absent")
    seen = names(doctor.examine(noise_s=0))
    assert (seen["torch"].status, seen["torch"].fix) == (Status.PROBLEM, "pip install torch")
    assert "device" not in seen and "memory" in seen


def test_an_old_torch_is_a_problem(monkeypatch, no_worker):
    monkeypatch.setattr(doctor, "package_version", lambda name: "2.9.1+cu128")
    assert names(doctor.examine(noise_s=0))["torch"].fix == "pip install 'torch>=2.11'"


def test_a_torch_that_was_not_tested_is_a_warning_that_says_what_is_lost(monkeypatch, no_worker):
    monkeypatch.setattr(doctor, "package_version", lambda name: "2.99.0+cu150")
    complete = names(doctor.examine(noise_s=0))["torch"]
    assert complete.status is Status.WARNING and "2.99.0+cu150, which was not tested" in complete.message
    assert "each private interface" in complete.message and "use torch 2.11 to 2." in complete.fix
    answer = Done(values={"missing": [("the trace: memory is unknown", "torch._inductor.x")]})
    monkeypatch.setattr(doctor, "_answer", lambda request, environment: answer)
    lacking = names(doctor.examine(noise_s=0))["torch"]
    assert "lost: the trace: memory is unknown (torch._inductor.x is missing)" in lacking.message


def test_a_compiler_that_is_missing_or_cannot_do_openmp_is_a_problem(monkeypatch, no_worker, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert names(doctor.examine(noise_s=0))["compiler"].status is Status.PROBLEM
    liar = tmp_path / "c++"
    liar.write_text("#!/bin/sh\necho 'no OpenMP here' >&2\nexit 1\n")
    liar.chmod(0o755)
    monkeypatch.setenv("CXX", str(liar))
    assert "no OpenMP here" in names(doctor.examine(noise_s=0))["compiler"].message


def test_more_threads_than_processors_are_a_warning(monkeypatch):
    monkeypatch.setattr(
        doctor, "_device", lambda name, environment: (CPU | {"num_threads": 4096}, doctor._device_line(CPU))
    )
    check = names(doctor.examine(noise_s=0))["threads"]
    assert (check.status, check.fix) == (Status.WARNING, f"export OMP_NUM_THREADS={len(os.sched_getaffinity(0))}")


def test_the_kernel_is_built_and_run_by_a_worker():
    assert doctor._answer(CheckCompiler(device="cpu"), {}).values["is_right"]


def test_a_device_that_torch_does_not_see_is_a_problem_with_those_it_sees():
    facts, check = doctor._device("cuda:77", {})
    assert (facts, check.status) == ({}, Status.PROBLEM)
    assert "sees" in check.message and "explore.device" in check.fix


def test_a_cache_that_cannot_be_written_is_a_problem(monkeypatch, no_worker):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/cache")
    check = names(doctor.examine(noise_s=0))["cache"]
    assert check.status is Status.PROBLEM and "TORCHINDUCTOR_CACHE_DIR" in check.fix


def test_a_cache_in_whose_path_is_a_blank_is_a_problem(monkeypatch, no_worker, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "my cache"))
    check = names(doctor.examine(noise_s=0))["cache"]
    assert check.status is Status.PROBLEM and "without blanks" in check.fix


def test_an_account_without_a_name_has_a_cache(monkeypatch, no_worker):
    def fail(*_: object) -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(doctor, "getuser", fail)
    assert f"torchinductor_uid_{os.getuid()}" in names(doctor.examine(noise_s=0))["cache"].message


def test_a_job_that_traces_is_ok_and_one_with_a_bug_is_a_problem(tmp_path, monkeypatch, no_worker):
    monkeypatch.chdir(tmp_path)
    good = names(doctor.examine(load_config(job(tmp_path, "perceptron")), noise_s=0))["job"]
    assert good.status is Status.OK and "parameters" in good.message
    monkeypatch.setattr(doctor, "trace_in_worker", lambda *arguments, **settings: "no trace")
    bad = names(doctor.examine(load_config(job(tmp_path, "shape_error")), noise_s=0))["job"]
    assert bad.status is Status.PROBLEM and "--compilation eager" in bad.fix
    assert not (tmp_path / "local_compile_train").exists()
