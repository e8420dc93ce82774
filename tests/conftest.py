"""Builders with defaults, shared by the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.engine import EngineRunner
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Observation, Outcome, Probe

JOBS = Path(__file__).parent / "jobs"


def imported_job(
    model: str = "perceptron",
    *,
    batch: str = "samples",
    loss: str = "cross_entropy",
    backend: str = "aot_eager_decomp_partition",
    **fields,
) -> Job:
    """A job of `tests/jobs/programs.py`; its backend decomposes and partitions as Inductor does but builds nothing."""
    paths = {"model": f"programs:{model}", "batch": f"programs:{batch}", "loss": f"programs:{loss}"}
    compile_settings = fields.pop("compile", CompileSettings(backend=backend))
    return Job(workload="imported", model=paths, import_root=str(JOBS), compile=compile_settings, **fields)


def step_job(step: str, **fields) -> Job:
    """A job of a whole step of `tests/jobs/programs.py`."""
    compile_settings = fields.pop("compile", CompileSettings(backend="aot_eager"))
    model = {"step": f"programs:{step}"} | fields.pop("model", {})
    return Job(workload="imported", model=model, import_root=str(JOBS), compile=compile_settings, **fields)


def observed(micro_batch_size: int = 1, *, number: int = 0, **fields) -> Observation:
    """A measured observation with sensible times."""
    facts = {"outcome": Outcome.MEASURED, "pass_times_s": (0.1, 0.1, 0.1)} | fields
    return Observation(probe=Probe(number=number, micro_batch_size=micro_batch_size), **facts)


@pytest.fixture
def run_on(tmp_path: Path) -> Iterator[Callable[..., EngineRunner]]:
    """Makes engine runners that are closed when the test ends."""
    runners: list[EngineRunner] = []

    def make(job: Job, *, budget_bytes: int | None = 4 * 2**30, **options) -> EngineRunner:
        runners.append(EngineRunner(job, run_dir=tmp_path / "run", budget_bytes=budget_bytes, **options))
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
