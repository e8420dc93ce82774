"""Explorations of a command on an emulated device: speeds are those of the kernels that a step was seen to run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bexplore import api
from bexplore.command.runner import CommandSettings
from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.estimate.dispatch import Dispatch, host_seconds
from bexplore.estimate.kernels import MatrixProduct, Stream
from bexplore.estimate.model import estimate_sum
from bexplore.exploration import command as command_module
from bexplore.exploration.base import ExploreOptions
from bexplore.exploration.emulated_speeds import EmulatedSpeeds, Work
from bexplore.exploration.recorded import read_work
from bexplore.host.accelerators import DEVICES
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.output.summary import summary_text
from bexplore.run.events import Finished, JobEvent, Recommended

H100 = DEVICES["h100"]
TOKENS, WIDTH, UPDATE_BYTES = 256, 4096, 10**9
LARGEST = 40


def product(micro_batch_size: int) -> MatrixProduct:
    return MatrixProduct(rows=TOKENS * micro_batch_size, columns=WIDTH, inner=WIDTH)


class Recorder:
    """Stands for `CommandRunner`: two passes a step of one product each, and an update; more than 40 do not fit."""

    itemsize = 2

    def __init__(self, command: Command, settings: CommandSettings) -> None:
        self.settings, self.num_replicas = settings, 1
        self.device_info = {"is_emulated": True, "device": "cuda:0", "device_name": H100.name}
        self.unconfirmed_size = self.size_to_confirm = None
        self.recorded_kernels: Sequence[Mapping[str, Any]] = ()

    def __call__(self, probe: Probe) -> Observation:
        size = probe.micro_batch_size
        if size > LARGEST:
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY, reason="out of memory", elapsed_s=6.0)
        calls = [{"size": size}, {"bytes": UPDATE_BYTES}]
        hosts = {"pass_dispatches": {"operator": 4}, "update_dispatches": {"operator": 1}}
        slow = {"calls": calls, "passes": [[0, 4]], "updates": [[1, 1]], "num_passes": 2, **hosts}
        self.recorded_kernels = [{**slow, "passes": [[0, 2]]}, slow]  # the second rank has twice the work
        details = {"num_replicas": 1, "step_time_s": 9.0, "micro_batches_per_step": 2.0, "passes_per_step": 2.0}
        return Observation(
            probe=probe,
            outcome=Outcome.MEASURED,
            pass_times_s=(9.0,) * 4,
            peak_memory_bytes=size * 2**30,
            start_time_s=5.0,
            elapsed_s=6.0,
            details=details,
        )

    run = None

    def learn(self, observation: Observation) -> None: ...

    def by_hand(self, micro_batch_size: int) -> str:
        return ""

    def close(self) -> None: ...


class Finder:
    """Stands for `KernelFinder`, whose worker has torch."""

    itemsize = 2

    def __init__(self, *args: object, **options: object) -> None: ...

    def __call__(self, calls: Sequence[Mapping[str, Any]]) -> list[list[MatrixProduct | Stream]]:
        return [
            [dataclasses.replace(product(call["size"]), itemsize=self.itemsize)]
            if "size" in call
            else [Stream(num_bytes=call["bytes"])]
            for call in calls
        ]

    def close(self) -> None: ...


@pytest.fixture
def explore(monkeypatch, tmp_path):
    """Explore a command on an emulated H100; returns the events."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_module, "CommandRunner", Recorder)
    monkeypatch.setattr(command_module, "KernelFinder", Finder)
    monkeypatch.setattr(api, "build_environment", lambda *_: {})
    Path("job.yaml").write_text("micro_batch_size: explore\n")
    words = {True: ["--acc", "{accumulation}"], False: []}

    def run(*overrides: str, sets_accumulation: bool = True) -> list[JobEvent]:
        command = json.dumps(["train", "{config}", "--out", "{output_dir}", *words[sets_accumulation]])
        overrides = (f"explore.command={command}", "explore.device_name=h100", "explore.max=64", *overrides)
        return list(api.explore(load_config(Path("job.yaml"), overrides=overrides), ExploreOptions(model_dir="run")))

    return run


def seconds_of(calls: Mapping[Any, float]) -> float:
    found = estimate_sum(H100, calls)
    assert found is not None
    return found.seconds


