"""Plans of published trainings by the command line, beside what was published.

Each training of `jobs/published_trainings.yaml` becomes a job of its published configuration, without weights, and
`bexplore plan` is called with its device, devices, tokens, batch and the efficiency that was published. Operations are
those of the trace, except where the option is a throughput.

    python -m benchmarks.published_trainings [--only WORDS] [--fresh]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bexplore.host.accelerators import device_by_name

RESULTS = Path(__file__).parent / "results"
RECORDS, TABLE = RESULTS / "published_trainings.json", RESULTS / "published_trainings.md"
TRAININGS = Path(__file__).parent / "jobs" / "published_trainings.yaml"
WITHIN = 0.10
SHOWS = {
    "identity": "its authors computed the efficiency from the same time, so that the operations alone are compared",
    "projection": "its authors planned by the same formula: nothing was trained for the time that is published",
    "calendar": "one publication; the efficiency was measured on steps, the time by the calendar",
    "independent": "the efficiency is from one publication, the calendar or the device-hours from another",
}


def main() -> None:
    """Plan what is not recorded yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="trainings whose name has these words")
    parser.add_argument("--fresh", action="store_true", help="plan again what is recorded already")
    options = parser.parse_args()
    trainings = yaml.safe_load(TRAININGS.read_text())
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name, training in trainings.items():
        if options.only in name and (options.fresh or name not in records):
            records[name] = plan_training(training)
            print(name, records[name], flush=True)
            RECORDS.write_text(json.dumps({one: records[one] for one in trainings if one in records}, indent=1) + "\n")
    TABLE.write_text(describe(trainings, records))


