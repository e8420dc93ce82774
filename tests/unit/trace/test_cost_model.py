"""What a cost model tells of every size."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.host.records import from_record, to_record
from bexplore.job.lengths import Collation, Lengths
from bexplore.trace.cost_model import (
    Buffer,
    CostModel,
    Event,
    MemoryByLength,
    Peak,
    Phase,
    Place,
    Polynomial,
    find_peaks,
    traced_lengths,
)
from tests.builders import cost_model

sizes = st.integers(0, 10**9)


def small_model() -> CostModel:
    """1,000 bytes of weights, 10 a sample at the end of the forward pass, and 400 bytes of new gradients."""
    resident = (Buffer(label="weights", size=Polynomial(1000)),)
    forward = [Event(Polynomial(0, 10), Place("model.py:1 mm"))]
    backward = [Event(Polynomial(0, -10), Place("model.py:1 mm")), Event(Polynomial(400), Place("new gradients"))]
    peaks = {
        Phase.FORWARD: find_peaks(resident, forward),
        Phase.BACKWARD: find_peaks(resident, backward, past=forward),
    }
    return cost_model(resident=resident, peaks=peaks, notes=("a note",))


def test_the_peak_moves_to_another_place_of_the_step_where_the_size_grows():
    model = small_model()
    assert model.peak_memory_bytes(1) == 1400
    assert model.largest_buffers(1)[:2] == [("weights", 1000), ("new gradients", 400)]
    assert model.peak_memory_bytes(100) == 2000
    assert model.largest_buffers(100)[:2] == [("weights", 1000), ("model.py:1 mm", 1000)]


def test_the_largest_size_that_fits_is_the_last_below_the_budget():
    model = small_model()
    assert model.max_micro_batch_size(2000) == 100
    assert model.max_micro_batch_size(1999) == 99
    assert model.max_micro_batch_size(1399) == 0
    assert model.max_micro_batch_size(10**9, limit=64) == 64


def test_a_cost_model_survives_json():
    model = small_model()
    assert from_record(CostModel, json.loads(json.dumps(to_record(model)))) == model


@given(st.lists(st.tuples(sizes, sizes, st.booleans()), min_size=1, max_size=30), st.integers(1, 10_000))
def test_the_peaks_are_the_maximum_over_all_moments(deltas, micro_batch_size):
    resident = [Buffer(label="weights", size=Polynomial(7))]
    events = [
        Event(Polynomial(-constant if ends else constant, linear if ends else -linear), Place("x"))
        for constant, linear, ends in deltas
    ]
    running = highest = 7
    for event in events:
        running += event.size(micro_batch_size)
        highest = max(highest, running)
    assert max(peak.size(micro_batch_size) for peak in find_peaks(resident, events)) == highest


def test_a_multiple_of_the_prime_is_one_of_the_samples():
    assert Polynomial.from_value(1000, 61) == Polynomial(1000)
    assert Polynomial.from_value(1000 * 61, 61) == Polynomial(0, 1000)
    assert Polynomial.from_value(3 * 61 * 61, 61) == Polynomial(0, 0, 3)


# Memory between traced lengths: exact at them, quadratic in between.
WEIGHTS, ATTENTION = 100_000, 3


def model_at(length: int) -> CostModel:
    """A program whose activations grow with the square of the length, and whose update is alike for all."""
    forward = Polynomial(WEIGHTS, 40 * length + ATTENTION * length**2)
    backward = Polynomial(WEIGHTS + 500 * length, 40 * length)
    sizes = {Phase.FORWARD: forward, Phase.BACKWARD: backward, Phase.UPDATE: Polynomial(2 * WEIGHTS)}
    return cost_model(peaks={phase: (Peak(size=size, buffers=()),) for phase, size in sizes.items()})


def memory(*lengths: int) -> MemoryByLength:
    samples = Lengths.from_samples([lengths[-1], lengths[0]])
    return MemoryByLength(models={length: model_at(length) for length in lengths}, lengths=samples)


MEMORY = memory(512, 256, 128)


@pytest.mark.parametrize(
    ("samples", "multiple_of", "traced"),
    [
        ([10, 512], 1, (512, 256, 128)),
        ([510], 1, (510, 255, 128)),
        ([100], 64, (128, 64)),
        ([100], 32, (128, 64, 32)),
        ([12], 1, (12,)),
        ([5], 1, (5,)),
    ],
)
def test_a_job_is_traced_at_its_longest_length_and_parts_of_it(samples, multiple_of, traced):
    assert traced_lengths(Lengths.from_samples(samples, multiple_of=multiple_of)) == traced


@pytest.mark.parametrize("size", [1, 3, 64])
@pytest.mark.parametrize("length", [128, 256, 512])
def test_the_peak_at_a_traced_length_is_that_of_its_trace(size, length):
    assert MEMORY.peak_memory_bytes(size, length) == model_at(length).peak_memory_bytes(size)


@pytest.mark.parametrize("size", [1, 3, 64])
@pytest.mark.parametrize("length", [1, 100, 129, 200, 400, 511, 2000])
def test_the_peak_at_another_length_is_that_of_a_program_quadratic_in_it(size, length):
    assert MEMORY.peak_memory_bytes(size, length) == model_at(length).peak_memory_bytes(size)


def test_two_traced_lengths_make_a_line():
    two = memory(128, 64)
    assert two.peak_memory_bytes(8, 96) == pytest.approx(
        (two.peak_memory_bytes(8, 64) + two.peak_memory_bytes(8, 128)) / 2, abs=1
    )


def test_the_highest_phase_may_be_another_at_another_length():
    short, long = (model_at(length).peak_at(1)[0] for length in (128, 512))

    assert (short, long) == (Phase.UPDATE, Phase.FORWARD)
    assert MEMORY.peak_memory_bytes(1, 64) == 2 * WEIGHTS


@pytest.mark.parametrize("size", [1, 2, 16])
def test_the_longest_length_that_fits_is_the_last_within_the_budget(size):
    budget = MEMORY.peak_memory_bytes(size, 300)
    longest = MEMORY.longest_that_fits(size, budget, limit=4096)

    assert longest == 300
    assert MEMORY.peak_memory_bytes(size, longest + 1) > budget


def test_a_length_beyond_the_traced_ones_may_fit():
    assert MEMORY.longest_that_fits(1, model_at(3000).peak_memory_bytes(1), limit=4096) == 3000


def test_no_length_fits_below_the_weights_or_above_the_limit():
    assert MEMORY.longest_that_fits(1, WEIGHTS, limit=4096) == 0
    assert MEMORY.longest_that_fits(1, 10**12, limit=600) == 600


def test_larger_budgets_fit_longer_samples_and_larger_sizes_shorter_ones():
    by_budget = [MEMORY.longest_that_fits(4, budget, limit=4096) for budget in range(300_000, 6_000_000, 300_000)]
    by_size = [MEMORY.longest_that_fits(size, 2_000_000, limit=4096) for size in (1, 2, 4, 8, 16)]

    assert by_budget == sorted(set(by_budget))
    assert by_size == sorted(set(by_size), reverse=True)


PICTURE = 50_000  # bytes of a sample whatever its length
TOKENS = Lengths.from_samples([8, 16, 512], [0.5, 0.25, 0.25], collation=Collation.TOKENS)


def with_pictures() -> CostModel:
    models = {
        length: cost_model(Polynomial(WEIGHTS, PICTURE + 40 * length + length**2), fingerprint=f"{length:016}")
        for length in traced_lengths(TOKENS)
    }
    return dataclasses.replace(models[512], by_length=MemoryByLength(models=models, lengths=TOKENS))


def test_a_number_of_tokens_is_traced_at_its_shortest_too():
    assert traced_lengths(TOKENS) == (512, 256, 128, 32, 8)
    assert traced_lengths(dataclasses.replace(TOKENS, multiple_of=64)) == (512, 256, 128, 64)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_peak_of_a_number_of_tokens_is_that_of_its_worst_batch(size):
    model = with_pictures()

    assert model.by_length.worst_batch(size) == (size * 64, 8)
    assert model.peak_memory_bytes(size) == WEIGHTS + size * 64 * (PICTURE + 40 * 8 + 64)


def test_the_largest_number_of_tokens_that_fits_is_judged_by_the_worst_batch():
    model = with_pictures()
    assert model.max_micro_batch_size(model.peak_memory_bytes(5)) == 5


def test_a_longer_sample_of_a_number_of_tokens_is_in_fewer_rows():
    model = with_pictures()
    budget = WEIGHTS + PICTURE + 40 * 2000 + 2000**2
    assert model.by_length.longest_that_fits(4, budget, limit=8192) == 2000
    assert model.by_length.longest_that_fits(4, WEIGHTS, limit=8192) == 0


def test_traces_at_several_lengths_survive_json():
    model = with_pictures()
    assert from_record(CostModel, json.loads(json.dumps(to_record(model)))) == model


def test_polynomials_multiply():
    assert Polynomial(1, 2) * Polynomial(3, 4) == Polynomial(3, 10, 8)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 1000))
def test_a_polynomial_is_found_from_its_values(constant, linear, quadratic):
    expected = Polynomial(constant, linear, quadratic)
    found = Polynomial.interpolate(lambda size: int(expected(size)), 61)
    assert found(997) == pytest.approx(expected(997), rel=1e-12)
