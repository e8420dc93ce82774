"""Builders of what the guard compares."""

from __future__ import annotations

from pathlib import Path

from bexplore.guard import Baseline, Finding, Report, Status, Tier
from bexplore.guard.baseline import SizeTimes
from bexplore.trace.program_metrics import Item, ProgramMetrics
from tests.builders import DEVICE, JOBS

CONFIG = f"""\
train_input:
  batch_size: 24
  micro_batch_size: 4
explore:
  device: {DEVICE}
  memory_budget: 512MiB
  workload:
    model: programs:{{model}}
    batch: programs:samples
    loss: programs:cross_entropy
"""


def facts(**changes) -> ProgramMetrics:
    values = {
        "traced_device": "cpu",
        "num_parameters": 1000,
        "flops": (0, 5000, 0),
        "num_graphs": 1,
        "num_graph_breaks": 0,
        "num_eager_operators": 0,
        "num_fixed_sizes": 0,
        "num_saved_activations": 2,
        "saved_activation_bytes": (8, 512, 0),
        "saved_activations": (Item(label="mul float32[b, 64]", where="model.py:7"), Item(label="input float32[b, 64]")),
        "largest_buffer_bytes": (0, 256, 0),
        "largest_buffers": (Item(label="mul float32[b, 64]", where="model.py:7"),),
        "operators": (Item(label="mul float32[b, 64]", count=2, where="model.py:7"),),
        "phases": {"forward": ((4000, 1000, 0),), "update": ((9000, 10, 0),)},
        "num_kernels": 2,
        "kernels": (Item(label="add+mul", where="model.py:7"), Item(label="mm", where="model.py:9")),
        "num_recompiles": 0,
    }
    return ProgramMetrics(**values | changes)


def baseline(**changes) -> Baseline:
    values = {
        "config": "job.yaml",
        "job": {"model": {"hidden_size": 64}},
        "job_fingerprint": "0123456789abcdef",
        "toolchain": {"torch": "2.13.0"},
        "machine": {"device": "cpu"},
        "any_device": facts(),
    }
    return Baseline(**values | changes)


def report_of(*statuses: Status, tier: Tier = Tier.ANY_MACHINE, **fields) -> Report:
    findings = tuple(Finding(name="f", title="fact", tier=tier, status=status, where="m.py:3") for status in statuses)
    return Report(config="job.yaml", reference="job.guard.json", findings=findings, **fields)


def worker(**pass_times_ms: float) -> tuple[SizeTimes, ...]:
    """`worker(s4=10.0, s8=15.0)`: one worker process with passes of these lengths."""
    return tuple(
        SizeTimes(micro_batch_size=int(name[1:]), pass_times_s=(ms / 1e3,) * 3, cpu_time_s=3 * ms / 1e3)
        for name, ms in pass_times_ms.items()
    )


def write_job(folder: Path, model: str) -> Path:
    (folder / "programs.py").write_text((JOBS / "programs.py").read_text())
    path = folder / "job.yaml"
    path.write_text(CONFIG.format(model=model))
    return path
