"""What a file may make the commands run: nothing with `--no-code`, and nothing unsaid without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bexplore.cli import main
from bexplore.cli.entry import COMMANDS, LazyGroup
from tests.builders import ROOT

TAKES_NO_CODE = ("explore", "apply", "plan", "trace", "probe", "guard", "doctor")
MORE = {"probe": ("--micro-batch-size", "1"), "doctor": ("--noise-s", "0"), "guard": ("--baseline", "b.json")}
DATA = {"batch_size": 8, "micro_batch_size": "explore"}
MODEL = {"name": "gpt2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2}
MARK = "import pathlib; pathlib.Path('ran').touch()"
# What a file names -> its section `explore`; each would leave the file `ran`.
HOSTILE = {
    "a command": {"command": [sys.executable, "-c", MARK, "{micro_batch_size}", "{output_dir}"]},
    "a launcher": {
        "launcher": f'{sys.executable} -c "{MARK}" {{worker}}',
        "parallelism": {"data_parallel_replicate_degree": 2},
    },
    "code of its own": {"workload": {"model": "hostile:make", "batch": "hostile:make", "loss": "hostile:make"}},
    "a step of its own": {"workload": {"step": "hostile:make"}},
    "a plugin of the compiler": {"compile": {"backend": "hostile"}},
    "a compiler": {"compile": {"options": {"cpp.cxx": ["./hostile.sh"]}}},
    "a driver": {"storage": "hostile://host/db"},
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a job's file beside code that leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.py").write_text(MARK)

    def write(explore: dict) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps({"train_input": DATA, "model": MODEL, "explore": {"device": "cpu"} | explore}))
        return path

    return write


def test_these_commands_take_no_code():
    group = LazyGroup()
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in COMMANDS}
    options = {name: {one.name for one in command.params} for name, command in commands.items() if command}
    assert {name for name, own in options.items() if "no_code" in own} == set(TAKES_NO_CODE)


@pytest.mark.promise("each command that reads a hostile file, with --no-code", "refused in one line; nothing runs")
@pytest.mark.parametrize("command", TAKES_NO_CODE)
@pytest.mark.parametrize("what", HOSTILE)
def test_no_command_runs_anything_with_no_code(command, what, job, capsys, tmp_path):
    path = job(HOSTILE[what])
    with pytest.raises(SystemExit) as ended:
        main([command, str(path), *MORE.get(command, ()), "--no-code"])

    told = capsys.readouterr().err
    assert ended.value.code == 2
    num_keys = 3 if what == "code of its own" else 1
    assert len([line for line in told.splitlines() if "--no-code refuses that" in line]) == num_keys
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "local_compile_train").exists()


@pytest.mark.parametrize("words", [("explore", "--no-code", "--writes-are-fine", "--", "touch", "ran")])
def test_a_command_that_is_typed_is_refused_with_no_code_too(words, job, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main([*words, "{micro_batch_size}"])
    assert ended.value.code == 2
    assert "--no-code refuses that" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.promise("a file names a program, without --no-code", "what will be started is printed before it starts")
@pytest.mark.parametrize("words", [("explore",), ("probe", "--micro-batch-size", "2")], ids=" ".join)
def test_what_is_started_is_printed_before_its_start(words, job, tmp_path):
    saying = "cp said.txt seen.txt; exit 3"
    path = job({"command": ["sh", "-c", saying, "{config}", "{output_dir}"]})
    with (tmp_path / "said.txt").open("w") as said:
        subprocess.run(
            [sys.executable, "-m", "bexplore", words[0], str(path), *words[1:]],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=240,
            check=False,
        )
    assert f"starts `sh -c '{saying}' {{config}} {{output_dir}}`" in (tmp_path / "seen.txt").read_text()


@pytest.mark.parametrize("command", ["trace", "probe", "explore"])
def test_what_is_imported_is_printed_before_its_import(command, job, tmp_path):
    first = "import os, shutil; os.path.exists('seen.txt') or shutil.copy('said.txt', 'seen.txt'); raise ValueError"
    (tmp_path / "hostile.py").write_text(first)
    path = job(HOSTILE["a step of its own"])
    with (tmp_path / "said.txt").open("w") as said:
        subprocess.run(
            [sys.executable, "-m", "bexplore", command, str(path), *MORE.get(command, ())],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=240,
            check=False,
        )
    assert "imports hostile:make" in (tmp_path / "seen.txt").read_text()
