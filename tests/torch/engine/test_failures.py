"""How a failure is read: texts and their outcomes, a device that an error has broken, a compiler without memory."""

from __future__ import annotations

import dataclasses

import torch

from bexplore.engine.protocol.failures import classify_exception
from bexplore.engine.protocol.messages import CheckEagerly, SharedMode
from bexplore.engine.worker.context import ALONE
from bexplore.engine.worker.server import Server
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Outcome, Probe
from tests.builders import imported_job

MEMORY, CRASH = Outcome.OUT_OF_MEMORY, Outcome.CRASHED


class CompilerError(RuntimeError):
    """Stands for one of Inductor's, which keep what they met."""

    __module__ = "torch._inductor.exc"

    def __init__(self, inner: Exception) -> None:
        super().__init__(str(inner))
        self.inner_exception = inner


def test_types_count_whatever_they_say_texts_only_in_runtime_errors():
    assert classify_exception(torch.OutOfMemoryError("no")).outcome is MEMORY
    assert (classify_exception(MemoryError()).outcome, classify_exception(MemoryError()).is_clean) == (MEMORY, False)
    assert classify_exception(torch.AcceleratorError("CUDA error: invalid argument")).is_sticky
    assert not classify_exception(torch.AcceleratorError("CUDA error: out of memory")).is_sticky
    assert classify_exception(ValueError("CUDA out of memory")).outcome is CRASH
    assert not classify_exception(ValueError("device-side assert triggered")).is_sticky


def test_lack_of_memory_is_seen_through_the_compiler_s_own_exception():
    memory = classify_exception(CompilerError(RuntimeError("CUDA out of memory. Tried to allocate 797.00 GiB.")))
    broken = classify_exception(CompilerError(RuntimeError("CUDA error: misaligned address")))

    assert (memory.outcome, memory.is_clean, memory.is_in_compiler) == (MEMORY, False, True)
    assert (broken.outcome, broken.is_sticky, broken.is_in_compiler) == (Outcome.COMPILE_FAILED, True, True)


def job(model: str, backend: str):
    made = imported_job(compile=CompileSettings(backend=backend))
    return dataclasses.replace(made, model=made.model | {"model": f"bugs:{model}"})


def probe(size: int = 4, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=size, max_passes=2, **fields)


def test_the_eager_check_waits_for_the_device_whose_errors_come_late(monkeypatch):
    def synchronize(device):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("bexplore.engine.worker.probing.synchronize", synchronize)
    request = CheckEagerly(job=imported_job(), probe=probe(2), shared_mode=SharedMode.UNBACKED)

    answer = Server(lambda **report: None, ALONE).answer(request)

    assert answer.outcome is Outcome.CRASHED and answer.is_sticky
