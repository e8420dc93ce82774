from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bexplore.config.config import RequestKind
from bexplore.config.dialects.cerebras.decoders import SHOWN_DECODERS
from bexplore.config.document import Document, read
from bexplore.config.json_schema import make_schema
from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.host.records import from_record
from bexplore.job import Job, Mode, Precision
from tests.builders import ROOT
from tests.unit.config.builders import FLAG, GPT, sections, trainer

CONFIGS, GUIDE = ROOT / "configs", ROOT / "docs" / "guide.md"


@pytest.mark.parametrize("tag", ["!include", "!new:models.Gpt", "!!python/dict"])
def test_a_tagged_section_is_refused_since_its_tag_is_not_read(tmp_path, tag):
    path = tmp_path / "job.yaml"
    path.write_text(f"train_input:\n  micro_batch_size: explore\nmodel: {tag}\n  hidden_size: 8\n")

    with pytest.raises(UserInputError, match="model has the tag") as raised:
        load_config(path)

    assert "remove it" in str(raised.value) + raised.value.hint


# The forms of micro_batch_size


FORMS = [
    (8, RequestKind.FIXED, 8, None, None),
    ("explore", RequestKind.EXPLORE, None, None, None),
    ("auto", RequestKind.AUTO, None, None, None),
    ({"explore": {"min": 2, "max": 16}}, RequestKind.EXPLORE, None, 2, 16),
    ({"explore": {"min": 9, "max": 9}}, RequestKind.EXPLORE, None, 9, 9),
    ({"explore": {"min": 2}}, RequestKind.EXPLORE, None, 2, None),
    ({"explore": {"max": 16}}, RequestKind.EXPLORE, None, None, 16),
    ({"explore": {}}, RequestKind.EXPLORE, None, None, None),
    ({"explore": None}, RequestKind.EXPLORE, None, None, None),
    (None, RequestKind.NONE, None, None, None),
    ("none", RequestKind.NONE, None, None, None),
    ("None", RequestKind.NONE, None, None, None),
    ("disable", RequestKind.NONE, None, None, None),
]


@pytest.mark.parametrize(("micro", "kind", "value", "minimum", "maximum"), FORMS)
def test_every_form_is_read_in_both_layouts(folder, micro, kind, value, minimum, maximum):
    for values in (sections(micro), trainer([{"ScopedTrainFlags": {FLAG: micro}}])):
        request = folder.load(values).request
        assert (request.kind, request.value, request.minimum, request.maximum) == (kind, value, minimum, maximum)


@pytest.mark.parametrize("scope", ["ScopedTrainFlags", "GlobalFlags"])
def test_the_flag_of_either_scope_is_read(folder, scope):
    assert folder.load(trainer([{"Other": {}}, {scope: {FLAG: "explore"}}])).request.kind is RequestKind.EXPLORE


def test_the_narrower_scope_wins(folder):
    callbacks = [{"GlobalFlags": {FLAG: "explore"}}, {"ScopedTrainFlags": {FLAG: 4}}]
    assert folder.load(trainer(callbacks), mode=Mode.TRAIN).request.value == 4
    assert folder.load(trainer(callbacks), mode=Mode.EVAL).request.kind is RequestKind.EXPLORE


def test_an_absent_size_is_auto_and_says_so(folder):
    values = sections()
    del values["train_input"]["micro_batch_size"]
    for config in (folder.load(values), folder.load(trainer())):
        assert config.request.kind is RequestKind.AUTO
        assert any("micro_batch_size is absent, which means auto" in warning for warning in config.warnings)


def test_auto_is_quick_unless_the_file_says_otherwise(folder):
    assert folder.load(sections("auto")).settings.effort == "quick"
    assert folder.load(sections("explore")).settings.effort == "normal"
    assert folder.load(sections("auto", explore={"effort": "thorough"})).settings.max_probes == 40


