"""Estimated against published times of whole training passes: `python -m benchmarks.whole_steps FILE`.

FILE has published passes (forward and backward, eager, float32 without tensor cores) of transformers' models on several
GPUs, of sitar-lab/NeuSight (MIT); it is not in the repository. Nothing is fitted on them. The passes are traced here,
operator by operator, with the attention that the library chooses on this processor.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from bexplore.estimate.model import estimate_sum
from bexplore.host.accelerators import find_device
from bexplore.job import CompileSettings, Job
from bexplore.trace.cost_model import CostModel
from bexplore.trace.tracer import trace_job

RESULTS = Path(__file__).parent / "results"
# transformers' own defaults are BERT base and GPT-2 small.
MODELS: dict[str, dict[str, Any]] = {
    "bert_large": {
        "task": "masked_lm",
        "model_type": "bert",
        "config": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    },
    "gpt2_large": {"task": "causal_lm", "model_type": "gpt2", "config": {"n_embd": 1280, "n_layer": 36, "n_head": 20}},
}

Row = dict[str, Any]


@functools.cache
def trace(model: str, sequence_length: int) -> CostModel:
    facts = MODELS[model]
    job = Job(
        workload="transformers",
        model={
            "task": facts["task"],
            "model_type": facts["model_type"],
            "config": facts["config"],
        },
        compile=CompileSettings(enabled=False),
        sequence_length=sequence_length,
    )
    return trace_job(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="table of published passes")
    rows = []
    with parser.parse_args().file.open() as lines:
        for published in csv.DictReader(lines):
            device = find_device(published["device"].replace("_", " "))
            assert device is not None, published["device"]
            size = int(published["batch_size"])
            calls = trace(published["model"], int(published["sequence_length"])).kernel_calls(size)
            estimate = estimate_sum(device, calls)
            assert estimate is not None
            rows.append(
                {
                    "device": device.name,
                    "model": published["model"],
                    "micro_batch_size": size,
                    "published_s": float(published["total_ms"]) / 1e3,
                    "estimated_s": estimate.seconds,
                    "shares": {bound.value: round(share, 3) for bound, share in estimate.shares.items()},
                }
            )
            print(rows[-1], flush=True)
    report = {"facts": machine_facts() | {"command": "python -m benchmarks.whole_steps FILE"}, "rows": rows}
    (RESULTS / "whole_steps.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "whole_steps.md").write_text(markdown(report))
    print(markdown(report))


def markdown(report: Row) -> str:
    """The report for people."""
    pairs = defaultdict(list)
    lines, errors = [], []
    for row in report["rows"]:
        error = row["estimated_s"] / row["published_s"] - 1
        errors.append(abs(error))
        pairs[row["device"], row["model"]].append(row)
        lines.append(
            f"| {row['device']} | {row['model']} | {row['micro_batch_size']} | {row['published_s'] * 1e3:.0f} | "
            f"{row['estimated_s'] * 1e3:.0f} | {100 * error:+.0f} |"
        )
    ratios = [
        abs(large["estimated_s"] / small["estimated_s"] / (large["published_s"] / small["published_s"]) - 1)
        for small, large in (rows for rows in pairs.values() if len(rows) == 2)
    ]
    return "\n".join(
        [
            "# Estimated and published times of whole passes",
            "",
            f"`{report['facts']['command']}`, {report['facts']['at']}. Published: sitar-lab/NeuSight (MIT), forward "
            "and backward, eager, float32. Nothing is fitted on them.",
            "",
            f"{len(errors)} passes: median error {100 * statistics.median(errors):.0f} %, worst "
            f"{100 * max(errors):.0f} %. Ratio of the two sizes of a job: median error "
            f"{100 * statistics.median(ratios):.0f} %, worst {100 * max(ratios):.0f} %.",
            "",
            "| device | model | micro-batch size | published ms | estimated ms | error % |",
            "|---|---|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
