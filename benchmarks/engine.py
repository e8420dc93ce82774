"""The engine beside what a user would do instead: `python -m benchmarks.engine [--quick | --cuda [--cpu]]`.

Every measurement starts with empty compile caches. Each is appended to `benchmarks/results/engine.jsonl` as soon as it
is there, and the tables are written again; the same command goes on where it stopped. The most telling come first.
`--fresh` measures again, and the newest of a kind counts.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import engine_measure as measure
from benchmarks.engine_jobs import (
    CANDIDATES,
    CPU_JOBS,
    CUDA_JOBS,
    DEPTHS,
    JOBS,
    QUICK_JOBS,
    VARIED_CONFIG,
    WIDE_TOLERANCE,
    sweep_sizes,
    tiny_jobs,
    truth_sizes,
)
from benchmarks.engine_report import markdown, summary
from bexplore.host.accelerators import is_emulated
from bexplore.host.machine import package_version, processor_name

RESULTS = Path(__file__).parent / "results"
RIVALS = ("lightning_power", "accelerate", "doubling_compiled", "lightning_binsearch")
COMPILED_RIVALS = ("doubling_compiled",)
KINDS = ("explore", "floor", "sweep", "truth", "compile", "rival", "wide", "survive")
TRUTH_PASSES_S, QUICK_TRUTH_PASSES_S = 120.0, 20.0
QUICK_LIMIT_MIN = 9.5
VARIED_S = 40.0  # an exploration of the table of compile seconds, for the plan

Record = dict[str, Any]


class OutOfTime(BaseException):
    """The time that was given is up; nothing but `run` stops it on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One measurement.

    Attributes:
        job: Name of the job; `varied` for the table of compile seconds.
        kind: One of `KINDS`.
        what: Which rival or size; empty where the kind says it all.
        run: From 1.
        expected_s: For the plan.
        measure: Does it, given what is known of the job so far; None as its result if it cannot be done yet.
    """

    job: str
    kind: str
    what: str = ""
    run: int = 1
    expected_s: float
    measure: Callable[[Known], Record | None]

    @property
    def key(self) -> str:
        return " | ".join(filter(None, (self.job, self.kind, self.what, str(self.run))))


class Known:
    """The records of a results file: those of these configurations and this torch count, the newest of a key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[str, Record] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            if record["made_with"] == made_with(record["job"]):
                self.records[record["key"]] = record

    def add(self, unit: Unit, record: Record) -> None:
        """Keep a record on disk before anybody believes it."""
        whole = {"key": unit.key, "job": unit.job, "kind": unit.kind, "what": unit.what, "run": unit.run}
        whole |= {"made_with": made_with(unit.job), **circumstances(), **record}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(whole) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[unit.key] = whole

    def of(self, job: str, kind: str) -> list[Record]:
        return [record for record in self.records.values() if (record["job"], record["kind"]) == (job, kind)]

    def largest_that_fits(self, job: str) -> int | None:
        found = self.of(job, "explore")
        return found[0]["largest_that_fits"] if found else None

    def answers(self, job: str) -> tuple[int, ...]:
        """What its explorations recommended, those that took more for a tie included."""
        found = (record["micro_batch_size"] for kind in ("explore", "wide") for record in self.of(job, kind))
        return tuple(sorted(set(found)))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.cuda and not options.cpu and not has_cuda():
        print("torch finds no CUDA device here, which --cuda needs; --cuda --cpu exercises it", file=sys.stderr)
        return 2
    emulates = options.cuda and not options.cpu and is_emulated()
    name = f"engine_cuda{'_cpu' if options.cpu else '_emulated' if emulates else ''}" if options.cuda else "engine"
    name = "engine_quick" if options.quick else name
    if options.cpu or emulates:
        JOBS.update(tiny_jobs(options.results / f"{name}_jobs", "cuda:0" if emulates else "cpu"))
    known = Known(options.results / f"{name}.jsonl")
    with tempfile.TemporaryDirectory(prefix="bexplore-engine-") as caches:
        units = plan(options, Path(caches))
        todo = [unit for unit in units if options.fresh or unit.key not in known.records]
        minutes = sum(expected_s(unit, known) for unit in todo) / 60
        print(
            f"{len(units) - len(todo)} of {len(units)} measurements are known; about {minutes:.0f} min", file=sys.stderr
        )
        if options.report:
            todo = []
        if options.dry_run:
            for unit in todo:
                print(f"{expected_s(unit, known):6.0f} s  {unit.key}")
            return 0
        with _alarm(options.minutes):
            write = functools.partial(_write, options, name, known)
            failed = run(todo, known, deadline_s=_deadline(options), write=write)
    print(_write(options, name, known))
    return 1 if failed else 0


