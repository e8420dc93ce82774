"""What a training command and its file say of a step, and which keys of the file change from start to start."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from bexplore.config.config import Config
from bexplore.config.document.writer import with_value
from bexplore.config.load import load_config
from bexplore.errors import UserInputError


def copied(folder: Path, text: str, *overrides: str, name: str = "job.yaml") -> str:
    """Return the copy of a file that a start with 4 samples and 2 micro-batches gets."""
    path = folder / name
    path.write_text(text)
    command = json.dumps(["train", "{config}"])
    given = [f"explore.command={command}", "explore.writes_are_fine=true", *overrides]
    made = load_config(path, overrides=given).command
    values = made.values(micro_batch_size=4, accumulation=2, num_replicas=1, folder=folder)
    return made.file.copy(values)


def loaded(folder: Path, text: str, *words: str) -> Config:
    """Load a file, read by a command with further words."""
    path = folder / "job.yaml"
    path.write_text(f"micro_batch_size: explore\n{text}")
    command = json.dumps(["train", "{config}", *words])
    return load_config(path, overrides=[f"explore.command={command}", "explore.writes_are_fine=true"])


@pytest.mark.parametrize(
    ("text", "accumulation"),
    [
        ("gradient_accumulation_steps: 8", 8),
        ("trainer: {accumulate_grad_batches: 4}", 4),
        ("gradient_accumulation_steps: 8\ndeepspeed: {gradient_accumulation_steps: 8}", 8),
        ("gradient_accumulation_steps: 8\ndeepspeed: {gradient_accumulation_steps: 4}", None),
        ("gradient_accumulation_steps: auto", None),
        ("gradient_accumulation_steps: true", None),
        ("steps: 8", None),
    ],
)
def test_the_accumulation_of_a_file_of_no_family_is_known_where_it_has_one(tmp_path, text, accumulation):
    config = loaded(tmp_path, text)

    assert config.command.accumulation == accumulation
    assert config.batch_size is None


def test_the_accumulation_of_a_familys_file_is_known_without_its_replicas(tmp_path):
    config = loaded(tmp_path, "base_model: m\ndatasets: []\ngradient_accumulation_steps: 4\n")

    assert config.layout == "axolotl"
    assert (config.command.accumulation, config.batch_size) == (4, None)


@pytest.mark.parametrize(
    "words",
    [
        ("--gradient_accumulation_steps", "4"),
        ("--gradient-accumulation-steps=4",),
        ("+trainer.accumulate_grad_batches=4",),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches=4"),
        ("bash", "-c", "python train.py --gradient-accumulation-steps 4 --out {output_dir}"),
    ],
)
def test_what_a_word_of_the_command_fixes_goes_before_the_file(tmp_path, words):
    config = loaded(tmp_path, "gradient_accumulation_steps: 8", *words)

    assert config.command.accumulation == 4
    assert config.command.file.names == {"micro_batch_size"}
    assert not config.command.sets_accumulation


def test_a_word_that_bexplore_fills_in_fixes_nothing(tmp_path):
    config = loaded(
        tmp_path, "gradient_accumulation_steps: 8", "--gradient_accumulation_steps", "{accumulation}", "--workers", "4"
    )

    assert config.command.accumulation == 8
    assert config.command.sets_accumulation


def test_a_global_batch_alone_is_the_size_times_the_replicas():
    words = json.dumps(["train", "--batch-size", "{global_batch_size}"])
    command = load_config(
        None, overrides=[f"explore.command={words}", "explore.writes_are_fine=true", "explore.replicas=2"]
    ).command

    assert not command.sets_accumulation
    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=2)
    assert command.filled(values)[0] == ["train", "--batch-size", "8"]
    assert command.shown_with(micro_batch_size=4, accumulation=None, num_replicas=2) == "train --batch-size 8"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python -u ../code/main_x.py --config other.py {micro_batch_size}", "main_x"),
        ("torchrun --nproc-per-node 2 -m package.train {micro_batch_size}", "package.train"),
        ("python -m torch.distributed.run -m package.train {micro_batch_size}", "package.train"),
        ("python -m torch.distributed.run run.v2.py {micro_batch_size}", "run.v2"),
        ("script -qec 'python train.py {micro_batch_size}' /dev/null", "train"),
        ("/opt/tools/tune:x run {micro_batch_size}", "tune_x"),
    ],
)
def test_results_of_a_command_lie_in_a_folder_of_its_programs_name(words, name):
    overrides = [f"explore.command={json.dumps(shlex.split(words))}", "explore.writes_are_fine=true"]
    assert load_config(None, overrides=overrides).model_dir == name


def test_results_of_a_command_with_a_file_lie_in_a_folder_of_the_files_name(tmp_path):
    path = tmp_path / "small.explore.yaml"
    path.write_text("explore:\n  command: python train.py {micro_batch_size} {output_dir}\n")
    assert load_config(path).model_dir == "small"


def test_an_empty_word_of_the_command_stays_one_where_it_is_shown():
    words = json.dumps(["train", "--report_to", "", "{micro_batch_size}"])
    command = load_config(None, overrides=[f"explore.command={words}", "explore.writes_are_fine=true"]).command

    assert command.shown == "train --report_to '' {micro_batch_size}"
    assert command.shown_with(micro_batch_size=4, accumulation=None, num_replicas=1) == "train --report_to '' 4"


# What starts the script, further settings -> the replicas of the numbers, and whether they are assumed.
REPLICAS = [
    (["python"], [], 1, True),
    (["torchrun", "--nproc-per-node", "gpu"], [], 1, True),
    (["torchrun"], [], 1, False),
    (["torchrun", "--nproc-per-node=4", "--nnodes", "2"], [], 8, False),
    (["torchrun", "--nproc-per-node=4", "--nnodes", "1:2"], [], 1, True),
    (["deepspeed", "--num_nodes", "2", "--num_gpus", "4"], [], 8, False),
    (["accelerate", "launch", "--num_processes", "4"], [], 4, False),
    (["composer", "-n", "2"], [], 2, False),
    (["srun", "--ntasks=16", "python"], [], 16, False),
    (["torchrun", "--nproc-per-node=4"], ["explore.replicas=2"], 2, None),
    (["torchrun", "--nproc-per-node=4"], ["explore.replica_batch_size=8"], 4, False),
]


@pytest.mark.parametrize(("launcher", "overrides", "replicas", "is_assumed"), REPLICAS)
def test_replicas_that_are_not_given_are_the_launchers_or_assumed_aloud(launcher, overrides, replicas, is_assumed):
    words = json.dumps([*launcher, "train.py", "--nproc-per-node", "99", "--batch-size", "{global_batch_size}"])

    config = load_config(None, overrides=[f"explore.command={words}", "explore.writes_are_fine=true", *overrides])

    assert config.num_replicas == replicas
    assert ["1 is assumed" in one for one in config.warnings] == [True] * bool(is_assumed)
    assert config.num_replicas_started == (replicas if is_assumed is False else None)
    if config.has_replica_batch_size:
        assert config.batch_size == 8 * replicas


def test_replicas_on_which_no_start_depends_are_not_assumed_aloud():
    words = json.dumps(["python", "train.py", "--bs", "{micro_batch_size}"])
    overrides = [f"explore.command={words}", "explore.writes_are_fine=true", "explore.global_batch_size=64"]

    config = load_config(None, overrides=overrides)

    assert (config.num_replicas, config.batch_size, config.warnings) == (1, 64, ())


@pytest.mark.parametrize(("words", "replicas"), [(["--bs", "{micro_batch_size}"], None), (["{global_batch_size}"], 4)])
def test_only_a_command_whose_numbers_need_them_is_held_to_the_launchers_replicas(words, replicas):
    argv = json.dumps(["torchrun", "--nproc-per-node", "4", "train.py", *words])

    command = load_config(None, overrides=[f"explore.command={argv}", "explore.writes_are_fine=true"]).command

    assert command.num_replicas == replicas


AXOLOTL = "base_model: m\ndatasets: [{path: a, type: b}]\nsequence_len: 64\n"
WITH_SIZE = "micro_batch_size=explore"


@pytest.mark.parametrize(
    ("text", "overrides", "before", "after"),
    [
        ("batch_size: explore\nlr: 1\n", ["lr=3"], "lr: 1", "lr: 3"),
        ("batch_size: explore\nname: ${batch_size}/${output_dir}\n", [], "", ""),
        ("bs: 8\nbatch_size: !ref <bs>\n", [WITH_SIZE], "bs: 8", "bs: 4"),
        ("bs: 8\ndata: {batch_size: '${bs}'}\n", [WITH_SIZE], "bs: 8", "bs: 4"),
        (f"{AXOLOTL}micro_batch_size: ${{bs}}\nbs: 8\n", [WITH_SIZE], "bs: 8", "bs: 4"),
        (
            f"{AXOLOTL}micro_batch_size: explore\ngradient_accumulation_steps: ${{div:8,${{micro_batch_size}}}}\n",
            [],
            "",
            "",
        ),
        ("SOLVER:\n  IMS_PER_BATCH: Explore\n", [], "Explore", "4"),
    ],
)
def test_a_copy_has_what_is_set_and_every_link(tmp_path, text, overrides, before, after):
    expected = text.replace("explore\n", "4\n").replace(before, after) if before else text.replace("explore\n", "4\n")
    copy = copied(tmp_path, text, *overrides)
    outputs = f'output_dir: "{tmp_path}/output"\n'
    assert copy.replace(outputs, "") == expected


def test_the_word_in_toml_is_written_in_any_case(tmp_path):
    assert copied(tmp_path, 'local_batch_size = "EXPLORE"\n', name="job.toml") == "local_batch_size = 4\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("job.json", '{"train": {"bs": "{global_batch_size}"}}', '{"train": {"bs": 8}}'),
        ("job.json", '{"bs": "{micro_batch_size}", "out": "{output_dir}"}', '{"bs": 4, "out": "OUT"}'),
        ("job.json", '{"name": "bs{micro_batch_size}"}', '{"name": "bs4"}'),
        ("job.toml", 'bs = "{micro_batch_size}"\nsteps = "{accumulation}"\n', "bs = 4\nsteps = 2\n"),
        ("job.yaml", 'bs: {micro_batch_size}\nvalue: "{accumulation}"\n', 'bs: 4\nvalue: "2"\n'),
        ("job.json", '{"args": ["--bs", "{micro_batch_size}"]}', '{"args": ["--bs", "4"]}'),
    ],
)
def test_a_placeholder_alone_is_a_number_where_the_file_cannot_say_so(tmp_path, name, text, expected):
    assert copied(tmp_path, text, name=name) == expected.replace("OUT", f"{tmp_path}/output")


@pytest.mark.parametrize("word", ["explore", "16"])
def test_a_placeholder_that_is_set_replaces_a_size_by_a_number(tmp_path, word):
    overrides = ['train.bs="{global_batch_size}"']
    assert copied(tmp_path, f"train:\n  bs: {word}\n  lr: 1\n", *overrides) == "train:\n  bs: 8\n  lr: 1\n"


def test_what_the_copy_has_is_told_with_the_line(tmp_path):
    path = tmp_path / "job.json"
    path.write_text('{"train": {"bs": "{global_batch_size}"}, "out": "{output_dir}"}')
    command = load_config(path, overrides=['explore.command=["train", "{config}"]']).command

    told = command.describe_copy(micro_batch_size=4, accumulation=1, num_replicas=2)

    assert told == "job.json with train.bs: 8"


@pytest.mark.parametrize("written", ["${oc.env:SIZE}", "${mul:${a},2}", "${a}0"])
def test_a_size_that_is_made_of_others_is_never_replaced(tmp_path, written):
    with pytest.raises(UserInputError, match="made of other values"):
        copied(tmp_path, f"{AXOLOTL}a: 2\nmicro_batch_size: {written}\n", WITH_SIZE)
    with pytest.raises(UserInputError, match="would cut that link"):
        with_value(f"a: {written}\n", ("a",), 4, source="job.yaml")