def plan_training(training: Mapping[str, Any]) -> dict[str, float]:
    """Return the outcome in the unit of what was published, what went in, and the seconds of the command."""
    option, value = training["given"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.yaml").write_text(make_job(training))
        began = time.perf_counter()
        plan = call_plan(training, option, value, folder)
        elapsed_s = time.perf_counter() - began
        if training.get("half"):
            value *= find_factor(training, plan)
            plan = call_plan(training, option, value, folder)
    return {"planned": outcome(training, plan), "given": value, "command_s": round(elapsed_s, 1)}


def make_job(training: Mapping[str, Any]) -> str:
    """Return the job of a training as a file of the user would have it."""
    explore: dict[str, Any] = {
        "precision": "bfloat16",
        "compile": {"enabled": False},
        "workload": {
            "sequence_length": training["length"],
            "transformers": {"task": "causal_lm", **training["model"]},
        },
    }
    if training.get("recomputes"):
        explore["settings"] = {"activation_checkpointing": "full"}
    batch = {"batch_size": training["plan"]["batch"], "micro_batch_size": "explore"}
    return str(yaml.safe_dump({"train_input": batch, "runconfig": {"num_csx": 1}, "explore": explore}))


def call_plan(training: Mapping[str, Any], option: str, value: Any, folder: str) -> dict[str, Any]:
    """Return the plan that the command line prints for the job in a folder."""
    asked = training["plan"]
    options = {
        "--tokens": asked["tokens"],
        "--batch-size": asked["batch"],
        "--devices": asked["devices"],
        "--device-name": asked["device"],
        "--tensor-parallel": asked.get("shares", 1),
        f"--{option}": value,
    }
    words = [str(word) for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "bexplore", "plan", "job.yaml", "--json", "--quiet", *words]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def find_factor(training: Mapping[str, Any], plan: Mapping[str, Any]) -> float:
    """Return what turns a utilization that counts half of attention into one that counts all of it.

    Attention has 12 L w s operations a token (PaLM, arXiv 2204.02311, appendix B).
    """
    peak = device_by_name(training["plan"]["device"]).bfloat16_flops_per_s or 0.0
    all_flops = plan["mfu"] * peak * plan["num_devices"] / plan["tokens_per_s"]
    layers = training["model"]["config"]["num_hidden_layers"]
    return all_flops / (all_flops - 6 * layers * training["attention_width"] * training["length"])


def outcome(training: Mapping[str, Any], plan: Mapping[str, Any]) -> float:
    """Return what a plan says in the unit of what was published."""
    return {
        "days": plan["training_time_s"] / 86400,
        "device-hours": plan["device_hours"],
        "s a step": plan["step_time_s"],
        "tokens/s": plan["tokens_per_s"] / plan["num_devices"],
    }[training["published"][1]]


def describe(trainings: Mapping[str, Any], records: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table in Markdown."""
    ratios = {name: record["planned"] / trainings[name]["published"][0] for name, record in records.items()}
    by_operations = [name for name in ratios if trainings[name]["given"][0] != "throughput"]
    experts = [name for name in ratios if is_mixture(trainings[name])]
    inside = [name for name, ratio in ratios.items() if abs(ratio - 1) <= WITHIN]
    seconds = [record["command_s"] for record in records.values()]
    lines = [
        "# Plans of published trainings",
        "",
        "Written by `python -m benchmarks.published_trainings`: jobs of the published configurations, planned by "
        f"`bexplore plan`; a command took {statistics.median(seconds):.0f} s in the median, {max(seconds):.0f} s at "
        "most, tracing included.",
        "",
        "| what it shows | figures | median error | worst | outside 10 % |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(_statistics(kind, [ratios[name] for name in ratios if trainings[name]["shows"] == kind]) for kind in SHOWS),
        _statistics("mixtures of experts", [ratios[name] for name in experts]),
        _statistics("by the operations of the trace", [ratios[name] for name in by_operations]),
        "",
        *(f"* {kind}: {meaning}." for kind, meaning in SHOWS.items()),
        "",
        f"{len(inside)} of {len(ratios)} are within {WITHIN:.0%}, {len(set(inside) & set(experts))} of "
        f"{len(experts)} mixtures of experts; outside are "
        f"{'; '.join(name for name in ratios if name not in inside) or 'none'}, each with its remark.",
        "",
        "| training | devices | tokens | goes in | published | planned | ratio | what it shows | source | remark |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | --- | --- | --- |",
        *(_row(name, trainings[name], records[name], ratios[name]) for name in ratios),
        "",
        "`hfu`: TFLOP/s that count recomputed operations, over the peak; taken for an MFU they would make a plan a "
        "quarter too short. `half`: the authors count the half of attention that a causal mask leaves, while an MFU "
        "here counts all of it, as PaLM's does; the option had the utilization of all of it, in brackets. Not in the "
        "table: trainings on devices that torch's table lacks (PaLM, Gopher), and those whose efficiency is not "
        "published (Pythia, DeepSeek-V2, Falcon, DBRX, Grok). `--effective-time` is for calendars.",
    ]
    return "\n".join(lines) + "\n"


def is_mixture(training: Mapping[str, Any]) -> bool:
    """Return whether a model is a mixture of experts."""
    return str(training.get("remark", "")).startswith("MoE")


def _statistics(kind: str, ratios: Sequence[float]) -> str:
    errors = [abs(ratio - 1) for ratio in ratios]
    outside = sum(error > WITHIN for error in errors)
    return f"| {kind} | {len(errors)} | {statistics.median(errors):.1%} | {max(errors):.1%} | {outside} |"


def _row(name: str, training: Mapping[str, Any], record: Mapping[str, float], ratio: float) -> str:
    option, value = training["given"]
    given = str(value) if option == "throughput" else f"{option} {value:.1%}"
    if training.get("half"):
        given += f", half (all: {record['given']:.1%})"
    published, unit = training["published"]
    cells = [
        name,
        f"{training['plan']['devices']:,}",
        training["plan"]["tokens"],
        given,
        f"{_number(published)} {unit}",
        _number(record["planned"]),
        f"{ratio:.3f}",
        training["shows"],
        training["source"],
        training.get("remark", ""),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
