"""The outcome that the text of an error stands for; a mention of memory is no refusal."""

from __future__ import annotations

import signal

import pytest

from bexplore.engine.protocol.failures import classify_exception, classify_exit, refusal_in_output, signal_name
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


CPU = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "10737418240 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.2 GiB is free."
)
BUG = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: the labels differ'


def raised(how: str, refusal: BaseException) -> BaseException:
    """Return an exception that followed a refusal in some way."""
    try:
        try:
            raise refusal
        except BaseException as error:
            if how == "implicit":
                raise ValueError("step failed")  # noqa: B904 - what is being handled is the point
            if how == "explicit":
                raise KeyError("step") from error
            if how == "hidden":
                raise ValueError("step failed") from None
            if how == "exit":
                raise SystemExit(1)  # noqa: B904 - likewise
            if how == "group":
                raise ExceptionGroup("two parts failed", [ValueError("a part"), RuntimeError(str(error))]) from None
            raise
    except BaseException as error:
        return error


@pytest.mark.parametrize("how", ["itself", "implicit", "explicit", "hidden", "exit", "group"])
@pytest.mark.parametrize(
    "refusal", [RuntimeError(CPU), RuntimeError(CUDA), MemoryError(), OSError(12, "Cannot allocate")]
)
def test_a_refusal_of_memory_is_found_behind_whatever_was_raised_after_it(how, refusal):
    if how == "group" and not isinstance(refusal, RuntimeError):
        refusal = RuntimeError(CPU)

    assert classify_exception(raised(how, refusal)).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("how", ["implicit", "explicit", "hidden", "group"])
def test_what_followed_another_error_stays_a_crash(how):
    assert classify_exception(raised(how, ValueError(CUDA))).outcome is Outcome.CRASHED or how == "group"
    assert classify_exception(raised(how, RuntimeError("shapes differ"))).outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    "text",
    [
        f"ERROR:root:step 3 failed: {CPU}",
        f"2026-11-26 12:00:00,000 ERROR trainer: {CUDA}",
        f"[rank1]: torch.OutOfMemoryError: {CUDA}",
        f"Traceback (most recent call last):\n  File 'a.py'\nRuntimeError: {CPU}\n",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1, 2)",
        "MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "fatal: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "node1:12:34 [0] NCCL WARN Cuda failure 2 'out of memory'",
        "torch.distributed.DistBackendError: NCCL error: unhandled\nLast error:\nCuda failure 'out of memory'",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 24 bytes",
        f"MemoryError\n\nDuring handling of the above exception, another exception occurred:\n\n{BUG}",
        f"ERROR: {CUDA}\nTraceback (most recent call last):\n  File 'run.py'\n"
        "subprocess.CalledProcessError: Command 'train.py' returned non-zero exit status 1.",
        f"torch.OutOfMemoryError: {CUDA}\n" + "".join(f"frame #{n}: at::empty + 0x1\n" for n in range(90)),
    ],
)
def test_a_refusal_in_the_last_lines_of_output_is_read(text):
    assert refusal_in_output(f"step 1\nstep 2\n{text}")
    assert classify_exit(1, killed_by_kernel=False, last_output=text).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "text",
    [
        "hint: if you run out of memory, reduce batch size",
        "WARNING: CUDA out of memory errors can be avoided by gradient checkpointing",
        "If you see 'CUDA out of memory. Tried to allocate ...', lower --bs",
        "  --retry   catch torch.OutOfMemoryError",
        "UserWarning: pin_memory is set and no accelerator is found",
        "using 12.0 GiB of memory; MemoryError is raised above 16 GiB",
        "this wraps torch.OutOfMemoryError",
        f"WARNING: {CUDA} retrying with chunks\n{BUG}",
        f"Traceback (most recent call last):\n  File 'a.py'\ntorch.OutOfMemoryError: {CUDA}\nskipped the batch\n{BUG}",
        f"skipped a batch: {CUDA}\n" + "".join(f"step {n}\n" for n in range(80)) + "lost the data set",
        f"ValueError: {CPU}",
    ],
)
def test_output_that_mentions_memory_is_no_refusal(text):
    assert not refusal_in_output(text)
    assert classify_exit(1, killed_by_kernel=False, last_output=text).outcome is Outcome.CRASHED


@pytest.mark.parametrize(("status", "name"), [(-9, "SIGKILL"), (143, "SIGTERM"), (-2, "SIGINT"), (139, "SIGSEGV")])
def test_a_signal_is_read_from_the_status_of_a_process_or_of_a_shell(status, name):
    assert signal_name(status) == name
    assert classify_exit(status, killed_by_kernel=False, last_output="").ended_by == name


@pytest.mark.parametrize("status", [0, 1, 2, 127, 255, None])
def test_other_statuses_are_of_no_signal(status):
    assert signal_name(status) == ""


def test_a_process_of_a_loader_that_was_killed_is_ended_by_a_signal():
    killed = RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed. ")
    gone = RuntimeError("DataLoader worker (pid(s) 17, 18) exited unexpectedly")

    assert classify_exception(killed).ended_by == classify_exception(gone).ended_by == signal.SIGKILL.name
    assert classify_exception(RuntimeError("a bug")).ended_by == ""
