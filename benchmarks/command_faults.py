"""What becomes of a training command's failures: `python -m benchmarks.command_faults`.

30 kinds of failures, each on rank 0 and on rank 1 of a training that torchrun starts with two. Each is compared with
its expected outcome; then processes, ports, shared memory and files that it left are counted, and the next probe is
timed beside probes that no failure precedes.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--only", help="kinds whose name contains this")
    options = parser.parse_args(arguments)
    chosen = [kind for kind in kinds() if not options.only or options.only in kind.name]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bexplore-command-") as folder, mock.patch.multiple(watch, **SHORTER):
        bench = Bench(Path(folder).resolve())
        alone_s = [bench.next_probe_s() for _ in range(UNDISTURBED)]
        for kind in chosen:
            for rank in (0, 1):
                rows.append(bench.run(kind, rank))
                print(json.dumps(rows[-1]), flush=True)
                write(rows, alone_s, sys.argv[1:] if arguments is None else arguments)
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

    def run(self, kind: Kind, rank: int) -> dict[str, Any]:
        """Run a failure and the probe after it; return the row of the table."""
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
        return row | {"next_s": round(self.next_probe_s(), 1)}

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


def write(rows: Sequence[dict[str, Any]], alone_s: Sequence[float], arguments: Sequence[str]) -> None:
    """Write the table."""
    usual_s = statistics.median(alone_s)
    right = sum(row["expected"] == row["seen"] for row in rows)
    left = {name: sum(row[name] for row in rows) for name in ("processes", "ports", "shared_memory")}
    left["files"] = sum(len(row["files"]) for row in rows)
    later_s = [row["next_s"] - usual_s for row in rows]
    facts = machine_facts(" ".join(["python -m benchmarks.command_faults", *arguments]))
    lines = [
        "# Failures of a training command",
        "",
        "Written by `benchmarks/command_faults.py`: each kind on rank 0 and on rank 1 of torchrun with two. A rank "
        f"counts as hung after {SHORTER['HANG_S']:.0f} s here and after {HANG_S:.0f} s otherwise; the others get "
        f"{SHORTER['AFTER_ERROR_S']:.1f} s after the first error, and {AFTER_ERROR_S:.1f} s otherwise.",
        "",
        *[f"* {name}: {text}" for name, text in facts.items()],
        f"* Outcomes: {right} of {len(rows)} right.",
        f"* Left over: {', '.join(f'{count} {name}' for name, count in left.items())}.",
        f"* Next probe (one rank): {usual_s:.1f} s where no failure precedes it (median of {len(alone_s)}); after a "
        f"failure {statistics.median(later_s):+.1f} s (median), {max(later_s):+.1f} s (most).",
        "",
        "| kind | rank | expected | seen | reason | s | processes | ports | shared memory | files | next probe, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [" | ".join(["", *map(_cell, row.values()), ""]).strip() for row in rows]
    (RESULTS / "command_faults.md").write_text("\n".join(lines) + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return str(len(value)) if not value else "<br>".join(value)
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