@pytest.mark.parametrize(
    ("micro", "expected"),
    [
        ("fast", 'not "fast" | type explore'),
        ("exlpore", "did you mean explore?"),
        ("8 ", "type 8 without quotes"),
        ("", 'not "" | type explore'),
        (0, "not 0"),
        (-1, "not -1"),
        (1e9, "type 1000000000"),
        (2**63, "no sensible value is above"),
        (True, "not true"),
        (2.5, "not 2.5"),
        ([1, 2], "not [1, 2]"),
        ({"explor": {}}, "not {...} | type {explore: {min: 1, max: 64}}"),
        ({"explore": 5}, "explore must be {min: N, max: M}, not 5"),
        ({"explore": {"mn": 1}}, 'unknown key "mn" under explore | did you mean "min"?'),
        ({"explore": {"min": 9, "max": 3}}, "min 9 is above max 3"),
        ({"explore": {"min": 0}}, "min must be a positive integer, not 0"),
        ({"explore": {"max": "8"}}, 'max must be a positive integer, not "8"'),
    ],
)
def test_a_size_that_is_none_of_the_forms_is_told_with_its_line(folder, micro, expected):
    for values in (sections(micro), trainer([{"ScopedTrainFlags": {FLAG: micro}}])):
        told = folder.refusal(values)
        assert expected in told
        assert f"{folder.path}:" in told


# Arithmetic


def test_the_batch_does_not_matter_for_a_search(folder):
    for batch_size in (241, 1, None):
        config = folder.load(sections("explore", batch_size=batch_size))
        assert config.request.kind is RequestKind.EXPLORE
        assert config.replica_batch_size is None


def test_an_uneven_size_moves_and_says_so(folder):
    config = folder.load(sections(168, batch_size=673, explore={"divisibility": "even"}))
    assert any("168 does not cut 337 samples evenly; 169 does, in 2 micro-batches" in line for line in config.warnings)


# Training or evaluation


def both_sides(train: Any, evaluate: Any) -> dict[str, Any]:
    return sections(train) | {"eval_input": {"batch_size": 60, "micro_batch_size": evaluate}}


@pytest.mark.parametrize(
    ("train", "evaluate", "mode"),
    [
        ("explore", "explore", Mode.TRAIN),
        ("explore", 4, Mode.TRAIN),
        (8, "explore", Mode.EVAL),
        ("auto", "explore", Mode.EVAL),
        (8, "auto", Mode.EVAL),
        (8, 4, Mode.TRAIN),
        (None, None, Mode.TRAIN),
    ],
)
def test_the_side_that_asks_for_it_is_explored(folder, train, evaluate, mode):
    assert folder.load(both_sides(train, evaluate)).mode is mode
    callbacks = [{"ScopedTrainFlags": {FLAG: train}}, {"ScopedValidateFlags": {FLAG: evaluate}}]
    assert folder.load(trainer(callbacks)).mode is mode


def test_when_both_ask_the_other_side_is_mentioned_and_can_be_had(folder):
    values = both_sides("explore", "explore")
    assert "both training and evaluation have explore; training is explored" in folder.load(values).warnings[0]
    evaluation = folder.load(values, mode=Mode.EVAL)
    assert (evaluation.mode, evaluation.job.mode, evaluation.batch_size) == (Mode.EVAL, Mode.EVAL, 60)


def test_a_file_with_evaluation_alone_is_evaluation(folder):
    values = sections()
    values["eval_input"] = values.pop("train_input")
    assert folder.load(values).job.mode is Mode.EVAL
    assert "no data section for train" in folder.refusal(values, mode=Mode.TRAIN)


def test_the_validation_data_of_the_trainer_is_that_of_validate(folder):
    values = trainer([{"ScopedValidateFlags": {FLAG: "explore"}}])
    assert folder.load(values).batch_size == 60
    del values["trainer"]["validate"]
    assert folder.load(values).batch_size == 120


def test_the_first_of_several_trainers_is_explored(folder):
    one = trainer([{"ScopedTrainFlags": {FLAG: "explore"}}])
    config = folder.load({"trainer": [one, trainer()]})
    assert config.request.kind is RequestKind.EXPLORE
    assert "the file has 2 trainers" in config.warnings[0]


def test_a_job_crosses_process_borders_unchanged(folder):
    for values in (sections(), trainer()):
        job = folder.load(values).job
        assert from_record(Job, json.loads(json.dumps(job.as_record()))) == job


