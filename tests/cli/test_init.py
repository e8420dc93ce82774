"""`bexplore init` as it is typed: what is run, and what is printed next."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bexplore.actions import ask_help
from bexplore.errors import UserInputError

MADE_WHILE_IT_RUNS = """\
import argparse
open("ran", "w").close()
p = argparse.ArgumentParser()
for name in ("batch", "out"):
    p.add_argument(f"--{name}-{dict(batch='size', out='dir')[name]}", default="x", help="of it")
p.parse_args()
"""


def init(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "bexplore", "init", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_is_run_only_with_consent(tmp_path):
    (tmp_path / "train.py").write_text(MADE_WHILE_IT_RUNS)

    refused = init(tmp_path, "train.py")
    was_run = (tmp_path / "ran").exists()
    asked = init(tmp_path, "--run-help", "--output", "a.yaml", "--", sys.executable, "train.py")

    assert refused.returncode == 2
    assert "bexplore init --run-help train.py" in refused.stderr
    assert (was_run, asked.returncode) == (False, 0), asked.stderr
    text = (tmp_path / "a.yaml").read_text()
    assert "train.py --batch-size {micro_batch_size} --out-dir {output_dir}\n" in text


def test_where_no_output_folder_is_taken_the_option_to_add_is_told(tmp_path):
    (tmp_path / "train it.py").write_text("import sys\nbatch_size = sys.argv[1]\n")

    done = init(tmp_path, "train it.py")

    assert done.returncode == 0, done.stderr
    assert "add --writes-are-fine to that line" in done.stdout
    assert "next: bexplore explore 'train it.explore.yaml' --dry-run" in done.stdout


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise ValueError('no data here')", "prints no options: ValueError: no data here"),
        ("", "prints no options: it prints nothing"),
    ],
)
def test_a_script_without_help_is_one_error(program, message):
    with pytest.raises(UserInputError, match=message):
        ask_help.ask_for_help([sys.executable, "-c", program])


def test_a_script_that_does_not_end_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(ask_help, "_SECONDS", 1.0)
    path = str(tmp_path / "pid")
    child = f"import os, time; open({path!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"

    with pytest.raises(UserInputError, match="did not end within"):
        ask_help.ask_for_help([sys.executable, "-c", program])

    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" and time.monotonic() < until:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_a_program_that_is_not_there_is_one_error():
    with pytest.raises(UserInputError, match="cannot be started: No such file"):
        ask_help.ask_for_help(["no-such-program", "train.py"])
