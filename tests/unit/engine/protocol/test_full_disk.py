"""A full disk or a compiler that is not there is a cause of the host: no size and no program is to blame for it."""

from __future__ import annotations

import errno
import traceback

import pytest

from bexplore.engine.protocol.failures import classify_exception, find_host_error
from bexplore.engine.protocol.messages import Failed
from bexplore.errors import EngineError, ExitCode
from bexplore.measurement.probe import Outcome

OUTPUTS = [
    "OSError: [Errno 28] No space left on device: '/tmp/torchinductor_me/x.py'",
    "torch._inductor.exc.InductorError: CppCompileError: C++ compile error\n/tmp/a.cpp:1:1: fatal error: error "
    "writing to /tmp/ccX.s: No space left on device",
    "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status",
    "OSError: [Errno 122] Disk quota exceeded",
    "bash: cannot create temp file for here-document: No space left on device",
]


def failed(**fields) -> Failed:
    return Failed(**{"outcome": Outcome.COMPILE_FAILED, "reason": "it failed"} | fields)


@pytest.mark.promise(
    "a disk fills while a program is compiled or runs",
    "an error of the host with exit code 4, and no failure of the program",
)
@pytest.mark.parametrize("text", OUTPUTS)
def test_a_full_disk_is_told_as_such(text):
    with pytest.raises(EngineError, match="a disk is full: ") as raised:
        failed(traceback_text=f"Traceback (most recent call last):\n{text}").check_host()

    assert raised.value.exit_code is ExitCode.ENGINE_BROKE
    assert "\n" not in raised.value.message and "make room" in raised.value.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_behind_another_exception_is_one_too(number):
    try:
        try:
            raise OSError(number, "full")
        except OSError as error:
            raise RuntimeError("cannot write the cache") from error
    except RuntimeError as error:
        assert find_host_error("".join(traceback.format_exception(error))) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"traceback_text": "ValueError: the shapes differ"},
        {"outcome": Outcome.OUT_OF_MEMORY, "traceback_text": OUTPUTS[0]},
        {"traceback_text": f"{OUTPUTS[0]}\nSegmentation fault", "has_ended": True},  # it went on after that
        {"traceback_text": "W1126 12:00:00.1 17 torch/_inductor/cache.py:9] No space left on device"},
    ],
)
def test_what_is_no_full_disk_is_none(fields):
    failed(**fields).check_host()


def test_segments_of_a_loader_take_memory_and_no_disk():
    error = RuntimeError("unable to write to file </torch_17_1>: No space left on device (28)")

    failure = classify_exception(error)

    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert find_host_error(failure.traceback_text) is None


@pytest.mark.promise("a machine without a C++ compiler", "one error of the host; what to install, or to set")
def test_a_compiler_that_is_not_there_is_told_once_with_what_to_type(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    text = "InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, "

    with pytest.raises(EngineError, match=r"needs a C\+\+ compiler, and g\+\+ is not on PATH") as raised:
        failed(reason=text).check_host()

    assert "apt install g++" in raised.value.hint and "explore.compile: false" in raised.value.hint


@pytest.mark.parametrize("folder", ["/a folder", "/it's", '/"quoted"', "/back\\slash"])
def test_a_cache_that_the_compilers_command_cannot_name_is_told_with_what_to_type(folder, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
    text = "torch._inductor.exc.InductorError: CppCompileError: C++ compile error"

    with pytest.raises(EngineError, match="builds nothing in") as raised:
        failed(traceback_text=text).check_host()

    assert "export TORCHINDUCTOR_CACHE_DIR=" in raised.value.hint
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/ünï-c_1.0")
    failed(traceback_text=text).check_host()


@pytest.mark.promise("the compiler's cache cannot be written", "one error of the host; what to set")
def test_a_cache_that_cannot_be_written_is_told_and_no_other_file(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/closed/cache")
    text = "PermissionError: [Errno 13] Permission denied: '{}/dynamo'"

    with pytest.raises(EngineError, match="cache cannot be used: Permission denied: /closed/cache/dynamo") as raised:
        failed(traceback_text=text.format("/closed/cache")).check_host()

    assert "export TORCHINDUCTOR_CACHE_DIR=" in raised.value.hint
    failed(traceback_text=text.format("/data")).check_host()


@pytest.mark.promise("a compilation was killed as it wrote a library", "one error of the host; the file to remove")
def test_a_library_that_was_cut_off_in_the_compilers_cache_is_named_and_no_other(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
    text = "BackendCompilerFailed: backend='inductor' raised:\nImportError: {}/mg/kernel.main.so: file too short\n"

    with pytest.raises(EngineError, match=r"cut off as it was built: /cache/mg/kernel\.main\.so") as raised:
        failed(reason=text.format("/cache")).check_host()

    assert raised.value.hint.startswith("rm /cache/mg/kernel.main.so, then run the same command again")
    failed(reason=text.format("/opt/own")).check_host()
