"""Checks of the requirements of an exploration: of this machine, and of a job on it.

Nothing here imports torch, so that a missing or broken torch is a line too; a worker process imports it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from getpass import getuser
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.actions.probe import probe_once
from bexplore.config.command import Command
from bexplore.config.config import Config
from bexplore.engine.process.limits import Limits
from bexplore.engine.program_client import ask_once, trace_in_worker
from bexplore.engine.protocol.failures import CACHE_OF_COMPILER, can_compile_in
from bexplore.engine.protocol.messages import (
    Answer,
    CheckCompiler,
    DeviceInfo,
    Done,
    Failed,
    FindInterfaces,
    Refused,
    Request,
)
from bexplore.errors import EmulationError, UserInputError
from bexplore.exploration.setup import find_launcher
from bexplore.host.accelerators import find_device
from bexplore.host.contention import BUSY_SHARE, POWER_LIMIT, clock_events, selector, time_equal_work
from bexplore.host.machine import (
    accelerator_name,
    available_memory_bytes,
    memory_limit_bytes,
    num_usable_processors,
    package_version,
    processor_name,
)
from bexplore.host.secret_values import hidden
from bexplore.host.torch_interfaces import CHECKED_VERSIONS, is_checked
from bexplore.job import Job, device_kind
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.statistics import MAD_SDS, mad
from bexplore.run.parts.ranks import one_rank_caution
from bexplore.units import counted, format_bytes, format_seconds

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 11)
# Each brings the package `triton`. Source: requirements of torch's wheels for CUDA, ROCm and XPU.
TRITON_PACKAGES = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton-xpu")
IMPORT_LIMIT_S = 120.0  # a cold import of torch over a network file system takes half a minute
LITTLE_MEMORY_BYTES = 4 * 2**30  # torch and the compiler alone take up to 1.5 GiB
MOSTLY_FREE = 0.9  # share of a device's memory; below, another process uses it
LITTLE_DISK_BYTES = 2 * 2**30  # the compiler's cache of one exploration: 10 to 500 MiB
# Spread of equal work, and slowness of its slowest twentieth, that are reported: noise beyond the search's indifference
# zone costs probes.
QUIET, SLOW_TAIL = INDIFFERENCE_ZONE, 0.10
_WORK = bytes(2 * 2**20)  # hashing takes 1 to 10 ms: long against a clock tick, short against a time slice
_OPENMP = """
#include <omp.h>
#include <cstdio>
int main() { int n = 0;
#pragma omp parallel reduction(+ : n)
n += 1;
std::printf("%d", n); }
"""


class Status(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"  # works, but slower, noisier or with less
    PROBLEM = "problem"  # an exploration would fail


@dataclass(frozen=True, slots=True)
class Check:
    """One line."""

    name: str  # the requirement
    status: Status  # the result
    message: str  # the observation
    fix: str = ""  # a command or an instruction; empty where nothing needs to be done


def examine(
    config: Config | None = None,
    *,
    noise_s: float = 10.0,
    describe_emulation: Callable[[], str] | None = None,
    make_environment: Callable[[], Mapping[str, str]] = dict,
) -> Iterator[Check]:
    """Check the machine, and a job on it.

    Args:
        config: The job; None for the machine alone.
        noise_s: Seconds of the noise measurement; 0 skips it.
        describe_emulation: Names the tools that build an emulated device, or raises; None checks none.
        make_environment: Returns the variables with which a process sees the configuration's emulated device.
    """
    yield _python()
    torch = _torch()
    yield torch
    device_name = None if config is None else config.settings.device_name
    is_wanted = device_name is not None or "cpu" not in torch.message
    emulation = [_emulation(describe_emulation, device_name)] if describe_emulation and is_wanted else []
    yield from emulation
    is_possible = not any(check.status is Status.PROBLEM for check in (torch, *emulation))
    environment = make_environment() if is_possible else {}
    device_info: dict[str, Any] = {}
    if is_possible:
        device_info, device = _device("auto" if config is None else config.job.device, environment)
        yield device
    yield from _driver(device_info)
    yield from _compilers(device_info)
    yield from _kernel(device_info, environment)
    yield _memory()
    yield _threads(device_info)
    yield _cache()
    yield _has_room("run folder", Path.cwd(), "run in, or name with `model_dir`, a folder with free space")
    if noise_s > 0:
        yield _noise(noise_s)
    if config is not None and device_info:
        yield from _job(config, device_info, environment) if config.command is None else _command(config.command)


def _python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {processor_name()}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", Status.PROBLEM, text, "use Python 3.11 or newer")
    if sys.platform != "linux":
        fix = "on Linux a worker's memory can be limited, and it ends with its parent"
        return Check("python", Status.WARNING, text, fix)
    return Check("python", Status.OK, text)


def _torch() -> Check:
    version = package_version("torch")
    if version == "absent":
        return Check("torch", Status.PROBLEM, "torch is not installed", "pip install torch")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        return Check("torch", Status.PROBLEM, version, "pip install 'torch>=2.11'")
    if is_checked(version):
        return Check("torch", Status.OK, version)
    return _unknown_torch(version)


def _unknown_torch(version: str) -> Check:
    answer = _answer(FindInterfaces(), {})
    known = f"{CHECKED_VERSIONS[0]} to {CHECKED_VERSIONS[-1]}"
    fix = f"use torch {known}, or go on: what cannot be done is left out"
    if not isinstance(answer, Done):
        return Check("torch", Status.WARNING, f"{version}, which was not tested ({known} were)", fix)
    losses = [f"{lost} ({name} is missing)" for lost, name in answer.values["missing"]]
    text = f"lost: {'; '.join(losses)}" if losses else "each private interface that is used has its name there"
    return Check("torch", Status.WARNING, f"{version}, which was not tested ({known} were); {text}", fix)


def _answer(request: Request, environment: Mapping[str, str]) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        log_path, limits = Path(folder) / "worker.log", Limits(stage_s=IMPORT_LIMIT_S)
        return ask_once(request, log_path, limits=limits, environment=environment)


def _device(name: str, environment: Mapping[str, str]) -> tuple[dict[str, Any], Check]:
    """Return torch's description of a device, empty where it has none, and the check."""
    answer = _answer(DeviceInfo(device=name), environment)
    if isinstance(answer, Refused):
        return {}, Check("device", Status.PROBLEM, answer.message, answer.hint)
    if isinstance(answer, Failed):
        return {}, Check("device", Status.PROBLEM, f"torch does not start: {answer.reason}", "python -c 'import torch'")
    return answer.values, _device_line(answer.values)


