"""What tuning costs in all: the seconds of the finder, and those that its answer loses over a training of ten hours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search_baselines import BASELINES, Bench
from benchmarks.search_pool import over_cores
from benchmarks.search_problems import GROUPS, Problem, explored, public_problems, simulated_problems
from benchmarks.search_statistics import RESAMPLES
from bexplore.measurement.statistics import Array
from bexplore.replay.table import Curve
from tests.simulated.simulator import Family

TRAINING_S = 36_000.0
EACH_COMPILED = "bexplore, each size compiled"  # as the rivals do it
AS_IT_WORKS = "bexplore"  # one compilation for all sizes, and the winner compiled as the training will
OURS = {EACH_COMPILED: (False, False), AS_IT_WORKS: (True, True)}  # shares a compilation, verifies the winner
PUBLIC_SETS = {f"recorded, {name}": families for name, families in GROUPS.items()}
SETS = (*PUBLIC_SETS, Family.CPU_LIKE.value, Family.GPU_LIKE.value)
Costs = Mapping[str, tuple[float, float]]  # by method: seconds of the finder, seconds that its answer loses


def problems_of(name: str, *, num_seeds: int, num_worlds: int, first_seed: int) -> list[Problem]:
    """The problems of one of `SETS`."""
    if name in PUBLIC_SETS:
        return list(public_problems(num_seeds, families=PUBLIC_SETS[name]))
    return list(simulated_problems(Family(name), num_worlds, first_seed=first_seed))


def costs_of(problem: Problem) -> Costs | None:
    """What every method costs on a problem; None where nothing fits, for then none has an answer."""
    if problem.regret(problem.space.base) >= 1.0:
        return None
    found = {}
    for name, (shares, verifies) in OURS.items():
        run = explored(problem, shared_compile=shares, verifies=verifies)
        if run is None:
            return None
        found[name] = run.cost_s, TRAINING_S * problem.regret(run.best.micro_batch_size)
    for name, rule in BASELINES.items():
        bench = Bench(problem)
        size = rule(bench)
        found[name] = bench.cost_s, TRAINING_S * problem.regret(size)
    return found


def total_cost(*, num_seeds: int, num_worlds: int, first_seed: int) -> list[dict[str, Any]]:
    """Every method on the same problems; a row of each set."""
    rows = []
    for name in SETS:
        problems = problems_of(name, num_seeds=num_seeds, num_worlds=num_worlds, first_seed=first_seed)
        found = over_cores(_with_source, problems)
        rows.append({"set": name} | totals([costs for _, costs in found], [source for source, _ in found]))
    return rows


def _with_source(problem: Problem) -> tuple[str, Costs] | None:
    """The curve or the world beside what each method costs there: seeds of one curve are no problems of their own."""
    costs = costs_of(problem)
    source = problem.source.curve_id if isinstance(problem.source, Curve) else str(problem.seed)
    return costs and (f"{problem.family} {source}", costs)


def totals(found: Sequence[Costs], sources: Sequence[str]) -> dict[str, Any]:
    """What each method costs by sum and by median, and ours over the cheapest rival's.

    Args:
        found: By problem.
        sources: The recorded curve or the world of each; intervals are over these.
    """
    seconds = {name: np.array([costs[name] for costs in found]) for name in found[0]}
    spent = {name: values.sum(axis=1) for name, values in seconds.items()}
    places = [np.flatnonzero(np.array(sources) == source) for source in dict.fromkeys(sources)]
    rivals = [name for name in spent if name not in OURS]
    return {
        "problems": len(found),
        "sources": len(places),
        "methods": {name: _seconds_row(seconds[name]) for name in spent},
        "best_rival": min(rivals, key=lambda name: float(spent[name].sum())),
        "best_rival_by_median": min(rivals, key=lambda name: float(np.median(spent[name]))),
        "ratios": {
            name: {
                "sum": _with_interval(functools.partial(_ratio, spent, name, rivals, np.sum), places),
                "median": _with_interval(functools.partial(_ratio, spent, name, rivals, np.median), places),
            }
            for name in OURS
            if name in spent
        },
    }


def _seconds_row(seconds: Array) -> dict[str, float]:
    """Of (n, 2): seconds of the finder, and those that its answer loses."""
    both = seconds.sum(axis=1)
    return {
        "finder_sum_s": float(seconds[:, 0].sum()),
        "lost_sum_s": float(seconds[:, 1].sum()),
        "sum_s": float(both.sum()),
        "finder_median_s": float(np.median(seconds[:, 0])),
        "median_s": float(np.median(both)),
    }


def _ratio(
    spent: Mapping[str, Array],
    ours: str,
    rivals: Sequence[str],
    statistic: Callable[[Array], Any],
    at: NDArray[np.intp],
) -> float:
    """Ours over the cheapest rival's, on the problems at some places; whichever rival is the cheapest there."""
    return float(statistic(spent[ours][at]) / min(statistic(spent[name][at]) for name in rivals))


def _with_interval(
    statistic: Callable[[NDArray[np.intp]], float], places: Sequence[NDArray[np.intp]]
) -> tuple[float, float, float]:
    """A statistic of all problems, and its 95 % bootstrap interval over their curves or worlds."""
    rng = np.random.default_rng(0)
    draws = [
        statistic(np.concatenate([places[i] for i in rng.integers(0, len(places), len(places))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return statistic(np.concatenate(places)), float(low), float(high)
