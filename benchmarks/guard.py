"""How often the guard cries wolf, and what it misses.

    python -m benchmarks.guard [--quick] [--only exact|timing|table]

Exact facts: runs without a change over two thread counts, two hash seeds and two loads of the machine, each in a new
process, and seven planted changes. Timing: decisions of the guard over samples of live workers, A against A, and
against programs with more work. The samples (5 MB) stay out of git, in
`benchmarks/samples/guard.json`; the repository keeps what follows from them, in `results/guard_timing.json`. With the
samples there, `--only table` judges them again; without them it draws the table from what is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.guard_jobs import PLANTED
from bexplore.engine.program_client import metrics_in_worker
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.guard import Status, Tier
from bexplore.guard.compare import compare_metrics
from bexplore.guard.pairs import (
    BLOCK_S,
    PAIRS_PER_STAGE,
    TIME_LIMIT_S,
    Round,
    TimeDecision,
    count_rounds,
    decide,
    run_pair,
)
from bexplore.guard.snapshot import time_block
from bexplore.guard.timing import Block, count_passes
from bexplore.host.machine import package_version, processor_name
from bexplore.job import CompileSettings, Job, Precision
from bexplore.measurement.probe import Compilation, Probe
from bexplore.trace.program_metrics import ProgramMetrics

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SAMPLES = HERE / "samples"  # ignored by git
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the ratio of a round, which are kept of the samples
TIERS = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: ""}
# Programs whose work differs by a known share: equal blocks in a row, in eager mode.
BLOCKS = {"A": 18, "A again": 18, "5 % more work": 19, "10 % more work": 20}
MICRO_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run."""

    exact_runs: int
    unloaded_runs: int
    loaded_runs: int
    planted_runs: int


FULL = Scale(exact_runs=50, unloaded_runs=200, loaded_runs=100, planted_runs=20)
QUICK = Scale(exact_runs=4, unloaded_runs=20, loaded_runs=10, planted_runs=2)
PASS_TIME_S = 0.012  # of the programs, roughly: the lengths of their turns follow from it as the guard's own do


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the guard.")
    parser.add_argument("--quick", action="store_true", help="a few runs of everything; nothing is kept")
    parser.add_argument("--only", choices=["exact", "timing", "table"], help="one part")
    parser.add_argument("--columns", nargs="+", metavar="TITLE", help="of the times, these columns alone")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="guard-bench-")) if arguments.quick else RESULTS
    samples = (folder if arguments.quick else SAMPLES) / "guard.json"
    samples.parent.mkdir(exist_ok=True)
    if arguments.only in (None, "exact"):
        keep(folder / "guard_exact.json", exact(scale))
    if arguments.only in (None, "timing"):
        record(scale, samples, arguments.columns)
    if samples.exists():
        keep(folder / "guard_timing.json", judged(json.loads(samples.read_text())))
    text = report(folder)
    (folder / "guard.md").write_text(text)
    print(text)


def keep(path: Path, result: Any) -> None:
    path.write_text(json.dumps(result) + "\n")


def planted_job(change: str = "", num_blocks: int = 2, *, compiled: bool = True) -> Job:
    arguments = {"change": change, "num_blocks": num_blocks}
    model = {"model": "guard_jobs:build", "batch": "guard_jobs:samples", "loss": "guard_jobs:loss"}
    return Job(
        workload="imported",
        model=model | {"arguments": arguments},
        precision=Precision.AUTOCAST_BFLOAT16 if compiled else Precision.FLOAT32,
        compile=CompileSettings(enabled=compiled),
        import_root=str(HERE),
    )


# Exact facts


