"""Options of `bexplore explore` that go with a training command."""

from __future__ import annotations

import pytest

from bexplore.cli.apply import apply
from bexplore.cli.explore import explore
from bexplore.cli.options import Common, overrides_of_command, refuse_without_command
from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.measurement.probe import Compilation
from bexplore.run.fingerprint import search_settings


def test_an_option_of_a_training_command_is_refused_without_one():
    refuse_without_command({"env": (), "replicas": None, "writes_are_fine": False})

    with pytest.raises(UserInputError, match="--global-batch-size goes with a training command"):
        refuse_without_command({"env": (), "global_batch_size": 8})


def test_a_variable_without_a_value_has_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    assert 'explore.env={"HF_TOKEN": "hunter2"}' in list(overrides_of_command(command=("train",), env=("HF_TOKEN",)))

    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserInputError) as raised:
        list(overrides_of_command(command=("train",), env=("HF_TOKEN",)))
    assert "--env HF_TOKEN=VALUE" in raised.value.hint


def test_a_printed_line_has_the_values_of_variables_that_a_start_fills_in_and_of_no_others():
    env = ("RESULTS={output_dir}/results", "SIZE={micro_batch_size}", "TOKEN={output_dir} hunter2", "KEY=hunter2")
    overrides = tuple(overrides_of_command(command=("train",), env=env, writes_are_fine=True))
    common = Common(as_json=False, overrides=overrides, model_dir=None, allow_code=True, mode=None, verbosity=0)

    words = common.load(None).options

    told = [words[place + 1] for place, word in enumerate(words) if word == "--env"]
    assert told == ["RESULTS={output_dir}/results", "SIZE={micro_batch_size}", "TOKEN", "KEY"]


def test_sizes_per_start_is_a_setting_of_the_explore_section():
    assert "explore.sizes_per_start=8" in list(overrides_of_command(command=("train",), sizes_per_start=8))

    with pytest.raises(UserInputError, match="--sizes-per-start goes with a training command"):
        refuse_without_command({"sizes_per_start": 8})


@pytest.mark.parametrize(("sizes_per_start", "compilation"), [(1, Compilation.EXACT), (2, Compilation.SHARED)])
def test_a_search_whose_starts_serve_several_sizes_verifies_its_winner(sizes_per_start, compilation):
    typed = ["explore.command='train {micro_batch_size}'", "explore.writes_are_fine=true"]
    config = load_config(None, overrides=[*typed, f"explore.sizes_per_start={sizes_per_start}"])

    settings = search_settings(config)

    assert settings.search_compilation is compilation
    assert settings.verify_exact is (compilation is Compilation.SHARED)
    assert settings.user_compilation is Compilation.EXACT


def test_apply_takes_every_option_of_a_command_that_explore_takes():
    of_explore, of_apply = ({option.name for option in command.params} for command in (explore, apply))
    assert of_explore - of_apply == {"fresh", "dry_run", "storage"}
