"""Whether this machine, and a job on it, are ready: a line for each thing that an exploration needs.

Nothing here imports torch, so that a missing or a broken torch is a line too; a worker process asks it.
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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from getpass import getuser
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.config.config import Config
from bexplore.engine.program_client import ask_once, trace_in_worker
from bexplore.engine.protocol.messages import Answer, CheckCompiler, DeviceInfo, Done, Failed, Refused, Request
from bexplore.exploration.one_shot import probe_once
from bexplore.host.accelerators import find_device
from bexplore.host.contention import BUSY_SHARE, POWER_LIMIT, CpuContention, clock_events, selector
from bexplore.host.machine import (
    CGROUP,
    accelerator_name,
    available_memory_bytes,
    num_usable_processors,
    package_version,
    processor_name,
)
from bexplore.job import Job
from bexplore.units import format_bytes, format_seconds

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 11)
# Each brings the package `triton`. Source: requirements of torch's wheels for CUDA, ROCm and XPU.
TRITON_PACKAGES = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton-xpu")
IMPORT_LIMIT_S = 120.0  # a cold import of torch over a network file system takes half a minute
LITTLE_MEMORY_BYTES = 4 * 2**30  # torch and the compiler alone take up to 1.5 GiB
LITTLE_DISK_BYTES = 2 * 2**30  # the compiler's cache of one exploration: 10 to 500 MiB
# Spread of equal work from which it is said. The tie of the search is 2 %: noise beyond it costs probes.
QUIET, NOISY = 0.02, 0.10
_WORK = bytes(2 * 2**20)  # hashed once takes 1 to 10 ms: long against a clock's tick, short against a time slice
_OPENMP = """
#include <omp.h>
#include <cstdio>
int main() { int n = 0;
#pragma omp parallel reduction(+ : n)
n += 1;
std::printf("%d", n); }
"""


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # works, but slower, noisier or with less
    PROBLEM = "problem"  # an exploration would fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line.

    Attributes:
        name: What was looked at.
        status: How it is.
        message: What was seen.
        fix: What to type, or to do; empty where nothing needs to be done.
    """

    name: str
    status: Status
    message: str
    fix: str = ""


def examine(config: Config | None = None, *, noise_s: float = 10.0) -> Iterator[Check]:
    """Look at the machine, and at a job on it.

    Args:
        config: The job; None for the machine alone.
        noise_s: Seconds of the noise measurement; 0 leaves it out.
    """
    yield _python()
    torch = _torch()
    yield torch
    facts: dict[str, Any] = {}
    if torch.status is not Status.PROBLEM:
        facts, device = _device("auto" if config is None else config.job.device)
        yield device
    yield from _driver(facts)
    yield from _compilers(facts)
    yield from _kernel(facts)
    yield _memory()
    yield from _threads(facts)
    yield _cache()
    yield _folder()
    if noise_s > 0:
        yield _noise(noise_s)
    if config is not None and facts:
        yield from _job(config, facts)


def _python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {processor_name()}"
    if sys.version_info < OLDEST_PYTHON:
        return Check(name="python", status=Status.PROBLEM, message=text, fix="use Python 3.11 or newer")
    if sys.platform != "linux":
        fix = "on Linux a worker's memory can be limited, and it ends with its parent"
        return Check(name="python", status=Status.WARNING, message=text, fix=fix)
    return Check(name="python", status=Status.OK, message=text)


def _torch() -> Check:
    version = package_version("torch")
    if version == "absent":
        return Check(name="torch", status=Status.PROBLEM, message="torch is not installed", fix="pip install torch")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        return Check(name="torch", status=Status.PROBLEM, message=version, fix="pip install 'torch>=2.11'")
    return Check(name="torch", status=Status.OK, message=version)


def _asked(request: Request) -> Answer:
    """Return the answer of a worker of its own, which may fail."""
    with tempfile.TemporaryDirectory() as folder:
        return ask_once(request, Path(folder) / "worker.log", limit_s=IMPORT_LIMIT_S, resident_limit_bytes=None)


def _device(name: str) -> tuple[dict[str, Any], Check]:
    """What torch itself says of a device."""
    answer = _asked(DeviceInfo(device=name))
    if isinstance(answer, Refused):
        return {}, Check(name="device", status=Status.PROBLEM, message=answer.message, fix=answer.hint)
    if isinstance(answer, Failed):
        return {}, Check(
            name="device",
            status=Status.PROBLEM,
            message=f"torch does not start: {answer.reason}",
            fix="python -c 'import torch'",
        )
    return answer.values, _device_line(answer.values)


