"""Hydra trees, composed as Hydra 1.3.8 composes them, and the files that `init` makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.config import starter
from bexplore.config.hydra_tree import read_leaves
from bexplore.config.load import load_config
from bexplore.errors import UserInputError

TREE = {
    "config": (
        "defaults:\n  - _self_\n  - data: imagenet\n  - model: big\n  - optional local: none\n  - db@backup: mysql\n"
        "  - db@_global_.x.y: mysql\n  - experiment: one\n  - base\n  - override hydra/job_logging: default\n"
        "seed: 1\nmodel:\n  lr: 3\ntrainer: {devices: 2, accumulate_grad_batches: 4}\n"
    ),
    "base": "top: 1\nseed: 7\n",
    "data/imagenet": "defaults:\n  - loader: fast\n  - common\nbatch_size: 32\nval:\n  batch_size: 8\n",
    "data/cifar": "defaults:\n  - loader: fast\n  - common\nbatch_size: 16\nval:\n  batch_size: 8\n",
    "data/common": "workers: 2\nbatch_size: 1\n",
    "data/loader/fast": "prefetch: 2\n",
    "model/big": (
        "defaults:\n  - net@inner: a\n  - net: [a, b]\n  - /db: mysql\n  - /db@here: mysql\n  - net/c\nlr: 1\n"
    ),
    "model/net/a": "na: 1\n",
    "model/net/b": "nb: 1\n",
    "model/net/c": "nc: 1\n",
    "db/mysql": "host: h\n",
    "experiment/one": ("# @package _global_\ndefaults:\n  - override /data: cifar\ndata:\n  batch_size: 64\nzz: 1\n"),
}
# What Hydra 1.3.8 composes of these files.
COMPOSED = {
    "backup.host": "h",
    "data.batch_size": 64,
    "data.loader.prefetch": 2,
    "data.val.batch_size": 8,
    "data.workers": 2,
    "model.db.host": "h",
    "model.here.host": "h",
    "model.inner.na": 1,
    "model.lr": 1,
    "model.net.na": 1,
    "model.net.nb": 1,
    "model.net.nc": 1,
    "seed": 7,
    "top": 1,
    "trainer.accumulate_grad_batches": 4,
    "trainer.devices": 2,
    "x.y.host": "h",
    "zz": 1,
}
SCRIPT = (
    'import hydra\n\n@hydra.main(version_base=None, config_path="conf", config_name="{name}")\ndef main(cfg): ...\n'
)


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return Path("conf/config.yaml")


def test_a_tree_is_composed_as_hydra_does_with_the_line_of_each_value(tree):
    found = {leaf.override: leaf for leaf in read_leaves(tree)}

    assert {name: leaf.value for name, leaf in found.items()} == COMPOSED
    assert found["data.batch_size"].where == "conf/experiment/one.yaml:5"
    assert found["data.val.batch_size"].where == "conf/data/cifar.yaml:6"


def test_a_tree_becomes_a_command_that_keeps_the_batch_of_a_step(tree):
    Path("main.py").write_text(SCRIPT.format(name="config"))

    made = starter.from_file(tree)

    assert made.target == Path("explore.yaml")
    assert "data.batch_size: 64 -> explore (conf/experiment/one.yaml:5)" in made.notes
    made.target.write_text(made.text)
    config = load_config(made.target)
    assert config.replica_batch_size == 4 * 64
    assert config.command.argv == (
        *("python", "main.py", "data.batch_size={micro_batch_size}"),
        *("trainer.accumulate_grad_batches={accumulation}", "hydra.run.dir={output_dir}"),
    )
    assert starter.from_script(Path("main.py")).text == made.text


def test_a_tree_without_accumulated_passes_is_explored_above_its_own_size(tree):
    tree.write_text(TREE["config"].replace("accumulate_grad_batches: 4", "accumulate_grad_batches: 1"))

    made = starter.from_file(tree)

    assert "  # replica_batch_size: 64  # samples of one optimizer step" in made.text
    made.target.write_text(made.text)
    assert load_config(made.target).replica_batch_size is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("output_dir:", "output_dir={output_dir} hydra.run.dir={output_dir}"),
        ("save_dir: runs/own", "save_dir={output_dir} hydra.run.dir={output_dir}"),
        ("output_dir: ${hydra:runtime.output_dir}", "hydra.run.dir={output_dir}"),
        ("save_dir: 4", "hydra.run.dir={output_dir}"),
        ("wandb: {save_dir: runs}", "hydra.run.dir={output_dir}"),
    ],
)
def test_a_tree_with_an_output_folder_of_its_own_gets_that_too(tree, line, words):
    tree.write_text(f"{TREE['config']}{line}\n")

    assert f"{{accumulation}} {words}\n" in starter.from_file(tree).text


def test_another_primary_file_than_the_scripts_own_is_named_in_the_command(tree):
    Path("main.py").write_text(SCRIPT.format(name="other"))
    assert "python main.py --config-name=config data.batch_size=" in starter.from_file(tree).text


@pytest.mark.parametrize("named", ["train.py", "src/train.py", "src/own/train.py"])
def test_the_script_that_names_a_tree_is_taken_before_others_of_hydra(tree, named):
    path = Path(named)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.format(name="config").replace('"conf"', f'"{"../" * (len(path.parts) - 1)}conf"'))
    Path("generate.py").write_text(SCRIPT.format(name="generate"))
    path.with_name("eval.py").write_text(SCRIPT.format(name="evaluate"))

    assert f"python {named} data.batch_size={{micro_batch_size}}" in starter.from_file(tree).text
    assert starter.from_script(path).notes[0] == "conf/config.yaml is of Hydra, by defaults"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ((), "data.batch_size={micro_batch_size} trainer.accumulate_grad_batches={accumulation}"),
        (("wandb=null", "+experiment=one"), "data.batch_size={micro_batch_size} trainer.accumulate"),
        (("trainer=cpu",), "data.batch_size={micro_batch_size} hydra.run.dir={output_dir}"),
        (("data.batch_size=64",), "trainer.accumulate_grad_batches={accumulation} hydra.run.dir={output_dir}"),
        (("data.bs={micro_batch_size}",), "trainer.accumulate_grad_batches={accumulation} hydra.run.dir={output_dir}"),
        (("hydra.run.dir=runs/mine",), "trainer.accumulate_grad_batches={accumulation}\n"),
    ],
)
def test_a_typed_command_of_hydra_gets_what_it_leaves_out(tree, typed, words):
    Path("main.py").write_text(SCRIPT.format(name="config"))

    made = starter.from_command(("python", "main.py", *typed))

    assert f" {words}" in made.text
    assert made.text.count("{micro_batch_size}") == 1


def test_without_a_script_its_name_is_asked_for(tree):
    assert starter.from_file(tree).notes[-1] == "no script with hydra.main was found: write its name for train.py"


def test_a_command_of_hydra_gets_its_output_folder(tree):
    Path("main.py").write_text(SCRIPT.format(name="config"))
    made = starter.from_command(("python", "main.py", "data.batch_size=16", "trainer.accumulate_grad_batches=2"))
    assert (
        "python main.py data.batch_size={micro_batch_size} trainer.accumulate_grad_batches={accumulation} "
        "hydra.run.dir={output_dir}\n"
    ) in made.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config", "defaults:\n  - data: none\n", "data/none.yaml is absent, which its defaults name"),
        ("base", "defaults:\n  - config\n", "do two of them name each other"),
        ("config", "defaults:\n  - db: mysql\n", "no value of its tree is a micro-batch size"),
        ("data/cifar", "defaults: [\n", "not YAML"),
    ],
)
def test_a_broken_tree_is_one_error(tree, name, text, message):
    Path(f"conf/{name}.yaml").write_text(text)
    with pytest.raises(UserInputError, match=message):
        starter.from_file(tree)
