"""Which family a file is of, by evidence for it and against it; and the command that trains with it, where certain."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from bexplore.config import starter
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.errors import UserInputError

ARGUMENTS = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: explore\n"
TORCHTUNE = (
    "batch_size: explore\nmodel:\n  _component_: torchtune.models.llama3.lora_llama3_8b\ntokenizer:\n  _component_: t\n"
)
DS = '"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}'
# Files of people's own, each with a key that a family has too; and the family that they resemble.
OWN = {
    "a size and a seed": ("seed: 3\ntrain_batch_size: 24\nval_batch_size: 8\n", "DeepSpeed"),
    "a diffusion trainer": (
        "output_dir: o\ntrain_batch_size: 2\ngradient_accumulation_steps: 3\nresolution: 512\n",
        "DeepSpeed",
    ),
    "a vision model and its data": ("base_model: resnet18\ndatasets: [cifar10]\nbatch_size: 64\n", "Axolotl"),
    "features of Ludwig": ("base_model: m\nadapter: {type: lora}\ninput_features: []\ntrainer: {batch_size: 2}\n", ""),
    "accumulation of one's own": ("batch_size: 24\ngrad_accum: 4\nmodel: {name: vit}\n", ""),
    "a model and a data set": ("model_name_or_path: m\ndataset_name: d\nbatch_size: 4\noutput_dir: o\n", ""),
    "an output folder and steps": ("output_dir: o\nmax_steps: 100\nbatch_size: 16\n", ""),
    "a section train": ("train:\n  batch_size: 24\n  save_interval: 5\nmodel: {name: vit}\n", ""),
    "a tree of Hydra": ("defaults:\n  - /trainer: d\ntrain:\n  global_batch_size: 256\ntrainer:\n  max_steps: 9\n", ""),
    "a part of a tree of Hydra": (
        "# @package _global_\ntrainer: {max_epochs: 1, accelerator: cpu, precision: 32}\n",
        "",
    ),
    "a trainer with weights to initialize": ("trainer:\n  type: gan\n  init: {type: xavier}\nbatch_size: 4\n", ""),
    "a trainer of its own": ("trainer: energy\noptim:\n  batch_size: 20\n", ""),
    "a trainer of a speech model": (
        "trainer:\n  devices: 4\n  max_epochs: 3\nmodel:\n  train_ds:\n    batch_size: 16\nexp_manager: {}\n",
        "",
    ),
    "a reinforcement learner": ("data:\n  train_batch_size: 512\ntrainer:\n  nnodes: 1\n  total_epochs: 2\n", ""),
    "sizes of layers": ("num_layers: 2\nhidden_size: 8\ntrain_batch_size: 4\nlr: 1.0\n", "GPT-NeoX"),
    "a trainer that Hydra makes": (
        "trainer:\n  _target_: pl.Trainer\n  max_epochs: 1\n  accelerator: gpu\n  precision: 16\n  strategy: ddp\n",
        "Lightning CLI",
    ),
    "arguments that Hydra makes": (
        "_target_: trl.DPOConfig\nper_device_train_batch_size: 4\noutput_dir: o\nlogging_steps: 1\nreport_to: none\n",
        "",
    ),
    "arguments in a tree of Hydra": (
        "# @package _global_\nmodel_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 4\nbeta: 0.1\n"
        "logging_steps: 1\nreport_to: none\nsave_strategy: epoch\nwarmup_ratio: 0.1\nlr_scheduler_type: cosine\n",
        "",
    ),
    "a trainer under a size of one's own": (
        "model: m\nbatch_size: 4\ntrainer: {max_epochs: 1, accelerator: gpu, precision: 16, strategy: ddp}\n",
        "",
    ),
    "a size among the arguments of a part": ("loader: {args: {batch_size: 4}}\nloss: nll\n", ""),
    "a model and a train set": ("model: unet\ntrain_dataset: d\nmicro_batch_size: 4\n", "LLaMA-Factory v1"),
}


def load(folder: Path, text: str, *overrides: str, name: str = "job.yaml") -> Config:
    (folder / name).write_text(text)
    return load_config(folder / name, overrides=["explore.writes_are_fine=true", *overrides])


@pytest.mark.parametrize("name", OWN)
def test_a_file_with_one_usual_key_is_of_no_family(tmp_path, name):
    text, family = OWN[name]

    with pytest.raises(UserInputError, match="is a file of your own, and no command trains with it") as raised:
        load(tmp_path, text)

    assert (f"it resembles {family}" if family else "") in str(raised.value)
    line = next(one for one in raised.value.hint.splitlines() if "bexplore explore" in one)
    typed, _, command = line.partition("bexplore explore ")[2].partition(" -- ")
    path, *options = typed.split()
    assert (path, command.split()[:4]) == (str(tmp_path / "job.yaml"), ["python", "train.py", "--config", "{config}"])
    if "write explore at its micro-batch size" not in line:  # of a file with several sizes, or with none
        overrides = [f"explore.command={json.dumps(command.split())}", *options[1::2]]
        assert load(tmp_path, text, *overrides).command.file.paths("micro_batch_size")
    if "defaults" not in text:  # whose values are in several files
        with pytest.raises(UserInputError, match="is a file of your own"):
            starter.from_file(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    ("text", "script", "line"),
    [
        ("model: !new:speechbrain.nnet.Linear\n", "", "python train.py {config} --output_folder {output_dir}"),
        ("model: m\n", "add('--base')\nadd('--logdir')", "python main.py --base {config} --logdir {output_dir}"),
        ("model: m\n", "add('-x')", "options by which main.py takes its file and its folder"),
        ("model: m\n", "", "python train.py --config {config} --out {output_dir}"),
    ],
)
def test_the_line_to_type_has_the_options_of_the_script_that_lies_beside(tmp_path, monkeypatch, text, script, line):
    monkeypatch.chdir(tmp_path)
    if script:
        Path("main.py").write_text(script)

    with pytest.raises(UserInputError) as raised:
        load(Path(), f"batch_size: 4\n{text}")

    assert raised.value.hint.endswith(line)


@pytest.mark.parametrize("name", OWN)
def test_a_typed_command_takes_the_word_at_any_key_of_such_a_file(tmp_path, name):
    text = OWN[name][0] + "other:\n  deep: [1, explore]\n"

    config = load(tmp_path, text, 'explore.command=["t", "{config}"]')

    assert config.layout == "command"
    assert config.command.file.paths("micro_batch_size") == [("other", "deep", 1)]


@pytest.mark.parametrize(
    ("text", "family"),
    [
        (  # sizes and paths stand on the command line
            "logging_steps: 1\nreport_to: none\nsave_strategy: epoch\nwarmup_ratio: 0.1\nlr_scheduler_type: cosine\n"
            "eval_strategy: no\n",
            "transformers",
        ),
        (ARGUMENTS.replace("dataset_name", "train_file") + "beta: 0.1\n", "transformers"),  # no script of TRL's has it
        (
            "distributed_type: DEEPSPEED\nnum_processes: 4\n"
            "deepspeed_config: {train_batch_size: 30, gradient_accumulation_steps: 32}\n",
            "accelerate",  # which does not read that size
        ),
    ],
)
def test_a_familys_file_is_its_own_with_sizes_elsewhere(tmp_path, text, family):
    config = load(tmp_path, text, 'explore.command=["t", "{config}", "{micro_batch_size}"]')

    assert (config.layout, config.batch_size) == (family, None)


def test_the_asynchronous_recipe_of_torchtune_has_its_size_in_a_section(tmp_path):
    text = (
        "model: {_component_: m}\ntokenizer: {_component_: t}\ndataset: {_component_: d}\n"
        "inference: {batch_size: 1}\ntraining: {batch_size: explore}\n"
    )

    config = load(tmp_path, text, 'explore.command=["t", "{config}"]')

    assert (config.layout, config.command.file.paths("micro_batch_size")) == ("torchtune", [("training", "batch_size")])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("train:\n  batch_size: 24\n", "train.batch_size"),
        ("batch_size: 64\ntrain: {micro_batch_size: 16}\n", "train.micro_batch_size"),
    ],
)
def test_a_file_without_the_word_names_its_own_key_to_type_it_at(tmp_path, text, key):
    with pytest.raises(UserInputError) as raised:
        load(tmp_path, text, 'explore.command=["t", "{config}"]')

    assert f"or {key}: explore in its file" in raised.value.hint


@pytest.mark.parametrize(
    "text", ["models: {a: 1}\n", "model_id: m\n", "train_on_input: true\n", "optimizer_args: {lr: 1}\n", "d_model: 8\n"]
)
def test_a_usual_key_is_no_misspelt_section_of_another_program(tmp_path, text):
    with pytest.raises(UserInputError, match="is a file of your own") as raised:
        load(tmp_path, text)

    assert "did you mean" not in raised.value.hint


def test_the_script_beside_the_file_is_in_the_line_with_its_options(tmp_path):
    (tmp_path / "train_net.py").write_text('p.add_argument("--cfg-file")\np.add_argument("--save_dir")\n')

    with pytest.raises(UserInputError) as raised:
        load(tmp_path, "SOLVER:\n  BATCH: 8\n")

    assert f"-- python {tmp_path}/train_net.py --cfg-file {{config}} --save_dir {{output_dir}}" in raised.value.hint


def test_a_script_without_an_output_option_gets_none_in_the_line(tmp_path):
    (tmp_path / "train.py").write_text('p.add_argument("-c", "--config")\np.add_argument("--resume")\n')

    with pytest.raises(UserInputError) as raised:
        load(tmp_path, "SOLVER:\n  BATCH: 8\n")

    assert f" --writes-are-fine -- python {tmp_path}/train.py --config {{config}}" in raised.value.hint
    assert "{output_dir}" not in raised.value.hint

    with pytest.raises(UserInputError) as raised:
        load(tmp_path, "train: {batch_size: explore, output_dir: runs}\n")
    assert " --set train.output_dir={output_dir} -- python " in raised.value.hint


def test_a_key_that_is_set_to_a_placeholder_hands_each_start_its_folder(tmp_path):
    words = ("train.output_dir={output_dir}/run", 'explore.command=["t", "{config}"]')
    (tmp_path / "job.yaml").write_text("train: {batch_size: explore, output_dir: runs}\n")
    command = load_config(tmp_path / "job.yaml", overrides=list(words)).command  # without a consent

    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=Path("/runs"))
    assert "output_dir" in command.placeholders
    assert command.file.copy(values) == 'train: {batch_size: 4, output_dir: "/runs/output/run"}\n'


def test_a_familys_output_key_may_be_set_to_a_folder_within(tmp_path):
    words = ("output_dir={output_dir}/run", 'explore.command=["t", "{config}"]')
    command = load(tmp_path, f"{ARGUMENTS}output_dir: runs\n", *words).command

    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=Path("/runs"))
    assert command.file.copy(values).endswith('output_dir: "/runs/output/run"\n')


def test_dialect_none_is_a_file_of_ones_own(tmp_path):
    config = load(tmp_path, ARGUMENTS, "explore.dialect=none", 'explore.command=["t", "{config}"]')
    assert config.layout == "command"

    with pytest.raises(UserInputError, match="is a file of your own"):
        load(tmp_path, ARGUMENTS, "explore.dialect=none")


def command_of(folder: Path, text: str, name: str = "job.yaml") -> str:
    """The usual command of a file, or the line that its error says to type."""
    try:
        return " ".join(load(folder, text, name=name).command.argv)
    except UserInputError as error:
        assert "there is no command that trains with this file" in str(error)
        return f"type {error.hint.partition(' -- ')[2]}"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("", "tune run lora_finetune_single_device --config {config}"),
        ("fsdp_cpu_offload: false\n", "tune run --nproc_per_node 1 lora_finetune_distributed --config {config}"),
        ("kd_loss: {}\nkd_ratio: 0.5\n", "type tune run knowledge_distillation_single_device --config {config}"),
        ("quantizer: {}\nfake_quant_after_n_steps: 9\n", "type tune run qat_single_device --config {config}"),
        ("ref_checkpointer: {}\n", "type tune run lora_dpo_single_device --config {config}"),
        ("tasks: [truthfulqa_mc2]\n", "type tune run lora_finetune_single_device --config {config}"),
    ],
)
def test_a_recipe_runs_where_it_reads_every_key_and_is_typed_else(tmp_path, text, command):
    assert command_of(tmp_path, TORCHTUNE + text) == command


@pytest.mark.parametrize(
    ("header", "keys", "command"),
    [
        (
            "# tune run lora_finetune_single_device --config teacher\n# tune run kd_single_device --config this\n",
            "kd_loss: {}\n",
            "tune run kd_single_device",
        ),
        (
            "# tune run knowledge_distillation_single_device --config qwen2/kd\n",
            "kd_loss: {}\n",
            "tune run knowledge_distillation_single_device",
        ),
        (
            "#   tune run --nnodes 1 --nproc_per_node 2 qat_distributed \\\n#   --config x\n",
            "quantizer: {}\n",
            "tune run --nproc_per_node 1 qat_distributed",
        ),
        (
            "# tune download m\n\n# tune run --nproc_per_node=4 dev/grpo_full_finetune_distributed --config x\n",
            "",
            "tune run --nproc_per_node 1 dev/grpo_full_finetune_distributed",
        ),
        # The comments of the file that this one was made from: the recipe would ignore the key without a message.
        ("# tune run full_finetune_single_device --config x\n", "quantizer: {}\n", "type tune run qat_single_device"),
        (
            "# tune run lora_finetune_single_device --config x\n",
            "kd_loss: {}\n",
            "type tune run knowledge_distillation_single_device",
        ),
    ],
)
def test_the_comments_above_a_file_name_its_recipe(tmp_path, header, keys, command):
    assert command_of(tmp_path, header + TORCHTUNE + keys) == f"{command} --config {{config}}"


COMPOSER = "device_train_microbatch_size: explore\nmax_duration: 1ba\nmodel: {name: NAME}\n"
NANOTRON = "tokens: {micro_batch_size: explore, batch_accumulation_per_replica: 1}\nparallelism: {dp: 1}\n"
TORCHTITAN = '[training]\nKEY = "explore"\nseq_len = 8\n[job]\ndump_folder = "o"\n[metrics]\n[model]\nname = "m"\n'
RUN = "torchrun --standalone --nproc-per-node 1"


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("job.yaml", COMPOSER.replace("NAME", "mpt_causal_lm"), "composer train.py {config}"),
        ("job.yaml", COMPOSER.replace("NAME", "flex_bert"), "type composer main.py {config}"),
        ("job.yaml", "# composer a/pre.py x.yaml\n" + COMPOSER.replace("NAME", "m"), "type composer a/pre.py {config}"),
        ("job.yaml", NANOTRON, f"{RUN} run_train.py --config-file {{config}}"),
        ("job.yaml", NANOTRON + "doremi: {}\n", f"type {RUN} run_train.py --config-file {{config}}"),
        (
            "job.yaml",
            NANOTRON + "model: {model_config: {is_mamba_config: true}}\n",
            f"type {RUN} run_train.py --config-file {{config}}",
        ),
        (
            "job.yaml",
            "# torchrun x/run_train.py --config-file y\n" + NANOTRON,
            f"{RUN} run_train.py --config-file {{config}}",
        ),
        (
            "job.yaml",
            "# A=1 torchrun --nproc_per_node=8 \\\n#  use_trainer.py --config-file x.yaml\n" + NANOTRON,
            f"type {RUN} use_trainer.py --config-file {{config}}",
        ),
        (
            "job.toml",
            TORCHTITAN.replace("KEY", "local_batch_size"),
            f"{RUN} -m torchtitan.train --job.config_file {{config}}",
        ),
        ("job.toml", TORCHTITAN.replace("KEY", "batch_size"), f"type {RUN} train.py --job.config_file {{config}}"),
    ],
)
def test_a_script_runs_where_the_file_is_its_own_and_is_typed_else(tmp_path, name, text, command):
    assert command_of(tmp_path, text, name) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("packing: true\n", "trl sft --config {config}"),
        ("packing: true\nloss_type: nll\n", "trl sft --config {config}"),
        ("num_generations: 4\nepsilon: 0.2\n", "trl grpo --config {config}"),
        ("loss_type: sigmoid\nbeta: 0.1\n", "type trl dpo --config {config}"),  # KTO and others have them too
        ("num_generations: 4\n", "type trl grpo --config {config}"),
        ("packing: true\ndataset_mixer: {}\n", "type trl sft --config {config}"),  # a handbook's own script
    ],
)
def test_a_method_runs_where_no_other_has_its_keys_and_is_typed_else(tmp_path, text, command):
    assert command_of(tmp_path, ARGUMENTS + text) == command


@pytest.mark.parametrize(
    ("name", "text", "num_processes", "num_replicas"),
    [
        ("job.yaml", "tokens: {micro_batch_size: explore}\nparallelism: {dp: 4, tp: 2, pp: 2}\n", 16, 4),
        (
            "job.toml",
            '[training]\nlocal_batch_size = "explore"\nseq_len = 8\n[job]\ndump_folder = "o"\n[parallelism]\n'
            "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = 4\ntensor_parallel_degree = 2\n",
            8,
            4,
        ),
        (
            "job.toml",
            '[training]\nlocal_batch_size = "explore"\nseq_len = 8\n[job]\ndump_folder = "o"\n[parallelism]\n'
            "data_parallel_replicate_degree = 2\n",
            1,
            1,  # the shards take all devices that remain, whose number is not in the file
        ),
    ],
)
def test_processes_are_all_degrees_and_replicas_those_of_data(tmp_path, name, text, num_processes, num_replicas):
    config = load(tmp_path, text, name=name)

    assert config.num_replicas == num_replicas
    assert f"--nproc-per-node {num_processes} " in " ".join(config.command.argv)


def test_devices_that_share_a_model_are_one_replica_of_accelerate(tmp_path):
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MEGATRON_LM\nnum_processes: 8\n"
        "megatron_lm_config: {megatron_lm_tp_degree: 4, megatron_lm_pp_degree: 1}\n"
    )
    command = 'explore.command=["accelerate", "launch", "--config_file", "{config}", "t.py", "{micro_batch_size}"]'

    assert load(tmp_path, text, command).num_replicas == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", f"{{{DS}}}"),
        ("job.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\n"),
        ("job.yaml", "model: {class_path: m.M}\ndata: {class_path: d.D}\n"),
    ],
)
def test_init_adds_no_size_that_nothing_reads(tmp_path, name, text):
    (tmp_path / name).write_text(text)

    with pytest.raises(UserInputError) as raised:
        starter.from_file(tmp_path / name)

    assert (tmp_path / name).read_text() == text
    assert "no micro-batch size" in str(raised.value) or "is given" in str(raised.value)


COMMAND = 'explore.command=["t", "{config}"]'


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("train:\n  batch_size: 24\n", ("train", "batch_size")),
        ("a:\n  b: [1, explore]\nbatch_size: 24\n", ("a", "b", 1)),
        ("batch_size: 64\nmicro_batch_size: 16\n", ("micro_batch_size",)),
    ],
)
def test_a_size_of_the_command_line_goes_to_the_files_own_key(tmp_path, text, path):
    config = load(tmp_path, text, COMMAND, "micro_batch_size={explore: {max: 64}}")

    assert config.command.file.paths("micro_batch_size") == [path]
    assert config.request.maximum == 64


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        ("{explore: {min: 4, max: 64}}", (4, 64)),
        ("{explore: {max: 64}}", (1, 64)),
        ("{explore: }", (1, None)),
        ("explore", (1, None)),
    ],
)
@pytest.mark.parametrize("text", [None, "seed: 4\n"])
def test_bounds_of_a_placeholder_are_those_of_the_search(tmp_path, value, bounds, text):
    command = "explore.command=python train.py --bs {micro_batch_size} --out {output_dir}"
    file = None if text is None else tmp_path / "job.yaml"
    if file is not None:
        file.write_text(text)

    config = load_config(file, overrides=[command, f"micro_batch_size={value}"])

    assert (config.minimum, config.maximum) == bounds


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (
            "batch_size: 4\ntrain: {batch_size: 2}\n",
            "several batch sizes: batch_size, train.batch_size",
            "batch_size=8",
        ),
        ("seed: 4\n", "the command takes its size at {micro_batch_size}", "leave it out"),
    ],
)
def test_a_size_without_one_place_is_refused(tmp_path, text, words, hint):
    with pytest.raises(UserInputError) as raised:
        load(tmp_path, text, COMMAND, "micro_batch_size=8")

    assert words in str(raised.value) and hint in raised.value.hint


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.py", "batch_size = 12\n", "-- python train.py {path} --batch_size={micro_batch_size}"),
        (
            "x.py",
            "train_dataloader = dict(batch_size=2)\n",
            "--cfg-options train_dataloader.batch_size={micro_batch_size}",
        ),
        ("x.py", "dataloader.train.total_batch_size = 4\n", "dataloader.train.total_batch_size={micro_batch_size}"),
        ("x.py", "import torch\nfrom d.config import LazyCall as L\n", "--config-file {path}"),
        ("x.cfg", "[train]\nbatch_size = 4\n", "SIZE={micro_batch_size}"),
        ("x.txt", "N_rand = 1024\n", "-- python train.py --config {path} --batch_size {micro_batch_size} --out"),
    ],
)
def test_a_configuration_that_is_code_takes_its_size_by_an_option(tmp_path, name, text, words):
    with pytest.raises(UserInputError, match="is not YAML, JSON or TOML") as raised:
        load(tmp_path, text, name=name)

    assert words.replace("{path}", str(tmp_path / name)) in raised.value.hint
    assert all("{output_dir}" in line for line in raised.value.hint.splitlines())  # else it is refused as it stands


@pytest.mark.parametrize(
    ("text", "override", "is_in_file"),
    [
        ("train: {batch_size: explore}\n", COMMAND, True),
        ("seed: 3\n", 'explore.command=["t", "{config}", "{micro_batch_size}"]', False),
        ("explore: {command: 't {micro_batch_size}', writes_are_fine: true}\n", "explore.max=8", False),
    ],
)
def test_a_size_is_the_files_only_where_a_key_is_it(tmp_path, text, override, is_in_file):
    command = load(tmp_path, text, override, "explore.writes_are_fine=true").command

    assert command.has_size_in_file == is_in_file


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train.py", "import torch\n", "bexplore init {path}"),
        ("main.py", "def main(): ...\nif __name__ == '__main__':\n    main()\n", "bexplore init {path}"),
        ("run.ipynb", '{"cells": []}', "bexplore init {path}"),
        ("run.sh", "python train.py --bs $1\n", "bexplore explore -- bash {path} {micro_batch_size} {output_dir}"),
    ],
)
def test_a_program_in_place_of_a_configuration_gets_the_line_to_its_command(tmp_path, name, text, words):
    with pytest.raises(UserInputError, match="is a program") as raised:
        load(tmp_path, text, name=name)

    assert words.replace("{path}", str(tmp_path / name)) in raised.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [("net.cfg", "[net]\nbatch=explore\nsubdivisions=1\n"), ("fern.txt", "datadir = data\nN_rand = explore\n")],
)
def test_a_file_of_no_known_format_is_copied_by_the_command_that_was_typed(tmp_path, name, text):
    command = json.dumps(["python", "train.py", "-m", "{config}", "--out", "{output_dir}", "a b"])
    with pytest.raises(UserInputError) as raised:
        file = tmp_path / name
        file.write_text(text)
        load_config(file, overrides=[f"explore.command={command}"])

    start = shlex.split(raised.value.hint.partition("bexplore explore -- ")[2])
    copy = f'sed "s/\\bexplore\\b/{{micro_batch_size}}/" {file} > {{output_dir}}/{name}'
    assert start == ["bash", "-c", f"{copy}; exec python train.py -m {{output_dir}}/{name} --out {{output_dir}} 'a b'"]


@pytest.mark.parametrize("is_imported", [True, False])
@pytest.mark.parametrize(
    ("text", "where"), [("lr = 1\nper_batch = explore\n", "in place of explore in {path}:{number}"), ("b = 8\n", "has")]
)
def test_a_module_of_settings_that_a_typed_command_imports_takes_a_variable(tmp_path, text, where, is_imported):
    file = tmp_path / "settings.py"
    file.write_text("import os\n" * is_imported + text)
    argv = ["python", "train.py", "run 1", "-m", "{output_dir}"]
    with pytest.raises(UserInputError) as raised:
        load_config(file, overrides=[f"explore.command={json.dumps(argv)}"])

    edit, line = raised.value.hint.splitlines()
    assert where.format(path=file, number=2 + is_imported) in edit and 'int(os.environ["MICRO_BATCH_SIZE"])' in edit
    assert ("import os" in edit) != is_imported
    assert shlex.split(line) == ["bexplore", "explore", "--env", "MICRO_BATCH_SIZE={micro_batch_size}", "--", *argv]
    assert "{config}" not in raised.value.message


LIGHTNING = """\
trainer: {max_epochs: 1}
model: {class_path: m.M}
data:
  class_path: d.D
  init_args:
    batch_size: SIZE