def exact(scale: Scale) -> dict[str, Any]:
    """Runs without a change, and every planted change."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        first = take(planted_job(), Path(temporary))
        runs = []
        for number in range(scale.exact_runs):
            threads, seed, loaded = 1 + number % 2, number // 2 % 2, number // 4 % 2 == 1
            environment = {"OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(seed)}
            with load() if loaded else contextlib.nullcontext():
                again = take(planted_job(), Path(temporary), environment)
            alarms = [f"{one.name}: {one.before} -> {one.after}" for one in differing(first, again)]
            runs.append({"threads": threads, "hash_seed": seed, "loaded": loaded, "alarms": alarms})
            print(f"exact run {number + 1} of {scale.exact_runs}: {alarms or 'same'}", file=sys.stderr)
        changes = []
        for planted in PLANTED:
            after = take(planted_job(planted.change), Path(temporary))
            found = {one.name: one for one in differing(first, after)}
            finding = found.get(planted.fact)
            named = finding is not None and finding.status is Status.WORSE
            lines = [line for line in finding.details if planted.says in line] if finding else []
            changes.append({"title": planted.title, "fact": planted.fact, "found": named, "named_as": lines[:1]})
    return {"runs": runs, "planted": changes, "elapsed_s": time.monotonic() - began_s, "machine": machine()}


def take(job: Job, folder: Path, environment: dict[str, str] | None = None) -> ProgramMetrics:
    facts, _ = metrics_in_worker(job, folder / "facts.log", device="cpu", environment=environment)
    return facts


def differing(before: ProgramMetrics, after: ProgramMetrics) -> list[Any]:
    found = compare_metrics(before, after, tiers=TIERS, memory_budget_bytes=2**26)
    return [one for one in found.findings if one.status is not Status.SAME]


@contextlib.contextmanager
def load() -> Iterator[None]:
    """A second process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


# Times


def record(scale: Scale, path: Path, titles: Sequence[str] | None = None) -> None:
    """Samples of live workers, a column at a time; runs that the file has are kept, so that a later call goes on."""
    os.environ["OMP_NUM_THREADS"] = "1"
    kept = json.loads(path.read_text()) if path.exists() else {"columns": {}}
    for column in (
        Column(title="5 % more work", contrast="5 % more work", num_runs=scale.planted_runs, num_pairs=18),
        Column(title="10 % more work", contrast="10 % more work", num_runs=scale.planted_runs, num_pairs=12),
        Column(title="A against A", contrast="A again", num_runs=scale.unloaded_runs, runs_of_a_pair=20),
        Column(
            title="A against A, one core loaded",
            contrast="A again",
            num_runs=scale.loaded_runs,
            runs_of_a_pair=20,
            context=load,
        ),
    ):
        known = kept["columns"].get(column.title, {"runs": []})
        if (titles is None or column.title in titles) and len(known["runs"]) < column.num_runs:
            for recorded in _recorded(column, known["runs"]):
                kept["columns"][column.title] = recorded
                keep(path, kept)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Runs of one contrast.

    Attributes:
        title: In the table.
        contrast: What stands against A; a key of `BLOCKS`.
        num_runs: Decisions.
        num_pairs: Pairs of live workers of each; those that a decision has no use for are recorded all the same.
        runs_of_a_pair: Then new processes follow, with luck of their own.
        context: What goes on meanwhile.
    """

    title: str
    contrast: str
    num_runs: int
    num_pairs: int = 2 * PAIRS_PER_STAGE
    runs_of_a_pair: int = 7
    context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def _recorded(column: Column, known: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The column after each further run, in which every pair takes its turns once."""
    runs, start_s = list(known), []
    while len(runs) < column.num_runs:
        with contextlib.ExitStack() as stack:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            pairs = []
            for number in range(column.num_pairs):
                began_s = time.monotonic()
                pairs.append(started_pair(("A", column.contrast), temporary / str(number), stack))
                start_s.append(time.monotonic() - began_s)
                print(f"{column.title}: pair {number + 1} of {column.num_pairs} is up", file=sys.stderr)
            stack.enter_context(column.context())
            for _ in range(min(column.runs_of_a_pair, column.num_runs - len(runs))):
                began_s = time.monotonic()
                taken = [turns(reference, candidate) for reference, candidate in pairs]
                runs.append({"pairs": taken, "elapsed_s": time.monotonic() - began_s})
                print(f"{column.title}: {len(runs)} of {column.num_runs}", file=sys.stderr)
                yield {
                    "runs": runs,
                    "start_s": statistics.median(start_s),
                    "rounds": count_rounds(PASS_TIME_S),
                    "passes_per_block": count_passes(PASS_TIME_S, BLOCK_S),
                    "runs_of_a_pair": column.runs_of_a_pair,
                    "load_average": os.getloadavg()[0],
                    "machine": machine(),
                }


