"""Lengths of samples in words: padding, the longest batch, what other collations gain, programs by length."""

from __future__ import annotations

from typing import Any

import pytest

from bexplore.job.lengths import Collation
from bexplore.output.summary import summary_text
from bexplore.run.parts.lengths import LengthsPart, OtherCollation
from bexplore.run.parts.row import View
from tests.unit.run.builders import run_result

VIEW = View(tolerance=0.02)

OTHERS = {
    "sorted": OtherCollation(padding_share=0.04, predicted=1.28, measured=1.2),
    "packed": OtherCollation(padding_share=0.01, predicted=1.32),
}


def result(**fields: Any) -> LengthsPart:
    facts: dict[str, Any] = {
        "source": "lengths.txt",
        "collation": "longest",
        "mean": 91.25,
        "median": 80,
        "longest": 512,
        "typical": 120,
        "typical_rows": 8,
        "micro_batch_tokens": None,
        "padding_share": 0.25,
        "tokens_per_s": 1234.0,
        "typical_memory_bytes": 3 * 2**20,
        "longest_that_fits": 700,
        "num_lengths": 6,
        "is_static": False,
        "peak_batch": (4, 512),
        "num_positions": 1024,
        "compile_time_s": 8.0,
    }
    return LengthsPart(**facts | fields)


def rows(**fields: Any) -> dict[str, str]:
    return dict(result(**fields).rows(VIEW))


def test_the_first_sentence_tells_samples_padding_and_speed():
    assert rows()["lengths"] == (
        "mean 91, median 80, longest 512 tokens (lengths.txt), padded to the longest of a batch: at this size half "
        "of the rows have up to 120 tokens, and 25% of the tokens are padding; 1,234 tokens/s without padding"
    )


def test_without_a_run_no_speed_is_told():
    assert rows(tokens_per_s=None)["lengths"].endswith("25% of the tokens are padding")


@pytest.mark.parametrize("collation", Collation)
def test_every_collation_has_words_of_its_own(collation):
    words = {rows(collation=other.value)["lengths"] for other in Collation if other is not collation}
    assert rows(collation=collation.value)["lengths"] not in words


def test_the_longest_sentence_tells_that_it_ran_and_what_the_trace_says():
    assert rows()["longest samples"] == (
        "ran with a batch of the longest samples, 512 tokens each, after typical ones; a batch of 120 tokens needs "
        "3.00 MiB by the trace, and rows of up to 700 tokens fit the budget"
    )


@pytest.mark.parametrize("fits", [None, 0])
def test_nothing_is_told_of_lengths_that_fit_where_none_is_known(fits):
    assert rows(longest_that_fits=fits)["longest samples"].endswith("needs 3.00 MiB by the trace")


@pytest.mark.parametrize(("fits", "is_said"), [(700, True), (512, False)])
def test_longer_rows_than_any_that_ran_may_lack_positions(fits, is_said):
    told = rows(num_positions=None, longest_that_fits=fits)["longest samples"]
    assert told.endswith("if the model takes them: its positions are not known") is is_said


def test_without_a_trace_the_run_alone_is_told():
    assert rows(typical_memory_bytes=None, longest_that_fits=None)["longest samples"] == (
        "ran with a batch of the longest samples, 512 tokens each, after typical ones"
    )


def test_other_collations_are_told_with_what_they_leave_and_gain():
    assert rows(others=OTHERS)["padding"] == (
        "sorting by length leaves 4% of padding: 1.28x the tokens/s by the count of tokens, 1.20x as timed at this "
        "size; packing leaves 1% of padding: 1.32x the tokens/s by the count of tokens"
    )


def test_without_another_collation_there_is_no_row_of_padding():
    assert list(rows()) == ["lengths", "longest samples"]


def test_programs_by_length_are_told_with_their_seconds_and_the_way_out():
    assert rows(is_static=True)["programs"] == (
        "compile.dynamic: false makes a program for each length, 6 at this size, 8.00 s each, 48.0 s in the first "
        "epoch; compile.dynamic: null makes one for all"
    )
    assert "6 at this size; compile.dynamic: null" in rows(is_static=True, compile_time_s=None)["programs"]


@pytest.mark.parametrize(("num_lengths", "gives_up"), [(8, False), (9, True)])
def test_more_programs_than_the_compiler_makes_are_said_to_be_given_up(num_lengths, gives_up):
    assert ("torch.compile gives up after 8" in rows(is_static=True, num_lengths=num_lengths)["programs"]) is gives_up


@pytest.mark.parametrize(
    ("is_static", "num_lengths", "is_told"), [(True, 6, True), (True, 1, False), (False, 6, False)]
)
def test_programs_have_a_row_where_there_are_several(is_static, num_lengths, is_told):
    assert ("programs" in rows(is_static=is_static, num_lengths=num_lengths)) is is_told


def test_a_number_of_tokens_is_told_as_rows_of_long_and_of_typical_samples():
    told = result(micro_batch_tokens=4096, typical_rows=34, collation="tokens").rows(VIEW)
    assert next(told) == (
        "tokens",
        "micro_batch_tokens 4096: the longest samples, 512 tokens, in 8 rows, or typical ones, 120 tokens, in 34",
    )


@pytest.mark.parametrize(("batch", "which"), [((4, 512), "longest"), ((256, 8), "shortest")])
def test_a_number_of_tokens_tells_which_batch_needs_most_memory(batch, which):
    told = rows(micro_batch_tokens=2048, collation="tokens", peak_batch=batch)["longest samples"]
    assert told.startswith(
        f"needs most memory with the {which} samples, {batch[0]} rows of {batch[1]} tokens: ran with these after"
    )


def test_the_summary_has_the_rows_of_lengths_and_none_without():
    before = {"micro_batch_size": 8, "base_micro_batch_size": 1, "relative_performance": 1.5, "confidence": 91}
    before |= {"samples_per_s": 123.4, "num_probes": 5, "run_dir": "somewhere"}
    with_lengths, without = (
        summary_text(run_result(**before, lengths=one), tolerance=0.02) for one in (result(others=OTHERS), None)
    )

    for label in ("lengths", "longest samples", "padding"):
        assert f"\n  {label} " in with_lengths
        assert f"\n  {label} " not in without
