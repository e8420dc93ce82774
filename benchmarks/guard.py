"""How often the guard cries wolf, and what it misses.

    python -m benchmarks.guard [--quick] [--only exact|timing|table]

Exact facts: runs without a change over two thread counts, two hash seeds and two loads of the machine, each in a new
process, and seven planted changes. Timing: decisions of the guard over samples of live workers, A against A, and
against programs with more work; the rivals judge the very same samples. Samples are kept, so that `--only table` needs
no run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.guard_jobs import PLANTED
from benchmarks.guard_rivals import RIVALS
from bexplore.engine import EngineRunner
from bexplore.engine.machine import package_version, processor_name
from bexplore.engine.program import facts_in_worker
from bexplore.facts import ProgramFacts
from bexplore.guard import Status, Tier
from bexplore.guard.compare import compare_facts
from bexplore.guard.observation import block_of
from bexplore.guard.statistics import Judgement
from bexplore.guard.timing import PAIRS_PER_STAGE, Block, Round, decide
from bexplore.job import CompileSettings, Job, Precision
from bexplore.probe import Compilation, Probe

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TIERS = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: ""}
# Programs whose work differs by a known share: equal blocks in a row, in eager mode.
BLOCKS = {"A": 20, "A again": 20, "5 % more work": 21, "10 % more work": 22}
MICRO_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run."""

    exact_runs: int
    unloaded_runs: int
    loaded_runs: int
    planted_runs: int
    rounds: int
    passes_per_block: int


FULL = Scale(exact_runs=50, unloaded_runs=200, loaded_runs=100, planted_runs=40, rounds=16, passes_per_block=4)
QUICK = Scale(exact_runs=4, unloaded_runs=20, loaded_runs=10, planted_runs=10, rounds=16, passes_per_block=4)


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the guard.")
    parser.add_argument("--quick", action="store_true", help="a few runs of everything; nothing is kept")
    parser.add_argument("--only", choices=["exact", "timing", "table"], help="one part")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="guard-bench-")) if arguments.quick else RESULTS
    folder.mkdir(exist_ok=True)
    if arguments.only in (None, "exact"):
        keep(folder / "guard_exact.json", exact(scale))
    if arguments.only in (None, "timing"):
        record(scale, folder / "guard_samples.json")
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


def take(job: Job, folder: Path, environment: dict[str, str] | None = None) -> ProgramFacts:
    facts, _ = facts_in_worker(job, folder / "facts.log", device="cpu", environment=environment)
    return facts


def differing(before: ProgramFacts, after: ProgramFacts) -> list[Any]:
    found = compare_facts(before, after, tiers=TIERS, memory_budget_bytes=2**26)
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


def record(scale: Scale, path: Path) -> None:
    """Samples of live workers, a column at a time; runs that the file has are kept, so that a later call goes on."""
    os.environ["OMP_NUM_THREADS"] = "1"
    kept = json.loads(path.read_text()) if path.exists() else {"columns": {}}
    columns = [
        ("5 % more work", "5 % more work", scale.planted_runs, contextlib.nullcontext),
        ("10 % more work", "10 % more work", scale.planted_runs, contextlib.nullcontext),
        ("A against A, unloaded", "A again", scale.unloaded_runs, contextlib.nullcontext),
        ("A against A, one core loaded", "A again", scale.loaded_runs, load),
    ]
    empty: dict[str, Any] = {"runs": []}
    missing = [column for column in columns if len(kept["columns"].get(column[0], empty)["runs"]) < column[2]]
    if not missing:
        return
    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sets = []
        for number in range(2 * PAIRS_PER_STAGE):
            sets.append({name: live(blocks, temporary / f"{number}{name}", stack) for name, blocks in BLOCKS.items()})
            print(f"workers {number + 1} of {2 * PAIRS_PER_STAGE} are up", file=sys.stderr)
        for title, contrast, count, context in missing:
            runs = list(kept["columns"].get(title, empty)["runs"])
            with context():
                while len(runs) < count:
                    runs.append(_run(sets, contrast, scale))
                    kept["columns"][title] = _column(runs, scale)
                    keep(path, kept)
                    print(f"{title}: {len(runs)} of {count}", file=sys.stderr)


def _run(sets: Sequence[Mapping[str, EngineRunner]], contrast: str, scale: Scale) -> dict[str, Any]:
    """Every pair takes its turns once."""
    began_s = time.monotonic()
    pairs = [turns(runners["A"], runners[contrast], scale) for runners in sets]
    return {"pairs": pairs, "elapsed_s": time.monotonic() - began_s}


