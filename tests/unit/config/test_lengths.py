"""`explore.lengths`: which lengths each form gives, what they change in the job, and the message of each mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bexplore.config.config import Config
from bexplore.config.workload import give_lengths
from bexplore.job.lengths import Collation, Lengths
from tests.unit.config.builders import Folder, sections

GPT2 = {"task": "causal_lm", "model_type": "gpt2", "config": {"n_positions": 64}}
IMAGES = {"task": "image_classification", "model_type": "vit"}


def loaded(folder: Folder, lengths: Any, **explore: Any) -> Config:
    return folder.load(sections(explore={"lengths": lengths} | explore))


def lengths_of(folder: Folder, lengths: Any, **explore: Any) -> Lengths:
    found = loaded(folder, lengths, **explore).job.lengths
    assert found is not None
    return found


def refusal(folder: Folder, lengths: Any, **explore: Any) -> str:
    return folder.refusal(sections(explore={"lengths": lengths} | explore))


# Where lengths are from


def test_without_the_section_all_samples_are_as_long_as_the_model_takes(folder):
    config = folder.load(sections())
    assert (config.job.lengths, config.job.sequence_length, config.job.compile.dynamic) == (None, 64, False)


@pytest.mark.parametrize("lengths", [[20, 10, 20, 40], {"values": [40, 10, 20], "weights": [1, 1, 2]}])
def test_a_list_is_lengths_of_samples_and_weights_stand_for_more_of_them(folder, lengths):
    assert lengths_of(folder, lengths) == Lengths(values=(10, 20, 40), weights=(0.25, 0.5, 0.25))


def test_a_list_may_be_given_on_the_command_line(folder):
    config = folder.load(sections(), overrides=["explore.lengths=[10, 20]"])
    assert config.job.lengths == Lengths.from_samples([10, 20])


@pytest.mark.parametrize("keys", [("0", "50", "100"), ("0%", "50%", "100%"), ("50", "100", "0.0")])
def test_quantiles_are_lines_from_one_percent_to_the_next(folder, keys):
    marks = {0: 10, 50: 20, 100: 60}
    found = lengths_of(folder, {"quantiles": {key: marks[round(float(key.strip("%")))] for key in keys}})

    assert (found.values[0], found.longest) == (10, 60)
    assert [found.quantile(share) for share in (0.25, 0.5, 0.75)] == [15, 20, 40]
    assert found.mean == pytest.approx((15 + 40) / 2, abs=0.1)


def test_percents_of_a_yaml_file_are_numbers(folder):
    text = "train_input: {batch_size: 8, micro_batch_size: explore}\nmodel: {vocab_size: 9, hidden_size: 8, "
    text += "num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 64}\noptimizer: {optimizer_type: sgd}\n"
    config = folder.load(text + "explore:\n  lengths:\n    quantiles: {0: 10, 99.5: 20, 100: 60}\n")

    assert (config.job.lengths.quantile(0.995), config.job.lengths.longest) == (20, 60)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lengths.txt", "10 20\n20 40"),
        ("lengths.txt", "10\n20\n20\n40\n"),
        ("lengths.txt", "10,20;20, 40"),
        ("lengths.json", "[10, 20, 20.0, 40]"),
    ],
)
def test_a_file_holds_numbers_in_a_text_or_a_json_list(folder, name, text):
    (folder.path.parent / name).write_text(text)
    assert lengths_of(folder, {"file": name}) == Lengths.from_samples([10, 20, 20, 40])


@pytest.mark.parametrize("kind", [np.int32, np.uint16, np.float64])
def test_an_array_holds_numbers_in_any_shape(folder, kind):
    np.save(folder.path.parent / "lengths.npy", np.array([[10, 20], [20, 40]], dtype=kind))
    assert lengths_of(folder, {"file": "lengths.npy"}) == Lengths.from_samples([10, 20, 20, 40])


@pytest.mark.parametrize(
    ("name", "text", "column"),
    [
        ("lengths.csv", "tokens\n10\n20\n20\n40\n", None),
        ("lengths.csv", 'id,text,tokens\n1,"a, b",10\n2,c,20\n3,d,20\n4,e, 40\n', "tokens"),
        ("lengths.tsv", "id\ttokens\na\t10\nb\t20\nc\t20\nd\t40\n", "tokens"),
        ("lengths.txt", "id;tokens\na;10\nb;20\nc;20\nd;40\n", "tokens"),
        ("lengths.csv", "10,20\n20,40\n", None),
    ],
)
def test_a_table_has_lengths_in_a_column(folder, name, text, column):
    (folder.path.parent / name).write_text(text)
    found = lengths_of(folder, {"file": name} | ({"column": column} if column else {}))
    assert found == Lengths.from_samples([10, 20, 20, 40])


@pytest.mark.parametrize(("others", "column"), [({}, None), ({"ids": np.arange(9)}, "tokens")])
def test_an_archive_of_arrays_has_lengths_in_one_of_them(folder, others, column):
    np.savez(folder.path.parent / "lengths.npz", tokens=np.array([10, 20, 20, 40]), **others)
    found = lengths_of(folder, {"file": "lengths.npz"} | ({"column": column} if column else {}))
    assert found == Lengths.from_samples([10, 20, 20, 40])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("token", 'it has no column "token"; did you mean tokens?'),
        ("nothing like it", 'it has no column "nothing like it", but id, tokens'),
        (None, "it has the columns id, tokens: name one in explore.lengths.column"),
        ("id", '"a" is no number of tokens'),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(folder, column, expected):
    (folder.path.parent / "a.csv").write_text("id,tokens\na,10\nb,20\n")
    assert expected in refusal(folder, {"file": "a.csv"} | ({"column": column} if column else {}))


def test_a_file_may_hold_the_lengths_that_may_be_written_inline(folder):
    (folder.path.parent / "lengths.txt").write_text("10 99999999")
    found, inline = lengths_of(folder, {"file": "lengths.txt"}), lengths_of(folder, [10, 99_999_999])
    assert found == inline
    assert (found.source, inline.source) == ("lengths.txt", "explore.lengths")


def test_a_file_of_lengths_lies_beside_the_configuration(folder, monkeypatch, tmp_path_factory):
    (folder.path.parent / "lengths.txt").write_text("10 20")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert lengths_of(folder, {"file": "lengths.txt"}).longest == 20


@pytest.mark.parametrize("collation", [one for one in Collation if one is not Collation.TOKENS])
def test_every_collation_has_its_word(folder, collation):
    buckets = {"buckets": [32, 16]} if collation is Collation.BUCKETS else {}
    found = lengths_of(folder, {"values": [10, 20], "padding": collation.value} | buckets)

    assert found.collation is collation
    assert found.buckets == ((16, 32) if buckets else ())


def test_the_multiple_of_rows_and_the_argument_of_own_code_reach_the_job(folder):
    found = lengths_of(folder, {"values": [10, 20], "multiple_of": 16, "argument": "tokens"})
    assert (found.multiple_of, found.argument, found.longest) == (16, "tokens", 32)


def test_lengths_of_a_loader_are_read_later(folder):
    workload = {"model": "m:a", "batch": "m:b", "loader": "m:c"}
    config = loaded(folder, {"from": "loader", "multiple_of": 16}, workload=workload)
    assert (config.job.lengths, config.job.compile.dynamic) == (None, False)

    job, warnings = give_lengths(config.settings, config.job, [10, 20])
    assert job.lengths == Lengths.from_samples([10, 20], multiple_of=16)
    assert (job.lengths.source, job.sequence_length, job.compile.dynamic, warnings) == ("the loader", 32, None, [])


@pytest.mark.parametrize(("padding", "collation"), [("longest", "tokens"), ("sorted", "tokens"), ("packed", "packed")])
def test_batches_of_a_number_of_tokens_are_sorted_unless_they_are_packed(folder, padding, collation):
    config = loaded(folder, {"values": [10, 20], "padding": padding})
    job, _ = give_lengths(config.settings, config.job, [10, 20], in_tokens=True)
    assert job.lengths.collation.value == collation


@pytest.mark.parametrize("padding", ["longest", "max"])
def test_a_number_of_tokens_contradicts_padding_of_samples_in_their_order(folder, padding):
    given = sections(explore={"lengths": {"values": [10, 20], "padding": padding}})
    given["train_input"] = {"micro_batch_tokens": "explore"}
    assert f"and padding is {padding} | type sorted or packed, or leave it out" in folder.refusal(given)


# What they change in the job


def test_the_job_is_as_long_as_its_longest_sample(folder):
    config = loaded(folder, [10, 20])
    assert (config.job.sequence_length, config.job.tokens_per_sample, config.warnings) == (20, 15, ())


def test_samples_longer_than_the_model_takes_are_cut_off_with_a_warning(folder):
    config = loaded(folder, [10, 20, 65, 900])

    assert config.job.lengths == Lengths.from_samples([10, 20, 64, 64])
    assert config.job.sequence_length == 64
    assert loaded(folder, [10, 64]).warnings == ()
    (warning,) = config.warnings
    assert "50.00% of the samples are longer than 64 tokens, and are cut off there" in warning


@pytest.mark.parametrize(
    "workload",
    [
        {"transformers": GPT2},
        {"transformers": GPT2 | {"config": {}, "sequence_length": 64}},
        {"transformers": {"task": "masked_lm", "model_type": "bert", "config": {"max_position_embeddings": 64}}},
        {"model": "m:a", "batch": "m:b", "sequence_length": 64},
    ],
)
def test_samples_are_cut_off_behind_what_the_workload_says(folder, workload):
    config = loaded(folder, [10, 100], workload=workload)

    assert config.job.lengths == Lengths.from_samples([10, 64])
    assert len(config.warnings) == 1


def test_own_code_that_names_no_longest_length_takes_all(folder):
    config = loaded(folder, [10, 100], workload={"step": "m:a"})
    assert (config.job.sequence_length, config.warnings) == (100, ())


MAX = {"values": [10, 20], "padding": "max"}
PACKED = {"values": [10, 20], "padding": "packed"}


@pytest.mark.parametrize(
    ("lengths", "explore", "dynamic"),
    [
        *(([10, 20], compiling, None) for compiling in ({}, {"compile": True}, {"compile": {"mode": "max-autotune"}})),
        *(([10, 20], {"compile": {"dynamic": said}}, said) for said in (False, True, None)),
        *((of_one_length, {}, False) for of_one_length in ([20, 20], MAX)),
    ],
)
def test_one_program_serves_all_lengths_unless_the_file_says_otherwise(folder, lengths, explore, dynamic):
    assert loaded(folder, lengths, **explore).job.compile.dynamic is dynamic


@pytest.mark.parametrize(
    ("lengths", "explore", "data"),
    [
        ([10, 20], {}, {"sequence_length": 20, "attention_mask": True}),
        ([10, 20], {"attention_mask": False}, {"sequence_length": 20}),
        ([10, 20], {"attention_mask": True}, {"sequence_length": 20, "attention_mask": True}),
        (MAX, {}, {"sequence_length": 20, "attention_mask": True}),
        (PACKED, {}, {"sequence_length": 20}),
        (PACKED, {"attention_mask": True}, {"sequence_length": 20, "attention_mask": True}),
    ],
)
def test_models_of_transformers_get_the_longest_length_and_a_mask(folder, lengths, explore, data):
    """Packed samples get none, nor does a file that says so."""
    assert loaded(folder, lengths, workload={"transformers": GPT2 | explore}).job.data == data


@pytest.mark.parametrize("workload", [{}, {"workload": {"model": "m:a", "batch": "m:b"}}])
def test_other_workloads_are_given_no_mask(folder, workload):
    assert "attention_mask" not in loaded(folder, [10, 20], **workload).job.data


def test_every_variant_has_the_lengths_and_what_is_cut_off_is_told_once(folder):
    lists = {"compile.mode": ["default", "max-autotune"], "activation_checkpointing": ["none", "full"]}
    config = loaded(folder, [10, 100], settings=lists)

    assert len(config.variants) == 4
    assert {(one.job.lengths, one.job.sequence_length) for one in config.variants} == {(config.job.lengths, 64)}
    assert len(config.warnings) == 1


# What is refused


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], "explore.lengths.values"),
        ([10, 0], "explore.lengths.values.1 must be at least 1, not 0"),
        ([-3], "explore.lengths.values.0 must be at least 1, not -3"),
        ([1.5], "explore.lengths.values.0 must be a whole number, not 1.5"),
        (["long"], 'explore.lengths.values.0 must be a whole number, not "long"'),
        ([True], "explore.lengths.values.0 must be a whole number, not true"),
        (7, "explore.lengths must be a list of lengths, the path of a file or a mapping, not 7"),
        ("no.txt", 'cannot read lengths from "no.txt": No such file or directory'),
        ({}, "; given: none of them"),
        ({"padding": "max"}, "; given: none of them"),
        ({"values": [1], "file": "a.txt"}, "; given: values and file"),
        ({"values": [1], "quantiles": {"0": 1, "100": 2}}, "; given: values and quantiles"),
        ({"values": [1], "from": "loader"}, "; given: values and from"),
        ({"from": "data"}, 'explore.lengths.from must be loader, not "data"'),
        ({"from": "loader"}, "there is no loader to read lengths from"),
        ({"values": [1, 2], "weights": [1]}, "weights has 1 numbers, and values 2"),
        ({"file": "a.txt", "weights": [1]}, "weights has 1 numbers, and values 0"),
        ({"values": [1, 2], "weights": [0, 0]}, "weights are all 0"),
        ({"values": [1, 2], "weights": [2, -1]}, "explore.lengths.weights.1 must be at least 0, not -1"),
        ({"values": [1, 2], "column": "a"}, "column goes with file"),
        (
            {"values": [10, 60], "padding": "buckets", "buckets": [16, 32]},
            "the largest bucket holds up to 32 tokens, and the longest sample has 60 | add a bucket of 60",
        ),
        (
            {"values": [10, 60], "multiple_of": 48},
            "rows padded to a multiple of 48 have up to 96 tokens, and the model has 64 positions | type a divisor",
        ),
        ({"values": [1, 2], "buckets": [2]}, "padding: buckets goes with a list of buckets"),
        ({"values": [1, 2], "padding": "buckets"}, "padding: buckets goes with a list of buckets"),
        ({"values": [1, 2], "padding": "max", "buckets": [2]}, "padding: buckets goes with a list of buckets"),
        ({"values": [1, 2], "padding": "long"}, 'not "long" | did you mean longest?'),
        ({"values": [1, 2], "paddings": "max"}, 'unknown key "paddings" in explore.lengths | did you mean "padding"?'),
        ({"values": [1, 2], "multiple_of": 0}, "explore.lengths.multiple_of must be at least 1, not 0"),
        ({"quantiles": {"0": 8, "50": 20}}, "quantiles needs 0, the shortest, and 100, the longest sample"),
        ({"quantiles": {"50": 8, "100": 20}}, "quantiles needs 0, the shortest, and 100, the longest sample"),
        ({"quantiles": {"0": 8, "100": 20, "101": 30}}, "101 in quantiles is no percent from 0 to 100"),
        ({"quantiles": {"0": 8, "nan": 9, "100": 20}}, "nan in quantiles is no percent from 0 to 100"),
        ({"quantiles": {}}, "quantiles needs 0, the shortest, and 100, the longest sample"),
        ({"quantiles": {"0": 8, "50": 20, "100": 10}}, "quantiles must not fall from one percent to the next"),
        ({"quantiles": {"0": 8, "most": 20, "100": 30}}, "most in quantiles is no percent"),
    ],
)
def test_a_mistake_is_one_error_on_a_line_of_the_section(folder, lengths, expected):
    told = refusal(folder, lengths)

    assert expected in told
    assert "job.yaml:" in told
    assert "problems in" not in told


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.txt", None, "No such file or directory"),
        ("a.txt", "10 long 20", '"long" is no number of tokens'),
        ("a.txt", "length\n10\n20\n", '"length" is no number of tokens'),
        ("a.txt", "10 -5", '"-5" is no number of tokens'),
        ("a.txt", "10 1.5", '"1.5" is no number of tokens'),
        ("a.txt", "10 0", "lengths are whole numbers from 1 to"),
        ("a.txt", "10 100000001", "lengths are whole numbers from 1 to"),
        ("a.txt", "", "it is empty"),
        ("a.txt", "1²", "is no number of tokens"),
        ("a.npy", "", "No data left in file"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "[10, 0]", "lengths are whole numbers from 1 to"),
        ("a.json", "[10, 1.5]", "lengths are whole numbers from 1 to"),
        ("a.json", "[10, NaN]", "lengths are whole numbers from 1 to"),
        ("a.json", '["ten"]', "it holds no list of numbers"),
        ("a.json", "[true]", "it holds no list of numbers"),
        ("a.json", '{"a": 1}', "it holds no list of numbers"),
        ("a.json", "[[10, 20]]", "it holds no list of numbers"),
        ("a.json", "[]", "it holds no list of numbers"),
        ("a.json", "[10,", "Expecting value"),
        ("a.npy", "10 20", "pickle"),
        (".", None, "Is a directory"),
    ],
)
def test_a_file_without_lengths_is_refused_with_its_name_and_why(folder, name, content, expected):
    if content is not None:
        (folder.path.parent / name).write_text(content)
    told = refusal(folder, {"file": name})

    assert f'cannot read lengths from "{name}": ' in told
    assert expected in told
    assert "problems in" not in told


def test_an_array_of_objects_is_not_unpickled(folder):
    np.save(folder.path.parent / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "Object arrays cannot be loaded" in refusal(folder, {"file": "a.npy"})


def test_a_file_of_lengths_is_as_wrong_for_all_variants_as_for_one(folder):
    told = refusal(folder, {"file": "none.txt"}, settings={"compile.mode": ["default", "max-autotune"]})
    assert "No such file or directory" in told
    assert "problems in" not in told


def test_the_length_of_an_image_is_its_side(folder):
    job = folder.load(sections(explore={"lengths": [64, 96], "workload": {"transformers": IMAGES}})).job
    assert job.data == {"image_size": 96}
    assert job.at_length(64).data == {"image_size": 64}


def test_a_number_of_tokens_holds_no_images(folder):
    values = sections(explore={"lengths": [64, 96], "workload": {"transformers": IMAGES}})
    values["train_input"]["micro_batch_tokens"] = values["train_input"].pop("micro_batch_size")
    assert "type micro_batch_size: explore, not tokens" in folder.refusal(values)


def test_mistakes_are_told_together_with_those_elsewhere(folder):
    values = sections(explore={"lengths": {"values": [0]}, "seed": -1})
    assert "2 problems in" in folder.refusal(values)