def test_foreign_keys_are_left_alone(folder):
    values = sections(schedulers=[1, 2])
    values["runconfig"] |= {"checkpoint_steps": 100, "num_wgt_servers": 2}
    values["train_input"] |= {"prefetch_factor": 10, "shuffle_seed": 1}
    values["model"] |= {"loss_scaling": "num_tokens", "initializer": {"name": "normal"}, "tf_summary": True}
    values["optimizer"] |= {"correct_bias": True, "log_summaries": True, "loss_scaling_factor": "dynamic"}
    assert folder.load(values).warnings == ()


def test_words_of_yaml_1_1_are_truth_values(folder):
    values = sections()
    values["model"] |= {"share_embedding_weights": "no", "use_ffn_bias": "Off", "mixed_precision": "yes"}
    job = folder.load(values).job
    assert (job.model["tie_embeddings"], job.model["feed_forward_bias"]) == (False, False)
    assert job.precision is Precision.AUTOCAST_FLOAT16


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ({}, Precision.FLOAT32),
        ({"fp16_type": "cbfloat16"}, Precision.FLOAT32),
        ({"mixed_precision": True}, Precision.AUTOCAST_FLOAT16),
        ({"mixed_precision": True, "use_bfloat16": True}, Precision.AUTOCAST_BFLOAT16),
        ({"mixed_precision": True, "fp16_type": "bfloat16"}, Precision.AUTOCAST_BFLOAT16),
        ({"mixed_precision": True, "fp16_type": "cbfloat16"}, Precision.AUTOCAST_BFLOAT16),
    ],
)
def test_precision_follows_the_model_section(folder, model, precision):
    assert folder.load(sections(model=GPT | model)).job.precision is precision


def test_our_own_precision_comes_first(folder):
    values = sections(model=GPT | {"mixed_precision": True}, explore={"precision": "bfloat16"})
    assert folder.load(values).job.precision is Precision.BFLOAT16


def test_the_precision_section_can_be_off(folder):
    assert folder.load(trainer(precision={"enabled": False})).job.precision is Precision.FLOAT32
    assert folder.load(trainer(precision=None)).job.precision is Precision.FLOAT32


@pytest.mark.parametrize(
    ("optimizer", "name", "arguments"),
    [
        ({"optimizer_type": "SGD", "momentum": 0.9, "learning_rate": 0.1}, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (
            {"optimizer_type": "adamw", "betas": [0.9, 0.99], "eps": "1e-6"},
            "AdamW",
            {"betas": [0.9, 0.99], "eps": 1e-6},
        ),
        ({"Adafactor": {"eps": [1e-30, 1e-3], "weight_decay": 0.1}}, "Adafactor", {"weight_decay": 0.1}),
        ({"optimizer_type": "Adam", "weight_decay_rate": 0.2}, "Adam", {"weight_decay": 0.2}),
        ({"RMSprop": {"alpha": 0.9, "centered": True}}, "RMSprop", {"alpha": 0.9, "centered": True}),
        ({"Lamb": {"betas": [0.9, 0.99]}}, "AdamW", {"betas": [0.9, 0.99]}),
        ({"Lion": {"betas": [0.9, 0.99]}}, "SGD", {"momentum": 0.9}),
    ],
)
def test_optimizers_become_those_of_torch(folder, optimizer, name, arguments):
    job = folder.load(sections(optimizer=optimizer)).job
    assert job.optimizer == name
    assert job.optimizer_arguments == {"lr": 1e-4} | arguments


def test_a_learning_rate_schedule_is_not_followed(folder):
    schedule = [{"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 6e-4, "total_iters": 9}]
    optimizer = {"optimizer_type": "AdamW", "learning_rate": schedule}
    assert folder.load(sections(optimizer=optimizer)).job.optimizer_arguments == {"lr": 1e-4}


@pytest.mark.parametrize("optimizer", [{"optimizer_type": "Lamb"}, {"Lion": {}}])
def test_an_optimizer_that_torch_lacks_is_replaced_with_a_notice(folder, optimizer):
    assert "is run instead" in folder.load(sections(optimizer=optimizer)).warnings[0]


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"attention_sliding_window_length": 32}, "lacks it: attention_sliding_window_length: 32"),
        ({"embedding_layer_norm": True}, "lacks it: embedding_layer_norm: true"),
        ({"brand_new_trick": "on"}, "lacks it: brand_new_trick: on"),
        ({"embeddings_scale": 10, "scale_qk_dot_by_d": True}, "constant factors left out"),
        ({"use_untied_layer_norm": False}, "side by side"),
        ({"name": "gptj"}, "side by side"),
        ({"norm_type": "biasless-layernorm"}, "built with its bias"),
        ({"mixed_precision": True, "fp16_type": "cbfloat16"}, "explored as bfloat16"),
    ],
)
def test_what_is_not_built_is_named(folder, change, warning):
    assert warning in " ".join(folder.load(sections(model=GPT | change)).warnings)


