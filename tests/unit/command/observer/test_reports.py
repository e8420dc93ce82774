"""What a process reports: its rank, and which errors of a training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bexplore.command.observer.bexplore_observer.exchange import Exchange
from bexplore.command.observer.bexplore_observer.reports import (
    RANK_NAMES,
    ErrorReport,
    describe,
    find_causes,
    find_links,
    is_about_memory,
    read_rank,
)


@pytest.fixture
def report(settings) -> ErrorReport:
    return ErrorReport(Exchange(settings, lambda: (0, 0, 0, 0, 0)), lambda: "1", lambda: (5, 9))


def reported(settings) -> list[dict]:
    return [json.loads(path.read_text()) for path in Path(settings["reports"]).glob("error-*.json")]


def test_the_first_error_is_written_with_the_progress_so_far(report, settings):
    report.note(ValueError("no such column"), "backward")
    report.note(ValueError("a later one"), "uncaught")

    (one,) = reported(settings)
    assert (one["where"], one["rank"], one["num_steps"], one["num_batches"]) == ("backward", "1", 5, 9)
    assert one["chain"] == [describe(ValueError("no such column"))]
    assert "no such column" in one["traceback"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration()])
def test_an_end_of_a_program_or_a_loop_is_no_error(report, settings, error):
    report.note(error, "uncaught")
    assert reported(settings) == []


def test_of_handled_exceptions_a_refusal_of_memory_alone_is_written(report, settings):
    for error in (ValueError("wrong"), RuntimeError("CUDA out of memory")):
        try:
            raise error
        except Exception:
            report.note_handled()

    assert [one["where"] for one in reported(settings)] == ["handled"]


def test_what_leaves_the_process_is_written_beside_the_former_hook(report, settings, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: seen.append(error))
    report.chain_excepthook()
    report.chain_excepthook()

    sys.excepthook(ValueError, ValueError("x"), None)

    assert len(seen) == 1 and reported(settings)[0]["where"] == "uncaught"


def test_causes_are_explicit_and_links_are_all_that_led_there():
    handled, cause, error = KeyError("handled"), MemoryError(), ValueError("shown")
    error.__cause__, error.__context__ = cause, handled

    assert find_causes(error) == [error, cause]
    assert find_links(error) == [error, cause, handled]
    error.__cause__.__cause__ = error  # a circle
    assert len(find_links(error)) == 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})(), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("shape"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_a_refusal_of_memory_is_told_by_type_or_message(error, expected):
    assert is_about_memory(error) is expected


def test_the_rank_is_that_of_the_launcher(fake_torch, monkeypatch):
    for name in RANK_NAMES:
        monkeypatch.delenv(name, raising=False)
    assert read_rank(fake_torch) is None

    monkeypatch.setenv("SLURM_PROCID", "3")
    assert read_rank(fake_torch) == "3"