def _device_line(device_info: dict[str, Any]) -> Check:
    device, name = str(device_info["device"]), str(device_info["device_name"])
    text = f"{device}, {name}, capability {device_info['capability']}"
    total, free = device_info["total_memory_bytes"], device_info["free_memory_bytes"]
    if device_kind(device) == "cpu":
        accelerator = accelerator_name()
        if accelerator:
            fix = "install torch's CUDA build, and check CUDA_VISIBLE_DEVICES"
            return Check("device", Status.WARNING, f"cpu, although there is {accelerator}", fix)
        return Check("device", Status.OK, text)
    if total is None:
        message = f"{text}; torch keeps no account of its memory"
        return Check("device", Status.WARNING, message, "set explore.memory_budget to a size")
    text += f", {format_bytes(free)} of {format_bytes(total)} free"
    if total and free is not None and free < MOSTLY_FREE * total:
        return Check("device", Status.WARNING, text, "nvidia-smi lists the processes on the device")
    text += "" if find_device(name) else "; its peak is not in the table: no MFU is shown"
    return Check("device", Status.OK, text)


def _driver(device_info: dict[str, Any]) -> Iterator[Check]:
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return
    match = re.search(r"\d+\.\d+(\.\d+)?", version.read_text())
    device = selector(device_info)
    reasons = sorted(clock_events(device) - {POWER_LIMIT}) if device else []
    text = match[0] if match else "unknown version"
    if reasons:
        message = f"{text}; the clocks are reduced: {', '.join(reasons)}"
        yield Check("driver", Status.WARNING, message, "nvidia-smi -q -d PERFORMANCE")
    else:
        yield Check("driver", Status.OK, text)


def _emulation(describe_emulation: Callable[[], str], device_name: str | None) -> Check:
    """Check what an emulated device needs, where one is named, or where a CUDA build could use one."""
    try:
        return Check("emulation", Status.OK, f"explore.device_name: h100 works, with {describe_emulation()}")
    except EmulationError as error:
        status = Status.OK if device_name is None else Status.PROBLEM
        return Check("emulation", status, f"explore.device_name does not work: {error.message}", error.hint)


def _compilers(device_info: dict[str, Any]) -> Iterator[Check]:
    on_cuda = device_kind(str(device_info.get("device", ""))) == "cuda"
    if on_cuda:
        yield _triton()
        yield _launcher()
    wanted, found = _tool("CXX", "g++")
    if found is None:
        message = f"{wanted} is not on PATH: torch.compile cannot build for the CPU"
        advice = "apt install g++, or name another one: export CXX=clang++"
        yield Check("compiler", Status.WARNING if on_cuda else Status.PROBLEM, message, advice)
        return
    yield _openmp(found)


