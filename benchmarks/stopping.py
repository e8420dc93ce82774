"""What another probe truly saves beside what the posterior predicts: `python -m benchmarks.stopping [--quick]`.

Recorded sweeps are replayed and jobs simulated. From the third probe on, the probe that `decision.next_probe` names is
run, and the regret of the recommendation before it is compared with the one after it. A second table has what each
limit of the search costs in all. Both are the source of the constants of `bexplore/search/policy/decision.py`, and of
the error of a difference in `bexplore/search/recommendation.py`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.search import facts_of
from benchmarks.search_pool import over_cores
from benchmarks.search_problems import (
    DEVELOPED_ON,
    NOT_SEEN,
    STEPS,
    TOLERANCE,
    Problem,
    answered,
    public_problems,
    simulated_problems,
)
from benchmarks.search_total_cost import TRAINING_S
from bexplore.measurement.probe import Compilation, Probe
from bexplore.search import recommendation
from bexplore.search.evidence import Evidence
from bexplore.search.policy import decide as decide_module
from bexplore.search.policy import decision as decision_module
from bexplore.search.policy.decide import decide
from bexplore.search.posterior.joint import Variant
from bexplore.search.settings import SearchSettings
from bexplore.testing.simulator import Family

RESULT = Path(__file__).parent / "results" / "stopping.md"
FIRST_SEED = 5_000_000
EDGES = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 1.0)  # of the predicted saving, a share of the training
SETS = ("recorded, developed on", "recorded, not seen", "recorded, noise 3 %", "cpu_like", "gpu_like", "smooth")
Row = tuple[bool, float, float]  # whether it repeats a size, the predicted saving, the true one
# A search that never ends by itself, and whose probes cost nothing beside the training.
LIMITS = (
    (decide_module, "TIMES_BEYOND_TARGET", (1.0, 1.25, 2.0, 4.0)),
    (decide_module, "TIMES_BEYOND_A_SWEEP", (1.0, 4.0, 8.0)),
    (decide_module, "REPEAT_SHARE_OF_SWEEP", (0.7, 0.8, 0.9, 1.0)),
    (recommendation, "SURE_SDS", (0.0, 1.0, 2.0)),
)
ENDLESS = SearchSettings(
    search_compilation=Compilation.EXACT,
    verify_exact=False,
    max_passes=STEPS,
    target_confidence=99,
    training_time_s=1e12,
    time_budget_s=1e12,
    max_probes=12,
)


def problems_of(name: str, count: int) -> Iterator[Problem]:
    """The problems of one of `SETS`."""
    if not name.startswith("recorded"):
        return simulated_problems(Family(name), count, first_seed=FIRST_SEED)
    families = NOT_SEEN if name.endswith("seen") else DEVELOPED_ON
    noise = 0.03 if name.endswith("3 %") else None
    return public_problems(max(count // 60, 1), families=families, noise=noise, first_seed=FIRST_SEED)


def rows_of(problem: Problem) -> list[Row] | None:
    """One row for each probe from the third on; None where nothing fits."""
    decision_module.SHARE_OF_NEW = 1.0  # in this process of a pool: what is predicted, before it is corrected
    decision_module.UNSEEN_SAVING = 0.0
    runner, evidence, rows = problem.runner(shared_compile=False), list[Evidence](), list[Row]()
    if problem.regret(problem.space.base) >= 1.0:
        return None
    before: tuple[bool, float, float] | None = None
    while True:
        decision = decide(problem.space, evidence, ENDLESS, variants=(Variant(memory=problem.memory),))
        best, further = decision.recommendation, decision.next_probe
        if before is not None and best is not None:
            is_repeat, predicted, regret = before
            rows.append((is_repeat, predicted, regret - problem.regret(best.micro_batch_size)))
        if decision.stop_reason is not None:
            return rows
        size, before = decision.micro_batch_size, None
        if best is not None and further is not None and len(evidence) >= 3:
            size = further.micro_batch_size
            is_repeat = any(item.micro_batch_size == size for item in evidence if item.is_measured)
            before = is_repeat, further.saves, problem.regret(best.micro_batch_size)
        probe = Probe(number=len(evidence), micro_batch_size=size, compilation=Compilation.EXACT, max_passes=STEPS)
        evidence.append(Evidence.from_observation(runner(probe)))


def table(found: dict[str, list[Row]]) -> str:
    """Markdown: by set, kind of probe and predicted saving, the mean true saving over the mean predicted one."""
    spans = [f"{low:.1%} to {high:.1%}" for low, high in itertools.pairwise(EDGES)]
    lines = ["| set | probe | " + " | ".join(spans) + " |", "|---|---|" + "---|" * len(spans)]
    for name, rows in found.items():
        for is_repeat in (False, True):
            cells = []
            for low, high in itertools.pairwise(EDGES):
                kept = [row for row in rows if row[0] is is_repeat and low <= row[1] < high]
                cells.append(_ratio(kept))
            lines.append(f"| {name} | {'repeat' if is_repeat else 'new size'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(rows: Sequence[Row]) -> str:
    if len(rows) < 10:
        return "-"
    predicted, true = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    spread = float(true.std()) / np.sqrt(len(rows)) / predicted.mean()
    return f"{true.mean() / predicted.mean():.2f} ± {spread:.2f} ({len(rows)})"


def what_limits_cost(num_seeds: int) -> str:
    """Markdown: by value of each limit, how good and how dear the answers on recorded sweeps are."""
    lines = [
        "| limit | value | noise | within 2 % | mean regret | dearer than a sweep | seconds in all, mean | median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for module, name, values in LIMITS:
        usual = getattr(module, name)
        for value in values:
            setattr(module, name, value)
            for noise in (None, 0.03):
                answers = over_cores(answered, list(public_problems(num_seeds, noise=noise, first_seed=FIRST_SEED)))
                regret = np.array([answer.regret for answer in answers])
                cost_s = np.array([answer.cost_s for answer in answers])
                sweep_s = np.array([answer.exhaustive_cost_s for answer in answers])
                in_all = cost_s + TRAINING_S * regret
                lines.append(
                    f"| {name} | {value:g}{' (used)' if value == usual else ''} | {'own' if noise is None else '3 %'} "
                    f"| {np.mean(regret <= TOLERANCE):.1%} | {regret.mean():.3%} "
                    f"| {np.mean(cost_s > 1.001 * sweep_s):.1%} | {in_all.mean():.0f} | {np.median(in_all):.0f} |"
                )
        setattr(module, name, usual)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stopping", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fourth of the problems; nothing is written")
    options = parser.parse_args(arguments)
    count = 60 if options.quick else 240
    found = {}
    for name in SETS:
        found[name] = [row for rows in over_cores(rows_of, list(problems_of(name, count))) for row in rows]
        sys.stderr.write(f"{name}: {len(found[name])} probes\n")
    found["all"] = [row for rows in found.values() for row in rows]
    facts = "  \n".join(
        f"{key.replace('_', ' ')}: {value}" for key, value in facts_of(arguments, module="stopping").items()
    )
    text = (
        f"# Predicted and true savings of another probe\n\n{facts}\n\n"
        "True over predicted saving, each a share of the training's time, with its standard error and the number of "
        "probes. A negative one: the probe made the answer worse.\n\n" + table(found) + "\n\n"
        "## What each limit costs in all\n\n"
        "All recorded sweeps, each size compiled on its own. Seconds in all: those of the search and those that its "
        "answer loses over a training of 10 hours. `SURE_SDS` is the error of a difference.\n\n"
        + what_limits_cost(1 if options.quick else 3)
        + "\n"
    )
    if not options.quick:
        RESULT.write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
