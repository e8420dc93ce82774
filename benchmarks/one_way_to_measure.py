"""An experiment: every probe timed in rounds with one of the best sizes, against what the search does now.

`python -m benchmarks.one_way_to_measure [--worlds N]`, about ten minutes on two cores.

Today a size is timed alone until the passes show a shared machine; from then on it is timed in rounds with one of the
best sizes. The other design times every probe in such rounds as soon as one size has run, unless a round takes longer
than 12 s: one stopping rule, and no special case of a disturbed pass. All sizes share one compiled program here, since
only sizes of one program can be interleaved. The rule, set before the figures were seen: adopt the other design if its
figures stay within the intervals of today's.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optuna

from benchmarks.search import FIRST_SEED, facts_of
from benchmarks.search_pool import over_cores
from benchmarks.search_problems import Answer, Problem, answered, simulated_problems
from benchmarks.search_statistics import summary
from bexplore.search.policy import acquisition
from bexplore.testing.simulator import Family, World

RESULTS = Path(__file__).parent / "results"
FAMILIES = (
    Family.SMOOTH,
    Family.ROUGH,
    Family.CLIFFS,
    Family.CPU_LIKE,
    Family.GPU_LIKE,
    Family.DRIFTING_HOST,
    Family.BURSTS,
)
LEAST_DRIFT_SD = 1e-9  # none
NOW, ALWAYS = "alone until passes scatter", "always interleaved"


@contextlib.contextmanager
def always_interleaved() -> Iterator[None]:
    """Ask for interleaved rounds whatever the passes show."""
    with mock.patch.object(acquisition, "SHARED_PASS_SD", -1.0):
        yield


def measure(num_worlds: int) -> list[dict[str, Any]]:
    """A row for each family and design."""
    rows = []
    for family in FAMILIES:
        problems = [_interleaving(p) for p in simulated_problems(family, num_worlds, first_seed=FIRST_SEED)]
        for design in (NOW, ALWAYS):
            with always_interleaved() if design is ALWAYS else contextlib.nullcontext():
                answers = over_cores(functools.partial(answered, shared_compile=True), problems)
            rows.append({"family": family.value, "design": design} | figures(answers))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    return rows


def _interleaving(problem: Problem) -> Problem:
    """The same problem on a machine that interleaves sizes where asked: the simulator's has common-mode drift."""
    world = problem.source
    assert isinstance(world, World)
    drift_sd = max(world.common_mode_sd, LEAST_DRIFT_SD)
    return dataclasses.replace(problem, source=dataclasses.replace(world, common_mode_sd=drift_sd))


def figures(answers: list[Answer]) -> dict[str, Any]:
    """What the decision looks at."""
    found = summary(answers)
    names = (
        "within_2_percent",
        "mean_regret",
        "mean_probes",
        "share_with_score_90",
        "score_90_true",
        "expected_calibration_error",
        "relative_performance",
    )
    costs = np.array([answer.cost_s for answer in answers])
    return {name: found[name] for name in names} | {
        "mean_cost_s": float(costs.mean()),
        "median_cost_s": float(np.median(costs)),
    }


def markdown(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """One table: a row for each family and design."""
    head = (
        "simulated jobs",
        "design",
        "within 2 %",
        "probes",
        "score >= 90 reached",
        "score >= 90 right",
        "calibration error",
        "mean cost, s",
        "median cost, s",
    )
    lines = [
        "# One way to measure: an experiment",
        "",
        f"{facts['command']}, {facts['date']}, {facts['cores']} cores.",
        "95 % intervals in brackets.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for row in rows:
        cells = (
            row["family"],
            row["design"],
            _percent(row["within_2_percent"]),
            _number(row["mean_probes"]),
            f"{row['share_with_score_90']:.0%}",
            _percent(row["score_90_true"]),
            _number(row["expected_calibration_error"], digits=3),
            f"{row['mean_cost_s']:.0f}",
            f"{row['median_cost_s']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _percent(interval: list[float]) -> str:
    value, low, high = interval
    return f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _number(interval: list[float], digits: int = 2) -> str:
    value, low, high = interval
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=400, help="of each family")
    options = parser.parse_args()
    began = time.monotonic()
    rows = measure(options.worlds)
    facts = facts_of(None, module="one_way_to_measure") | {"wall_time_s": round(time.monotonic() - began)}
    (RESULTS / "one_way_to_measure.json").write_text(json.dumps({"rows": rows, "facts": facts}, indent=1) + "\n")
    (RESULTS / "one_way_to_measure.md").write_text(markdown(rows, facts))
    return 0


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.exit(main())
