"""The same engine over a recorded table: a `Runner` whose hardware is a CSV file."""

from __future__ import annotations

import csv
import math
import multiprocessing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.errors import BexploreError, UserInputError
from bexplore.explorer import ProbeFinished, Result, explore
from bexplore.probe import Compilation, Observation, Outcome, Probe
from bexplore.recommendation import Recommendation, SearchSettings
from bexplore.space import MemoryPrior, Space

REQUIRED_COLUMNS = ("curve_id", "micro_batch_size")
TIME_COLUMNS = ("throughput_samples_per_s", "step_time_s")
START_TIME_S = 5.0  # charged for each worker process
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size of a recorded curve.

    Attributes:
        throughputs: Samples/s of each repeat; empty where it ran out of memory.
        pass_time_s: Seconds of a pass, for what a probe costs; 0 where unknown.
        peak_memory_bytes: Peak; None where the table has none.
    """

    throughputs: tuple[float, ...] = ()
    pass_time_s: float = 0.0
    peak_memory_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the size ran."""
        return bool(self.throughputs)

    @property
    def throughput(self) -> float:
        """Median samples/s of the repeats."""
        return float(np.median(self.throughputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A recorded sweep of one job on one machine.

    Attributes:
        curve_id: Its name in the table.
        points: What was recorded, by micro-batch size, ascending.
    """

    curve_id: str
    points: Mapping[int, Point]

    @property
    def best_throughput(self) -> float:
        """Samples/s at the best recorded size; 0 where nothing fits."""
        return max((point.throughput for point in self.points.values() if point.fits), default=0.0)

    def regret(self, size: int) -> float:
        """Share of the best throughput that is lost at a size."""
        return 1.0 - self.points[size].throughput / self.best_throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What a replay pretends, and how long it searches.

    Attributes:
        seed: Of the noise and of the search.
        noise: Standard deviation, as a fraction, of a pass and of a run; a size with repeats draws one of them instead.
        compile_time_s: Seconds to compile one program.
        start_time_s: Seconds to start a worker.
        shared_compile: One program for all sizes; otherwise each size is compiled on its own, in a fresh worker.
        steps: Upper bound on timed passes of a probe.
        max_probes: Stop after this many probes.
        target_confidence: Stop at this score.
        tolerance: Two sizes within this share of each other are as good as each other.
        memory_hint_gib: The memory budget, which the table does not say; None for unknown.
    """

    seed: int = 0
    noise: float = 0.01
    compile_time_s: float = 30.0
    start_time_s: float = START_TIME_S
    shared_compile: bool = False
    steps: int = 10
    max_probes: int = 16
    target_confidence: int = 90
    tolerance: float = 0.02
    memory_hint_gib: float | None = None

    @property
    def compilation(self) -> Compilation:
        """The program of every probe; a table knows only one, so there is nothing to verify."""
        return Compilation.SHARED if self.shared_compile else Compilation.EXACT

    @property
    def settings(self) -> SearchSettings:
        """What the search is told."""
        return SearchSettings(
            tolerance=self.tolerance,
            target_confidence=self.target_confidence,
            max_probes=self.max_probes,
            seed=self.seed,
            search_compilation=self.compilation,
            user_compilation=self.compilation,
            verify_exact=False,
            max_passes=self.steps,
            start_time_s=self.start_time_s,
            compile_time_s=self.compile_time_s,
        )


class TableRunner:
    """Answers probes from a recorded curve, and keeps account of what they would have cost."""

    def __init__(self, curve: Curve, options: ReplayOptions) -> None:
        """Begin with no worker alive."""
        self.curve = curve
        self.options = options
        self.cost_s = 0.0
        self._rng = np.random.default_rng([options.seed, zlib.crc32(curve.curve_id.encode())])
        self._unused: dict[int, list[float]] = {}
        self._worker = -1
        self._alive = False

    def __call__(self, probe: Probe) -> Observation:
        """Run one probe."""
        options = self.options
        point = self.curve.points[probe.micro_batch_size]
        starts = not self._alive or not options.shared_compile or probe.fresh_worker
        self._worker += starts
        self._alive = point.fits
        start_s = options.start_time_s if starts else 0.0
        compile_s = options.compile_time_s if starts else 0.0
        factor = np.exp(options.noise * self._rng.standard_normal(probe.max_passes))
        times = (
            probe.micro_batch_size / self._throughput(probe.micro_batch_size) * factor if point.fits else np.zeros(0)
        )
        elapsed = start_s + compile_s + len(times) * point.pass_time_s
        self.cost_s += elapsed
        hint = options.memory_hint_gib
        return Observation(
            probe=probe,
            outcome=Outcome.MEASURED if point.fits else Outcome.OUT_OF_MEMORY,
            reason="" if point.fits else "out of memory in the table",
            pass_times_s=tuple(map(float, times)),
            start_time_s=start_s,
            compile_time_s=compile_s,
            elapsed_s=elapsed,
            worker=self._worker,
            peak_memory_bytes=point.peak_memory_bytes,
            memory_budget_bytes=None if hint is None else round(hint * GIB),
        )

    def _throughput(self, size: int) -> float:
        """A repeat not drawn yet where the table has repeats; else the recorded value with noise."""
        repeats = self.curve.points[size].throughputs
        if len(repeats) == 1:
            return repeats[0] * math.exp(self.options.noise * self._rng.standard_normal())
        unused = self._unused.setdefault(size, [])
        if not unused:
            unused.extend(self._rng.permutation(repeats))
        return float(unused.pop())


def exhaustive_cost_s(curve: Curve, options: ReplayOptions) -> float:
    """Seconds of one probe of every size, under the same charges."""
    runner = TableRunner(curve, options)
    for number, size in enumerate(curve.points):
        runner(Probe(number=number, micro_batch_size=size, compilation=options.compilation, max_passes=options.steps))
    return runner.cost_s


def replay_curve(curve: Curve, options: ReplayOptions) -> Iterator[dict[str, Any]]:
    """Explore one recorded curve.

    Yields:
        A `probe` event and, once something was measured, a `recommendation` event for each probe; at the end a `result`.

    Raises:
        NothingFitsError: Not even the smallest recorded size ran.
    """
    runner = TableRunner(curve, options)
    budget = None if options.memory_hint_gib is None else options.memory_hint_gib * GIB
    events = explore(
        runner,
        space=Space.of(curve.points),
        settings=options.settings,
        memory=MemoryPrior(budget_bytes=budget),
        clock=lambda: runner.cost_s,
    )
    for event in events:
        if isinstance(event, ProbeFinished):
            yield {"event": "probe", "curve_id": curve.curve_id} | _probe_fields(event.observation)
        elif isinstance(event, Recommendation):
            yield {"event": "recommendation", "curve_id": curve.curve_id} | _recommendation_fields(event)
        elif isinstance(event, Result):
            costs = {"cost_s": runner.cost_s, "exhaustive_cost_s": exhaustive_cost_s(curve, options)}
            yield {"event": "result", "curve_id": curve.curve_id} | _result_fields(event) | costs


def replay_table(
    table: str | Path, options: ReplayOptions, *, curve_id: str | None = None, num_processes: int = 2
) -> Iterator[dict[str, Any]]:
    """Explore every curve of a table, or one.

    Args:
        table: CSV file; see `load_table`.
        options: What the replay pretends.
        curve_id: Only this curve; None for all.
        num_processes: Curves explored at the same time.

    Yields:
        The events of `replay_curve`, curve by curve in the order of the table; a curve where nothing fits ends in a
        `result` without a recommendation.

    Raises:
        UserInputError: The table or the curve's name is wrong.
    """
    curves = load_table(table)
    if curve_id is not None:
        curves = tuple(curve for curve in curves if curve.curve_id == curve_id) or _unknown_curve(curves, curve_id)
    jobs = [(curve, options) for curve in curves]
    if num_processes <= 1 or len(jobs) < 4:
        for job in jobs:
            yield from _events(job)
        return
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        for events in pool.imap(_events, jobs, chunksize=2):
            yield from events


def _events(job: tuple[Curve, ReplayOptions]) -> list[dict[str, Any]]:
    curve, options = job
    try:
        return list(replay_curve(curve, options))
    except BexploreError as error:
        return [
            {
                "event": "result",
                "curve_id": curve.curve_id,
                "micro_batch_size": None,
                "stop_reason": "nothing_fits",
                "reason": error.message,
            }
        ]


def _probe_fields(observation: Observation) -> dict[str, Any]:
    return {
        "number": observation.probe.number,
        "micro_batch_size": observation.micro_batch_size,
        "outcome": observation.outcome.value,
        "reason": observation.reason,
        "pass_times_s": list(observation.pass_times_s),
        "update_times_s": list(observation.update_times_s),
        "compile_time_s": observation.compile_time_s,
        "peak_memory_bytes": observation.peak_memory_bytes,
        "predicted_peak_memory_bytes": observation.probe.predicted_peak_memory_bytes,
        "compilation": observation.probe.compilation.value,
        "num_graphs": observation.num_graphs,
        "num_graph_breaks": observation.num_graph_breaks,
        "num_recompiles": observation.num_recompiles,
        "samples_per_s": observation.samples_per_s if observation.is_measured else None,
    }


def _recommendation_fields(best: Recommendation) -> dict[str, Any]:
    return {
        "micro_batch_size": best.micro_batch_size,
        "relative_performance": best.relative_performance,
        "confidence": best.confidence,
        "samples_per_s": best.samples_per_s,
        "num_probes": best.num_probes,
        "elapsed_s": best.elapsed_s,
    }


def _result_fields(result: Result) -> dict[str, Any]:
    best = _recommendation_fields(result.recommendation) if result.recommendation else {"micro_batch_size": None}
    return best | {
        "base_micro_batch_size": result.base_micro_batch_size,
        "stop_reason": result.stop_reason,
        "smallest_within_tolerance": result.smallest_within_tolerance,
        "peak_memory_bytes": result.peak_memory_bytes,
        "memory_headroom_bytes": result.memory_headroom_bytes,
        "outcomes": dict(result.outcomes),
        "warnings": list(result.warnings),
    }


def load_table(path: str | Path) -> tuple[Curve, ...]:
    """Read a table of recorded sweeps.

    Columns: `curve_id`, `micro_batch_size`, and `throughput_samples_per_s` or `step_time_s`; `peak_mem_gib` and `oom`
    may be absent, further columns are ignored. Several rows of one size are repeats; a size with an `oom` row does not
    fit, whatever its other rows say.

    Raises:
        UserInputError: The file cannot be read, or a cell cannot be believed; all of its problems at once.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = tuple(reader.fieldnames or ())
            _check_header(path, header)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserInputError(f"cannot read the table {path}: {error}", hint="name a CSV file with a header") from error
    problems: list[str] = []
    grouped: dict[str, dict[int, list[_Row]]] = {}
    for line, cells in rows:
        row = _parse(cells, f"{path}:{line}", problems)
        if row is not None:
            grouped.setdefault(row.curve_id, {}).setdefault(row.size, []).append(row)
    if problems:
        shown = "\n".join(problems[:20]) + (f"\n... and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise UserInputError(shown, hint="correct these cells, or remove the rows")
    if not grouped:
        raise UserInputError(f"the table {path} has no rows", hint="add at least one row under the header")
    return tuple(
        Curve(curve_id=name, points={size: _point(sizes[size]) for size in sorted(sizes)})
        for name, sizes in grouped.items()
    )


@dataclass(frozen=True, slots=True)
class _Row:
    curve_id: str
    size: int
    throughput: float | None
    step_time_s: float | None
    peak_mem_gib: float | None
    oom: bool


def _check_header(path: str | Path, header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if not any(name in header for name in TIME_COLUMNS):
        missing.append(" or ".join(TIME_COLUMNS))
    if missing:
        found = ", ".join(header) if header else "none"
        raise UserInputError(
            f"{path}:1: the table lacks the column {'; '.join(missing)} (found: {found})",
            hint="the header must name curve_id, micro_batch_size, throughput_samples_per_s (or step_time_s), "
            "and may name peak_mem_gib and oom",
        )


def _parse(cells: Mapping[str, str | None], where: str, problems: list[str]) -> _Row | None:
    before = len(problems)
    name = (cells.get("curve_id") or "").strip()
    if not name:
        problems.append(f"{where}: curve_id is blank")
    size = _number(cells, "micro_batch_size", where, problems)
    if (size is None or size < 1 or size != int(size)) and (len(problems) == before or size is not None):
        problems.append(f"{where}: micro_batch_size {cells.get('micro_batch_size')!r} is not a whole number above 0")
    values = {key: _number(cells, key, where, problems) for key in (*TIME_COLUMNS, "peak_mem_gib")}
    problems.extend(
        f"{where}: {key} {cells[key]!r} is not above 0"
        for key, value in values.items()
        if value is not None and value <= 0
    )
    oom = (cells.get("oom") or "0").strip()
    if oom not in ("0", "1"):
        problems.append(f"{where}: oom {oom!r} is neither 0 nor 1")
    if oom == "0" and len(problems) == before and all(values[key] is None for key in TIME_COLUMNS):
        problems.append(f"{where}: neither {' nor '.join(TIME_COLUMNS)} is given, and oom is not 1")
    if len(problems) > before:
        return None
    return _Row(name, int(size or 0), *(values[key] for key in TIME_COLUMNS), values["peak_mem_gib"], oom == "1")


def _number(cells: Mapping[str, str | None], key: str, where: str, problems: list[str]) -> float | None:
    """The finite number in a cell; None where it is blank."""
    text = (cells.get(key) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        problems.append(f"{where}: {key} {text!r} is not a finite number")
        return None
    return value


def _point(rows: Sequence[_Row]) -> Point:
    peaks = [row.peak_mem_gib for row in rows if row.peak_mem_gib is not None]
    if any(row.oom for row in rows):
        return Point()
    throughputs = [row.throughput or row.size / float(row.step_time_s or math.nan) for row in rows]
    times = [row.step_time_s or row.size / float(row.throughput or math.nan) for row in rows]
    return Point(
        throughputs=tuple(throughputs),
        pass_time_s=float(np.median(times)),
        peak_memory_bytes=round(max(peaks) * GIB) if peaks else None,
    )


def _unknown_curve(curves: Sequence[Curve], curve_id: str) -> tuple[Curve, ...]:
    names = [curve.curve_id for curve in curves]
    close = [name for name in names if curve_id.lower() in name.lower()][:5] or names[:5]
    raise UserInputError(f"the table has no curve {curve_id!r}", hint=f"use one of: {', '.join(close)} ...")