def _column(runs: Sequence[dict[str, Any]], scale: Scale) -> dict[str, Any]:
    return {
        "runs": runs,
        "rounds": scale.rounds,
        "passes_per_block": scale.passes_per_block,
        "load_average": os.getloadavg()[0],
        "machine": machine(),
    }


def live(num_blocks: int, folder: Path, stack: contextlib.ExitStack) -> EngineRunner:
    job = planted_job(num_blocks=num_blocks, compiled=False)
    runner = stack.enter_context(EngineRunner(job, run_dir=folder, budget_bytes=None))
    probe = Probe(number=0, micro_batch_size=MICRO_BATCH_SIZE, compilation=Compilation.EAGER, max_passes=3)
    observation = runner(probe)
    assert observation.is_measured, observation.reason
    return runner


def turns(reference: EngineRunner, candidate: EngineRunner, scale: Scale) -> list[list[list[float]]]:
    """Rounds of A B B A; each block as [processor seconds, pass, pass, ...]."""
    rounds = []
    for _ in range(scale.rounds):
        blocks = [block_of(side, MICRO_BATCH_SIZE, scale.passes_per_block) for side in (reference, candidate)]
        blocks += [block_of(side, MICRO_BATCH_SIZE, scale.passes_per_block) for side in (candidate, reference)]
        rounds.append([[round(x, 8) for x in (one.cpu_time_s, *one.pass_times_s)] for one in blocks])
    return rounds


def rounds_of(pair: Sequence[Sequence[Sequence[float]]]) -> list[Round]:
    result = []
    for first, second, third, fourth in pair:
        a, b, c, d = (Block(cpu_time_s=one[0], pass_times_s=tuple(one[1:])) for one in (first, second, third, fourth))
        result.append(Round(reference=(a, d), candidate=(b, c)))
    return result


# The table


def report(folder: Path) -> str:
    lines = ["# The guard: false alarms, misses, planted changes", ""]
    if (folder / "guard_exact.json").exists():
        lines += exact_lines(json.loads((folder / "guard_exact.json").read_text()))
    if (folder / "guard_samples.json").exists():
        lines += timing_lines(json.loads((folder / "guard_samples.json").read_text()))
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
        f"{2 * PAIRS_PER_STAGE} pairs of live workers, one thread each, take turns A B B A; no sample is used in two "
        f"runs. The guard sees the first {PAIRS_PER_STAGE} pairs, and the others when it measures again; a rival sees "
        "what its tool would.",
        "",
        "| judge | " + " | ".join(f"{name} ({len(own['runs'])} runs)" for name, own in columns.items()) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name, judge in {"bexplore guard": guarded, **RIVALS}.items():
        cells = [shares(judge, own["runs"]) for own in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "slower / unsure / faster, percent of runs. Where A stands against A, slower and faster are false alarms; in "
        "the other columns whatever is not slower is a miss, and faster would be called an improvement.",
        "",
        "| column | true ratio, from all samples | turns of a pair | passes a turn | seconds of a run | load average |",
        "|---|---|---|---|---|---|",
    ]
    for name, own in columns.items():
        seconds = statistics.median(run["elapsed_s"] for run in own["runs"])
        lines.append(
            f"| {name} | {math.exp(true_log_ratio(own['runs'])):.3f} | {own['rounds']} | {own['passes_per_block']} "
            f"| {seconds:.1f} | {own['load_average']:.1f} |"
        )
    machines = {own["machine"] for own in columns.values()}
    return [*lines, "", f"The benchmark itself is 1 of the load average. ({'; '.join(sorted(machines))})"]


def guarded(pairs: list[list[Round]], _previous: list[list[Round]] | None) -> Judgement:
    stages = iter([pairs[:PAIRS_PER_STAGE], pairs[PAIRS_PER_STAGE:]])
    return decide(lambda count: next(stages)).judgement


def shares(judge: Callable[..., Judgement], runs: Sequence[dict[str, Any]]) -> str:
    counts = dict.fromkeys((Judgement.SLOWER, Judgement.UNSURE, Judgement.FASTER), 0)
    previous = None
    for run in runs:
        pairs = [rounds_of(pair) for pair in run["pairs"]]
        judgement = judge(pairs, previous)
        if judgement in counts:
            counts[judgement] += 1
        previous = pairs
    return " / ".join(f"{100 * count / len(runs):.1f}" for count in counts.values())


def true_log_ratio(runs: Sequence[dict[str, Any]]) -> float:
    values = [one.log_wall_ratio for run in runs for pair in run["pairs"] for one in rounds_of(pair)]
    return sorted(values)[len(values) // 2] if values else math.nan


def machine() -> str:
    return (
        f"{processor_name()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"torch {package_version('torch')}"
    )


if __name__ == "__main__":
    main()
