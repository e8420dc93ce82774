"""Explorations on an emulated device: the answer is the largest size that fits, and nothing tells of time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bexplore.api import explore
from bexplore.command.runner import CommandSettings
from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.emulated_gpu.config_environment import num_devices
from bexplore.errors import UserInputError
from bexplore.exploration import command as command_module
from bexplore.exploration.base import ExploreOptions
from bexplore.exploration.emulated import parse_device_name
from bexplore.host.accelerators import DEVICES
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.output.summary import summary_text
from bexplore.run.event_records import event_record
from bexplore.run.events import Finished, JobEvent, Recommended

MIB = 2**20
FIXED_BYTES, SAMPLE_BYTES = 500 * MIB, 37 * MIB


class EmulatedMachine:
    """Stands for `CommandRunner` on an emulated device: times are random, and memory grows with the size."""

    capacity_bytes = 0

    def __init__(self, command: Command, settings: CommandSettings) -> None:
        self.settings, self.num_replicas = settings, command.num_replicas
        self.device_info = {"is_emulated": True, "device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3"}
        self.unconfirmed_size = self.size_to_confirm = None
        self.recorded_kernels = ()
        self._random = random.Random(1)

    def __call__(self, probe: Probe) -> Observation:
        peak = FIXED_BYTES + probe.micro_batch_size * SAMPLE_BYTES
        if peak > self.capacity_bytes:
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY, reason="CUDA out of memory", elapsed_s=6.0)
        return Observation(
            probe=probe,
            outcome=Outcome.MEASURED,
            pass_times_s=tuple(self._random.uniform(0.001, 10.0) for _ in range(5)),
            update_times_s=(3.0,),
            peak_memory_bytes=peak,
            resident_memory_bytes=peak + 100 * MIB,
            memory_budget_bytes=self.capacity_bytes,
            start_time_s=5.0,
            elapsed_s=6.0,
            loss=0.0,
            warnings=("the times are noisier",),
            details={"num_replicas": 1, "step_time_s": 4.0, "micro_batches_per_step": 1.0},
        )

    run = None  # a real step is not started: its seconds would mean nothing

    def learn(self, observation: Observation) -> None: ...

    def by_hand(self, micro_batch_size: int) -> str:
        return ""

    def close(self) -> None: ...


TELLS_OF_SPEED = (
    "_s",
    "speeds",
    "score",
    "confidence",
    "performance",
    "interval",
    "_gain",
    "_saves",
    "over_recommended",
)
TELLS_OF_SPEED += ("regret_bound_90", "over_file", "band", "over_shared", "within_tolerance", "eager")


def _flat(record: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each field, those within others too."""
    if isinstance(record, Mapping):
        for key, value in record.items():
            yield from _flat(value, key)
    elif isinstance(record, list | tuple) and record:
        for value in record:
            yield from _flat(value, name)
    else:
        yield name, record


@pytest.fixture
def events_of(monkeypatch, tmp_path):
    """Return a function that explores a command on an emulated device of a capacity."""
    monkeypatch.chdir(tmp_path)

    def events(capacity_bytes: int, *overrides: str) -> list[JobEvent]:
        monkeypatch.setattr(
            command_module, "CommandRunner", type("Machine", (EmulatedMachine,), {"capacity_bytes": capacity_bytes})
        )
        Path("job.yaml").write_text("micro_batch_size: explore\ngradient_accumulation_steps: 8\n")
        command = json.dumps(["train", "{config}", "--out", "{output_dir}"])
        config = load_config(Path("job.yaml"), overrides=[f"explore.command={command}", *overrides])
        return list(explore(config, ExploreOptions(model_dir="run")))

    return events


@pytest.mark.parametrize("gib", [1, 2, 3, 5, 8, 12, 16, 24, 40, 48, 80, 141])
def test_the_answer_is_the_largest_size_that_fits_whatever_the_clock_says(events_of, gib):
    largest = (gib * 1024 * MIB - FIXED_BYTES) // SAMPLE_BYTES

    result = events_of(gib * 1024 * MIB)[-1].result

    assert 0.97 * largest <= result.micro_batch_size <= largest
    assert result.smallest_out_of_memory > largest