def _device_line(facts: dict[str, Any]) -> Check:
    text = f"{facts['device']}, {facts['device_name']}, capability {facts['capability']}"
    total, free = facts["total_memory_bytes"], facts["free_memory_bytes"]
    if str(facts["device"]).startswith("cpu"):
        named = accelerator_name()
        if named:
            fix = "install torch's CUDA build, and look at CUDA_VISIBLE_DEVICES"
            return Check(name="device", status=Status.WARNING, message=f"cpu, although there is {named}", fix=fix)
        return Check(name="device", status=Status.OK, message=text)
    if total is None:
        message = f"{text}; torch keeps no account of its memory"
        return Check(name="device", status=Status.WARNING, message=message, fix="set explore.memory_budget to a size")
    text += f", {format_bytes(free)} of {format_bytes(total)} free"
    if total and free is not None and free < 0.9 * total:
        return Check(name="device", status=Status.WARNING, message=text, fix="nvidia-smi shows who uses the device")
    peak = find_device(str(facts["device_name"]))
    text += "" if peak else "; its peak is not in the table: no MFU is shown"
    return Check(name="device", status=Status.OK, message=text)


def _driver(facts: dict[str, Any]) -> Iterator[Check]:
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return
    match = re.search(r"\d+\.\d+(\.\d+)?", version.read_text())
    device = selector(facts)
    reasons = sorted(clock_events(device) - {POWER_LIMIT}) if device else []
    text = match[0] if match else "unknown version"
    if reasons:
        message = f"{text}; the clocks are held down: {', '.join(reasons)}"
        yield Check(name="driver", status=Status.WARNING, message=message, fix="nvidia-smi -q -d PERFORMANCE")
    else:
        yield Check(name="driver", status=Status.OK, message=text)


def _compilers(facts: dict[str, Any]) -> Iterator[Check]:
    """The CPU's code is compiled by a C++ compiler with OpenMP; a GPU's by Triton, whose launcher needs one in C."""
    on_cuda = str(facts.get("device", "")).startswith("cuda")
    if on_cuda:
        yield _triton()
        yield _launcher()
    wanted = [os.environ[name] for name in ("CXX",) if os.environ.get(name)] or ["g++", "clang++"]
    found = next((path for path in map(shutil.which, wanted) if path), None)
    if found is None:
        message = f"none of {', '.join(wanted)} is on PATH: torch.compile cannot build for the CPU"
        status = Status.WARNING if on_cuda else Status.PROBLEM
        yield Check(name="compiler", status=status, message=message, fix="apt install g++")
        return
    yield _openmp(found)


def _triton() -> Check:
    versions = {name: package_version(name) for name in TRITON_PACKAGES}
    found = [f"{name} {version}" for name, version in versions.items() if version != "absent"]
    if not found:
        return Check(name="triton", status=Status.PROBLEM, message="absent", fix="pip install triton")
    return Check(name="triton", status=Status.OK, message=", ".join(found))


def _launcher() -> Check:
    """What builds the launcher of a kernel. Source: Triton's python/triton/runtime/build.py."""
    named = os.environ.get("CC")
    wanted = [named] if named else ["cc", "gcc", "clang"]
    found = next((path for path in map(shutil.which, wanted) if path), None)
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if found is None:
        message, fix = f"none of {', '.join(wanted)} is on PATH: Triton cannot start a kernel", "apt install gcc"
    elif not header.is_file():
        message, fix = f"{header} is missing: Triton cannot start a kernel", "apt install python3-dev"
    else:
        return Check(name="launcher", status=Status.OK, message=f"{found}, {header}")
    return Check(name="launcher", status=Status.PROBLEM, message=message, fix=fix)


def _kernel(facts: dict[str, Any]) -> Iterator[Check]:
    """Whether torch.compile builds and runs a program on an accelerator, all of its tools together."""
    device = str(facts.get("device", "cpu"))
    if device == "cpu":
        return
    answer = _asked(CheckCompiler(device=device))
    if isinstance(answer, Done) and answer.values["is_right"]:
        yield Check(name="kernel", status=Status.OK, message=f"torch.compile built and ran a kernel on {device}")
        return
    reason = answer.reason if isinstance(answer, Failed) else "its result is wrong"
    message = f"torch.compile does not work on {device}: {reason}"
    yield Check(name="kernel", status=Status.PROBLEM, message=message, fix="mend what is named here, or above it")


def _openmp(compiler: str) -> Check:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(_OPENMP)
        command = [compiler, "-fopenmp", str(source), "-o", str(program)]
        try:
            version = _output([compiler, "-dumpversion"])
            _output(command)
            threads = _output([str(program)])
        except (OSError, subprocess.SubprocessError) as error:
            told = str(getattr(error, "stderr", "") or error).strip().splitlines()
            message = f"{compiler} cannot build with OpenMP: {told[0] if told else 'no reason given'}"
            return Check(name="compiler", status=Status.PROBLEM, message=message, fix="apt install g++ libgomp1")
    return Check(name="compiler", status=Status.OK, message=f"{compiler} {version}, OpenMP with {threads} threads")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = available_memory_bytes()
    text = f"{format_bytes(available)} of {format_bytes(total)} available{_cgroup_limit()}"
    if available < LITTLE_MEMORY_BYTES:
        return Check(name="memory", status=Status.WARNING, message=text, fix="end other programs, or raise the limit")
    return Check(name="memory", status=Status.OK, message=text)