def _tool(variable: str, *usual: str) -> tuple[str, str | None]:
    """Return the names that are tried, of an environment variable or the usual ones, and the first path found."""
    wanted = [os.environ[variable]] if os.environ.get(variable) else list(usual)
    return ", ".join(wanted), next((path for path in map(shutil.which, wanted) if path), None)


def _triton() -> Check:
    versions = {name: package_version(name) for name in TRITON_PACKAGES}
    found = [f"{name} {version}" for name, version in versions.items() if version != "absent"]
    if not found:
        return Check("triton", Status.PROBLEM, "absent", "pip install triton")
    return Check("triton", Status.OK, ", ".join(found))


def _launcher() -> Check:
    """Check what builds the launcher of a kernel. Source: Triton's python/triton/runtime/build.py."""
    wanted, found = _tool("CC", "cc", "gcc", "clang")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if found is None:
        message = f"none of {wanted} is on PATH: Triton cannot start a kernel"
        return Check("launcher", Status.PROBLEM, message, "apt install gcc")
    if not header.is_file():
        message = f"{header} is missing: Triton cannot start a kernel"
        return Check("launcher", Status.PROBLEM, message, "apt install python3-dev")
    return Check("launcher", Status.OK, f"{found}, {header}")


def _kernel(device_info: dict[str, Any], environment: Mapping[str, str]) -> Iterator[Check]:
    device = str(device_info.get("device", "cpu"))
    if device == "cpu":
        return
    answer = _answer(CheckCompiler(device=device), environment)
    if isinstance(answer, Done) and device_info.get("is_emulated"):
        message = f"torch.compile built and ran a kernel on {device}; it is emulated, so no result was compared"
        yield Check("kernel", Status.OK, message)
        return
    if isinstance(answer, Done) and answer.values["is_right"]:
        yield Check("kernel", Status.OK, f"torch.compile built and ran a kernel on {device}")
        return
    reason = answer.reason if isinstance(answer, Failed) else "its result is wrong"
    message = f"torch.compile does not work on {device}: {reason}"
    yield Check("kernel", Status.PROBLEM, message, "correct this, or a problem above")


def _openmp(compiler: str) -> Check:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(_OPENMP)
        try:
            version = _output([compiler, "-dumpversion"])
            _output([compiler, "-fopenmp", str(source), "-o", str(program)])
            threads = _output([str(program)])
        except (OSError, subprocess.SubprocessError) as error:
            reasons = str(getattr(error, "stderr", "") or error).strip().splitlines() or ["no reason given"]
            message = f"{compiler} cannot build with OpenMP: {reasons[0]}"
            return Check("compiler", Status.PROBLEM, message, "apt install g++ libgomp1")
    return Check("compiler", Status.OK, f"{compiler} {version}, OpenMP with {threads} threads")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = available_memory_bytes()
    text = f"{format_bytes(available)} of {format_bytes(total)} available{_cgroup_limit()}"
    if available < LITTLE_MEMORY_BYTES:
        return Check("memory", Status.WARNING, text, "end other programs, or raise the limit")
    return Check("memory", Status.OK, text)


def _cgroup_limit() -> str:
    limit = memory_limit_bytes()
    return ", no cgroup limit" if limit is None else f", cgroup limit {format_bytes(limit)}"


def _threads(device_info: dict[str, Any]) -> Check:
    usable, quota = num_usable_processors(), _processor_quota()
    used = int(device_info.get("num_threads") or 0)
    text = f"{usable} processors may be used" + (f", torch uses {used}" if used else "")
    limit: float = usable
    if quota is not None and quota < usable:
        limit, text = quota, f"{text}, but the cgroup allows the time of {quota:g}"
    if (used or usable) > limit:
        return Check("threads", Status.WARNING, text, f"export OMP_NUM_THREADS={max(1, int(limit))}")
    return Check("threads", Status.OK, text)


def _processor_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None  # no cgroup v2, or an unknown form: no quota is reported


def _cache() -> Check:
    named = os.environ.get(CACHE_OF_COMPILER)
    path = Path(named) if named else Path(tempfile.gettempdir()) / f"torchinductor_{_account()}"
    if not can_compile_in(path):
        message = f"{path}: torch.compile splits its commands at blanks, and builds nothing there"
        return Check(
            "cache", Status.PROBLEM, message, f"export {CACHE_OF_COMPILER}=<a folder without blanks and quotes>"
        )
    return _has_room("cache", path, f"export {CACHE_OF_COMPILER}=<a folder with free space>")


