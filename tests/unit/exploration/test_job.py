"""What an exploration compiles ahead of its first probe, and what it says of its ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.engine.runner import RunnerSettings
from bexplore.exploration import job as module
from bexplore.exploration.base import ExploreOptions
from bexplore.exploration.job import JobExploration, TracedJob
from bexplore.exploration.memory_budget import MemoryBudget
from bexplore.job import TorchSettings
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.run.run_directory import Run
from bexplore.trace.cost_model import KernelKind, Polynomial, TracedKernel
from tests.builders import cost_model

GIB = 2**30
BUDGET = MemoryBudget(budget_bytes=64 * GIB, why="")
ONE_GIB_A_SAMPLE = cost_model(Polynomial(0, GIB), device="cuda")


def config(tmp_path: Path, device: str, compile_mode: str = "default") -> Config:
    path = tmp_path / "job.yaml"
    path.write_text(
        "train_input: {micro_batch_size: explore, batch_size: 8}\n"
        f"explore:\n  device: {device}\n  compile: {{mode: {compile_mode}}}\n  torch: {{cudnn_benchmark: true}}\n"
        "  workload: {model: programs:perceptron, batch: programs:samples, loss: programs:cross_entropy}\n"
    )
    return load_config(path)


@pytest.mark.parametrize(
    ("device", "compile_mode", "cost_model", "size"),
    [
        ("cuda:0", "default", ONE_GIB_A_SAMPLE, 7),  # between 1 and the 60 that fit by three standard deviations
        ("cuda:0", "default", dataclasses.replace(ONE_GIB_A_SAMPLE, relative_sd=1.0), 4),
        ("cuda:0", "default", None, 1),
        ("cuda:0", "reduce-overhead", ONE_GIB_A_SAMPLE, 1),  # each size has a worker of its own
        ("cpu", "default", ONE_GIB_A_SAMPLE, 1),
    ],
)
def test_kernels_that_are_tuned_at_their_first_launch_meet_a_middle_size(
    tmp_path, device, compile_mode, cost_model, size
):
    exploration = JobExploration(config(tmp_path, device, compile_mode), ExploreOptions())

    held = TracedJob(run=None, facts=FACTS, budget=BUDGET, cost_model=cost_model)
    assert exploration._probe_to_prepare(held).micro_batch_size == size
    assert exploration._first_probe(held).micro_batch_size == 1


@pytest.mark.parametrize(("cost_model", "size"), [(ONE_GIB_A_SAMPLE, 82), (None, None)])
def test_a_worker_is_told_the_largest_size_that_may_fit_with_a_margin(tmp_path, cost_model, size):
    exploration = JobExploration(config(tmp_path, "cuda:0"), ExploreOptions())

    held = TracedJob(run=None, facts=FACTS, budget=BUDGET, cost_model=cost_model)
    settings = exploration._runner_settings(held, tmp_path)

    assert settings.largest_size == size  # 64 GiB of 1 GiB a sample, a quarter more


def test_settings_of_torch_reach_the_job(tmp_path):
    assert config(tmp_path, "cpu").job.torch == TorchSettings(cudnn_benchmark=True)


FACTS = {"device": "cpu", "free_memory_bytes": None, "total_memory_bytes": None}


def replicated(tmp_path: Path, section: str, *, device: str = "cpu") -> JobExploration:
    """An exploration of a job on two replicas, with further settings."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "train_input: {micro_batch_size: explore, batch_size: 8}\n"
        "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}\n"
        f"runconfig: {{num_csx: 2}}\nexplore: {{device: {device}{section}}}\n"
    )
    return JobExploration(load_config(path), ExploreOptions(model_dir=str(tmp_path / "runs")))


@pytest.mark.parametrize(
    ("section", "begins"),
    [("", False), (", parallelism: {}", True), (", replica_reserve: 1GiB", True)],
)
def test_only_a_copy_of_the_gradients_that_is_kept_free_waits_for_the_trace(tmp_path, monkeypatch, section, begins):
    begun: list[RunnerSettings] = []
    monkeypatch.setattr(module, "begin", lambda workers, settings, probe: begun.append(settings))
    monkeypatch.setattr(module, "num_usable_processors", lambda: 2)
    run = Run(directory=tmp_path, log_path=tmp_path / "run.log")

    replicated(tmp_path, section)._begin(None, run, FACTS)

    assert bool(begun) is begins


def test_passes_are_ranked_for_the_batch_of_a_replica(tmp_path):
    held = TracedJob(run=None, facts=FACTS, budget=BUDGET)
    settings = replicated(tmp_path, ", parallelism: {}")._runner_settings(held, tmp_path)

    assert settings.replica_batch_size == 4


@pytest.mark.parametrize(
    ("section", "notices"),
    [
        ("", ()),
        (
            ", parallelism: {}",
            (
                "one rank of 2: the times hold no communication; with sharded parameters larger sizes can only gain "
                "from it, since what is gathered does not grow with the size",
            ),
        ),
        (
            ", parallelism: {}, launcher: torchrun",
            ("one rank alone shows what fits, then all 2 run, started by torchrun",),
        ),
    ],
)
def test_the_plan_says_which_ranks_will_run(tmp_path, section, notices):
    assert replicated(tmp_path, section)._plan(None, ()).notices == notices


@pytest.mark.parametrize(("emulates_alone", "outcome"), [("", "estimated"), (", emulate: true", "measured")])
def test_a_job_with_a_launcher_on_an_emulated_device_has_the_speed_of_its_trace(tmp_path, emulates_alone, outcome):
    own = replicated(
        tmp_path, ", parallelism: {}, launcher: torchrun, device_name: h100" + emulates_alone, device="auto"
    )
    product = TracedKernel(kind=KernelKind.PRODUCT, sizes=(Polynomial(0, 64), *[Polynomial(512)] * 2, Polynomial(1)))
    product = dataclasses.replace(product, itemsize=4)
    held = TracedJob(run=None, facts={"is_emulated": True}, budget=BUDGET, cost_model=cost_model(kernels=(product,)))
    probe = Probe(number=0, micro_batch_size=4)
    ranks = [{"rank": 0, "inner_pass_s": 9.0, "peak_memory_bytes": 1}]
    details = {"collations": {"8": [1.0]}, "parallel": {"pass_times_by_kind_s": [[9.0, 9.0]], "ranks": ranks}}
    times = {"pass_times_s": (9.0,) * 3, "update_times_s": (9.0,)}
    ran = Observation(probe=probe, outcome=Outcome.MEASURED, details=details, **times)

    found = own._open_speeds(held).wrap(lambda probe: ran, lambda: held.is_emulated)(probe)

    assert found.outcome == outcome and found.update_times_s == ()
    if outcome == "estimated":
        assert found.pass_time_s < 0.01 and "collations" not in found.details
        assert found.details["parallel"] == {"ranks": [{"rank": 0, "peak_memory_bytes": 1}]}
