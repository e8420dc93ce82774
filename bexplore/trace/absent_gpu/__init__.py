"""A CUDA device that is not there, good enough for the compiler to lower, schedule and plan for it.

The rest of the process sees the device: `stand_in` is for a process of its own. Nothing can be computed on it; fake
tensors lie on it, and the memory plan of the compiler is that of the device's own program.

PyTorch's C++ core must find the device, too: `guard.cpp` is built and loaded for that, once per version of PyTorch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bexplore.errors import TraceError
from bexplore.host import accelerators
from bexplore.host.json_files import cache_folder
from bexplore.host.torch_interfaces import ABSENT_GPU_VERSIONS
from bexplore.job import device_kind

_SOURCE = Path(__file__).with_name("guard.cpp")
_COMPILERS = ("g++", "clang++", "c++")
_LIBRARIES = ("libc10.so", "libtorch_cpu.so")  # in the order in which they need each other
BUILD_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """Properties of a device that a compiler reads."""

    name: str
    capability: tuple[int, int]  # compute capability, major and minor
    num_multiprocessors: int
    total_memory_bytes: int  # memory by the driver

    @classmethod
    def from_device_info(cls, info: Mapping[str, Any]) -> GpuProperties | None:
        """Return the properties in a worker's device info; None where it is no known CUDA device."""
        if device_kind(str(info.get("device"))) != "cuda" or not info.get("num_multiprocessors"):
            return None
        major, minor = (int(part) for part in str(info["capability"]).split("."))
        if (major, minor) not in accelerators.MULTIPROCESSORS:
            return None
        return cls(
            name=info["device_name"],
            capability=(major, minor),
            num_multiprocessors=info["num_multiprocessors"],
            total_memory_bytes=info["total_memory_bytes"],
        )

    @classmethod
    def from_device(cls, device: accelerators.Device) -> GpuProperties | None:
        """Return the properties of a device of the table; None where it is no CUDA device, or lacks some."""
        if device.capability is None or device.num_multiprocessors is None:
            return None
        return cls(
            name=device.name,
            capability=device.capability,
            num_multiprocessors=device.num_multiprocessors,
            total_memory_bytes=device.total_memory_bytes,
        )

    def as_torch(self) -> dict[str, Any]:
        """Return the attributes of torch's object of properties, with those that follow from the capability."""
        multiprocessor = accelerators.MULTIPROCESSORS[self.capability]
        return {
            "name": self.name,
            "major": self.capability[0],
            "minor": self.capability[1],
            "multi_processor_count": self.num_multiprocessors,
            "total_memory": self.total_memory_bytes,
            "max_threads_per_multi_processor": multiprocessor.max_threads,
            "regs_per_multiprocessor": accelerators.REGISTERS_PER_MULTIPROCESSOR,
            "shared_memory_per_multiprocessor": multiprocessor.shared_memory_bytes,
            "shared_memory_per_block_optin": multiprocessor.shared_memory_per_block_bytes,
            "shared_memory_per_block": accelerators.SHARED_MEMORY_PER_BLOCK_BYTES,
            "max_threads_per_block": accelerators.MAX_THREADS_PER_BLOCK,
            "warp_size": accelerators.WARP_SIZE,
            "gcnArchName": "",
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
        }


def reason_against() -> str:
    """Return why no absent device can be stood in for here, in one line with what to type; empty where it can."""
    if sys.platform != "linux":
        return "the program of a CUDA device is planned on Linux only"
    if find_spec("triton") is None:
        return "Triton, which writes the kernels of a CUDA device, is not installed: pip install 'bexplore[gpu-trace]'"
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        return "torch is not installed: pip install torch"
    if ".".join(torch_version.split(".")[:2]) not in ABSENT_GPU_VERSIONS:  # what is replaced differs between versions
        checked = " and ".join(ABSENT_GPU_VERSIONS)
        return f"planning for an absent device was checked with torch {checked}, not {torch_version}"
    return ""


def stand_in(properties: GpuProperties) -> None:
    """Make this process see a CUDA device of these properties, before it imports torch."""
    library = load_hooks()
    from bexplore.trace.absent_gpu import device  # it imports torch, which reads the hooks only then

    library.register_absent_device_guard()
    device.install(properties)


def load_hooks() -> ctypes.CDLL:
    """Load the hooks that report a CUDA device; PyTorch reads them while it is imported.

    `register_absent_device_guard` of the library is to be called once PyTorch is imported.
    """
    if "torch" in sys.modules:
        raise TraceError("A CUDA device that is absent can be stood in for only before torch is imported.")
    torch_folder = _find_torch_folder()
    library = _build_once(torch_folder)
    for name in _LIBRARIES:
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


def _find_torch_folder() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise TraceError("torch is not installed here.", hint="pip install torch")
    return Path(spec.origin).parent


def _build_once(torch_folder: Path) -> Path:
    digest = hashlib.sha256(_SOURCE.read_bytes() + version("torch").encode() + bytes(torch_folder)).hexdigest()[:16]
    library = cache_folder("absent_gpu") / f"guard-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as build_folder:
            built = Path(build_folder, library.name)
            _build(torch_folder, built)
            built.replace(library)  # at once, so that another process never loads half of it
    return library


def _build(torch_folder: Path, library: Path) -> None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    compiler = next((path for path in map(shutil.which, names) if path), None)
    if compiler is None:
        raise TraceError(f"None of {', '.join(names)} is on PATH to build the guard of an absent device.")
    flags = ["-shared", "-fPIC", "-std=c++20", "-O0", "-w", f"-I{torch_folder / 'include'}"]
    links = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
    command = [compiler, *flags, str(_SOURCE), "-o", str(library), *links]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    if done.returncode:
        first_error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise TraceError(f"{compiler} cannot build the guard of an absent device: {first_error}")
