"""The trace under an activation memory budget: what a truncated model keeps stands for what the whole one keeps."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from bexplore.host.records import from_record, to_record
from bexplore.job import Job
from bexplore.trace.activation_budget import shorten
from bexplore.trace.cost_model import CostModel
from bexplore.trace.tracer import trace_job

# Both solutions keep the same bytes; the peak may lie elsewhere where kept tensors alternate from block to block.
TOLERANCE = 0.02
SIZE = 16
WEIGHTS = [10, 15, 30]  # bytes of the items that kinds a, c and b keep


@functools.cache
def traced(budget: float, *, full_depth: bool = False) -> CostModel:
    job = Job(
        workload="decoder",
        model={"vocab_size": 64, "hidden_size": 64, "num_heads": 4, "max_position_embeddings": 64, "num_layers": 8},
        data={"sequence_length": 64},
        sequence_length=64,
        activation_memory_budget=budget,
    )
    return trace_job(job, full_depth=full_depth)


def test_a_truncated_model_has_the_memory_and_operations_of_the_whole_one():
    model, whole = traced(0.5), traced(0.5, full_depth=True)

    assert model.peak_memory_bytes(SIZE) == pytest.approx(whole.peak_memory_bytes(SIZE), rel=TOLERANCE)
    assert model.hardware_flops(SIZE) == pytest.approx(whole.hardware_flops(SIZE), rel=TOLERANCE)
    assert model.model_flops(SIZE) == pytest.approx(whole.model_flops(SIZE))


def test_a_budget_trades_memory_for_operations():
    usual, lean = traced(1.0), traced(0.5)

    assert lean.peak_memory_bytes(SIZE) < usual.peak_memory_bytes(SIZE)
    assert lean.hardware_flops(SIZE) > usual.hardware_flops(SIZE)
    assert lean.model_flops(SIZE) == pytest.approx(usual.model_flops(SIZE))


def test_small_sizes_have_a_trace_of_their_own_under_a_budget():
    usual, lean = traced(1.0), traced(0.5)

    assert usual.small is None
    assert lean.small is not None
    assert lean.peak_memory_bytes(lean.largest_small) == lean.small.peak_memory_bytes(lean.largest_small)
    beyond = dataclasses.replace(lean, small=None)
    assert lean.peak_memory_bytes(lean.largest_small + 1) == beyond.peak_memory_bytes(lean.largest_small + 1)
    assert from_record(CostModel, to_record(lean)) == lean


@pytest.mark.parametrize(
    ("kinds", "runs"),
    [
        ("aaaaa", [("a", 3.0), ("a", 1.0), ("a", 1.0)]),
        ("aabbb", [("a", 2.0), ("b", 2.0), ("b", 1.0)]),
        ("abbbccc", [("a", 1.0), ("b", 3.0), ("c", 3.0)]),
        ("aacbbb", [("a", 2.0), ("c", 1.0), ("b", 3.0)]),
    ],
)
def test_blocks_in_a_row_that_keep_the_same_become_one(kinds, runs):
    assert [(_name(kind), times) for kind, times in shorten([_kind(one) for one in kinds], WEIGHTS, 3)] == runs


def test_a_run_without_room_keeps_its_bytes_in_its_neighbours():
    runs = shorten([_kind(one) for one in "aacbbb"], WEIGHTS, 2)

    assert sum(times for _, times in runs) == 6
    assert sum(times * _bytes(kind) for kind, times in runs) == 2 * 10 + 1 * 15 + 3 * 30


def _kind(name):
    return frozenset({"acb".index(name)})


def _name(kind):
    return "acb"[next(iter(kind))]


def _bytes(kind):
    return sum(WEIGHTS[place] for place in kind)
