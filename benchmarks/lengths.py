"""Jobs with samples of many lengths: `python -m benchmarks.lengths [--only WORDS] [--actions NAMES] [--fresh]`.

Six jobs with the lengths of public data sets, two of a number of tokens and two training commands (`lengths_jobs`).
Each is explored twice, with `explore.lengths` and at the longest length alone. The truth is several sizes over the same
random samples, in rounds. Then: 500 steps of random batches at the recommended size under the budget, the worst 20
times among them; and the memory that traces at a few lengths predict, or a command's exploration tells, against what is
measured. Each record is kept when it is made, and a call makes those that are missing. What is compared in `explored`,
`fixed` and `truth` are seconds: the machine must be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lengths_jobs import JOBS, SCRIPT, SIZES, LengthsJob, job_named
from benchmarks.machine_facts import machine_facts
from bexplore.config.load import load_config
from bexplore.job import Job
from bexplore.job.lengths import Collation, Lengths
from bexplore.measurement.statistics import PairedRatio, paired_ratio

RESULTS = Path(__file__).parent / "results"
RECORDS, TABLE = RESULTS / "lengths.json", RESULTS / "lengths.md"
ROOT = Path(__file__).parents[1]
ROUNDS = 4  # of the truth
NUM_SAMPLES = 96  # of a round: a multiple of every size that is timed
SIZES_OF_TRUTH = (1, 2, 4, 8, 16)  # beside the two answers
NUM_STEPS, NUM_LONGEST = 500, 20
PASSES_OF_STEP = 2
MEMORY_SIZES = (4, 24)
SHARES_OF_LONGEST = (1.0, 0.7, 0.4, 0.2)  # lengths at which memory is measured; traces are at 1, 1/2 and 1/4
FITS = 32  # the budget is a third above what this size needs with the longest samples
LEAST_BUDGET = 384 * 2**20
COMMAND_BUDGET = 2 * 2**30  # of what the process of a training command holds
WORST_SLOWER, BETTER, NUM_BETTER = 0.02, 0.10, 3
MEAN_REGRET, WORST_REGRET = 0.007, 0.025
MEDIAN_MEMORY, WORST_MEMORY = 0.01, 0.06
MOST_COST = 1.6
_LIMIT_S = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="jobs whose name has these words")
    parser.add_argument("--actions", nargs="*", default=list(ACTIONS), choices=list(ACTIONS))
    parser.add_argument("--fresh", action="store_true", help="make again what is recorded already")
    parser.add_argument("--child", nargs=3, metavar=("JOB", "ACTION", "RECORD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(ROOT)  # where a job's own code imports the benchmarks from
    if options.child:
        name, action, record = options.child
        print(json.dumps(ACTIONS[action](job_named(name), json.loads(record))))
        return
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for one in [one for one in JOBS if options.only in one.name]:
        record = records.setdefault(one.name, {})
        for action in options.actions if options.fresh else ():
            record.pop(action, None)  # a truth may lack the sizes of new answers
        for action in options.actions:
            is_traced = one.command is None or action != "trace"
            if is_traced and action not in record:
                record[action] = _in_child(one, action, record)
                RECORDS.write_text(json.dumps(records, indent=1) + "\n")
                TABLE.write_text(_markdown(records))
                print(one.name, action, str(record[action])[:200], file=sys.stderr, flush=True)
    TABLE.write_text(_markdown(records))
    print(_markdown(records))


def _in_child(one: LengthsJob, action: str, record: Mapping[str, Any]) -> Any:
    needed = json.dumps({name: value for name, value in record.items() if name in ("trace", "explored", "fixed")})
    command = [sys.executable, "-m", "benchmarks.lengths", "--child", one.name, action, needed]
    done = subprocess.run(command, text=True, capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{one.name}, {action}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def job_of(one: LengthsJob, *, with_lengths: bool = True) -> Job:
    """Return the job of a file, on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(one.text(with_lengths=with_lengths))
        return load_config(path).on_device("cpu").job


