"""Planned against real optimizer steps: `python -m benchmarks.plan_steps [--fresh]`.

Each of two jobs is explored on two ranks (torchrun, gloo, a thread each). `bexplore.planning` predicts the step of a
batch of one and of eight micro-batches of the recommended size, from that run alone and of passes of that size alone:
the planner might take smaller micro-batches and accumulate more. A plain training script then runs 50 such steps on two
ranks. All of it is done five times, so that the machine's drift between exploration and training is in the spread and
not in the answer; the median of the errors of pairs counts. The machine must be quiet.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine_facts import machine_facts
from bexplore.planning.api import plan_source, plans_of
from bexplore.planning.request import Amount, PlanRequest

RESULTS = Path(__file__).parent / "results"
RECORDS, TABLE = RESULTS / "plan_steps.json", RESULTS / "plan_steps.md"
ROOT = Path(__file__).parents[1]
NAMES = {"encoder": ("encoder", "tokens"), "convolutions": ("convolutions", "images")}
NUM_RANKS, NUM_STEPS, REPEATS, ACCUMULATIONS = 2, 50, 5, (1, 8)
WITHIN = 0.10
_LIMIT_S = 900


def main() -> None:
    """Explore, plan and train; write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="make again what is recorded already")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() and not options.fresh else {}
    for name in NAMES:
        if name not in records:
            records[name] = _record(name)
            RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    text = table(records)
    TABLE.write_text(text)
    print(text)


def _record(name: str) -> list[dict[str, Any]]:
    """Explore, plan and train, one right after the other, some times."""
    return [_pair(name) for _ in range(REPEATS)]


def _pair(name: str) -> dict[str, Any]:
    """Return the seconds that one exploration plans for some steps, and those that they then take."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(yaml.safe_dump(_job(name), sort_keys=False))
        command = [sys.executable, "-m", "bexplore", "explore", str(path), "--fresh", "-q"]
        subprocess.run(command, cwd=folder, check=True, timeout=_LIMIT_S, capture_output=True)
        source = plan_source(next(Path(folder).glob("local_compile_train/*")))
    size = source.costs.micro_batch_size
    assert size is not None  # the exploration has an answer
    # Of this size alone, so that the row's accumulation is the one that was run.
    costs = dataclasses.replace(source.costs, passes={size: source.costs.passes[size]})
    source = dataclasses.replace(source, costs=costs)
    batches = tuple(Amount(number=size * NUM_RANKS * steps) for steps in ACCUMULATIONS)
    rows = {}
    for steps, plan in zip(ACCUMULATIONS, plans_of(source, PlanRequest(batch_sizes=batches)).plans, strict=True):
        assert (plan.micro_batch_size, plan.accumulation_steps) == (size, steps)
        rows[str(steps)] = {
            "micro_batch_size": size,
            "accumulation_steps": steps,
            "planned_s": NUM_STEPS * plan.step_time_s,
            "measured_s": _train(name, size, steps),
        }
    return rows


def _job(name: str) -> dict[str, Any]:
    model, batch = NAMES[name]
    module = "benchmarks.jobs.planned_training"
    own = {"model": f"{module}:{model}", "batch": f"{module}:{batch}", "loss": f"{module}:loss"}
    return {
        "train_input": {"batch_size": 256, "micro_batch_size": "explore"},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.001},
        "runconfig": {"num_csx": NUM_RANKS},
        "explore": {
            "workload": own,
            "compile": False,
            "candidates": [8, 16, 32],
            "effort": "quick",
            "launcher": "torchrun",
            "parallelism": {"data_parallel_replicate_degree": NUM_RANKS},
        },
    }


def _train(name: str, micro_batch_size: int, accumulation_steps: int) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS)]
    given = [name, str(micro_batch_size), str(accumulation_steps), str(NUM_STEPS)]
    done = subprocess.run(
        [*command, "-m", "benchmarks.jobs.planned_training", *given],
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIMIT_S,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TIMED ")]
    return float(json.loads(line.removeprefix("TIMED "))["seconds"])


def paired_errors(pairs: Sequence[dict[str, Any]], steps: int) -> list[float]:
    """Return what a plan is longer than the training right after it, over the training, a number each pair."""
    return [one["planned_s"] / one["measured_s"] - 1 for one in (pair[str(steps)] for pair in pairs)]


def share_beyond(records: Mapping[str, Sequence[dict[str, Any]]]) -> float:
    """Return the share of all pairs whose error is beyond the limit."""
    errors = [error for pairs in records.values() for steps in ACCUMULATIONS for error in paired_errors(pairs, steps)]
    return sum(abs(error) > WITHIN for error in errors) / len(errors)


def worst_median(records: Mapping[str, Sequence[dict[str, Any]]]) -> float:
    """Return the largest median of the errors of a job and an accumulation."""
    return max(
        abs(statistics.median(paired_errors(pairs, steps))) for pairs in records.values() for steps in ACCUMULATIONS
    )


def table(records: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Return the table in Markdown."""
    facts = machine_facts()
    num_pairs = sum(len(pairs) * len(ACCUMULATIONS) for pairs in records.values())
    lines = [
        "# Planned against real optimizer steps",
        "",
        f"Written by `python -m benchmarks.plan_steps`; {facts['processor']}, {facts['processors']} cores, torch "
        f"{facts['torch']}. {NUM_STEPS} steps of a plain training on {NUM_RANKS} ranks (torchrun, gloo), each right "
        f"after an exploration of its own, {REPEATS} times. The error is that of a plan against the training after "
        "it; its median is that of the pairs, and not of the columns.",
        "",
        f"Worst median error {worst_median(records):.1%} (must: at most {WITHIN:.0%}); {share_beyond(records):.0%} of "
        f"{num_pairs} pairs are beyond {WITHIN:.0%}.",
        "",
        "| job | micro-batch size | accumulation | planned s | measured s | error of pairs %, median (range) | "
        "pairs beyond 10 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_row(name, pairs, steps) for name, pairs in records.items() for steps in ACCUMULATIONS),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, pairs: Sequence[dict[str, Any]], steps: int) -> str:
    of_steps, errors = [pair[str(steps)] for pair in pairs], paired_errors(pairs, steps)
    cells = (
        name,
        _numbers(one["micro_batch_size"] for one in of_steps),
        _numbers(one["accumulation_steps"] for one in of_steps),
        f"{statistics.median(one['planned_s'] for one in of_steps):.2f}",
        f"{statistics.median(one['measured_s'] for one in of_steps):.2f}",
        f"{100 * statistics.median(errors):+.1f} ({100 * min(errors):+.1f} to {100 * max(errors):+.1f})",
        f"{sum(abs(error) > WITHIN for error in errors)} of {len(errors)}",
    )
    return f"| {' | '.join(cells)} |"


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(sorted(values)))


if __name__ == "__main__":
    main()