def test_a_command_is_recommended_by_the_estimated_seconds_of_its_slowest_rank(explore):
    events = explore()
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    size = result.micro_batch_size

    assert any(isinstance(event, Recommended) for event in events)
    assert result.is_estimated and not result.is_emulated and size <= LARGEST
    assert result.answer.pass_time_s == pytest.approx(seconds_of({product(size): 2.0}), rel=0.01)
    assert result.answer.update_time_s == pytest.approx(seconds_of({Stream(num_bytes=UPDATE_BYTES): 1.0}), rel=0.01)
    assert result.memory.peak_memory_bytes == size * 2**30
    assert result.smallest_out_of_memory > LARGEST
    text = summary_text(result, tolerance=0.02, target_confidence=90)
    assert f"It is estimated for {H100.name}, not run." in text.splitlines()[0]
    assert 0 < result.answer.confidence < 99


def test_where_the_command_fixes_its_accumulation_a_pass_has_its_share_of_the_update(explore):
    result = explore(sets_accumulation=False)[-1].result

    calls = {product(result.micro_batch_size): 2.0, Stream(num_bytes=UPDATE_BYTES): 0.5}
    assert result.answer.pass_time_s == pytest.approx(seconds_of(calls), rel=0.01)
    assert result.estimate.has_update
    text = " ".join(summary_text(result, tolerance=0.02, target_confidence=90).split())
    assert "updates included, loading of data not" in text
    several = dataclasses.replace(result, batch=dataclasses.replace(result.batch, num_replicas=2))
    assert "loading of data and what replicas exchange not" in " ".join(summary_text(several, tolerance=0.02).split())
    assert "training Gradients of two micro-batch sizes were not compared" in text


def test_a_resumed_exploration_has_the_estimates_of_the_one_before(explore):
    first = explore("explore.max_probes=2")[-1].result

    again = explore("explore.max_probes=2")[-1].result

    assert again.answer.samples_per_s == first.answer.samples_per_s


@pytest.mark.parametrize("why", ["explore.emulate=true", "no figures of its arithmetic"])
def test_without_an_estimate_the_answer_is_the_largest_size_and_has_no_speed(explore, monkeypatch, why):
    if "=" not in why:
        monkeypatch.setattr(Finder, "itemsize", 8)  # of float64, whose peak the table of devices lacks
    events = explore(*([why] if "=" in why else []))

    result = events[-1].result
    assert not any(isinstance(event, Recommended) for event in events)
    assert result.is_emulated and not result.is_estimated and result.answer.samples_per_s is None


def test_errors_are_drawn_of_sizes_between_those_that_ran_and_of_no_others():
    speeds = EmulatedSpeeds(H100, lambda ran: [Work(passes={product(ran.micro_batch_size): 1.0})])
    for number, size in enumerate((2, 32)):
        recorder = Recorder(Command(argv=("train",)), CommandSettings(run_dir=Path()))
        speeds.wrap(recorder, lambda: True)(Probe(number=number, micro_batch_size=size))

    draws = speeds.draw_errors(range(1, 65), seed=0)

    assert [size for size in range(1, 65) if draws.has(size)] == list(range(2, 33))


def test_a_pass_and_an_update_have_the_calls_that_the_host_was_seen_to_make():
    recorder = Recorder(Command(argv=("train", "{micro_batch_size}")), settings=None)
    ran = recorder(Probe(number=0, micro_batch_size=4))

    def read(*, ranks_whole_steps: bool) -> Work:
        return read_work(ran, recorder.recorded_kernels, Finder(), ranks_whole_steps=ranks_whole_steps)[-1]

    each_s = host_seconds({Dispatch.OPERATOR: 1})  # of four in two passes, and one in the update
    apart, whole = read(ranks_whole_steps=False), read(ranks_whole_steps=True)
    assert (apart.host_s, apart.update_host_s) == pytest.approx((2 * each_s, each_s))
    assert (whole.host_s, whole.update_host_s) == pytest.approx((2.5 * each_s, 0.0))
    slow = dataclasses.replace(apart, host_s=1.0)
    assert EmulatedSpeeds(H100, lambda _: [slow]).estimate(ran).pass_time_s == pytest.approx(1.0, rel=0.01)
