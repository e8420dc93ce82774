"""Whether the numbers that are printed of one size agree, and nothing measured is faster than the answer.

    python -m benchmarks.printed_numbers [--explorations 2000]    writes the result

Random jobs, as a user would write them, are explored on simulated machines through the whole flow: search, sizes that
keep the batch size, verification, result, summary, streamed lines. What is printed is read again and held against the
one estimate of each size. In some of the jobs the smallest size crashes, the first winner fails its verification or is
slower in the training's own program, and the search ends by each of its limits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine_facts import machine_facts
from benchmarks.simulated_jobs import draw_job, load
from bexplore.exploration.base import find_sizes_that_keep
from bexplore.exploration.finish import Finish
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.output.bexp import recommendation_line
from bexplore.output.summary import summary_text
from bexplore.run import run_directory
from bexplore.run.facts import verified_by
from bexplore.run.fingerprint import search_settings
from bexplore.run.result import RunResult
from bexplore.search.loop import RunRecord, run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Result
from bexplore.search.space import Space, candidate_sizes
from bexplore.units import format_rate, format_seconds
from tests.simulated.simulator import Family, SimulatedRunner, World, draw_world

RESULTS = Path(__file__).parent / "results" / "printed_numbers.json"
UPDATE_OF_PASSES = 0.3  # seconds of an update, in passes of one sample
SLOWER_ALONE = 0.6  # speed of a winner in the training's own program, where that falls short of the search's
HEADLINE = re.compile(
    r"Use micro_batch_size (?P<size>\d+): (?:the smallest size that ran, |(?P<factor>[\d.]+)x"
    r"(?: \((?P<low>[\d.]+) to (?P<high>[\d.]+)\))? the speed of size (?P<base>\d+), )"
    r"(?P<speed>[\d.,e+-]+) samples/s.*confidence (?P<score>\d+) out of 100\."
)
STREAMED = re.compile(r"micro_batch_size: (\d+), estimated performance: ([\d.]+)x base, confidence score: (\d+) ")
KEEPING = re.compile(r"use micro_batch_size (\d+) in .*?: ([\d.]+)x the speed of size (\d+), ([\d.,e+-]+) samples/s")
SMALLER = re.compile(r"size (\d+) is within (\d+)% of it")
GROWTH = re.compile(r"from size (\d+) to (\d+) throughput .* \(([\d.,e+-]+) to ([\d.,e+-]+) samples/s\)")
STEP = re.compile(r"^ +(\d+) +(\d+)(?: +[\d,]+)? +([\d.]+ (?:us|ms|s|min|h)(?: \d+ (?:s|min))?)(?:  <- yours)?$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One exploration, and what is wrong with what was printed of it.

    Attributes:
        seed: Of the job.
        family: Of the machine.
        stop_reason: Why it ended.
        faults: A sentence for each contradiction.
        probes_beyond: Probes beyond `max_probes`, without those for the batch size.
    """

    seed: int
    family: Family
    stop_reason: str
    faults: tuple[str, ...]
    probes_beyond: int = 0


class FlawedRunner:
    """A simulated machine with updates, on which sizes crash, fail their verification or are slower in it."""

    def __init__(self, world: World, seed: int) -> None:
        self._runner = SimulatedRunner(world, seed=seed, shared_compile=True)
        rng = np.random.default_rng([seed, 91])
        self._crashing = {size for size in world.space.sizes[:2] if rng.random() < 0.15}
        self._flaw = rng.choice(["none", "refused", "slower"], p=[0.7, 0.15, 0.15])
        self._flawed: int | None = None  # the first size that is verified
        self._update_s = UPDATE_OF_PASSES / math.exp(world.log_throughput[0])
        self.spent_s = 0.0

    def __call__(self, probe: Probe) -> Observation:
        """Run one probe."""
        observation = self._flawed_one(probe, self._runner(probe))
        self.spent_s += observation.elapsed_s
        if not observation.is_measured:
            return observation
        return dataclasses.replace(observation, update_times_s=(self._update_s, 1.1 * self._update_s))

    def _flawed_one(self, probe: Probe, observation: Observation) -> Observation:
        size = probe.micro_batch_size
        if size in self._crashing:
            return _failed(observation, Outcome.CRASHED, "CUDA error: misaligned address")
        if not probe.purpose.is_verification or not observation.is_measured:
            return observation
        self._flawed = self._flawed or size
        if size != self._flawed or self._flaw == "none":
            return observation
        if self._flaw == "refused":
            return _failed(observation, Outcome.OUT_OF_MEMORY, "peak above the budget")
        slower = tuple(seconds / SLOWER_ALONE for seconds in observation.pass_times_s)
        return dataclasses.replace(observation, pass_times_s=slower)


