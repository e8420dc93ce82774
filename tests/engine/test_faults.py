"""Probes that die, explorers that are killed, disks that refuse: nothing lost, nothing taken down, the reason told."""

from __future__ import annotations

import dataclasses
import io
import mmap
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import postgres
from benchmarks.fault_inputs import generate
from benchmarks.fault_recorded import in_child, kill_and_resume, several_on_one_study
from bexplore.config.load import load_config
from bexplore.engine.process import memory_watchdog, reaper
from bexplore.engine.process.memory_watchdog import MemoryWatchdog
from bexplore.engine.process.timeouts import COMPILE_FLOOR_S, FIRST_LIMITS_S, PATIENCE, STAGE_FLOOR_S, StageLimits
from bexplore.errors import EngineError, UserInputError
from bexplore.exploration import exploration, fingerprint, run_directory
from bexplore.exploration.events import failures_of
from bexplore.exploration.exploration import ExploreOptions
from bexplore.exploration.journal import Journal
from bexplore.host import json_files, locks
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.output.append_file import AppendFile
from bexplore.output.console import Progress
from bexplore.output.summary import print_summary
from bexplore.search import loop
from bexplore.search.policy.decision import StopReason
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space, candidate_sizes
from bexplore.search.study import storage, trials
from bexplore.search.study.sampler import BexploreSampler, open_study
from tests.builders import JOBS, imported_job, observed

MIB = 2**20
SPACE = Space.of([1, 2, 4, 8, 16])


def answers(probe: Probe) -> Observation:
    """Faster up to 8 samples, slower beyond."""
    pass_s = 0.1 + 0.01 * probe.micro_batch_size if probe.micro_batch_size <= 8 else 1.0
    return observed(probe.micro_batch_size, number=probe.number).__class__(
        probe=probe, outcome=Outcome.MEASURED, pass_times_s=(pass_s,) * 5, elapsed_s=1.0
    )


def explored(folder: Path, runner=answers, *, storage: Path | str | None = None, **options) -> loop.Result:
    book = Journal(folder / "journal.jsonl")
    run = loop.RunRecord(
        storage=storage or folder / "study.log",
        lock_path=folder / ".lock",
        record=book.append,
        history=book.read(),
    )
    *_, result = loop.explore(runner, space=SPACE, run=run, **options)
    return result


# Explorers that are killed


def test_a_killed_explorer_resumes_to_the_same_recommendation_and_repeats_no_probe(tmp_path):
    found = kill_and_resume(tmp_path, kills=4, seed=1)

    assert found["same recommendation"] == 4, found["failures"]
    assert (found["lost observations"], found["repeated probes"]) == (0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-9], id="half-written last record"),
        pytest.param(lambda data: data[:200] + b"\0\0\0" + data[230:], id="a hole in the middle"),
        pytest.param(lambda data: b'{"op_code": 99}\n' + data, id="a record of something else"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_a_damaged_study_is_rebuilt_from_the_journal_and_no_probe_is_repeated(tmp_path, damage):
    before = explored(tmp_path)
    path = tmp_path / "study.log"
    path.write_bytes(damage(path.read_bytes()))
    known = Journal(tmp_path / "journal.jsonl").read()

    after = explored(tmp_path)

    assert after.recommendation.micro_batch_size == before.recommendation.micro_batch_size
    assert Journal(tmp_path / "journal.jsonl").read() == known
    assert after.outcomes == before.outcomes


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-9] + b"\0" * 9, id="zeros at the end"),
        pytest.param(lambda data: data + b'{"op_code": 99}\n', id="a record of something else"),
        pytest.param(lambda data: data + b'{"op_code": 6, "worker_id": "x", "trial_id": 77}\n', id="of no known trial"),
        pytest.param(lambda data: data[:-40], id="cut off"),
    ],
)
def test_a_study_that_is_damaged_while_two_explorers_use_it_costs_neither_a_probe(tmp_path, damage):
    path = tmp_path / "study.log"
    books = [Journal(tmp_path / f"journal_{number}.jsonl") for number in range(2)]
    running = [
        loop.explore(
            answers,
            space=SPACE,
            run=loop.RunRecord(storage=path, record=book.append, lock_path=tmp_path / ".lock"),
        )
        for book in books
    ]
    for events in running:
        while not isinstance(next(events), loop.ProbeFinished):
            pass
    path.write_bytes(damage(path.read_bytes()))

    for events in running:
        try:
            *_, last = events
            assert isinstance(last, loop.Result)
        except EngineError as error:
            assert error.hint

    for book in books:
        known = book.read()
        run = loop.RunRecord(storage=path, record=book.append, history=known, lock_path=tmp_path / ".lock")
        *_, result = loop.explore(answers, space=SPACE, run=run)
        assert book.read()[: len(known)] == known
        assert result.recommendation.micro_batch_size == 8


