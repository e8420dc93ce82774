"""Estimated against published times of whole training passes: `python -m benchmarks.whole_steps`.

The passes are those of `benchmarks.published_steps`; nothing is fitted on them. They are traced here, operator by
operator, for a CUDA device that is absent. What is published with its update is estimated with one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from benchmarks.published_steps import JOBS
from bexplore.host.accelerators import DEVICES, find_device
from bexplore.trace.absent_gpu import GpuProperties, stand_in

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    properties = GpuProperties.from_device(DEVICES["h100"])
    assert properties is not None
    stand_in(properties)
    from bexplore.trace.pass_times import estimate_pass, estimate_update
    from bexplore.trace.tracer import trace_job  # it imports torch, which sees the device only now

    rows = []
    for name, published in JOBS.items():
        job = dataclasses.replace(published.job, device="cuda:0")
        cost_model = trace_job(job)
        for device_name, size, published_ms in published.points:
            device = find_device(device_name)
            assert device is not None, device_name
            estimate = estimate_pass(device, job, cost_model, size)
            update = estimate_update(device, cost_model)
            assert estimate is not None and update is not None, device_name
            rows.append(
                {
                    "device": device.name,
                    "model": name,
                    "precision": published.precision.value,
                    "micro_batch_size": size,
                    "published_s": published_ms / 1e3,
                    "estimated_s": estimate.seconds + (update.seconds if published.optimizer else 0.0),
                    "host_s": estimate.host_s,
                    "update_s": update.seconds if published.optimizer else None,
                    "shares": {bound.value: round(share, 3) for bound, share in estimate.shares.items()},
                }
            )
            print(rows[-1], flush=True)
    report = {"facts": machine_facts() | {"command": "python -m benchmarks.whole_steps"}, "rows": rows}
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
            f"| {row['device']} | {row['model']} | {row['precision']} | {row['micro_batch_size']} | "
            f"{row['published_s'] * 1e3:.0f} | {row['estimated_s'] * 1e3:.0f} | {100 * error:+.0f} |"
        )
    ratios = [
        abs(large["estimated_s"] / small["estimated_s"] / (large["published_s"] / small["published_s"]) - 1)
        for small, large in (rows for rows in pairs.values() if len(rows) == 2)
    ]
    return "\n".join(
        [
            "# Estimated and published times of whole passes",
            "",
            f"`{report['facts']['command']}`, {report['facts']['at']}. Published: see benchmarks/published_steps.py. "
            "Nothing is fitted on them.",
            "",
            f"{len(errors)} passes of {len(JOBS)} jobs: median error {100 * statistics.median(errors):.0f} %, worst "
            f"{100 * max(errors):.0f} %. Ratio of the two sizes of a job: median error "
            f"{100 * statistics.median(ratios):.0f} %, worst {100 * max(ratios):.0f} %.",
            "",
            "| device | model | precision | micro-batch size | published ms | estimated ms | error % |",
            "|---|---|---|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
