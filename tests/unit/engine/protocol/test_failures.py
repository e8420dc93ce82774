"""The outcome that the text of an error stands for."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.failures import classify_exception
from bexplore.measurement.probe import Outcome

MEMORY, CRASH = Outcome.OUT_OF_MEMORY, Outcome.CRASHED


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
