"""Probes that die, explorers that are killed, disks that refuse: nothing lost, nothing taken down, the reason told."""

from __future__ import annotations

import dataclasses
import mmap
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bexplore.api import explore
from bexplore.config.load import load_config
from bexplore.engine.process import limits
from bexplore.engine.process.limits import MemoryWatchdog
from bexplore.errors import EngineError
from bexplore.exploration import job as exploration
from bexplore.exploration.base import ExploreOptions
from bexplore.host import json_files, locks
from bexplore.host.process_tree import WORKER_MARK, find_marked
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Outcome, Probe, Purpose
from bexplore.run import fingerprint
from bexplore.run.journal import Journal
from tests.builders import JOBS, imported_job, in_child, observed

MIB = 2**20


@pytest.mark.promise("the process that holds the device's lock is killed", "the lock is free again")
def test_a_lock_that_a_killed_process_held_is_free_again(tmp_path):
    def hold() -> None:
        with locks.locked(tmp_path / "lock"):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(in_child(hold), 0)

    with locks.locked(tmp_path / "lock", wait_s=0.0):
        pass


# Several explorers


@pytest.mark.promise("two processes append to one journal", "no line is lost")
def test_two_processes_append_to_one_journal_and_no_line_is_lost(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")

    def append(first: int) -> None:
        for number in range(first, first + 40):
            book.append(observed(1, number=number))

    for pid in [in_child(lambda: append(0)), in_child(lambda: append(40))]:
        assert os.waitpid(pid, 0)[1] == 0

    assert sorted(item.probe.number for item in book.read()) == list(range(80))


# Disks and storages


@pytest.mark.promise("a full disk below the run directory", "an error that says where; nothing finished is lost")
def test_a_full_disk_is_an_error_that_says_where_and_loses_nothing(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    book.append(observed(1))
    before = book.path.read_bytes()

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, len(before) + 10))
        with pytest.raises(EngineError, match=r"cannot append to .*journal\.jsonl") as error:
            book.append(observed(2, number=1))
        assert "it resumes here" in error.value.hint

    assert os.waitpid(in_child(fill), 0)[1] == 0
    assert book.read() == [observed(1)]
    book.append(observed(2, number=1))
    assert len(book.read()) == 2


@pytest.mark.promise("a file that cannot be replaced", "stays as it was, whole")
def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path):
    path = tmp_path / "result.json"
    json_files.write_json(path, {"a": 1})

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
        with pytest.raises(EngineError, match="cannot write"):
            json_files.write_json(path, {"a": list(range(100))})

    assert os.waitpid(in_child(fill), 0)[1] == 0
    assert json_files.read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


# What may be compared with what


CONFIG = """\
train_input: {micro_batch_size: explore, batch_size: 8}
explore:
  device: cpu
  max_probes: 3
  workload: {model: programs:perceptron, batch: programs:samples, loss: programs:cross_entropy}
"""


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A job file beside its code, with an unfinished run of it; gives the file's path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "programs.py").write_text((JOBS / "programs.py").read_text())
    path = tmp_path / "job.yaml"
    path.write_text(CONFIG)
    ours = exploration.JobExploration(load_config(path), ExploreOptions())
    ours._new_run()
    return path


def plan_of(path: Path, **options) -> tuple[str, ...]:
    config = load_config(path, **options)
    (plan,) = explore(config, ExploreOptions(dry_run=True))
    return plan.changes


def test_nothing_changed_goes_on(earlier):
    assert plan_of(earlier) == ()


@pytest.mark.parametrize(
    ("name", "told"),
    [("package_version", "torch"), ("processor_name", "processor"), ("accelerator_name", "accelerator")],
)
def test_another_torch_or_machine_starts_over_and_is_named(earlier, monkeypatch, name, told):
    monkeypatch.setattr(fingerprint, name, lambda *_arguments: "another")

    (change,) = [line for line in plan_of(earlier) if line.startswith(told)]

    assert "-> another" in change


def test_another_model_starts_over_and_is_named(earlier):
    assert any(
        "convolutional" in line
        for line in plan_of(earlier, overrides=("explore.workload.model=programs:convolutional",))
    )


def test_another_optimizer_starts_over_and_is_named(earlier):
    changes = plan_of(earlier, overrides=("explore.workload.optimizer={name: SGD, arguments: {lr: 0.1}}",))

    assert any("SGD" in line for line in changes)


def test_changed_code_starts_over_and_is_named(earlier):
    code = earlier.with_name("programs.py")
    code.write_text(code.read_text() + "\nX = 1\n")

    assert any("programs.py" in line for line in plan_of(earlier))