def test_a_near_miss_of_a_model_key_is_named_with_the_key_that_is_missing(folder):
    model = GPT | {"max_position_embedings": 64, "max_position_embeddings": None}
    values = sections(model={key: value for key, value in model.items() if value is not None})
    values["train_input"]["max_sequence_length"] = 64
    assert 'did you mean "max_position_embeddings"?' in folder.load(values).warnings[0]


@pytest.mark.parametrize("change", [{"attention_sliding_window_length": None}, {"embeddings_scale": 1.0}])
def test_what_is_switched_off_is_not_mentioned(folder, change):
    assert folder.load(sections(model=GPT | change)).warnings == ()


def test_a_size_that_is_no_model_can_be_read_from_the_data(folder):
    values = sections(model=GPT | {"vocab_size": None})
    values["train_input"] |= {"vocab_size": 77, "max_sequence_length": 48}
    job = folder.load(values).job
    assert (job.model["vocab_size"], job.sequence_length, job.model["max_position_embeddings"]) == (77, 48, 64)


def test_learned_positions_cannot_grow_but_rotary_ones_can(folder):
    values = sections()
    values["train_input"]["max_sequence_length"] = 128
    assert "max_position_embeddings 64 is below the sequence length 128" in folder.refusal(values)
    values["model"]["position_embedding_type"] = "rotary"
    assert folder.load(values).job.model["max_position_embeddings"] == 128


# The workload section


def test_a_transformers_model_becomes_a_job(folder):
    options = {"task": "masked_lm", "model_type": "bert", "config": {"num_hidden_layers": 2}, "sequence_length": 128}
    own = {"workload": {"transformers": options, "optimizer": {"name": "SGD", "arguments": {"lr": 0.1}}}}
    job = folder.load(sections(explore=own | {"activation_checkpointing": True})).job
    assert (job.workload, job.sequence_length, job.data) == ("transformers", 128, {"sequence_length": 128})
    assert job.model["model_type"] == "bert"
    assert job.activation_checkpointing == "full"
    assert (job.optimizer, job.optimizer_arguments, job.max_gradient_norm) == ("SGD", {"lr": 0.1}, None)


def test_the_files_optimizer_serves_a_workload_without_one(folder):
    job = folder.load(sections(explore={"workload": {"model": "m:a", "batch": "m:b"}})).job
    assert (job.workload, job.model) == ("imported", {"model": "m:a", "batch": "m:b"})
    assert (job.optimizer, job.max_gradient_norm) == ("AdamW", 1.0)


def test_how_samples_are_counted_belongs_to_the_job(folder):
    paths = {"model": "m:a", "batch": "m:b"}
    plain = folder.load(sections(explore={"workload": paths})).job
    counted = folder.load(sections(explore={"workload": paths | {"samples_of": "m:c"}})).job
    assert counted.model == paths | {"samples_of": "m:c"}
    assert counted.fingerprint() != plain.fingerprint()
    options = {"transformers": {"task": "masked_lm", "model_type": "bert"}, "samples_of": "m:c"}
    assert "samples_of goes with model or step" in folder.refusal(sections(explore={"workload": options}))


def test_a_step_of_the_users_own_decides_everything(folder):
    values = sections(
        model=GPT | {"mixed_precision": True}, explore={"workload": {"step": "m:s", "arguments": {"k": 1}}}
    )
    job = folder.load(values).job
    assert job.model == {"step": "m:s", "arguments": {"k": 1}}
    assert (job.precision, job.max_gradient_norm) == (Precision.FLOAT32, None)
    values["explore"]["precision"] = "bfloat16"
    assert "decides its precision itself" in folder.refusal(values)