def trace(one: LengthsJob, _record: Mapping[str, Any]) -> dict[str, Any]:
    """Trace the job at a few lengths; return the budget and the predicted peaks."""
    from bexplore.trace.cost_model import MemoryByLength, traced_lengths
    from bexplore.trace.tracer import trace_job

    job = job_of(one)
    assert job.lengths is not None
    models = {length: trace_job(job.at_length(length)) for length in traced_lengths(job.lengths)}
    memory = MemoryByLength(models=models, lengths=job.lengths)
    peaks = {
        f"{rows} x {length}": memory.peak_memory_bytes(rows, length) for rows, length in _shapes_measured(job.lengths)
    }
    budget = max(LEAST_BUDGET, round(4 / 3 * memory.peak_memory_bytes(*memory.worst_batch(FITS))))
    return {"budget_bytes": budget, "traced": list(models), "peaks": peaks}


def _shapes_measured(lengths: Lengths) -> list[tuple[int, int]]:
    """Return rows and lengths at which memory is measured: of a number of tokens the two extremes, too."""
    places = [max(1, round(share * lengths.longest)) for share in SHARES_OF_LONGEST]
    shapes = [(lengths.num_rows(size, length), length) for size in MEMORY_SIZES for length in places]
    extremes = [(one.num_rows, one.length) for size in MEMORY_SIZES for one in lengths.extreme_batches(size)]
    return list(dict.fromkeys([*shapes, *extremes]))


def memory(one: LengthsJob, _record: Mapping[str, Any]) -> dict[str, int]:
    """Measure the peak of a step at sizes and lengths, as the training compiles it."""
    if one.command is not None:
        return {}
    job = job_of(one)
    assert job.lengths is not None
    found = {}
    sessions: dict[int, Any] = {}
    for rows, length in _shapes_measured(job.lengths):
        if rows not in sessions:
            sessions = {rows: _session(job, exact=True)}
            sessions[rows].prepare(rows)
        session = sessions[rows]
        session.steps.clear_gradients()
        ran = session.memory_step.verify(session.batches.make_of_length(rows, length), rows)
        assert ran.peak is not None
        found[f"{rows} x {length}"] = ran.peak.allocated_bytes
    return found


def _session(job: Job, *, exact: bool, budget_bytes: int | None = None) -> Any:
    from bexplore.engine.protocol.messages import RunProbe, SharedMode
    from bexplore.engine.worker.session import Session
    from bexplore.measurement.probe import Compilation, Probe

    compiled = Compilation.EXACT if exact else Compilation.SHARED
    return Session(
        RunProbe(
            job=job,
            probe=Probe(
                number=0, micro_batch_size=1, compilation=compiled if job.compile.enabled else Compilation.EAGER
            ),
            shared_mode=SharedMode.NESTED,
            budget_bytes=budget_bytes,
        ),
        report=lambda **_: None,
    )


def _budget_bytes(record: Mapping[str, Any]) -> int:
    return int(record["trace"]["budget_bytes"]) if "trace" in record else COMMAND_BUDGET


def explored(one: LengthsJob, record: Mapping[str, Any]) -> dict[str, Any]:
    """Explore the job with the lengths of its samples."""
    return _explore(one, record, with_lengths=True)


def fixed(one: LengthsJob, record: Mapping[str, Any]) -> dict[str, Any]:
    """Explore the job at the longest length alone."""
    return _explore(one, record, with_lengths=False)


