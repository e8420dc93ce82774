"""A worker that hangs or dies in any stage, not only in its steps: its outcome, its reason, and nothing left behind."""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from bexplore.engine.process import limits as process_limits
from bexplore.engine.process.limits import MemoryWatchdog, StageLimits
from bexplore.engine.program_client import trace_in_worker
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import JOBS, imported_job, in_child

MIB = 2**20
TINY = """\
train_input: {batch_size: 8, micro_batch_size: {explore: {max: 2}}}
explore:
  device: cpu
  memory_budget: 512MiB
  max_probes: 2
  compile: false
  workload: {model: programs:perceptron, batch: programs:samples, loss: programs:cross_entropy}
"""


def job(model: str = "programs:perceptron", batch: str = "programs:samples", **fields):
    paths = {"model": model, "batch": batch, "loss": "programs:cross_entropy"}
    return dataclasses.replace(imported_job(**fields), model=paths)


def probe(size: int, compilation: Compilation = Compilation.EAGER) -> Probe:
    return Probe(number=0, micro_batch_size=size, compilation=compilation, max_passes=2)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.promise("a compiler that hangs or dies", "an outcome of its probe; no child is left")
@pytest.mark.parametrize(
    ("bug", "outcome", "reason"),
    [
        ("hang", Outcome.TIMED_OUT, "no progress in stage 'compile' for 3 s"),
        ("segfault", Outcome.CRASHED, "SIGSEGV"),
        ("close_pipe", Outcome.CRASHED, ""),
        ("raise", Outcome.COMPILE_FAILED, "the user's own mistake"),
    ],
)
def test_a_compiler_that_hangs_or_dies_fails_its_probe_and_leaves_no_child(
    run_on, monkeypatch, tmp_path, bug, outcome, reason
):
    monkeypatch.setenv("BUG", bug)
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    if bug == "hang":
        monkeypatch.setattr(process_limits, "FIRST_LIMITS_S", {**process_limits.FIRST_LIMITS_S, "compile": 3.0})
    limits = StageLimits(floor_s=3.0)
    runner = run_on(job("bugs:misbehaves", compile=CompileSettings(backend="misbehaving")), limits=limits)

    died = runner(probe(1, Compilation.EXACT))
    next_one = runner(probe(1))

    assert died.outcome is outcome, died.reason
    assert reason in died.reason
    assert not is_running(int((tmp_path / "child").read_text()))
    assert next_one.outcome is Outcome.MEASURED
    assert len(list((tmp_path / "run" / "workers").glob("*.log"))) == 2  # the next probe cost one worker, no second try


@pytest.mark.promise("a data iterator that hangs", "timed out, with the stage that hung")
def test_a_data_iterator_that_hangs_is_named_as_the_stage_that_hung(run_on):
    runner = run_on(job(batch="bugs:hangs_at_three"), limits=StageLimits(step_limit_s=2.0, floor_s=2.0))

    hung = runner(dataclasses.replace(probe(3), time_limit_s=1800.0))

    assert hung.outcome is Outcome.TIMED_OUT
    assert "no progress in stage 'batch' for 2 s" in hung.reason
    assert runner(probe(1)).outcome is Outcome.MEASURED


@pytest.mark.promise("a trace that hangs, dies or fails", "a reason; the exploration goes on without a trace")
@pytest.mark.parametrize(
    ("bug", "reason"),
    [
        ("hang", "no progress in stage 'trace' for 20 s; explore.trace_time_limit"),
        ("segfault", "SIGSEGV"),
        ("close_pipe", "without an answer"),
        ("raise", "the user's own mistake"),
    ],
)
def test_a_trace_that_hangs_dies_or_fails_is_a_reason_and_not_the_end(monkeypatch, tmp_path, bug, reason):
    monkeypatch.setenv("BUG", bug)
    limit_s = 20.0 if bug == "hang" else 120.0

    found = trace_in_worker(job("bugs:misbehaves"), tmp_path, lambda message: None, limit_s=limit_s)

    assert isinstance(found, str)
    assert re.search(reason, found)


@pytest.mark.promise("a folder that is read-only", "one error that says where to write instead")
@pytest.mark.skipif(os.getuid() == 0 and shutil.which("setpriv") is None, reason="needs setpriv to be anybody")
def test_a_read_only_folder_is_one_error_that_says_where_to_write(tmp_path):
    shutil.copy(JOBS / "programs.py", tmp_path)
    (tmp_path / "job.yaml").write_text(TINY)
    # The system's own user may write anywhere, unless that power is taken from it.
    as_anybody = ["setpriv", "--bounding-set", "-dac_override"] if os.getuid() == 0 else []
    tmp_path.chmod(0o555)

    done = subprocess.run(
        [*as_anybody, sys.executable, "-m", "bexplore", "explore", "job.yaml"],
        cwd=tmp_path,
        env=os.environ | {"BEXPLORE_LOCK_DIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: cannot write the run directory under" in done.stderr
    assert "--model-dir" in done.stderr


def test_shared_memory_which_no_limit_refuses_gets_no_slack():
    wait, go = os.pipe()

    def hold() -> None:
        os.read(wait, 1)  # what is held before the watch begins is not growth
        area = mmap.mmap(-1, 128 * MIB)
        for start in range(0, len(area), MIB):
            area[start : start + MIB] = b"x" * MIB
        time.sleep(60)

    pid = in_child(hold)
    try:
        watch = MemoryWatchdog(pid, 2**40)
        watch.allow(120 * MIB)  # with the slack that other memory gets, all of it would be allowed
        os.write(go, b"x")
        deadline = time.monotonic() + 20
        while not watch.violation() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "resident memory passed" in watch.violation()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(wait)
        os.close(go)
