"""Explorations of a tiny job, each with one fault of a random kind at a random moment, on the real engine."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.measurement.probe import Observation
from bexplore.run.journal import Journal

ROOT = Path(__file__).parent.parent
PROBE_LIMIT_S = 25.0
HANG_S = 300.0
MARK = "BENCH_FAULT_MARK"
# Kind of fault -> outcomes that are right for the probe that it strikes. `measured`: the probe goes on unharmed.
STEP_FAULTS = {
    "memory_error": ("out_of_memory",),
    "allocator": ("out_of_memory",),
    "exception": ("crashed",),
    "not_finite": ("not_finite", "measured"),  # measured: the pass that was struck was not the last one
    "exit": ("crashed",),
    "sys_exit": ("crashed",),
    "SIGKILL": ("crashed",),
    "SIGSEGV": ("crashed",),
    "SIGABRT": ("crashed",),
    "segfault": ("crashed",),
    "hang": ("timed_out",),
    "spin": ("timed_out",),
    "flood": ("measured",),
    "close_pipe": ("crashed",),
    "close_stdout": ("measured",),
    "leaves_children": ("crashed",),
    "changes_dtype": ("crashed", "measured"),  # measured: it was the last pass of its worker
    "changes_device": ("crashed", "measured"),
}
# Kinds that strike elsewhere. A compiler that raises is tried again with another kind of shared program; what happens
# to a trace or to the timing of a data loader costs its figures and no probe.
COMPILE_FAULTS = {
    "exception": ("compile_failed", "measured"),
    "exit": ("crashed",),
    "SIGKILL": ("crashed",),
    "SIGSEGV": ("crashed",),
    "hang": ("timed_out",),
    "spin": ("timed_out",),
    "close_pipe": ("crashed",),
    "leaves_children": ("crashed",),
}
HARMLESS_FAULTS = ("exception", "exit", "sys_exit", "SIGKILL", "SIGSEGV", "close_pipe", "flood", "leaves_children")
NEXT_PROBE_S = 5.0  # from the end of a failed probe
EXPLORER_FAULTS = ("explorer_killed", "explorer_killed_mid_record", "explorer_killed_study_damaged", "disk_refuses")
CONFIG = """\
train_input: {micro_batch_size: {explore: {max: 4}}}
explore:
  device: cpu
  memory_budget: 1GiB
  max_probes: 4
  compile: %s
  probe_time_limit: %gs
  workload: {model: faulty:model, batch: faulty:samples, loss: faulty:cross_entropy%s}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, where, and when.

    Attributes:
        kind: One of the tables above.
        place: `step`, `data`, `compile`, `trace` or `loader`.
        call: At which call of that place, from 1.
        after_s: For what strikes the explorer: seconds after its start.
    """

    kind: str
    place: str = "step"
    call: int = 1
    after_s: float = 0.0


def draw_fault(rng: random.Random) -> Fault:
    """A random fault at a random moment."""
    if rng.random() < 0.25:
        return Fault(kind=rng.choice(EXPLORER_FAULTS), after_s=rng.uniform(0.5, 12.0))
    place = rng.choice(("step", "step", "step", "data", "data", "compile", "trace", "loader"))
    if place in ("trace", "loader"):
        slow = ("hang",) if rng.random() < 0.1 else ()  # their time limits are long
        return Fault(kind=rng.choice(slow or HARMLESS_FAULTS), place=place, call=rng.randint(1, 3))
    if place == "compile":
        return Fault(kind=rng.choice(sorted(COMPILE_FAULTS)), place=place, call=rng.randint(1, 2))
    kind = rng.choice(sorted(STEP_FAULTS))
    if kind in ("not_finite", "changes_dtype", "changes_device"):  # needs the model
        place = "step"
    return Fault(kind=kind, place=place, call=rng.randint(1, 3 if place == "data" else 25))


def strike_explorations(folder: Path, *, explorations: int, seed: int, only_kills: bool = False) -> dict[str, Any]:
    """Run so many explorations, each with a fault, and account for what became of them.

    Args:
        folder: Empty; one folder for each exploration is made here.
        explorations: How many.
        seed: Of the faults.
        only_kills: Strike the explorer alone, with SIGKILL.
    """
    rng = random.Random(seed)
    told, kinds, problems = Counter[str](), Counter[str](), []
    for number in range(explorations):
        kill = Fault(kind="explorer_killed", after_s=rng.uniform(0.5, 12.0))
        fault = kill if only_kills else draw_fault(rng)
        place = folder / f"{number:03d}"
        found = _one(place, fault, mark=f"{seed}-{number}")
        told.update({key: int(value) for key, value in found.items() if isinstance(value, int)})
        kinds[f"{fault.kind} in {fault.place}" if fault.kind not in EXPLORER_FAULTS else fault.kind] += 1
        problems += [f"{number}: {fault.kind} at {fault.place} {fault.call}: {text}" for text in found["problems"]]
        shutil.rmtree(place, ignore_errors=True)
    return {"explorations": explorations, **told, "kinds": dict(sorted(kinds.items())), "problems": problems}


def _one(folder: Path, fault: Fault, *, mark: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    compiled = "{backend: faulty}" if fault.place == "compile" else "false"
    loader = ", loader: faulty:loader" if fault.place == "loader" else ""
    (folder / "job.yaml").write_text(CONFIG % (compiled, PROBE_LIMIT_S, loader))
    shutil.copy(ROOT / "benchmarks" / "jobs" / "faulty.py", folder)
    place = "nowhere" if fault.kind in EXPLORER_FAULTS else fault.place
    (folder / "fault.json").write_text(json.dumps({"kind": fault.kind, "place": place, "call": fault.call}))
    problems: list[str] = []
    before: list[Observation] = []
    code = None
    if fault.kind in EXPLORER_FAULTS:
        code = _explore(folder, mark, kill_after_s=fault.after_s)
        before = _observations(folder)
        _damage(folder, fault.kind)
        if fault.kind == "disk_refuses" and before:
            refused = _explore(folder, mark, refuse_writes=True)
            if refused not in (0, 4):
                problems.append(f"a disk that refuses writes ended with code {refused}")
    struck_then_killed = code == -signal.SIGKILL
    code = _explore(folder, mark)
    after = _observations(folder)
    problems += _wrong_outcomes(folder, fault, after)
    if code != (3 if _smallest_did_not_fit(after, fault) else 0):
        problems.append(f"ended with code {code}: {(folder / 'stderr').read_text()[-300:]}")
    if after[: len(before)] != before:
        problems.append("observations were lost")
    orphans = _orphans(mark)
    return {
        "right": not problems and not orphans,
        "fault happened": struck_then_killed or (folder / "struck").exists(),
        "lost observations": len(before) - len([item for item in before if item in after]),
        "next probe later than 5 s": _late_probes(after),
        "repeated probes": len(after) - len({item.probe.number for item in after}),
        "orphan processes": orphans,
        "hangs": code is None,
        "wrong out of memory": _wrong_out_of_memory(fault, after),
        "tracebacks shown for what is no program of the user's": _own_tracebacks(folder, fault),
        "problems": problems,
    }


def _explore(folder: Path, mark: str, *, kill_after_s: float | None = None, refuse_writes: bool = False) -> int | None:
    """Run the command; its exit code, None where it hung."""
    environment = os.environ | {MARK: mark, "BENCH_FAULT_DIR": str(folder), "BEXPLORE_LOCK_DIR": str(folder)}
    environment |= {"OMP_NUM_THREADS": "1", "BEXPLORE_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "bexplore", "explore", "job.yaml", "--json"]
    if refuse_writes:  # of any file: what a full disk does, without filling one
        command = ["bash", "-c", 'ulimit -f 0; trap "" XFSZ; exec "$@"', "bash", *command]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("ab") as err:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, env=environment)
        try:
            return process.wait(timeout=HANG_S if kill_after_s is None else kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None if kill_after_s is None else -signal.SIGKILL


def _observations(folder: Path) -> list[Observation]:
    journals = sorted(folder.glob("local_compile_train/*/run_*/journal.jsonl"))
    return Journal(journals[-1]).read() if journals else []


def _damage(folder: Path, kind: str) -> None:
    """What power loss adds to a kill."""
    for run in sorted(folder.glob("local_compile_train/*/run_*/")):
        journal, study = run / "journal.jsonl", run / "study.log"
        if kind == "explorer_killed_mid_record":
            with journal.open("ab") as handle:
                handle.write(b'{"probe": {"number": 9, "micro_bat')
        if kind == "explorer_killed_study_damaged" and study.exists():
            data = study.read_bytes()
            study.write_bytes(data[: len(data) // 3] + b"\0\0garbage\n" + data[len(data) // 2 : -3])


def _wrong_outcomes(folder: Path, fault: Fault, observations: list[Observation]) -> list[str]:
    """Every probe but the one that was struck is measured, and that one has its right outcome."""
    wrong = []
    others = [item for item in observations if not item.is_measured]
    right = _right_outcomes(fault)
    if right and (folder / "struck").exists():
        if others:
            first = others.pop(0)
            if first.outcome.value not in right:
                wrong.append(f"struck probe: {first.outcome.value}: {first.reason}")
        elif "measured" not in right:
            wrong.append("the struck probe counts as measured")
    return wrong + [f"probe {item.probe.number}: {item.outcome.value}: {item.reason}" for item in others]


def _right_outcomes(fault: Fault) -> tuple[str, ...]:
    """Of the probe that a fault strikes; empty where it strikes none."""
    if fault.kind in EXPLORER_FAULTS or fault.place in ("trace", "loader"):
        return ()
    return (COMPILE_FAULTS if fault.place == "compile" else STEP_FAULTS)[fault.kind]


def _late_probes(observations: list[Observation]) -> int:
    """Failed probes after which the next one took more than 5 s to start.

    The first is left out: it may have been compiled ahead, and then failed while the trace was still going on.
    """
    pairs = itertools.pairwise(observations[1:])
    gaps = [
        later.started_at_s - (failed.started_at_s + failed.elapsed_s)
        for failed, later in pairs
        if not failed.is_measured
    ]
    return sum(gap > NEXT_PROBE_S for gap in gaps)


def _smallest_did_not_fit(observations: list[Observation], fault: Fault) -> bool:
    """A smallest size without memory is an answer too: nothing fits."""
    refused = [item.micro_batch_size for item in observations if item.outcome.value == "out_of_memory"]
    return _right_outcomes(fault) == ("out_of_memory",) and refused == [1]


def _wrong_out_of_memory(fault: Fault, observations: list[Observation]) -> int:
    found = sum(item.outcome.value == "out_of_memory" for item in observations)
    return max(0, found - ("out_of_memory" in _right_outcomes(fault)))


def _own_tracebacks(folder: Path, fault: Fault) -> int:
    return (folder / "stderr").read_text(errors="replace").count("Traceback (most recent call last)")


def _orphans(mark: str) -> int:
    """Processes that still carry the exploration's mark a moment after its end; they are ended."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(10):
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # ended meanwhile
        if not found:
            return 0
        time.sleep(0.5)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)
