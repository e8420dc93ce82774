"""Observations on disk: nothing that was whole is lost, nothing good is overwritten."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.errors import UserInputError
from bexplore.host.records import from_record, to_record
from bexplore.job import Mode
from bexplore.measurement.probe import Observation, Outcome
from bexplore.run import run_directory
from bexplore.run.journal import Journal
from tests.builders import observed

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def test_what_was_appended_is_read_back_equal(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    observations = [
        observed(4, number=0, update_times_s=(0.01,), warnings=("loud",)),
        observed(8, number=1, outcome=Outcome.OUT_OF_MEMORY, pass_times_s=(), reason="too big"),
    ]

    for observation in observations:
        book.append(observation)

    assert book.read() == observations


@pytest.mark.promise("the journal cut at any byte of its last line (property test)", "the line is skipped and replaced")
@given(st.integers(min_value=0))
def test_a_last_line_that_is_cut_short_is_skipped_and_replaced(tmp_path_factory, cut):
    book = Journal(tmp_path_factory.mktemp("run") / "journal.jsonl")
    book.append(observed(1))
    whole = book.path.read_bytes()
    record = json.dumps(to_record(observed(2, number=1))).encode()
    book.path.write_bytes(whole + record[: cut % len(record)])

    assert book.read() == [observed(1)]

    book.append(observed(3, number=1))

    assert book.read() == [observed(1), observed(3, number=1)]


@pytest.mark.promise("damage in the middle of the journal", "an error with its line; the file is not changed")
@pytest.mark.parametrize(
    "damage", [b"{}\n", b"not json\n", b"\xff\xfe\n", b"[1]\n", b'{"probe": 3}\n', b"[" * 100_000 + b"\n"]
)
def test_damage_before_the_end_is_an_error_with_its_line_and_changes_nothing(tmp_path, damage):
    book = Journal(tmp_path / "journal.jsonl")
    book.append(observed(1))
    book.path.write_bytes(damage + book.path.read_bytes())
    before = book.path.read_bytes()

    with pytest.raises(UserInputError, match=r"journal\.jsonl:1: this is not an observation") as error:
        book.read()

    assert "`fresh=True`" in error.value.hint
    assert book.path.read_bytes() == before


def test_an_observation_with_every_field_survives_json():
    observation = observed(
        4,
        compile_time_s=1.5,
        peak_memory_bytes=10,
        num_graphs=1,
        graph_break_reasons=("a",),
        details={"why": ["b"]},
        loss=float("nan"),
    )

    again = from_record(Observation, json.loads(json.dumps(to_record(observation))))

    assert repr(again) == repr(observation)  # repr, because nan differs from itself


@pytest.mark.parametrize(
    ("model_dir", "expected"),
    [
        ("model_dir", "local_compile_train/model_dir"),
        ("out/gpt", "out/local_compile_train/gpt"),
        ("/data/gpt", "/data/local_compile_train/gpt"),
    ],
)
def test_results_go_under_local_compile_of_the_mode(model_dir, expected):
    assert str(run_directory.model_directory(Mode.TRAIN, model_dir)) == expected


def test_two_runs_within_one_second_get_directories_of_their_own_and_latest_is_the_newest(tmp_path):
    first, second = (run_directory.create_run(tmp_path, meta={}, now=NOON) for _ in range(2))
    third = run_directory.create_run(tmp_path, meta={}, now=NOON + timedelta(hours=1))

    assert first.directory != second.directory
    assert (tmp_path / "latest").resolve() == third.log_path
    assert [run.directory for run in run_directory.find_runs(tmp_path)] == [
        third.directory,
        second.directory,
        first.directory,
    ]


def test_a_run_is_found_by_its_folder_its_log_the_link_or_the_folder_above(tmp_path):
    run = run_directory.create_run(tmp_path, meta={}, now=NOON)

    for path in (run.directory, run.log_path, tmp_path / "latest", tmp_path):
        assert run_directory.open_run(path) == run


def test_a_folder_without_a_run_is_a_clear_error(tmp_path):
    with pytest.raises(UserInputError, match="is not a run of bexplore"):
        run_directory.open_run(tmp_path)


@pytest.mark.promise("zeros that a power loss left in the journal", "no observation; the run goes on")
def test_zeros_that_power_loss_left_at_the_end_of_a_journal_are_no_observation(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    book.append(observed(1))
    with book.path.open("ab") as handle:
        handle.write(b"\0" * 40 + b'"reason": ""}\n')

    assert book.read() == [observed(1)]
    book.append(observed(2, number=1))
    assert book.read() == [observed(1), observed(2, number=1)]
