"""What starts leave in the working folder is told by name."""

from __future__ import annotations

import pytest

from bexplore.command import working_folder
from bexplore.command.working_folder import WorkingFolder


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (("model.pt",), "model.pt"),
        (("logs/run_1/events",), "logs/run_1"),  # of a folder that was there
        (("runs/a/events", "runs/b/events"), "runs"),
        (("a.pt", "b.pt", "c.pt", "d.pt", "e.pt", "f.pt"), "a.pt, b.pt, c.pt, d.pt and 2 more"),
        (("local_compile_train/own/result.json", "__pycache__/train.pyc", ".cache/x"), ""),
        (("data/deep/er/new.bin",), ""),
    ],
)
def test_only_names_that_are_new_are_told(tmp_path, written, told):
    for name in ("logs/run_0", "data/deep/er"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "train.py").touch()
    folder = WorkingFolder(tmp_path)
    for name in written:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    words = folder.describe_new()

    assert words.startswith(f"new in {tmp_path} since the exploration began: {told}; ") if told else words == ""


def test_a_folder_that_cannot_be_compared_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(working_folder, "MOST_ENTRIES", 2)
    folder = WorkingFolder(tmp_path)
    for name in "abc":
        (tmp_path / name).touch()

    assert folder.describe_new() == "" == WorkingFolder(tmp_path / "absent").describe_new()
