"""`bexplore explore -- COMMAND` before anything is started: what is announced, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bexplore.cli import cli

TRAIN = ("python", "train.py", "--mbs", "{micro_batch_size}", "--accumulation", "{accumulation}")
OUT = ("--out", "{output_dir}")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, in which nothing may be left."""
    monkeypatch.chdir(tmp_path)


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["explore", *words], standalone_mode=False)


def plan_of(*words: str) -> dict:
    """Return the plan of a dry run."""
    done = typed("--dry-run", "--json", *words)
    assert done.exception is None, done.output
    (plan,) = [json.loads(line) for line in done.stdout.splitlines()]
    return plan


def test_a_dry_run_says_how_often_the_command_is_started_and_what_each_start_does(tmp_path):
    done = typed("--dry-run", "--global-batch-size", "256", "--replicas", "8", "--", *TRAIN, *OUT)

    shown = " ".join((*TRAIN, *OUT))
    assert done.exception is None
    lines = done.stderr.splitlines()
    assert lines[-5:] == [
        f"starts `{shown}` up to 37 times, and ends each after its last observed step",
        "that is 16 for the sizes of the search, 16 for sizes that fail in a start that they share, 1 for the answer "
        "alone, 1 to check that the command follows its size, 2 for a size that keeps the global batch size, 1 with "
        "the accumulation of your training",
        "a start serves up to 8 sizes, where its batches can be cut to them; the winner runs in a start of its own",
        "what a start writes to {output_dir} is removed after it; trackers are switched off",
        "each start accumulates 2 micro-batches a step; passes are ranked",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_without_an_output_folder_says_that_each_start_writes_where_it_likes(tmp_path):
    plan = plan_of("--writes-are-fine", "--sizes-per-start", "1", "--", *TRAIN)

    assert plan["notices"] == [
        f"starts `{' '.join(TRAIN)}` up to 16 times, and ends each after its last observed step",
        "the command does not take {output_dir}: each start writes where it likes; trackers are switched off",
        "each start accumulates 2 micro-batches a step; passes are ranked",
        "the accumulation of your training is unknown: with explore.global_batch_size a real step is run",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_command_without_a_size_is_sent_to_what_reads_its_script(tmp_path):
    error = typed("--writes-are-fine", "--", "python", "my train.py", "--lr", "1").exception

    assert "nothing of the command changes with the micro-batch size" in error.message
    assert error.hint.endswith("; this reads the script for it: bexplore init 'my train.py'")
