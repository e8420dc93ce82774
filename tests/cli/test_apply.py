"""The command `apply`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from bexplore.cli import cli
from bexplore.cli.apply import apply
from bexplore.cli.options import Common
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.job import digest_code
from bexplore.run import run_directory
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECTIONS = """\
# The job of the week.
train_input:
    batch_size: 24   # global
    micro_batch_size: explore    # find the fastest
    'use_worker_cache':   True
model: {name: "gpt2", vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}

runconfig:
    num_csx: 2
    model_dir: weekly
explore: {memory_budget: 1GiB, max: 16}
"""


def job_file(folder: Path, text: str = SECTIONS) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(text.encode())
    return path


def finished_run(path: Path, size: int | None = 6, keeps: int | None = 4, config: Config | None = None) -> Run:
    """A run on disk as `explore` would leave it for the file as it is now."""
    config = config or load_config(path)
    meta = {
        "job": config.job.as_record(),
        "environment": {"code": digest_code(config.job), "processor": "another machine's"},
        "search_specification": {
            "minimum": config.minimum,
            "maximum": config.maximum,
            "candidates": config.candidates,
            "memory_budget": config.settings.memory_budget,
            "num_replicas": config.num_replicas,
        },
    }
    run = run_directory.create_run(run_directory.model_directory(config.mode, config.model_dir), meta=meta, now=NOW)
    result = {"base_micro_batch_size": 1, "relative_performance": 1.5, "confidence": 91}
    second = {"micro_batch_size": keeps, "relative_performance": 1.4, "confidence": 92, "samples_per_s": 390.0}
    second |= {"free_micro_batch_size": size or 1, "over_recommended": 0.97, "accumulation_steps": 1}
    record = result | {"micro_batch_size": size, "keeps_batch_size": second if keeps else None}
    run.write_result(RunResult.from_record(record))
    return run


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_command_asks_which_of_the_two_gives_way_on_a_terminal_alone(tmp_path, monkeypatch):
    path = job_file(tmp_path)
    finished_run(path, size=5)

    refused = CliRunner().invoke(apply, ["job.yaml", "--yes"])
    assert refused.exception.exit_code == 2
    assert refused.exception.hint.count("bexplore apply job.yaml --") == 2

    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys.modules["bexplore.cli.apply"], "sys", terminal)
    asked = CliRunner().invoke(apply, ["job.yaml"], input="keep\ny\n")
    assert asked.exit_code == 0, asked.exception
    assert "keep    micro_batch_size 4, 0.97x the speed of 5; batch_size stays 24" in asked.output
    assert "change  micro_batch_size 5, batch_size 20" in asked.output
    assert path.read_text() == SECTIONS.replace("size: explore ", "size: 4 ")


def test_the_command_shows_the_change_and_writes_only_after_yes(tmp_path):
    path = job_file(tmp_path)
    finished_run(path, size=5)

    shown = CliRunner().invoke(apply, ["job.yaml", "--change-batch-size"])
    assert "-    micro_batch_size: explore    # find the fastest" in shown.output
    assert "+    micro_batch_size: 5    # find the fastest" in shown.output
    assert "from 24 to 20. The learning rate" in shown.output
    assert "--yes" in shown.exception.hint
    assert path.read_text() == SECTIONS

    done = CliRunner().invoke(apply, ["job.yaml", "--change-batch-size", "--yes"])
    assert done.exit_code == 0, done.exception
    again = CliRunner().invoke(apply, ["job.yaml", "--change-batch-size", "--yes"])
    assert "has this size already" in again.output


def test_another_file_may_be_written_instead(tmp_path):
    path = job_file(tmp_path)
    finished_run(path)

    done = CliRunner().invoke(apply, ["job.yaml", "-o", "tuned.yaml", "--yes", "--json"])

    assert done.exit_code == 0, done.exception
    assert path.read_text() == SECTIONS
    assert "micro_batch_size: 6 " in (tmp_path / "tuned.yaml").read_text()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--set", "model.hidden_size=64", "--set", "explore.max=8"],
        ["--set", "explore.seed=3"],
        ["--model-dir", "two words"],
    ],
)
def test_the_command_that_an_exploration_prints_writes_its_size(tmp_path, options):
    path = job_file(tmp_path)
    common = Common(
        as_json=False,
        overrides=tuple(options[1::2]) if "--set" in options else (),
        model_dir=options[1] if "--model-dir" in options else None,
        allow_code=True,
        mode=None,
        verbosity=0,
    )
    config = common.load(path)
    finished_run(path, config=dataclasses.replace(config, model_dir=common.model_dir or "weekly"))

    done = CliRunner().invoke(apply, [*shlex.split(config.typed), "--yes"])

    assert done.exit_code == 0, done.exception
    assert path.read_text() == SECTIONS.replace("micro_batch_size: explore ", "micro_batch_size: 6 ")
    assert ("values of --set are not written" in done.stderr) == ("--set" in options)


@pytest.mark.parametrize("folder", ["{output_dir}/logs", "runs"])
def test_a_placeholder_that_stays_in_the_file_is_told(tmp_path, folder):
    path = job_file(tmp_path, f"out: '{folder}'\nbatch_size: explore\n")
    words = ["--", "train", "{config}", "{output_dir}"]
    overrides = ['explore.command=["train", "{config}", "{output_dir}"]']
    finished_run(path, keeps=None, config=load_config(path, overrides=overrides))

    done = CliRunner().invoke(cli, ["apply", "job.yaml", "--yes", *words])

    assert done.exit_code == 0, done.output
    assert path.read_text() == f"out: '{folder}'\nbatch_size: 6\n"
    assert ("job.yaml still has {output_dir}: " in done.stderr) == ("{output_dir}" in folder)


def test_a_placeholder_that_is_no_size_stays_and_is_told(tmp_path):
    path = tmp_path / "job.json"
    path.write_text('{"bs": "{micro_batch_size}", "steps": "{accumulation}"}')
    finished_run(
        path, keeps=None, config=load_config(path, overrides=['explore.command=["t", "{config}", "{output_dir}"]'])
    )

    done = CliRunner().invoke(cli, ["apply", "job.json", "--yes", "--", "t", "{config}", "{output_dir}"])

    assert done.exit_code == 0, done.output
    assert path.read_text() == '{"bs": 6, "steps": "{accumulation}"}'
    assert "job.json still has {accumulation}: " in done.stderr


def test_a_key_that_gets_its_accumulation_is_none_that_is_not_written(tmp_path):
    path = job_file(tmp_path, "bs: explore\naccum_grad: 4\n")
    options = ["--set", "accum_grad={accumulation}", "--set", "explore.replica_batch_size=12"]
    words = ["--", "train", "{config}", "{output_dir}"]
    overrides = ['explore.command=["train", "{config}", "{output_dir}"]', *options[1::2]]
    finished_run(path, keeps=None, config=load_config(path, overrides=overrides))

    done = CliRunner().invoke(cli, ["apply", "job.yaml", *options, "--yes", *words])

    assert done.exit_code == 0, done.output
    assert path.read_text() == "bs: 6\naccum_grad: 2\n"
    assert "not written into job.yaml: explore.replica_batch_size=12\n" in done.stderr
