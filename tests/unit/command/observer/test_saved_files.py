"""A file of the user that a training saves over is left as it was."""

from __future__ import annotations

import os
import tempfile

import pytest

from bexplore.command.observer.bexplore_observer.saved_files import MOST_FILES, SavedFiles

BEGAN_AT_S = 1000.0


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return {"began_at_s": BEGAN_AT_S, "run_dir": str(tmp_path / "run")}


def written(path, at_s: float):
    path.parent.mkdir(exist_ok=True)
    path.write_text("weights")
    os.utime(path, (at_s, at_s))
    return path


@pytest.mark.parametrize(
    ("name", "at_s", "is_kept", "is_told"),
    [
        ("model.pt", 999.0, True, True),
        ("run/model.pt", 999.0, True, True),  # of a run before
        ("model.pt", 1001.0, False, True),  # of an earlier start
        ("model.pt", None, False, True),
        ("run/model.pt", None, False, False),
        ("scratch/model.pt", None, False, False),
    ],
)
def test_only_a_file_that_was_there_before_is_kept(tmp_path, settings, name, at_s, is_kept, is_told):
    path = tmp_path / name
    if at_s is not None:
        written(path, at_s)
    files = SavedFiles()

    assert files.keeps(path, settings) is files.keeps(str(path), settings) is is_kept
    assert (files.kept, files.left) == ([str(path)] * (is_told and is_kept), [str(path)] * (is_told and not is_kept))


def test_where_the_user_consents_or_nothing_has_a_name_all_is_saved(tmp_path, settings):
    path = written(tmp_path / "model.pt", 999.0)
    files = SavedFiles()

    assert not files.keeps(path, settings | {"began_at_s": None})
    with path.open("rb") as file:
        assert not files.keeps(file, settings)
    assert not files.keeps(os.devnull, settings)
    assert files.kept == files.left == []


def test_many_files_are_told_by_the_first_ones(tmp_path, settings):
    files = SavedFiles()
    for number in range(9):
        files.keeps(tmp_path / f"epoch_{number}.pt", settings)

    assert len(files.left) == MOST_FILES
