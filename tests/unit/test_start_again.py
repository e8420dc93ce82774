from __future__ import annotations

import functools
import sys
from argparse import Namespace
from types import ModuleType

import pytest

import bexplore.transformers
from bexplore import start_again
from bexplore.config.load import load_config
from bexplore.decorator import find_fastest_batch_size
from bexplore.errors import UserInputError
from bexplore.start_again import ProgramRequest, explore_program, find_own_command, name_function, read_given_size
from tests.unit.run.builders import run_result


def test_a_start_gets_its_size_by_a_variable_and_its_folder_by_another():
    config = load_config(
        None, overrides=ProgramRequest(what="train", settings={"max": 64, "env": {"A": "1"}}).overrides()
    )

    assert config.command is not None and config.maximum == 64
    assert list(config.command.argv) == [sys.executable, *sys.orig_argv[1:]]
    assert config.command.env == {
        "BEXPLORE_MICRO_BATCH_SIZE": "{micro_batch_size}",
        "A": "1",
        "BEXPLORE_OUTPUT_DIR": "{output_dir}",
    }


def test_a_function_that_writes_where_it_likes_needs_consent():
    with pytest.raises(UserInputError, match="train does not take output_dir") as raised:

        @find_fastest_batch_size(max=8)
        def train(batch_size): ...

    assert any("writes_are_fine=True" in note for note in raised.value.__notes__)


def test_a_trainer_in_place_of_its_factory_is_refused_before_a_start():
    with pytest.raises(UserInputError, match="a Namespace was given instead of a function") as raised:
        bexplore.transformers.explore(Namespace())  # type: ignore[arg-type]

    assert any("lambda size" in note for note in raised.value.__notes__)


def test_a_given_size_is_taken_and_a_folder_only_where_the_function_has_one(monkeypatch):
    monkeypatch.setenv("BEXPLORE_MICRO_BATCH_SIZE", "32")
    monkeypatch.setenv("BEXPLORE_OUTPUT_DIR", "probe")
    taken = find_fastest_batch_size(lambda size, rate, output_dir="out": (size, rate, output_dir))
    kept = find_fastest_batch_size(lambda size, *rest: (size, *rest), writes_are_fine=True)

    assert taken(0.1, "mine") == (32, 0.1, "probe")
    assert kept(1, 2) == (32, 1, 2)

    monkeypatch.setenv("BEXPLORE_MICRO_BATCH_SIZE", "many")
    with pytest.raises(UserInputError, match="BEXPLORE_MICRO_BATCH_SIZE=many is no number"):
        read_given_size()


def test_a_program_explores_once(monkeypatch):
    found = run_result(micro_batch_size=8)
    monkeypatch.setattr(start_again, "_found", [(ProgramRequest(what="pretrain", settings={"max": 8}), found)])

    assert explore_program(ProgramRequest(what="pretrain", settings={"max": 8})) is found
    with pytest.raises(UserInputError, match="tune explores after pretrain: a start"):
        explore_program(ProgramRequest(what="tune", settings={"max": 8}))
    with pytest.raises(UserInputError, match="pretrain explores after the same with other settings: a start"):
        explore_program(ProgramRequest(what="pretrain", settings={"max": 16}))


def test_two_factories_of_one_program_are_two_trainings():
    factories = [
        lambda size: "pretrain",
        lambda size: "tune",
    ]

    names = [name_function(one) for one in (*factories, *factories, functools.partial(print, 1))]

    assert names[:2] == names[2:4] and len(set(names)) == 3


def test_an_interactive_session_has_nothing_to_start_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(sys, "orig_argv", ["python"])

    with pytest.raises(UserInputError, match="this one was typed"):
        find_own_command()


def test_another_program_in_the_command_is_another_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["explore.command='python train.py {micro_batch_size}'", "explore.writes_are_fine=true"]
    prints = set()
    for text in ("a = 1", "a = 1", "a = 2"):
        (tmp_path / "train.py").write_text(text)
        prints.add(load_config(None, overrides=overrides).job.fingerprint())

    assert len(prints) == 2
