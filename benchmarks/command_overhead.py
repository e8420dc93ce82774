"""What the observer costs a training and a Python start, and that it changes nothing.

`python -m benchmarks.command_overhead`. Each pair is the same process with and without the observer, in alternating
order. The observer never reaches its last step, so that the training runs to its own end in both. The share of a step
is from one process.
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
SHORT, LONG = (8, 4, 6000), (2048, 256, 20)
ALTERNATING = (2048, 256, 16_000)
BLOCK = 2  # steps with and without the observer in turn: what changes between two pairs of them is in both
# What is compiled: nothing, the model, the optimizer's step, the whole step.
COMPILED = ("nothing", "model", "update", "step")
LOADED = """
import json, sys, time, torch
from torch.utils.data import DataLoader
width, size, steps = (int(word) for word in sys.argv[1:4])
compiled = sys.argv[4]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, 8))
model = torch.compile(model) if compiled == "model" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
update = torch.compile(optimizer.step) if compiled == "update" else optimizer.step
loader = DataLoader(torch.randn(8 * size, width), batch_size=size)
def batches():
    while True:
        yield from loader
def train(batch):
    loss = model(batch).square().mean()
    loss.backward()
    update()
    optimizer.zero_grad()
    return loss
train = torch.compile(train) if compiled == "step" else train
"""
TRAINING = (
    LOADED
    + """
losses, cpu = [], []
stream = batches()
for _ in range(steps):
    used = time.process_time()
    losses.append(train(next(stream)).item())
    cpu.append(time.process_time() - used)
import torch._dynamo.utils
counters = torch._dynamo.utils.counters
answer = {"losses": [repr(loss) for loss in losses], "graphs": counters["stats"].get("unique_graphs", 0)}
answer |= {"breaks": sum(counters["graph_break"].values()), "cpu_s": sorted(cpu)[steps // 2]}
print(json.dumps(answer))
"""
)
# One process, in which the observer's hooks are taken out and put back: two processes differ by more than it costs.
SWITCHED = (
    LOADED
    + """
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
base = dataloader._BaseDataLoaderIter
for batch in loader:  # what the observer puts in place for the first batches alone is gone after them
    train(batch)
places = [(torch.autograd, "backward"), (base, "__next__")]
hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
on = [getattr(place, name) for place, name in places], [dict(one) for one in hooks]
off = [one.__wrapped__ for one in on[0]], [{} for one in hooks]
def switch(functions, contents):
    for (place, name), function in zip(places, functions):
        setattr(place, name, function)
    for one, content in zip(hooks, contents):
        one.clear()
        one.update(content)
block = int(sys.argv[5])
stream, times = batches(), {True: [], False: []}
for index in range(steps // block):
    is_on = index % 4 in (0, 3)
    switch(*(on if is_on else off))
    seconds = []
    for _ in range(block):
        began = time.perf_counter()
        train(next(stream)).item()
        seconds.append(time.perf_counter() - began)
    times[is_on].append(sum(seconds))
print(json.dumps({"with_s": times[True], "without_s": times[False]}))
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--starts", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(TRAINING)
        found = pairs(script, SHORT, "nothing", options.pairs)
        different = [name for name in COMPILED if not are_equal(pairs(script, LONG, name, 2))]
        starts_s = [timed_starts(observed(folder), number) for number in range(options.starts)]
        script.write_text(SWITCHED)
        times = trained(script, ALTERNATING, "nothing", True, str(BLOCK))
    ratio = paired_ratio(times["with_s"], times["without_s"])
    write(options, steps=found, ratio=ratio, starts_s=starts_s, different=different)


def pairs(script: Path, shape: tuple[int, int, int], compiled: str, number: int) -> list[tuple[dict, dict]]:
    """Return the answers without and with the observer."""
    found = []
    for index in range(number):
        order = (False, True) if index % 2 == 0 else (True, False)
        answers = {is_observed: trained(script, shape, compiled, is_observed) for is_observed in order}
        found.append((answers[False], answers[True]))
    return found


def are_equal(found: Sequence[tuple[dict, dict]]) -> bool:
    """Return whether losses, graphs and breaks are equal in all pairs."""
    return all(a[name] == b[name] for a, b in found for name in ("losses", "graphs", "breaks"))


def trained(script: Path, shape: Sequence[int], compiled: str, is_observed: bool, *more: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        env = observed(folder, shape[1]) if is_observed else dict(os.environ)
        words = [sys.executable, str(script), *map(str, shape), compiled, *more]
        done = subprocess.run(words, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
        assert not is_observed or list(Path(folder).glob("*/start/reports/steps-*")), "it was not observed"
    return json.loads(done.stdout)


def added(pairs: Sequence[tuple[float, float]], unit: float) -> tuple[float, float]:
    """Return what the observer adds and what it is without: medians of pairs."""
    return unit * statistics.median(b - a for a, b in pairs), unit * statistics.median(a for a, _ in pairs)


def observed(folder: str, micro_batch_size: int = 1) -> dict[str, str]:
    """Return an environment in which trainings with batches of this size are observed to their end."""
    settings = {"micro_batch_size": micro_batch_size, "max_steps": 10**9, "memory_step": 1, "profile_memory": True}
    settings["life_limit_s"] = 1e9  # no explorer gives a sign
    path = Path(tempfile.mkdtemp(dir=folder)) / "start"
    return dict(os.environ) | ProbeFolder(path=path).write(Command(argv=("train",)), {}, settings)


def timed_starts(env: dict[str, str], number: int) -> tuple[float, float]:
    """Return the seconds of a Python start without and with the observer, in alternating order."""
    first, second = (None, env) if number % 2 == 0 else (env, None)
    times = {id(one): timed_start(one) for one in (first, second)}
    return times[id(None)], times[id(env)]


def timed_start(env: dict[str, str] | None) -> float:
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - began_s


def write(
    options: argparse.Namespace,
    *,
    steps: Sequence[tuple[dict, dict]],
    ratio: PairedRatio,
    starts_s: Sequence[tuple[float, float]],
    different: Sequence[str],
) -> None:
    step_us = added([(a["cpu_s"], b["cpu_s"]) for a, b in steps], 1e6)
    start_ms = added(starts_s, 1e3)
    rows = [
        (f"processor time of a step with a loader, to {step_us[1]:.0f} us", f"{step_us[0]:.0f} us", "<= 30 us"),
        (f"a Python start without torch, to {start_ms[1]:.1f} ms", f"{start_ms[0]:.1f} ms", "<= 2 ms"),
        (
            f"seconds of a step with over without, one process, {ALTERNATING[2]} steps, {BLOCK} in turn",
            f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})",
            "within 0.5 %",
        ),
        (
            f"losses to the bit, graphs and breaks, with what is compiled: {', '.join(COMPILED)}",
            f"DIFFERENT: {', '.join(different)}" if different else "equal",
            "equal",
        ),
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
