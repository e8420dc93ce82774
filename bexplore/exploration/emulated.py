"""An exploration on an emulated device: which sizes fit it, by PyTorch's own allocator, and no speed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from bexplore.config.config import Config
from bexplore.errors import UserInputError
from bexplore.estimate.calibrations import THIS, recall
from bexplore.estimate.processor import Calibration
from bexplore.host.accelerators import Device, device_by_name
from bexplore.host.machine import accelerator_name, num_threads, processor_name
from bexplore.job import device_kind
from bexplore.measurement.probe import Observation, Probe, Runner
from bexplore.run.result import RunResult
from bexplore.units import counted

# Seconds of every pass: the samples/s of a size are then proportional to it, and the fastest size that fits is the
# largest one.
PASS_TIME_S = 1.0
# Fields of the answer, of the size that keeps the batch size and of ranks that tell of time.
_SPEEDS = (
    *("relative_performance", "relative_performance_interval", "confidence", "samples_per_s", "total_samples_per_s"),
    *("pass_time_s", "update_time_s", "regret_bound_90", "left_to_gain", "training_time_s", "next_probe_s"),
    *("next_probe_saves", "next_probe_must_save", "smallest_within_tolerance", "memory_saved_bytes"),
)
_SPEEDS_THAT_KEEP = ("samples_per_s", "relative_performance", "confidence", "over_recommended", "step_time_s")
_TIMES_OF_RANKS = (
    *("inner_pass_s", "last_pass_s", "effective_pass_s", "update_s", "slowest_rank", "slowest_rank_lag"),
    *("one_rank_pass_s", "exposed_communication_s", "parallel_efficiency"),
)


def parse_device_name(name: str) -> tuple[int | None, Device]:
    """Return how many devices a name such as `8xh100` asks for, None for no number, and which."""
    if "," in name:
        first = name.partition(",")[0].strip()
        raise UserInputError(
            f'explore.device_name: "{name}" are several devices, and an exploration is of one',
            hint=f"type one, such as {first}; bexplore trace JOB --device-name {name.replace(' ', '')} compares them",
        )
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


def recall_this(device: str) -> Calibration:
    """Return what was measured of this machine's processor, on which a job's device must be."""
    accelerator = "" if device == "cpu" else accelerator_name()
    if accelerator or device_kind(device) not in ("auto", "cpu"):
        raise UserInputError(
            f'explore.device_name: "{THIS}" is this machine\'s processor, and the job runs on {accelerator or device}',
            hint="name that device, such as h100, or set explore.device: cpu",
        )
    found = recall()
    if found is None:
        raise UserInputError(
            f'explore.device_name: "{THIS}" needs what kernels take on {processor_name()} with '
            f"{counted(num_threads(), 'thread')}, and nothing was measured yet",
            hint="bexplore doctor --calibrate measures it in a minute",
        )
    return found


def find_named_device(config: Config) -> tuple[int | None, Device]:
    """Return the devices that `explore.device_name` names, which another `explore.device` contradicts."""
    device = config.settings.device
    if device != "auto" and device_kind(device) != "cuda":
        raise UserInputError(
            f"explore.device is {device}, and explore.device_name names a CUDA device that is not here",
            hint="leave one of the two out",
        )
    return parse_device_name(str(config.settings.device_name))


def hide_times(runner: Runner, is_emulated: Callable[[], bool]) -> Runner:
    """Return a runner whose times on an emulated device are `PASS_TIME_S`: its own mean nothing.

    Args:
        is_emulated: Whether the device is, asked after each probe.
    """

    def run(probe: Probe) -> Observation:
        ran = runner(probe.alone if is_emulated() else probe)
        return dataclasses.replace(ran, probe=probe).drop_times(PASS_TIME_S) if is_emulated() else ran

    return run


def without_speeds(result: RunResult) -> RunResult:
    """Return the result of an exploration on an emulated device with its sizes and its memory alone."""
    result = without_clock(result)
    batch, lengths, keeps = result.batch, result.lengths, result.batch.keeps_batch_size
    unknown: dict[str, Any] = dict.fromkeys(_SPEEDS)
    unknown_of_keeping: dict[str, Any] = dict.fromkeys(_SPEEDS_THAT_KEEP)
    sizes = tuple(dataclasses.replace(one, step_time_s=None) for one in batch.global_batch_sizes)
    keeps = keeps and dataclasses.replace(keeps, **unknown_of_keeping)
    return dataclasses.replace(
        result,
        answer=dataclasses.replace(result.answer, **unknown, speeds=()),
        search=dataclasses.replace(result.search, throughput_band=None),
        batch=dataclasses.replace(batch, global_batch_sizes=sizes, keeps_batch_size=keeps),
        program=dataclasses.replace(result.program, eager=None, artifacts_dir=None),
        checks=dataclasses.replace(result.checks, loader=None, bottlenecks=()),
        choice=dataclasses.replace(
            result.choice, settings_over_file=None, settings_over_file_interval=None, pareto_front=()
        ),
        lengths=lengths and dataclasses.replace(lengths, tokens_per_s=None, compile_time_s=None),
    )


def without_clock(result: RunResult) -> RunResult:
    """Return a result without what the clock of an emulated device says of programs and ranks."""
    unknown: dict[str, Any] = dict.fromkeys(_TIMES_OF_RANKS)
    return dataclasses.replace(
        result,
        program=dataclasses.replace(result.program, exact_over_shared=None),
        parallel=result.parallel and dataclasses.replace(result.parallel, **unknown),
    )