def _failed(observation: Observation, outcome: Outcome, reason: str) -> Observation:
    nothing: dict[str, Any] = {"pass_times_s": (), "interleaved_times_s": {}, "peak_memory_bytes": None}
    return dataclasses.replace(observation, outcome=outcome, reason=reason, **nothing)


def printed(seed: int) -> Printed | None:
    """Explore the job of a seed and read what is printed; None where nothing fits or nothing runs."""
    family = list(Family)[seed % len(Family)]
    config = load(draw_job(seed))
    candidates = candidate_sizes(
        config.candidates,
        minimum=config.minimum,
        maximum=max(config.maximum or 0, config.minimum),
        replica_batch_size=config.replica_batch_size,
    )
    keeping = find_sizes_that_keep(config, candidates)
    space = Space.from_sizes([*candidates, *(keeping.sizes if keeping else ())])
    world = draw_world(family, seed, space)
    runner, rng = FlawedRunner(world, seed), np.random.default_rng([seed, 92])
    settings = dataclasses.replace(
        search_settings(config),
        max_probes=int(rng.choice([2, 3, 5, 8, 16])),
        target_confidence=int(rng.choice([60, 90, 98])),
        time_budget_s=float(rng.choice([100.0, 300.0])) if rng.random() < 0.2 else None,
        training_time_s=float(rng.choice([600.0, 36_000.0])),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = run_directory.create_run(Path(folder), meta={}, now=datetime.now(UTC))
        record = RunRecord(record=run.journal.append, clock=lambda: runner.spent_s)
        variants = (Variant(memory=world.memory),)
        try:
            events = list(
                run_search(
                    runner,
                    space=Space.from_sizes(candidates),
                    settings=settings,
                    variants=variants,
                    keeping=keeping,
                    run=record,
                )
            )
        except Exception as error:
            if "fit" in str(error) or "fails at every" in str(error) or "could be measured" in str(error):
                return None
            raise
        result = events[-1]
        assert isinstance(result, Result)
        streamed = [one for one in events if isinstance(one, Recommendation)]
        finish = Finish(
            config=config, runner=None, run=run, cost_model=None, device_info={}, elapsed_s=lambda: runner.spent_s
        )
        told, observations = finish.result(result), run.journal.read()
        if told.micro_batch_size is None:  # all that ran was refused when it was verified
            return None
    text = summary_text(told, tolerance=config.settings.tolerance)
    line = recommendation_line(streamed[-1], datetime.now(UTC))
    found = faults(told, text, line, observations, world, tolerance=config.settings.tolerance)
    of_search = sum(one.probe.purpose.value != "keep_batch_size" for one in observations)
    return Printed(
        seed=seed,
        family=family,
        stop_reason=told.search.stop_reason,
        faults=tuple(found),
        probes_beyond=max(0, of_search - settings.max_probes),
    )


def faults(
    result: RunResult,
    text: str,
    line: str,
    observations: Sequence[Observation],
    world: World,
    *,
    tolerance: float,
) -> Iterator[str]:
    """Yield what is contradictory in a summary, its result and the last streamed line."""
    speeds = {one.micro_batch_size: one for one in result.answer.speeds}
    measured = {size for one in observations if one.is_measured for size in one.estimates}
    size = result.micro_batch_size
    assert size is not None  # the caller has checked it
    answer = speeds[size]
    if set(speeds) != measured:
        yield f"estimates of {sorted(speeds)}, measurements of {sorted(measured)}"
    yield from _faults_of_headline(result, text, line, base=min(measured))
    if keeping := KEEPING.search(text):
        own, factor, other, speed = keeping.groups()
        yield from _differ("speed of the size that keeps the batch", speed, format_rate(speeds[int(own)].samples_per_s))
        ratio = speeds[int(own)].samples_per_s / speeds[int(other)].samples_per_s
        yield from _differ("factor of the size that keeps the batch", factor, f"{ratio:.2f}")
        if int(other) != size:
            yield f"the size that keeps the batch is compared with {other}"
    smaller = SMALLER.search(text)
    if smaller and speeds[int(smaller[1])].samples_per_s < (1.0 - tolerance) * answer.samples_per_s * 0.999999:
        yield f"size {smaller[1]} is told to be within the tolerance"
    for small, large, low, high in GROWTH.findall(text):
        yield from _differ(f"speed of size {small}", low, format_rate(speeds[int(small)].samples_per_s))
        yield from _differ(f"speed of size {large}", high, format_rate(speeds[int(large)].samples_per_s))
    steps = STEP.findall(text)
    if len(steps) != len(result.batch.global_batch_sizes):
        yield f"{len(steps)} steps were read of {len(result.batch.global_batch_sizes)}"
    for _, accumulation, step in steps:
        wanted_s = int(accumulation) * size / answer.samples_per_s + (result.answer.update_time_s or 0.0)
        yield from _differ(f"step of {accumulation} passes", step, format_seconds(wanted_s))
    band = result.search.throughput_band
    for one in [] if band is None else speeds.values():
        at = band.sizes.index(one.micro_batch_size)
        if not math.isclose(band.middle[at], one.samples_per_s, rel_tol=1e-4):
            yield f"the band has {band.middle[at]} at size {one.micro_batch_size}, the estimate is {one.samples_per_s}"
    if re.search(r"-0\.0\b(?!\d)", json.dumps(result.as_record())):
        yield "a negative zero"
    yield from _faults_of_answer(result, observations, world)


def _faults_of_headline(result: RunResult, text: str, line: str, *, base: int) -> Iterator[str]:
    head, last = HEADLINE.search(text), STREAMED.search(line)
    if head is None or last is None:
        yield f"unread: {text.splitlines()[0]} / {line}"
        return
    speeds = {one.micro_batch_size: one.samples_per_s for one in result.answer.speeds}
    size = int(head["size"])
    yield from _differ("samples/s of the answer", head["speed"], format_rate(speeds[size]))
    yield from _differ("streamed size", last[1], head["size"])
    yield from _differ("streamed score", last[3], head["score"])
    yield from _differ("streamed factor", last[2], f"{speeds[size] / speeds[base]:.2f}")
    yield from _differ("base", str(result.answer.base_micro_batch_size), str(base))
    if head["factor"] is None:
        yield from _differ("the answer that is the base", head["size"], str(base))
        return
    yield from _differ("factor", head["factor"], f"{speeds[size] / speeds[base]:.2f}")
    yield from _differ("named base", head["base"], str(base))
    if head["low"] and not float(head["low"]) <= float(head["factor"]) <= float(head["high"]):
        yield "the factor is outside of its interval"


def _faults_of_answer(result: RunResult, observations: Sequence[Observation], world: World) -> Iterator[str]:
    """Yield an answer that was not verified, or than which something measured is faster."""
    size = result.micro_batch_size
    assert size is not None
    answer = next(one for one in result.answer.speeds if one.micro_batch_size == size)
    of_size = [one for one in observations if one.micro_batch_size == size]
    ran = verified_by(observations, size)
    if ran is None or ran.probe.compilation.is_for_search:
        yield f"{size} was not verified"
    if any(one.outcome is Outcome.OUT_OF_MEMORY and one.probe.purpose.is_verification for one in of_size):
        yield f"{size} ran out of memory when it was verified"
    refused = [one.micro_batch_size for one in observations if one.outcome is Outcome.OUT_OF_MEMORY]
    limit = min(refused, default=math.inf)
    for one in result.answer.speeds:
        if one.micro_batch_size < limit and one.interval[0] > answer.interval[1]:
            yield f"{one.micro_batch_size} at {one.interval} is faster than {size} at {answer.interval}"
    if world.common_mode_sd or world.outlier_share or world.drift_per_probe:
        return  # single measurements are of other moments of the machine
    verified_speed = ran.samples_per_s if ran is not None else math.nan
    exact = [one for one in observations if one.is_measured and not one.probe.compilation.is_for_search]
    for one in exact:
        noise = 3.0 * math.sqrt(2.0) * math.hypot(world.run_sd, world.pass_sd)
        if one.micro_batch_size < limit and one.samples_per_s > verified_speed * math.exp(noise + 0.02):
            yield f"{one.micro_batch_size} measured {one.samples_per_s:.4g}, {size} {verified_speed:.4g}"


def _differ(what: str, printed_one: str, wanted: str) -> Iterator[str]:
    if printed_one != wanted:
        yield f"{what}: {printed_one} is printed, {wanted} follows from the estimates"


def main() -> None:
    """Explore, count and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--explorations", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    found: list[Printed] = []
    with ProcessPoolExecutor() as pool:
        seeds = iter(range(2 * asked.explorations + 100))
        while len(found) < asked.explorations:
            batch = [next(seeds) for _ in range(min(100, asked.explorations - len(found) + 10))]
            found += [one for one in pool.map(printed, batch, chunksize=5) if one is not None]
            wrong = [one for one in found if one.faults]
            print(f"{len(found)} explorations, {len(wrong)} with a fault", flush=True)
    found = found[: asked.explorations]
    wrong = [one for one in found if one.faults]
    record = {
        "command": f"python -m benchmarks.printed_numbers --explorations {asked.explorations}",
        "machine": machine_facts(),
        "explorations": len(found),
        "with_a_fault": len(wrong),
        "faults": [{"seed": one.seed, "family": one.family.value, "faults": one.faults} for one in wrong],
        "stop_reasons": dict(sorted(Counter(one.stop_reason for one in found).items())),
        "probes_beyond_max_probes": dict(sorted(Counter(one.probes_beyond for one in found).items())),
    }
    asked.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