"""
NEMO = """\
trainer: {devices: 1, num_nodes: 1}
exp_manager: {}
model:
  micro_batch_size: ${.data.train_ds.micro_batch_size}
  global_batch_size: 48
  data:
    train_ds:
      micro_batch_size: SIZE
"""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (LIGHTNING.replace("SIZE", "${batch}") + "batch: SIZE\n", ("batch",)),
        (LIGHTNING.replace("SIZE", "${a.b}") + "a: {b: '${sizes[1]}'}\nsizes: [1, SIZE]\n", ("sizes", 1)),
        (NEMO, ("model", "data", "train_ds", "micro_batch_size")),
        (LIGHTNING, ("data", "init_args", "batch_size")),
    ],
)
def test_a_size_is_written_where_its_references_lead(tmp_path, text, path):
    config = load(tmp_path, text.replace("SIZE", "explore"), COMMAND)
    assert config.layout != "command"
    assert config.command.file.paths("micro_batch_size") == [path]

    (tmp_path / "job.yaml").write_text(text.replace("SIZE", "12"))
    made = starter.from_file(tmp_path / "job.yaml").text
    assert made.startswith(text.replace("SIZE", "explore"))  # every link stays


def test_references_in_a_circle_lead_nowhere(tmp_path):
    config = load(
        tmp_path,
        LIGHTNING.replace("SIZE", "${a}") + "a: ${b}\nb: ${a}\n",
        'explore.command=["t", "{micro_batch_size}"]',
    )

    assert config.layout == "lightning-cli"
