"""The batch at which memory is verified against the worst of 1,000 drawn ones: `python -m benchmarks.lengths_worst`.

Twelve jobs of samples of many lengths, nine of them of a number of tokens. For each, the batch that traces at a few
lengths call the worst, the one with which a probe reads its peak, and the peak of each shape among 1,000 batches that
are drawn and collated here, apart from the product. All are measured eagerly on the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine_facts import machine_facts
from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.engine.worker.measuring import measure
from bexplore.engine.worker.session import Session
from bexplore.job import CompileSettings, Job
from bexplore.job.lengths import Collation, Lengths
from bexplore.measurement.probe import Compilation, Probe
from bexplore.trace.cost_model import MemoryByLength, traced_lengths
from bexplore.trace.tracer import trace_job

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
SIZES = (2, 9)
NUM_BATCHES = 1000
WITHIN = 0.02
TEXTS = ([8, 12, 16, 24, 32, 48, 64, 96, 128, 200, 256], [4, 10, 14, 16, 18, 14, 10, 7, 4, 2, 1])
LONG = ([96, 128, 160, 192, 224, 256], [1, 2, 3, 2, 2, 1])
RARE = ([1, 32, 64, 128, 256], [1e-6, 4, 3, 2, 1])
# Name, model, batch, lengths with weights, collation, and further fields of the lengths.
JOBS: tuple[tuple[str, str, str, Any, Collation, dict[str, Any]], ...] = (
    ("text", "text", "texts", TEXTS, Collation.TOKENS, {}),
    ("text by 64", "text", "texts", TEXTS, Collation.TOKENS, {"multiple_of": 64}),
    ("pairs of tokens", "pairs", "texts", TEXTS, Collation.TOKENS, {}),
    ("captions", "captions", "pictures", TEXTS, Collation.TOKENS, {}),
    ("captions, long", "captions", "pictures", LONG, Collation.TOKENS, {}),
    ("captions, one of a token", "captions", "pictures", RARE, Collation.TOKENS, {}),
    ("captions, pairs", "captions_pairs", "pictures", LONG, Collation.TOKENS, {}),
    ("queries", "queries", "answers", TEXTS, Collation.TOKENS, {}),
    ("queries by 8, long", "queries", "answers", LONG, Collation.TOKENS, {"multiple_of": 8}),
    ("captions, padded", "captions", "pictures", TEXTS, Collation.LONGEST, {}),
    ("pairs, sorted", "pairs", "texts", TEXTS, Collation.SORTED, {}),
    ("queries in buckets", "queries", "answers", TEXTS, Collation.BUCKETS, {"buckets": (32, 96, 256)}),
)


def main() -> None:
    lines = [
        "# The worst batch of many lengths",
        "",
        f"Written by `python -m benchmarks.lengths_worst`; {_machine()}",
        "",
        "MiB at the peak of a step, and rows x tokens: of the batch that traces call the worst, of the one with which "
        f"a probe reads its peak, and of the worst of {NUM_BATCHES} batches that were drawn.",
        "",
        "| job | size | by traces | probe | worst drawn | shapes drawn | probe over drawn % | traces over drawn % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    errors: dict[str, list[float]] = {}
    for name, *given in JOBS:
        for size in SIZES:
            row, both = _compare(*given, size=size)
            lines.append(f"| {name} | {size} | {row}")
            errors.setdefault(name, []).extend(both)
            print(lines[-1], flush=True)
    good = sum(max(map(abs, both)) <= WITHIN for both in errors.values())
    lines += ["", f"Within {WITHIN:.0%}: {good} of {len(JOBS)} jobs (must: all)."]
    (RESULTS / "lengths_worst.md").write_text("\n".join(lines) + "\n")
    (RESULTS / "lengths_worst.json").write_text(json.dumps(errors, indent=1) + "\n")


def _machine() -> str:
    facts = machine_facts()
    return f"{facts['processor']}, {facts['processors']} cores, Python {facts['python']}, torch {facts['torch']}."


def _compare(
    model: str, batch: str, samples: Any, collation: Collation, fields: dict[str, Any], *, size: int
) -> tuple[str, list[float]]:
    lengths = Lengths.from_samples(*samples, collation=collation, **fields)
    paths = {"model": model, "batch": batch, "loss": "loss"}
    job = Job(
        workload="imported",
        model={name: f"benchmarks.jobs.many_lengths:{path}" for name, path in paths.items()},
        import_root=str(ROOT),
        lengths=lengths,
        sequence_length=lengths.longest,
        compile=CompileSettings(enabled=False),
    )
    memory = MemoryByLength(
        models={length: trace_job(job.at_length(length)) for length in traced_lengths(lengths)}, lengths=lengths
    )
    probe = Probe(number=0, micro_batch_size=size, compilation=Compilation.EAGER, max_passes=1)
    session = Session(RunProbe(job=job, probe=probe, shared_mode=SharedMode.NESTED), report=lambda **_: None)
    ran = measure(session, probe, pass_budget_s=0.01)
    shapes = _draw(lengths, size)
    peaks = {shape: _peak(session, *shape) for shape in shapes}
    worst = max(peaks, key=lambda shape: peaks[shape])
    said = tuple(memory.worst_batch(size))
    predicted, measured = memory.peak_memory_bytes(*said), ran["peak_memory_bytes"]
    both = [measured / peaks[worst] - 1.0, predicted / peaks[worst] - 1.0]
    cells = [
        f"{predicted / 2**20:.2f}, {said[0]} x {said[1]}",
        f"{measured / 2**20:.2f}, {' x '.join(map(str, ran['details']['memory_batch']))}",
        f"{peaks[worst] / 2**20:.2f}, {worst[0]} x {worst[1]}",
        str(len(shapes)),
        *(f"{100 * one:+.2f}" for one in both),
    ]
    return " | ".join(cells) + " |", both


def _peak(session: Session, num_rows: int, length: int) -> int:
    session.steps.clear_gradients()
    ran = session.memory_step.verify(session.batches.make_of_length(num_rows, length), num_rows)
    assert ran.peak is not None
    return ran.peak.allocated_bytes


def _draw(lengths: Lengths, size: int) -> set[tuple[int, int]]:
    """Return the shapes of batches that a training makes of random samples, the longest among them."""
    step = lengths.multiple_of
    drawn = np.random.default_rng(size)
    tokens = size * lengths.longest
    count = size * NUM_BATCHES
    if lengths.collation is Collation.TOKENS:
        count = int(NUM_BATCHES * tokens / lengths.mean)
    samples = drawn.choice(lengths.values, size=count, p=lengths.weights)
    samples[0] = lengths.values[-1]
    padded = -(-samples // step) * step
    if lengths.collation is not Collation.TOKENS:
        if lengths.collation is not Collation.LONGEST:
            padded.sort()
        return {(size, int(padded[start : start + size].max())) for start in range(0, count, size)}
    shapes, rows, longest = set(), 0, 0
    for length in np.sort(padded).tolist():
        if (rows + 1) * length > tokens:
            shapes.add((rows, longest))
            rows = 0
        rows, longest = rows + 1, length
    return shapes | {(rows, longest)}


if __name__ == "__main__":
    main()