def _account() -> str:
    """Return the name of this account, as the compiler has it. Source: torch/_inductor/runtime/cache_dir_utils.py."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"


def _has_room(name: str, path: Path, fix: str) -> Check:
    above = (path, *path.parents)
    existing = next(one for one in above if os.path.exists(one))  # noqa: PTH110  # Path.exists raises below closed folders
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Check(name, Status.PROBLEM, f"{existing} cannot be written: {error.strerror}", fix)
    free = shutil.disk_usage(existing).free
    text = f"{path}, {format_bytes(free)} free"
    return Check(name, Status.WARNING, text, fix) if free < LITTLE_DISK_BYTES else Check(name, Status.OK, text)


def _noise(seconds: float, work: Callable[[], object] = lambda: hashlib.sha256(_WORK).digest()) -> Check:
    times_s, share = time_equal_work(work, seconds)
    logs = np.log(times_s)
    spread = MAD_SDS * float(mad(logs)[0])
    slow = float(np.quantile(times_s, 0.95) / np.median(times_s) - 1.0)
    text = (
        f"equal work varies by {spread:.1%}, one time in twenty is {1 + slow:.2f}x or more; others use {share:.0%} of "
        f"the processors ({len(times_s)} times in {format_seconds(seconds)})"
    )
    if spread <= QUIET and slow <= SLOW_TAIL and share <= BUSY_SHARE:
        return Check("noise", Status.OK, text)
    fix = "end other programs, fix the clock (cpupower frequency-set -g performance), or use explore.effort: thorough"
    return Check("noise", Status.WARNING, text, fix)


def _command(command: Command) -> Iterator[Check]:
    """Check that the program of a training command is there; what it trains shows in the first start."""
    program = command.argv[0]
    if shutil.which(program) is None:
        yield Check("command", Status.PROBLEM, f"there is no program {program}", "type the command as in your shell")
    else:
        yield Check("command", Status.OK, f"{command.shown}: bexplore explore shows whether it trains")


def _ranks(config: Config) -> Iterator[Check]:
    if not config.job.parallelism.is_distributed:
        return
    try:
        launcher = find_launcher(config)
    except UserInputError as error:
        yield Check("ranks", Status.PROBLEM, error.message, error.hint)
        return
    if launcher is None:
        yield Check("ranks", Status.OK, one_rank_caution(config.job.parallelism))
        return
    text = (
        f"{counted(launcher.num_ranks, 'rank')}, started by {'you' if launcher.is_external else hidden(launcher.kind)}"
    )
    if launcher.kind == "ray" and package_version("ray") == "absent":
        yield Check("ranks", Status.PROBLEM, f"{text}: the package ray is absent", "pip install 'bexplore[ray]'")
        return
    program = launcher.command("HOST:PORT", ())[0]
    if not launcher.is_external and shutil.which(program) is None:
        message = f"{text}: there is no program {program}"
        yield Check("ranks", Status.PROBLEM, message, "run where it is installed, or name another explore.launcher")
        return
    yield Check("ranks", Status.OK, f"{text}: bexplore explore shows whether they come")


def _job(config: Config, device_info: dict[str, Any], environment: Mapping[str, str]) -> Iterator[Check]:
    """Check that the job builds and can be traced; if it cannot be traced, that one eager pass runs."""
    for text in config.warnings:
        yield Check("config", Status.WARNING, text)
    yield from _ranks(config)
    job: Job = config.on_device(str(device_info["device"])).job
    with tempfile.TemporaryDirectory() as folder:
        limit_s = config.settings.trace_time_limit_s
        traced = trace_in_worker(job, Path(folder), lambda message: None, environment=environment, limit_s=limit_s)
        if not isinstance(traced, str):
            message = f"builds and traces in {format_seconds(traced.trace_s)}: {traced.num_parameters:,} parameters"
            yield Check("job", Status.OK, message)
            return
        run = probe_once(
            config, micro_batch_size=config.minimum, compilation="eager", model_dir=folder, environment=environment
        ).observation
    if run.is_measured:
        fix = "nothing to do: steps at small sizes are measured instead of a trace"
        yield Check("job", Status.WARNING, f"builds and runs, but cannot be traced: {traced}", fix)
    else:
        fix = f"bexplore probe {config.typed} --micro-batch-size {config.minimum} --compilation eager"
        message = f"does not run at size {config.minimum}: {run.outcome.value.replace('_', ' ')}: {run.reason}"
        yield Check("job", Status.PROBLEM, message, fix)
