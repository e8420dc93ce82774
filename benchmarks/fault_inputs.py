"""Generated inputs for every parser: mutated files that are fine, grown towards what reaches new lines of the code."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bexplore.config.load import load_config
from bexplore.errors import BexploreError
from bexplore.guard.baseline import read_baseline
from bexplore.host.records import to_record
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.replay.table import load_table
from bexplore.run.journal import Journal
from bexplore.run.run_directory import find_runs, open_run

ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "bexplore")
LONGEST_S = 1.0
HANG_S = 20
COVERAGE_EVERY = 4  # following lines costs ten times the parse
MOST_SEEDS = 400

NASTY = [
    *(b"0", b"-1", b"1e9", b"1000000000", b".nan", b"NaN", b".inf", b"-.inf", b"true", b"null", b"~", b'"8 "', b"8 "),
    *(b"1e999", b"0x10", b"0o17", b"1_000", b"9" * 500, b"1:30", b"2026-01-01", b"\0", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"&a [*a]", b"*a", b"<<: *a", b"!!python/object/apply:os.system [id]", b"!!binary aGk=", b"!tag x", b"%YAML 9"),
    *(b"- - - -", b"[[[[", b"{{{{", b"]", b"}", b"? x", b"|", b">-", b"\t", b"\r", b"\n---\n", b"...", b"# x", b"''"),
    *(b"micro_batch_size", b"explore", b"batch_size", b"candidates", b"memory_budget", b"min", b"max", b"workload"),
    *(b"trainer", b"init", b"callbacks", b"fit", b"train_input", b"eval_input", b"runconfig", b"num_csx", b"model"),
    *(b"12GiB", b"50%", b"10min", b"../../etc", b"os:system", b"__import__('os')", "Grö\u202eße".encode(), b"\\x00"),
    *(b",", b",,,,", b'"', b'"""', b"inf", b"-0", b"1e-400", b"oom", b"curve_id", b"\x1a", b"{}", b"[]", b'{"a":' * 60),
]


@dataclass(slots=True)
class Target:
    """A parser, inputs that it takes, and what came of the generated ones."""

    name: str
    parse: Callable[[bytes], Any]
    seeds: list[bytes]
    share: float
    told: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    reached: set[tuple[str, int]] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def targets(folder: Path) -> list[Target]:
    """Every parser of a file or a text that users write, and that disks damage."""
    configs = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml")) if "github" not in path.name]
    plain = ROOT / "configs" / "quickstart.yaml"
    tables = [
        b"\n".join(path.read_bytes().splitlines()[:8]) + b"\n" for path in (ROOT / "benchmarks/curves").glob("*.csv")
    ]
    line = json.dumps(
        to_record(
            Observation(
                probe=Probe(number=3, micro_batch_size=8),
                outcome=Outcome.MEASURED,
                pass_times_s=(0.1, 0.2),
                details={"a": 1},
            )
        )
    ).encode()
    sets = [
        b"explore.max_probes=3",
        b"train_input.batch_size=48",
        b"explore.candidates=[1, 2, 4]",
        b"a.0.b=c",
        b"x={y: 1}",
    ]
    baseline = ROOT / "configs" / "guard_tiny.json"
    return [
        Target("configuration", _of_file(folder / "job.yaml", lambda path: load_config(path)), configs, 0.4),
        Target("--set", lambda text: load_config(plain, overrides=(text.decode(errors="replace"),)), sets, 0.25),
        Target("replay table", _of_file(folder / "table.csv", load_table), tables, 0.15),
        Target(
            "journal",
            _of_file(folder / "journal.jsonl", lambda p: Journal(p).read()),
            [line + b"\n" + line + b"\n"],
            0.1,
        ),
        Target("run directory", _of_run(folder / "run_x"), [b'{"format_version": 1, "job": {}}'], 0.03),
        Target(
            "baseline",
            _of_file(folder / "base.json", partial(read_baseline, typed="job.yaml")),
            [baseline.read_bytes()],
            0.07,
        ),
    ]


