"""Run tests with their jobs on emulated devices: `python -m tests.emulated_gpu.on_device [PYTEST ARGUMENTS]`.

The tests themselves, the workers and the commands that they start all have the CUDA build of PyTorch in
$BEXPLORE_CUDA_TORCH; `tests.builders.DEVICE` names the device of their jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from bexplore.emulated_gpu import emulated_environment
from bexplore.host.accelerators import DEVICES

ROOT = Path(__file__).parents[2]
VARIABLE = "BEXPLORE_CUDA_TORCH"  # a folder with `torch/` and `triton/`
NUM_DEVICES = 2  # as many as the jobs of several ranks need


def environment(cuda_folder: Path, emulated: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that shall see emulated devices under the CUDA build of a folder."""
    folders = (cuda_folder, ROOT, Path(sysconfig.get_path("purelib")))
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **emulated, **own}


def main() -> int:
    """Run pytest; returns its exit status."""
    folder = Path(os.environ[VARIABLE]).absolute()
    emulated = emulated_environment(DEVICES["h100"], num_devices=NUM_DEVICES, torch_folder=folder / "torch")
    own = environment(folder, emulated) | {"BEXPLORE_TEST_DEVICE": "cuda:0"}
    return subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], env=own, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
