"""Kills of a command's explorer at random moments: `python -m benchmarks.command_kills --kills 25`.

An exploration of a training command is killed (SIGKILL) again and again, and typed again after each kill, until it has
its answer; then another one begins. After each kill the processes of its starts are looked for until none is left.
Each way to start the training has a control run beside it, without kills. A call adds kills to the earlier ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults import RESULTS, machine_facts
from bexplore.host import process_tree
from tests.command_builders import torchrun

TRAIN = Path(__file__).parent / "command_jobs" / "known_peak.py"
ROWS, PAGE = RESULTS / "command_kills.json", RESULTS / "command_kills.md"
WORDS = (str(TRAIN), "--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}")
SCRIPT = (
    f"{shlex.quote(sys.executable)} {TRAIN} --micro-batch-size {{micro_batch_size}} --out {{output_dir}}; sleep 600"
)
WAYS = {
    "plain": (sys.executable, *WORDS),
    "torchrun, 2 ranks": (*torchrun(2), *WORDS),
    "a shell that goes on": ("bash", "-c", SCRIPT),
    "a session of its own": ("setsid", "--wait", sys.executable, *WORDS),
    "a session of its own, whose parent waits elsewhere": (
        "bash",
        "-c",
        f"setsid bash -c {shlex.quote(SCRIPT)} & wait",
    ),
}
LATEST_S = 9.0  # a start with its steps takes about that long
GONE_S, GIVEN_UP_S = 5.0, 30.0
LOOKS = 4  # in a row in which nothing is found
RUN_S = 600.0


class Exploration:
    """One exploration in a folder of its own, killed and typed again until it has its answer.

    Args:
        way: How the training is started.
    """

    def __init__(self, way: str) -> None:
        self.way = way
        self.folder = tempfile.TemporaryDirectory(prefix="bexplore-kills-")
        self.journal = b""

    @property
    def path(self) -> Path:
        """The folder, without links."""
        return Path(self.folder.name).resolve()

    def run(self, kill_after_s: float | None) -> dict[str, Any] | None:
        """Explore until the answer or a kill; return what the kill left, None where there was none."""
        sizes = ["--set", "explore.candidates=[2, 4, 8, 16, 32]", "--set", "explore.max_probes=8"]
        words = [sys.executable, "-m", "bexplore", "explore", "--quiet", *sizes, "--", *WAYS[self.way]]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
        with (self.path / "said.txt").open("ab") as said:
            explorer = subprocess.Popen(words, cwd=self.path, env=environment, stdout=said, stderr=said)
        try:
            status = explorer.wait(kill_after_s or RUN_S)
        except subprocess.TimeoutExpired:
            return self._killed(explorer, kill_after_s or RUN_S)
        if status:
            raise RuntimeError((self.path / "said.txt").read_text()[-3000:])
        return None

    def _killed(self, explorer: subprocess.Popen[bytes], after_s: float) -> dict[str, Any]:
        had = len(self._processes())
        explorer.kill()
        explorer.wait()
        began_s, gone_s, looks, alive_late = time.monotonic(), 0.0, 0, 0
        while looks < LOOKS and time.monotonic() - began_s < GIVEN_UP_S:
            found = self._processes()
            now_s = time.monotonic() - began_s
            looks = 0 if found else looks + 1
            gone_s = now_s if found else gone_s
            alive_late = max(alive_late, len(found) if now_s > GONE_S else 0)
            time.sleep(0.05)
        before, self.journal = self.journal, self._journal()
        return {
            "way": self.way,
            "killed_after_s": round(after_s, 2),
            "processes_before": had,
            "gone_after_s": round(gone_s, 2),
            "alive_after_5_s": alive_late,
            "lines_before": before.count(b"\n"),
            "lines_lost": _lost(before, self.journal),
        }

    def answer(self) -> dict[str, Any]:
        """Return the answer, and the lines that the journal has lost since the last kill."""
        (path,) = self.path.rglob("result.json")
        size = json.loads(path.read_text())["micro_batch_size"]
        return {"way": self.way, "answer": size, "lines_lost": _lost(self.journal, self._journal())}

    def _journal(self) -> bytes:
        data = b"".join(path.read_bytes() for path in self.path.rglob("journal.jsonl"))
        return data[: data.rfind(b"\n") + 1]

    def _processes(self) -> list[int]:
        """Return the processes whose environment names this folder as that of their start."""
        mark = f"{process_tree.PROBE_MARK}={self.path}{os.sep}"
        pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [pid for pid in pids if mark in process_tree.read_environment(pid) and process_tree.read_start_time(pid)]


def _lost(before: bytes, after: bytes) -> int:
    """Return how many lines of an earlier journal a later one does not have in their places."""
    old, new = before.splitlines(), after.splitlines()
    return sum(number >= len(new) or line != new[number] for number, line in enumerate(old))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="kills of this call")
    parser.add_argument("--control", action="store_true", help="run the explorations without kills alone")
    options = parser.parse_args(arguments)
    report = _earlier()
    if options.control:
        for way in WAYS:
            exploration = Exploration(way)
            exploration.run(None)
            report["controls"] = [one for one in report["controls"] if one["way"] != way] + [exploration.answer()]
            _keep({"controls": report["controls"]})
        return 0
    del report["controls"]
    for number in _kill(options.kills, report):
        print(f"{number} kills", file=sys.stderr)
    return 0


def _earlier() -> dict[str, Any]:
    return {"kills": [], "answers": [], "controls": []} | (json.loads(ROWS.read_text()) if ROWS.exists() else {})


def _kill(kills: int, report: dict[str, Any]) -> Iterator[int]:
    """Kill so many times more, in the ways in turn; yield how often in all."""
    draws = random.Random(len(report["kills"]))
    left = kills
    ways = list(WAYS)
    number = len(report["answers"])
    while left > 0:
        exploration = Exploration(ways[number % len(ways)])
        number += 1
        while left > 0:
            row = exploration.run(draws.uniform(0.2, LATEST_S))
            if row is None:
                break
            report["kills"].append(row)
            left -= 1
            _keep(report)
            yield len(report["kills"])
        exploration.run(None)  # to its answer, without further kills where there is none yet
        report["answers"].append(exploration.answer())
        _keep(report)


def _keep(found: dict[str, Any]) -> None:
    """Write what a call has found over the same parts of the file; another one may run beside it."""
    report = _earlier() | {"facts": machine_facts("python -m benchmarks.command_kills")} | found
    ROWS.write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(markdown(report))


def markdown(report: dict[str, Any]) -> str:
    """Return the page of all kills."""
    kills, answers = report["kills"], report["answers"]
    controls = {one["way"]: one["answer"] for one in report["controls"]}
    same = sum(one["answer"] == controls.get(one["way"]) for one in answers)
    lines = [
        "# Kills of a command's explorer",
        "",
        "Written by `benchmarks/command_kills.py`: SIGKILL at a random moment, the same command again after it, until "
        "the exploration has its answer; a control run of each way without kills.",
        "",
        *[f"* {name}: {text}" for name, text in report["facts"].items()],
        f"* Kills: {len(kills)}, in {sum(one['processes_before'] > 0 for one in kills)} of which the command ran.",
        f"* Alive after 5 s: {sum(one['alive_after_5_s'] for one in kills)} processes.",
        f"* Lines of the journal lost: {sum(one['lines_lost'] for one in (*kills, *answers))}.",
        f"* Answers as without kills: {same} of {len(answers)}.",
        "",
        "| way | kills | processes at the kill, most | seconds until all were gone: median, most | answers | control |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way in WAYS:
        rows = [one for one in kills if one["way"] == way]
        found = [str(one["answer"]) for one in answers if one["way"] == way]
        gone_s = [one["gone_after_s"] for one in rows] or [0.0]
        lines.append(
            f"| {way} | {len(rows)} | {max((one['processes_before'] for one in rows), default=0)} "
            f"| {statistics.median(gone_s):.2f}, {max(gone_s):.2f} | {', '.join(found)} | {controls.get(way, '')} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
