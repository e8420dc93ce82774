"""`explore.settings`: which variants of a job it makes, and what is said about each wrong value."""

from __future__ import annotations

import pytest

from bexplore.config.variants import MAX_VARIANTS, changes_training, find_key_path, name_settings
from bexplore.job import Precision
from tests.unit.config.builders import sections

OWN_MODEL = {"model": "m:a", "batch": "m:b"}


def names(config) -> list[str]:
    return [variant.name for variant in config.variants]


# Which variants


WORDS = [f"activation_checkpointing={word}" for word in ("none", "selective", "full")]
BUDGETS = [f"activation_memory_budget={share}" for share in ("1.0", "0.5", "0.2")]
MODES = ["compile.mode=default", "compile.mode=max-autotune"]
COMPILED = ["compile.enabled=true, compile.mode=default", "compile.enabled=true, compile.mode=max-autotune"]


@pytest.mark.parametrize(
    ("explore", "expected"),
    [
        ({}, []),
        ({"settings": {"activation_checkpointing": ["selective", "full"]}}, WORDS),  # the file's own is a variant, too
        ({"settings": {"compile": {"mode": ["default", "max-autotune"]}}}, MODES),  # mappings in mappings
        ({"settings": "auto"}, BUDGETS),  # the compiler recomputes where the model is compiled
        ({"settings": "auto", "compile": False}, WORDS),
        ({"settings": "auto", "compile": False, "workload": {"step": "m:a"}}, []),
        (
            {"settings": {"compile.enabled": [True, False], "compile.mode": ["default", "max-autotune"]}},
            [*COMPILED, "compile.enabled=false"],  # settings that make one program are one variant
        ),
    ],
)
def test_settings_make_these_variants(folder, explore, expected):
    assert names(folder.load(sections(explore=explore))) == expected


def test_a_list_of_settings_may_be_given_on_the_command_line(folder):
    config = folder.load(sections(), overrides=["explore.settings.compile.mode=[default, reduce-overhead]"])
    assert names(config) == ["compile.mode=default", "compile.mode=reduce-overhead"]


def test_each_combination_is_a_variant_and_the_files_own_is_the_first(folder):
    lists = {"activation_checkpointing": ["none", "selective"], "compile.mode": ["max-autotune", "default"]}
    config = folder.load(sections(explore={"settings": lists}))
    assert names(config) == [
        "activation_checkpointing=none, compile.mode=default",
        "activation_checkpointing=none, compile.mode=max-autotune",
        "activation_checkpointing=selective, compile.mode=max-autotune",
        "activation_checkpointing=selective, compile.mode=default",
    ]
    assert config.variants[0].job == config.job
    assert config.variants[2].job.activation_checkpointing == "selective"
    assert config.variants[2].job.compile.mode == "max-autotune"
    assert config.variants[2].values == {"activation_checkpointing": "selective", "compile.mode": "max-autotune"}


def test_a_single_value_is_fixed_for_all_variants_the_files_own_too(folder):
    lists = {"precision": "bfloat16", "activation_checkpointing": ["none", True]}
    config = folder.load(sections(explore={"settings": lists}))
    assert names(config) == ["activation_checkpointing=none", "activation_checkpointing=full"]
    assert {variant.job.precision for variant in config.variants} == {Precision.BFLOAT16}
    assert config.job.precision is Precision.BFLOAT16
    assert config.variants[1].values == {"precision": "bfloat16", "activation_checkpointing": "full"}


def test_a_single_value_alone_is_a_plain_exploration_with_it(folder):
    config = folder.load(sections(explore={"settings": {"activation_checkpointing": "full"}}))
    assert (config.variants, config.job.activation_checkpointing) == ((), "full")


def test_arguments_of_own_code_are_explored(folder):
    workload = OWN_MODEL | {"arguments": {"width": 8, "chunk": 2}}
    lists = {"workload.arguments.chunk": [2, 4], "workload.arguments.kernel": ["flash"]}
    config = folder.load(sections(explore={"workload": workload, "settings": lists}))
    assert names(config) == ["chunk=2, kernel=default", "chunk=2, kernel=flash", "chunk=4, kernel=flash"]
    assert config.variants[2].job.model["arguments"] == {"width": 8, "chunk": 4, "kernel": "flash"}
    assert "workload.arguments.kernel" not in config.variants[0].values


def test_the_implementation_of_the_optimizer_goes_over_the_files_own(folder):
    config = folder.load(sections(explore={"settings": {"optimizer.fused": [True]}}))
    assert names(config) == ["optimizer.fused=default", "optimizer.fused=true"]
    own, fused = (variant.job.optimizer_arguments for variant in config.variants)
    assert fused == own | {"fused": True}


def test_a_key_that_changes_nothing_is_a_warning(folder):
    lists = {"compile.mode": ["default", "max-autotune"]}
    config = folder.load(sections(explore={"settings": lists, "compile": False}))
    assert config.variants == ()
    assert "compile.mode changes nothing here" in config.warnings[-1]


def test_contradictory_combinations_are_left_out_with_a_warning(folder):
    lists = {"activation_memory_budget": [1.0, 0.5, 0.2], "compile.enabled": [True, False]}
    config = folder.load(sections(explore={"settings": lists}))
    assert len(config.variants) == 4
    (warning,) = config.warnings
    assert "2 of 6 combinations are left out: activation_memory_budget below 1 is the compiler's" in warning


def test_a_device_of_the_job_is_that_of_its_variants(folder):
    lists = {"precision": ["autocast_float16", "bfloat16"]}
    config = folder.load(sections(explore={"settings": lists})).on_device("cpu")
    assert [(one.job.device, one.job.precision.value) for one in config.variants] == [
        ("cpu", "float32"),
        ("cpu", "autocast_bfloat16"),
        ("cpu", "bfloat16"),
    ]
    assert "float16 needs gradient scaling" in config.warnings[-1]


