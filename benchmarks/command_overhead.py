"""What the observer costs a training and a Python start, and that it changes nothing.

`python -m benchmarks.command_overhead`. Each pair is the same process with and without the observer, in alternating
order. The observer never reaches its last step, so that the training runs to its own end in both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bexplore.command.probe_folder import ProbeFolder
from bexplore.config.command import Command
from bexplore.host.machine import package_version, processor_name
from bexplore.measurement.statistics import PairedRatio, paired_ratio

RESULTS = Path(__file__).parent / "results"
# Width of the two layers, samples and steps: steps of a tenth of a millisecond, for the cost of a step; and of tens of
# milliseconds, as trainings have, for the share of their time.
SHORT, LONG = (8, 4, 6000), (2048, 256, 150)
TRAINING = """
import json, sys, time, torch
width, size, steps, compiled = (int(word) for word in sys.argv[1:])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, 8))
model = torch.compile(model) if compiled else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.randn(size, width) for _ in range(8)]
losses, wall, cpu = [], [], []
for step in range(steps):
    began, used = time.perf_counter(), time.process_time()
    loss = model(batches[step % 8]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    wall.append(time.perf_counter() - began)
    cpu.append(time.process_time() - used)
half = slice(steps // 2, None)
import torch._dynamo.utils
counters = torch._dynamo.utils.counters
answer = {"losses": [repr(loss) for loss in losses], "graphs": counters["stats"].get("unique_graphs", 0)}
answer |= {"breaks": sum(counters["graph_break"].values()), "wall_s": sum(wall[half]), "cpu_s": sorted(cpu)[steps // 2]}
print(json.dumps(answer))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--starts", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(TRAINING)
        short, _ = pairs(script, SHORT, 0, options.pairs)
        long, are_equal = pairs(script, LONG, 0, options.pairs)
        _, are_equal_compiled = pairs(script, (*LONG[:2], 20), 1, 2)
        starts_s = [(timed_start(None), timed_start(observed(folder))) for _ in range(options.starts)]
    step_us = statistics.median(1e6 * (b["cpu_s"] - a["cpu_s"]) for a, b in short)
    ratio = paired_ratio([b["wall_s"] for _, b in long], [a["wall_s"] for a, _ in long])
    start_ms = 1e3 * statistics.median(b - a for a, b in starts_s)
    write(options, step_us=step_us, ratio=ratio, start_ms=start_ms, are_equal=are_equal and are_equal_compiled)


def pairs(
    script: Path, shape: tuple[int, int, int], compiled: int, number: int
) -> tuple[list[tuple[dict, dict]], bool]:
    """Return the answers without and with the observer, and whether losses, graphs and breaks are equal in all."""
    found = []
    for index in range(number):
        order = (False, True) if index % 2 == 0 else (True, False)
        answers = {is_observed: trained(script, shape, compiled, is_observed) for is_observed in order}
        found.append((answers[False], answers[True]))
    names = ("losses", "graphs", "breaks")
    return found, all(a[name] == b[name] for a, b in found for name in names)


def trained(script: Path, shape: Sequence[int], compiled: int, is_observed: bool) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        env = observed(folder) if is_observed else dict(os.environ)
        words = [sys.executable, str(script), *map(str, shape), str(compiled)]
        done = subprocess.run(words, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
        assert not is_observed or list(Path(folder).glob("*/start/reports/steps-*")), "it was not observed"
    return json.loads(done.stdout)


def observed(folder: str) -> dict[str, str]:
    """Return an environment in which trainings are observed to their end."""
    settings = {"micro_batch_size": 1, "max_steps": 10**9, "memory_step": 1, "profile_memory": True}
    path = Path(tempfile.mkdtemp(dir=folder)) / "start"
    return dict(os.environ) | ProbeFolder(path=path).write(Command(argv=("train",)), {}, settings)


def timed_start(env: dict[str, str] | None) -> float:
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - began_s


def write(options: argparse.Namespace, *, step_us: float, ratio: PairedRatio, start_ms: float, are_equal: bool) -> None:
    rows = [
        ("a step, processor time, medians of pairs", f"{step_us:.0f} us", "<= 30 us"),
        ("a Python start without torch, median of pairs", f"{start_ms:.1f} ms", "<= 2 ms"),
        (
            "seconds of a training with over without",
            f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})",
            "within 0.5 %",
        ),
        ("losses to the bit, graphs and breaks, eager and compiled", "equal" if are_equal else "DIFFERENT", "equal"),
    ]
    text = [
        "# What the observer costs",
        "",
        f"Command: `python -m benchmarks.command_overhead --pairs {options.pairs} --starts {options.starts}`, "
        f"{datetime.now(UTC):%Y-%m-%d}. {processor_name()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, torch {package_version('torch')}.",
        "",
        "| | measured | must |",
        "|---|---:|---:|",
        *(f"| {name} | {value} | {must} |" for name, value, must in rows),
        "",
    ]
    (RESULTS / "command_overhead.md").write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
