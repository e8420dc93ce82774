"""Which part of a step the kernels of an emulated device belong to."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from bexplore.command.observer.bexplore_observer import steps as steps_module
from bexplore.command.observer.bexplore_observer.kernels import RECORDED_STEP, KernelLog, split_counts


@pytest.fixture
def observer(observe, monkeypatch):
    """An observer of a process whose devices are emulated; nothing is put into a dispatcher."""
    monkeypatch.setattr(steps_module, "is_emulated", lambda: True)
    monkeypatch.setattr(KernelLog, "_enter", lambda log: None)
    monkeypatch.setattr(KernelLog, "_leave", lambda log: None)
    return observe()


def run(observer, name: str) -> None:
    """Run a kernel, which is seen while the log has entered its mode."""
    if observer.kernels._is_recording:
        observer.kernels._count({"operator": name})


def train(observer, *optimizers, num_passes: int = 1) -> None:
    """Run a step whose kernels are named by what runs them."""
    for _ in range(num_passes):
        run(observer, "forward")
        observer.before_backward()
        run(observer, "backward")
        observer.after_backward()
    for optimizer in optimizers:
        run(observer, "clip")
        observer.before_update(optimizer, (), {})
        run(observer, "update")
        observer.after_update(optimizer, (), {})


def counted(log: KernelLog, kind: Counter[int | str]) -> dict[str, int]:
    return {log.calls[place]["operator"]: number for place, number in split_counts(kind)[0]}


def test_passes_have_forward_and_backward_and_updates_all_that_follows_them(observer, optimizer, read_record):
    own = optimizer()
    for _ in range(RECORDED_STEP + 3):
        train(observer, own, num_passes=2)
    observer.record_end()

    assert counted(observer.kernels, observer.kernels.recorded[0].passes) == {"forward": 2, "backward": 2}
    assert counted(observer.kernels, observer.kernels.recorded[0].updates) == {"clip": 1, "update": 1}
    assert read_record()["kernels"]["num_passes"] == 2


def test_of_several_optimizers_each_update_counts_once(observer, optimizer):
    critic, actor = optimizer(64), optimizer(8)
    for _ in range(RECORDED_STEP + 3):
        train(observer, critic)
        train(observer, actor)

    assert counted(observer.kernels, observer.kernels.recorded[0].passes) == {"forward": 2, "backward": 2}
    assert counted(observer.kernels, observer.kernels.recorded[0].updates) == {"clip": 2, "update": 2}


@pytest.mark.parametrize("rows", [(8, 8, 8, 8, 8), (8, 8, 8, 3, 8), (8, 8, 8, 8, 3), (8, 3, 8, 3, 8)])
def test_the_kernels_are_those_of_full_batches(observer, optimizer, read_record, rows):
    own = optimizer()
    for number in (*rows, 8, 8):
        if observer.kernels._is_recording:
            observer.kernels._count({"operator": f"of {number}", "bytes": 100 * number})
        observer.models.samples.append((0, number))
        train(observer, own)
    observer.record_end()

    kernels = read_record()["kernels"]
    assert "of 8" in {kernels["calls"][place]["operator"] for place, _ in kernels["passes"]}


@pytest.mark.parametrize("evaluated", [(), (0,), (1,), (0, 1)])
def test_the_kernels_of_an_evaluation_are_left_out(observer, evaluated):
    log = observer.kernels
    log.at_step(RECORDED_STEP, 0)
    for place in range(2):
        log.num_without_gradients = 1
        for operator in ("teacher", *(["evaluation"] * 9 if place in evaluated else [])):
            log._count({"operator": operator})
        log.num_without_gradients = 0
        log._count({"operator": "forward"})
        log.turn_to(log.passes)
        log.at_step(RECORDED_STEP + place + 1, place + 1)

    described = log.describe(are_batches_equal=False, with_evaluation=[RECORDED_STEP + place for place in evaluated])

    passes = {log.calls[place]["operator"]: number for place, number in described["passes"]}
    assert passes == {"forward": 1} | ({} if len(evaluated) == 2 else {"teacher": 1})


def test_a_graph_adds_what_was_seen_at_its_capture_each_time_that_it_is_replayed(observer):
    class Graph:
        def capture_begin(self) -> None: ...

        def capture_end(self) -> None: ...

        def replay(self) -> str:
            return "replayed"

    log = observer.kernels
    log._torch = SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=Graph))
    log.attach()
    graph = Graph()
    graph.capture_begin()
    log._sink["operator"] += 1  # of the host, at the capture alone
    log._count({"operator": "captured"})
    graph.capture_end()
    log.at_step(RECORDED_STEP, 0)
    assert [graph.replay() for _ in range(3)] == ["replayed"] * 3
    log.at_step(RECORDED_STEP + 1, 1)
    graph.replay()

    (step,) = log.recorded
    assert counted(log, step.passes) == {"captured": 3}
    assert split_counts(step.passes)[1] == {"recorded_graph": 3, "recorded_kernel": 3}


def test_without_an_emulated_device_nothing_is_recorded(observe, optimizer, read_record):
    observer = observe()
    assert observer.kernels is None
    observer.before_backward()
    observer.after_backward()
    observer.record_end()
    assert read_record()["kernels"] is None