def test_what_was_good_in_a_damaged_study_is_kept_under_another_name(tmp_path):
    explored(tmp_path)
    path = tmp_path / "study.log"
    damaged = b"garbage\n" + path.read_bytes()
    path.write_bytes(damaged)

    explored(tmp_path)

    assert (tmp_path / "study.log.damaged_1").read_bytes() == damaged


def test_a_lock_that_a_killed_process_held_is_free_again(tmp_path):
    def hold() -> None:
        with locks.locked(tmp_path / "lock"):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(in_child(hold), 0)

    with locks.locked(tmp_path / "lock", wait_s=0.0):
        pass


def test_a_lock_that_is_held_too_long_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "lock"
    refused = pytest.raises(EngineError, match="lock is locked by another process")
    with locks.locked(path), refused as error, locks.locked(path, wait_s=0.05):
        pass

    assert "fuser" in error.value.hint


def test_zeros_that_power_loss_left_at_the_end_of_a_journal_are_no_observation(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    book.append(observed(1))
    with book.path.open("ab") as handle:
        handle.write(b"\0" * 40 + b'"reason": ""}\n')

    assert book.read() == [observed(1)]
    book.append(observed(2, number=1))
    assert book.read() == [observed(1), observed(2, number=1)]


# Several explorers


def test_two_processes_append_to_one_journal_and_no_line_is_lost(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")

    def append(first: int) -> None:
        for number in range(first, first + 40):
            book.append(observed(1, number=number))

    for pid in [in_child(lambda: append(0)), in_child(lambda: append(40))]:
        assert os.waitpid(pid, 0)[1] == 0

    assert sorted(item.probe.number for item in book.read()) == list(range(80))


def test_two_explorers_share_a_study_file_and_one_is_killed(tmp_path):
    _is_shared_well(several_on_one_study(tmp_path, None, rounds=2, explorers=2, kills=1, seed=3))


@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "it is there")
def test_four_explorers_share_a_postgresql_study_and_two_are_killed(tmp_path):
    with postgres.server() as url:
        _is_shared_well(several_on_one_study(tmp_path, url, rounds=1, explorers=4, kills=2, seed=3))


def _is_shared_well(found: dict) -> None:
    assert found["numbers given twice"] == 0
    assert found["sizes searched twice by accident"] == 0
    assert found["observations not in the study"] == 0
    assert found["ended with an error"] == 0
    assert found["same answer as one process on the same observations"] == found["rounds"]


def test_a_lease_is_renewed_while_its_probe_runs_and_ends_with_its_explorer(tmp_path):
    asked = open_study(BexploreSampler(SPACE), storage=tmp_path / "study.log")
    trial = asked.ask({trials.PARAMETER: BexploreSampler(SPACE).distribution})
    with trials.leased(asked, trial, Probe(number=0, micro_batch_size=1), seconds=0.4):
        time.sleep(0.9)
        (running,) = asked.get_trials()
        assert not trials.is_abandoned(running, time.time())

    (left,) = asked.get_trials()
    assert trials.is_abandoned(left, time.time() + 0.5)


def test_a_trial_whose_explorer_was_killed_while_it_chose_misleads_no_one(tmp_path):
    asked = open_study(BexploreSampler(SPACE), storage=tmp_path / "study.log")
    asked._storage.create_new_trial(asked._study_id)

    result = explored(tmp_path)

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert result.outcomes == explored(fresh).outcomes
    sizes = [[item.micro_batch_size for item in Journal(f / "journal.jsonl").read()] for f in (tmp_path, fresh)]
    assert sizes[0] == sizes[1]


def test_an_explorer_stops_when_another_finds_enough_while_it_asks(tmp_path):
    settings, path = SearchSettings(max_probes=2, verify_exact=False), tmp_path / "study.log"

    def another_finishes() -> None:
        """Called between the decision to go on and the asking."""
        other = open_study(BexploreSampler(SPACE, settings), storage=path)
        number = len(other.trials)
        if number < 2:
            trials.rebuild(other, [observed(2**n, number=n) for n in range(2)], now=time.time())

    result = explored(tmp_path, storage=path, settings=settings, should_stop=another_finishes)

    assert result.stop_reason == StopReason.MAX_PROBES
    assert Journal(tmp_path / "journal.jsonl").read() == []


def test_an_observation_told_after_its_trial_was_given_up_is_kept(tmp_path):
    asked = open_study(BexploreSampler(SPACE), storage=tmp_path / "study.log")
    trial = asked.ask({trials.PARAMETER: BexploreSampler(SPACE).distribution})
    trials.abandon(asked, trial)

    trials.tell(asked, trial, observed(trial.params[trials.PARAMETER], number=trial.number))

    kept = [item for item in asked.get_trials() if not trials.is_abandoned(item, time.time())]
    assert [trials.evidence_of(item).outcome for item in kept] == [Outcome.MEASURED]


def test_an_observation_that_was_told_from_the_journal_meanwhile_is_not_told_twice(tmp_path):
    asked = open_study(BexploreSampler(SPACE), storage=tmp_path / "study.log")
    trial = asked.ask({trials.PARAMETER: BexploreSampler(SPACE).distribution})
    observation = observed(trial.params[trials.PARAMETER], number=trial.number)

    trials.rebuild(asked, [observation], now=time.time())
    trials.tell(asked, trial, observation)

    assert len(asked.get_trials()) == 1


# Disks and storages


def test_a_full_disk_is_an_error_that_says_where_and_loses_nothing(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    book.append(observed(1))
    before = book.path.read_bytes()

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, len(before) + 10))
        with pytest.raises(EngineError, match=r"cannot append to .*journal\.jsonl") as error:
            book.append(observed(2, number=1))
        assert "goes on from here" in error.value.hint

    assert os.waitpid(in_child(fill), 0)[1] == 0
    assert book.read() == [observed(1)]
    book.append(observed(2, number=1))
    assert len(book.read()) == 2


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


