"""Trainings of frameworks on emulated devices, unmodified, explored as commands from end to end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.builders import ROOT

LIMIT_S = 240.0  # for an exploration while both processors are busy
TRAININGS = (
    "autocast, pinned memory, 2 workers",
    "torch.compile, reduce-overhead",
    "HF Trainer, LLaMA",  # of which some sizes do not fit
    "Lightning",
    "FSDP2",
)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_explored_with_its_size_verified_and_leaves_nothing(name, cuda_folder, kept_cache):
    command = [sys.executable, "-m", "benchmarks.emulated_trainings", "--shortened", name, "--environment", sys.prefix]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "BEXPLORE_CUDA_TORCH": str(cuda_folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
