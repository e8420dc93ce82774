"""What becomes of a training command's failures: `python -m benchmarks.command_faults`.

30 kinds of failures, each on rank 0 and on rank 1 of a training that torchrun starts with two. Each is compared with
its expected outcome; then processes, ports, shared memory and files that it left are counted, and the next probe is
timed beside probes that no failure precedes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.faults import RESULTS, machine_facts
from bexplore.command import watch
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.errors import UserProgramError
from bexplore.measurement.probe import Outcome
from tests.command_builders import TRAIN, Surroundings, listening_ports, marked_processes, probe_of, shared_memory
from tests.command_builders import training as training_command

LIMIT_BYTES = 2 * 2**30  # of each rank: above what importing torch takes, and far below what a refused tensor asks for
PLACES = ("forward", "backward", "update")
LATER_STEP = 4
ROWS, PAGE = RESULTS / "command_faults.json", RESULTS / "command_faults.md"
HANG_S, AFTER_ERROR_S = watch.HANG_S, watch.AFTER_ERROR_S
UNDISTURBED = 5  # probes that no failure precedes
# Limits of a start that are shorter here: what is waited for is the same.
SHORTER = {"HANG_S": 5.0, "AFTER_ERROR_S": 1.5, "LEAST_TIMED_S": 0.3, "MOST_TIMED_S": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of failure.

    Attributes:
        name: Of the kind.
        words: Of the command.
        expected: The outcome that is right.
    """

    name: str
    words: tuple[str, ...]
    expected: str


def kinds() -> Iterator[Kind]:
    """Yield the kinds."""
    memory = Outcome.OUT_OF_MEMORY.value
    for place in PLACES:
        for how in ("injected", "refused"):
            fault = ("--fault", f"{place}:{how}")
            for step in (0, LATER_STEP):
                name = f"memory {how} in {place}, step {step}"
                yield Kind(name=name, words=(*fault, "--step", str(step)), expected=memory)
            yield Kind(name=f"memory {how} in {place}, swallowed", words=(*fault, "--swallow"), expected=memory)
        yield Kind(name=f"bug in {place}", words=("--fault", f"{place}:bug"), expected=Outcome.CRASHED.value)
        later = ("--step", str(LATER_STEP))
        killed = ("--fault", f"{place}:killed", *later)
        yield Kind(name=f"killed in {place}", words=killed, expected=Outcome.CRASHED.value)
        hang = ("--fault", f"{place}:hang", *later)
        yield Kind(name=f"hang in {place}", words=hang, expected=Outcome.TIMED_OUT.value)
    crashed = Outcome.CRASHED.value
    yield Kind(name="segmentation fault", words=("--fault", "forward:segfault"), expected=crashed)
    yield Kind(name="exit with status 3", words=("--fault", "forward:exit", *later), expected=crashed)
    yield Kind(name="program shrinks the size", words=("--fault", "forward:injected", "--shrink"), expected=memory)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command_faults", description=__doc__)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--again", action="store_true", help="run kinds anew whose result is known")
    options = parser.parse_args(arguments)
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else []
    known = set() if options.again else {(row["kind"], row["rank"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="bexplore-command-") as folder, mock.patch.multiple(watch, **SHORTER):
        bench = Bench(Path(folder).resolve())
        alone_s = statistics.median(bench.next_probe_s() for _ in range(UNDISTURBED))
        for kind, rank in itertools.product(kinds(), (0, 1)):
            if options.only in kind.name and (kind.name, rank) not in known:
                row = bench.run(kind, rank, alone_s)
                rows = [one for one in rows if (one["kind"], one["rank"]) != (kind.name, rank)] + [row]
                ROWS.write_text(json.dumps(rows, indent=1) + "\n")
                PAGE.write_text(markdown(rows))
    return 0


class Bench:
    """Starts of commands in one folder.

    Args:
        folder: The folder of runs and of temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.number = 0

    def run(self, kind: Kind, rank: int, alone_s: float) -> dict[str, Any]:
        """Run a failure and the probe after it, which takes `alone_s` where no failure precedes it; return the row."""
        before, ports = self._surroundings(), set(listening_ports(self.run_dir))
        began_s = time.monotonic()
        seen, reason = self._start(kind, rank)
        elapsed_s = time.monotonic() - began_s
        row = {
            "kind": kind.name,
            "rank": rank,
            "expected": kind.expected,
            "seen": seen,
            "reason": reason[:90],
            "seconds": round(elapsed_s, 1),
            "processes": len(marked_processes(self.run_dir)),
            "ports": len(set(listening_ports(self.run_dir)) - ports),
            "shared_memory": len(shared_memory(self.run_dir)),
            "files": self._surroundings().changed_since(before),
        }
        return row | {"next_s": round(self.next_probe_s(), 1), "alone_s": round(alone_s, 1)}

    def next_probe_s(self) -> float:
        """Return the seconds of a probe that has no failure, with one rank."""
        began_s = time.monotonic()
        assert self._runner()(self._probe()).is_measured
        return time.monotonic() - began_s

    def _start(self, kind: Kind, rank: int) -> tuple[str, str]:
        runner = self._runner(*kind.words, "--rank", str(rank), ranks=2)
        try:
            observation = runner(self._probe())
        except UserProgramError as error:
            return "refused", error.message
        return observation.outcome.value, observation.reason

    def _runner(self, *words: str, ranks: int = 1) -> CommandRunner:
        command = training_command(*words, ranks=ranks)
        command.env["TMPDIR"] = str(self.temporary)
        return CommandRunner(command, CommandSettings(run_dir=self.run_dir, memory_limit_bytes=LIMIT_BYTES))

    def _probe(self):
        self.number += 1
        return probe_of(4, number=self.number)

    def _surroundings(self) -> Surroundings:
        return Surroundings.of(self.folder, TRAIN.parent, but=self.run_dir)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of all results."""
    right = sum(row["expected"] == row["seen"] for row in rows)
    left = {name: sum(row[name] for row in rows) for name in ("processes", "ports", "shared_memory")}
    left["files"] = sum(len(row["files"]) for row in rows)
    next_s = [row["next_s"] for row in rows]
    later_s = [row["next_s"] - row["alone_s"] for row in rows]
    lines = [
        "# Failures of a training command",
        "",
        "Written by `benchmarks/command_faults.py`: each kind on rank 0 and on rank 1 of torchrun with two. A rank "
        f"counts as hung after {SHORTER['HANG_S']:.0f} s here and after {HANG_S:.0f} s otherwise; the others get "
        f"{SHORTER['AFTER_ERROR_S']:.1f} s after the first error, and {AFTER_ERROR_S:.1f} s otherwise. "
        "A call runs the failures whose result is not known.",
        "",
        *[f"* {name}: {text}" for name, text in machine_facts("python -m benchmarks.command_faults").items()],
        f"* Outcomes: {right} of {len(rows)} right; {2 * len(list(kinds())) - len(rows)} not run yet.",
        f"* Left over: {', '.join(f'{count} {name}' for name, count in left.items())}.",
        f"* Next probe (one rank), beside one that no failure precedes: {statistics.median(later_s):+.1f} s (median), "
        f"{max(later_s):+.1f} s (most). Other loads of the machine move both; the slowest "
        f"of all next probes took {max(next_s):.1f} s and the fastest {min(next_s):.1f} s.",
        "",
        "| kind | rank | expected | seen | reason | s | processes | ports | shared memory | files | next probe, s "
        "| without failure, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(map(_cell, row.values()))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return str(len(value)) if not value else "<br>".join(value)
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
