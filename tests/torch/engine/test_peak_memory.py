"""Peaks by the allocator of torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bexplore.engine.worker.own_process import DataLimit
from bexplore.engine.worker.peak_memory import PeakMemory, highest_sum, measure_peak
from bexplore.engine.worker.session import LONG_PASS_S, MemoryStep
from bexplore.engine.worker.steps import Steps
from bexplore.job import Job, Parallelism
from bexplore.workloads import build
from tests.torch.groups import leave_group

GIB = 2**30


class AbsentGpu:
    """Statistics of an allocator that retried once before the step, and twice in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peaks = (9 * GIB, 10 * GIB)
        self.num_alloc_retries = 1
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *device: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": self.num_alloc_retries})
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peaks[0])
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.peaks[1])

    def _reset(self, device: torch.device) -> None:
        self.peaks = (0, 0)

    def step(self) -> None:
        self.peaks = (3 * GIB, 4 * GIB)
        self.num_alloc_retries += 2


def test_an_accelerator_has_a_peak_of_tensors_and_one_of_reserved_memory(monkeypatch):
    gpu = AbsentGpu(monkeypatch)
    found = measure_peak(gpu.step, torch.device("cuda", 0), alive=())
    assert found == PeakMemory(allocated_bytes=3 * GIB, reserved_bytes=4 * GIB, num_alloc_retries=2)


def test_memory_held_for_a_step_is_the_allocator_s_not_the_process_s(monkeypatch):
    gpu = AbsentGpu(monkeypatch)
    monkeypatch.setattr(MemoryStep, "_take", lambda *arguments: gpu.step() or ([], []))
    steps = SimpleNamespace(alive=lambda batch: (), attach=lambda gradients: None, bucket_bytes=0)
    limit = SimpleNamespace(resident_during=lambda step: step() or 7 * GIB)
    step = MemoryStep(steps, torch.device("cuda", 0), limit, is_training=True)
    assert step.run(None, 8, expected_pass_s=0.0).resident_bytes == 4 * GIB


def test_on_the_cpu_tensors_are_all_that_the_allocator_counts():
    found = measure_peak(lambda: torch.empty(2**20), torch.device("cpu"), alive=())
    assert found == PeakMemory(allocated_bytes=4 * 2**20)


@pytest.fixture
def rank_of_two():
    """A rank of two that share the parameters, alone in this process."""
    parallelism = Parallelism(data_parallel_shard_degree=2)
    model = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "vocab_size": 128, "max_position_embeddings": 16}
    yield build(Job(workload="decoder", model=model, sequence_length=16, parallelism=parallelism, num_replicas=2))
    leave_group()


def test_a_long_pass_of_a_rank_follows_a_pass_that_leaves_whole_gradients(rank_of_two):
    steps = Steps(rank_of_two, torch.device("cpu"))
    batches = {size: rank_of_two.make_batch(size) for size in (2, 4)}
    steps.forward_backward(batches[2])
    steps.update()  # the optimizer has its states

    def peak_after(expected_pass_s: float) -> int:
        step = MemoryStep(steps, torch.device("cpu"), DataLimit(None), is_training=True)
        for size, expected_s in ((2, 0.0), (4, expected_pass_s)):
            steps.clear_gradients()
            memory = step.run(batches[size], size, expected_pass_s=expected_s)
        return memory.peak.allocated_bytes

    assert peak_after(2 * LONG_PASS_S) == peak_after(0.0)


@pytest.mark.parametrize(
    ("events", "most"),
    [
        ([(100, 8), (100, -8), (100, 8)], 8),
        ([(100, 8), (200, 4), (200, -4)], 12),
        ([(100, 8), (100, 8)], 8),  # the end of the first was missed
        ([(100, 8), (108, 8)], 16),  # neighbours
        ([(100, 8), (108, 8), (200, 4), (104, 8)], 20),  # a block over both
        ([(100, 8), (104, 2), (104, -2), (112, 4)], 8),  # gone as soon as any byte of it is taken
    ],
)
def test_a_block_over_one_believed_alive_proves_that_its_end_was_missed(events, most):
    assert highest_sum(events, alive={}) == most


@pytest.mark.parametrize(
    ("events", "most"),
    [
        ([], 8),
        ([(100, 4), (500, -8), (200, 8)], 12),  # a block of before, which was counted, ends
        ([(500, -8), (100, 4)], 8),
        ([(600, -8), (100, 4)], 12),  # one that was not counted
        ([(500, 16)], 16),  # a block over one of before
    ],
)
def test_the_end_of_a_block_of_before_counts_only_if_the_block_was_counted(events, most):
    assert highest_sum(events, alive={500: 8}) == most


def test_what_an_earlier_step_left_takes_nothing_from_the_peak():
    left = []

    def step() -> None:
        left.clear()
        torch.empty(2**20)

    measure_peak(lambda: left.append(torch.empty(2**20)), torch.device("cpu"), alive=())
    found = measure_peak(step, torch.device("cpu"), alive=())

    assert found == PeakMemory(allocated_bytes=4 * 2**20)
