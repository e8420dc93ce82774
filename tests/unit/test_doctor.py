"""A line for each thing that an exploration needs; what is missing is said with what to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bexplore import doctor
from bexplore.cli.doctor import doctor as command
from bexplore.config.load import load_config
from bexplore.doctor import Check, Status
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
    monkeypatch.setattr(doctor, "_device", lambda name: (CPU | {"num_threads": 1}, line))


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


def test_a_compiler_that_is_missing_or_cannot_do_openmp_is_a_problem(monkeypatch, no_worker, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert names(doctor.examine(noise_s=0))["compiler"].status is Status.PROBLEM
    liar = tmp_path / "c++"
    liar.write_text("#!/bin/sh\necho 'no OpenMP here' >&2\nexit 1\n")
    liar.chmod(0o755)
    monkeypatch.setenv("CXX", str(liar))
    assert "no OpenMP here" in names(doctor.examine(noise_s=0))["compiler"].message


def test_more_threads_than_processors_are_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "_device", lambda name: (CPU | {"num_threads": 4096}, doctor._device_line(CPU)))
    check = names(doctor.examine(noise_s=0))["threads"]
    assert (check.status, check.fix) == (Status.WARNING, f"export OMP_NUM_THREADS={len(os.sched_getaffinity(0))}")


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
        ({"outcome": "measured", "is_right": True}, Status.OK),
        ({"outcome": "measured", "is_right": False}, Status.PROBLEM),
        ({"outcome": "crashed", "reason": "no ptxas"}, Status.PROBLEM),
    ],
)
def test_a_kernel_is_built_and_run_on_an_accelerator_and_what_it_lacks_is_told(monkeypatch, answer, status):
    monkeypatch.setattr(doctor, "_asked", lambda request: answer)
    assert list(doctor._kernel(CPU)) == []
    [check] = doctor._kernel(CPU | {"device": "cuda:0"})
    assert check.status is status and str(answer.get("reason", "")) in check.message


def test_the_kernel_is_built_and_run_by_a_worker():
    assert doctor._asked({"kind": "compile_check", "device": "cpu"})["is_right"]


def test_a_device_that_torch_does_not_see_is_a_problem_that_says_what_it_sees():
    facts, check = doctor._device("cuda:77")
    assert (facts, check.status) == ({}, Status.PROBLEM)
    assert "sees" in check.message and "explore.device" in check.fix


def test_a_device_without_an_account_of_its_memory_is_a_warning():
    check = doctor._device_line(CPU | {"device": "mps:0"})
    assert check.status is Status.WARNING and "explore.memory_budget" in check.fix


def test_equal_work_that_takes_unequal_time_is_noise():
    waits = iter([0.001, 0.004] * 1000)
    assert doctor._noise(0.2, lambda: time.sleep(next(waits))).status is Status.WARNING


def test_a_cache_that_cannot_be_written_is_a_problem(monkeypatch, no_worker):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/cache")
    check = names(doctor.examine(noise_s=0))["cache"]
    assert check.status is Status.PROBLEM and "TORCHINDUCTOR_CACHE_DIR" in check.fix


def test_a_job_that_traces_is_ok_and_one_with_a_bug_is_a_problem(tmp_path, monkeypatch, no_worker):
    monkeypatch.chdir(tmp_path)
    good = names(doctor.examine(load_config(job(tmp_path, "perceptron")), noise_s=0))["job"]
    assert good.status is Status.OK and "parameters" in good.message
    monkeypatch.setattr(doctor, "trace_in_worker", lambda *arguments: "no trace")
    bad = names(doctor.examine(load_config(job(tmp_path, "shape_error")), noise_s=0))["job"]
    assert bad.status is Status.PROBLEM and "--compilation eager" in bad.fix
    assert not (tmp_path / "local_compile_train").exists()


def test_json_is_one_object_a_line_and_a_problem_is_an_exit_code(monkeypatch):
    monkeypatch.setattr(doctor, "package_version", lambda name: "absent")
    done = CliRunner().invoke(command, ["--json", "--noise-s", "0"])
    checks = [json.loads(line) for line in done.output.splitlines()]
    assert {check["event"] for check in checks} == {"check"}
    assert {check["status"] for check in checks} <= {"ok", "warning", "problem"}
    assert done.exit_code == 4


def test_colours_are_for_terminals_and_no_color_is_respected(monkeypatch):
    monkeypatch.setattr(doctor, "package_version", lambda name: "absent")
    plain = CliRunner().invoke(command, ["--noise-s", "0"], color=True, env={"NO_COLOR": "1"})
    assert "\x1b" not in plain.output
    assert "\x1b" in CliRunner().invoke(command, ["--noise-s", "0"], color=True, env={"NO_COLOR": ""}).output


def test_every_command_that_needs_torch_says_so_where_it_is_missing(tmp_path):
    script = (
        "import sys, importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a)\n"
        "from bexplore.cli import main\n"
        "sys.argv = ['bexplore', *sys.argv[1:]]\nmain()"
    )
    path = job(tmp_path, "perceptron")
    for arguments in (["explore", path], ["probe", path, "--micro-batch-size", "1"], ["trace", path]):
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: torch is not installed here\nhint: pip install torch"), done.stderr
