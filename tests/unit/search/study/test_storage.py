"""A study in its storage: damage, locks, leases, several explorers."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path

import pytest

from bexplore.errors import EngineError, UserInputError
from bexplore.host import locks
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.run.journal import Journal
from bexplore.search import loop
from bexplore.search.policy.decision import StopReason
from bexplore.search.settings import SearchSettings
from bexplore.search.study import storage, trials
from bexplore.search.study.sampler import BexploreSampler, open_study
from tests.builders import observed
from tests.unit.search.builders import TO_16, answer_best_at_8


def explored(folder: Path, runner=answer_best_at_8, *, storage: Path | str | None = None, **options) -> loop.Result:
    book = Journal(folder / "journal.jsonl")
    run = loop.RunRecord(
        storage=storage or folder / "study.log",
        lock_path=folder / ".lock",
        record=book.append,
        history=book.read(),
    )
    *_, result = loop.run_search(runner, space=TO_16, run=run, **options)
    return result


@pytest.mark.promise(
    "study.log damaged between two calls", "kept aside and rebuilt from the journal; no probe is repeated"
)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-9], id="half-written last record"),
        pytest.param(lambda data: data[:200] + b"\0\0\0" + data[230:], id="a hole in the middle"),
        pytest.param(lambda data: b'{"op_code": 99}\n' + data, id="a record of something else"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_a_damaged_study_is_rebuilt_and_no_probe_is_repeated(tmp_path, damage):
    before = explored(tmp_path)
    path = tmp_path / "study.log"
    path.write_bytes(damage(path.read_bytes()))
    known = Journal(tmp_path / "journal.jsonl").read()

    after = explored(tmp_path)

    assert after.recommendation.micro_batch_size == before.recommendation.micro_batch_size
    assert Journal(tmp_path / "journal.jsonl").read() == known
    assert after.outcomes == before.outcomes


@pytest.mark.promise("study.log damaged while two explorers use it", "neither loses a probe")
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-9] + b"\0" * 9, id="zeros at the end"),
        pytest.param(lambda data: data + b'{"op_code": 99}\n', id="a record of something else"),
        pytest.param(lambda data: data + b'{"op_code": 6, "worker_id": "x", "trial_id": 77}\n', id="of no known trial"),
        pytest.param(lambda data: data[:-40], id="cut off"),
    ],
)
def test_a_study_damaged_under_two_explorers_costs_neither_a_probe(tmp_path, damage):
    path = tmp_path / "study.log"
    books = [Journal(tmp_path / f"journal_{number}.jsonl") for number in range(2)]
    running = [
        loop.run_search(
            answer_best_at_8,
            space=TO_16,
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
        *_, result = loop.run_search(answer_best_at_8, space=TO_16, run=run)
        assert book.read()[: len(known)] == known
        assert result.recommendation.micro_batch_size == 8


def test_what_was_good_in_a_damaged_study_is_kept_under_another_name(tmp_path):
    explored(tmp_path)
    path = tmp_path / "study.log"
    damaged = b"garbage\n" + path.read_bytes()
    path.write_bytes(damaged)

    explored(tmp_path)

    assert (tmp_path / "study.log.damaged_1").read_bytes() == damaged


@pytest.mark.promise("a stopped process holds a lock for ever", "an error that names the file")
def test_a_lock_that_is_held_too_long_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "lock"
    refused = pytest.raises(EngineError, match="lock is locked by another process")
    with locks.locked(path), refused as error, locks.locked(path, wait_s=0.05):
        pass

    assert "fuser" in error.value.hint


def test_a_lease_is_renewed_by_its_probe_and_ends_with_its_explorer(tmp_path):
    asked = open_study(BexploreSampler(TO_16), storage=tmp_path / "study.log")
    trial = asked.ask(BexploreSampler(TO_16).distributions)

    def lease_until() -> float:
        (running,) = asked.get_trials()
        return running.system_attrs[trials.ATTRIBUTE]["lease_until"]

    with trials.hold_lease(asked, trial, Probe(number=0, micro_batch_size=1), seconds=0.4):
        first, deadline_s = lease_until(), time.monotonic() + 60
        while lease_until() == first and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert lease_until() > first

    (left,) = asked.get_trials()
    assert not trials.is_abandoned(left, lease_until())
    assert trials.is_abandoned(left, lease_until() + 0.01)


def test_a_probe_of_another_folder_of_this_host_is_left_to_its_explorer(tmp_path):
    folder, url = tmp_path / "own", f"sqlite:///{tmp_path}/study.db"
    folder.mkdir()
    other = open_study(BexploreSampler(TO_16), storage=url)
    trial = other.ask(BexploreSampler(TO_16).distributions)

    with trials.hold_lease(other, trial, Probe(number=0, micro_batch_size=trial.params[trials.PARAMETER])):
        explored(folder, storage=url)
        (of_other, *_) = other.get_trials()
        assert not trials.is_abandoned(of_other, time.time())


def test_replicas_that_a_probe_showed_are_known_to_every_explorer(tmp_path):
    path = tmp_path / "study.log"
    seen = dataclasses.replace(observed(4, number=0), details={"num_replicas": 8})
    trials.rebuild(open_study(BexploreSampler(TO_16), storage=path), [seen], now=time.time())

    assert trials.read_num_replicas(open_study(BexploreSampler(TO_16), storage=path)) == 8


@pytest.mark.promise("an explorer is killed while it chooses a size", "its trial misleads no other explorer")
def test_a_trial_whose_explorer_was_killed_while_it_chose_misleads_no_one(tmp_path):
    asked = open_study(BexploreSampler(TO_16), storage=tmp_path / "study.log")
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
        other = open_study(BexploreSampler(TO_16, settings), storage=path)
        number = len(other.trials)
        if number < 2:
            trials.rebuild(other, [observed(2**n, number=n) for n in range(2)], now=time.time())

    result = explored(tmp_path, storage=path, settings=settings, should_stop=another_finishes)

    assert result.stop_reason == StopReason.MAX_PROBES
    assert Journal(tmp_path / "journal.jsonl").read() == []


def test_an_observation_told_after_its_trial_was_given_up_is_kept(tmp_path):
    asked = open_study(BexploreSampler(TO_16), storage=tmp_path / "study.log")
    trial = asked.ask(BexploreSampler(TO_16).distributions)
    trials.abandon(asked, trial)

    trials.tell(asked, trial, observed(trial.params[trials.PARAMETER], number=trial.number))

    kept = [item for item in asked.get_trials() if not trials.is_abandoned(item, time.time())]
    assert [trials.read_evidence(item).outcome for item in kept] == [Outcome.MEASURED]


def test_an_observation_told_from_the_journal_is_not_told_twice(tmp_path):
    asked = open_study(BexploreSampler(TO_16), storage=tmp_path / "study.log")
    trial = asked.ask(BexploreSampler(TO_16).distributions)
    observation = observed(trial.params[trials.PARAMETER], number=trial.number)

    trials.rebuild(asked, [observation], now=time.time())
    trials.tell(asked, trial, observation)

    assert len(asked.get_trials()) == 1


def test_a_full_disk_says_that_room_is_needed_before_the_same_command_is_typed():
    with pytest.raises(EngineError, match="No space left on device") as error, storage.storage_errors():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert error.value.hint.startswith("free disk space; ") and "run the same command again" in error.value.hint


@pytest.mark.promise("the storage of a study goes away in the middle", "one error with what to type; nothing is lost")
def test_a_storage_gone_in_mid_run_is_an_error_that_says_what_to_do(tmp_path):
    def runner(probe: Probe) -> Observation:
        (tmp_path / "study.log").unlink(missing_ok=True)
        (tmp_path / "study.log").mkdir()
        return answer_best_at_8(probe)

    with pytest.raises(EngineError, match="the study's storage failed") as error:
        explored(tmp_path, runner)

    assert "run the same command again" in error.value.hint
    assert "disk space" not in error.value.hint
    (tmp_path / "study.log").rmdir()
    assert len(Journal(tmp_path / "journal.jsonl").read()) == 1
    assert explored(tmp_path).recommendation.micro_batch_size == 8


@pytest.mark.promise("study.log is deleted in the middle of a run", "it is put back; the run goes on")
@pytest.mark.parametrize("times", [(1,), (2,), (4,), (1, 2, 3, 4)], ids=str)
def test_a_study_that_is_deleted_in_mid_run_is_put_back(tmp_path, times):
    asked: list[int] = []

    def runner(probe: Probe) -> Observation:
        asked.append(probe.number)
        if len(asked) in times:
            (tmp_path / "study.log").unlink()
        return answer_best_at_8(probe)

    assert explored(tmp_path, runner).recommendation.micro_batch_size == 8
    assert asked == sorted(set(asked))
    assert explored(tmp_path).recommendation.micro_batch_size == 8
    assert list(tmp_path.glob("*damaged*")) == []


@pytest.mark.promise("study.log that two explorers share is deleted", "both go on, and still see each other")
def test_a_study_that_two_explorers_share_is_put_back(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    run = loop.RunRecord(storage=tmp_path / "study.log", record=book.append, lock_path=tmp_path / ".lock")
    running = [loop.run_search(answer_best_at_8, space=TO_16, run=run) for _ in range(2)]
    for events in running:
        while not isinstance(next(events), loop.ProbeFinished):
            pass
    (tmp_path / "study.log").unlink()

    results = [list(events)[-1] for events in running]

    assert [one.recommendation.micro_batch_size for one in results] == [8, 8]
    numbers = [one.probe.number for one in book.read()]
    assert sorted(numbers) == list(range(len(numbers)))


@pytest.mark.promise("study.log is emptied in the middle of a run", "one error; the next call goes on from the journal")
@pytest.mark.parametrize(
    ("damage", "is_kept_aside"),
    [
        pytest.param(lambda data: b"", False, id="emptied"),
        pytest.param(lambda data: data + b"\0\0 not a record\n{}\n", True, id="no records"),
    ],
)
def test_a_study_damaged_in_use_is_one_error_and_repeats_no_probe(tmp_path, damage, is_kept_aside):
    asked: list[int] = []
    path = tmp_path / "study.log"

    def runner(probe: Probe) -> Observation:
        asked.append(probe.number)
        if len(asked) == 2:
            path.write_bytes(damage(path.read_bytes()))
        return answer_best_at_8(probe)

    with pytest.raises(EngineError, match="the study's storage failed") as error:
        explored(tmp_path, runner)

    assert "run the same command again" in error.value.hint
    assert explored(tmp_path, runner).recommendation.micro_batch_size == 8
    assert asked == sorted(set(asked))
    assert (tmp_path / "study.log.damaged_1").exists() == is_kept_aside


@pytest.mark.promise("a journal holds a probe's number twice", "the run goes on")
def test_a_journal_with_a_number_twice_is_gone_on_from(tmp_path):
    explored(tmp_path)
    path = tmp_path / "journal.jsonl"
    first, second, *_ = path.read_text().splitlines(keepends=True)
    path.write_text(first + second * 3)
    (tmp_path / "study.log").unlink()

    assert explored(tmp_path).recommendation.micro_batch_size == 8


def test_a_database_without_its_driver_says_which_module_to_install():
    with pytest.raises(UserInputError, match="MySQLdb is not installed") as error:
        storage.open_storage("mysql://host/name")

    assert error.value.hint


def test_tables_that_another_explorer_makes_at_the_same_time_are_used(monkeypatch, tmp_path):
    opened = storage.RDBStorage
    first = [RuntimeError("(sqlite3.IntegrityError) UNIQUE constraint failed: alembic_version.version_num")]

    def open_database(url: str):
        if first:
            raise first.pop()
        return opened(url)

    monkeypatch.setattr(storage, "RDBStorage", open_database)
    monkeypatch.setattr(storage, "MADE_WITHIN_S", 0.0)

    result = explored(tmp_path, storage=f"sqlite:///{tmp_path}/study.db")

    assert result.recommendation.micro_batch_size == 8
