"""The environment variables that make a started process see emulated devices, and its own children too."""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bexplore.emulated_gpu import nvidia_smi
from bexplore.emulated_gpu.libraries import built_libraries
from bexplore.errors import EmulationError
from bexplore.host import accelerators
from bexplore.host.json_files import cache_folder

PREFIX = "BEXPLORE_EMULATED_"
MAX_DEVICES = 64  # as device.hpp has it
_SHARED_PREFIX = "bexplore-emulated-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What fails, for tests; each number counts within a process, from 1, and None means never."""

    out_of_memory_at_allocation: int | None = None  # the allocation that finds no memory
    # The kernel after which each call returns "an illegal memory access was encountered"
    illegal_access_at_launch: int | None = None
    # The kernel after which each call returns "uncorrectable ECC error encountered"
    uncorrectable_ecc_at_launch: int | None = None
    device_lost_at_launch: int | None = None  # the kernel after which the device is lost, for all processes
    nanoseconds_per_launch: int | None = None  # duration of each kernel on the clock of streams and events


def emulated_environment(
    device: accelerators.Device,
    *,
    num_devices: int = 1,
    memory_bytes: int | None = None,
    faults: Faults | None = None,
    torch_folder: Path | None = None,
) -> dict[str, str]:
    """Return the variables to add to the environment of a process that shall see emulated devices.

    All processes that are started with one result share its devices: memory that one takes, another lacks. Their
    state lies in a folder that is removed when this process ends.

    Args:
        device: What is emulated.
        num_devices: How many of it.
        memory_bytes: Memory of each; by default what `device` has.
        faults: What fails; by default nothing.
        torch_folder: The package `torch` of the process to be started; by default that of this interpreter.

    Raises:
        EmulationError: The device is no CUDA device, or its libraries cannot be built.
    """
    if device.capability is None or device.num_multiprocessors is None or device.chip is None:
        raise EmulationError(
            f"{device.name} cannot be emulated: it is no CUDA device", hint="name an NVIDIA device, such as h100"
        )
    if not 1 <= num_devices <= MAX_DEVICES:
        raise EmulationError(f"{num_devices} emulated devices", hint=f"ask for 1 to {MAX_DEVICES}")
    folder = built_libraries(torch_folder)
    multiprocessor = accelerators.MULTIPROCESSORS[device.capability]
    numbers = {
        "DEVICES": num_devices,
        "MEMORY_BYTES": device.total_memory_bytes if memory_bytes is None else memory_bytes,
        "CONTEXT_BYTES": accelerators.CUDA_CONTEXT_BYTES,
        "COLLECTIVES_BYTES": accelerators.COLLECTIVES_BYTES,
        "CAPABILITY_MAJOR": device.capability[0],
        "CAPABILITY_MINOR": device.capability[1],
        "MULTIPROCESSORS": device.num_multiprocessors,
        "THREADS_PER_MULTIPROCESSOR": multiprocessor.max_threads,
        "SHARED_BYTES_PER_MULTIPROCESSOR": multiprocessor.shared_memory_bytes,
        "SHARED_BYTES_PER_BLOCK": multiprocessor.shared_memory_per_block_bytes,
        "L2_BYTES": device.chip.l2_bytes,
        "CLOCK_KHZ": device.chip.clock_khz,
        "MEMORY_CLOCK_KHZ": device.memory_clock_khz,
        "BUS_BITS": device.chip.bus_bits,
        **{name.upper(): number for name, number in asdict(faults or Faults()).items() if number is not None},
    }
    return {
        **{f"{PREFIX}{name}": str(number) for name, number in numbers.items()},
        f"{PREFIX}NAME": device.name,
        f"{PREFIX}SHARED_FOLDER": str(_make_shared_folder()),
        "PATH": os.pathsep.join((str(_write_programs()), os.environ.get("PATH", os.defpath))),
        "CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in range(num_devices)),
        "LD_PRELOAD": _list_preloaded(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        **_separate_compiler_caches(),
    }


def _list_preloaded(folder: Path) -> str:
    """Return the list of libraries that are loaded before a program.

    torch's libraries name the folders of NVIDIA's by RPATH, which is searched before LD_LIBRARY_PATH; but no library
    is searched for whose name a loaded one has.
    """
    own = [str(path) for path in sorted(folder.iterdir())]
    others = [path for path in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if path not in own]
    return ":".join([*own, *others])


def _separate_compiler_caches() -> dict[str, str]:
    """Keep what is tuned on an emulated device, where all candidates are equally fast, away from real ones."""
    folder = cache_folder("emulated_gpu_compiled")
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def _write_programs() -> Path:
    """Write the programs of a driver that trainings start; return their folder.

    It is that of the interpreter, and not the shared one: programs in shared memory may be refused.
    """
    text = f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", nvidia_smi.__file__])} "$@"\n'
    programs = cache_folder("emulated_gpu_programs") / hashlib.sha256(text.encode()).hexdigest()[:16]
    programs.mkdir(parents=True, exist_ok=True)
    smi = programs / "nvidia-smi"
    if not smi.exists():
        new = programs / f"nvidia-smi.{os.getpid()}"
        new.write_text(text)
        new.chmod(0o755)
        new.rename(smi)
    return programs


def _make_shared_folder() -> Path:
    parent = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    for path in parent.glob(f"{_SHARED_PREFIX}*"):
        with suppress(OSError, ValueError):  # another's, or gone meanwhile
            if not Path("/proc", str(int(path.name.split("-")[2]))).exists():
                shutil.rmtree(path)
    folder = Path(tempfile.mkdtemp(prefix=f"{_SHARED_PREFIX}{os.getpid()}-", dir=parent))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
