"""Exploration of recorded sweeps: a `Runner` whose hardware is a CSV file."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bexplore.errors import BexploreError, UserInputError
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.replay.table import GIB, Curve, load_table
from bexplore.search.loop import RunRecord, run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryPrior, Space

START_TIME_S = 5.0  # charged for each worker process
CLOSE_NAMES = 5  # curves that an error names
RECOMMENDATION_FIELDS = [
    "micro_batch_size",
    "relative_performance",
    "confidence",
    "samples_per_s",
    "regret_bound_90",
    "left_to_gain",
    "num_probes",
    "elapsed_s",
]
MIN_PARALLEL = 4  # jobs from which on a pool of processes pays


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The charges and the noise of a replay, and how long it searches."""

    seed: int = 0  # of the noise and of the search
    # Standard deviation, as a fraction, of a pass and of a run; a size with repeats draws one of them instead.
    noise: float = 0.01
    compile_time_s: float = 30.0  # seconds to compile one program
    start_time_s: float = START_TIME_S  # seconds to start a worker
    # One program for all sizes; otherwise each size is compiled on its own, in a fresh worker.
    shared_compile: bool = False
    steps: int = 10  # upper bound on timed passes of a probe
    max_probes: int = 16  # stop after this many probes
    # Stop at this score; None for the usual one, which is higher where a curve has settings.
    target_confidence: int | None = None
    tolerance: float = INDIFFERENCE_ZONE  # the indifference zone
    memory_hint_gib: float | None = None  # the memory budget, which is not in the table; None for unknown

    @property
    def compilation(self) -> Compilation:
        """The program of every probe; a table has only one, so there is nothing to verify."""
        return Compilation.SHARED if self.shared_compile else Compilation.EXACT

    def settings(self, num_settings: int = 1) -> SearchSettings:
        """Return the settings of the search over a curve for each of `num_settings`."""
        usual = self._settings.of_variants(num_settings)
        target = usual.target_confidence if self.target_confidence is None else self.target_confidence
        return dataclasses.replace(usual, target_confidence=target)

    @property
    def _settings(self) -> SearchSettings:
        return SearchSettings(
            tolerance=self.tolerance,
            max_probes=self.max_probes,
            seed=self.seed,
            search_compilation=self.compilation,
            user_compilation=self.compilation,
            verify_exact=False,
            max_passes=self.steps,
            start_time_s=self.start_time_s,
            compile_time_s=self.compile_time_s,
        )


class ChargingRunner(Protocol):
    """A runner that adds up what its probes would have cost."""

    cost_s: float

    def __call__(self, probe: Probe, /) -> Observation:
        """Run one probe."""


class JobRunner:
    """Runs probes of all variants of a job, each with a runner of its own."""

    def __init__(self, runners: Sequence[ChargingRunner]) -> None:
        self._runners = runners

    def __call__(self, probe: Probe) -> Observation:
        """Run one probe."""
        return self._runners[probe.variant](probe)

    @property
    def cost_s(self) -> float:
        """Seconds that the probes would have cost."""
        return sum(runner.cost_s for runner in self._runners)


class TableRunner:
    """Runs probes on a recorded curve, and adds up what they would have cost."""

    def __init__(self, curve: Curve, options: ReplayOptions) -> None:
        self.curve = curve
        self.options = options
        self.cost_s = 0.0
        self._rng = np.random.default_rng([options.seed, zlib.crc32((curve.curve_id + curve.setting).encode())])
        self._unused: dict[int, list[float]] = {}
        self._worker = -1
        self._program: tuple[Compilation, int] | None = None  # of the worker that is alive

    def __call__(self, probe: Probe) -> Observation:
        """Run one probe."""
        options, size = self.options, probe.micro_batch_size
        point = self.curve.points[size]
        starts = not options.shared_compile or probe.fresh_worker or probe.program != self._program
        self._worker += starts
        self._program = probe.program if point.fits else None
        start_s = options.start_time_s if starts else 0.0
        compile_s = options.compile_time_s if starts else 0.0
        factor = np.exp(options.noise * self._rng.standard_normal(probe.max_passes))
        times = size / self._throughput(size) * factor if point.fits else np.zeros(0)
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
        """Return a repeat that was not drawn yet; the recorded value with noise where the table has no repeats."""
        repeats = self.curve.points[size].throughputs
        if len(repeats) == 1:
            return repeats[0] * math.exp(self.options.noise * self._rng.standard_normal())
        unused = self._unused.setdefault(size, [])
        if not unused:
            unused.extend(self._rng.permutation(repeats))
        return float(unused.pop())