def _explore(one: LengthsJob, record: Mapping[str, Any], *, with_lengths: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.yaml").write_text(one.text(with_lengths=with_lengths, budget_bytes=_budget_bytes(record)))
        _write_samples(one, Path(folder), with_lengths=with_lengths)
        command = [sys.executable, "-m", "bexplore", "explore", "job.yaml", "--fresh"]
        # The `python` of the training commands is this one.
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        began = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment, text=True, capture_output=True, timeout=_LIMIT_S, check=False
        )
        elapsed_s = time.perf_counter() - began
        results = sorted(Path(folder).rglob("result.json"))
        if done.returncode or not results:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        result = json.loads(results[-1].read_text())
    names: tuple[str, ...] = ("micro_batch_size", "confidence", "num_probes", "samples_per_s", "lengths")
    names += ("peak_memory_bytes", "resident_memory_bytes")
    return {
        "elapsed_s": elapsed_s,
        "text": done.stdout[-6000:].replace(f"{ROOT}/", ""),
        **{name: result.get(name) for name in names},
    }


def _write_samples(one: LengthsJob, folder: Path, *, with_lengths: bool) -> None:
    Path(folder, "lengths.txt").write_text("\n".join(map(str, one.samples(with_lengths=with_lengths))))


def _run_command(one: LengthsJob, size: int, *arguments: object) -> dict[str, Any]:
    """Run the training itself; return what it tells at its end."""
    with tempfile.TemporaryDirectory() as folder:
        _write_samples(one, Path(folder), with_lengths=True)
        words = ["--micro-batch-size", size, "--out", folder, "--lengths", f"{folder}/lengths.txt", "--check"]
        command = [sys.executable, SCRIPT, *words, *(one.command or ()), *arguments]
        done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=_LIMIT_S, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _sizes_of_truth(record: Mapping[str, Any]) -> list[int]:
    answers = [record[name]["micro_batch_size"] for name in ("explored", "fixed")]
    return sorted({*answers, *SIZES_OF_TRUTH})


