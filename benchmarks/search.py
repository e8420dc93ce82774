"""The search against what a user would pick instead: `python -m benchmarks.search [--quick]`.

Public sweeps are replayed (the search was developed on three of the four families; the other is reported apart) and
worlds with a known answer are simulated, on seeds that were not used before. Nothing is known to the search that a user
would not know: of a public sweep no shape and no memory but the peaks that it measured itself; of a world what a trace
with an error of 8 % says.

The verdict is `total_cost`: the seconds of the finder plus those that its answer loses over a training of ten hours.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.search_baselines import BASELINES, answer_of
from benchmarks.search_never_below import never_below
from benchmarks.search_pool import over_cores
from benchmarks.search_problems import (
    DEVELOPED_ON,
    GROUPS,
    IN_TURNS,
    NOT_SEEN,
    TOLERANCE,
    Answer,
    Problem,
    answered,
    public_problems,
    simulated_problems,
)
from benchmarks.search_report import draw_reliability, markdown
from benchmarks.search_statistics import (
    bootstrap,
    least_cost_ratio,
    shortfalls_held,
    static_sweep_ratio,
    summary,
    variable_cost_ratio,
)
from benchmarks.search_total_cost import total_cost
from bexplore.measurement.probe import Compilation, Probe
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decide import decide
from bexplore.search.posterior.joint import Variant
from bexplore.search.settings import SearchSettings
from tests.simulated.simulator import Family, SimulatedRunner, draw_world

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 3_000_000
MAIN_FAMILIES = (Family.SMOOTH, Family.ROUGH, Family.CLIFFS)
NUM_PROBLEMS = {"main": 1600, "other": 200, "quick": 60}
NUM_SEEDS = {False: 6, True: 1}  # of noise on each recorded sweep, by whether it must be quick
NUM_WORLDS_OF_TOTAL_COST = {False: 800, True: 40}
NUM_WATCHED = {False: 20_000, True: 400}
TAKE_TURNS = (Family.DRIFTING_HOST.value, Family.BURSTS.value)
BASELINE_WORLDS = 800  # of a family, the first, on which the others are run too:
BASELINE_THINNING = 4  # on every fourth of them ...
SLOW_BASELINES = {"Optuna TPE": 8, "Optuna GPSampler": 40}  # ... the slow ones on fewer
DECISION_CANDIDATES = 4096
DECISION_TIME = "decision-time"
TOLERANCES = "tolerances"
SHORTFALLS = "regrets"
TOTAL_COST = "total_cost"
NOISES = "noises"
NEVER_BELOW = "never_below"
NOISE_SDS = (0.0, 0.01, 0.03, 0.05)  # of a pass and of a run of a recorded sweep, as a fraction
OTHER_TOLERANCES = (0.01, 0.05, 0.1)
WORLDS_OF_TOLERANCES = {  # and whether their sizes share a compilation, and so can take turns
    Family.SMOOTH: False,
    Family.ROUGH: False,
    Family.CLIFFS: False,
    Family.DRIFTING_HOST: True,
}
WORLDS = ("public", *(family.value for family in Family))
PARTS = (TOTAL_COST, *WORLDS, NOISES, NEVER_BELOW, TOLERANCES, SHORTFALLS, DECISION_TIME)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer problems, under five minutes")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the worlds")
    parser.add_argument(
        "--keep-others",
        action="store_true",
        help="take the other methods from the results, which have the same problems",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=[],
        help="measure these worlds or other parts, and take all else from the results",
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    known = _known(options.quick, options.first_seed) if options.keep_others or options.only else {}
    others = known["methods"] if options.keep_others else {}
    parts = options.only or PARTS
    report = measure(parts, quick=options.quick, first_seed=options.first_seed, others=others)
    report["first_seed"] = options.first_seed
    report["facts"] = facts_of(arguments) | {"wall_time_s": round(time.monotonic() - began)}
    if options.only:
        report = joined(known, report)
    stem = _stem(options.quick)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{stem}.json").write_text(json.dumps(report, indent=1, allow_nan=True) + "\n")
    text = markdown(report)
    (RESULTS / f"{stem}.md").write_text(text)
    draw_reliability(report, RESULTS / f"{stem}_reliability.svg")
    sys.stdout.write(text)
    return 0


def _known(quick: bool, first_seed: int) -> dict[str, Any]:
    """The report of an earlier run, whose problems were the same."""
    path = RESULTS / f"{_stem(quick)}.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    if report.get("first_seed") != first_seed:
        sys.exit(f"{path} has no results for worlds from seed {first_seed}: run all of it first")
    return report


def joined(known: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """A report of some parts, and of the others what an earlier one has, whose circumstances are told too."""
    facts = known["facts"]
    earlier = [", ".join(facts[name] for name in ("command", "date", "revision"))]
    earlier += [facts["all_else"]] if "all_else" in facts else []
    found = dict(known) | dict(report)
    found["methods"] = known["methods"] | report["methods"]
    found["public_families"] = report["public_families"] or known["public_families"]
    found["facts"] = report["facts"] | {"all_else": "; ".join(earlier)}
    return found


def _stem(quick: bool) -> str:
    return "search_quick" if quick else "search"


def measure(parts: Sequence[str], *, quick: bool, first_seed: int, others: Mapping[str, Any]) -> dict[str, Any]:
    """Run every method on every problem of these parts; `others` has what needs no second run, by world and method."""
    report: dict[str, Any] = {"methods": {}, "public_families": {}}
    if TOTAL_COST in parts:
        report["total_cost"] = total_cost(
            num_seeds=NUM_SEEDS[quick], num_worlds=NUM_WORLDS_OF_TOTAL_COST[quick], first_seed=first_seed
        )
        _progress(TOTAL_COST, "all")
    for world in (part for part in WORLDS if part in parts):
        problems = _problems(world, quick=quick, first_seed=first_seed)
        own = over_cores(answered, problems)
        report["methods"][world] = {"bexplore": summary(own)}
        _progress(world, "bexplore")
        if world in TAKE_TURNS:  # which sizes only do where one process runs them
            in_turns = over_cores(functools.partial(answered, shared_compile=True), problems)
            report["methods"][world][IN_TURNS] = summary(in_turns)
        for name in BASELINES:
            if name in others.get(world, {}):
                report["methods"][world][name] = others[world][name]
                continue
            thinning = SLOW_BASELINES.get(name, BASELINE_THINNING)
            shared = problems if world == "public" else problems[:BASELINE_WORLDS]
            answers = over_cores(functools.partial(answer_of, name), shared[::thinning])
            report["methods"][world][name] = summary(answers)
            _progress(world, name)
        if world == "public":
            report |= _public_details(problems, own)
    if NOISES in parts:
        report["noises"] = noises(NUM_SEEDS[quick])
    if NEVER_BELOW in parts:
        report["never_below"] = never_below(NUM_WATCHED[quick], first_seed)
        _progress(NEVER_BELOW, "bexplore")
    if TOLERANCES in parts:
        report["tolerances"] = tolerances(NUM_PROBLEMS["quick" if quick else "other"], first_seed)
    if SHORTFALLS in parts:
        report["regrets"] = regrets(NUM_PROBLEMS["quick" if quick else "other"], first_seed)
    if DECISION_TIME in parts:
        report["decision_time"] = decision_time()
    return report


def noises(num_seeds: int) -> list[dict[str, Any]]:
    """bexplore on the recorded sweeps at other noises than their own; a row of all sweeps and of each group."""
    rows = []
    for noise in NOISE_SDS:
        found = {
            name: over_cores(answered, list(public_problems(num_seeds, families=families, noise=noise)))
            for name, families in GROUPS.items()
        }
        everything = [answer for answers in found.values() for answer in answers]
        rows += [
            {"noise": noise, "sweeps": name} | summary(answers)
            for name, answers in ({"all": everything} | found).items()
        ]
        _progress(NOISES, f"{noise:g}")
    return rows


def tolerances(count: int, first_seed: int) -> list[dict[str, Any]]:
    """What the scores are worth of explorations that take less or more for a tie; a row of all worlds and of each."""
    rows = []
    for tolerance in OTHER_TOLERANCES:
        found = _answers_by_world(count, first_seed, tolerance)
        rows += [{"tolerance": tolerance, "world": name} | summary(answers) for name, answers in found.items()]
        _progress(TOLERANCES, f"{tolerance:g}")
    return rows


def regrets(count: int, first_seed: int) -> list[dict[str, Any]]:
    """How often what a score below 90 says of its distance from the best holds; a row of all worlds and of each."""
    found = _answers_by_world(count, first_seed, TOLERANCE)
    _progress(SHORTFALLS, "bexplore")
    return [{"world": name} | shortfalls_held(answers) for name, answers in found.items()]


def _answers_by_world(count: int, first_seed: int, tolerance: float) -> dict[str, list[Answer]]:
    """bexplore's on simulated jobs of each family, and before them those of all together."""
    found: dict[str, list[Answer]] = {}
    for family, shares in WORLDS_OF_TOLERANCES.items():
        problems = list(simulated_problems(family, count, first_seed=first_seed))
        ask = functools.partial(answered, shared_compile=shares, tolerance=tolerance)
        found[family.value] = over_cores(ask, problems)
    return {"all": [answer for answers in found.values() for answer in answers]} | found


