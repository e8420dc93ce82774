"""A training that would go on from a checkpoint is refused wherever that stands; what resembles it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.errors import UserInputError

TRAIN = ("python", "train.py", "--mbs", "{micro_batch_size}")


def of_words(*words: str, before: tuple[str, ...] = ()) -> Config:
    """Load a training command that has further words at its end, or before it."""
    typed = f"explore.command={json.dumps([*before, *TRAIN, *words])}"
    return load_config(None, overrides=[typed, "explore.writes_are_fine=true"])


def of_file(folder: Path, text: str, *overrides: str) -> Config:
    """Load a file that a training command reads."""
    path = folder / "job.yaml"
    path.write_text(f"{text}\nmicro_batch_size: explore\n")
    typed = ['explore.command=["train", "{config}"]', "explore.writes_are_fine=true"]
    return load_config(path, overrides=[*typed, *overrides])


@pytest.mark.promise(
    "a command that resumes from, and would write over, a training's checkpoints", "refused with what to type"
)
@pytest.mark.parametrize(
    "words",
    [
        "--resume",
        "--resume --amp",
        "--resume=auto",
        "--resume runs/7",
        "--resume-from runs/7/last.pt",
        "--resume_path x.pt",
        "--resume-checkpoint x.pt",
        "--resume_ckpt x.pt",
        "--resume_training",
        "--resume_from_checkpoint True",
        "--resume_from_checkpoint_path x",
        "--auto_resume",
        "--autoresume",
        "--auto-resume-from-checkpoints true",
        "exp_manager.resume_if_exists=true",
        "training.resume_from=x",
        "+resume.path=x",
        "--cfg-options resume=True",
        "--cfg-options=resume=True",
        "--ckpt_path last",
        "--ckpt_path=last",
        "ckpt_path=last",
        "+trainer.ckpt_path=last",
        "++ckpt_path=runs/last.ckpt",
        "--continue",
        "--continue train.yaml",
        "--continue_train",
        "--continue-from runs/7",
        "--restore-file checkpoint_last.pt",
        "checkpoint.restore_file=checkpoint_last.pt",
        "--load",
        "--load /checkpoints/gpt",
        "--load /checkpoints/iter_0000100/model.pt",
        "checkpoint.load=/checkpoints/gpt",
        "--load_checkpoint x.pt",
        "--load-checkpoint 7",
        "--load_training_checkpoint x.tar",
        "--init_from=resume",
        "--init_from resume",
        "--checkpoint.load_step 5",
        "--checkpoint.load_step=5",
    ],
)
def test_an_option_that_resumes_is_refused_with_what_to_type(words):
    with pytest.raises(UserInputError, match="resumes from a checkpoint") as raised:
        of_words(*words.split())

    assert raised.value.message.startswith("the command line: ")
    assert (words.partition("--cfg-options")[2].strip(" =") or words.split()[0]) in raised.value.message
    assert "leave it out while you explore" in raised.value.hint
    assert "bash train.sh {micro_batch_size} {output_dir}" in raised.value.hint


@pytest.mark.parametrize(
    "words",
    [
        "--resume false",
        "--resume=0",
        "--resume none --amp",
        "--resume_from_checkpoint None",
        "resume=null",
        "--no-resume",
        "--no-resume-opt",
        "--skip-resume",
        "--resume_download",
        "exp_manager.resume_ignore_no_checkpoint=true",
        "--wandb-resume allow",
        "wandb.resume=must",
        "--wandb-args=resume=allow",
        "~trainer.ckpt_path",
        "--ckpt_path null",
        "model.params.ckpt_path=vae.ckpt",
        "model.first_stage_config.params.ckpt_path=vae.ckpt",
        "--continue-on-error",
        "--continual_learning",
        "--restore_best_weights true",
        "model.restore_from_path=gpt.nemo",
        "--restore-file mbart.pt --reset-optimizer",
        "--load {output_dir}",
        "--load /checkpoints/gpt --finetune",
        "--load data.parquet",
        "--load 0.8",
        "--load 4",
        "data.load=parquet",
        "--load_in_4bit",
        "--load_in_8bit true",
        "--load_best_model_at_end true",
        "--load-workers 4",
        "--loader fast",
        "--load_path weights.pt",
        "--pretrained",
        "--pretrained-checkpoint gpt.pt",
        "--init_from=gpt2",
        "--init_from scratch",
        "model.load_weights=x.pt",
        "model.load_checkpoint=x.pt",
        "--checkpoint.load_step -1",
        "--checkpoint.load_step=0",
        "--finetune_from_model x.pt",
        "--data s3://bucket/resume=1/part",
        "--presumed 3",
        "resume",
        "continue",
    ],
)
def test_an_option_that_loads_something_else_or_is_off_is_accepted(words):
    assert of_words(*words.split()).command is not None


@pytest.mark.parametrize(
    "before",
    [("env", "RESUME=1"), ("srun", "--export=ALL,RESUME=1"), ("docker", "run", "-e", "AUTO_RESUME=true", "image")],
    ids=["env", "srun", "docker"],
)
def test_a_variable_that_resumes_is_refused_among_the_words_before_the_program(before):
    with pytest.raises(UserInputError, match=r"RESUME=.* resumes from a checkpoint"):
        of_words(before=before)


@pytest.mark.parametrize(
    "script", ["RESUME=1 python train.py --mbs {micro_batch_size}", "python t.py --mbs {micro_batch_size} --resume"]
)
def test_the_script_of_a_shell_is_read_as_words(script):
    with pytest.raises(UserInputError, match="resumes from a checkpoint"):
        load_config(None, overrides=[f"explore.command={json.dumps(['bash', '-lc', script])}"])


def test_a_script_of_a_shell_with_an_open_quote_is_left_to_the_shell():
    assert of_words(before=("bash", "-c", "echo 'resume --resume {micro_batch_size}")).command is not None


@pytest.mark.parametrize(
    ("variables", "is_refused"),
    [
        ({"RESUME": "1"}, True),
        ({"RESUME_FROM_CHECKPOINT": "last"}, True),
        ({"AUTO_RESUME": "true"}, True),
        ({"CONTINUE_TRAINING": "1"}, True),
        ({"LOAD_STEP": "5"}, True),
        ({"RESUME": "0"}, False),
        ({"NO_RESUME": "1"}, False),
        ({"WANDB_RESUME": "allow"}, False),
        ({"CKPT_PATH": "/checkpoints"}, False),
        ({"LOAD": "/checkpoints"}, False),
        ({"HF_HUB_ENABLE_HF_TRANSFER": "1", "OMP_NUM_THREADS": "4"}, False),
    ],
)
def test_a_variable_of_the_explore_section_that_resumes_is_refused(variables, is_refused):
    overrides = [f"explore.command={json.dumps(TRAIN)}", "explore.writes_are_fine=true"]
    overrides.append(f"explore.env={json.dumps(variables)}")

    if not is_refused:
        assert load_config(None, overrides=overrides).command.env == variables
        return
    with pytest.raises(
        UserInputError, match=f"^the command line: {next(iter(variables))}=.* resumes from a checkpoint"
    ):
        load_config(None, overrides=overrides)


@pytest.mark.promise("a file that resumes from checkpoints", "refused with its line")
@pytest.mark.parametrize(
    "text",
    [
        "ckpt_path: last",
        "trainer: {ckpt_path: last}",
        "resume: true",
        "resume: [runs/7/last.pt]",
        "training: {resume-from: x}",
        "checkpoint: {resume: {enabled: true}}",
        "checkpoint: {load_step: 5}",
        "init_from: resume",
        "restore_file: checkpoint_last.pt",
        "load_checkpoint: x.pt",
        "continue_training: true",
    ],
)
def test_a_key_of_a_file_that_resumes_is_refused_with_its_line(tmp_path, text):
    with pytest.raises(UserInputError, match=r"job\.yaml:1: .* resumes from a checkpoint") as raised:
        of_file(tmp_path, text)

    assert raised.value.hint == "leave it out while you explore: the size holds for the resumed training too"


@pytest.mark.parametrize(
    "text",
    [
        "ckpt_path:",
        "ckpt_path: null",
        "resume: false",
        "resume: {path: null, enabled: false}",
        "logger: {wandb: {resume: allow}}",
        "model: {params: {ckpt_path: vae.ckpt}}",
        "load: data.csv",
        "load: /data/tokens",
        "data: {load: parquet}",
        "load_path: weights.pt",
        "load_in_8bit: true",
        "checkpoint: {load_step: -1}",
        "init_from: gpt2",
        "model_kwargs: {resume_download: true}",
        "notes: resume",
    ],
)
def test_a_key_of_a_file_that_loads_something_else_or_is_off_is_accepted(tmp_path, text):
    assert of_file(tmp_path, text).command is not None


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("num_layers: 2\nhidden_size: 8\ntrain_micro_batch_size_per_gpu: explore\nload: /checkpoints\n", True),
        (
            "num_layers: 2\nhidden_size: 8\ntrain_micro_batch_size_per_gpu: explore\nload: /checkpoints\n"
            "finetune: true\n",
            False,
        ),
        ("MODEL_ARGS: {--micro-batch-size: explore, --global-batch-size: 8, --load: /checkpoints}\n", True),
        ("device_train_microbatch_size: explore\nload_path: /checkpoints/ep1.pt\n", True),
        ("device_train_microbatch_size: explore\nload_path: x.pt\nload_weights_only: true\n", False),
        (
            "batch_size: explore\nmodel: {_component_: m}\ntokenizer: {_component_: t}\nresume_from_checkpoint: true",
            False,
        ),
    ],
    ids=[
        "gpt-neox",
        "gpt-neox that fine-tunes",
        "megatron-lm",
        "composer",
        "composer with weights alone",
        "torchtune, switched off",
    ],
)
def test_a_key_that_only_one_family_has_resumes_in_its_files_alone(tmp_path, text, is_refused):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    overrides = ['explore.command=["train", "{config}"]', "explore.writes_are_fine=true", "explore.replicas=1"]

    if not is_refused:
        assert load_config(path, overrides=overrides).recognised
        return
    with pytest.raises(UserInputError, match="resumes from a checkpoint"):
        load_config(path, overrides=overrides)