def test_a_log_that_its_disk_refuses_is_said_once_and_ends_nothing():
    said: list[str] = []
    log = AppendFile(Path("/dev/full"), said.append)

    log.write("one\n")
    log.write("two\n")

    assert len(said) == 1
    assert "No space left" in said[0]


def test_a_storage_that_is_gone_in_mid_run_is_an_engine_error_that_says_what_to_do(tmp_path):
    def runner(probe: Probe) -> Observation:
        (tmp_path / "study.log").unlink(missing_ok=True)
        (tmp_path / "study.log").mkdir()
        return answers(probe)

    with pytest.raises(EngineError, match="the study's storage failed") as error:
        explored(tmp_path, runner)

    assert "run the same command again" in error.value.hint
    (tmp_path / "study.log").rmdir()
    assert len(Journal(tmp_path / "journal.jsonl").read()) == 1
    assert explored(tmp_path).recommendation.micro_batch_size == 8


def test_a_database_without_its_driver_says_which_module_to_install():
    with pytest.raises(UserInputError, match="MySQLdb is not installed") as error:
        storage.open_storage("mysql://host/name")

    assert error.value.hint


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
    ours = exploration._Exploration(load_config(path), ExploreOptions())
    ours._new_run()
    return path


def plan_of(path: Path, **options) -> tuple[str, ...]:
    config = load_config(path, **options)
    (plan,) = exploration.explore(config, ExploreOptions(dry_run=True))
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


def test_starting_over_never_shares_a_study_with_what_was_before(earlier):
    config = load_config(earlier)
    shared, alone = (
        exploration._Exploration(config, ExploreOptions()),
        exploration._Exploration(config, ExploreOptions(fresh=True)),
    )

    assert shared._new_run().meta()["study"] == shared._new_run().meta()["study"]
    assert alone._new_run().meta()["study"] != shared._new_run().meta()["study"]


# Memory


