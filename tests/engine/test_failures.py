"""A compiler that fails, in a worker."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import imported_job


def job(model: str, backend: str):
    made = imported_job(compile=CompileSettings(backend=backend))
    return dataclasses.replace(made, model=made.model | {"model": f"bugs:{model}"})


def probe(size: int = 4, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=size, max_passes=2, **fields)


@pytest.fixture
def calls(tmp_path, monkeypatch):
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_a_compiler_that_breaks_the_device_is_blamed_and_left_for_the_next(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "1")

    observation = run_on(job("on_a_device", "breaks_the_device"))(probe())

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert calls.stat().st_size > 1


def test_a_program_that_only_its_compilation_breaks_is_not_the_users_bug(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "100")

    observation = run_on(job("on_a_device", "breaks_the_device"))(probe(compilation=Compilation.EXACT))

    assert observation.outcome is Outcome.COMPILE_FAILED
    assert "illegal memory access" in observation.reason and "in a new process" in observation.reason


def test_a_program_that_breaks_the_device_eagerly_too_is_the_users_bug(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "100")
    monkeypatch.setenv("BROKEN", "1")

    observation = run_on(job("on_a_device", "breaks_the_device"))(probe())

    assert observation.outcome is Outcome.CRASHED
    assert "bugs.py" in observation.reason


def test_a_compiler_that_lacks_memory_is_tried_in_another_mode_first(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "1")

    observation = run_on(job("on_a_device", "lacks_memory"))(probe())

    assert observation.outcome is Outcome.MEASURED, observation.reason


def test_a_compiler_that_lacks_memory_in_every_mode_makes_the_size_too_big(run_on, monkeypatch, calls):
    monkeypatch.setenv("TIMES", "100")
    runner = run_on(job("on_a_device", "lacks_memory"))

    observation = runner(probe(size=8))
    num_calls = calls.stat().st_size
    monkeypatch.setenv("TIMES", "0")
    after = runner(probe(size=4))

    assert observation.outcome is Outcome.OUT_OF_MEMORY, observation.reason
    assert num_calls == 3  # unbacked, dynamic, static: this model has no blocks to nest
    assert after.is_measured and after.details["shared_mode"] == "unbacked"
