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
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from bexplore.errors import TraceError
from bexplore.host.json_files import cache_folder
from bexplore.host.torch_interfaces import ABSENT_GPU_VERSIONS
from bexplore.trace.gpu_properties import GpuProperties

_SOURCE = Path(__file__).with_name("guard.cpp")
_COMPILERS = ("g++", "clang++", "c++")
_LIBRARIES = ("libc10.so", "libtorch_cpu.so")  # in the order in which they need each other
BUILD_LIMIT_S = 120.0


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

    Returns:
        The library, whose `register_absent_device_guard` is to be called once PyTorch is imported.
    """
    if "torch" in sys.modules:
        raise TraceError("A CUDA device that is absent can be stood in for only before torch is imported.")
    torch_folder = _torch_folder()
    library = _build_once(torch_folder)
    for name in _LIBRARIES:
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


def _torch_folder() -> Path:
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
