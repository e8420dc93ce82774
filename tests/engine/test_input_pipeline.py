"""A real data loader is timed apart from the step, and named where it is what holds the job back."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.engine import runner as engine_runner
from tests.builders import imported_job


def job(loader: str, **arguments):
    made = imported_job()
    return dataclasses.replace(made, model=made.model | {"loader": f"loaders:{loader}", "arguments": arguments})


@pytest.mark.parametrize(
    ("loader", "problem"), [("broken", "shard_007.tar"), ("hangs", "stage 'loader'"), ("too_small", "gave no batch")]
)
def test_a_loader_that_fails_or_hangs_costs_its_figure_and_nothing_else(run_on, monkeypatch, loader, problem):
    monkeypatch.setattr(engine_runner, "LOADER_LIMIT_S", 12.0)

    assert problem in run_on(job(loader)).time_loader(4)["problem"]
