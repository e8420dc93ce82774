"""Kernels that the observer of a training sees, and those that the trace of the same program has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import nn

from bexplore.command.observer.bexplore_observer.kernels import (
    RECORDED_STEP,
    KernelLog,
    RecordedStep,
    describe_launch,
    describe_own_launch,
    split_counts,
)
from bexplore.estimate.kernels import Kernel, MatrixProduct, Stream
from bexplore.job import CompileSettings, Job
from bexplore.trace.recorded import find_recorded_kernels
from bexplore.trace.tracer import trace_job
from bexplore.workloads import build
from tests.builders import JOBS

SIZE = 3


def fail(where: str, error: object) -> None:
    raise AssertionError(f"{where}: {error!r}")


def by_bytes(calls: Mapping[Kernel, float]) -> dict[Kernel, float]:
    """Return kernels of which a device other than a processor needs to know: of those that stream, the bytes alone."""
    found: dict[Kernel, float] = {}
    for kernel, number in calls.items():
        own = Stream(num_bytes=kernel.num_bytes) if isinstance(kernel, Stream) else kernel
        found[own] = found.get(own, 0.0) + number
    return found


def kernels_of(log: KernelLog, counted: Iterable[tuple[int, int]]) -> dict[Kernel, float]:
    found: dict[Kernel, float] = {}
    for place, number in counted:
        for traced in find_recorded_kernels(log.calls[place]):
            kernel = traced.at(1)
            found[kernel] = found.get(kernel, 0.0) + number
    return by_bytes(found)


def end_step(log: KernelLog) -> RecordedStep:
    """End the step that is recorded, and look no further; return it."""
    log.at_step(RECORDED_STEP + 1, 1)
    (step,) = log.recorded
    log.reset()
    return step


@pytest.mark.parametrize("job", ["decoder", "images"])
def test_a_training_was_seen_to_run_the_kernels_that_the_trace_of_its_job_has(job):
    paths = {"model": "traced_programs:Convolutional", "batch": "traced_programs:images"}
    model = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "vocab_size": 512, "max_position_embeddings": 32}
    eager = CompileSettings(enabled=False)
    jobs = {
        "decoder": Job(workload="decoder", model=model, compile=eager, sequence_length=32),
        "images": Job(workload="imported", model=paths, import_root=str(JOBS), compile=eager),
    }
    workload = build(jobs[job])
    batch = workload.make_batch(SIZE)
    workload.forward_backward(batch)  # gradients exist then, as in the trace
    log = KernelLog(torch, fail, device="cpu")

    log.at_step(RECORDED_STEP, 1)
    workload.forward_backward(batch)
    log.at_step(RECORDED_STEP + 1, 2)

    recorded = log.describe(are_batches_equal=True)
    log.reset()
    assert recorded is not None and recorded["num_passes"] == 1 and recorded["updates"] == []
    traced = trace_job(jobs[job])
    assert kernels_of(log, recorded["passes"]) == by_bytes(traced.kernel_calls(SIZE))
    assert recorded["pass_dispatches"] == {kind.value: number for kind, number in traced.dispatches.items()}


def test_an_update_is_told_apart_and_counts_what_it_writes_in_place():
    log, weights = KernelLog(torch, fail, device="cpu"), [torch.ones(1000), torch.ones(500)]
    log.at_step(RECORDED_STEP, 0)
    torch.relu(weights[0])
    log.turn_to(log.passes)
    log.set_updating(True)
    torch._foreach_add_(weights, 1.0)
    log.set_updating(False)
    log.at_step(RECORDED_STEP + 1, 1)
    torch.relu(weights[1])  # of the next one
    step = log.recorded[0]
    log.reset()

    assert kernels_of(log, split_counts(step.passes)[0]) == {Stream(num_bytes=8000): 1.0}
    assert kernels_of(log, split_counts(step.updates)[0]) == {Stream(num_bytes=12000): 1.0}


def test_two_steps_after_the_first_ones_are_recorded_and_the_larger_is_told_where_batches_differ():
    log, rows = KernelLog(torch, fail, device="cpu"), 4
    for number in range(1, 9):
        log.at_step(number, 2 * number)
        rows = 4 if number == RECORDED_STEP else 64
        torch.ones(rows) @ torch.ones(rows)
        log.turn_to(log.passes)

    assert len(log.recorded) == 2
    for are_equal, told in ((True, 4), (False, 64)):
        recorded = log.describe(are_batches_equal=are_equal)
        assert recorded is not None and recorded["num_passes"] == 2
        assert sum(number for _, number in recorded["passes"]) == 3  # two tensors and their product
        assert {log.calls[place]["bytes"] for place, _ in recorded["passes"]} == {4 * told, 4 * (2 * told + 1)}
    torch.ones(1000)
    assert max(call["bytes"] for call in log.calls) < 4000  # nothing is looked at any more


def test_a_log_that_is_reset_amid_a_step_looks_no_further():
    log = KernelLog(torch, fail, device="cpu")
    log.at_step(RECORDED_STEP, 0)

    log.reset()
    torch.ones(4)

    assert log.calls == []


def test_a_compiled_program_runs_under_the_log_and_its_own_kernels_are_left_to_their_launches():
    linear = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    log = KernelLog(torch, fail, device="cpu")
    log.at_step(RECORDED_STEP, 0)
    linear(torch.ones(3, 8)).sum().backward()
    log.turn_to(log.passes)
    step = end_step(log)

    products = {one for one in kernels_of(log, split_counts(step.passes)[0]) if isinstance(one, MatrixProduct)}
    assert MatrixProduct(rows=3, columns=8, inner=8, itemsize=4) in products


def test_a_compiled_graph_and_its_products_are_calls_of_the_host():
    linear = torch.compile(nn.Linear(8, 8))
    linear(torch.ones(3, 8))
    log = KernelLog(torch, fail, device="cpu")
    log.at_step(RECORDED_STEP, 0)
    with torch.no_grad():
        linear(torch.ones(3, 8))
    log.turn_to(log.passes)
    assert split_counts(end_step(log).passes)[1]["graph"] == 1


def test_a_launch_moves_what_its_arguments_have_and_no_more_than_its_elements():
    class Launched:
        class fn:
            arg_names = ("in_ptr0", "in_ptr1", "in_out_ptr0", "xnumel", "XBLOCK")

    weights, indices, result = torch.ones(1000, 8), torch.ones(4, dtype=torch.int64), torch.ones(4, 8)
    call = describe_launch(torch, Launched, (weights, indices, result, 32), {})

    (kernel,) = (traced.at(1) for traced in find_recorded_kernels(call))
    assert by_bytes({kernel: 1.0}) == {Stream(num_bytes=4 * 32 + 8 * 4 + 2 * 4 * 32): 1.0}
    own = describe_own_launch(torch, Launched, (weights, result), {"grid": (1,), "scale": indices})
    assert own["bytes"] == 4 * (8000 + 32) + 8 * 4


def test_a_compiled_kernel_that_is_a_product_counts_as_one():
    class Launched:
        class fn:
            arg_names = ("arg_A", "arg_B", "out_ptr0")

    left, right = torch.ones(64, 32), torch.ones(32, 16)
    call = describe_launch(torch, Launched, (left, right, torch.ones(64, 16)), {})

    assert find_recorded_kernels(call)[0].at(1) == MatrixProduct(rows=64, columns=16, inner=32, itemsize=4)
