"""Trainings of frameworks on emulated devices, unmodified, explored as commands from end to end."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks.emulated_trainings import TRAININGS, explored
from bexplore.host.accelerators import DEVICES

# Of the benchmark's trainings: the largest size, and the number of probes.
SELECTED = {
    "autocast, pinned memory, 2 workers": (16, 2),
    "torch.compile, reduce-overhead": (16, 2),
    "HF Trainer, LLaMA": (96, 2),  # of which the larger does not fit
    "Lightning": (16, 2),
    "FSDP2": (16, 2),
}


@pytest.mark.parametrize("name", SELECTED)
def test_a_training_is_explored_with_its_size_verified_and_leaves_nothing(name, cuda_folder, kept_cache):
    (training,) = [one for one in TRAININGS if one.name == name]
    if any(importlib.util.find_spec(package) is None for package in training.packages):
        pytest.skip(f"needs {', '.join(training.packages)}")
    command = training.command.replace("torchrun", "python -m torch.distributed.run")
    runs_out = training.runs_out and name != "FSDP2"
    training = dataclasses.replace(training, command=command, sizes=SELECTED[name], runs_out=runs_out)

    row = explored(training, cuda_folder, Path(sys.prefix), DEVICES["h100"])

    assert row["right"], row