def _problems(world: str, *, quick: bool, first_seed: int) -> list[Problem]:
    if world == "public":
        return list(public_problems(NUM_SEEDS[quick]))
    family = Family(world)
    count = NUM_PROBLEMS["quick" if quick else "main" if family in MAIN_FAMILIES else "other"]
    return list(simulated_problems(family, count, first_seed=first_seed))


def _public_details(problems: Sequence[Problem], answers: Sequence[Answer]) -> dict[str, Any]:
    by_family = {
        family: [answer for problem, answer in zip(problems, answers, strict=True) if problem.family == family]
        for family in (*DEVELOPED_ON, *NOT_SEEN)
    }
    joined = {name: [answer for family in group for answer in by_family[family]] for name, group in GROUPS.items()}
    shared = over_cores(functools.partial(answered, shared_compile=True), problems)
    return {
        "public_families": {name: summary(found) for name, found in (joined | by_family).items()},
        "public_shared_compile": summary(shared)
        | {
            "variable_cost_ratio": variable_cost_ratio(shared),
            "least_cost_ratio": least_cost_ratio(shared),
            "static_sweep_ratio": bootstrap(shared, static_sweep_ratio),
        },
    }


def decision_time(num_explorations: int = 8, num_probes: int = 14) -> dict[str, float]:
    """Milliseconds of one decision, the belief included, with 4096 candidates and a memory limit."""
    times, processor_times = [], []
    settings = SearchSettings(
        search_compilation=Compilation.EXACT, verify_exact=False, target_confidence=99, max_probes=num_probes
    )
    seeds = (seed for seed in range(10_000) if _has_many_candidates(seed))
    for _, seed in zip(range(num_explorations), seeds, strict=False):
        world = draw_world(Family.SMOOTH, seed)
        runner = SimulatedRunner(world, seed=seed)
        evidence: list[Evidence] = []
        while True:
            began, processor_began = time.perf_counter(), time.process_time()
            decision = decide(world.space, evidence, settings, variants=(Variant(memory=world.memory),))
            times.append(1000 * (time.perf_counter() - began))
            processor_times.append(1000 * (time.process_time() - processor_began))
            if decision.stop_reason is not None:
                break
            probe = Probe(number=len(evidence), micro_batch_size=decision.micro_batch_size)
            evidence.append(Evidence.from_observation(runner(probe)))
    found: dict[str, float] = {"count": len(times), "load": round(os.getloadavg()[0], 1)}
    for name, values in (("wall", times), ("processor", processor_times)):
        found |= {f"{name}_median_ms": float(np.median(values)), f"{name}_p95_ms": float(np.quantile(values, 0.95))}
    return found


def _has_many_candidates(seed: int) -> bool:
    return len(draw_world(Family.SMOOTH, seed).space.sizes) > 0.9 * DECISION_CANDIDATES


def facts_of(arguments: Sequence[str] | None, *, module: str = "search") -> dict[str, Any]:
    """The command, the revision and the machine."""
    root = Path(__file__).parent.parent
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    flags = " ".join(sys.argv[1:] if arguments is None else arguments)
    return {
        "command": f"python -m benchmarks.{module} {flags}".strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": revision.stdout.strip(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads_of_numpy": os.environ.get("OPENBLAS_NUM_THREADS", "all"),
        "load_at_the_end": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "optuna": optuna.__version__,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _progress(world: str, method: str) -> None:
    sys.stderr.write(f"{world}: {method}\n")


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.exit(main())