def truth(one: LengthsJob, record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Time sizes over the same random samples; return by size the seconds of each round, for as many tokens."""
    sizes = _sizes_of_truth(record)
    if one.command is not None:
        seconds: dict[str, list[float]] = {str(size): [] for size in sizes}
        for number in range(ROUNDS):
            for size in sizes if number % 2 else sizes[::-1]:
                told = _run_command(one, size, "--samples", 4 * NUM_SAMPLES)
                seconds[str(size)].append(1000 * told["seconds"] / told["tokens"])
        return seconds
    job = job_of(one)
    assert job.lengths is not None
    session = _session(job, exact=False)
    session.prepare(sizes[-1])
    drawn = np.random.default_rng(17)
    seconds = {str(size): [] for size in sizes}
    for number in range(ROUNDS + 1):
        samples = _draw(job, drawn, NUM_SAMPLES * (SIZES_OF_TRUTH[-1] if one.in_tokens else 1))
        for size in sizes if number % 2 else sizes[::-1]:
            spent = 0.0
            for rows, length in _collate(job.lengths, samples, size):
                spent += session.steps.time_pass(session.batches.make_of_length(rows, length))
                session.steps.clear_gradients()
            if number:  # the first round warms up
                seconds[str(size)].append(spent)
    return seconds


def _draw(job: Job, drawn: np.random.Generator, count: int) -> np.ndarray:
    assert job.lengths is not None
    return drawn.choice(job.lengths.values, size=count, p=job.lengths.weights)


def _collate(lengths: Lengths, samples: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Return rows and length of the batches of samples, apart from the product's own collation."""
    step = lengths.multiple_of
    padded = -(-samples // step) * step
    if lengths.collation is not Collation.TOKENS:
        parts = [padded[start : start + size] for start in range(0, len(padded), size)]
        return [(len(part), int(part.max())) for part in parts]
    shapes, rows, longest = [], 0, 0
    for length in np.sort(padded).tolist():
        if (rows + 1) * length > size * lengths.longest:
            shapes.append((rows, longest))
            rows = 0
        rows, longest = rows + 1, length
    return [*shapes, (rows, longest)]


def survives(one: LengthsJob, record: Mapping[str, Any]) -> dict[str, Any]:
    """Train at the recommended size under the budget; raise where memory runs out."""
    size = record["explored"]["micro_batch_size"]
    if one.command is not None:
        told = _run_command(one, size, "--steps", NUM_STEPS, "--longest-every", NUM_STEPS // NUM_LONGEST)
        if told["peak_mib"] * 2**20 > COMMAND_BUDGET:
            raise MemoryError(f"{told['peak_mib']:.0f} MiB are above the budget")
        return {"num_steps": told["steps"], "micro_batch_size": size, "peak_mib": told["peak_mib"]}
    job = job_of(one)
    assert job.lengths is not None
    session = _session(job, exact=True, budget_bytes=record["trace"]["budget_bytes"])
    session.prepare(size)
    drawn = np.random.default_rng(23)
    worst = set(drawn.choice(NUM_STEPS, NUM_LONGEST, replace=False).tolist())
    extremes = job.lengths.extreme_batches(size)
    num_samples = 2 * NUM_STEPS * size * (4 if one.in_tokens else 1)
    usual = drawn.permutation(_collate(job.lengths, _draw(job, drawn, num_samples), size)).tolist()
    shapes = set()
    with session.limit.around_steps(session.steps.live_bytes()):
        for number in range(NUM_STEPS):
            for place in range(PASSES_OF_STEP):
                is_worst = number in worst
                shape = extremes[number % len(extremes)] if is_worst else usual[(2 * number + place) % len(usual)]
                shapes.add(tuple(shape))
                session.steps.forward_backward(session.batches.make_of_length(*shape))
            session.steps.update()
    return {"num_steps": NUM_STEPS, "micro_batch_size": size, "num_lengths": len(shapes)}


ACTIONS: Mapping[str, Callable[[LengthsJob, Mapping[str, Any]], Any]] = {
    "trace": trace,
    "explored": explored,
    "fixed": fixed,
    "truth": truth,
    "survives": survives,
    "memory": memory,
}


def _over(record: Mapping[str, Any], size: int, other: int) -> PairedRatio:
    """Return the speed of a size over another's, by the rounds of the truth."""
    times: Mapping[str, Sequence[float]] = record["truth"]
    return paired_ratio(times[str(other)], times[str(size)])


def _best(record: Mapping[str, Any]) -> int:
    return min((int(size) for size in record["truth"]), key=lambda size: sum(record["truth"][str(size)]))


def _memory_errors(record: Mapping[str, Any]) -> list[float]:
    if not record.get("memory"):
        return []
    peaks = record["trace"]["peaks"]
    return [peaks[place] / measured - 1.0 for place, measured in record["memory"].items()]


def _markdown(records: Mapping[str, Any]) -> str:
    done = {name: record for name, record in records.items() if {"truth", "explored", "fixed"} <= record.keys()}
    lines = [
        "# Samples of many lengths",
        "",
        f"Written by `python -m benchmarks.lengths`; {_machine()}",
        "",
        f"Candidates: {', '.join(map(str, SIZES))}. Truth: rounds over the same random samples at both answers and "
        "other sizes. Regret: what the answer misses of the fastest's speed, and what of it is beyond the 95 % "
        "interval of their ratio. Sizes of a number of tokens are in rows of the longest.",
        *_missing_lines(done),
        "",
        "| job | lengths: answer, score | longest alone: answer | over the longest's answer | fastest | regret % "
        "| beyond % | seconds, lengths | longest alone | ratio | steps survived |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_row(name, record) for name, record in done.items()),
        "",
        *_verdicts(list(done.values())),
        "",
        *_memory_lines(records),
        "",
        "Lengths:",
        "",
        *(f"* {one.name}: {one.source}." for one in JOBS if one.name in records),
    ]
    return "\n".join(lines) + "\n"


def _missing_lines(done: Mapping[str, Any]) -> list[str]:
    missing = [one.name for one in JOBS if one.name not in done]
    if not missing:
        return []
    text = f"Not timed yet, as that needs a quiet machine: {'; '.join(missing)}."
    return [
        "",
        f"{text} The seconds of the others are of an earlier call, with 192 samples a round at every candidate.",
    ]


def _machine() -> str:
    facts = machine_facts()
    return f"{facts['processor']}, {facts['processors']} cores, Python {facts['python']}, torch {facts['torch']}."


def _regrets(record: Mapping[str, Any]) -> tuple[float, float]:
    """Return what the answer misses of the fastest's speed, and what of it is certain."""
    ratio = _over(record, _best(record), record["explored"]["micro_batch_size"])
    return 1.0 - 1.0 / ratio.value, max(0.0, 1.0 - 1.0 / max(ratio.low, 1e-9))


def _row(name: str, record: Mapping[str, Any]) -> str:
    own, other = record["explored"], record["fixed"]
    gain = _over(record, own["micro_batch_size"], other["micro_batch_size"])
    regret, beyond = _regrets(record)
    survived = record.get("survives", {}).get("num_steps", "")
    interval = "" if own["micro_batch_size"] == other["micro_batch_size"] else f" ({gain.low:.3f} to {gain.high:.3f})"
    return (
        f"| {name} | {own['micro_batch_size']}, {own['confidence']} | {other['micro_batch_size']} "
        f"| {gain.value:.3f}{interval} | {_best(record)} | {100 * regret:.2f} | {100 * beyond:.2f} "
        f"| {own['elapsed_s']:.0f} | {other['elapsed_s']:.0f} | {own['elapsed_s'] / other['elapsed_s']:.2f} "
        f"| {survived} |"
    )


def _verdicts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    if not records:
        return []
    gains = [_over(one, one["explored"]["micro_batch_size"], one["fixed"]["micro_batch_size"]).value for one in records]
    beyond = [_regrets(one)[1] for one in records]
    costs = [one["explored"]["elapsed_s"] / one["fixed"]["elapsed_s"] for one in records]
    survived = sum("survives" in one for one in records)
    return [
        f"* Survived {NUM_STEPS} steps, the longest {NUM_LONGEST} times: {survived} of {len(records)} (must: all).",
        f"* Against the answer at the longest alone: worst {min(gains):.3f} (must: at least {1 - WORST_SLOWER:.2f}), "
        f"at least {1 + BETTER:.1f} in {sum(gain >= 1 + BETTER for gain in gains)} (must: {NUM_BETTER}).",
        f"* Regret beyond the interval: mean {100 * statistics.mean(beyond):.2f} %, worst {100 * max(beyond):.2f} % "
        f"(must: at most {100 * MEAN_REGRET:.1f} and {100 * WORST_REGRET:.1f} %).",
        f"* Seconds over those of one fixed length: median {statistics.median(costs):.2f}, worst {max(costs):.2f} "
        f"(must: at most {MOST_COST}).",
    ]


def _memory_lines(records: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {place} | {record['trace']['peaks'][place] / 2**20:.1f} | {measured / 2**20:.1f} "
        f"| {100 * (record['trace']['peaks'][place] / measured - 1):+.2f} |"
        for name, record in records.items()
        for place, measured in record.get("memory", {}).items()
    ]
    errors = [abs(error) for record in records.values() for error in _memory_errors(record)]
    if not errors:
        return []
    return [
        "Memory at a size and a length: predicted by traces at the longest, its half and its quarter, and measured, as "
        f"the training compiles it: median error {100 * statistics.median(errors):.2f} %, worst "
        f"{100 * max(errors):.2f} % (must: at most {100 * MEDIAN_MEMORY:.0f} and {100 * WORST_MEMORY:.0f} %).",
        "",
        "| job | size x length | predicted MiB | measured MiB | error % |",
        "| --- | --- | ---: | ---: | ---: |",
        *rows,
    ]


if __name__ == "__main__":
    main()
