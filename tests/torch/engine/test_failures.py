"""How a failure is read: texts and their outcomes, a device that an error has broken, a compiler without memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bexplore.engine.protocol.failures import classify_exception
from bexplore.engine.worker import __main__ as worker
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import imported_job

MEMORY, CRASH = Outcome.OUT_OF_MEMORY, Outcome.CRASHED


class CompilerError(RuntimeError):
    """Stands for one of Inductor's, which keep what they met."""

    __module__ = "torch._inductor.exc"

    def __init__(self, inner: Exception) -> None:
        super().__init__(str(inner))
        self.inner_exception = inner


# Text -> outcome, whether the process may go on, whether the device may be broken.
CERTAIN = [
    ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", MEMORY, True, False),
    ("HIP out of memory. Tried to allocate", MEMORY, True, False),
    ("XPU out of memory. Tried to allocate", MEMORY, True, False),
    ("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried", MEMORY, True, False),
    ("MPS backend out of memory (MPS allocated", MEMORY, False, False),
    ("CUDA error: out of memory\nCUDA kernel errors might be", MEMORY, False, False),
    ("HIP error: out of memory", MEMORY, False, False),
    ("CUDA driver error: out of memory", MEMORY, False, False),
    ("Triton Error [CUDA]: out of memory", MEMORY, False, False),
    ("Triton Error [HIP]: out of memory", MEMORY, False, False),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", MEMORY, False, False),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", MEMORY, False, False),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", MEMORY, False, False),
    ("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling", MEMORY, False, False),
    ("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'", MEMORY, False, False),
    ("NCCL error: unhandled cuda error\nCuda failure 'out of memory'", MEMORY, False, False),
    ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", MEMORY, False, False),
    ("could not create a primitive", MEMORY, False, False),
    ("std::bad_alloc", MEMORY, False, False),
    ("CUDA error: an illegal memory access was encountered\nSearch for", CRASH, False, True),
    ("CUDA error: device-side assert triggered", CRASH, False, True),
    ("CUDA error: unspecified launch failure", CRASH, False, True),
    ("CUDA error: misaligned address", CRASH, False, True),
    ("CUDA error: uncorrectable ECC error encountered", CRASH, False, True),
    ("CUDA error: uncorrectable NVLink error detected during the execution", CRASH, False, True),
    ("CUDA error: an illegal instruction was encountered", CRASH, False, True),
    ("CUDA error: the launch timed out and was terminated", CRASH, False, True),
    ("Triton Error [CUDA]: an illegal memory access was encountered", CRASH, False, True),
    ("HIP error: unspecified launch failure", CRASH, False, True),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", CRASH, False, True),
    ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", CRASH, False, True),
    ("mat1 and mat2 shapes cannot be multiplied", CRASH, False, False),
    ("my table ran out of memory slots", CRASH, False, False),
]
# Text -> whether the device may be broken where its memory was not short.
AMBIGUOUS = [
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", False),
    ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", False),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", True),
    ("GET was unable to find an engine to execute this computation", False),
    ("FIND was unable to find an engine to execute this computation", False),
    ("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling", False),
    ("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", False),
]


@pytest.mark.parametrize(("text", "outcome", "is_clean", "is_sticky"), CERTAIN)
def test_a_text_has_its_outcome(text, outcome, is_clean, is_sticky):
    failure = classify_exception(RuntimeError(text))

    assert (failure.outcome, failure.is_clean, failure.is_sticky) == (outcome, is_clean, is_sticky), failure.reason


@pytest.mark.parametrize(("text", "is_sticky"), AMBIGUOUS)
def test_an_ambiguous_text_lacks_memory_only_where_the_device_was_full(text, is_sticky):
    full = classify_exception(RuntimeError(text), device_is_full=lambda: True)
    empty = classify_exception(RuntimeError(text), device_is_full=lambda: False)

    assert (full.outcome, full.is_clean, full.is_sticky) == (MEMORY, False, False)
    assert (empty.outcome, empty.is_sticky) == (CRASH, is_sticky)


