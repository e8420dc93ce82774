"""The search with estimates of the speed, right and wrong ones: `python -m benchmarks.estimate_prior [--problems N]`.

Simulated jobs and recorded sweeps, each searched without an estimate and with one of each kind, with one compilation
and a verification. Probes are counted to the first score of 90, of all where none is reached; the cost is the seconds
of the search, and those that its answer loses over a training of ten hours.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.machine_facts import machine_facts
from benchmarks.search_pool import over_cores
from benchmarks.search_problems import NOT_SEEN, TOLERANCE, Problem, explored, public_problems, simulated_problems
from benchmarks.search_statistics import wilson
from benchmarks.search_total_cost import TRAINING_S
from bexplore.replay.table import Curve
from bexplore.search.posterior.estimated import SpeedPrior
from bexplore.testing.estimates import RIGHT, EstimateKind, draw_estimate
from bexplore.testing.simulator import Family

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 9_000_000
RECORDED = "recorded, not seen"
SETS = (Family.GPU_LIKE.value, Family.SMOOTH.value, Family.CLIFFS.value, RECORDED)
HIGH_SCORE = 90
RESAMPLES = 1000
NONE = "no estimate"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One search: probes to a score of 90, all probes, seconds, seconds lost, and the score and whether it is right."""

    probes_to_90: int
    reached_90: bool
    num_probes: int
    finder_s: float
    lost_s: float
    score: int
    is_right: bool
    is_right_at_90: tuple[bool, ...]  # each streamed score of 90 and above

    @property
    def total_s(self) -> float:
        return self.finder_s + self.lost_s


def problems_of(name: str, count: int) -> list[Problem]:
    if name != RECORDED:
        return list(simulated_problems(Family(name), count, first_seed=FIRST_SEED))
    return list(public_problems(1, families=NOT_SEEN))[: 2 * count : 2]


def speed_of(problem: Problem, kind: EstimateKind) -> SpeedPrior:
    """An estimate of a problem; of a recorded sweep beyond what fits, that of the largest size that does."""
    space, source = problem.space, problem.source
    if not isinstance(source, Curve):
        return draw_estimate(space, source.log_throughput, source.fits, kind, problem.seed)
    known = {size: point.throughput for size, point in source.points.items() if point.fits}
    curve = np.interp(np.log(space.sizes), np.log(list(known)), np.log(list(known.values())))
    return draw_estimate(space, curve, np.isin(space.sizes, list(known)), kind, problem.seed)


def search(kind: EstimateKind | None, problem: Problem) -> Found | None:
    """Search with an estimate of a kind, or without one; None where nothing fits."""
    if problem.regret(problem.space.base) >= 1.0:
        return None
    if kind is not None:
        problem = dataclasses.replace(problem, speed=speed_of(problem, kind))
    run = explored(problem, shared_compile=True, verifies=True)
    if run is None:
        return None
    first = next((number for number, told in run.streamed if told.confidence >= HIGH_SCORE), None)
    rights = [(told.confidence, problem.regret(told.micro_batch_size) <= TOLERANCE) for _, told in run.streamed]
    regret = problem.regret(run.best.micro_batch_size)
    return Found(
        probes_to_90=first or len(run.observations),
        reached_90=first is not None,
        num_probes=len(run.observations),
        finder_s=run.cost_s,
        lost_s=TRAINING_S * regret,
        score=run.best.confidence,
        is_right=regret <= TOLERANCE,
        is_right_at_90=tuple(is_right for score, is_right in rights if score >= HIGH_SCORE),
    )


def rows_of(name: str, count: int) -> Iterator[Row]:
    """A row of each kind of estimate on the problems of a set, beside the same problems without one."""
    problems = problems_of(name, count)
    plain = over_cores(functools.partial(search, None), problems)
    for kind in (None, *EstimateKind):
        own = plain if kind is None else over_cores(functools.partial(search, kind), problems)
        yield {"set": name, "estimate": NONE if kind is None else kind.value} | summary(own, plain)