def test_modules_are_looked_up_beside_the_file(folder):
    job = folder.load(sections(explore={"workload": {"model": "m:a", "batch": "m:b"}})).job
    assert job.import_root == str(folder.path.parent)


# Slips


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("train_input", "micro_batchsize", "micro_batch_size"),
        ("train_input", "batch_sz", "batch_size"),
        ("runconfig", "num_cs", "num_csx"),
        ("runconfig", "use_cs_grad_acum", "use_cs_grad_accum"),
    ],
)
def test_a_near_miss_of_a_key_that_is_read_is_a_warning(folder, section, key, meant):
    values = sections()
    values[section][key] = values[section].pop(meant, True)
    warnings = folder.load(values).warnings
    assert any(f'"{key}" is not read; did you mean "{meant}"?' in warning for warning in warnings)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({"max_steps": 100}, 100),
        ({"max_steps": "1e5"}, 100_000),
        ({"num_steps": 300, "max_steps": 100}, 300),
        ({"num_epochs": 3, "steps_per_epoch": 20}, 60),
        ({"num_epochs": 3, "steps_per_epoch": 20, "max_steps": 50}, 50),
        ({"num_epochs": 3, "steps_per_epoch": None}, None),
        ({"max_steps": None, "num_epochs": 3}, None),
        ({}, None),
    ],
)
def test_the_steps_of_a_training_are_read_in_both_layouts(folder, steps, expected):
    older, newer = sections(), trainer(loop=steps)
    older["runconfig"].pop("max_steps")
    older["runconfig"] |= steps
    found = [folder.load(values) for values in (older, newer)]
    assert [config.max_steps for config in found] == [expected, expected]
    assert [config.training_samples for config in found] == [expected and 120 * expected] * 2
    assert not any("must be" in warning for config in found for warning in config.warnings)


@pytest.mark.parametrize("written", [0, -1, 1.5, "many", True, [100], 2**31])
def test_steps_that_are_no_number_of_steps_are_left_out_with_a_warning(folder, written):
    config = folder.load(trainer(loop={"max_steps": written}))
    assert config.max_steps is None
    (warning,) = (line for line in config.warnings if "max_steps" in line)
    assert re.search(r"job.yaml:\d+: max_steps must be a whole number .*explore.training_time", warning)


def test_an_evaluation_has_no_steps_of_a_training(folder):
    assert folder.load(trainer(), mode=Mode.EVAL).max_steps is None


@pytest.mark.parametrize(
    ("callback", "warning"),
    [
        ({"ScopedTrainFlag": {FLAG: "explore"}}, '"ScopedTrainFlag" is not read; did you mean "ScopedTrainFlags"?'),
        ({"ScopedTrainFlags": {"csx.performance.microbatch_size": 4}}, f'did you mean "{FLAG}"?'),
        ({"ScopedTrainFlags": None, FLAG: "explore"}, "should be indented below ScopedTrainFlags"),
    ],
)
def test_a_slip_in_the_callbacks_is_a_warning(folder, callback, warning):
    assert any(warning in line for line in folder.load(trainer([callback])).warnings)


def test_a_size_beside_the_dataloader_is_read_with_a_warning(folder):
    values = trainer()
    values["trainer"]["fit"]["train_dataloader"]["micro_batch_size"] = "explore"
    config = folder.load(values)
    assert config.request.kind is RequestKind.EXPLORE
    assert "read all the same" in config.warnings[0]


def test_a_size_where_nobody_reads_it_is_a_warning(folder):
    values = sections()
    values["runconfig"]["micro_batch_size"] = 4
    assert '"micro_batch_size" is not read here, but at train_input.micro_batch_size' in folder.load(values).warnings[0]


def test_a_misspelt_section_is_a_mistake_if_ours_and_a_warning_if_theirs(folder):
    with pytest.raises(UserInputError, match='"explor" is not read') as refused:
        folder.load(sections(explor={"max": 4}))
    assert refused.value.hint == 'did you mean "explore"?'
    values = sections()
    values["runconfg"] = values.pop("runconfig")
    assert any('"runconfg" is not read; did you mean "runconfig"?' in line for line in folder.load(values).warnings)