def in_new_process(body: str) -> subprocess.CompletedProcess[str]:
    """Run statements in a process that has a heap of its own, as a worker has: a forked one may reuse its parent's."""
    head = "import numpy as np\nfrom bexplore.engine.worker.memory_limit import DataLimit\nMIB = 2**20\n"
    command = [sys.executable, "-c", head + textwrap.dedent(body)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


def test_steps_cannot_take_more_than_the_budget_whatever_an_earlier_size_left():
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


def test_a_heap_that_an_earlier_size_left_in_pieces_refuses_nothing_that_is_known_to_fit():
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


def test_what_a_step_holds_when_the_compiler_begins_still_counts_when_it_ends():
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


def test_the_watch_sees_shared_memory_and_children_which_no_process_limit_counts():
    def hold() -> None:
        area = mmap.mmap(-1, 128 * MIB)
        area[:] = b"x" * len(area)
        time.sleep(60)

    pid = in_child(hold)
    try:
        parent, child = (
            MemoryWatchdog(os.getpid(), memory_watchdog.resident_bytes(os.getpid()) + 64 * MIB),
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


def test_a_child_that_shares_its_parents_pages_costs_nothing_until_it_writes():
    held = bytearray(b"x") * (256 * MIB)

    def idle() -> None:
        time.sleep(60)

    def writes() -> None:
        for start in range(0, len(held), 4096):
            held[start] = 1
        time.sleep(60)

    room = memory_watchdog.resident_bytes(os.getpid()) + 96 * MIB
    pids = [in_child(idle)]
    try:
        watch = MemoryWatchdog(os.getpid(), room)
        time.sleep(0.2)
        assert watch.violation() == ""
        pids.append(in_child(writes))
        _until(lambda: "resident memory" in watch.violation())
        assert watch.poll_s < memory_watchdog.POLL_S
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_the_watch_looks_closer_only_where_what_is_left_could_be_used_up_before_the_next_look():
    def hold() -> None:
        area = bytearray(b"x") * (96 * MIB)
        time.sleep(60 + len(area) % 2)

    pid = in_child(hold)
    try:
        held = memory_watchdog.resident_bytes(os.getpid())
        far, near = MemoryWatchdog(os.getpid(), held + 2**40), MemoryWatchdog(os.getpid(), held + 160 * MIB)
        _until(lambda: near.violation() == "" and near.poll_s < memory_watchdog.POLL_S)
        assert far.violation() == ""
        assert far.poll_s == memory_watchdog.POLL_S
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_worker_that_is_swapped_out_or_a_host_that_is_full_ends_the_probe(monkeypatch):
    watch = MemoryWatchdog(os.getpid(), 2**40)
    assert watch.violation() == ""
    watch._looked_at_s = 0.0
    monkeypatch.setattr(memory_watchdog, "swapped_bytes", lambda pid: 2**30)
    assert "swap" in watch.violation()

    full = MemoryWatchdog(os.getpid(), 2**40)
    monkeypatch.setattr(memory_watchdog, "available_memory_bytes", lambda: MIB)
    assert "memory left" in full.violation()


def test_a_winner_that_fails_its_exact_run_is_not_recommended_and_the_search_goes_on():
    def runner(probe: Probe) -> Observation:
        if probe.purpose is Purpose.VERIFY and probe.micro_batch_size >= 8:
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY, reason="its second step", elapsed_s=1.0)
        return answers(probe)

    events = list(loop.explore(runner, space=SPACE, settings=SearchSettings(max_probes=12)))

    verified = [
        item.observation
        for item in events
        if isinstance(item, loop.ProbeFinished) and item.observation.probe.purpose is Purpose.VERIFY
    ]
    assert [item.outcome for item in verified] == [Outcome.OUT_OF_MEMORY, Outcome.MEASURED]
    assert events[-1].recommendation.micro_batch_size == verified[-1].micro_batch_size == 4


def test_the_run_of_the_winner_is_several_steps_long_before_anything_is_timed(run_on, monkeypatch, tmp_path):
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    runner = run_on(eager("counted"))
    untimed = []

    for purpose in (Purpose.SEARCH, Purpose.VERIFY):
        (tmp_path / "count").write_bytes(b"")
        observation = runner(probe(4, purpose=purpose))
        num_timed = len(observation.details["all_pass_times_s"] or observation.pass_times_s)
        untimed.append((tmp_path / "count").stat().st_size - num_timed)

    checked = 2  # passes of the step's check, which the search makes once
    assert untimed == [1 + 2 + checked, 1 + 2 + 1]


# Time


def test_a_stage_may_take_what_the_trace_says_until_probes_say_more():
    slow, plain = StageLimits(flops_per_sample=1e12), StageLimits()

    assert plain.limit_s("passes", 8) == 900.0
    assert slow.limit_s("passes", 8) == 8000.0
    slow.learn(observed(4, pass_times_s=(2.0, 4.0)))
    assert slow.limit_s("passes", 8) == PATIENCE * 8.0
    assert slow.limit_s("passes", 1) == PATIENCE * 4.0


def test_short_stages_have_floors_and_failed_probes_teach_nothing():
    limits = StageLimits()
    limits.learn(observed(4, outcome=Outcome.TIMED_OUT, pass_times_s=()))
    assert limits.limit_s("compile", 4) == FIRST_LIMITS_S["compile"]
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))
    assert limits.limit_s("passes", 4) == STAGE_FLOOR_S
    assert limits.limit_s("compile", 4) == COMPILE_FLOOR_S