def summary(own: Sequence[Found], plain: Sequence[Found]) -> Row:
    high = [one for one in own if one.score >= HIGH_SCORE]
    streamed = [is_right for one in own for is_right in one.is_right_at_90]
    return {
        "problems": len(own),
        "probes_to_90": float(np.mean([one.probes_to_90 for one in own])),
        "reached_90": float(np.mean([one.reached_90 for one in own])),
        "probes": float(np.mean([one.num_probes for one in own])),
        "finder_s": float(np.mean([one.finder_s for one in own])),
        "lost_s": float(np.mean([one.lost_s for one in own])),
        "right": float(np.mean([one.is_right for one in own])),
        "score_90_mean": float(np.mean([one.score for one in high])) if high else float("nan"),
        "score_90_right": wilson(sum(one.is_right for one in high), len(high)),
        "streamed_90_right": wilson(sum(streamed), len(streamed)),
        "probes_to_90_over_plain": ratio(own, plain, "probes_to_90"),
        "finder_over_plain": ratio(own, plain, "finder_s"),
        "total_over_plain": ratio(own, plain, "total_s"),
    }


def ratio(own: Sequence[Found], plain: Sequence[Found], name: str) -> tuple[float, float, float]:
    """The mean over that without an estimate, and its 95 % interval over problems (bootstrap, paired)."""
    both = np.array([[getattr(one, name), getattr(other, name)] for one, other in zip(own, plain, strict=True)])
    rng = np.random.default_rng(0)
    draws = [both[rng.integers(0, len(both), len(both))].sum(axis=0) for _ in range(RESAMPLES)]
    low, high = np.quantile([first / second for first, second in draws], [0.025, 0.975])
    first, second = both.sum(axis=0)
    return float(first / second), float(low), float(high)


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    rights = [kind.value for kind in RIGHT]
    lines = [
        "# The search with estimates of the speed",
        "",
        f"`{report['facts']['command']}`, {report['facts']['at']}, {report['facts']['processor']}.",
        "",
        "Each job was searched without an estimate and with one of each kind. Probes: to the first score of 90, or all "
        "where none is reached. Total: seconds of the search and those that its answer loses over a training of ten "
        "hours, over the same without an estimate. Brackets are 95 % intervals.",
        "",
        "| problems | estimate | number | probes to 90 | over none | reach 90 | seconds over none | total over none "
        "| scores of 90 and above: mean | right | streamed: right |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        mark = "" if row["estimate"] in (NONE, *rights) else "wrong: "
        lines.append(
            f"| {row['set']} | {mark}{row['estimate']} | {row['problems']} | {row['probes_to_90']:.2f} | "
            f"{_change(row['probes_to_90_over_plain'])} | {row['reached_90']:.0%} | {_change(row['finder_over_plain'])}"
            f" | {_change(row['total_over_plain'])} | {row['score_90_mean']:.0f} | {row['score_90_right'][0]:.1%} | "
            f"{row['streamed_90_right'][0]:.1%} |"
        )
    return "\n".join([*lines, ""])


def _change(found: Sequence[float]) -> str:
    value, low, high = (f"{100 * (one - 1):+.0f}" for one in found)
    return f"{value} % ({low} to {high})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimate_prior", description=__doc__)
    parser.add_argument("--problems", type=int, default=40, help="of each set")
    parser.add_argument("--only", nargs="+", default=SETS, choices=SETS, help="these sets; others from the results")
    options = parser.parse_args(arguments)
    path = RESULTS / "estimate_prior.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    command = f"python -m benchmarks.estimate_prior --problems {options.problems}"
    for name in options.only:
        kept = [row for row in kept if row["set"] != name] + list(rows_of(name, options.problems))
        report = {"facts": machine_facts() | {"command": command}, "rows": kept}
        path.write_text(json.dumps(report, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(report))
    return 0


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.exit(main())