@pytest.mark.parametrize(
    "values",
    [
        sections(sparsity={"algorithm": "gmp", "sparsity": 0.8}),
        sections(optimizer={"optimizer_type": "AdamW", "sparsity": {"type": "sideband"}}),
        trainer([{"ScopedTrainFlags": {FLAG: "explore"}}], sparsity={"algorithm": "set"}),
    ],
)
def test_sparsity_that_is_not_built_is_a_warning(folder, values):
    (warning,) = (line for line in folder.load(values).warnings if "sparsity" in line)
    assert warning.endswith("sparsity is not built in: the dense program is measured")


def test_every_model_that_the_guide_and_the_refusal_name_is_built(folder):
    guide = re.search(r"language models:\s([^.]*)\.", GUIDE.read_text())[1].split(",")
    named = [name.strip().lower().replace("gpt-2", "gpt2").replace("gpt-3", "gpt3") for name in guide]
    assert [name.replace("-", "") for name in named] == SHOWN_DECODERS.replace("-", "").split(", ")
    values = sections()
    for name in [*named, *SHOWN_DECODERS.split(", ")]:
        values["model"]["name"] = name
        assert folder.load(values).job.workload == "decoder"


@pytest.mark.parametrize(
    ("name", "hint"), [("resnet", "describe it"), ("unet", "describe it"), ("lama", "did you mean llama?")]
)
def test_a_model_of_another_kind_is_not_taken_for_a_slip(folder, name, hint):
    values = sections()
    values["model"]["name"] = name
    with pytest.raises(UserInputError, match=f'"{name}" is not built in; decoders are: gpt2, .*mistral') as refused:
        folder.load(values)
    assert refused.value.hint.startswith(hint)


# What is refused


def flagged(micro: Any, flag: Any) -> dict[str, Any]:
    """A file with `use_cs_grad_accum`."""
    values = sections(micro)
    values["runconfig"]["use_cs_grad_accum"] = flag
    return values


