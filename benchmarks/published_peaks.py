"""Published peaks of an H100 against an emulated one: `python -m benchmarks.published_peaks --packages FOLDER`.

The published figure is the memory of the whole device, seen from outside; an emulated one is what PyTorch's allocator
reserves. Between them lies one constant, of the context and of libraries: the same for all jobs and sizes. FOLDER has
transformers 4.49, as was published, and torchvision and timm, which this environment lacks:
`pip install --no-deps --target FOLDER transformers==4.49.0 tokenizers==0.21.4 huggingface_hub==0.29.3 timm==1.0.15
torchvision==0.28.0`. The CUDA build of PyTorch is in $BEXPLORE_CUDA_TORCH.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.emulated_memory import DEVICE, run_emulated
from benchmarks.machine_facts import machine_facts
from benchmarks.trace_cuda import read_peaks

RESULTS = Path(__file__).parent / "results"
# Sizes that are measured: the smallest, some between, and the largest or one near it.
SIZES = {
    "bert-fp16": (1, 16, 64, 136),
    "bert-fp32": (1, 16, 64, 128),
    "bert-tf32": (16, 48, 96),
    "bert-tf32-fp16": (24, 48, 104),
    "t5": (1, 8, 24, 32),
    "reformer": (1, 16, 64, 208),
    "whisper": (1, 32, 144, 504, 672),
    "convnext_large-fp16": (1, 64, 144, 304),
    "convnext_large-fp32": (1, 64, 136, 216, 224),
    "convnext_large-tf32": (64, 136, 224),
    "convnext_large-tf32-fp16": (120, 256, 408),
    "regnet_y_128gf": (1, 32, 80, 184),
    "resnet50": (1, 128, 512, 1248, 1680),
    "resnet50-noio": (1, 128, 512, 776),
    "lightning": (1, 128, 512, 808),
    "focalnet": (1, 64, 160, 448),
}

# Jobs that differ by more than 2 % somewhere, and what is known of it.
DIFFERS = {
    "bert-fp16": "7 MiB a sample too high; why was not found: float32 agrees to 0.2 % at all sizes.",
    "whisper": "its two convolutions have workspaces of cuDNN on a real device, of which the emulated one has none; "
    "with other blocks the allocator keeps other segments, so that sizes differ in both directions. Not verified.",
    "reformer": "equal at 1 and 16, then 6 % too low; why was not found.",
    "regnet_y_128gf": "40 MiB a sample too low: its grouped convolutions may have workspaces of cuDNN on a real "
    "device, of which the emulated one has none. Not verified.",
    "lightning": "ResNet-152 in bfloat16: 5 MiB a sample too low; why was not found.",
    "focalnet": "1.1 GiB too low at each size, as if it had a constant of its own; why was not found.",
}

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="folder with the published job's packages")
    parser.add_argument("--only", metavar="JOB", help="this job alone")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the results already")
    parser.add_argument(
        "--published", type=Path, default=Path("../shared/curves/milabench_h100.csv"), help="table of published peaks"
    )
    options = parser.parse_args()
    published = read_peaks(options.published)
    path = RESULTS / "published_peaks.json"
    for name in [options.only] if options.only else SIZES:
        report: Row = json.loads(path.read_text()) if path.exists() else {"jobs": {}}
        row = report["jobs"].setdefault(name, {})
        for size in SIZES[name]:
            if options.fresh or str(size) not in row:
                try:
                    (peaks,) = run_emulated(
                        ["-m", "benchmarks.published_peaks_jobs", name, str(size)], folders=[options.packages]
                    )
                except subprocess.CalledProcessError as error:
                    print(name, size, error, file=sys.stderr)
                    continue
                row[str(size)] = peaks | {"published_bytes": published[name][str(size)]}
        report["facts"] = machine_facts() | {"command": "python -m benchmarks.published_peaks", "device": DEVICE}
        path.write_text(json.dumps(report, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(report))
    print(path.with_suffix(".md").read_text())


def markdown(report: Row) -> str:
    """The report for people."""
    facts = report["facts"]
    rows = [(name, int(size), row) for name, sizes in report["jobs"].items() for size, row in sizes.items()]
    constant = statistics.median(row["published_bytes"] - row["reserved_bytes"] for _, _, row in rows)
    lines, errors = [], []
    for name, size, row in rows:
        error = 100 * ((row["reserved_bytes"] + constant) / row["published_bytes"] - 1)
        errors.append(abs(error))
        allocated, reserved, peak = (
            row[key] / 2**30 for key in ("allocated_bytes", "reserved_bytes", "published_bytes")
        )
        lines.append(
            f"| {name} | {size} | {allocated:.2f} | {reserved:.2f} | {peak:.2f} | {peak - reserved:.2f} "
            f"| {error:+.2f} |"
        )
    return "\n".join(
        [
            "# Published peaks of an H100, and an emulated one",
            "",
            f"`{facts['command']}`, {facts['at']}: {facts['processors']} processors of {facts['processor']}; Python "
            f"{facts['python']}, the CUDA build of torch {facts['torch'].split('+')[0]} on the emulated device "
            f"({facts['device']}), transformers 4.49. Published: mila-iqia/milabench, `config/scaling/H100.yaml`, "
            "March 2025, torch 2.6, the memory of the whole device.",
            "",
            f"{len(report['jobs'])} jobs, {len(errors)} sizes; one constant for all: {constant / 2**30:.2f} GiB. "
            f"Error of reserved memory and the constant: median {statistics.median(errors):.2f} %, worst "
            f"{max(errors):.2f} %; above 5 %: {sum(error > 5 for error in errors)}.",
            "",
            "| job | size | allocated GiB | reserved GiB | published GiB | difference | error % |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *lines,
            "",
            *(f"* {name}: {why}" for name, why in DIFFERS.items()),
            "* `resnet50-noio` grows twice as fast as `resnet50` because its loader runs the model once in float32, "
            "with images of 244 pixels, and keeps the graph until then.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
