"""Seconds of explorations of a device that is not here: `python -m benchmarks.estimated_explorations`.

Each of four jobs is explored for an H100 by the command line, in a folder of its own and without a trace of an earlier
run: seconds to the first streamed line and to the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts

RESULTS = Path(__file__).parent / "results"
DEVICE = "h100"
LIMIT_S = 900.0
FIRST_LINE_S, ANSWER_S = 40.0, 180.0  # wanted

Row = dict[str, Any]


def _job(task: str, model_type: str, config: Row, *, explore: Row | None = None, **workload: Any) -> Row:
    own = {"transformers": {"task": task, "model_type": model_type, "config": config}}
    own |= {"optimizer": {"name": "AdamW", "arguments": {"lr": 0.0003}}} | workload
    return {
        "train_input": {"batch_size": 256, "micro_batch_size": "explore"},
        "explore": {"precision": "autocast_bfloat16", "workload": own} | (explore or {}),
    }


# Configurations as their authors published them; transformers' own defaults are GPT-2 small and BERT base.
JOBS: dict[str, Row] = {
    "GPT-2 small": _job("causal_lm", "gpt2", {}, sequence_length=1024),
    "BERT base": _job("masked_lm", "bert", {}, sequence_length=512),
    "ResNet-50": _job(
        "image_classification",
        "resnet",
        {"layer_type": "bottleneck", "depths": [3, 4, 6, 3], "num_labels": 1000, "image_size": 224},
    ),
    # In bfloat16, with one state of the optimizer: what AdamW keeps does not fit on one device of 80 GB.
    "LLaMA 8B": _job(
        "causal_lm",
        "llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
        },
        sequence_length=2048,
        optimizer={"name": "SGD", "arguments": {"lr": 0.01, "momentum": 0.9}},
        explore={"precision": "bfloat16", "activation_checkpointing": "full"},
    ),
}


def explore(name: str) -> Row:
    """Explore one job; return its seconds and its answer."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.yaml").write_text(json.dumps(JOBS[name]))
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "bexplore", "explore", "job.yaml", "--device-name", DEVICE, "--json"],
            cwd=folder,
            env=os.environ | {"BEXPLORE_CACHE_DIR": str(Path(folder, "cache"))},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first_s, result, trace = None, {}, {}
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "recommendation" and first_s is None:
                first_s = time.monotonic() - began_s
            trace = event if event["event"] == "trace" else trace
            result = event if event["event"] == "result" else result
        assert process.wait(LIMIT_S) == 0, name
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "job": name,
        "first_line_s": first_s,
        "answer_s": time.monotonic() - began_s,
        "load": os.getloadavg()[1],  # of the machine, in the mean of five minutes: what it did beside
        "processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "trace_s": trace["trace_s"],
        "num_probes": result["num_probes"],
        "micro_batch_size": result["micro_batch_size"],
        "samples_per_s": result["samples_per_s"],
        "confidence": result["confidence"],
        "mfu": result["estimate"]["mfu"],
    }


def time_import() -> float:
    """Return the seconds in which PyTorch's compiler is imported, the median of three: how fast the machine is."""
    seconds = []
    for _ in range(3):
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch._inductor.compile_fx"], check=True)
        seconds.append(time.monotonic() - began_s)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(JOBS), action="append", help="a job; default: all")
    rows = []
    for name in parser.parse_args().only or JOBS:
        rows.append(explore(name))
        print(rows[-1], flush=True)
    facts = {"command": "python -m benchmarks.estimated_explorations", "import_s": time_import()}
    report = {"facts": machine_facts() | facts, "rows": rows}
    (RESULTS / "estimated_explorations.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "estimated_explorations.md").write_text(markdown(report))
    print(markdown(report))


def markdown(report: Row) -> str:
    """The report for people."""
    facts = report["facts"]
    lines = [
        f"| {row['job']} | {row['first_line_s']:.0f} | {row['answer_s']:.0f} | {row['processor_s']:.0f} | "
        f"{row['load']:.1f} | "
        f"{row['num_probes']} | {row['micro_batch_size']} | {row['samples_per_s']:.4g} | {row['confidence']} | "
        f"{'' if row['mfu'] is None else format(row['mfu'], '.0%')} |"
        for row in report["rows"]
    ]
    return "\n".join(
        [
            "# Explorations of a device that is not here",
            "",
            f"`{facts['command']}`, {facts['at']}, {facts['processors']} processors ({facts['processor']}), torch "
            f"{facts['torch']}, whose compiler alone is imported in {facts['import_s']:.1f} s. "
            "Each job is explored for an H100, with nothing remembered. Wanted: the first line in "
            f"{FIRST_LINE_S:.0f} s, the answer in {ANSWER_S:.0f} s. Sizes, speeds, scores and MFU are estimates. "
            "Where the load is above 1, other work had a part of the processors: the processor's seconds tell.",
            "",
            "| job | first line s | answer s | processor s | load | probes | size | samples/s | score | MFU |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