def test_no_event_and_no_field_of_the_result_tells_of_speed_or_of_a_score(events_of):
    events = events_of(8 * 2**30)

    assert not any(isinstance(event, Recommended) for event in events)
    records = [record for event in events if (record := event_record(event))]
    for record in records:
        if record["event"] == "probe":
            assert record["pass_times_s"] == [] and record["samples_per_s"] is None and record["loss"] is None
    (finished,) = [event for event in events if isinstance(event, Finished)]
    record = finished.result.as_record()
    told = {name for name, value in _flat(record) if value not in (None, []) and name.endswith(TELLS_OF_SPEED)}
    assert told == {"elapsed_s"}


def test_the_summary_says_what_fits_and_that_no_speed_is_known(events_of):
    result = events_of(8 * 2**30)[-1].result

    text = summary_text(result, tolerance=0.03, target_confidence=90)

    first = text.splitlines()[0]
    assert first.startswith(f"micro_batch_size {result.micro_batch_size} is the largest size that ran on NVIDIA H100")
    assert f"size {result.smallest_out_of_memory} is out of memory" in first and "no speed is known" in first
    assert not any(word in text for word in ("samples/s", "confidence", "out of 100", "x the speed", "step time"))
    assert f"  warning          {result.warnings[0]}" in text and "is emulated" in result.warnings[0]


# What is typed -> the number of devices, and the key of the device.
NAMES = {
    "h100": (None, "h100"),
    "8xh100": (8, "h100"),
    "8 x H100": (8, "h100"),
    "2×RTX 4090": (2, "rtx-4090"),
    " 4x A100-SXM4-40GB ": (4, "a100-40gb"),
    "NVIDIA H100 80GB HBM3": (None, "h100"),
}


@pytest.mark.parametrize("typed", NAMES)
def test_a_name_may_begin_with_the_number_of_devices(typed):
    number, key = NAMES[typed]
    assert parse_device_name(typed) == (number, DEVICES[key])


# What cannot be emulated -> what is said of it.
REFUSED = {
    "0xh100": 'device_name: "0xh100" is no device',
    "mi300x": "cannot be emulated: it is no CUDA device",
    "8xbanana": 'a device "banana"',
    "x": 'a device "x"',
    "h100, a100": 'device_name: "h100, a100" are several devices',
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_cannot_be_emulated_is_refused_before_there_is_a_run(events_of, typed):
    with pytest.raises(UserInputError, match=REFUSED[typed]):
        events_of(2**30, f"explore.device_name={json.dumps(typed)}")
    assert list(Path().rglob("run_*")) == []


def test_another_device_beside_an_emulated_one_is_refused(events_of):
    with pytest.raises(UserInputError, match=r"explore\.device is cpu, and explore.device_name names a CUDA device"):
        events_of(2**30, "explore.device_name=h100", "explore.device=cpu")


# The words of a command -> the devices that its processes on one host take.
COMMANDS = {
    ("python", "train.py"): 1,
    ("torchrun", "--nproc-per-node", "4", "train.py"): 4,
    ("torchrun", "--nproc_per_node=8", "train.py"): 8,
    ("torchrun", "--nproc-per-node", "auto", "train.py"): 1,
    ("accelerate", "launch", "--num_processes", "2", "train.py"): 2,
    ("deepspeed", "--num_gpus=8", "train.py"): 8,
    ("mpirun", "-np", "3", "python", "train.py"): 3,
    ("mpirun", "-n", "2", "python", "train.py"): 2,
    ("python", "train.py", "--n", "16"): 1,
    ("python", "train.py", "-n", "16"): 1,
    ("python", "train.py", "--num_processes", "100"): 1,
    ("torchrun", "train.py", "--num_processes", "4"): 1,
    ("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"): 2,
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_has_as_many_devices_as_its_launcher_starts_processes(tmp_path, words):
    command = json.dumps([*words, "--size", "{micro_batch_size}", "--out", "{output_dir}"])
    path = tmp_path / "job.yaml"
    path.write_text(f"explore: {{command: {command}}}\n")
    assert num_devices(load_config(path)) == COMMANDS[words]
