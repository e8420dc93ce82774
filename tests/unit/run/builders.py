"""Builders of a whole run in its folder, for the tests of what reads one."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

from bexplore.host.records import to_record
from bexplore.job import Job, Precision
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run import run_directory
from bexplore.run.result import AT_TOP, RunResult
from bexplore.run.run_directory import Run
from bexplore.trace.cost_model import Buffer, CostModel, Peak, Phase, Polynomial
from tests.builders import cost_model as build_cost_model

GIB = 2**30
NOW = datetime(2026, 1, 2, tzinfo=UTC)
BAND = {
    "sizes": [1, 4, 8, 13, 64],
    "low": [98.0, 250.0, 395.0, 300.0, 100.0],
    "middle": [100.0, 280.0, 405.0, 420.0, 430.0],
    "high": [102.0, 320.0, 415.0, 600.0, 900.0],
    "fits": [1.0, 1.0, 1.0, 0.1, 0.0],
}
HOSTILE = '<script>alert("1")</script> & "quoted"'


def run_result(**values) -> RunResult:
    """A result, from fields of its parts by their own names."""
    whole = RunResult()
    for name, kind in AT_TOP.items():
        own = {one.name: values.pop(one.name) for one in dataclasses.fields(kind) if one.name in values}
        whole = dataclasses.replace(whole, **{name: kind(**own)})
    return dataclasses.replace(whole, **values)


def probe(number: int, size: int, speed: float, compilation: Compilation = Compilation.SHARED, **fields) -> Observation:
    seconds = size / (speed or 1.0)
    facts = {
        "outcome": Outcome.MEASURED,
        "pass_times_s": (seconds, seconds * 1.02, seconds * 0.98),
        "update_times_s": (0.01,),
        "peak_memory_bytes": GIB + size * GIB // 4,
        "memory_budget_bytes": 4 * GIB,
        "elapsed_s": 3.0,
    }
    return Observation(probe=Probe(number=number, micro_batch_size=size, compilation=compilation), **facts | fields)


def cost_model() -> CostModel:
    buffers = (
        Buffer(label="weights", size=Polynomial(GIB)),
        Buffer(label="model.py:3 gelu", size=Polynomial(0, GIB / 4)),
    )
    return build_cost_model(
        model_flops=Polynomial(0, 1e12),
        hardware_flops=Polynomial(0, 1.5e12),
        bytes_moved=Polynomial(0, 1e9),
        resident=buffers[:1],
        peaks={Phase.BACKWARD: (Peak(size=Polynomial(GIB, GIB / 4), buffers=buffers),)},
        relative_sd=0.05,
        device="cuda",
    )


def make_run(folder: Path, *, finished: bool = True, device_name: str = "NVIDIA H100 80GB HBM3") -> Run:
    job = Job(workload="decoder", precision=Precision.BFLOAT16, device="cuda", sequence_length=128)
    settings = {"tolerance": 0.02, "target_confidence": 90, "seed": 0, "user_compilation": "exact", "max_probes": 16}
    meta = {
        "fingerprint": "f" * 16,
        "config": "job.yaml",
        "typed": "job.yaml --mode train",
        "title": f"decoder {HOSTILE}",
        "job": job.as_record(),
        "environment": {"torch": "2.13.0"},
        "search_specification": {"settings": settings, "minimum": 1, "maximum": None, "candidates": "all"},
        "created_at": NOW.isoformat(),
    }
    run = run_directory.create_run(folder, meta=meta, now=NOW)
    for item in (
        probe(0, 1, 100.0),
        probe(1, 8, 400.0),
        probe(2, 13, 0, outcome=Outcome.OUT_OF_MEMORY, reason=HOSTILE, pass_times_s=(), update_times_s=()),
        probe(3, 8, 410.0, Compilation.EXACT),
    ):
        run.journal.append(item)
    recommendations = [
        {"event": "recommendation", "micro_batch_size": size, "relative_performance": 4.0, "confidence": score}
        | {"samples_per_s": 405.0, "num_probes": count, "elapsed_s": 9.0, "global_batch_sizes": []}
        for count, size, score in ((1, 1, 0), (2, 8, 50), (3, 8, 88), (4, 8, 93))
    ]
    lines = "".join(json.dumps(event) + "\n" for event in recommendations)
    (run.directory / "events.jsonl").write_text(lines + '{"cut sho')
    if finished:
        run.remember_trace(to_record(cost_model()))
        batch = {"global_batch_size": 64, "accumulation_steps": 8, "num_tokens": 8192, "step_time_s": 0.17}
        rest = {
            "base_micro_batch_size": 1,
            "stop_reason": "target_confidence",
            "smallest_within_tolerance": 8,
            "peak_memory_bytes": 3 * GIB,
            "memory_headroom_bytes": GIB,
            "outcomes": {"measured": 3, "out_of_memory": 1},
            "batch_size": 64,
            "batch_message": "batch_size 64 is valid",
            "gradient_equivalence": {"message": "The gradients agree."},
            "warnings": [],
            "global_batch_sizes": [batch],
            "device_info": {"device": "cuda", "device_name": device_name, "num_multiprocessors": 132},
            "throughput_band": BAND,
        }
        run.write_result(RunResult.from_record(recommendations[-1] | rest))
    return run


class Page(HTMLParser):
    """Collects text and tags, and complains about tags that are not closed."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", [], []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "
