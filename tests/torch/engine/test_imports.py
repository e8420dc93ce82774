"""What a worker imports before it runs a job: torch alone takes seconds of a processor, its compiler as many again."""

from __future__ import annotations

import subprocess
import sys

from bexplore.engine.process.pool import STEP_MODULES


def test_a_worker_of_eager_steps_imports_neither_the_trace_nor_what_compiles_kernels():
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print([name for name in ('bexplore.trace.tracer', 'torch._inductor.lowering') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *STEP_MODULES], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
