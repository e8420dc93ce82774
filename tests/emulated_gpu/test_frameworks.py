"""Trainings of frameworks on emulated devices, unmodified, explored as commands from end to end."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.emulated_trainings import TRAININGS, explored
from bexplore.host.accelerators import DEVICES

# Of the benchmark's trainings: what differs from the benchmark, beside two probes of sizes up to 16.
SELECTED: dict[str, dict[str, Any]] = {
    "autocast, pinned memory, 2 workers": {},
    "torch.compile, reduce-overhead": {},
    "HF Trainer, LLaMA": {"memory_gib": 6, "sizes": (64, 4)},
    "Lightning": {},
    "FSDP2": {"runs_out": False},
}


@pytest.mark.parametrize("name", SELECTED)
def test_a_training_is_explored_with_its_size_verified_and_leaves_nothing(name, cuda_folder, kept_cache):
    (training,) = [one for one in TRAININGS if one.name == name]
    if any(importlib.util.find_spec(package) is None for package in training.packages):
        pytest.skip(f"needs {', '.join(training.packages)}")
    command = training.command.replace("torchrun", "python -m torch.distributed.run")
    training = dataclasses.replace(training, command=command, **{"sizes": (16, 2), **SELECTED[name]})

    row = explored(training, cuda_folder, Path(sys.prefix), DEVICES["h100"])

    assert row["right"], json.dumps(row)
