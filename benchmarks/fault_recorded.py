"""Explorers over recorded observations that are killed, and several of them on one study."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.replay.table import Curve, load_table
from bexplore.run.journal import Journal
from bexplore.search import loop
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from bexplore.search.study import trials

CURVES = Path(__file__).parent / "curves"
SETTINGS = SearchSettings(
    search_compilation=Compilation.EXACT, user_compilation=Compilation.EXACT, verify_exact=False, max_probes=24
)
NOISE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRunner:
    """Answers from a recorded curve: the n-th probe of a size finds the same, in whatever process.

    Attributes:
        curve: The recorded sweep.
        journal: Tells how often a size was probed before.
        pause_s: What a probe takes, so that a kill may strike inside it.
    """

    curve: Curve
    journal: Journal
    pause_s: float

    def __call__(self, probe: Probe) -> Observation:
        time.sleep(self.pause_s)
        size = probe.micro_batch_size
        turn = sum(known.micro_batch_size == size for known in self.journal.read())
        point = self.curve.points[size]
        if not point.fits:
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY, reason="recorded", elapsed_s=1.0)
        rng = np.random.default_rng([size, turn])
        factors = np.exp(NOISE * rng.standard_normal() + NOISE * rng.standard_normal(probe.max_passes))
        times = tuple(float(size / point.throughput * factor) for factor in factors)
        return Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=times, elapsed_s=1.0, worker=0)


def explore_recorded(
    folder: Path, curve: Curve, *, storage: str | None = None, pause_s: float = 0.0, lease_s: float = trials.LEASE_S
) -> loop.Result:
    """Explore a recorded curve with its journal and its study in a folder; goes on where an earlier one ended."""
    journal = Journal(folder / "journal.jsonl")
    loop.trials.hold_lease = functools.partial(trials.hold_lease, seconds=lease_s)
    events = loop.run_search(
        RecordedRunner(curve=curve, journal=journal, pause_s=pause_s),
        space=Space.from_sizes(curve.points),
        settings=SETTINGS,
        run=loop.RunRecord(
            storage=storage or folder / "study.log",
            study_name=folder.name,
            lock_path=folder / ".lock",
            record=journal.append,
            history=journal.read(),
        ),
    )
    *_, result = events
    return result


def long_curves(number: int) -> list[Curve]:
    """Recorded curves with enough sizes that an exploration takes several probes."""
    curves = [curve for path in sorted(CURVES.glob("*.csv")) for curve in load_table(path)]
    return [curve for curve in curves if len(curve.points) >= 6 and curve.best_throughput > 0][:number]


def in_child(work: Callable[[], Any]) -> int:
    """Do some work in a process of its own, which may be killed; returns its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def kill_and_resume(folder: Path, *, kills: int, seed: int) -> dict[str, Any]:
    """Kill an explorer at a random moment, resume it, and compare with one that was never killed."""
    rng = random.Random(seed)
    curves = long_curves(20)
    told = Counter[str]()
    failures: list[str] = []
    for number in range(kills):
        curve = curves[number % len(curves)]
        alone, struck = folder / f"alone_{number}", folder / f"struck_{number}"
        for path in (alone, struck):
            path.mkdir(parents=True)
        began = time.monotonic()
        wanted = explore_recorded(alone, curve, pause_s=0.01)
        lasted_s = time.monotonic() - began
        pid = in_child(lambda struck=struck, curve=curve: explore_recorded(struck, curve, pause_s=0.01))
        time.sleep(rng.uniform(0.0, lasted_s))
        os.kill(pid, signal.SIGKILL)
        killed = os.waitpid(pid, 0)[1] == signal.SIGKILL
        before = Journal(struck / "journal.jsonl").read()
        found = explore_recorded(struck, curve, pause_s=0.0)
        after = Journal(struck / "journal.jsonl").read()
        numbers = [item.probe.number for item in after]
        told["killed"] += killed
        told["killed with probes behind it"] += killed and bool(before)
        told["same recommendation"] += _size(found) == _size(wanted)
        told["lost observations"] += after[: len(before)] != before
        told["repeated probes"] += len(numbers) - len(set(numbers))
        told["probes more than without a kill"] += len(after) - len(Journal(alone / "journal.jsonl").read())
        if _size(found) != _size(wanted):
            failures.append(f"{curve.curve_id}: {_size(wanted)} alone, {_size(found)} after a kill")
    return {"kills": kills, **told, "failures": failures}


def several_on_one_study(
    folder: Path, storage: str | None, *, rounds: int, explorers: int, kills: int, seed: int
) -> dict[str, Any]:
    """Let several explorers share a study, kill some, and see that each probe is there once and the answer is one."""
    rng = random.Random(seed)
    curves = sorted(long_curves(200), key=lambda curve: -len(curve.points))
    told = Counter[str]()
    for number in range(rounds):
        curve = curves[number % len(curves)]
        place = folder / f"study_{os.getpid()}_{number}"
        place.mkdir(parents=True)

        def work(place: Path = place, curve: Curve = curve) -> None:
            explore_recorded(place, curve, storage=storage, pause_s=0.15, lease_s=2.0)

        pids = [in_child(work) for _ in range(explorers)]
        for pid in rng.sample(pids, kills):
            time.sleep(rng.uniform(0.2, 0.8))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                told["ended before its kill"] += 1
        ends = [os.waitpid(pid, 0)[1] for pid in pids]
        told["killed"] += ends.count(signal.SIGKILL)
        told["ended with an error"] += sum(end not in (0, signal.SIGKILL) for end in ends)
        _account(told, place, curve, storage)
    return {"rounds": rounds, "explorers": explorers, **told}


def _account(told: Counter[str], place: Path, curve: Curve, storage: str | None) -> None:
    """Compare the journal, the study and what one process makes of the same observations."""
    observations = Journal(place / "journal.jsonl").read()
    final = explore_recorded(place, curve, storage=storage)  # nothing is left to do but to say the answer
    numbers = [item.probe.number for item in Journal(place / "journal.jsonl").read()]
    told["probes"] += len(observations)
    told["numbers given twice"] += len(numbers) - len(set(numbers))
    told["sizes searched twice by accident"] += _searched_twice(observations)
    told["observations not in the study"] += len(numbers) - sum(final.outcomes.values())
    alone = place / "alone"
    alone.mkdir()
    (alone / "journal.jsonl").write_bytes((place / "journal.jsonl").read_bytes())
    told["same answer as one process on the same observations"] += _size(explore_recorded(alone, curve)) == _size(final)
    fresh = place / "fresh"
    fresh.mkdir()
    single = explore_recorded(fresh, curve)
    told["same size as one process from the start"] += _size(single) == _size(final)
    told["within the tolerance of one process from the start"] += (
        _size(final) is not None
        and _size(single) is not None
        and curve.points[_size(final)].throughput >= (1 - SETTINGS.tolerance) * curve.points[_size(single)].throughput
    )


def _searched_twice(observations: Sequence[Observation]) -> int:
    sizes = Counter(item.micro_batch_size for item in observations if item.probe.purpose is Purpose.SEARCH)
    return sum(count - 1 for count in sizes.values())


def _size(result: loop.Result) -> int | None:
    return result.recommendation.micro_batch_size if result.recommendation else None
