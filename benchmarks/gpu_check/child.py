"""One step in a process of its own: `python -m benchmarks.gpu_check.child NAME REQUEST_JSON`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.steps import STEPS, Step
from benchmarks.gpu_check.verdict import Verdict, Word
from bexplore.engine.worker.own_process import kill_own_group

LOOK_EVERY_S = 0.5


def main(name: str, request: Path, steps: Sequence[Step] = STEPS) -> None:
    """Run a step; its verdict is the last line of its notes."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    asked = json.loads(request.read_text())
    notes = Path(asked["notes"])
    context = Context(
        on_cpu=asked["on_cpu"],
        notes=notes,
        known=asked["known"],
        recording=Path(asked["recording"]),
    )
    step = next(step for step in steps if step.name == name)
    try:
        verdict = step.run(context)
    except Exception as error:  # a step that fails is a line of the table
        traceback.print_exc()
        context.note(traceback=traceback.format_exc()[-6000:])
        first = next(iter(str(error).strip().splitlines()), "")
        verdict = Verdict(word=Word.FAILED, found=f"{type(error).__name__}: {first[:300]}")
    with notes.open("a") as file:
        file.write(json.dumps({"verdict": verdict.word, "found": verdict.found}) + "\n")


def _end_with_parent(parent: int) -> None:
    """End this process and all that it has started once nobody waits for it, so that nothing keeps the GPU busy."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    kill_own_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
