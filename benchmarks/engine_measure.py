"""The measurements of the engine's benchmark: each starts with empty compile caches and returns one JSON-ready record.

Nothing here imports torch: whatever is measured runs in processes of its own, as a user would start it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engine_jobs import load
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.measurement.interleaving import passes_per_timing
from bexplore.measurement.probe import Compilation, Observation, Probe

ROOT = Path(__file__).parent.parent
TURN_S = 1.0  # passes of one turn of the truth last about this long
MAX_PASSES_OF_TURN = 20
LONG_PASS_S = 1.0  # `bexplore.engine.worker.session.LONG_PASS_S`, which cannot be imported without torch
ROUNDS = (5, 12)  # fewest and most turns of each size
LIVE_PROCESS_BYTES = 2**30  # of a size of the truth that waits for its turn: torch, weights, optimizer states
LIMIT_S = 3600.0  # of one process; nothing here takes near as long


class MeasurementError(Exception):
    """A process of the benchmark ended without its answer."""


@contextmanager
def cold(keep: Path | None = None) -> Iterator[tuple[Path, dict[str, str]]]:
    """An empty folder, and the environment of a process whose compile caches are in it.

    Args:
        keep: Caches that may be there already and stay; None for empty ones that go.
    """
    folder = Path(tempfile.mkdtemp(prefix="bexplore-engine-"))
    caches = keep or folder / "caches"
    caches.mkdir(parents=True, exist_ok=True)
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "BEXPLORE_CACHE_DIR": str(folder / "traces"),
        "BEXPLORE_LOCK_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    try:
        yield folder, environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def explore(config: Path, overrides: Sequence[str] = (), *, with_warm_start: bool = False) -> dict[str, Any]:
    """`bexplore explore` as a user types it, from the start of the process to its end.

    Args:
        config: The job.
        overrides: As after `--set`.
        with_warm_start: Measure afterwards the first pass of a training that starts from the kept compile artifacts.
    """
    command = [sys.executable, "-m", "bexplore", "explore", str(config), "--json", "--fresh", "--quiet"]
    for override in overrides:
        command += ["--set", override]
    with cold() as (folder, environment), _Started(command, folder, environment) as process:
        events = [record | {"arrived_s": arrived_s} for arrived_s, record in process.lines()]
        total_s = process.finish()
        found = summarized(events) | {"total_s": total_s}
        if with_warm_start:
            found["first_pass_s"] = _first_pass_s(config, events[-1], folder, environment)
    return found


def _first_pass_s(
    config: Path, result: Mapping[str, Any], folder: Path, environment: Mapping[str, str]
) -> dict[str, float] | None:
    """The first pass with an empty cache and with the exploration's artifacts; None where none were kept."""
    if not result.get("artifacts_dir"):
        return None
    command = _child("benchmarks.engine_child", "first_step", config, result["micro_batch_size"])
    caches = {"cold": str(folder / "empty"), "warm": str(folder / result["artifacts_dir"])}
    seconds = {}
    for name, cache in caches.items():
        with _Started(command, folder, {**environment, "TORCHINDUCTOR_CACHE_DIR": cache}) as process:
            seconds[name] = process.answer()["first_pass_s"]
            process.finish()
    return seconds


