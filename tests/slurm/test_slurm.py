"""The Slurm cluster of one node that the tests start."""

from __future__ import annotations

import os
import subprocess


def test_srun_starts_two_tasks_with_their_ranks_and_the_variables_of_its_caller(slurm):
    command = ["srun", "-n", "2", "bash", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS, $MARK"]
    env = os.environ | slurm | {"MARK": "carried"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == ["0 of 2, carried", "1 of 2, carried"]
