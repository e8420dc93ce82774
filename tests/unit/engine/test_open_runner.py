"""Which workers of which variants live, and what a variant's probe becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bexplore.engine import open_runner
from bexplore.engine.open_runner import VariantsRunner
from bexplore.engine.runner import WORKER_OVERHEAD_BYTES, RunnerSettings
from bexplore.job import CompileSettings, Job
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe

GIB = 2**30


@dataclass
class FakeRunner:
    """Stands for `EngineRunner`: notes what it is told."""

    job: Job
    worker_pid: int | None = None
    said: list[object] = field(default_factory=list)

    @property
    def settings(self) -> RunnerSettings:
        return RunnerSettings(job=self.job, run_dir=Path("run"), budget_bytes=8 * GIB)

    def __call__(self, probe: Probe) -> Observation:
        self.said.append(probe)
        return Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=(1.0,), details={"worker_says": 1})

    def rest(self) -> None:
        self.said.append("rest")

    def close(self) -> None:
        self.said.append("close")


def runners_on(device: str, count: int = 3) -> list[FakeRunner]:
    return [FakeRunner(Job(workload="decoder", device=device)) for _ in range(count)]


def joint(runners: list[FakeRunner]) -> VariantsRunner:
    return VariantsRunner(runners, [{"activation_memory_budget": 1.0 / (1 + number)} for number in range(len(runners))])


def probe(variant: int, **fields) -> Probe:
    return Probe(number=3, micro_batch_size=4, variant=variant, predicted_peak_memory_bytes=2 * GIB, **fields)


@pytest.fixture
def memory(monkeypatch):
    """The available memory of the host, in bytes, which a test sets."""
    available = {"bytes": 100 * GIB}
    monkeypatch.setattr(open_runner, "available_memory_bytes", lambda: available["bytes"])
    monkeypatch.setattr(open_runner, "resident_bytes", lambda pid: GIB)
    return available


def test_a_probe_goes_to_its_variant_s_runner_and_has_its_settings(memory):
    runners = runners_on("cpu")
    asked = probe(2)

    observation = joint(runners)(asked)

    assert runners[2].said == [asked]
    assert runners[0].said == []
    assert observation.probe == asked
    assert observation.details == {"worker_says": 1, "settings": {"activation_memory_budget": 1 / 3}}


def test_a_variant_without_compiler_runs_eagerly(memory):
    eager = FakeRunner(Job(workload="decoder", compile=CompileSettings(enabled=False)))
    asked = probe(1, compilation=Compilation.EXACT)

    observation = joint([*runners_on("cpu", 1), eager])(asked)

    assert eager.said[0].compilation is Compilation.EAGER
    assert observation.probe.compilation is Compilation.EXACT


def test_on_a_cpu_workers_of_other_variants_live_on_within_memory(memory):
    runners = runners_on("cpu")
    runner = joint(runners)
    for variant in (0, 1, 2, 0):
        runner(probe(variant))

    assert [said for one in runners for said in one.said if isinstance(said, str)] == []


def test_on_a_cpu_workers_that_ran_longest_ago_end_first_for_memory(memory, monkeypatch):
    runners = runners_on("cpu")
    runner = joint(runners)
    for variant in (1, 0, 2):
        runner(probe(variant))
    memory["bytes"] = 2 * GIB + WORKER_OVERHEAD_BYTES - 1
    monkeypatch.setattr(runners[1], "close", lambda: memory.update(bytes=100 * GIB))

    runner(probe(2))

    assert memory["bytes"] == 100 * GIB  # that of variant 1, which ran first, ended
    assert "close" not in runners[0].said


def test_what_the_own_worker_holds_need_not_be_free(memory):
    runners = runners_on("cpu", 2)
    runner = joint(runners)
    runners[0].worker_pid = 7
    memory["bytes"] = GIB + WORKER_OVERHEAD_BYTES

    runner(probe(0))

    assert "close" not in runners[1].said


def test_on_an_accelerator_the_workers_of_other_variants_end_first(memory):
    runners = runners_on("cuda:0", 2)
    runner = joint(runners)
    runner(probe(0))
    runner(probe(1))

    assert runners[0].said == [probe(0), "rest"]


def test_after_the_search_a_variant_has_the_memory_of_the_others(memory):
    runners = runners_on("cuda:0")

    assert joint(runners).alone(1) is runners[1]
    assert [one.said for one in runners] == [["close"], [], ["close"]]


def test_all_workers_end_with_the_runner(memory):
    runners = runners_on("cpu")
    with joint(runners):
        pass
    assert [one.said for one in runners] == [["close"]] * 3
