"""A user's program, as type checkers read it; each `assert_type` and each expected error is checked by both."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import bexplore


def best_size(path: Path) -> int | None:
    best: int | None = None
    for event in bexplore.explore(path, bexplore.ExploreOptions(fresh=True, model_dir="sizes")):
        if isinstance(event, bexplore.Recommended):
            best = assert_type(event.recommendation.micro_batch_size, int)
            assert_type(event.recommendation.confidence, int)
            assert_type(event.recommendation.relative_performance, float)
        elif isinstance(event, bexplore.ProbeFinished):
            assert_type(event.observation.probe.micro_batch_size, int)
            assert_type(event.observation.reason, str)
        elif isinstance(event, bexplore.ProbeStarted):
            assert_type(event.probe.micro_batch_size, int)
        elif isinstance(event, bexplore.Planned):
            assert_type(event.max_probes, int)
        elif isinstance(event, bexplore.Traced):
            assert_type(event.warnings, tuple[str, ...])
        elif isinstance(event, bexplore.Finished):
            best = assert_type(event.result.micro_batch_size, int | None)
        else:
            assert_type(event, bexplore.AlreadyFinished)
    return best


def loaded(path: Path) -> bexplore.Config:
    try:
        return bexplore.load_config(path, overrides=("explore.seed=3",), allow_code=False)
    except bexplore.BexploreError as error:
        raise SystemExit(assert_type(error.hint, str)) from error


def days(path: Path) -> float | None:
    request = bexplore.PlanRequest(work=bexplore.Work(samples=1e6), until_s=3600.0)
    return bexplore.plan(path, request).plans[0].training_time_s


@bexplore.find_fastest_batch_size(max=512, writes_are_fine=True)
def train(batch_size: int, epochs: int, output_dir: str = "out") -> float:
    return batch_size * epochs / len(output_dir)


@bexplore.find_fastest_batch_size
def fine_tune(batch_size: int, *, output_dir: str) -> str:
    return output_dir


assert_type(train(3, output_dir="here"), float)
assert_type(fine_tune(output_dir="here"), str)
assert_type(bexplore.__version__, str)

train("three")  # error
fine_tune()  # error
bexplore.explore(3)  # error
bexplore.exlpore("job.yaml")  # error


@bexplore.find_fastest_batch_size  # error
def without_a_size(name: str) -> None: ...
