from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bexplore.host.records import from_record, to_record
from bexplore.trace.cost_model import CostModel
from bexplore.trace.polynomial import Polynomial
from bexplore.trace.timeline import Buffer, Event, Phase, Place, find_peaks

sizes = st.integers(0, 10**9)


def cost_model(**fields) -> CostModel:
    """1,000 bytes of weights, 10 a sample at the end of the forward pass, and 400 bytes of new gradients."""
    resident = (Buffer(label="weights", size=Polynomial(1000)),)
    forward = [Event(Polynomial(0, 10), Place("model.py:1 mm"))]
    backward = [Event(Polynomial(0, -10), Place("model.py:1 mm")), Event(Polynomial(400), Place("new gradients"))]
    facts = {
        "fingerprint": "0123456789abcdef",
        "num_parameters": 250,
        "model_flops": Polynomial(0, 6),
        "hardware_flops": Polynomial(0, 8),
        "bytes_moved": Polynomial(5, 3),
        "resident": resident,
        "peaks": {
            Phase.FORWARD: find_peaks(resident, forward),
            Phase.BACKWARD: find_peaks(resident, backward, past=forward),
        },
        "relative_sd": 0.01,
        "trace_s": 1.5,
        "device": "cpu",
        "compiler": "torch 2.13.0",
        "notes": ("a note",),
    }
    return CostModel(**(facts | fields))


def test_the_peak_moves_to_another_place_of_the_step_where_the_size_grows():
    model = cost_model()
    assert model.peak_memory_bytes(1) == 1400
    assert model.largest_buffers(1)[:2] == [("weights", 1000), ("new gradients", 400)]
    assert model.peak_memory_bytes(100) == 2000
    assert model.largest_buffers(100)[:2] == [("weights", 1000), ("model.py:1 mm", 1000)]


def test_the_largest_size_that_fits_is_the_last_below_the_budget():
    model = cost_model()
    assert model.max_micro_batch_size(2000) == 100
    assert model.max_micro_batch_size(1999) == 99
    assert model.max_micro_batch_size(1399) == 0
    assert model.max_micro_batch_size(10**9, limit=64) == 64


def test_a_cost_model_survives_json():
    model = cost_model()
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


def test_a_size_is_taken_for_a_multiple_of_the_samples_where_it_is_one_of_the_prime():
    assert Polynomial.of_value(1000, 61) == Polynomial(1000)
    assert Polynomial.of_value(1000 * 61, 61) == Polynomial(0, 1000)
    assert Polynomial.of_value(3 * 61 * 61, 61) == Polynomial(0, 0, 3)
