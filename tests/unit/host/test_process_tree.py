"""Which processes launch ranks; what needs processes of its own is in tests/engine/test_command_reaper.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bexplore.host import process_tree
from bexplore.host.process_tree import find_program


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["/opt/venv/bin/torchrun", "train.py"], "torchrun"),
        (["/opt/venv/bin/python3.11", "/opt/venv/bin/torchrun", "train.py"], "torchrun"),
        (["python", "-u", "-X", "dev", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run"),
        (["python", "train.py", "-m", "torch.distributed.run"], "train.py"),
        (["python", "-c", "code", "torchrun"], ""),
        (["bash", "-c", "torchrun train.py"], "bash"),
        (["srun", "-n", "2", "python", "train.py"], "srun"),
        ([], ""),
    ],
)
def test_a_program_is_that_of_the_command_line_or_of_its_python(words, program):
    assert find_program(words) == program


def test_the_process_tree_runs_on_the_oldest_python_of_a_training():
    ast.parse(Path(process_tree.__file__).read_text(), feature_version=(3, 8))
