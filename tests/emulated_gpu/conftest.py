"""Programs in an emulated device's environment, under the CUDA build of PyTorch in $BEXPLORE_CUDA_TORCH."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bexplore.emulated_gpu import Faults, emulated_environment
from bexplore.host.accelerators import DEVICES
from tests.emulated_gpu import on_device
from tests.emulated_gpu.on_device import VARIABLE

LIMIT_S = 600.0  # for a program that compiles while both processors are busy
# While Python ends, autograd's thread for a device may take its lock for the first time: that ends the process by a
# signal, which is PyTorch's own matter.
END = """
if __name__ == "__main__":
    import os, sys
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="session")
def cuda_folder() -> Path:
    """The folder with `torch/` and `triton/`."""
    folder = os.environ.get(VARIABLE)
    if not folder or not Path(folder, "torch", "version.py").is_file():
        pytest.skip(f"{VARIABLE} names no folder with the CUDA build of torch, and triton: make test-gpu fetches them")
    return Path(folder)


@pytest.fixture
def kept_cache(tmp_path_factory, monkeypatch) -> None:
    """One cache for all tests of a process, so that the libraries are built once."""
    folder = tmp_path_factory.getbasetemp() / "kept-cache"
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(folder))


@pytest.fixture
def emulate(cuda_folder, kept_cache, tmp_path):
    """Run a program on emulated devices; returns what it prints, by line."""

    def run(
        program: str,
        *,
        device: str = "h100",
        launcher: tuple[str, ...] = (),
        status: int = 0,
        environment: dict[str, str] | None = None,
        faults: Faults | None = None,
        **settings: int,
    ) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program) + END)
        emulated = emulated_environment(DEVICES[device], torch_folder=cuda_folder / "torch", faults=faults, **settings)
        result = subprocess.run(
            [sys.executable, *launcher, str(path)],
            env=on_device.environment(cuda_folder, emulated) | (environment or {}),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        return result.stdout.splitlines()

    return run


@pytest.fixture
def bexplore(cuda_folder, kept_cache, tmp_path, monkeypatch):
    """Run the command line in a folder of its own, under the CUDA build and without any device; returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, status: int = 0) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "bexplore", *words],
            env=on_device.environment(cuda_folder, {}),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        return result.stdout + (result.stderr if status else "")

    return run