def generate(folder: Path, *, number: int, seed: int) -> dict[str, Any]:
    """Give every parser its share of so many generated inputs.

    Args:
        folder: Empty; the inputs are written here, and nothing else may appear.
        number: Inputs in all.
        seed: Of the mutations.
    """
    rng = random.Random(seed)
    signal.signal(signal.SIGALRM, _hang)
    all_targets = targets(folder)
    for target in all_targets:  # what is imported late must not count
        for start in list(target.seeds):
            _try(target, start, covered=False)
        target.told.clear()
        target.slowest_s = 0.0
    files_before, rss_before = _files(folder), _peak_rss_bytes()
    for target in all_targets:
        for turn in range(round(number * target.share)):
            data = _mutated(rng, target.seeds)
            if _try(target, data, covered=turn % COVERAGE_EVERY == 0) and len(target.seeds) < MOST_SEEDS:
                target.seeds.append(data)
    return {
        "inputs": sum(sum(target.told.values()) for target in all_targets),
        "tracebacks": sum(target.told["traceback"] for target in all_targets),
        "slower than 1 s": sum(target.told["slow"] for target in all_targets),
        "slowest_s": round(max(target.slowest_s for target in all_targets), 3),
        "memory_growth_mib": round((_peak_rss_bytes() - rss_before) / 2**20),
        "files_made": sorted(_files(folder) - files_before),
        "parsers": {target.name: _summary(target) for target in all_targets},
    }


def _summary(target: Target) -> Mapping[str, Any]:
    return {
        **target.told,
        "slowest_s": round(target.slowest_s, 3),
        "lines_reached": len(target.reached),
        "seeds_found": len(target.seeds),
        "failures": target.failures[:20],
    }


def _try(target: Target, data: bytes, *, covered: bool) -> bool:
    """Parse one input; returns whether it reached a new line."""
    lines: set[tuple[str, int]] = set()
    began = time.process_time()
    signal.alarm(HANG_S)
    try:
        if covered:
            sys.settrace(_follower(lines))
        target.parse(data)
        kind = "accepted"
    except BexploreError:
        kind = "refused"
    except BaseException as error:  # the very thing that is looked for
        kind = "traceback"
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        note = f"{type(error).__name__}: {str(error)[:80]} at {where} for {data[:120]!r}"
        target.failures.append(note)
    finally:
        sys.settrace(None)
        signal.alarm(0)
    seconds = time.process_time() - began
    if not covered:
        target.slowest_s = max(target.slowest_s, seconds)
        if seconds > LONGEST_S:
            kind = "slow"
            target.failures.append(f"{seconds:.2f} s for {len(data)} bytes: {data[:120]!r}")
    target.told[kind] += 1
    is_new = not lines <= target.reached
    target.reached |= lines
    return is_new


def _follower(lines: set[tuple[str, int]]) -> Callable[..., Any]:
    def local(frame: Any, event: str, _argument: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def enter(frame: Any, _event: str, _argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PACKAGE) else None

    return enter


def _mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            data[at:at] = rng.choice(NASTY)
        elif kind == 1:
            data[at : at + rng.randrange(1, 40)] = rng.choice(NASTY)
        elif kind == 2:
            del data[at : at + rng.choice((1, 1, 5, 50))]
        elif kind == 3 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 4:
            data[at:at] = data[at : at + rng.randrange(1, 200)] * rng.choice((1, 2, 30))
        elif kind == 5:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at:at] = other[start : start + rng.randrange(1, 300)]
        elif kind == 6:
            _replace_value(rng, data)
        else:
            data[at:at] = rng.choice((b"[", b"{", b"(", b"- ", b"a: ", b"&x ", b" ", b"\n  ")) * rng.choice(
                (2, 40, 3000)
            )
    return bytes(data)


def _replace_value(rng: random.Random, data: bytearray) -> None:
    """Put something nasty where a value stands, so that the checks behind the parser are reached."""
    marks = [index for index, byte in enumerate(data) if byte in b":=,"]
    if marks:
        at = rng.choice(marks) + 1
        end = min((i for i in range(at, min(at + 80, len(data))) if data[i] in b",\n}"), default=at)
        data[at:end] = b" " + rng.choice(NASTY)


def _of_file(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        path.write_bytes(data)
        return read(path)

    return parse


def _of_run(directory: Path) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        directory.mkdir(exist_ok=True)
        for name in ("meta.json", "result.json"):
            (directory / name).write_bytes(data)
        run = open_run(directory)
        find_runs(directory.parent)
        run.meta()
        return run.result()

    return parse


def _hang(_number: int, _frame: Any) -> None:
    raise TimeoutError(f"still parsing after {HANG_S} s")


def _files(folder: Path) -> set[str]:
    return {str(path) for place in (folder, Path(os.curdir)) for path in place.iterdir()}


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