def summarized(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the report needs of an exploration's events, each with the second in which it arrived."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    if "result" not in by_kind:
        raise MeasurementError("the exploration ended without a result")
    trace, result, probes = by_kind["trace"][0], by_kind["result"][-1], by_kind["probe"]
    exact = [probe for probe in probes if probe["compilation"] == "exact"]
    shared = [probe for probe in probes if probe["compilation"] != "exact"]
    own_s = [passes_s(probe, untimed) for probe, untimed in zip(probes, untimed_of(probes), strict=True)]
    return {
        "micro_batch_size": result["micro_batch_size"],
        "confidence": result["confidence"],
        "stop_reason": result["stop_reason"],
        "exact_over_shared": result["exact_over_shared"],
        "largest_that_fits": trace["max_micro_batch_size"],
        "base_micro_batch_size": result["base_micro_batch_size"],
        "first_recommendation_s": by_kind["recommendation"][0]["arrived_s"],
        "stages_s": {
            "import and trace": trace["arrived_s"],
            "compile, shared": sum(probe["compile_time_s"] for probe in shared),
            "passes, shared": sum(s for probe, s in zip(probes, own_s, strict=True) if probe not in exact),
            "start, exact": sum(probe["start_time_s"] for probe in exact),
            "compile, exact": sum(probe["compile_time_s"] for probe in exact),
            "passes, exact": sum(s for probe, s in zip(probes, own_s, strict=True) if probe in exact),
            "same training, report": result["arrived_s"] - probes[-1]["arrived_s"],
        },
        "own_passes_s": sum(own_s),
        "probes": [
            {
                "micro_batch_size": probe["micro_batch_size"],
                "compilation": probe["compilation"],
                "purpose": probe["purpose"],
                "outcome": probe["outcome"],
                "samples_per_s": probe["samples_per_s"],
                "num_passes": len(probe["pass_times_s"]),
                "compile_time_s": probe["compile_time_s"],
                "elapsed_s": probe["elapsed_s"],
                "arrived_s": probe["arrived_s"],
            }
            for probe in probes
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Untimed:
    """What a probe ran beside the passes and updates that it tells the times of.

    Attributes:
        passes: Of its own size.
        updates: Of the steps whose memory was read.
    """

    passes: int
    updates: int


def untimed_of(probes: Sequence[Mapping[str, Any]]) -> list[Untimed]:
    """What each probe of an exploration ran untimed, by the rules of the engine's `Session`.

    The verification reads the memory of two steps, of two passes and of one; another probe that of one step of two
    passes; one of a size that its process knows runs a pass in place of it. A pass of a second or more counts, but for
    the first of a step, which a CPU leaves out where it is expected to be as long.
    """
    known: dict[int, float] = {}  # seconds of a pass by size
    found = []
    for probe in probes:
        size, times_s = probe["micro_batch_size"], probe["pass_times_s"]
        if probe["start_time_s"] > 0.0:  # a new process
            known.clear()
        is_long = bool(times_s) and statistics.median(times_s) >= LONG_PASS_S
        if probe["compilation"] == "exact":
            found.append(Untimed(passes=1 if is_long else 3, updates=2))
        elif size in known:
            found.append(Untimed(passes=0 if is_long else 1, updates=0))
        else:
            expected_s = size * min((seconds / other for other, seconds in known.items()), default=0.0)
            found.append(Untimed(passes=(expected_s < LONG_PASS_S) + (not is_long), updates=1))
        if times_s:
            known[size] = statistics.median(times_s)
    return found


def passes_s(probe: Mapping[str, Any], untimed: Untimed) -> float:
    """Seconds of a probe's passes and updates: those that it tells, turns of other sizes, and what it ran untimed."""
    if not probe["pass_times_s"]:
        return 0.0
    pass_s = statistics.median(probe["pass_times_s"])
    update_s = statistics.median(probe["update_times_s"]) if probe["update_times_s"] else 0.0
    timed_s = sum(probe["pass_times_s"]) + sum(probe["update_times_s"]) + _turns_of_others_s(probe)
    return timed_s + untimed.passes * pass_s + untimed.updates * update_s


def _turns_of_others_s(probe: Mapping[str, Any]) -> float:
    """A turn is told by its median pass, and has as many passes as make a turn of the size."""
    others = [
        times_s for size, times_s in probe["interleaved_times_s"].items() if int(size) != probe["micro_batch_size"]
    ]
    return sum(passes_per_timing(statistics.median(times_s)) * sum(times_s) for times_s in others)


def floor(config: Path, size: int) -> dict[str, Any]:
    """Import, one cold static compile with the passes of a probe, and the trace: one process, one after the other."""
    with cold() as (folder, environment):
        command = _child("benchmarks.engine_child", "floor", config, size)
        with _Started(command, folder, environment) as process:
            (import_s, _), (_, record) = process.lines()
            process.finish()
    total_s = import_s + record["probe_s"] + record["trace_s"]
    return record | {"micro_batch_size": size, "import_s": import_s, "total_s": total_s}


def sweep(config: Path, sizes: Sequence[int], keep: Path) -> dict[str, Any]:
    """A static compile and a process for every size, with the engine's own protocol of passes, updates and warm-up.

    Args:
        config: The job.
        sizes: In the order in which they are run.
        keep: Folder that gets the compile caches, empty at first, so that the truth need not build them again.
    """
    loaded = load(config)
    shutil.rmtree(keep, ignore_errors=True)
    rows = []
    with cold(keep) as (folder, environment):
        began_s = time.monotonic()
        settings = RunnerSettings(
            job=loaded.job,
            run_dir=folder,
            budget_bytes=loaded.settings.memory_budget_bytes(0),
            environment=environment,
        )
        with EngineRunner(settings) as runner:
            for number, size in enumerate(sizes):
                probe = Probe(
                    number=number,
                    micro_batch_size=size,
                    compilation=Compilation.EXACT,
                    max_passes=loaded.settings.passes_per_probe,
                )
                rows.append(_sweep_row(runner(probe)))
        total_s = time.monotonic() - began_s
    return {"sizes": rows, "total_s": total_s}


def _sweep_row(observation: Observation) -> dict[str, Any]:
    return {
        "micro_batch_size": observation.micro_batch_size,
        "outcome": observation.outcome.value,
        "start_time_s": observation.start_time_s,
        "compile_time_s": observation.compile_time_s,
        "elapsed_s": observation.elapsed_s,
        "pass_time_s": observation.pass_time_s if observation.is_measured else None,
        "update_time_s": observation.update_time_s if observation.is_measured else None,
        "num_passes": len(observation.pass_times_s),
    }


def truth(config: Path, sizes: Sequence[int], keep: Path, *, pass_budget_s: float) -> dict[str, Any]:
    """Pass and update times of every size: live processes take turns, forwards and backwards, so that drift cancels.

    Args:
        config: The job.
        sizes: A process each.
        keep: Compile caches that may be warm; nothing that is timed depends on them.
        pass_budget_s: Seconds of passes in all; at least the fewest rounds are made.
    """
    loaded = load(config)
    on_cpu = loaded.job.device == "cpu"
    needed = len(sizes) * LIVE_PROCESS_BYTES + ((loaded.settings.memory_budget_bytes(0) or 0) if on_cpu else 0)
    if psutil.virtual_memory().available < needed:
        raise MeasurementError(f"the truth keeps {len(sizes)} processes alive and needs {needed / 2**30:.0f} GiB free")
    found: dict[int, dict[str, list[Any]]] = {}
    with cold(keep) as (folder, environment):
        if on_cpu:
            environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no pool of compilers beside each process
        processes: dict[int, _Started] = {}
        try:
            pass_s = {}
            for size in sizes:
                processes[size] = _Started(
                    _child("benchmarks.engine_child", "truth", config, size), folder, environment
                )
                pass_s[size] = processes[size].answer()["pass_s"]
                found[size] = {"rounds": [], "update_times_s": []}
            passes = {size: _passes_of_turn(seconds) for size, seconds in pass_s.items()}
            round_s = sum(passes[size] * pass_s[size] for size in sizes)
            num_rounds = min(max(ROUNDS[0], round(pass_budget_s / round_s)), ROUNDS[1])
            for number in range(num_rounds):
                for size in sizes if number % 2 == 0 else reversed(sizes):
                    answer = processes[size].ask(passes=passes[size])
                    found[size]["rounds"].append(answer["pass_times_s"])
                    found[size]["update_times_s"] += answer["update_times_s"]
        finally:
            for process in processes.values():
                process.kill()
    return {"sizes": {str(size): values for size, values in found.items()}}


def _passes_of_turn(pass_s: float) -> int:
    return min(max(1, math.ceil(TURN_S / pass_s)), MAX_PASSES_OF_TURN)


def rival(config: Path, name: str) -> dict[str, Any]:
    """One finder, from the start of its process to its answer."""
    return _one_answer(_child("benchmarks.engine_rivals", name, config))


def survive(config: Path, size: int, *, compiled: bool) -> dict[str, Any]:
    """100 steps of a size under the cap of memory."""
    program = "compiled" if compiled else "eager"
    return _one_answer(_child("benchmarks.engine_child", "survive", config, size, program)) | {"program": program}


def _one_answer(command: Sequence[str]) -> dict[str, Any]:
    with cold() as (folder, environment), _Started(command, folder, environment) as process:
        answers = [record for _, record in process.lines()]
        total_s = process.finish()
    return answers[-1] | {"total_s": total_s}


def exhaustive_s(sweep_record: Mapping[str, Any], largest: int, *, num_passes: int = 8) -> float:
    """Seconds that a static sweep of every size from 1 up would take, from the starts, compiles and passes of a sweep.

    Each size costs a start, a compile with its pass, the two passes and the update of the memory step, `num_passes`
    timed passes and three updates. Between the sizes of the sweep a pass is taken to grow linearly.
    """
    rows = [row for row in sweep_record["sizes"] if row["outcome"] == "measured"]
    start_s = statistics.median(row["start_time_s"] for row in rows)
    compile_s = statistics.median(row["compile_time_s"] for row in rows)
    update_s = statistics.median(row["update_time_s"] for row in rows)
    points = [(row["micro_batch_size"], row["pass_time_s"]) for row in rows]
    passes_of_all_s = sum(_between(points, size) for size in range(1, largest + 1))
    return largest * (start_s + compile_s + 4 * update_s) + (3 + num_passes) * passes_of_all_s


def _between(points: Sequence[tuple[int, float]], size: int) -> float:
    """Seconds of a pass at a size: linear between the measured ones, in proportion outside."""
    if size <= points[0][0]:
        return points[0][1] * size / points[0][0]
    for (low, low_s), (high, high_s) in itertools.pairwise(points):
        if size <= high:
            return low_s + (high_s - low_s) * (size - low) / (high - low)
    return points[-1][1] * size / points[-1][0]


def _child(module: str, action: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, action, *(str(argument) for argument in arguments)]


class _Started:
    """A process that says JSON objects, each of which is given with the second of its life in which it came."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / f"{time.monotonic_ns()}.log"
        self._began_s = time.monotonic()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def lines(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Until the process closes its output; lines that are no objects (a library's chatter) are left out."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield time.monotonic() - self._began_s, json.loads(line)

    def answer(self) -> dict[str, Any]:
        for _, record in self.lines():
            return record
        raise self._failure()

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure() from None
        return self.answer()

    def finish(self) -> float:
        """Wait for the end; seconds of the whole life."""
        code = self._process.wait(timeout=LIMIT_S)
        if code != 0:
            raise self._failure()
        return time.monotonic() - self._began_s

    def kill(self) -> None:
        """End it and what it started, where it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> _Started:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()

    def _failure(self) -> MeasurementError:
        self._process.wait(timeout=LIMIT_S)
        tail = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()][-3:]
        return MeasurementError(
            f"{' '.join(self._process.args[1:4])} ended {self._process.returncode}: {' | '.join(tail)}"
        )
