"""What a result tells of the lengths of samples, from made observations and traces."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bexplore.job import CompileSettings, Job
from bexplore.job.lengths import Collation, Lengths
from bexplore.run.parts.lengths import LengthsPart, find_lengths
from tests.builders import observed

SAMPLES = Lengths.from_samples([10, 20], source="lengths.txt")
SIZE = 2


class Memory:
    """A kilobyte for each token of each sample."""

    def peak_memory_bytes(self, micro_batch_size: int, length: int) -> int:
        return 1000 * micro_batch_size * length

    def longest_that_fits(self, micro_batch_size: int, budget_bytes: float, *, limit: int) -> int:
        return min(limit, int(budget_bytes // (1000 * micro_batch_size)))


def told(
    lengths: Lengths | None = SAMPLES,
    ran: Any = None,
    *,
    memory: Any = None,
    budget_bytes: float | None = None,
    size: int = SIZE,
    in_tokens: bool = False,
    **job: Any,
) -> LengthsPart | None:
    one = Job(workload="decoder", lengths=lengths, **job)
    if budget_bytes is not None:
        ran = dataclasses.replace(ran or observed(size), memory_budget_bytes=budget_bytes)
    return find_lengths(one, size, ran, is_in_tokens=in_tokens, memory=memory)


def found(*args: Any, **fields: Any) -> LengthsPart:
    result = told(*args, **fields)
    assert result is not None
    return result


def test_a_job_whose_samples_are_all_as_long_has_nothing_to_tell():
    assert told(None, observed(SIZE), memory=Memory(), budget_bytes=1e6) is None


def test_the_samples_and_the_batches_of_the_size_are_told():
    samples = Lengths.from_samples([10, 10, 40], source="lengths.txt")
    result = found(samples, size=4)

    assert (result.source, result.collation) == ("lengths.txt", "longest")
    assert (result.mean, result.median, result.longest) == (20, 10, 40)
    assert (result.typical, result.num_lengths) == (40, 2)
    assert found(samples, size=1).typical == 10
    assert result.padding_share == pytest.approx(1 - 20 / (40 - 30 * (2 / 3) ** 4), abs=0.01)


def test_tokens_per_second_are_those_of_samples_without_padding():
    assert found(ran=observed(SIZE, pass_times_s=(0.1,))).tokens_per_s == pytest.approx(20 * 15)


def test_packed_rows_hold_the_tokens_of_several_samples():
    packed = Lengths.from_samples([5], multiple_of=10, collation=Collation.PACKED)
    assert found(packed, observed(SIZE, pass_times_s=(0.1,))).tokens_per_s == pytest.approx(20 * 10)


def test_what_did_not_run_has_no_speed_and_no_time_to_compile():
    result = found(memory=Memory())

    assert (result.tokens_per_s, result.compile_time_s) == (None, None)
    assert {other.measured for other in result.others.values()} == {None}


def test_the_trace_tells_the_memory_of_typical_batches_and_the_longest_that_fit():
    result = found(memory=Memory(), budget_bytes=100_000)
    assert (result.typical_memory_bytes, result.longest_that_fits) == (1000 * SIZE * 20, 50)


def test_lengths_far_beyond_the_longest_are_not_searched():
    longest = found(memory=Memory(), budget_bytes=1e12).longest_that_fits
    assert longest is not None
    assert 2 * 20 < longest < 100 * 20


def test_no_length_fits_for_which_the_model_has_no_position():
    few = {"max_position_embeddings": 45}
    assert found(memory=Memory(), budget_bytes=1e12, model=few).longest_that_fits == 45
    assert found(memory=Memory(), budget_bytes=1e12, model={"config": few}).longest_that_fits == 45


def test_without_a_trace_or_a_budget_what_needs_it_is_unknown():
    assert (found().typical_memory_bytes, found(budget_bytes=1e6).longest_that_fits) == (None, None)

    without_budget = found(memory=Memory())
    assert (without_budget.typical_memory_bytes, without_budget.longest_that_fits) == (1000 * SIZE * 20, None)


@pytest.mark.parametrize(
    ("compiling", "is_static"),
    [
        (CompileSettings(dynamic=False), True),
        (CompileSettings(dynamic=None), False),
        (CompileSettings(dynamic=True), False),
        (CompileSettings(enabled=False, dynamic=False), False),
    ],
)
def test_each_length_is_a_program_where_compilation_is_static(compiling, is_static):
    assert found(compile=compiling).is_static is is_static


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"compile_time_s": 12.0, "num_graphs": 6, "num_recompiles": 2}, 4.0),
        ({"compile_time_s": 12.0, "num_graphs": 2, "num_recompiles": 0}, 12.0),
        ({"compile_time_s": 12.0, "num_graphs": 2, "num_recompiles": None}, 12.0),
        ({"compile_time_s": 12.0, "num_graphs": 0, "num_recompiles": 0}, None),
        ({"compile_time_s": 0.0, "num_graphs": 2, "num_recompiles": 0}, None),
        ({"compile_time_s": 12.0, "num_graphs": None}, None),
    ],
)
def test_the_seconds_of_one_program_are_a_share_of_those_of_all(facts, seconds):
    assert found(ran=observed(SIZE, **facts)).compile_time_s == seconds


def test_other_collations_gain_the_padding_that_they_spare():
    result = found()
    sorted_by_length, packed = result.others["sorted"], result.others["packed"]

    assert set(result.others) == {"sorted", "packed"}
    assert sorted_by_length.padding_share < result.padding_share
    for other in (sorted_by_length, packed):
        assert other.predicted == pytest.approx((1 - other.padding_share) / (1 - result.padding_share))
        assert other.predicted > 1


def test_a_collation_was_timed_as_passes_and_is_told_as_speed():
    ran = observed(SIZE, details={"collations": {"sorted": 0.8}})
    others = found(ran=ran).others

    assert others["sorted"].measured == pytest.approx(1.25)
    assert others["packed"].measured is None
    emulated = observed(SIZE, details={"collations": {"sorted": 0.8}, "is_emulated": True})
    assert found(ran=emulated).others["sorted"].measured is None  # such a device has no times


def test_a_longer_pass_of_packed_rows_serves_more_samples():
    of_fives = Lengths.from_samples([5, 5, 5, 10])
    ran = observed(SIZE, details={"collations": {"packed": 1.25}})
    per_row = 4 / (1 + 3 / 2)  # a row for the 10, and for each two of the three 5

    assert found(of_fives, ran).others["packed"].measured == pytest.approx(per_row / 1.25, rel=0.02)


def test_samples_that_are_packed_already_have_no_other_collation():
    assert found(Lengths.from_samples([10, 20], collation=Collation.PACKED)).others == {}


def test_batches_of_a_number_of_tokens_have_more_rows_of_typical_samples():
    samples = Lengths.from_samples([10, 40], [7, 1], collation=Collation.TOKENS)
    result = found(samples, size=4, in_tokens=True, memory=Memory())

    assert (result.micro_batch_tokens, result.typical, result.typical_rows) == (160, 10, 16)
    assert result.typical_memory_bytes == 1000 * 160
    assert found(size=3).micro_batch_tokens is None
    assert found(size=3).typical_rows == 3
