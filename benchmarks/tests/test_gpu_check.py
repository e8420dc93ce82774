"""What runs in a GPU's first hour: it resumes, a step that ends badly is a line, and no registry is needed."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from benchmarks import engine, gpu_packages
from benchmarks.engine_jobs import CUDA_JOBS, tiny_jobs
from benchmarks.gpu_check import allocator_steps, running
from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.planted import PLANTED
from benchmarks.gpu_check.report import markdown
from benchmarks.gpu_check.state import State
from benchmarks.gpu_check.steps import STEPS
from benchmarks.gpu_check.verdict import Word, judged
from bexplore.config.load import load_config
from tests.builders import JOBS

CHILD = (sys.executable, str(JOBS / "gpu_check_child.py"))
LONGEST_S = 540


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The steps of `gpu_check_child.py`, run as a user runs the real ones."""
    monkeypatch.setenv("GPU_CHECK_CALLS", str(tmp_path / "calls"))
    monkeypatch.syspath_prepend(str(JOBS))
    steps = importlib.import_module("gpu_check_child").STEPS

    def run(*arguments: str, names: tuple[str, ...] = ("dies", "fine", "reads", "raises")) -> dict:
        chosen = [step for step in steps if step.name in names]
        asked = ["--cpu", "--results", str(tmp_path / "results"), *arguments]
        assert main(asked, steps=chosen, child=CHILD) == 0
        path = tmp_path / "results" / "gpu_check_cpu.json"
        return json.loads(path.read_text())["steps"] if path.exists() else {}

    return run