def started_pair(
    names: tuple[str, str], folder: Path, stack: contextlib.ExitStack
) -> tuple[EngineRunner, EngineRunner]:
    """Two live workers, started as the guard starts them."""
    jobs = [planted_job(num_blocks=BLOCKS[name], compiled=False) for name in names]
    reference, candidate = (
        stack.enter_context(EngineRunner(RunnerSettings(job=job, run_dir=folder / side)))
        for job, side in zip(jobs, ("reference", "candidate"), strict=True)
    )
    for runner in (reference, candidate):
        runner.start()
    for runner in (reference, candidate):
        runner.await_started()
    probe = Probe(number=0, micro_batch_size=MICRO_BATCH_SIZE, compilation=Compilation.EAGER, max_passes=3)
    for runner in (reference, candidate):
        observation = runner(probe)
        assert observation.is_measured, observation.reason
    return reference, candidate


def turns(reference: EngineRunner, candidate: EngineRunner) -> list[list[list[float]]]:
    """Rounds of A B B A, as the guard runs them; each block as [processor seconds, pass, pass, ...]."""
    taken = run_pair(
        lambda count, turn: time_block(reference, MICRO_BATCH_SIZE, count, turn),
        lambda count, turn: time_block(candidate, MICRO_BATCH_SIZE, count, turn),
        pass_time_s=PASS_TIME_S,
    )
    in_order = [(one.reference[0], *one.candidate, one.reference[1]) for one in taken]
    return [[[round(x, 8) for x in (one.cpu_time_s, *one.pass_times_s)] for one in blocks] for blocks in in_order]


def rounds_of(pair: Sequence[Sequence[Sequence[float]]]) -> list[Round]:
    result = []
    for first, second, third, fourth in pair:
        a, b, c, d = (Block(cpu_time_s=one[0], pass_times_s=tuple(one[1:])) for one in (first, second, third, fourth))
        result.append(Round(reference=(a, d), candidate=(b, c)))
    return result


def pairs_of(run: dict[str, Any], number: int) -> list[list[Round]]:
    """The pairs of a run, another one first in each: runs that share processes do not all begin with the same luck."""
    pairs = [rounds_of(pair) for pair in run["pairs"]]
    first = number % len(pairs)
    return pairs[first:] + pairs[:first]


# Judgements


def judged(samples: dict[str, Any]) -> dict[str, Any]:
    """What the repository keeps of the samples, column by column: the judgements, and quantiles of the ratios."""
    columns = {}
    for title, own in samples["columns"].items():
        pair_s = seconds_of_a_pair(own)
        runs = [pairs_of(run, number) for number, run in enumerate(own["runs"])]
        taken = sorted(decided(pairs, pair_s).wall.num_workers for pairs in runs)
        kept = ("rounds", "passes_per_block", "load_average", "machine")
        columns[title] = {
            "num_runs": len(runs),
            "judgements": {"bexplore guard": counted(own["runs"], pair_s)},
            "ratio_quantiles": dict(zip(map(str, QUANTILES), ratio_quantiles(own["runs"]), strict=True)),
            "pairs_of_a_decision": {"median": statistics.median(taken), "most": taken[-1]},
            "pair_s": pair_s,
            "runs_of_a_pair": own.get("runs_of_a_pair", len(runs)),
            **{name: own[name] for name in kept},
        }
    return {"columns": columns}


def counted(runs: Sequence[dict[str, Any]], pair_s: float) -> dict[str, int]:
    """How many runs the guard calls slower, unsure and faster, where a pair takes so many seconds with its start."""
    names = {Status.WORSE: "slower", Status.UNSURE: "unsure", Status.BETTER: "faster"}
    counts = dict.fromkeys(names.values(), 0)
    for number, run in enumerate(runs):
        status = decided(pairs_of(run, number), pair_s).status
        if status in names:
            counts[names[status]] += 1
    return counts