def test_types_count_whatever_they_say_and_texts_only_in_errors_of_the_run_time():
    assert classify_exception(torch.OutOfMemoryError("no")).outcome is MEMORY
    assert (classify_exception(MemoryError()).outcome, classify_exception(MemoryError()).is_clean) == (MEMORY, False)
    assert classify_exception(torch.AcceleratorError("CUDA error: invalid argument")).is_sticky
    assert not classify_exception(torch.AcceleratorError("CUDA error: out of memory")).is_sticky
    assert classify_exception(ValueError("CUDA out of memory")).outcome is CRASH
    assert not classify_exception(ValueError("device-side assert triggered")).is_sticky


def test_a_compiler_that_lacks_memory_or_breaks_the_device_is_seen_through_its_own_exception():
    memory = classify_exception(CompilerError(RuntimeError("CUDA out of memory. Tried to allocate 797.00 GiB.")))
    broken = classify_exception(CompilerError(RuntimeError("CUDA error: misaligned address")))

    assert (memory.outcome, memory.is_clean, memory.is_in_compiler) == (MEMORY, False, True)
    assert (broken.outcome, broken.is_sticky, broken.is_in_compiler) == (Outcome.COMPILE_FAILED, True, True)


def job(model: str, backend: str):
    made = imported_job(compile=CompileSettings(backend=backend))
    return dataclasses.replace(made, model=made.model | {"model": f"bugs:{model}"})


def probe(size: int = 4, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=size, max_passes=2, **fields)


@pytest.fixture
def calls(tmp_path, monkeypatch):
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_a_compiler_that_breaks_the_device_is_blamed_and_the_next_shared_program_is_tried(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "1")

    observation = run_on(job("on_a_device", "breaks_the_device"))(probe())

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert calls.stat().st_size > 1


def test_a_program_that_only_its_compilation_breaks_is_not_the_users_bug(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "100")

    observation = run_on(job("on_a_device", "breaks_the_device"))(probe(compilation=Compilation.EXACT))

    assert observation.outcome is Outcome.COMPILE_FAILED
    assert "illegal memory access" in observation.reason and "in a new process" in observation.reason


def test_a_program_that_breaks_the_device_without_the_compiler_too_is_the_users_bug(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "100")
    monkeypatch.setenv("BROKEN", "1")

    observation = run_on(job("on_a_device", "breaks_the_device"))(probe())

    assert observation.outcome is Outcome.CRASHED
    assert "bugs.py" in observation.reason


def test_a_compiler_that_lacks_memory_is_tried_in_another_mode_before_the_size_counts_as_too_big(
    run_on, monkeypatch, calls
):
    monkeypatch.setenv("TIMES", "1")

    observation = run_on(job("on_a_device", "lacks_memory"))(probe())

    assert observation.outcome is Outcome.MEASURED, observation.reason


def test_where_the_compiler_lacks_memory_in_every_mode_the_size_is_too_big_and_the_first_mode_stays(
    run_on, monkeypatch, calls
):
    monkeypatch.setenv("TIMES", "100")
    runner = run_on(job("on_a_device", "lacks_memory"))

    observation = runner(probe(size=8))
    num_calls = calls.stat().st_size
    monkeypatch.setenv("TIMES", "0")
    after = runner(probe(size=4))

    assert observation.outcome is Outcome.OUT_OF_MEMORY, observation.reason
    assert num_calls == 3  # unbacked, dynamic, static: this model has no blocks to nest
    assert after.is_measured and after.details["shared_mode"] == "unbacked"


def test_the_eager_check_waits_for_the_device_whose_errors_come_late(monkeypatch):
    def synchronize(device):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("bexplore.engine.worker.steps.synchronize", synchronize)
    server = worker._Server(None)
    monkeypatch.setattr(server, "_report", lambda **message: None)
    request = {"kind": "eager_check", "job": imported_job().as_dict(), "probe": {"micro_batch_size": 2}}

    answer = server.answer(request)

    assert answer["outcome"] is Outcome.CRASHED and answer["is_sticky"]
