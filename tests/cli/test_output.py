"""An output that cannot be written to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.promise("the disk of the output is full", "one message, and an exit code that is not 0")
def test_an_output_that_is_full_is_one_message(tmp_path):
    command = [sys.executable, "-m", "bexplore", "batch-sizes", "--micro-batch-size", "3"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("the disks of output and errors are full", "the exit code tells it")
def test_where_not_even_the_error_can_be_written_the_exit_code_tells_it(tmp_path):
    command = [sys.executable, "-m", "bexplore", "batch-sizes", "--micro-batch-size", "3"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=full, check=False)

    assert done.returncode == 4