def ratio_quantiles(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Quantiles of the wall time of B over that of A, over all rounds."""
    values = sorted(one.log_wall_ratio for run in runs for pair in run["pairs"] for one in rounds_of(pair))
    return [math.exp(values[min(int(share * len(values)), len(values) - 1)]) for share in QUANTILES]


# The table


def report(folder: Path) -> str:
    lines = ["# The guard: false alarms, misses, planted changes", ""]
    if (folder / "guard_exact.json").exists():
        lines += exact_lines(json.loads((folder / "guard_exact.json").read_text()))
    if (folder / "guard_timing.json").exists():
        lines += timing_lines(json.loads((folder / "guard_timing.json").read_text()))
    return "\n".join(lines) + "\n"


def exact_lines(result: dict[str, Any]) -> list[str]:
    runs = result["runs"]
    alarms = [run for run in runs if run["alarms"]]
    lines = [
        "## Exact facts",
        "",
        f"{len(runs)} runs without a change, each in a new process, over 1 and 2 threads, 2 hash seeds, and with a "
        f"second process that loads one core in {sum(run['loaded'] for run in runs)} of them: "
        f"**{len(alarms)} false alarms**. ({result['machine']})",
        "",
        "| planted change | found | by | said as |",
        "|---|---|---|---|",
    ]
    for one in result["planted"]:
        said = f"`{one['named_as'][0].replace('`', '')}`" if one["named_as"] else "not named"
        lines.append(f"| {one['title']} | {'yes' if one['found'] else 'NO'} | {one['fact']} | {said} |")
    return [*lines, ""]


def timing_lines(result: dict[str, Any]) -> list[str]:
    columns = result["columns"]
    lines = [
        "## Times",
        "",
        "Pairs of live workers, one thread each, take turns A B B A; no sample is used in two runs. The guard sees the "
        f"first {PAIRS_PER_STAGE} pairs, and as many more each time that it measures again. Runs of a "
        "column share their processes, and so the luck of these (the last column of the second table says how many "
        "of them); each begins with another pair.",
        "",
        "| judge | " + " | ".join(f"{name} ({own['num_runs']} runs)" for name, own in columns.items()) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name in next(iter(columns.values()))["judgements"]:
        cells = [shares(own["judgements"][name], own["num_runs"]) for own in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "slower / unsure / faster, percent of runs. Where A stands against A, slower and faster are false alarms; in "
        "the other columns whatever is not slower is a miss, and faster would be called an improvement.",
        "",
        "| column | true ratio, from all samples | turns of a pair | passes a turn "
        "| pairs of a decision, median (most) | seconds of a pair | of a decision, median (most) | load average "
        "| runs of one set of processes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in columns.items():
        pair_s, taken = own["pair_s"], own["pairs_of_a_decision"]
        lines.append(
            f"| {name} | {own['ratio_quantiles']['0.5']:.3f} | {own['rounds']} | {own['passes_per_block']} "
            f"| {taken['median']:.0f} ({taken['most']}) | {pair_s:.1f} | {pair_s * taken['median']:.0f} "
            f"({pair_s * taken['most']:.0f}) | {own['load_average']:.1f} | {own['runs_of_a_pair']} |"
        )
    machines = {own["machine"] for own in columns.values()}
    return [*lines, "", f"The benchmark itself is 1 of the load average. ({'; '.join(sorted(machines))})"]


def decided(pairs: Sequence[list[Round]], pair_s: float) -> TimeDecision:
    """What the guard says within its time limit, and how many of the pairs it looked at."""
    taken = 0

    def measure(count: int) -> Sequence[list[Round]]:
        nonlocal taken
        taken += count
        return pairs[taken - count : taken]

    def may_go_on() -> bool:
        return taken < len(pairs) and (taken + 1) * pair_s <= TIME_LIMIT_S

    return decide(measure, may_go_on=may_go_on)


def seconds_of_a_pair(column: dict[str, Any]) -> float:
    """Starts included; those of columns that were recorded before starts were timed are taken for none."""
    turns_s = statistics.median(run["elapsed_s"] / len(run["pairs"]) for run in column["runs"])
    return column.get("start_s", 0.0) + turns_s


def shares(judgements: dict[str, int], num_runs: int) -> str:
    """Percent of runs, by judgement."""
    return " / ".join(f"{100 * count / num_runs:.1f}" for count in judgements.values())


def machine() -> str:
    return (
        f"{processor_name()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"torch {package_version('torch')}"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    main()