NUMBERS = [
    (8, {"batch_size": 241}, "batch_size 241 is not a multiple of the 2 replicas"),
    (7, {}, "120 samples are not a multiple of micro_batch_size 7"),
    (121, {}, "micro_batch_size 121 is above the 120 samples that one replica has"),
    (8, {"batch_size": 1}, "batch_size 1 is smaller than the 2 replicas"),
    ("auto", {"batch_size": 241}, "batch_size 241 is not a multiple of the 2 replicas"),
    ("auto", {"batch_size": None}, "auto needs batch_size"),
    ("explore", {"batch_size": 0}, "batch_size must be a positive integer, not 0"),
    ("explore", {"batch_size": "big"}, 'batch_size must be a positive integer, not "big"'),
    ("explore", {"num_csx": 1.5}, "num_csx must be a positive integer, not 1.5"),
    ("explore", {"batch_size": None, "explore": {"candidates": "divisors"}}, "divisors needs batch_size"),
    ("explore", {"batch_size": 241, "explore": {"candidates": "divisors"}}, "not a multiple of the 2 replicas"),
    ({"explore": {"min": 8}}, {"explore": {"max": 4}}, "nothing is left to try: from 8 to 4"),
    (121, {"explore": {"divisibility": "even"}}, "micro_batch_size 121 is above the 120 samples"),
]
FLAGS = [
    (None, True, "use_cs_grad_accum is true, but micro_batch_size means no accumulation"),
    ("auto", False, "use_cs_grad_accum is false, but micro_batch_size: auto splits the batch"),
    (8, False, "makes batch_size 240 only with accumulation"),
    ("explore", "maybe", 'use_cs_grad_accum must be true or false, not "maybe"'),
]
OPTIMIZERS = [
    ({"optimizer_type": "AdamZ"}, 'the optimizer "AdamZ" is not one of torch.optim | did you mean Adam'),
    ({"optimizer_type": "AdamW", "betas": 0.9}, "betas must be two numbers, not 0.9"),
    ({"AdamW": {"weight_decay": "much"}}, 'weight_decay must be a number, not "much"'),
    ({"optimizer_type": "SGD", "nesterov": 1}, "nesterov must be true or false, not 1"),
    ({"optimizer_type": "SGD", "max_gradient_norm": "one"}, 'max_gradient_norm must be a number, not "one"'),
]
MODELS = [
    ({"name": "unet"}, 'the model "unet" is not built in'),
    ({"name": "lama"}, "did you mean llama?"),
    ({"moe": {"num_experts": 8, "top_k": 9}}, "top_k 9 exceeds the 8 experts"),
    ({"num_segments": 2}, "not a decoder-only language model, by its num_segments"),
    ({"num_heads": 5}, "hidden_size 32 is not a multiple of num_heads 5"),
    ({"hidden_size": 0}, "hidden_size must be a positive integer, not 0"),
    ({"vocab_size": None}, "the model section has no vocab_size"),
    ({"max_position_embeddings": None}, "nothing gives the sequence length"),
    ({"nonlinearity": "gleu"}, 'nonlinearity "gleu" is not built in | did you mean'),
    ({"position_embedding_type": "relative"}, 'position_embedding_type "relative" is not built in'),
    ({"position_embedding_type": "rotary", "rotary_dim": 64}, "rotary_dim must be even and at most the width"),
    ({"dropout_rate": 1.5}, "dropout_rate must be from 0 to below 1, not 1.5"),
    ({"use_ffn_bias": "perhaps"}, 'use_ffn_bias must be true or false, not "perhaps"'),
    ({"layer_norm_epsilon": "tiny"}, 'layer_norm_epsilon must be a number, not "tiny"'),
    ({"attention_module": "magic"}, 'attention_module "magic" is not built in'),
    (
        {"attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 3}},
        "num_heads 4 is not a multiple of num_kv_groups 3",
    ),
]
SHAPES = [
    ({"setup": {}, "dataset": {}}, "is a file of your own, and no command trains with it"),
    ({"train_inputs": {}}, 'did you mean "train_input" by "train_inputs"?'),
    ({"train_input": None}, "train_input and eval_input are both empty"),
    ({"train_input": 5}, "train_input must be a mapping, not a number"),
    ({"train_input": {}, "model": []}, "model must be a mapping, not a list"),
    ({"trainer": 5}, "is a file of your own"),
    ({"trainer": {"init": {"model": {}}}}, "neither fit.train_dataloader nor validate.val_dataloader"),
    ({"trainer": []}, "is a file of your own"),
    (trainer() | {"explore": {"seeed": 1}}, 'unknown key "seeed" in explore'),
    (trainer(callbacks={"ScopedTrainFlags": {FLAG: 4}}), "callbacks must be a list, not a mapping"),
    ({"train_input": {"batch_size": 8, "micro_batch_size": "explore"}}, "no model section describes what is trained"),
    ("train_input: {batch_size: 8, micro_batch_size: .nan}\nmodel: {}\n", "not nan"),
]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *((sections(micro, **fields), expected) for micro, fields, expected in NUMBERS),
        *((flagged(micro, flag), expected) for micro, flag, expected in FLAGS),
        *((sections(optimizer=optimizer), expected) for optimizer, expected in OPTIMIZERS),
        *((sections(model=GPT | change), expected) for change, expected in MODELS),
        *SHAPES,
    ],
)
def test_what_is_wrong_in_a_file_is_refused_in_words(folder, values, expected):
    assert expected in folder.refusal(values)


@pytest.mark.parametrize(
    ("micro", "flag", "warnings"),
    [
        *((micro, True, 0) for micro in ("explore", "auto", 8, {"explore": {"max": 4}})),
        (120, False, 0),  # without accumulation one micro-batch is the whole batch
        ("explore", False, 1),
    ],
)
def test_the_accumulation_flag_is_accepted_where_it_agrees(folder, micro, flag, warnings):
    told = folder.load(flagged(micro, flag)).warnings
    assert len([line for line in told if "use_cs_grad_accum is false" in line]) == len(told) == warnings


def test_everything_wrong_with_a_file_is_said_at_once(folder):
    text = """\
train_input:
    batch_size: 0
    micro_batch_size: fast
model: {vocab_size: 10, hidden_size: 30, num_hidden_layers: 1, num_heads: 4, filter_size: 8,
        max_position_embeddings: 8}
optimizer: {optimizer_type: Adamm}
runconfig: {num_csx: two}
explore:
    tolerance: 5
    tolerence: 1
"""
    told = folder.refusal(text)
    assert told.startswith(f"7 problems in {folder.path}\n")
    assert [f"job.yaml:{line}: " in told for line in (2, 3, 4, 6, 7, 9, 10)] == [True] * 7


