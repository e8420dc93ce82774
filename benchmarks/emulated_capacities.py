"""Answers on emulated devices of 12 capacities, trained on: `python -m benchmarks.emulated_capacities --torch FOLDER`.

A training command is explored on an emulated H100 of each capacity. Its answer, and the next larger size that was
tried, then train 200 steps each in a process of their own: batches of texts of many lengths, each tenth of the longest
texts alone. The answer must train to the end, and the larger size must not. FOLDER holds a CUDA build's `torch/` and
`triton/`, such as `make test-gpu` fetches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from bexplore.emulated_gpu import emulated_environment
from bexplore.host.accelerators import DEVICES

CAPACITIES_GIB = (2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 80)
TRAIN = Path(__file__).parent / "command_jobs" / "padded_lengths.py"
RESULTS = Path(__file__).parent / "results"
ROWS, PAGE = RESULTS / "emulated_capacities.json", RESULTS / "emulated_capacities.md"
COMMAND = "python -m benchmarks.emulated_capacities --torch FOLDER"
NUM_STEPS, LONGEST_EVERY = 200, 10
RUN_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", type=Path, required=True, help="folder with the CUDA build")
    parser.add_argument("--only", type=int, nargs="*", default=CAPACITIES_GIB, help="capacities in GiB")
    arguments = parser.parse_args()
    kept = json.loads(ROWS.read_text())["rows"] if ROWS.exists() else []
    rows = {row["capacity_gib"]: row for row in kept}
    for gib in arguments.only:
        rows[gib] = measured(gib, arguments.torch)
        print(json.dumps(rows[gib]), flush=True)
        found = [rows[gib] for gib in sorted(rows)]
        ROWS.write_text(json.dumps({"machine": machine_facts() | {"command": COMMAND}, "rows": found}, indent=1) + "\n")
        PAGE.write_text(page(found))


def measured(gib: int, torch: Path) -> dict[str, Any]:
    """Explore on a device of a capacity, and train with the answer and with the next larger size that was tried."""
    folders = (torch, Path(__file__).parents[1], Path(sysconfig.get_path("purelib")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    environment |= emulated_environment(DEVICES["h100"], memory_bytes=gib * 2**30, torch_folder=torch / "torch")
    with tempfile.TemporaryDirectory(prefix="bexplore-capacities-") as folder:
        words = ["--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}"]
        command = [sys.executable, "-m", "bexplore", "explore", "--json", "--", sys.executable, str(TRAIN), *words]
        began_s = time.monotonic()
        ended = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=True
        )
        seconds = time.monotonic() - began_s
        result = json.loads(ended.stdout.splitlines()[-1])
        size = result["micro_batch_size"]
        out_of_memory = (one for one in result["failures"] if one["outcome"] == "out_of_memory")
        larger = min(
            (tried for one in out_of_memory for tried in one["micro_batch_sizes"] if tried > size), default=None
        )
        return {
            "capacity_gib": gib,
            "micro_batch_size": size,
            "next_larger": larger,
            "peak_gib": result["peak_memory_bytes"] / 2**30,
            "held_gib": result["resident_memory_bytes"] / 2**30,
            "num_probes": result["num_probes"],
            "explored_s": seconds,
            "answer": trained(size, environment, folder),
            "larger": None if larger is None else trained(larger, environment, folder),
        }


def trained(size: int, environment: dict[str, str], folder: str) -> str:
    """Return how a training of 200 steps ends: `trains`, or the last line of its traceback."""
    words = ["--steps", str(NUM_STEPS), "--longest-every", str(LONGEST_EVERY), "--out", folder]
    command = [sys.executable, str(TRAIN), "--micro-batch-size", str(size), *words]
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    # A thread of autograd that first takes a lock while Python ends may end it by a signal: PyTorch's own matter.
    if "trained" in ended.stdout.split():
        return "trains"
    return "out of memory" if "OutOfMemoryError" in ended.stderr else ended.stderr.strip().splitlines()[-1][:200]


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    right = sum(row["answer"] == "trains" and row["larger"] == "out of memory" for row in rows)
    lines = [
        "# Answers on emulated devices of several capacities",
        "",
        f"`{COMMAND}`: an emulated H100; {NUM_STEPS} steps in a process of their own, each {LONGEST_EVERY}th batch of",
        f"the longest texts alone. {right} of {len(rows)} answers train to the end, and the next larger size that was",
        "tried does not.",
        "",
        "| GiB | answer | trains | next larger | trains | peak, GiB | held, GiB | probes | s |",
        "|---:|---:|---|---:|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        sizes = f"{row['micro_batch_size']} | {row['answer']} | {row['next_larger']} | {row['larger']}"
        memory = f"{row['peak_gib']:.2f} | {row['held_gib']:.2f}"
        lines.append(f"| {row['capacity_gib']} | {sizes} | {memory} | {row['num_probes']} | {row['explored_s']:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