# Memory


def in_new_process(body: str) -> subprocess.CompletedProcess[str]:
    """Run statements in a process that has a heap of its own, as a worker has: a forked one may reuse its parent's."""
    head = "import numpy as np\nfrom bexplore.engine.worker.own_process import DataLimit\nMIB = 2**20\n"
    command = [sys.executable, "-c", head + textwrap.dedent(body)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


@pytest.mark.promise("a training that takes more memory than its budget", "refused the memory before the host is full")
def test_steps_cannot_exceed_the_budget_whatever_an_earlier_size_left():
    done = in_new_process("""
        def eat():
            held = []
            try:
                while len(held) < 200:
                    held.append(np.ones(MIB))  # 8 MiB
            except MemoryError:
                pass
            return 8 * len(held)

        limit = DataLimit(256 * MIB)
        for _ in range(2):
            with limit.around_steps(0):
                print(eat())
        """)

    eaten = [int(line) for line in done.stdout.split()]
    assert len(eaten) == 2, done.stderr
    assert all(150 <= mib <= 256 + 64 for mib in eaten)


def test_a_heap_left_in_pieces_refuses_nothing_that_is_known_to_fit():
    done = in_new_process("""
        limit = DataLimit(256 * MIB)
        with limit.around_steps(0):
            del [np.ones(3 * MIB)][:]  # from here on the C library takes what is smaller from its heap
            pieces = [(np.ones(MIB), bytearray(2**16)) for _ in range(24)]  # 192 MiB, with something small between
            pins = [small for _, small in pieces]
            del pieces
        for is_known_to_fit in (True, False):
            with limit.around_steps(0, is_known_to_fit=is_known_to_fit):
                try:
                    held = [np.ones(3 * MIB // 2) for _ in range(18)]  # 216 MiB, none of which fits into a piece
                    print("fits")
                except MemoryError:
                    print("refused")
                held = []
        with limit.around_steps(0, is_known_to_fit=True):
            try:
                held = [np.ones(3 * MIB // 2) for _ in range(58)]
            except MemoryError:
                print("refused")
        """)

    assert done.stdout == "fits\nrefused\nrefused\n", done.stderr


def test_what_a_step_holds_before_the_compiler_counts_after_it_too():
    done = in_new_process("""
        limit = DataLimit(256 * MIB)
        with limit.around_steps(0):
            held = [np.ones(MIB) for _ in range(24)]  # 192 MiB
            limit.lift()
            compiler = np.ones(40 * MIB)  # 320 MiB, which it may take
            limit.lower()
            try:
                held += [np.ones(MIB) for _ in range(24)]
            except MemoryError:
                print("refused beside", compiler.size)
        """)

    assert done.stdout == f"refused beside {40 * MIB}\n", done.stderr


@pytest.mark.promise("memory taken by children and in shared memory", "counted and ended at the budget")
def test_the_watch_sees_shared_memory_and_children():
    def hold() -> None:
        area = mmap.mmap(-1, 128 * MIB)
        area[:] = b"x" * len(area)
        time.sleep(60)

    pid = in_child(hold)
    try:
        parent, child = (
            MemoryWatchdog(os.getpid(), limits.resident_bytes(os.getpid()) + 64 * MIB),
            MemoryWatchdog(pid, 64 * MIB),
        )
        deadline = time.monotonic() + 20
        while not (child.violation() and parent.violation()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "passed 64 MiB" in child.violation()
        assert "resident memory" in parent.violation()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_child_that_shares_pages_costs_nothing_until_it_writes():
    held = bytearray(b"x") * (256 * MIB)

    def idle() -> None:
        time.sleep(60)

    def writes() -> None:
        for start in range(0, len(held), 4096):
            held[start] = 1
        time.sleep(60)

    room = limits.resident_bytes(os.getpid()) + 96 * MIB
    pids = [in_child(idle)]
    try:
        watch = MemoryWatchdog(os.getpid(), room)
        time.sleep(0.2)
        assert watch.violation() == ""
        pids.append(in_child(writes))
        _until(lambda: "resident memory" in watch.violation())
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_the_winner_runs_several_steps_before_anything_is_timed(run_on, monkeypatch, tmp_path):
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    runner = run_on(eager("counted"))
    untimed = []

    for purpose in (Purpose.SEARCH, Purpose.VERIFY):
        (tmp_path / "count").write_bytes(b"")
        observation = runner(probe(4, purpose=purpose))
        num_timed = len(observation.pass_times_s)
        untimed.append((tmp_path / "count").stat().st_size - num_timed)

    checked = 2  # passes of the step's check, which the search makes once
    assert untimed == [1 + 2 + checked, 1 + 2 + 1]


# Workers that die, on the real engine


def eager(model: str, **fields):
    return dataclasses.replace(
        imported_job("perceptron", compile=CompileSettings(enabled=False), **fields),
        model={"model": f"bugs:{model}", "batch": "programs:samples", "loss": "programs:cross_entropy"},
    )


def probe(size: int, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=size, compilation=Compilation.EAGER, max_passes=2, **fields)


@pytest.mark.promise("a worker leaves processes behind", "all are ended before the next one starts")
def test_what_a_worker_left_behind_is_gone_and_the_next_starts_at_once(run_on, monkeypatch):
    monkeypatch.setenv("BUG", "leaves_children")
    runner = run_on(eager("misbehaves"))
    runner.start()
    mark = runner._workers.current.process._mark

    died = runner(probe(2))

    assert died.outcome is Outcome.CRASHED
    assert "SIGKILL" in died.reason  # and not timed out, though a child holds the pipe open and no end of file comes
    assert find_marked(WORKER_MARK, mark) == []
    assert runner(probe(1)).outcome is Outcome.MEASURED


@pytest.mark.promise("the explorer is killed while a worker's children run", "all of them end")
def test_what_a_worker_started_ends_with_an_explorer_that_is_killed(tmp_path):
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from bexplore.engine.process.worker_process import WorkerProcess\n"
        "worker = WorkerProcess(Path(sys.argv[1]) / 'log'); print(worker._mark, flush=True)\n"
        "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],\n"
        "    env=os.environ | {'BEXPLORE_WORKER': worker._mark}, start_new_session=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    mark = process.stdout.readline().strip()
    _until(lambda: len(find_marked(WORKER_MARK, mark)) >= 2)

    process.kill()
    process.wait()

    _until(lambda: not find_marked(WORKER_MARK, mark))


@pytest.mark.promise("a worker floods its output, or closes its pipe", "harms only its own probe")
@pytest.mark.parametrize(("bug", "outcome"), [("flood", Outcome.MEASURED), ("close_pipe", Outcome.CRASHED)])
def test_a_worker_that_floods_or_closes_its_pipe_harms_only_itself(run_on, monkeypatch, bug, outcome):
    monkeypatch.setenv("BUG", bug)
    runner = run_on(eager("misbehaves"))

    observation = runner(probe(2))

    assert observation.outcome is outcome, observation.reason
    (log,) = (runner.settings.run_dir / "workers").glob("*.log")
    assert log.stat().st_size <= 4 * MIB


@pytest.mark.promise("a program that reports progress for ever", "ended at the probe's time limit")
def test_a_probe_ends_at_its_time_limit_even_if_it_reports_all_the_while(run_on):
    # Starting, importing torch and building report their stages, and together take longer than a second anywhere.
    observation = run_on(imported_job("perceptron"))(probe(2, time_limit_s=1.0))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "1 s" in observation.reason


@pytest.mark.parametrize(
    ("model", "size", "reason"),
    [
        ("odd_only", 2, "pairs its samples"),
        ("normalized", 1, "more than 1 value per channel"),
        ("changes_type", 2, "dtype"),
        ("changes_device", 2, "meta"),
    ],
)
def test_a_bug_of_the_users_keeps_its_own_words_and_place(run_on, model, size, reason):
    observation = run_on(eager(model))(probe(size))

    assert observation.outcome is Outcome.CRASHED
    assert reason in observation.reason.lower()
    assert "bugs.py" in observation.traceback_text


def _until(holds) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.promise("a worker is stopped for a while in its probe (SIGSTOP, SIGCONT)", "the probe runs again")
def test_a_probe_whose_worker_was_stopped_for_a_while_runs_again(run_on):
    stopped = []

    def stop_once(message: dict) -> None:
        """Stop the worker once it times its passes, and let it go on two seconds later."""
        if message.get("stage") == "passes" and not stopped:
            stopped.append(runner.worker_pid)
            os.kill(runner.worker_pid, signal.SIGSTOP)
            threading.Timer(2.0, os.kill, (runner.worker_pid, signal.SIGCONT)).start()

    runner = run_on(imported_job("perceptron", compile=CompileSettings(enabled=False)), on_progress=stop_once)

    observation = runner(probe(4))

    assert observation.is_measured, observation.reason
    assert stopped and stopped[0] != runner.worker_pid
    assert any("was suspended for" in warning for warning in observation.warnings)