def exhaustive_cost_s(curve: Curve, options: ReplayOptions) -> float:
    """Return the seconds of one probe of every size, under the same charges."""
    runner = TableRunner(curve, options)
    for number, size in enumerate(curve.points):
        runner(Probe(number=number, micro_batch_size=size, compilation=options.compilation, max_passes=options.steps))
    return runner.cost_s


def replay_job(curves: Sequence[Curve], options: ReplayOptions) -> Iterator[dict[str, Any]]:
    """Explore the recorded curves of one job together: one for each of its settings.

    Yields:
        A `probe` event and, once something was measured, a `recommendation` event per probe; at the end a `result`.
        Each names the setting where the table has settings.
    """
    runner = JobRunner([TableRunner(curve, options) for curve in curves])
    budget = None if options.memory_hint_gib is None else options.memory_hint_gib * GIB
    events = run_search(
        runner,
        space=Space(sizes=tuple(sorted(curves[0].points)), may_extend=False),
        settings=options.settings(len(curves)),
        variants=[Variant(memory=MemoryPrior(budget_bytes=budget)) for _ in curves],
        run=RunRecord(clock=lambda: runner.cost_s),
    )
    for event in events:
        if isinstance(event, ProbeFinished):
            names = _names(curves, event.observation.probe.variant)
            yield {"event": "probe"} | names | _probe_fields(event.observation)
        elif isinstance(event, Recommendation):
            yield {"event": "recommendation"} | _names(curves, event.variant) | _recommendation_fields(event)
        elif isinstance(event, Result):
            best = event.recommendation
            exhaustive_s = sum(exhaustive_cost_s(curve, options) for curve in curves)
            recorded = _find_recorded_best(curves, best)
            costs = {"cost_s": runner.cost_s, "exhaustive_cost_s": exhaustive_s}
            yield (
                {"event": "result"}
                | _names(curves, best.variant if best else 0)
                | _result_fields(event)
                | recorded
                | costs
            )


def _find_recorded_best(curves: Sequence[Curve], best: Recommendation | None) -> dict[str, Any]:
    """Return the fastest recorded size of all settings, and what share of its speed the answer has."""
    fastest = max(curves, key=lambda curve: curve.best_throughput)
    of_answer = None if best is None else curves[best.variant].points[best.micro_batch_size]
    reached = None if of_answer is None else of_answer.throughput / fastest.best_throughput
    return {
        "recorded_best_micro_batch_size": fastest.best_size,
        "recorded_best_setting": fastest.setting or None,
        "recorded_best_samples_per_s": fastest.best_throughput or None,
        "share_of_recorded_best": reached,
    }


def _names(curves: Sequence[Curve], variant: int) -> dict[str, Any]:
    curve = curves[variant]
    return {"curve_id": curve.curve_id} | ({"setting": curve.setting} if curve.setting else {})


def replay_table(
    table: str | Path, options: ReplayOptions, *, curve_id: str | None = None, num_processes: int = 2
) -> Iterator[dict[str, Any]]:
    """Explore every job of a table, or one: the curves of one `curve_id`.

    Args:
        num_processes: Jobs explored at the same time.

    Yields:
        The events of `replay_job`, job by job in the order of the table; a job where nothing fits ends in a `result`
        without a recommendation.
    """
    curves = load_table(table)
    if curve_id is not None:
        curves = tuple(curve for curve in curves if curve.curve_id == curve_id) or _unknown_curve(curves, curve_id)
    of_job: dict[str, list[Curve]] = {}
    for curve in curves:
        of_job.setdefault(curve.curve_id, []).append(curve)
    jobs = [(tuple(each), options) for each in of_job.values()]
    if num_processes <= 1 or len(jobs) < MIN_PARALLEL:
        for job in jobs:
            yield from _events(job)
        return
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        for events in pool.imap(_events, jobs, chunksize=2):
            yield from events


def _events(job: tuple[tuple[Curve, ...], ReplayOptions]) -> list[dict[str, Any]]:
    curves, options = job
    try:
        return list(replay_job(curves, options))
    except BexploreError as error:
        return [
            {
                "event": "result",
                "curve_id": curves[0].curve_id,
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
    return {name: getattr(best, name) for name in RECOMMENDATION_FIELDS}


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


def _unknown_curve(curves: Sequence[Curve], curve_id: str) -> tuple[Curve, ...]:
    names = list(dict.fromkeys(curve.curve_id for curve in curves))
    close = ([name for name in names if curve_id.lower() in name.lower()] or names)[:CLOSE_NAMES]
    raise UserInputError(f"the table has no curve {curve_id!r}", hint=f"use one of: {', '.join(close)} ...")
