"""Readies what a machine's first C++ compilation by Inductor needs, while the processors have little else to do.

Inductor compiles small programs to learn which vector instructions work, and precompiles its large header. Neither
depends on the job. Measured with torch 2.13 and GCC 12 on two cores: 8.5 s and 5.7 s of a first compilation of 28.9 s.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from bexplore.job import Job

# What every kernel of Inductor's begins with; it does nothing, and its cached library stays a few kilobytes.
_EMPTY_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out_ptr0) {}
"""


class Toolchain:
    """The C++ compiler of this machine, made ready in the background.

    Args:
        job: Decides whether any C++ is compiled at all.
        is_compiled: Whether the job's compiler runs.
    """

    def __init__(self, job: Job, *, is_compiled: bool) -> None:
        self._thread: threading.Thread | None = None
        on_cpu = torch.device(job.device).type == "cpu"
        if on_cpu and is_compiled and job.compile.enabled and job.compile.backend == "inductor":
            # In this thread: modules that import each other in a circle must not be imported by two threads at once.
            from torch._inductor.codecache import CppPythonBindingsCodeCache

            self._thread = threading.Thread(target=_compile_nothing, args=(CppPythonBindingsCodeCache,), daemon=True)
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether it still works, so that the processors are not free."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return once it works no more."""
        if self._thread is not None:
            self._thread.join()


def _compile_nothing(cache: Any) -> None:
    try:
        cache.load_pybinding(["float*"], _EMPTY_KERNEL)
    except Exception:  # of any kind: the job's own compilation meets it again, and that one is told
        pass
