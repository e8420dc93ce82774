"""The folder of a run."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.exploration import job as exploration
from bexplore.exploration.base import ExploreOptions
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.output.event_files import AppendFile
from bexplore.run import run_directory
from bexplore.run.journal import Journal
from bexplore.search import loop
from bexplore.search.policy.decision import StopReason
from bexplore.search.space import Space
from tests.builders import JOBS, observed
from tests.unit.run.builders import make_run

SPACE = Space.from_sizes([1, 2, 4, 8, 16])


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
    *_, result = loop.run_search(runner, space=SPACE, run=run, **options)
    return result


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


def test_starting_over_never_shares_a_study_with_what_was_before(earlier):
    config = load_config(earlier)
    shared, alone = (
        exploration.JobExploration(config, ExploreOptions()),
        exploration.JobExploration(config, ExploreOptions(fresh=True)),
    )

    assert shared._new_run().meta()["study"] == shared._new_run().meta()["study"]
    assert alone._new_run().meta()["study"] != shared._new_run().meta()["study"]


def probe(size: int, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=size, compilation=Compilation.EAGER, max_passes=2, **fields)


@pytest.mark.promise("folders and files with any characters in their names", "used as they are")
@pytest.mark.parametrize("name", ["with space", "ümläut 試", "new\nline", "-dash", "quote'\"$(x)"])
def test_folders_and_files_may_be_called_anything(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    run = run_directory.create_run(folder / "runs", meta={"config": str(folder)}, now=datetime.now(UTC))
    run.journal.append(observed(1))

    assert run_directory.open_run(run.log_path).journal.read() == [observed(1)]
    assert explored(folder / "runs").stop_reason != StopReason.INTERRUPTED
    AppendFile(run.log_path).write("line\n")
    assert run.log_path.read_text() == "line\n"


def test_the_probes_of_a_result_are_flat_rows_and_none_is_the_unknown(tmp_path):
    run = make_run(tmp_path)
    rows = dataclasses.replace(run.result(), run_dir=str(run.directory)).probe_rows()

    assert [row["micro_batch_size"] for row in rows] == [1, 8, 13, 8]
    assert [row["outcome"] for row in rows] == ["measured", "measured", "out_of_memory", "measured"]
    assert rows[2]["samples_per_s"] is rows[2]["pass_time_s"] is rows[2]["update_time_s"] is None
    assert rows[3]["samples_per_s"] == pytest.approx(410.0, rel=0.02)
    assert all(isinstance(value, str | int | float | None) for row in rows for value in row.values())
    assert len({tuple(row) for row in rows}) == 1  # the same columns in each


@pytest.mark.parametrize("lost", ["moved", "other folder", "journal"])
def test_probes_that_are_not_where_the_result_says_are_an_error_and_no_empty_table(tmp_path, monkeypatch, lost):
    monkeypatch.chdir(tmp_path)
    run = make_run(Path())
    result = dataclasses.replace(run.result(), run_dir=str(run.directory))
    assert len(result.probe_rows()) == 4
    if lost == "moved":
        run.directory.rename("elsewhere")
    elif lost == "other folder":
        monkeypatch.chdir(tmp_path.parent)
    else:
        run.journal.path.unlink()

    with pytest.raises(UserInputError, match=r"has none of the 4 probes of this result") as error:
        result.probe_rows()

    assert "run_dir=" in error.value.hint
    if lost == "moved":
        assert len(dataclasses.replace(result, run_dir="elsewhere").probe_rows()) == 4
