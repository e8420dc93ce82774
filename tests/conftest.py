"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.engine import EngineRunner, RunnerSettings
from bexplore.engine.process.timeouts import StageLimits
from bexplore.job import Job


@pytest.fixture
def run_on(tmp_path: Path) -> Iterator[Callable[..., EngineRunner]]:
    """Makes engine runners that are closed when the test ends."""
    runners: list[EngineRunner] = []

    def make(job: Job, *, limits: StageLimits | None = None, on_progress=lambda message: None, **fields):
        settings = RunnerSettings(job=job, **{"run_dir": tmp_path / "run", "budget_bytes": 4 * 2**30} | fields)
        runners.append(EngineRunner(settings, limits=limits, on_progress=on_progress))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()


@pytest.fixture(autouse=True)
def own_device_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side do not wait for each other's device, and remember nothing of each other."""
    monkeypatch.setenv("BEXPLORE_LOCK_DIR", str(tmp_path))
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