def test_the_floor_of_the_stages_is_the_users_to_set(tmp_path):
    path = tmp_path / "job.yaml"
    job = Path("configs/quickstart.yaml").read_text()
    path.write_text(job.replace("\nexplore:\n", "\nexplore:\n    stage_time_floor: 2h\n"))
    limits = StageLimits(floor_s=load_config(path).explore.stage_time_floor)
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))

    assert {limits.limit_s(stage, 4) for stage in ("start", "import", "build", "compile", "passes")} == {7200.0}


# Workers that die, on the real engine


def eager(model: str, **fields):
    return dataclasses.replace(
        imported_job("perceptron", compile=CompileSettings(enabled=False), **fields),
        model={"model": f"bugs:{model}", "batch": "programs:samples", "loss": "programs:cross_entropy"},
    )


def probe(size: int, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=size, compilation=Compilation.EAGER, max_passes=2, **fields)


def test_everything_that_a_worker_left_behind_is_gone_and_the_next_one_starts_at_once(run_on, monkeypatch):
    monkeypatch.setenv("BUG", "leaves_children")
    runner = run_on(eager("misbehaves"))
    runner.start()
    mark = runner._workers.current.process._mark

    died = runner(probe(2))

    assert died.outcome is Outcome.CRASHED
    assert "SIGKILL" in died.reason
    assert died.elapsed_s < 60  # a child held the pipe open: no end of file came, and nobody waited for one
    assert reaper.marked_processes(mark) == []
    assert runner(probe(1)).outcome is Outcome.MEASURED


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
    _until(lambda: len(reaper.marked_processes(mark)) >= 2)

    process.kill()
    process.wait()

    _until(lambda: not reaper.marked_processes(mark))


@pytest.mark.parametrize(("bug", "outcome"), [("flood", Outcome.MEASURED), ("close_pipe", Outcome.CRASHED)])
def test_a_worker_that_floods_its_output_or_closes_its_pipe_harms_only_itself(run_on, monkeypatch, bug, outcome):
    monkeypatch.setenv("BUG", bug)
    runner = run_on(eager("misbehaves"))

    observation = runner(probe(2))

    assert observation.outcome is outcome, observation.reason
    (log,) = (runner.settings.run_dir / "workers").glob("*.log")
    assert log.stat().st_size <= 4 * MIB


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


def test_a_model_that_trains_at_odd_sizes_only_is_explored_at_those():
    def runner(probe: Probe) -> Observation:
        if probe.micro_batch_size % 2 == 0:
            return Observation(probe=probe, outcome=Outcome.CRASHED, reason="ValueError: odd only", elapsed_s=1.0)
        return answers(probe)

    *_, result = loop.explore(runner, space=Space.of(range(1, 10)), settings=SearchSettings(max_probes=16))

    assert result.recommendation.micro_batch_size % 2 == 1
    assert set(result.outcomes) == {"measured", "crashed"}


