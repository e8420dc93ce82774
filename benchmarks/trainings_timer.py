"""Run a training script by itself and time its optimizer steps: OUT MIN_STEPS MIN_SECONDS SCRIPT ARGUMENTS...

A step ends with the optimizer that stepped first, or with the function that TIMED_BY names where none is used.
"""

import itertools
import json
import os
import runpy
import statistics
import sys
import time
from pathlib import Path

WARMUP_STEPS = 2
out, min_steps, min_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sys.argv = sys.argv[4:]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)

import torch  # noqa: E402 - the program's own path and words are set before it
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402 - likewise

times: list[tuple[float, float]] = []
first: list[int] = []
process = os.getpid()


def note_step(optimizer: object, *_: object) -> None:
    first or first.append(id(optimizer))
    if os.getpid() != process or id(optimizer) != first[0]:
        return
    times.append((time.perf_counter(), time.process_time()))
    if len(times) > min_steps + WARMUP_STEPS and times[-1][0] - times[WARMUP_STEPS][0] > min_seconds:
        timed = times[WARMUP_STEPS:]
        gaps = [[after[clock] - before[clock] for before, after in itertools.pairwise(timed)] for clock in (0, 1)]
        row = {"step_s": statistics.median(gaps[0]), "cpu_s": statistics.median(gaps[1]), "steps": len(gaps[0])}
        Path(out).write_text(json.dumps(row))
        os._exit(0)


if os.environ.get("TIMED_BY"):
    clip = torch.nn.utils.clip_grad_norm_

    def clip_grad_norm_(*arguments: object, **options: object) -> object:
        note_step(None)
        return clip(*arguments, **options)

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
else:
    register_optimizer_step_post_hook(note_step)
runpy.run_path(sys.argv[0], run_name="__main__")
