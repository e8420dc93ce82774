"""The one-liners of Python: a program explores by starting itself again, then trains with the size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.run.run_directory import find_runs
from tests.builders import ROOT

OWN = ("BEXPLORE_MICRO_BATCH_SIZE", "BEXPLORE_ACCUMULATION", "BEXPLORE_OUTPUT_DIR", "WORLD_SIZE")


def run(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of `tests/jobs` with its folder."""
    env = {name: value for name, value in os.environ.items() if name not in OWN}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(ROOT / "tests" / "jobs" / program), str(folder)]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def answer(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a program that ended well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def size_found(folder: Path) -> int:
    """Return the recommended size of the only run, whose probes were all measured."""
    (stored,) = find_runs(folder / "local_compile_train" / "model_dir")
    observations, result = stored.journal.read(), stored.result()
    assert result is not None and observations
    assert {one.micro_batch_size for one in observations if one.is_measured} == {4, 8}
    return result.micro_batch_size or 0


def test_a_decorated_function_is_called_with_the_fastest_size(tmp_path):
    pytest.importorskip("accelerate")
    done = run("with_decorator.py", tmp_path)
    size = size_found(tmp_path)
    assert answer(done) == f"trained with {size} {size}"
    assert (tmp_path / "step.txt").read_text() == "1"  # of the last training: no probe has written here
    assert f"Current recommended micro_batch_size: {size}, " in done.stderr
    assert f"Use micro_batch_size {size}: " in done.stderr
    assert "probe 0: size 4, " in done.stderr
    (stored,) = find_runs(tmp_path / "local_compile_train" / "model_dir")
    assert f"Report:  {stored.directory / 'report.html'}" in done.stderr
    assert (stored.directory / "report.html").exists()
    assert [row["outcome"] for row in stored.result().probe_rows()] == ["measured"] * len(stored.journal.read())

    again = run("with_decorator.py", tmp_path)
    assert f"Use micro_batch_size {size}: " in again.stderr and "Report:  " in again.stderr
    assert answer(again) == answer(done) and len(find_runs(tmp_path / "local_compile_train" / "model_dir")) == 1

    given = run("with_decorator.py", tmp_path, BEXPLORE_MICRO_BATCH_SIZE="32", WORLD_SIZE="1")
    assert answer(given) == "trained with 32 32"


def test_a_rank_of_a_launcher_is_refused_with_the_command_that_explores_it(tmp_path):
    pytest.importorskip("accelerate")
    done = run("with_decorator.py", tmp_path, WORLD_SIZE="2")
    assert done.returncode != 0
    assert "one of 2 ranks" in done.stderr
    assert "bexplore explore --env BEXPLORE_MICRO_BATCH_SIZE={micro_batch_size} --writes-are-fine -- " in done.stderr


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_a_program_from_standard_input_cannot_be_started_again(arguments):
    program = "from bexplore.start_again import find_own_command\nfind_own_command()\n"
    done = subprocess.run([sys.executable, *arguments], input=program, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "read from standard input" in done.stderr


def test_the_callback_sets_size_and_accumulation_of_the_global_batch(tmp_path):
    pytest.importorskip("lightning")
    done = run("with_callback.py", tmp_path)
    size = size_found(tmp_path)
    assert answer(done) == f"trained with {size} {16 // size} True"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["version_0"]  # that of the training alone


def test_a_factory_of_trainers_is_explored_and_its_folder_stays_untouched(tmp_path):
    done = run("with_trainer.py", tmp_path)
    assert answer(done) == f"found {size_found(tmp_path)} AdamW"
    assert not any((tmp_path / "checkpoints").glob("*"))


GIVEN_TO_FIT = """
import sys
import torch
from tests.jobs.with_callback import Model
from lightning.pytorch import Trainer
from bexplore.lightning import MicroBatchSizeFinder

loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
trainer = Trainer(max_steps=3, accelerator="cpu", logger=False, callbacks=[MicroBatchSizeFinder()])
trainer.fit(Model(), {argument})
"""


@pytest.mark.parametrize("argument", ["loader", "train_dataloaders=loader"])
def test_a_loader_that_is_given_to_fit_is_refused_by_place_and_by_name(tmp_path, argument):
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(GIVEN_TO_FIT.format(argument=argument))
    env = {name: value for name, value in os.environ.items() if name not in OWN} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "train.py", str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 1
    assert "UserInputError: the loader was given to fit(), and keeps its own batch size" in done.stderr
    assert "let train_dataloader() of the module or a data module make it" in done.stderr
