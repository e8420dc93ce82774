"""An exploration on an emulated device: which sizes fit it, by PyTorch's own allocator, and no speed."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.emulated_gpu import emulated_environment
from bexplore.engine.process.timeouts import Progress
from bexplore.errors import UserInputError
from bexplore.exploration.launching import launcher_of
from bexplore.host.accelerators import Device, device_by_name
from bexplore.host.process_tree import LAUNCHERS, find_program
from bexplore.job import device_kind
from bexplore.measurement.probe import Observation, Probe, Runner
from bexplore.run.result import RunResult

# Seconds of every pass: the samples/s of a size are then proportional to it, and the fastest size that fits is the
# largest one.
PASS_TIME_S = 1.0
# Fields of a result, of its size that keeps the batch size and of its ranks that tell of time.
_SPEEDS = (
    *("relative_performance", "relative_performance_interval", "confidence", "samples_per_s", "total_samples_per_s"),
    *("pass_time_s", "update_time_s", "regret_bound_90", "left_to_gain", "training_time_s", "next_probe_s"),
    *("next_probe_saves", "smallest_within_tolerance", "memory_saved_bytes", "exact_over_shared", "full_over_reduced"),
    *("loader", "eager", "settings_over_file", "settings_over_file_interval", "throughput_band", "artifacts_dir"),
)
_SPEEDS_THAT_KEEP = ("samples_per_s", "relative_performance", "confidence", "over_recommended", "step_time_s")
_TIMES_OF_RANKS = (
    *("inner_pass_s", "last_pass_s", "effective_pass_s", "update_s", "slowest_rank", "slowest_rank_lag"),
    *("one_rank_pass_s", "exposed_communication_s", "parallel_efficiency"),
)
# Options of launchers that give the processes of one host: torchrun's, accelerate's, DeepSpeed's, MPI's.
_PROCESSES = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)(?:=(\d+))?|-(?:np|n)")
_FIND_TORCH = (
    "from importlib.util import find_spec; s = find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
)
_LONGEST_FIND_S = 60.0


def named_device(name: str) -> tuple[int | None, Device]:
    """Return how many devices a name such as `8xh100` asks for, None for no number, and which.

    Raises:
        UserInputError: The table has no such device, or it is no CUDA device.
    """
    counted = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(.+)", name)
    device = device_by_name(counted[2] if counted else name)
    if device.capability is None:
        raise UserInputError(
            f"explore.device_name: {device.name} cannot be emulated: it is no CUDA device",
            hint="name an NVIDIA device, such as h100, or explore on the device itself",
        )
    number = int(counted[1]) if counted else None
    if number == 0:
        raise UserInputError(f'explore.device_name: "{name}" is no device', hint="type h100, or 8xh100 for eight")
    return number, device


def started_environment(config: Config, on_progress: Progress = lambda report: None) -> dict[str, str]:
    """Return the variables that make the started processes see the configuration's emulated devices.

    Empty where it names none.

    Raises:
        UserInputError: It names a device that cannot be emulated, or another one beside it.
        EmulationError: The libraries cannot be built.
    """
    name = config.explore.device_name
    if name is None:
        return {}
    device = config.explore.device
    if device != "auto" and device_kind(device) != "cuda":
        raise UserInputError(
            f"explore.device is {device}, and explore.device_name names an emulated CUDA device",
            hint="leave one of the two out",
        )
    number, emulated = named_device(name)
    on_progress({"stage": "emulate", "device": emulated.name})
    return emulated_environment(emulated, num_devices=number or num_devices(config), torch_folder=_torch_folder(config))


def without_times(runner: Runner, is_emulated: Callable[[], bool]) -> Runner:
    """Return a runner whose times on an emulated device are `PASS_TIME_S`: its own mean nothing.

    Args:
        is_emulated: Whether the device is, asked after each probe.
    """

    def run(probe: Probe) -> Observation:
        ran = runner(probe.alone if is_emulated() else probe)
        return dataclasses.replace(ran, probe=probe).without_times(PASS_TIME_S) if is_emulated() else ran

    return run


def without_speeds(result: RunResult) -> RunResult:
    """Return the result of an exploration on an emulated device with its sizes and its memory alone."""
    keeps, ranks, lengths = result.keeps_batch_size, result.parallel, result.lengths
    unknown: dict[str, Any] = dict.fromkeys(_SPEEDS)
    unknown_of_keeping: dict[str, Any] = dict.fromkeys(_SPEEDS_THAT_KEEP)
    unknown_of_ranks: dict[str, Any] = dict.fromkeys(_TIMES_OF_RANKS)
    return dataclasses.replace(
        result,
        **unknown,
        speeds=(),
        bottlenecks=(),
        pareto_front=(),
        global_batch_sizes=tuple(dataclasses.replace(one, step_time_s=None) for one in result.global_batch_sizes),
        keeps_batch_size=keeps and dataclasses.replace(keeps, **unknown_of_keeping),
        parallel=ranks and dataclasses.replace(ranks, **unknown_of_ranks),
        lengths=lengths and dataclasses.replace(lengths, tokens_per_s=None, compile_time_s=None),
    )


def num_devices(config: Config) -> int:
    """Return the devices that a job's or a command's ranks take on this host; 1 where no number is to be seen."""
    if config.command is None:
        launcher = launcher_of(config)
        return 1 if launcher is None else launcher.num_ranks
    argv = config.command.argv
    if find_program(argv) not in LAUNCHERS:
        return 1
    # What stands behind the script is the training's own.
    words = itertools.takewhile(lambda word: not word.endswith(".py"), argv)
    for word, following in itertools.pairwise([*words, ""]):
        found = _PROCESSES.fullmatch(word)
        number = found and (found[1] or following)
        if number and number.isdecimal():
            return int(number)
    return 1


def _torch_folder(config: Config) -> Path | None:
    """Return the package `torch` of the Python that a command starts; None for that of this interpreter."""
    command = config.command
    python = None if command is None else _python(command.argv[0])
    if python is None:
        return None
    try:
        found = subprocess.run(
            [python, "-c", _FIND_TORCH], capture_output=True, text=True, timeout=_LONGEST_FIND_S, check=False
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(found) if found else None


def _python(word: str) -> str | None:
    """Return the Python that a program is, or that its first line names; None where neither is so."""
    program = shutil.which(word)
    if program is None:
        return None
    if Path(program).name.startswith("python"):
        return program
    try:
        with Path(program).open("rb") as stream:
            first = stream.read(256).split(b"\n")[0].decode(errors="replace")
    except OSError:  # it may be run, and not read
        return None
    named = first.removeprefix("#!").split() if first.startswith("#!") else []
    return named[0] if named and Path(named[0]).name.startswith("python") else None
