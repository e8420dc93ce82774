"""Commands beside jobs, both estimated: `python -m benchmarks.command_estimates`, with BEXPLORE_CUDA_TORCH set.

Each training is explored for an H100 as a command, which runs on an emulated device, and as a job by import path, which
is traced. The seconds of a pass are those of the same kernels, where the observer has seen what the trace has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.command_jobs.table import FOLDER
from benchmarks.emulated_trainings import TORCH_VARIABLE
from benchmarks.machine_facts import machine_facts

RESULTS = Path(__file__).parent / "results"
DEVICE, SIZES, LIMIT_S = "h100", (4, 16), 300.0
COMMAND = (
    "python {script} --device cuda --out {{output_dir}} --micro-batch-size {{micro_batch_size}} "
    "--accumulation {{accumulation}} --steps 1000 {more}"
)


def _own(model: str) -> dict[str, str]:
    return {"model": f"own_model:{model}", "batch": "own_model:rows", "loss": "own_model:loss"}


LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "max_position_embeddings": 512,
}
_HALF = {"precision": "autocast_bfloat16"}
# Name -> the command, and the keys of `explore` of the job.
PAIRS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "HF Trainer, LLaMA": (
        COMMAND.format(script="hf_trainer.py", more="--model llama"),
        {
            "compile": False,
            "workload": {
                "transformers": {"task": "causal_lm", "model_type": "llama", "config": LLAMA},
                "sequence_length": 512,
            },
        }
        | _HALF,
    ),
    "encoder, autocast": (
        COMMAND.format(script="gpu_loop.py", more=""),
        {"compile": False, "workload": _own("encoder")} | _HALF,
    ),
    "encoder, autocast, compiled": (
        COMMAND.format(script="gpu_loop.py", more="--mode default"),
        {"compile": True, "workload": _own("encoder")} | _HALF,
    ),
    "convolutions, float32": (
        COMMAND.format(script="plain.py", more="--model images"),
        {"compile": False, "precision": "float32", "workload": _own("images")},
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command_estimates", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(PAIRS), help="these anew")
    names = parser.parse_args().only
    path = RESULTS / "command_estimates.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(row["training"], row["size"]): row for row in known if row["training"] not in names}
    for name in names:
        rows |= {(row["training"], row["size"]): row for row in compare(name)}
        ordered = [rows[name, size] for name in PAIRS for size in SIZES if (name, size) in rows]
        facts = machine_facts()
        path.write_text(json.dumps({"facts": facts, "rows": ordered}, indent=1) + "\n")
        _write_table(ordered, facts)
    return 0


def compare(name: str) -> list[dict[str, Any]]:
    """Return a row for each size of a training."""
    command, keys = PAIRS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "jobs"
        shutil.copytree(FOLDER, folder)
        settings = {"candidates": list(SIZES), "max_probes": len(SIZES)}
        job = {"train_input": {"batch_size": 64, "micro_batch_size": "explore"}, "explore": keys | settings}
        (folder / "job.yaml").write_text(json.dumps(job))
        ended = ("--device-name", DEVICE, "--json")
        of_job = _explore(folder, {}, "job.yaml", *ended, "--model-dir", "job")
        site = [os.environ[TORCH_VARIABLE], *(path for path in sys.path if path.endswith("site-packages"))]
        variables = {"PYTHONPATH": os.pathsep.join([*site, str(Path(__file__).parents[1])]), "OMP_NUM_THREADS": "1"}
        sets = (word for key, value in settings.items() for word in ("--set", f"explore.{key}={json.dumps(value)}"))
        of_command = _explore(folder, variables, *ended, *sets, "--model-dir", "command", "--", *command.split())
    return [
        {"training": name, "size": size, "command_s": of_command.get(size), "job_s": of_job.get(size)} for size in SIZES
    ]


def _explore(folder: Path, variables: Mapping[str, str], *words: str) -> dict[int, float]:
    """Return the estimated seconds of a pass by size."""
    command = [sys.executable, "-m", "bexplore", "explore", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    probes = [one for one in events if one["event"] == "probe" and one["outcome"] == "estimated"]
    return {one["micro_batch_size"]: one["estimate"]["pass_s"] for one in probes}


def _write_table(rows: list[dict[str, Any]], facts: Mapping[str, Any]) -> None:
    lines = [
        "# Commands and jobs, both estimated for an H100",
        "",
        "Written by `python -m benchmarks.command_estimates`: seconds of a pass of the same training as an unmodified",
        "command on an emulated device, and as a job by import path.",
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
        "",
        "| training | size | command, ms | job, ms | command over job |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        own, job = row["command_s"], row["job_s"]
        shown = [f"{1000 * one:.3f}" if one else "failed" for one in (own, job)]
        ratio = f"{100 * (own / job - 1):+.1f} %" if own and job else ""
        lines.append(f"| {row['training']} | {row['size']} | {shown[0]} | {shown[1]} | {ratio} |")
    (RESULTS / "command_estimates.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
