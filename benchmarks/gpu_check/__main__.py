"""The command: `python -m benchmarks.gpu_check [--cpu | --emulated] [--minutes 9] [--sections 1 2 | --only NAME]`.

Results: `gpu_check.json` (all facts; the state from which the same command goes on) and `gpu_check.md` (the table).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu_check import running
from benchmarks.gpu_check.report import markdown
from benchmarks.gpu_check.state import State
from benchmarks.gpu_check.steps import STEPS, Step
from bexplore.emulated_gpu import emulated_environment
from bexplore.errors import EmulationError
from bexplore.host.accelerators import DEVICES, is_emulated
from bexplore.host.machine import package_version, processor_name

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RECORDING = ROOT / "tests" / "recorded" / "cuda_allocator_events.json"
EMULATED = "h100"
ENDING_S = 10.0  # to end a step's processes and write the results
USUAL_IF_TINY_S = 5.0
CUDA_TORCH = "BEXPLORE_CUDA_TORCH"  # a folder with `torch/` and `triton/`, for an interpreter whose torch is another


def main(
    arguments: Sequence[str] | None = None,
    *,
    steps: Sequence[Step] = STEPS,
    child: Sequence[str] = running.CHILD,
) -> int:
    """Run what is wanted and not known yet.

    Args:
        arguments: Of the command line.
        steps: The list.
        child: The command that runs one of them.
    """
    options = _options(arguments, steps)
    if options.emulated and not is_emulated():
        return _run_emulated(sys.argv[1:] if arguments is None else arguments)
    began_s = time.monotonic()
    device = processor_name() if options.cpu else _gpu_name()
    if not device:
        print("torch finds no CUDA device here; --cpu runs the list with tiny jobs on the CPU", file=sys.stderr)
        return 2
    options.results.mkdir(parents=True, exist_ok=True)
    name = f"gpu_check{'_cpu' if options.cpu else '_emulated' if is_emulated() else ''}"
    state = State(options.results / f"{name}.json", {"device": device, "torch": package_version("torch")})
    if state.dropped:
        print(f"what is known is of another machine, {state.dropped}: all of it is looked at again", file=sys.stderr)
    todo = [step for step in _wanted(options, steps) if _is_due(step, state, options)]
    print(f"{device}: {len(todo)} of {len(steps)} steps to do", file=sys.stderr)
    left_out = 0
    for step in todo:
        is_done = _do(step, state, options, child, deadline_s=began_s + 60 * options.minutes)
        left_out += not is_done
        (options.results / f"{name}.md").write_text(markdown(state, steps))
    print(markdown(state, steps))
    if left_out:
        print(f"{left_out} steps had no time left: the same command goes on", file=sys.stderr)
    return 0


def _do(step: Step, state: State, options: argparse.Namespace, child: Sequence[str], *, deadline_s: float) -> bool:
    """Run a step if there is time; whether it ended of itself or by its own limit."""
    left_s = deadline_s - ENDING_S - time.monotonic()
    if left_s < (USUAL_IF_TINY_S if options.cpu or is_emulated() else step.usual_s):
        return False
    ended = running.run(
        step.name,
        limit_s=min(step.limit_s, left_s),
        on_cpu=options.cpu,
        known=state.facts(),
        recording=_recording(options),
        child=child,
    )
    if ended.is_cut and left_s < step.limit_s:
        print(f"{step.name}: cut off after {ended.wall_s:.0f} s", file=sys.stderr)
        return False
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    state.add(step.name, ended.verdict, ended.facts, wall_s=ended.wall_s, at=at)
    print(f"{step.name}: {ended.verdict.word}: {ended.verdict.found} ({ended.wall_s:.0f} s)", file=sys.stderr)
    return True


def _recording(options: argparse.Namespace) -> Path:
    """A recording of a GPU becomes test data, unless the results go elsewhere."""
    is_real = not options.cpu and not is_emulated() and options.results == RESULTS
    return RECORDING if is_real else Path(options.results) / f"{'cpu' if options.cpu else 'cuda'}_allocator_events.json"


def _run_emulated(arguments: Sequence[str]) -> int:
    """Run the same command where a GPU is emulated; returns its exit status."""
    folder = os.environ.get(CUDA_TORCH)
    try:
        emulated = emulated_environment(DEVICES[EMULATED], torch_folder=Path(folder, "torch") if folder else None)
    except EmulationError as error:
        print(f"{error}: {error.hint}", file=sys.stderr)
        return 2
    path = os.pathsep.join(filter(None, [folder, str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
    return subprocess.run(command, env={**os.environ, **emulated, "PYTHONPATH": path}, check=False).returncode


def _is_due(step: Step, state: State, options: argparse.Namespace) -> bool:
    if options.fresh or step.name in options.only:
        return True
    return not (state.is_ok(step.name) if options.retry else state.is_done(step.name))


def _wanted(options: argparse.Namespace, steps: Sequence[Step]) -> list[Step]:
    if options.only:
        return [step for step in steps if step.name in options.only]
    return [step for step in steps if not options.sections or step.section in options.sections]


def _gpu_name() -> str:
    """Asked in another process, so that this one holds nothing of the GPU; empty where there is none."""
    statement = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", statement], check=False, text=True, capture_output=True)
    return done.stdout.strip()


def _options(arguments: Sequence[str] | None, steps: Sequence[Step]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    names, sections = [step.name for step in steps], sorted({step.section for step in steps})
    parser.add_argument("--cpu", action="store_true", help="tiny jobs on the CPU, to exercise the list itself")
    parser.add_argument("--emulated", action="store_true", help="tiny jobs on a GPU that is emulated, likewise")
    parser.add_argument("--minutes", type=float, default=9.0, help="end within so many; the same command goes on")
    parser.add_argument("--sections", nargs="+", type=int, choices=sections, help="these sections alone")
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help="these steps, again")
    parser.add_argument("--retry", action="store_true", help="again what did not end as expected")
    parser.add_argument("--fresh", action="store_true", help="again all that is known")
    parser.add_argument("--list", action="store_true", help="print the steps and end")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of gpu_check.json and gpu_check.md")
    options = parser.parse_args(arguments)
    if options.list:
        for step in steps:
            print(f"{step.section}  {step.name:24} {step.usual_s:4.0f} s  {step.expected}")
        parser.exit()
    return options


if __name__ == "__main__":
    sys.exit(main())
