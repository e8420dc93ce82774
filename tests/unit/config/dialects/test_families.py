"""Files of every family: recognised by their keys, solved, refused by the family's rule, copied to the byte."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from bexplore.config import starter
from bexplore.config.config import Config, RequestKind
from bexplore.config.dialects.families import FAMILIES
from bexplore.config.dialects.family import Numbers, add_launcher
from bexplore.config.document.writer import without_section
from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from tests.unit.config.dialects.family_files import TEXTS


def written(folder: Path, text: str, suffix: str = ".yaml") -> Path:
    """Write a file, with its line breaks as they are."""
    path = folder / f"job{suffix}"
    path.write_bytes(text.encode())
    return path


def loaded(folder: Path, text: str, suffix: str = ".yaml", *overrides: str) -> Config:
    command = [] if any("explore.command" in one for one in overrides) else ['explore.command=["train", "{config}"]']
    return load_config(written(folder, text, suffix), overrides=[*command, "explore.writes_are_fine=true", *overrides])


def parse(text: str, suffix: str) -> Any:
    return {".json": json.loads, ".toml": tomllib.loads}.get(suffix, YAML(typ="safe").load)(text)


def copy(config: Config, *, micro_batch_size: int, accumulation: int = 2, replicas: int = 1) -> str:
    """Return the copy that a start gets."""
    command = config.command
    assert command is not None and command.file is not None
    values = command.values(
        micro_batch_size=micro_batch_size, accumulation=accumulation, num_replicas=replicas, folder=Path("/probe")
    )
    return command.file.copy(values)


# Recognition and numbers


@pytest.mark.parametrize("name", TEXTS)
def test_a_family_is_recognised_by_its_keys_and_its_numbers_are_read(tmp_path, name):
    suffix, text, (accumulation, replicas, total, tokens) = TEXTS[name]
    replicas_given = [] if replicas or not total else ["explore.replicas=1"]

    config = loaded(tmp_path, text, suffix, *replicas_given)

    assert config.layout == name
    assert config.recognised.startswith(f"{FAMILIES[name].title}, by ")
    assert config.request.kind is RequestKind.EXPLORE
    assert config.num_replicas == (replicas or 1)
    assert config.batch_size == total
    assert config.job.sequence_length == tokens
    names = config.command.file.names
    assert "micro_batch_size" in names
    assert ("accumulation" in names) == (accumulation is not None or "gradient_accumulation_steps" in text)


@pytest.mark.parametrize("name", TEXTS)
def test_a_copy_has_the_size_and_its_multiples_at_their_keys(tmp_path, name):
    suffix, text, _ = TEXTS[name]
    config = loaded(tmp_path, text, suffix, "explore.replicas=1")

    values = parse(copy(config, micro_batch_size=6), suffix)

    found = {}
    for key in config.command.file.keys:
        value = values
        for part in key.path:
            value = value[part]
        found[key.name] = value
    assert found["micro_batch_size"] == 6
    assert found.get("accumulation", 2) == 2
    assert found.get("global_batch_size", 12) == 12
    assert found.get("output_dir", "/probe/output") == "/probe/output"


def test_a_named_dialect_is_taken_and_an_unknown_one_refused_with_a_guess(tmp_path):
    text = "batch_size: explore\n"

    assert loaded(tmp_path, text, ".yaml", "explore.dialect=torchtune").layout == "torchtune"
    with pytest.raises(UserInputError, match='there is no family "torchtun"') as raised:
        loaded(tmp_path, text, ".yaml", "explore.dialect=torchtun")
    assert raised.value.hint == "did you mean torchtune?"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"micro_batch_size": 4, "accumulation": 3, "num_replicas": 2}, {"global_batch_size": 24}),
        ({"micro_batch_size": 4, "global_batch_size": 24, "num_replicas": 2}, {"accumulation": 3}),
        ({"accumulation": 3, "global_batch_size": 24, "num_replicas": 2}, {"micro_batch_size": 4}),
        ({"micro_batch_size": 4, "accumulation": 3, "global_batch_size": 24}, {"num_replicas": 2}),
    ],
)
def test_any_three_of_the_numbers_solve_the_fourth(given, expected):
    numbers = Numbers(**given).solved()

    assert numbers == Numbers(**given, **expected)
    assert numbers.conflict() == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"micro_batch_size": 5, "global_batch_size": 24, "num_replicas": 2}, "no multiple of micro-batch 5"),
        (
            {"micro_batch_size": 4, "accumulation": 3, "global_batch_size": 25, "num_replicas": 2},
            "the global batch 25 is not micro-batch 4 x accumulation 3 x replicas 2",
        ),
    ],
)
def test_numbers_that_exclude_each_other_are_named(given, words):
    assert words in Numbers(**given).conflict()
    assert Numbers(**given).solved() == Numbers(**given)


def test_tokens_are_samples_times_the_sequence_in_both_directions(tmp_path):
    text = (
        "train_module:\n  rank_microbatch_size: explore\n  max_sequence_length: 128\n"
        "data_loader:\n  global_batch_size: 4096\ndataset:\n  sequence_length: 128\n"
    )
    config = loaded(tmp_path, text, ".yaml", "explore.dialect=olmo-core", "explore.replicas=1")

    assert config.batch_size == 32
    assert "rank_microbatch_size: 512\n" in copy(config, micro_batch_size=4)


# Rules of the families


@pytest.mark.parametrize(
    ("suffix", "text", "words"),
    [
        (
            ".json",
            '{"train_micro_batch_size_per_gpu": 4, "train_batch_size": 30, "gradient_accumulation_steps": 4,'
            ' "zero_optimization": {}}',
            "30",
        ),
        (".json", '{"output_dir": "o", "per_device_train_batch_size": "explore", "bf16": true, "fp16": true}', "bf16"),
        (
            ".yaml",
            "devices: 8\ntrain:\n  save_interval: 9\n  micro_batch_size: explore\n  global_batch_size: 4\n",
            "smaller than the 8 devices",
        ),
        (
            ".yaml",
            "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: many\n",
            'must be a positive integer, not "many"',
        ),
    ],
)
def test_what_its_family_would_refuse_is_refused_before_anything_starts(tmp_path, suffix, text, words):
    with pytest.raises(UserInputError) as raised:
        loaded(tmp_path, text, suffix, "explore.replicas=1")

    assert words in str(raised.value)


def test_a_word_at_another_key_is_the_typed_commands_and_else_an_error(tmp_path):
    text = "base_model: m\nmicro_batch_size: 2\ndatasets: []\nval_set_size: 0\nsequence_len: explore\n"

    config = loaded(tmp_path, text)

    assert (config.layout, config.command.file.names) == ("command", {"micro_batch_size"})
    with pytest.raises(UserInputError, match="Axolotl keeps its micro-batch size in micro_batch_size"):
        load_config(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "num_replicas"),
    [
        ("base_model: m\ndatasets: []\nsequence_len: 8\nmicro_batch_size: explore\nbatch_size: 64\n", None),
        ("model: {d_model: 8}\nglobal_train_batch_size: 64\ndevice_train_microbatch_size: explore\n", 1),
    ],
    ids=["a program that starts its own processes", "a launcher"],
)
def test_numbers_that_depend_on_replicas_not_given_are_for_those_that_a_command_starts(tmp_path, text, num_replicas):
    typed, usual = loaded(tmp_path, text), load_config(written(tmp_path, text))

    assert "1 is assumed" in typed.warnings[0] and typed.num_replicas_started is None
    assert usual.num_replicas_started == usual.command.num_replicas == num_replicas
    assert ["1 is assumed" in one for one in usual.warnings] == [True] * (num_replicas is None)


# Copies


def test_comments_quotes_anchors_and_line_breaks_stay_in_yaml(tmp_path):
    text = (
        "# head\r\nbase_model: 'm'   # quoted\r\nshared: &s {a: \"no\"}\r\nother: *s\r\ndatasets: []\r\n"
        "micro_batch_size:   explore  # here\r\ngradient_accumulation_steps: 4   # four\r\noutput_dir: ./o\r\n\r\n# end"
    )

    made = copy(loaded(tmp_path, text), micro_batch_size=16)

    expected = text.replace("explore  #", "16  #").replace("steps: 4", "steps: 2").replace("./o", '"/probe/output"')
    assert made == expected


def test_tabs_and_order_stay_in_json(tmp_path):
    text = '{\r\n\t"b": 1.50,\r\n'
    text += '\t"per_device_train_batch_size" : "explore",\r\n\t"output_dir": "o", "a": "\\u00e9"\r\n}\r\n'

    made = copy(loaded(tmp_path, text, ".json"), micro_batch_size=16)

    assert made == text.replace('"explore"', "16").replace('"o"', '"/probe/output"')


def test_comments_and_literal_strings_stay_in_toml(tmp_path):
    text = (
        "# head\n[job]\ndump_folder = 'o'  # out\n[model]\nname = 'llama3'\n[training]\n"
        "local_batch_size  =  'explore'  # here\nseq_len = 2_048\nsteps = 0x10\n"
    )

    made = copy(loaded(tmp_path, text, ".toml"), micro_batch_size=16)

    rest = [line for line in text.splitlines() if "explore" not in line and "dump_folder" not in line]
    assert [line for line in made.splitlines() if line in rest] == rest
    assert "local_batch_size  =  16  # here" in made
    assert tomllib.loads(made)["job"]["dump_folder"] == "/probe/output"


def test_what_changes_the_size_by_itself_is_off_in_copies_and_reported(tmp_path):
    text = '{"output_dir": "o", "per_device_train_batch_size": "explore", "auto_find_batch_size": true}'
    config = loaded(tmp_path, text, ".json")

    assert json.loads(copy(config, micro_batch_size=2))["auto_find_batch_size"] is False
    assert any("auto_find_batch_size is false in each start" in one for one in config.warnings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n  "explore": {"max": 8},\n  "output_dir": "o"\n}\n', '{\n  "output_dir": "o"\n}\n'),
        ('{\n  "output_dir": "o",\n  "explore": {"max": 8, "min": 2}\n}\n', '{\n  "output_dir": "o"\n}\n'),
        ('{"a": 1, "explore": null, "output_dir": "o"}', '{"a": 1, "output_dir": "o"}'),
        ('{"explore": {}}', "{}"),
        ('{"a": {"explore": 1}}', '{"a": {"explore": 1}}'),
    ],
)
def test_the_section_of_bexplore_is_left_out_of_json(text, expected):
    assert without_section(text, "explore", source="job.json") == expected


@pytest.mark.parametrize("name", TEXTS)
def test_a_copy_of_what_init_wrote_has_the_keys_of_the_users_file_alone(tmp_path, name):
    suffix, text, (_, _, total, _) = TEXTS[name]
    own = re.sub("['\"]?explore['\"]?", "4", text)
    made = starter.from_file(written(tmp_path, own, suffix)).text

    copied = copy(loaded(tmp_path, made, suffix, *(["explore.replicas=1"] if total else [])), micro_batch_size=4)

    added = {"output_dir", "out_dir", "exp_manager", "checkpoints"}  # of which each start has its own
    assert set(parse(own, suffix)) <= set(parse(copied, suffix)) <= set(parse(own, suffix)) | added


# What the file's own size has fixed

ARGUMENTS = '{"output_dir": "o", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 12}'


def test_the_batch_of_a_step_stays_where_the_word_replaces_a_number(tmp_path):
    known = loaded(tmp_path, ARGUMENTS, ".json", "micro_batch_size=explore", "explore.replicas=2")
    unknown = loaded(tmp_path, ARGUMENTS, ".json", "micro_batch_size=explore")

    assert (known.batch_size, known.num_replicas) == (96, 2)
    assert unknown.replica_batch_size == 48
    shown = unknown.with_replicas(2)
    assert (shown.batch_size, shown.num_replicas, shown.replica_batch_size) == (96, 2, 48)


def test_a_global_batch_taken_for_one_replica_asks_for_the_replicas(tmp_path):
    text = '{"output_dir": "o", "per_device_train_batch_size": "explore"}'
    config = loaded(tmp_path, text, ".json", "explore.global_batch_size=48")

    assert config.with_replicas(1) == config
    with pytest.raises(UserInputError, match="started 2 replicas") as raised:
        config.with_replicas(2)
    assert raised.value.hint == "give `replicas=2`"


def test_two_fixed_batches_of_a_step_are_refused(tmp_path):
    with pytest.raises(UserInputError, match="is fixed already"):
        loaded(tmp_path, ARGUMENTS, ".json", "explore.global_batch_size=48", "explore.replica_batch_size=48")


@pytest.mark.parametrize("name", TEXTS)
def test_init_changes_the_size_and_fixes_the_batch_of_a_step(tmp_path, name):
    suffix, text, (accumulation, replicas, total, _tokens) = TEXTS[name]
    own = text.replace('"explore"', "4").replace("'explore'", "4").replace("explore", "4")
    path = written(tmp_path, own, suffix)

    starter_file = starter.from_file(path)
    made, notes = starter_file.text, starter_file.notes

    assert path.read_text() == own
    assert notes[0].startswith(f"{path} is of {FAMILIES[name].title}, by ")
    config = loaded(tmp_path, made, suffix, *([] if replicas or not total else ["explore.replicas=1"]))
    assert config.request.kind is RequestKind.EXPLORE
    assert config.batch_size == (total or 4 * (accumulation or 1) * (replicas or 1))
    if suffix != ".json":
        start = text.replace('"explore"', "\0").replace("explore", "\0").split("\0")
        assert made.startswith(start[0]) and start[1] in made


# The command and the fingerprint


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("python", "python -m train x"),
        ("torchrun", "torchrun --standalone --nproc-per-node 2 -m train x"),
        ("accelerate", "accelerate launch --num_processes 2 -m train x"),
        ("deepspeed", "deepspeed --num_gpus 2 --module train x"),
        ("srun", "srun --ntasks 2 python -m train x"),
    ],
)
def test_a_launcher_starts_the_module_with_its_own_options(launcher, expected):
    assert " ".join(add_launcher(launcher, 2, ("-m", "train", "x"))) == expected


def test_the_usual_command_of_a_family_is_behind_the_named_launcher(tmp_path):
    suffix, text, _ = TEXTS["axolotl"]
    path = written(tmp_path, text, suffix)

    usual = load_config(path)
    launched_by = load_config(path, overrides=["explore.launcher=torchrun", "explore.processes=2"])

    assert usual.command.argv == ("axolotl", "train", "{config}")
    assert launched_by.command.argv[:4] == ("torchrun", "--standalone", "--nproc-per-node", "2")


def test_a_launcher_that_does_not_go_with_the_family_is_refused(tmp_path):
    suffix, text, _ = TEXTS["litgpt"]
    with pytest.raises(UserInputError, match="LitGPT starts its own processes"):
        load_config(written(tmp_path, text, suffix), overrides=["explore.launcher=srun"])


@pytest.mark.parametrize(
    ("before", "after", "is_another"),
    [
        ("sequence_len: 512", "sequence_len: 1024", True),
        ("datasets: []", "datasets: [] # the same\ngradient_checkpointing: true", True),
        ("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 8", False),
        ("datasets: []", "datasets: []   # a comment", False),
    ],
)
def test_what_decides_the_memory_is_another_job_and_the_batch_is_not(tmp_path, before, after, is_another):
    suffix, text, _ = TEXTS["axolotl"]

    first, second = (loaded(tmp_path, one, suffix) for one in (text, text.replace(before, after)))

    assert (first.job != second.job) == is_another
    if is_another:
        assert first.job.model["memory"] != second.job.model["memory"]