def test_what_failed_is_in_the_last_words_with_its_reason():
    failures = failures_of(
        [
            observed(1),
            observed(4, outcome=Outcome.CRASHED, pass_times_s=(), reason="ValueError: odd sizes only (model.py:7)"),
            observed(2, outcome=Outcome.CRASHED, pass_times_s=(), reason="ValueError: odd sizes only (model.py:7)"),
            observed(64, outcome=Outcome.OUT_OF_MEMORY, pass_times_s=(), reason="too big"),
        ]
    )
    record = {"micro_batch_size": None, "stop_reason": "interrupted", "run_dir": "runs", "failures": failures}

    text = print_summary(record, yaml_key="x", tolerance=0.02)

    assert "2, 4: crashed: ValueError: odd sizes only (model.py:7)" in text
    assert "too big" not in text


def test_one_traceback_of_the_users_own_lines_is_shown_for_failures_that_differ_in_numbers_alone():
    text = textwrap.dedent("""\
        Traceback (most recent call last):
          File "/site-packages/bexplore/engine/worker/__main__.py", line 3, in answer
            return probe()
          File "/home/user/train/model.py", line 7, in forward
            raise ValueError(f"{n} samples")
          File "/site-packages/torch/nn/modules/module.py", line 9, in _call_impl
            return forward()
        ValueError: 16 samples
        """)
    crashes = [
        observed(
            size,
            outcome=Outcome.CRASHED,
            pass_times_s=(),
            reason=f"ValueError: {size} samples (model.py:7)",
            traceback_text=text,
        )
        for size in (16, 13)
    ]
    failures = failures_of([observed(1), *crashes])
    record = {"micro_batch_size": None, "stop_reason": "interrupted", "run_dir": "runs", "failures": failures}

    shown = print_summary(record, yaml_key="x", tolerance=0.02)

    assert "13, 16: crashed: ValueError: 16 samples (model.py:7)" in shown
    assert shown.count("Traceback") == 1
    assert shown.count("train/model.py") == 1
    assert "site-packages" not in shown


# Inputs


def test_generated_inputs_never_show_a_traceback_take_long_or_write_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    found = generate(tmp_path, number=800, seed=11)

    assert found["tracebacks"] == 0, [target["failures"] for target in found["parsers"].values()]
    assert found["files_made"] == []
    assert found["memory_growth_mib"] < 500


@pytest.mark.parametrize("name", ["with space", "ümläut 試", "new\nline", "-dash", "quote'\"$(x)"])
def test_folders_and_files_may_be_called_anything(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    run = run_directory.create_run(
        folder / "runs", meta={"config": str(folder)}, now=exploration.datetime.now(exploration.UTC)
    )
    run.journal.append(observed(1))

    assert run_directory.open_run(run.log_path).journal.read() == [observed(1)]
    assert explored(folder / "runs").stop_reason != StopReason.INTERRUPTED
    AppendFile(run.log_path).write("line\n")
    assert run.log_path.read_text() == "line\n"


@pytest.mark.parametrize("size", ["0", "-1", "1e9", ".nan", "true", '"8 "', "[8]", "{explore: {min: 0}}", "1000000001"])
def test_a_size_that_is_none_is_refused_with_its_line(tmp_path, size):
    path = tmp_path / "job.yaml"
    path.write_text(f"train_input:\n  batch_size: 8\n  micro_batch_size: {size}\nmodel: {{}}\n")

    with pytest.raises(UserInputError, match=r"job\.yaml:3: .*(micro_batch_size|min must)"):
        load_config(path)


def test_a_replica_batch_of_a_thousand_million_samples_has_its_candidates_at_once():
    powers = tuple(2**exponent for exponent in range(13))

    assert candidate_sizes("divisors", minimum=1, maximum=4096, replica_batch_size=2**30) == powers
    assert set(powers) <= set(candidate_sizes("even", minimum=1, maximum=4096, replica_batch_size=2**30))


def _until(holds) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_output_that_is_full_is_one_message(tmp_path):
    command = [sys.executable, "-m", "bexplore", "batch-sizes", "--micro-batch-size", "3"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_where_not_even_the_error_can_be_written_the_exit_code_tells_it(tmp_path):
    command = [sys.executable, "-m", "bexplore", "batch-sizes", "--micro-batch-size", "3"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=full, check=False)

    assert done.returncode == 4


def test_waiting_for_another_exploration_is_said_where_there_is_no_terminal():
    written = io.StringIO()

    Progress(Console(file=written)).report({"kind": "progress", "stage": "lock", "holder": "process 7"})

    assert "waiting for the device, which process 7 uses" in written.getvalue()
