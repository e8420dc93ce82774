"""Steps that end in every way; run like `benchmarks.gpu_check.child`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu_check.child import main
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.steps import Step
from benchmarks.gpu_check.verdict import Verdict, judged


def _fine(context: Context) -> Verdict:
    context.note(answer=42)
    with Path(os.environ["GPU_CHECK_CALLS"]).open("a") as calls:
        calls.write("fine\n")
    return judged(True, "as | expected")


def _reads(context: Context) -> Verdict:
    return judged(context.known.get("fine", {}).get("answer") == 42, "what an earlier step noted")


def _raises(context: Context) -> Verdict:
    raise ValueError("a typing error")


def _dies(context: Context) -> Verdict:
    context.note(before="it died")
    os.abort()


def _hangs(context: Context) -> Verdict:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    context.note(child=child.pid)
    Path(os.environ["GPU_CHECK_CALLS"] + ".hangs").write_text(str(child.pid))
    time.sleep(600)
    return judged(True, "never")


def _step(name: str, run, *, limit_s: float = 60.0) -> Step:
    return Step(section=1, name=name, expected="an end", usual_s=1.0, limit_s=limit_s, run=run)


STEPS = (
    _step("dies", _dies),
    _step("fine", _fine),
    _step("reads", _reads),
    _step("raises", _raises),
    _step("hangs", _hangs, limit_s=3.0),
)

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), STEPS)
