"""What becomes of probes that die, explorers that are killed and inputs that are wrong: `python -m benchmarks.faults`.

Five campaigns, each with a target that must be reached: faults on the real engine; explorers that are killed over
recorded observations and with the real engine; sizes of four times the memory budget; generated inputs for every
parser; several explorers on one study, in PostgreSQL where it is installed. No figure here depends on how fast the
machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fault_campaign import strike_explorations
from benchmarks.fault_memory import four_times_the_budget
from benchmarks.fault_recorded import kill_and_resume, several_on_one_study
from benchmarks.machine_facts import machine_facts
from tests.engine import postgres

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each campaign is run."""

    explorations: int
    recorded_kills: int
    real_kills: int
    budget_probes: int
    inputs: int
    rounds: int


FULL = Sizes(explorations=300, recorded_kills=100, real_kills=20, budget_probes=50, inputs=100_000, rounds=20)
QUICK = Sizes(explorations=6, recorded_kills=20, real_kills=2, budget_probes=6, inputs=5_000, rounds=3)
PART = 5  # explorations after which what was found is written
Part = Callable[[Path], dict[str, Any]]
CAMPAIGNS = ("faults", "recorded_kills", "real_kills", "memory", "inputs", "study_file", "postgresql")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short version of each campaign")
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=list(CAMPAIGNS), help="these campaigns alone")
    parser.add_argument("--explorations", type=int, help="of the campaign of faults")
    parser.add_argument("--at-once", type=int, default=1, help="parts of a campaign that run side by side")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    name = "faults_quick" if options.quick else "faults"
    report = _earlier(RESULTS / f"{name}.json")
    explorations = options.explorations or sizes.explorations
    for campaign, run in _campaigns(sizes, explorations, options.seed).items():
        if campaign in options.only:
            found: dict[str, Any] = {}
            with ThreadPoolExecutor(options.at_once) as pool:
                for part in pool.map(_run, run):
                    found = _added(found, part)
                    report["campaigns"][campaign] = found | _facts(arguments)
                    _write(name, report)
    print(_markdown(report))
    return 0


def _run(part: Part) -> dict[str, Any]:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bexplore-faults-"))
    os.environ["BEXPLORE_LOCK_DIR"] = str(folder)  # nobody else's exploration waits for these
    try:
        return part(folder) | {"seconds": round(time.monotonic() - began)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _campaigns(sizes: Sizes, explorations: int, seed: int) -> dict[str, list[Part]]:
    """The parts of each campaign; long ones have many, so that what is done is kept if the rest is cut off."""
    return {
        "faults": _parts(explorations, seed),
        "recorded_kills": [lambda folder: kill_and_resume(folder, kills=sizes.recorded_kills, seed=seed)],
        "real_kills": _parts(sizes.real_kills, seed, only_kills=True),
        "memory": [lambda folder: four_times_the_budget(folder, probes=sizes.budget_probes)],
        "inputs": [lambda folder: _generated(folder, sizes.inputs, seed)],
        "study_file": [
            lambda folder: several_on_one_study(folder, None, rounds=sizes.rounds, explorers=2, kills=1, seed=seed)
        ],
        "postgresql": [lambda folder: _on_postgresql(folder, sizes.rounds, seed)],
    }


def _parts(explorations: int, seed: int, *, only_kills: bool = False) -> list[Part]:
    firsts = range(0, explorations, PART)
    return [
        partial(
            strike_explorations,
            explorations=min(PART, explorations - first),
            seed=1000 * seed + first,
            only_kills=only_kills,
        )
        for first in firsts
    ]


def _added(known: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Counts of two parts of a campaign together."""
    both = dict(known)
    for key, value in part.items():
        if isinstance(value, dict):
            both[key] = _added(known.get(key, {}), value)
        else:
            both[key] = known[key] + value if key in known else value
    return both


def _generated(folder: Path, number: int, seed: int) -> dict[str, Any]:
    """In a process of its own: its peak memory and the files in its working folder are what is looked at."""
    code = (
        "import json, sys, pathlib; from benchmarks.fault_inputs import generate\n"
        "print(json.dumps(generate(pathlib.Path(sys.argv[1]), number=int(sys.argv[2]), seed=int(sys.argv[3]))))"
    )
    command = [sys.executable, "-c", code, str(folder), str(number), str(seed)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _on_postgresql(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    reason = postgres.missing()
    if reason:
        return {"left out": reason}
    with postgres.server() as server:
        return several_on_one_study(folder, server.url, rounds=rounds, explorers=4, kills=2, seed=seed)


def _earlier(path: Path) -> dict[str, Any]:
    """Campaigns of an earlier run stay, so that they may be run one by one."""
    return json.loads(path.read_text()) if path.exists() else {"campaigns": {}}


def _write(name: str, report: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(_markdown(report))


def _facts(arguments: Sequence[str] | None) -> dict[str, Any]:
    given = sys.argv[1:] if arguments is None else arguments
    return {"command": " ".join(["python -m benchmarks.faults", *given])} | machine_facts()


def _markdown(report: dict[str, Any]) -> str:
    lines = ["# Faults", "", "Written by `make bench-faults`; each campaign names its own command and machine.", ""]
    for name, found in report["campaigns"].items():
        lines += [f"## {name}", "", "| What | Found |", "| --- | --- |"]
        lines += [f"| {key} | {_cell(value)} |" for key, value in found.items() if key != "parsers"]
        lines += [f"| {key} | {_cell(value)} |" for key, value in found.get("parsers", {}).items()]
        lines.append("")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "<br>".join(map(str, value)).replace("|", "\\|") if value else "none"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
