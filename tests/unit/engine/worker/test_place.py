"""The place that a launcher gives to a process."""

from __future__ import annotations

import pytest

from bexplore.engine.worker.place import ALONE, placed


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 1, 8)),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}, (3, 1, 8)),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
            (3, 1, 8),
        ),
        ({"RANK": "3"}, ALONE),
        ({}, ALONE),
    ],
)
def test_each_launcher_gives_a_rank_by_its_own_variables(environment, place):
    assert placed(environment) == place


def test_torchrun_inside_of_slurm_goes_before_slurm():
    both = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    assert placed(both | {"SLURM_NTASKS": "2"}) == (5, 1, 8)
