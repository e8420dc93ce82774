"""The memory of a step, and the device of a rank."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest

from bexplore.command.observer.bexplore_observer import memory
from bexplore.command.observer.bexplore_observer.memory import (
    Device,
    HostMemoryLimit,
    MemoryStep,
    read_status_bytes,
)


class Cuda(SimpleNamespace):
    """Two devices, the second with the tensors."""

    def __init__(self) -> None:
        super().__init__(limits=[], resets=[])

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def memory_allocated(self, index: int) -> int:
        return (10, 90)[index]

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=1000)

    def set_per_process_memory_fraction(self, share: float, index: int) -> None:
        self.limits.append((share, index))

    def synchronize(self, index: int) -> None:
        pass

    def reset_peak_memory_stats(self, index: int) -> None:
        self.resets.append(index)

    def memory_stats(self, index: int) -> dict[str, int]:
        return {"num_ooms": 2, "num_alloc_retries": 1}

    def max_memory_allocated(self, index: int) -> int:
        return 400

    def max_memory_reserved(self, index: int) -> int:
        return 500


@pytest.fixture
def with_cuda(fake_torch):
    fake_torch.cuda = Cuda()
    return fake_torch


def test_the_device_is_that_with_the_most_tensors_and_gets_the_limit(with_cuda):
    device = Device(with_cuda)

    device.begin(limit_bytes=250)

    assert device.is_used and device.find_index() == 1
    assert with_cuda.cuda.limits == [(0.25, 1)]
    assert device.read_memory()["reserved_peak_bytes"] == 500


def test_without_a_device_nothing_is_limited(fake_torch):
    device = Device(fake_torch)
    device.begin(limit_bytes=250)
    assert not device.is_used


class Event:
    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


def test_steps_get_the_times_of_the_device(with_cuda):
    steps = [{"ended_s": 7.0, "update_s": 7.0} for _ in range(3)]
    marks = [[("begins", Event(0)), ("ends", Event(10))], [("begins", Event(100)), ("ends", Event(130))], []]

    Device(with_cuda).read_times(steps, marks)

    assert steps == [
        {"ended_s": 0.01, "update_s": 0.01},
        {"ended_s": 0.13, "update_s": 0.03},
        {"ended_s": 7.0, "update_s": 7.0},
    ]


def test_the_peak_of_a_profiled_step_is_beside_what_was_held_before(fake_torch, monkeypatch):
    class Profile:
        def __init__(self, **_options: object) -> None:
            changes = [(1, 100), (2, 50), (3, -120), (4, 60)]
            events = [
                SimpleNamespace(name=lambda: "[memory]", start_ns=lambda at=at: at, nbytes=lambda size=size: size)
                for at, size in changes
            ]
            self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: reversed(events)))

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_error: object) -> None:
            pass

    fake_torch.profiler = SimpleNamespace(profile=Profile, ProfilerActivity=SimpleNamespace(CPU="cpu"))
    notes: list = []
    memory = MemoryStep(fake_torch, Device(fake_torch), lambda *note: notes.append(note))

    memory.begin(profiles=True)
    memory.end()

    assert memory.measured["peak_bytes"] == memory.measured["live_bytes"] + 150
    assert [place for place, _ in notes if place == "profile"] == []


def test_refusals_before_the_step_are_kept_where_there_is_a_device(with_cuda):
    memory = MemoryStep(with_cuda, Device(with_cuda), lambda *note: None)

    memory.begin(profiles=True)
    memory.end()

    assert memory.measured["num_ooms_before"] == 2 and with_cuda.cuda.resets == [1]


def test_the_kernel_tells_the_memory_of_this_process():
    assert (read_status_bytes("VmRSS") or 1) > 0
    assert read_status_bytes("VmNothing") is None


@pytest.mark.parametrize("is_emulated", [False, True])
def test_a_budget_limits_what_the_host_takes_beyond_torch_until_a_probe_has_ended(fake_torch, monkeypatch, is_emulated):
    found: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: found.append(limit[0]))
    monkeypatch.setattr(memory, "is_emulated", lambda: is_emulated)
    monkeypatch.setattr(memory, "read_status_bytes", lambda key: {"VmData": 1000}[key])
    fake_torch.backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: False))

    limit = HostMemoryLimit(fake_torch)
    for settings in ({"memory_limit_bytes": 250}, {}):
        limit.apply(settings)
        limit.lift(settings)

    assert found == ([] if is_emulated else [1250, resource.RLIM_INFINITY])


class GreedyProfiler:
    """Takes memory where it ends, as the real one does for each operator that it has recorded."""

    def __init__(self, num_bytes: int, *, is_kept: bool) -> None:
        self.num_bytes, self.is_kept = num_bytes, is_kept
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=list))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        taken = bytearray(self.num_bytes)
        if self.is_kept:
            LEFT.append(taken)


LEFT: list[bytearray] = []


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_the_profiler_takes_is_no_memory_of_the_training(fake_torch, is_kept):
    greedy = GreedyProfiler(512 * 2**20, is_kept=is_kept)
    fake_torch.profiler = SimpleNamespace(
        profile=lambda **_options: greedy, ProfilerActivity=SimpleNamespace(CPU="cpu")
    )
    fake_torch.autograd._profiler_enabled = lambda: False
    step = MemoryStep(fake_torch, Device(fake_torch), lambda *_: None)
    step.begin(profiles=True)
    held = bytearray(64 * 2**20)
    before = read_status_bytes("VmRSS")

    step.end()
    later = bytearray(128 * 2**20)

    peak = step.read_resident_peak()
    LEFT.clear()
    assert abs(peak - before - len(later)) < 32 * 2**20 and held