def calls_of_fine(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


def await_end(pid: int) -> None:
    """Fail if a process is still there after a while; one that nobody reaps has ended."""
    until_s = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_s, f"process {pid} goes on"
        time.sleep(0.1)


def test_a_step_that_dies_or_raises_is_a_verdict_and_the_others_run(listed):
    steps = listed()
    assert {name: step["verdict"] for name, step in steps.items()} == {
        "dies": "failed",
        "fine": "ok",
        "reads": "ok",
        "raises": "failed",
    }
    assert steps["dies"]["facts"]["before"] == "it died"
    assert "-6" in steps["dies"]["found"]
    assert steps["raises"]["found"] == "ValueError: a typing error"
    assert "in _raises" in steps["raises"]["facts"]["traceback"]


def test_what_is_known_is_not_run_again_unless_asked_for(listed, tmp_path):
    listed()
    listed()
    assert calls_of_fine(tmp_path) == 1
    listed("--retry")
    assert calls_of_fine(tmp_path) == 1
    listed("--only", "fine")
    assert calls_of_fine(tmp_path) == 2
    listed("--fresh")
    assert calls_of_fine(tmp_path) == 3


def test_a_step_that_hangs_is_ended_with_its_children_at_its_limit(listed):
    step = listed(names=("hangs",))["hangs"]
    assert (step["verdict"], step["found"]) == ("failed", "no end within 3 s")
    await_end(step["facts"]["child"])


def test_a_step_that_the_end_of_the_time_cuts_off_is_run_by_the_next_call(listed, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_check.__main__.ENDING_S", 0.0)
    monkeypatch.setattr("benchmarks.gpu_check.__main__.USUAL_IF_TINY_S", 0.1)
    assert listed("--minutes", "0.02", names=("hangs",)) == {}
    assert listed(names=("hangs",))["hangs"]["verdict"] == "failed"


def test_without_time_no_step_begins_and_the_table_has_all_of_them(listed, tmp_path):
    assert listed("--minutes", "0.1") == {}
    assert (tmp_path / "results" / "gpu_check_cpu.md").read_text().count("**not run**") == 4


def test_a_call_goes_on_where_a_killed_one_stopped(listed, tmp_path):
    program = (
        "import sys; from gpu_check_child import STEPS; from benchmarks.gpu_check.__main__ import main;"
        f"main(['--cpu', '--results', {str(tmp_path / 'results')!r}], child={CHILD!r},"
        " steps=[s for s in STEPS if s.name in ('fine', 'hangs')])"
    )
    path = os.pathsep.join([str(JOBS), str(running.ROOT)])
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path})
    hangs = tmp_path / "calls.hangs"
    while process.poll() is None and not (hangs.exists() and hangs.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    await_end(int(hangs.read_text()))
    steps = listed(names=("fine", "reads"))
    assert calls_of_fine(tmp_path) == 1
    assert steps["fine"]["verdict"] == steps["reads"]["verdict"] == "ok"


def test_what_another_device_has_shown_does_not_count(tmp_path):
    path = tmp_path / "state.json"
    State(path, {"device": "one", "torch": "2.11"}).add("device", judged(True, "seen"), {}, wall_s=1.0, at="2026-01-01")
    assert State(path, {"device": "one", "torch": "2.11"}).is_ok("device")
    other = State(path, {"device": "two", "torch": "2.11"})
    assert not other.is_done("device")
    assert "one" in other.dropped


def test_the_table_names_the_device_and_keeps_one_line_a_step(tmp_path):
    state = State(tmp_path / "state.json", {"device": "NVIDIA X", "torch": "2.11"})
    state.add("device", judged(False, "a | b\nc" + "d" * 1000), {}, wall_s=1.0, at="2026-01-01 10:00:00")
    page = markdown(state, STEPS)
    rows = [line for line in page.splitlines() if line.startswith(("| 1", "| 2", "| 3", "| 4", "| 5"))]
    assert "NVIDIA X, torch 2.11, 2026-01-01" in page
    assert "1 differs" in page and Word.NOT_RUN in page
    assert len(rows) == len([step for step in STEPS if step.section <= 5])
    assert "a \\| b cddd" in page and max(map(len, rows)) < 700


def test_every_step_has_its_own_name_and_ends_within_nine_minutes():
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(step.usual_s <= step.limit_s <= LONGEST_S - 10 for step in STEPS)


def test_the_real_steps_run_on_the_cpu(tmp_path):
    recording = tmp_path / "events.json"
    ended = running.run("device", limit_s=120, on_cpu=True, known={}, recording=recording)
    assert ended.verdict.word is Word.OK, ended
    assert ended.facts["packages"]["torch"].startswith("2.")
    ended = running.run("allocator_events", limit_s=120, on_cpu=True, known={}, recording=recording)
    assert ended.verdict.word is Word.OK, ended
    assert [one["micro_batch_size"] for one in json.loads(recording.read_text())["recordings"]] == [1, 4]


def test_a_planted_failure_tells_its_chain_and_what_bexplore_makes_of_it():
    command = [sys.executable, "-m", "benchmarks.gpu_check.planted", "oom_compile", "cpu"]
    done = subprocess.run(command, cwd=running.ROOT, text=True, capture_output=True, check=True)
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["outcome"] == record["wanted"] == PLANTED["oom_compile"][1]
    assert record["chain"][0]["type"] == "torch._dynamo.exc.BackendCompilerFailed"
    assert record["usable_after"]


def test_allocator_events_count_from_the_lowest_address():
    trace = [
        {"action": "segment_alloc", "addr": 4096, "size": 2048, "stream": 0},
        {"action": "alloc", "addr": 4608, "size": 512, "stream": 0},
        {"action": "snapshot", "addr": 0, "size": 0},
    ]
    assert allocator_steps.compact(trace) == [["segment_alloc", 0, 2048], ["alloc", 512, 512]]


def test_the_jobs_for_cuda_have_tiny_twins_on_the_cpu(tmp_path):
    tiny = tiny_jobs(tmp_path)
    assert tiny.keys() == CUDA_JOBS.keys()
    for job in tiny.values():
        loaded = load_config(job.config)
        assert loaded.job.device == "cpu"
        assert loaded.job.compile.backend == "eager"


def test_a_measurement_that_outlasts_the_time_is_cut_off_and_not_kept(tmp_path, capsys):
    def sleep(_known: engine.Known) -> dict:
        time.sleep(60)
        return {}

    known = engine.Known(tmp_path / "none.jsonl")
    unit = engine.Unit(job="cuda_gpt", kind="explore", expected_s=0.1, measure=sleep)
    deadline_s = time.monotonic() + 5
    with engine._alarm(0.01):
        assert engine.run([unit, unit], known, deadline_s=deadline_s, write=lambda: None) == 0
    assert known.records == {}
    assert "cut off" in capsys.readouterr().err


def wheel(folder: Path, name: str, version: str, *, requires: str = "") -> None:
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        file.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n{needs}")


def test_only_packages_that_are_absent_or_too_old_are_unpacked(tmp_path, monkeypatch):
    wheels, unpacked = tmp_path / "wheels", tmp_path / "unpacked"
    wheels.mkdir()
    wheel(wheels, "absent_one", "1.0", requires="absent_two")
    wheel(wheels, "absent_two", "2.0")
    wheel(wheels, "click", "99.0")
    wheel(wheels, "psutil", "99.0")
    monkeypatch.setattr(gpu_packages, "WHEELS", wheels)
    monkeypatch.setattr(gpu_packages, "UNPACKED", unpacked)
    monkeypatch.setattr(sys, "path", list(sys.path))
    wanted = [gpu_packages.Requirement(text) for text in ("absent-one", "click>=8", "psutil>=50")]
    monkeypatch.setattr(gpu_packages, "_wanted", lambda: iter(wanted))
    gpu_packages.unpack()
    assert {path.name for path in unpacked.glob("*.py")} == {"absent_one.py", "absent_two.py", "psutil.py"}


def test_torch_and_what_came_with_it_stays_as_the_machine_has_it():
    names = gpu_packages._closure(gpu_packages._wanted(), "3.12")
    assert {"optuna", "pydantic-core", "sqlalchemy", "structlog", "ruamel-yaml"} <= names
    assert not names & {"torch", "triton", "numpy", "transformers", "sympy"}