def paths_in(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of nested values, the top excepted."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in inner for found in ((*path, key), *paths_in(child, (*path, key)))]


WHOLE = {
    "older": sections(
        "auto", explore={"workload": {"model": "m:a", "batch": "m:b"}, "max": 8, "compile": {"mode": "x"}}
    ),
    "newer": trainer([{"ScopedTrainFlags": {FLAG: {"explore": {"min": 1, "max": 8}}}}]),
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**12),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["explore", "min", "name", "0", "trainer"]), st.integers(), max_size=2),
)


@pytest.mark.parametrize("layout", WHOLE)
@settings(deadline=None)
@given(data=st.data())
def test_whatever_stands_anywhere_is_a_config_or_one_error(tmp_path_factory, layout, data):
    values = copy.deepcopy(WHOLE[layout])
    for path in data.draw(st.lists(st.sampled_from(paths_in(values)), min_size=1, max_size=3)):
        container = Document(path=Path("x"), values=values).get(path[:-1])
        if isinstance(container, dict | list) and Document(path=Path("x"), values=values).has(path):
            container[path[-1]] = data.draw(JUNK)
    path = tmp_path_factory.getbasetemp() / f"{layout}.yaml"
    path.write_text(json.dumps(values).replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf"))
    overrides = data.draw(st.sampled_from([[], ["micro_batch_size=explore"], ["trainer.init.callbacks.New.key=1"]]))
    try:
        load_config(path, overrides=overrides)
    except UserInputError as error:
        assert str(path) in error.message or "--set" in error.message


def test_an_override_through_a_list_instead_of_a_mapping_is_refused(folder):
    values = copy.deepcopy(WHOLE["newer"])
    values["trainer"]["init"] = []
    with pytest.raises(UserInputError, match=r"trainer\.init is a list, not a mapping"):
        folder.load(values, overrides=["micro_batch_size=explore"])


# Overrides


def test_the_bare_word_sets_the_size_wherever_the_layout_keeps_it(folder):
    for values in (sections(8), trainer(), trainer([{"ScopedTrainFlags": {FLAG: 4}}]), {"trainer": [trainer()]}):
        request = folder.load(values, overrides=["micro_batch_size={explore: {max: 32}}"]).request
        assert (request.kind, request.maximum) == (RequestKind.EXPLORE, 32)


def test_the_bare_word_sets_the_side_that_is_asked_for(folder):
    config = folder.load(both_sides(8, 4), overrides=["micro_batch_size=explore"], mode=Mode.EVAL)
    assert (config.mode, config.request.kind) == (Mode.EVAL, RequestKind.EXPLORE)


def test_overrides_are_checked_like_the_file(folder):
    told = folder.refusal(sections(), overrides=["explore.tolerence=1", "train_input.batch_size=none"])
    assert '--set explore.tolerence=1: unknown key "tolerence" in explore' in told
    assert '--set train_input.batch_size=none: batch_size must be a positive integer, not "none"' in told


def test_an_override_of_an_unknown_section_is_refused(folder):
    told = folder.refusal(sections(), overrides=["trian_input.batch_size=4"])
    assert 'the file has no section "trian_input" | did you mean train_input?' in told


def test_later_overrides_win(folder):
    overrides = ["explore.seed=1", "explore.seed=2", "runconfig.num_csx=4", "model.num_heads=8"]
    config = folder.load(sections(), overrides=overrides)
    assert (config.settings.seed, config.num_replicas, config.job.model["num_heads"]) == (2, 4, 8)


# The examples


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_loads_without_a_warning_and_satisfies_the_schema(path):
    config = load_config(path)
    assert config.warnings == ()
    # The guard's own tiny job names its size: it compares and explores nothing.
    assert config.request.kind is (RequestKind.FIXED if path.stem == "guard_tiny" else RequestKind.EXPLORE)
    jsonschema.validate(read(path).values, make_schema())
