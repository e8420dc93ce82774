"""Fit the confidence score: `python -m benchmarks.fit_calibration [--quick]`, five minutes on two cores.

The search runs on recorded sweeps that it was developed on, at four levels of noise, and on simulated jobs, on seeds of
their own. Whatever it recommends on the way, the belief's probability is held against what is true, at four tolerances,
and the weights of `bexplore.search.calibration` are fitted by logistic regression. Odd seeds are fitted, even ones tell
how well the fit does on what it was not made from. Which messages a search streams depends on the weights in use: copy
what was found into `bexplore/search/calibration.py` and run it again until it stays.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.search import facts_of
from benchmarks.search_pool import over_cores
from benchmarks.search_problems import DEVELOPED_ON, STEPS, Problem, public_problems, simulated_problems
from bexplore.errors import NothingFitsError
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array
from bexplore.search import calibration
from bexplore.search.calibration import Grounds, log_odds_terms
from bexplore.search.evidence import Evidence
from bexplore.search.loop import run_search
from bexplore.search.posterior.joint import Variant
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.recommendation import count_grounds, recommend
from bexplore.search.result import ProbeFinished
from bexplore.search.settings import SearchSettings
from tests.simulated.simulator import Family

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 7_000_000
NUM_SEEDS, QUICK_SEEDS = 4, 2  # of each recorded sweep at each noise
NUM_WORLDS, QUICK_WORLDS = 200, 20  # of each family
NOISES = (0.0, 0.01, 0.03, 0.05)
TOLERANCES = (0.01, 0.02, 0.05, 0.1)
RECORDED_SHARE = 0.5  # of all weight, each noise as much; the rest is shared by the families:
HARD_SHARE = 0.02  # jobs of which nearly nothing tells what is best are rare ...
IN_TURNS_SHARE = 0.03  # ... and machines that wander, whose sizes take turns, are some
HARD = (Family.SPILLS, Family.LONE_PEAKS, Family.SHELVES)
IN_TURNS = (Family.DRIFTING_HOST, Family.BURSTS)
RIDGE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A recommendation on the way, at one tolerance.

    Attributes:
        group: The sweeps at one noise, or the family.
        seed: Of the problem.
        grounds: What the probability rests on.
        tolerance: What counted as a tie.
        probability: That it is within the tolerance, as the belief has it.
        is_right: Whether it is.
    """

    group: str
    seed: int
    grounds: Grounds
    tolerance: float
    probability: float
    is_right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_calibration", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few problems: to see that it runs; no results are kept")
    options = parser.parse_args(arguments)
    problems = list(
        _problems(QUICK_SEEDS if options.quick else NUM_SEEDS, QUICK_WORLDS if options.quick else NUM_WORLDS)
    )
    order = np.random.default_rng(0).permutation(len(problems))  # so that all processes have slow and quick ones
    found = over_cores(messages_of, [problems[index] for index in order])
    messages = [message for some in found for message in some]
    report = report_of(messages) | {"facts": facts_of(arguments, module="fit_calibration")}
    text = markdown(report)
    if not options.quick:
        (RESULTS / "calibration.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "calibration.md").write_text(text)
    sys.stdout.write(text)
    return 0


def _problems(num_seeds: int, num_worlds: int) -> Iterator[Problem]:
    for noise in NOISES:
        yield from public_problems(num_seeds, families=DEVELOPED_ON, noise=noise, first_seed=FIRST_SEED)
    for family in Family:
        yield from simulated_problems(family, num_worlds, first_seed=FIRST_SEED)


def _group_of(problem: Problem) -> str:
    return problem.family if problem.noise is None else f"recorded, noise {problem.noise:.0%}"


def messages_of(problem: Problem) -> list[Message]:
    """What the search recommends on the way, at each tolerance; nothing where nothing fits."""
    takes_turns = problem.family in IN_TURNS
    compilation = Compilation.SHARED if takes_turns else Compilation.EXACT
    settings = SearchSettings(
        search_compilation=compilation, user_compilation=compilation, verify_exact=False, max_passes=STEPS
    )
    runner = problem.runner(shared_compile=takes_turns)
    evidence: list[Evidence] = []
    found: list[Message] = []
    try:
        for event in run_search(
            runner, space=problem.space, settings=settings, variants=(Variant(memory=problem.memory),)
        ):
            if isinstance(event, ProbeFinished):
                evidence.append(Evidence.from_observation(event.observation))
                found += _messages(problem, evidence, compilation)
    except NothingFitsError:
        return []
    return found


def _messages(problem: Problem, evidence: Sequence[Evidence], compilation: Compilation) -> Iterator[Message]:
    if not any(item.is_measured for item in evidence):
        return
    fitted = fit_posterior(problem.space, evidence, memory=problem.memory, user_compilation=compilation)
    grounds = count_grounds(fitted, evidence)
    for tolerance in TOLERANCES:
        best = recommend(fitted, evidence, tolerance=tolerance)
        if best is not None:
            yield Message(
                group=_group_of(problem),
                seed=problem.seed,
                grounds=grounds,
                tolerance=tolerance,
                probability=float((fitted.regret(best.micro_batch_size) <= tolerance).mean()),
                is_right=problem.regret(best.micro_batch_size) <= tolerance,
            )


def report_of(messages: Sequence[Message]) -> dict[str, Any]:
    """The weights, and how well they do on the seeds that they were not fitted on."""
    halves = [[message for message in messages if message.seed % 2 == odd] for odd in (1, 0)]
    fitted, held_out = halves
    weights = fit([message for message in fitted if not message.grounds.is_one_size])
    usual = [message for message in held_out if message.tolerance == INDIFFERENCE_ZONE]
    groups = sorted({message.group for message in usual})
    return {
        "in_use": calibration.WEIGHTS,
        "found": weights,
        "num_messages": len(messages),
        "groups": {name: bands([message for message in usual if message.group == name], weights) for name in groups},
        "tolerances": {
            f"{tolerance:g}": bands([m for m in held_out if m.tolerance == tolerance], weights)
            for tolerance in TOLERANCES
        },
        "one_size": one_size([message for message in usual if message.grounds.is_one_size]),
    }


def one_size(messages: Sequence[Message]) -> list[dict[str, float]]:
    """Share that is right, in percent, by what the belief thinks of a size that was held against no other."""
    edges = (0.0, 0.01, 0.1, 0.9, 1.01)
    found = []
    for low, high in itertools.pairwise(edges):
        inside = [message for message in messages if low <= message.probability < high]
        right = 100.0 * sum(message.is_right for message in inside) / max(len(inside), 1)
        found.append({"from": low, "count": len(inside), "true": right})
    return found


def fit(messages: Sequence[Message]) -> list[float]:
    """(5,), weights by logistic regression with a touch of ridge; rounded, so that they can be read."""
    terms, share = _terms(messages), shares_of(messages)
    right = np.array([message.is_right for message in messages], dtype=float)
    weights = np.zeros(terms.shape[1])
    for _ in range(50):  # Newton's method
        expected = 1.0 / (1.0 + np.exp(-terms @ weights))
        slope = terms.T @ (share * (expected - right)) + RIDGE * weights
        curvature = (terms * (share * expected * (1.0 - expected))[:, None]).T @ terms
        weights = weights - np.linalg.solve(curvature + RIDGE * np.eye(len(weights)), slope)
    return [round(float(weight), 3) for weight in weights]


def shares_of(messages: Sequence[Message]) -> Array:
    """(n,), weight of each message, in sum 1: a group's share is that of its kind, whatever its number of messages."""
    groups = [message.group for message in messages]
    kinds = {name: _share_of(name) / groups.count(name) for name in set(groups)}
    shares = np.array([kinds[name] for name in groups])
    return shares / shares.sum()


def _share_of(group: str) -> float:
    if group.startswith("recorded"):
        return RECORDED_SHARE / len(NOISES)
    special = {family: HARD_SHARE for family in HARD} | {family: IN_TURNS_SHARE for family in IN_TURNS}
    usual = [family for family in Family if family not in special]
    rest = 1.0 - RECORDED_SHARE - sum(special.values())
    return special.get(Family(group), rest / len(usual))


def _terms(messages: Sequence[Message]) -> Array:
    """(n, 5)."""
    return np.array([log_odds_terms(m.probability, m.grounds, tolerance=m.tolerance) for m in messages])


def bands(messages: Sequence[Message], weights: Sequence[float]) -> list[dict[str, float]]:
    """Mean score and share that is right, in percent, of each band of ten."""
    terms, share = _terms(messages), shares_of(messages)
    of_one = np.array([message.grounds.is_one_size for message in messages])
    log_odds = np.where(of_one, terms @ calibration.WEIGHTS_OF_ONE_SIZE, terms @ np.array(weights))
    scores = np.minimum(100.0 / (1.0 + np.exp(-log_odds)), calibration.MAX_SCORE)
    right = 100.0 * np.array([message.is_right for message in messages], dtype=float)
    found = []
    for low in range(0, 100, 10):
        inside = (scores >= low) & (scores < low + 10)
        if inside.any():
            mean = functools.partial(np.average, weights=share[inside])
            row = {"from": low, "count": int(inside.sum()), "share": float(share[inside].sum())}
            found.append(row | {"score": float(mean(scores[inside])), "true": float(mean(right[inside]))})
    return found


def markdown(report: dict[str, Any]) -> str:
    """Everything, as one page."""
    facts = report["facts"]
    lines = ["# The confidence score, fitted", "", f"`{facts['command']}`, {facts['date']}, {facts['revision']}.", ""]
    lines += [f"{report['num_messages']} recommendations at {len(TOLERANCES)} tolerances.", ""]
    lines += [f"Weights found: {_row(report['found'])}; in use: {_row(report['in_use'])}.", ""]
    heading = (
        "Seeds that were not fitted: mean score -> share that is right (messages), by band; the error is the mean "
    )
    lines += ["", heading + "distance of the two.", ""]
    for title, key in (("within 2 %", "groups"), ("tolerance, all problems", "tolerances")):
        lines += [f"| {title} | calibration error | bands |", "|---|---|---|"]
        lines += [f"| {name} | {_error(rows):.3f} | {_bands(rows)} |" for name, rows in report[key].items()]
        lines.append("")
    lines += ["Where one size alone was measured, by what the belief thinks of it:", ""]
    lines += [f"from {row['from']:g}: {row['true']:.0f} % right of {row['count']}  " for row in report["one_size"]]
    return "\n".join([*lines, ""])


def _row(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:g}" for weight in weights)


def _error(rows: Sequence[dict[str, float]]) -> float:
    return math.fsum(row["share"] * abs(row["score"] - row["true"]) / 100.0 for row in rows)


def _bands(rows: Sequence[dict[str, float]]) -> str:
    return ", ".join(f"{row['from']:.0f}+: {row['score']:.0f} -> {row['true']:.0f} ({row['count']})" for row in rows)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.exit(main())
