"""Section 5, failures: what is said when memory ends or the device is used wrongly, and what bexplore makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.context import JOBS, Context
from benchmarks.gpu_check.verdict import Verdict, judged
from bexplore.config.load import load_config
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe

PLANTED_LIMIT_S = 60.0
REMAINS_BYTES = 16 * 2**20  # as `engine.worker.session.REMAINS_BYTES`, which cannot be imported without torch
MEMORY = ("oom_forward", "oom_backward", "oom_optimizer", "oom_compile", "oom_autotune")
LIBRARIES = (
    "cublas_without_memory",
    "cudnn_without_memory",
    "cusolver_without_memory",
    "triton_without_memory",
    "refused_with_expandable_segments",
)
STICKY = (
    "device_assert",
    "device_assert_in_loss",
    "device_assert_compiled",
    "illegal_access",
    "trap",
    "launch_of_too_many_threads",
)
GOOD_SIZE, BAD_SIZE = 2, 8  # of asserting.yaml


def plant(context: Context, names: Sequence[str]) -> Verdict:
    """Each failure in a process of its own; as expected where bexplore's classifier names it right."""
    records = {}
    for name in names:
        records[name] = _planted(name, context.device)
        context.note(**{name: records[name]})
    wrong = [f"{name}: {_told(record)}" for name, record in records.items() if not _is_right(record)]
    found = "; ".join(wrong) if wrong else "each named right, nothing held afterwards"
    return judged(not wrong, f"{len(names) - len(wrong)} of {len(names)}: {found}")


def _planted(name: str, device: str) -> dict[str, Any]:
    more = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if "expandable" in name else {}
    command = [sys.executable, "-m", "benchmarks.gpu_check.planted", name, device]
    try:
        done = subprocess.run(
            command, env=os.environ | more, text=True, capture_output=True, timeout=PLANTED_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "raised": False, "problem": f"no end within {PLANTED_LIMIT_S:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"name": name, "raised": False, "problem": f"exit {done.returncode}: {done.stderr[-1500:]}"}
    return json.loads(lines[-1]) | {"stderr": done.stderr[-1500:]}


def _is_right(record: dict[str, Any]) -> bool:
    grew = (record.get("held_after") or 0) - (record.get("held_before") or 0)
    return record.get("outcome") == record.get("wanted", "") and (not record.get("is_clean") or grew <= REMAINS_BYTES)


def _told(record: dict[str, Any]) -> str:
    if not record["raised"]:
        return str(record.get("problem", "nothing was raised"))[:200]
    return f"{record['outcome']}, {record['chain'][0]['type']}: {record['reason'][:120]}"


def probe_asserting(context: Context) -> Verdict:
    """A job with a wrong label at one size: that probe crashed, with the device's own words, and the next one runs."""
    config = load_config(JOBS / "gpu_asserting.yaml", overrides=_backend(context)).on_device(context.device)
    with tempfile.TemporaryDirectory() as folder:
        budget_bytes = config.settings.memory_budget_bytes(0)
        settings = RunnerSettings(job=config.job, run_dir=Path(folder), budget_bytes=budget_bytes)
        with EngineRunner(settings) as runner:
            seen = {
                f"{compilation} {size}": runner(Probe(number=0, micro_batch_size=size, compilation=compilation))
                for compilation in (Compilation.SHARED, Compilation.EXACT)
                for size in (GOOD_SIZE, BAD_SIZE, GOOD_SIZE)
            }
            last = runner(Probe(number=9, micro_batch_size=GOOD_SIZE))
    context.note(observations={name: _facts(one) for name, one in (seen | {"shared again": last}).items()})
    bad = [one for one in seen.values() if one.micro_batch_size == BAD_SIZE]
    good = [last, *(one for one in seen.values() if one.micro_batch_size == GOOD_SIZE)]
    is_right = all(one.outcome is Outcome.CRASHED for one in bad) and all(one.is_measured for one in good)
    found = "; ".join(f"{name}: {one.outcome.value} {one.reason[:120]}".strip() for name, one in seen.items())
    return judged(is_right, found)


def _backend(context: Context) -> list[str]:
    return ["explore.compile.backend=eager"] if context.on_cpu else []


def _facts(seen: Observation) -> dict[str, Any]:
    return {
        "outcome": seen.outcome.value,
        "reason": seen.reason,
        "traceback": seen.traceback_text[-3000:],
        "elapsed_s": seen.elapsed_s,
        "worker": seen.worker,
        "details": seen.details,
    }