def _cgroup_limit() -> str:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        return ""  # no cgroup v2: the kernel's own figure is all there is
    return f", cgroup limit {format_bytes(int(limit))}" if limit.isdecimal() else ", no cgroup limit"


def _threads(facts: dict[str, Any]) -> Iterator[Check]:
    usable = num_usable_processors()
    used = int(facts.get("num_threads") or 0)
    quota = _processor_quota()
    text = f"{usable} processors may be used" + (f", torch uses {used}" if used else "")
    if quota is not None and quota < usable:
        fix = f"export OMP_NUM_THREADS={max(1, int(quota))}"
        message = f"{text}, but the cgroup allows the time of {quota:g}"
        status = Status.WARNING if (used or usable) > quota else Status.OK
        yield Check(name="threads", status=status, message=message, fix=fix if status is Status.WARNING else "")
    elif used > usable:
        fix = f"export OMP_NUM_THREADS={usable}"
        yield Check(name="threads", status=Status.WARNING, message=text, fix=fix)
    else:
        yield Check(name="threads", status=Status.OK, message=text)


def _processor_quota() -> float | None:
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None  # no cgroup v2, or a form that is not known: no quota is said


def _cache() -> Check:
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    path = Path(named) if named else Path(tempfile.gettempdir()) / f"torchinductor_{getuser()}"
    fix = "export TORCHINDUCTOR_CACHE_DIR=<a folder with room>"
    return _room("cache", path, fix)


def _folder() -> Check:
    return _room("run folder", Path.cwd(), "run in, or name with --model-dir, a folder with room")


def _room(name: str, path: Path, fix: str) -> Check:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        message = f"{existing} cannot be written: {error.strerror}"
        return Check(name=name, status=Status.PROBLEM, message=message, fix=fix)
    free = shutil.disk_usage(existing).free
    text = f"{path}, {format_bytes(free)} free"
    if free < LITTLE_DISK_BYTES:
        return Check(name=name, status=Status.WARNING, message=text, fix=fix)
    return Check(name=name, status=Status.OK, message=text)


def _noise(seconds: float, work: Callable[[], object] = lambda: hashlib.sha256(_WORK).digest()) -> Check:
    """Equal work, timed over and over on one processor: its spread is noise."""
    contention = CpuContention(os.getpid())
    contention.start()
    times_s: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began)
    share = contention.background_cpu_share()
    logs = np.log(times_s)
    spread = float(1.4826 * np.median(np.abs(logs - np.median(logs))))
    slow = float(np.quantile(times_s, 0.95) / np.median(times_s) - 1.0)
    text = (
        f"equal work varies by {spread:.1%}, one time in twenty is {1 + slow:.2f}x or more; others use {share:.0%} of "
        f"the processors ({len(times_s)} times in {format_seconds(seconds)})"
    )
    if spread <= QUIET and slow <= NOISY and share <= BUSY_SHARE:
        return Check(name="noise", status=Status.OK, message=text)
    fix = "end other programs, fix the clock (cpupower frequency-set -g performance), or use explore.effort: thorough"
    return Check(name="noise", status=Status.WARNING, message=text, fix=fix)


def _job(config: Config, facts: dict[str, Any]) -> Iterator[Check]:
    """Whether the job builds and can be traced; if it cannot be traced, whether one eager pass runs."""
    for text in config.warnings:
        yield Check(name="config", status=Status.WARNING, message=text)
    job: Job = config.on_device(str(facts["device"])).job
    with tempfile.TemporaryDirectory() as folder:
        traced = trace_in_worker(job, Path(folder), lambda message: None)
        if not isinstance(traced, str):
            message = f"builds and traces in {format_seconds(traced.trace_s)}: {traced.num_parameters:,} parameters"
            yield Check(name="job", status=Status.OK, message=message)
            return
        run = probe_once(config, micro_batch_size=config.minimum, compilation="eager", model_dir=folder)
    if run.is_measured:
        message = f"builds and runs, but cannot be traced: {traced}"
        fix = "explore works without a trace; only memory is found out by trying"
        yield Check(name="job", status=Status.WARNING, message=message, fix=fix)
    else:
        fix = f"bexplore probe {config.typed} --micro-batch-size {config.minimum} --compilation eager"
        message = f"does not run at size {config.minimum}: {run.outcome.value.replace('_', ' ')}: {run.reason}"
        yield Check(name="job", status=Status.PROBLEM, message=message, fix=fix)
