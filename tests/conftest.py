"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.engine.process.limits import StageLimits
from bexplore.engine.runner import EngineRunner, RunnerSettings
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


@pytest.fixture(scope="module")
def warm_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EngineRunner]]:
    """Makes engine runners that live as long as the module: equal jobs and settings share one, and its workers.

    For tests of what a probe measures, not of what is started or compiled for it. Only the latest one is kept.
    """
    latest: list[tuple[tuple[Job, dict], EngineRunner]] = []

    def close() -> None:
        for _, runner in latest:
            runner.close()
        latest.clear()

    def make(job: Job, **fields) -> EngineRunner:
        if not latest or latest[0][0] != (job, fields):
            close()
            run_dir = tmp_path_factory.mktemp("warm")
            settings = RunnerSettings(job=job, **{"run_dir": run_dir, "budget_bytes": 4 * 2**30} | fields)
            latest.append(((job, fields), EngineRunner(settings)))
        return latest[0][1]

    yield make
    close()


@pytest.fixture(scope="session", autouse=True)
def kept_bytecode() -> Iterator[None]:
    """The processes of the tests keep compiled modules as a user's do, whatever this process was told.

    A command or worker that compiles this package anew takes 0.15 s of processor time more, and there are hundreds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(autouse=True)
def own_device_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side do not wait for each other's device, and remember nothing of each other."""
    monkeypatch.setenv("BEXPLORE_LOCK_DIR", str(tmp_path))
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