def run(units: Sequence[Unit], known: Known, *, deadline_s: float | None, write: Callable[[], object]) -> int:
    """Do what there is time for, in order; what fails is said and left out. Returns how many failed.

    A machine on which earlier units took longer than guessed is taken to be as slow for the later ones.
    """
    failed = 0
    took_s = guessed_s = 1.0
    for unit in units:
        guess_s = expected_s(unit, known)
        needed_s = guess_s * max(1.0, took_s / guessed_s)
        if deadline_s is not None and time.monotonic() + needed_s > deadline_s:
            print(f"{unit.key}: no time left for its {needed_s:.0f} s", file=sys.stderr)
            continue
        began_s = time.monotonic()
        try:
            record = unit.measure(known)
        except (measure.MeasurementError, subprocess.SubprocessError) as error:
            print(f"{unit.key}: FAILED: {error}", file=sys.stderr)
            failed += 1
            continue
        except OutOfTime:
            print(f"{unit.key}: cut off, since the time is up", file=sys.stderr)
            return failed
        if record is None:
            print(f"{unit.key}: waits for an exploration of {unit.job}", file=sys.stderr)
            continue
        took_s, guessed_s = took_s + time.monotonic() - began_s, guessed_s + guess_s
        known.add(unit, record | {"wall_s": time.monotonic() - began_s})
        print(f"{unit.key}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        write()
    return failed


@contextmanager
def _alarm(minutes: float | None) -> Iterator[None]:
    """Raise `OutOfTime` in the main thread when the time is up, whatever it waits for. SIGALRM would be pytest's."""

    def ring(*_: object) -> None:
        raise OutOfTime

    if minutes is None:
        yield
        return
    before = signal.signal(signal.SIGUSR1, ring)
    timer = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


def expected_s(unit: Unit, known: Known) -> float:
    """What the same took before; where it was never done, a guess."""
    took = [record["wall_s"] for record in known.of(unit.job, unit.kind) if record["what"] == unit.what]
    return statistics.median(took) if took else unit.expected_s


def plan(options: argparse.Namespace, caches: Path) -> list[Unit]:
    """All measurements that were asked for, the most telling first."""
    units = [unit for unit in _everything(options, caches) if unit.kind in options.only and unit.run <= options.runs]
    return list({unit.key: unit for unit in units}.values())


def _everything(options: argparse.Namespace, caches: Path) -> Iterator[Unit]:
    """The first job whole; the others once; compile seconds; the first job again; finders; all else again."""
    first, *others = options.jobs
    passes_s = QUICK_TRUTH_PASSES_S if options.quick else TRUTH_PASSES_S
    again = range(2, options.runs + 1)
    for job in (first, *others):
        yield from (_explore(job, 1), _floor(job, 1), _sweep(job, 1, caches))
        if job == first:
            yield _truth(job, caches, passes_s)
    yield from (_truth(job, caches, passes_s) for job in others)
    yield from _varied(options, (2, 8) if options.quick else DEPTHS, (4, 64) if options.quick else CANDIDATES)
    for number in again:
        yield from (_explore(first, number), _floor(first, number))
    for rival in RIVALS:
        yield from (_rival(job, rival) for job in options.jobs)
    for number in again:
        for job in others:
            yield from (_explore(job, number), _floor(job, number))
    for number in again:
        yield from (_sweep(job, number, caches) for job in options.jobs)
    for number in again:
        yield from (_rival(job, rival, number) for rival in RIVALS for job in options.jobs)
    if not options.quick and not options.cuda:
        yield from (_wide(job, number) for number in (1, *again) for job in options.jobs)
    for job in reversed(options.jobs):  # the quickest first
        yield from (_survive(job, who, 1) for who in (("bexplore",) if options.quick else ("bexplore", *RIVALS)))
    for number in again:  # of ours alone: what is not known of a rival's answer speaks for it
        yield from (_survive(job, "bexplore", number) for job in reversed(options.jobs))


def _explore(job: str, number: int) -> Unit:
    def run(_known: Known) -> Record:
        return measure.explore(JOBS[job].config, with_warm_start=number == 1)

    return Unit(job=job, kind="explore", run=number, expected_s=JOBS[job].expected_s["explore"], measure=run)


def _wide(job: str, number: int) -> Unit:
    """An exploration that takes more for a tie."""

    def run(_known: Known) -> Record:
        return measure.explore(JOBS[job].config, [f"explore.tolerance={WIDE_TOLERANCE}"])

    return Unit(job=job, kind="wide", run=number, expected_s=JOBS[job].expected_s["explore"], measure=run)


def _floor(job: str, number: int) -> Unit:
    def run(known: Known) -> Record | None:
        explored = known.of(job, "explore")
        return measure.floor(JOBS[job].config, explored[0]["base_micro_batch_size"]) if explored else None

    return Unit(job=job, kind="floor", run=number, expected_s=JOBS[job].expected_s["floor"], measure=run)


def _sweep(job: str, number: int, caches: Path) -> Unit:
    def run(known: Known) -> Record | None:
        largest = known.largest_that_fits(job)
        return measure.sweep(JOBS[job].config, sweep_sizes(largest), caches / job) if largest else None

    return Unit(job=job, kind="sweep", run=number, expected_s=JOBS[job].expected_s["sweep"], measure=run)


def _truth(job: str, caches: Path, passes_s: float) -> Unit:
    def run(known: Known) -> Record | None:
        largest = known.largest_that_fits(job)
        if not largest:
            return None
        sizes = truth_sizes(largest, known.answers(job))
        return measure.truth(JOBS[job].config, sizes, caches / job, pass_budget_s=passes_s)

    return Unit(job=job, kind="truth", expected_s=JOBS[job].expected_s["truth"], measure=run)


def _rival(job: str, name: str, number: int = 1) -> Unit:
    def run(_known: Known) -> Record:
        return measure.rival(JOBS[job].config, name)

    return Unit(job=job, kind="rival", what=name, run=number, expected_s=JOBS[job].expected_s["rival"], measure=run)


def _survive(job: str, who: str, number: int) -> Unit:
    """100 steps of the answer of a run; explorers and rivals with the same answer and program share them."""

    def run(known: Known) -> Record | None:
        own = known.of(job, "explore") if who == "bexplore" else known.of(job, "rival")
        own = [record for record in own if record["what"] in ("", who) and record["run"] == number]
        size = own[-1].get("micro_batch_size", own[-1].get("answer")) if own else None
        if size is None:
            return None
        compiled = who == "bexplore" or who in COMPILED_RIVALS
        for earlier in known.of(job, "survive"):
            if (earlier["size"], earlier["program"]) == (size, "compiled" if compiled else "eager"):
                return {name: earlier[name] for name in ("size", "program", "steps", "survived", "reason", "total_s")}
        return {"size": size} | measure.survive(JOBS[job].config, size, compiled=compiled)

    return Unit(job=job, kind="survive", what=who, run=number, expected_s=JOBS[job].expected_s["survive"], measure=run)


def _varied(options: argparse.Namespace, depths: Sequence[int], candidates: Sequence[int]) -> Iterator[Unit]:
    """Explorations of one small job whose depth, and whose number of candidates, is varied."""
    on_cuda = ["explore.device=cuda", "explore.memory_budget=2GiB"] if options.cuda else []
    more = ["explore.compile.backend=eager", "explore.memory_budget=1GiB"] if options.cpu else on_cuda
    ways = [("layers", n, [f"model.num_hidden_layers={n}", "explore.max=16"]) for n in depths]
    ways += [("candidates", n, [f"explore.max={n}"]) for n in candidates]
    for name, number, overrides in ways:

        def run(_known: Known, overrides: Sequence[str] = (*overrides, *more)) -> Record:
            return measure.explore(VARIED_CONFIG, overrides)

        yield Unit(job="varied", kind="compile", what=f"{name} {number}", expected_s=VARIED_S, measure=run)


@functools.cache
def made_with(job: str) -> str:
    """What decides whether two records may stand in one table: the job's file and torch."""
    path = VARIED_CONFIG if job == "varied" else JOBS[job].config
    return f"torch {package_version('torch')}, {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def circumstances() -> Record:
    return {"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "load_average": round(os.getloadavg()[0], 2)}


def machine(*, cuda: bool) -> Record:
    facts: Record = {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
        "lightning": package_version("lightning"),
        "accelerate": package_version("accelerate"),
        "device": device_name() if cuda else "cpu",
    }
    return facts


def has_cuda() -> bool:
    return _torch("print(torch.cuda.is_available())") == "True"


def device_name() -> str:
    return _torch("print(torch.cuda.get_device_name())")


def _torch(statement: str) -> str:
    """Ask a process of its own, so that this one holds no device while others measure."""
    command = [sys.executable, "-c", f"import torch; {statement}"]
    return subprocess.run(command, check=False, text=True, capture_output=True).stdout.strip()


def _write(options: argparse.Namespace, name: str, known: Known) -> str:
    """The tables of what is known so far; each state of the campaign gives a valid report."""
    titles = {job: JOBS[job].title for job in _jobs(options)}
    path = options.results / f"{name}.json"
    measured = json.loads(path.read_text()) if options.report and path.exists() else {}  # on that machine, with those
    found = {
        "command": options.command,
        "machine": measured.get("machine") or _machine(options.cuda and not options.cpu),
    }
    found |= summary(titles, list(known.records.values()))
    text = markdown(found)
    options.results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    (options.results / f"{name}.md").write_text(text)
    return text


@functools.cache
def _machine(cuda: bool) -> Record:
    return machine(cuda=cuda)


def _deadline(options: argparse.Namespace) -> float | None:
    return None if options.minutes is None else time.monotonic() + 60 * options.minutes


def _jobs(options: argparse.Namespace) -> Mapping[str, Any]:
    return CUDA_JOBS if options.cuda else QUICK_JOBS if options.quick else CPU_JOBS


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    options = parser.parse_args(given)
    if options.quick and options.cuda:
        parser.error("--quick and --cuda exclude each other; take --cuda --runs 1 --jobs cuda_gpt")
    known = _jobs(options)
    if options.cpu and not options.cuda:
        parser.error("--cpu goes with --cuda")
    unknown = [job for job in options.jobs or [] if job not in known]
    if unknown:
        parser.error(f"--jobs {' '.join(unknown)}: known here: {', '.join(known)}")
    options.jobs = options.jobs or list(known)
    if options.quick:
        options.runs = 1
        options.minutes = options.minutes or QUICK_LIMIT_MIN
    options.command = " ".join(["python -m benchmarks.engine", *(word for word in given if word != "--report")])
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small job, one run, in less than ten minutes")
    parser.add_argument("--cuda", action="store_true", help="the jobs for a CUDA device")
    parser.add_argument("--cpu", action="store_true", help="with --cuda: its jobs tiny and on the CPU, to exercise it")
    parser.add_argument("--jobs", nargs="+", metavar="JOB", help="these jobs alone, in this order")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="these measurements alone")
    parser.add_argument("--runs", type=int, default=3, help="of what is repeated: explorations, sweeps, rivals")
    parser.add_argument("--minutes", type=float, help="end within so many; the same command goes on")
    parser.add_argument("--fresh", action="store_true", help="measure again what is known")
    parser.add_argument("--report", action="store_true", help="measure nothing; write the tables of what is known")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured and how long it takes")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    sys.exit(main())