# What is refused


@pytest.mark.parametrize(
    ("lists", "line", "expected"),
    [
        ({"activation_checkpointing": ["none", "fulll"]}, 32, "must be none, selective or full, not"),
        ({"activation_memory_budget": [1.0, 1.5]}, 32, "explore.activation_memory_budget must be at most 1, not 1.5"),
        ({"precision": ["float32", "bf16"]}, 32, "did you mean bfloat16?"),
        ({"precision": "bf16"}, 30, "did you mean bfloat16?"),
        ({"compile.mode": ["default", 3]}, 32, "explore.compile.mode must be a text, not 3"),
        ({"compile.enabled": [True, "both"]}, 32, "both compares two programs at the end, and is none of them"),
        ({"optimizer.fused": [1]}, 31, "explore.optimizer.fused must be true or false, not 1"),
        (
            {"optimizer.fusd": [True]},
            30,
            'unknown key "optimizer.fusd" in explore.settings | did you mean',
        ),
        (
            {"tolerance": [0.1]},
            30,
            'unknown key "tolerance" in explore.settings | known here',
        ),
        ({"compile.mode": []}, 30, "compile.mode has no value to choose from"),
        ({"workload.arguments.chunk": [1]}, 30, "explore.workload names neither model nor step"),
    ],
)
def test_a_wrong_value_is_refused_as_its_key_refuses_it_on_its_line(folder, lists, line, expected):
    refusal = folder.refusal(sections(explore={"settings": lists}))
    assert expected in refusal
    assert f"job.yaml:{line}: " in refusal


def test_all_wrong_values_are_named_at_once(folder):
    lists = {"activation_checkpointing": ["half"], "activation_memory_budget": [2.0], "compile": {"mode": [1]}}
    assert "3 problems in" in folder.refusal(sections(explore={"settings": lists}))


def test_settings_are_auto_or_a_mapping(folder):
    refusal = folder.refusal(sections(explore={"settings": ["compile.mode"]}))
    assert "explore.settings must be auto, or a mapping of settings to lists of values" in refusal


MANY = [one / 100 for one in range(100)]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (
            {"activation_memory_budget": [1, 0.9, 0.8, 0.7, 0.6, 0.5], "compile.mode": ["default", "a", "b"]},
            f"makes 18 variants of 6 x 3 values; {MAX_VARIANTS} are the most",
        ),
        (
            {"activation_memory_budget": [1, 0.9, 0.8, 0.7, 0.6, 0.5], "compile.mode": ["default", "a", "b"]},
            "shorten activation_memory_budget, which has 6 values",
        ),
        # Combinations are not made to be counted.
        (
            {"activation_memory_budget": MANY, "workload.arguments.a": MANY, "workload.arguments.b": MANY},
            "makes 1000000 variants of 100 x 100 x 100 values",
        ),
        ({f"workload.arguments.{name}": list(range(20)) for name in "ab"}, "makes 400 variants of 20 x 20 values"),
    ],
)
def test_more_variants_than_can_be_run_are_refused(folder, lists, expected):
    assert expected in folder.refusal(sections(explore={"workload": OWN_MODEL, "settings": lists}))


def test_a_file_that_contradicts_itself_is_refused(folder):
    refusal = folder.refusal(sections(explore={"activation_memory_budget": 0.5, "compile": False}))
    assert "activation_memory_budget below 1 is the compiler's, and nothing is compiled" in refusal
    own = {"optimizer": {"fused": True, "foreach": True}}
    assert "fused and foreach exclude each other" in folder.refusal(sections(explore=own))


def test_an_own_step_decides_its_own_recomputation_precision_and_optimizer(folder):
    for key, value in (("activation_checkpointing", "full"), ("precision", "bfloat16"), ("optimizer.fused", True)):
        explore = {"workload": {"step": "m:a"}, "settings": {key: [value]}}
        assert "a step of your own" in folder.refusal(sections(explore=explore))


def test_settings_are_not_explored_on_all_ranks(folder):
    lists = {"settings": {"activation_checkpointing": ["none", "full"]}}
    ranks = {"launcher": "torchrun", "parallelism": {"data_parallel_replicate_degree": 2}}
    assert "settings cannot be explored on all ranks yet" in folder.refusal(sections(explore=lists | ranks))
    assert folder.load(sections(explore=lists | {"parallelism": ranks["parallelism"]})).variants


def test_a_training_command_has_no_settings(folder):
    explore = {"command": "train --mbs {micro_batch_size} --out {output_dir} {config}", "settings": "auto"}
    refusal = folder.refusal({"batch": "explore", "explore": explore})
    assert "explore.settings does not work with training commands" in refusal


# Words and places


def test_the_name_of_a_variant_is_short():
    values = {"workload.arguments.chunk": 8, "compile.enabled": False, "optimizer.fused": None}
    assert name_settings(values) == "chunk=8, compile.enabled=false, optimizer.fused=default"


def test_a_name_of_an_argument_may_contain_dots():
    assert find_key_path("workload.arguments.a.b") == ("explore", "workload", "arguments", "a.b")
    assert find_key_path("compile.mode") == ("explore", "compile", "mode")


def test_only_another_precision_is_known_to_change_the_training():
    own = {"precision": "float32", "compile.mode": "default"}
    assert changes_training(own | {"compile.mode": "max-autotune"}, own) == ()
    assert changes_training(own | {"precision": "bfloat16"}, own) == ("precision bfloat16 instead of float32",)
