"""Failures of a start, read from the observer's reports, the exit status and the log."""

from __future__ import annotations

from typing import Any

import pytest

from bexplore.command.failures import of_end, of_errors, of_lost
from bexplore.command.reports import Reports
from bexplore.measurement.probe import Outcome

ROOT_CAUSE = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_23:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 29274)
"""


def error(kind: str, message: str, *, rank: str | None = "0", module: str = "builtins") -> dict[str, Any]:
    """Return a report of the observer."""
    link = {"type": kind, "module": module, "message": message}
    return {"rank": rank, "where": "uncaught", "chain": [link], "traceback": f"{kind}: {message}", "at_s": 0.0}


def ended(log: str, return_code: int = 1, **fields) -> tuple[Outcome, str]:
    """Return outcome and reason of a start whose processes reported no error."""
    found = of_end(return_code, log, Reports(), **{"killed_by_kernel": False, "lost_pid": None} | fields)
    return found.outcome, found.reason


LOST = error("RuntimeError", "Connection closed by peer [127.0.0.1]:36769")


def test_a_refusal_of_memory_is_the_cause_even_where_another_rank_reported_first():
    failure = of_errors([error("ValueError", "no batch"), error("OutOfMemoryError", "CUDA out of memory", rank="1")])

    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert "on rank 1" in failure.reason


def test_a_bug_is_the_cause_and_not_the_connection_that_another_rank_lost_before_it_was_reported():
    failure = of_errors([LOST, error("ValueError", "the labels differ", rank="1")])

    assert failure.outcome is Outcome.CRASHED
    assert failure.reason == "ValueError: the labels differ on rank 1"


def test_a_bug_whose_own_text_is_about_memory_is_never_too_big():
    assert of_errors([error("ValueError", "CUDA out of memory")]).outcome is Outcome.CRASHED


def test_an_error_of_the_compiler_is_a_failed_compilation():
    failure = of_errors([error("BackendCompilerFailed", "no kernel", module="torch._dynamo.exc")])

    assert failure.outcome is Outcome.COMPILE_FAILED


@pytest.mark.parametrize("reported", [LOST, error("ChildFailedError", "train.py FAILED", rank=None)])
def test_a_rank_that_the_launcher_names_is_the_cause_where_others_report_consequences_alone(reported):
    failure = of_lost(ROOT_CAUSE, Reports(errors=(reported,)))

    assert failure.reason == "rank 1 was killed by SIGKILL; the other ranks lost their connection to it"


def test_a_rank_without_a_report_is_the_cause_where_no_launcher_names_one():
    failure = of_lost("", Reports(hellos=({"rank": "0"}, {"rank": "1"}, {"rank": None}), errors=(LOST,)))

    assert failure.reason.startswith("rank 1 ended")


def test_an_error_of_the_training_itself_leaves_no_rank_lost():
    assert of_lost(ROOT_CAUSE, Reports(errors=(LOST, error("ValueError", "a bug", rank="1")))) is None


@pytest.mark.parametrize(
    ("log", "fields", "outcome"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", {}, Outcome.OUT_OF_MEMORY),
        ("[rank1]: RuntimeError: DefaultCPUAllocator: can't allocate memory", {}, Outcome.OUT_OF_MEMORY),
        ("WARNING: if you run out of memory, lower the size", {}, Outcome.CRASHED),
        ("", {"killed_by_kernel": True}, Outcome.OUT_OF_MEMORY),
        ("", {"lost_pid": 7}, Outcome.CRASHED),
    ],
)
def test_without_reports_the_kernel_and_the_last_lines_of_tracebacks_decide(log, fields, outcome):
    assert ended(log, **fields)[0] is outcome


def test_without_any_words_the_reason_is_the_status():
    assert ended("", 3)[1] == "the command ended with status 3: it wrote nothing"


@pytest.mark.parametrize(
    ("end", "outcome", "reason"),
    [
        ("task 1: Killed", Outcome.CRASHED, "rank 1 was killed"),
        ("tasks 0-1: Segmentation fault (core dumped)", Outcome.CRASHED, "rank 0-1 ended with a segmentation fault"),
        ("task 1: Out Of Memory", Outcome.OUT_OF_MEMORY, "Slurm ended rank 1 at the memory limit of the job"),
    ],
)
def test_srun_tells_which_rank_ended_and_how(end: str, outcome: Outcome, reason: str):
    log = f"step 3\nsrun: error: node-1: {end}\n"

    assert ended(log) == (outcome, reason)
    assert of_lost(log, Reports(errors=(LOST,))).reason == f"{reason}; the other ranks lost their connection to it"
