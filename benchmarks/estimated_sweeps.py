"""Estimated against published sweeps over the micro-batch size: `python -m benchmarks.estimated_sweeps FOLDER`.

FOLDER has the tables of published sweeps, columns as `bexplore replay` reads them. Jobs are rebuilt from their authors'
configurations, traced operator by operator for an absent device, and their steps estimated with the update. Nothing is
fitted on them. What is not rebuilt is listed with the reason.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine_facts import machine_facts
from bexplore.estimate.confidence import ErrorDraws, SizeEstimate
from bexplore.estimate.dispatch import overlap_seconds
from bexplore.host.accelerators import DEVICES, Device
from bexplore.job import CompileSettings, Job, Precision
from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.trace.absent_gpu import GpuProperties, stand_in

RESULTS = Path(__file__).parent / "results"
AMP = Precision.AUTOCAST_BFLOAT16  # as fast as float16
OWN_LOADING = "reads and decodes images while it trains"

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """A job as its authors configure it, and the sweeps of it."""

    curves: tuple[tuple[str, str], ...]  # (start of the sweep's name, key of the device)
    model: Row
    precision: Precision = Precision.FLOAT32
    allows_tf32: bool = False
    optimizer: Row = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    loading: str = ""  # why loading data may dominate; empty for synthetic data

    @property
    def job(self) -> Job:
        return Job(
            workload="transformers",
            model=self.model,
            compile=CompileSettings(enabled=False),
            precision=self.precision,
            sequence_length=self.sequence_length,
            optimizer=self.optimizer.get("name", "SGD"),
            optimizer_arguments=self.optimizer.get("arguments", {"lr": 0.01}),
            device="cuda:0",
        )


_ADAM = {"name": "Adam", "arguments": {"lr": 0.001}}
_MOMENTUM = {"name": "SGD", "arguments": {"lr": 0.1, "momentum": 0.9}}
_BERT: Row = {"model": {"task": "masked_lm", "model_type": "bert", "config": {}}, "sequence_length": 512}
_BERT |= {"optimizer": _ADAM}
_LARGE_CONVNEXT = {"depths": [3, 3, 27, 3], "hidden_sizes": [192, 384, 768, 1536]}
_WIDE_REGNET = {"layer_type": "y", "depths": [2, 7, 17, 1], "hidden_sizes": [528, 1056, 2904, 7392]}
_WIDE_REGNET |= {"groups_width": 264, "embedding_size": 32}
_FOCALNET = {"embed_dim": 128, "depths": [2, 2, 18, 2], "focal_levels": [3, 3, 3, 3]}


def _images(model_type: str, config: Row) -> Row:
    return {"task": "image_classification", "model_type": model_type, "config": {"num_labels": 1000} | config}


def _milabench(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"milabench/{name}/", "h100") for name in names)


# Source: mila-iqia/milabench (MIT), config/base.yaml and benchmarks/; ml-energy/zeus (Apache-2.0); stanford-futuredata/
# gavel (MIT), workloads of PyTorch's own ImageNet example.
REBUILT = {
    "BERT base, fp32": Rebuilt(curves=_milabench("bert-fp32"), **_BERT),
    "BERT base, tf32": Rebuilt(curves=_milabench("bert-tf32"), allows_tf32=True, **_BERT),
    "BERT base, mixed": Rebuilt(curves=_milabench("bert-fp16", "bert-tf32-fp16"), precision=AMP, **_BERT),
    "T5 small": Rebuilt(
        curves=_milabench("t5"),
        # T5 of the library had no fused attention at the time of these sweeps, 2024.
        model={"task": "seq2seq_lm", "model_type": "t5", "config": {"_attn_implementation": "eager"}},
        precision=AMP,
        allows_tf32=True,
        optimizer=_ADAM,
        sequence_length=1024,
    ),
    "Reformer": Rebuilt(
        curves=_milabench("reformer"),
        model={"task": "masked_lm", "model_type": "reformer", "config": {"num_buckets": 128, "is_decoder": False}},
        precision=AMP,
        allows_tf32=True,
        optimizer=_ADAM,
        sequence_length=4096,
    ),
    "ConvNeXt large, fp32": Rebuilt(
        curves=_milabench("convnext_large-fp32"), model=_images("convnext", _LARGE_CONVNEXT)
    ),
    "ConvNeXt large, tf32": Rebuilt(
        curves=_milabench("convnext_large-tf32"), model=_images("convnext", _LARGE_CONVNEXT), allows_tf32=True
    ),
    "ConvNeXt large, mixed": Rebuilt(
        curves=_milabench("convnext_large-fp16", "convnext_large-tf32-fp16"),
        model=_images("convnext", _LARGE_CONVNEXT),
        precision=AMP,
        loading=OWN_LOADING,
    ),
    "ResNet-50, mixed": Rebuilt(curves=_milabench("resnet50-noio"), model=_images("resnet", {}), precision=AMP),
    "ResNet-50, mixed, with loading": Rebuilt(
        curves=_milabench("resnet50"), model=_images("resnet", {}), precision=AMP, loading=OWN_LOADING
    ),
    "RegNetY 128GF": Rebuilt(
        curves=_milabench("regnet_y_128gf"), model=_images("regnet", _WIDE_REGNET), precision=AMP, loading=OWN_LOADING
    ),
    "FocalNet base": Rebuilt(
        curves=_milabench("focalnet"),
        model=_images("focalnet", _FOCALNET),
        precision=AMP,
        optimizer=_MOMENTUM,
        loading=OWN_LOADING,
    ),
    "ResNet-50, ImageNet": Rebuilt(
        curves=(
            ("zeus/resnet50_imagenet/A40", "a40"),
            ("zeus/resnet50_imagenet/V100", "v100"),
            ("gavel/ResNet-50/V100/fp32/simulation_gpus=1", "v100-16gb"),
        ),
        model=_images("resnet", {}),
        allows_tf32=True,
        optimizer=_MOMENTUM,
        loading=OWN_LOADING,
    ),
}
# Start of the sweep's name -> why it is not rebuilt.
LEFT_OUT = {
    "milabench/(diffusion|dinov2|vjepa|rlhf|llm-lora)": "a program of several models or adapters, not rebuilt yet",
    "milabench/(lightning|resnet152-ddp|...-gpus)": "several devices, or an input pipeline that is not told",
    "milabench/(pna|recursiongfn)": "graphs, whose sizes are not told",
    "milabench/whisper": "no task for audio here",
    "zeus/bert, deepspeech2, ncf, shufflenetv2": "lengths of the samples are not told, or loading dominates",
    "zeus/resnet50 on P100 and Quadro RTX 6000": "no efficiencies of these devices in float32",
    "gavel/(others)": "shared machines, whose sweeps are noisy beyond 10 %, and no models of the time",
    "profet": "TensorFlow 2.5, whose host and kernels are others",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the tables of published sweeps")
    parser.add_argument("--only", action="append", help="a job; default: all")
    arguments = parser.parse_args()
    properties = GpuProperties.from_device(DEVICES["h100"])
    assert properties is not None
    stand_in(properties)
    curves, rows, failed = read_curves(arguments.folder), [], {}
    for name in arguments.only or REBUILT:
        try:
            rows += judge_job(name, curves)
        except Exception as error:  # it is listed
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(name, failed.get(name, ""), flush=True)
    report = {
        "facts": machine_facts() | {"command": "python -m benchmarks.estimated_sweeps FOLDER"},
        "rows": rows,
        "failed": failed,
    }
    if not arguments.only:
        (RESULTS / "estimated_sweeps.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "estimated_sweeps.md").write_text(markdown(report))
    print(markdown(report))


def read_curves(folder: Path) -> dict[str, dict[int, float]]:
    """Return samples a second by size of each sweep; of repeats the median."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                if row["oom"] != "1" and float(row["throughput_samples_per_s"] or 0) > 0:
                    found[row["curve_id"]][int(row["micro_batch_size"])].append(float(row["throughput_samples_per_s"]))
    return {name: {size: float(np.median(own)) for size, own in sorted(sizes.items())} for name, sizes in found.items()}


def judge_job(name: str, curves: Mapping[str, Mapping[int, float]]) -> list[Row]:
    """Trace a job and judge the estimate of each of its sweeps."""
    import torch

    from bexplore.trace.tracer import trace_job  # it imports torch, which sees the device only now

    rebuilt = REBUILT[name]
    torch.set_float32_matmul_precision("high" if rebuilt.allows_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = rebuilt.allows_tf32
    traced = trace_job(rebuilt.job)
    rows = []
    for start, key in rebuilt.curves:
        (curve,) = (curve for curve in curves if curve.startswith(start))
        estimates = [estimate_step(DEVICES[key], rebuilt.job, traced, size) for size in curves[curve]]
        rows.append(
            {"job": name, "curve": curve, "device": DEVICES[key].name, "loading": rebuilt.loading}
            | judge(curves[curve], estimates)
        )
    return rows


def estimate_step(device: Device, job: Job, traced: Any, size: int) -> SizeEstimate:
    """Return the estimate of a step of one pass and its update."""
    from bexplore.trace.pass_times import estimate_pass, estimate_update

    one, update = estimate_pass(device, job, traced, size), estimate_update(device, traced)
    assert one is not None and update is not None
    return SizeEstimate(
        micro_batch_size=size,
        seconds=one.kernels_s + update.kernels_s,
        own_sd=one.own_sd,
        host_s=one.host_s + update.host_s,
    )


def judge(curve: Mapping[int, float], estimates: list[SizeEstimate]) -> Row:
    """Return which size is estimated best, what it loses, its score, and the error of the curve's shape."""
    sizes = np.array(list(curve))
    seconds = overlap_seconds(np.array([one.seconds for one in estimates]), np.array([one.host_s for one in estimates]))
    estimated, published = sizes / seconds, np.array(list(curve.values()))
    best = int(np.argmax(estimated))
    logs = np.log(estimated / published)
    own = logs[1:] if sizes[0] == 1 else logs
    return {
        "sizes": sizes.tolist(),
        "published": published.tolist(),
        "estimated": estimated.tolist(),
        "host_s": estimates[0].host_s,
        "best": int(sizes[best]),
        "loss": float(1 - published[best] / published.max()),
        "score": float((ErrorDraws(estimates).regrets(int(sizes[best])) <= INDIFFERENCE_ZONE).mean()),
        "shape_rms": float(np.std(logs)),
        "shape_rms_beyond_one": float(np.std(own)),
        "gain_over_one": float(logs[best] - logs[0]) if sizes[0] == 1 else None,
    }


def markdown(report: Row) -> str:
    """The report for people."""
    rows = report["rows"]
    lines = [
        f"| {row['curve'].split('/', 1)[0]}: {row['job']} | {row['device']} | {len(row['sizes'])} | {row['best']} | "
        f"{row['sizes'][int(np.argmax(row['published']))]} | {100 * row['loss']:.1f} | {100 * row['score']:.0f} | "
        f"{'yes' if row['loss'] <= INDIFFERENCE_ZONE else 'no'} | {100 * row['shape_rms']:.0f} | "
        f"{100 * row['shape_rms_beyond_one']:.0f} | "
        f"{'' if row['gain_over_one'] is None else format(100 * np.expm1(row['gain_over_one']), '+.0f')} | "
        f"{'yes' if row['loading'] else ''} |"
        for row in rows
    ]
    right = sum(row["loss"] <= INDIFFERENCE_ZONE for row in rows)
    losses = [row["loss"] for row in rows]
    scores = [row["score"] for row in rows]
    facts = report["facts"]
    return "\n".join(
        [
            "# Estimated and published sweeps",
            "",
            f"`{facts['command']}`, {facts['at']}. {len(rows)} sweeps of {len({row['job'] for row in rows})} jobs: the "
            f"size that is estimated best loses {100 * np.mean(losses):.1f} % in the mean, {100 * max(losses):.1f} % "
            f"at most; it is within {INDIFFERENCE_ZONE:.0%} of the best in {right} of {len(rows)}, and its scores "
            f"expect {sum(scores):.1f}. Shape: median rms {100 * np.median([row['shape_rms'] for row in rows]):.0f} %, "
            f"without size 1 {100 * np.median([row['shape_rms_beyond_one'] for row in rows]):.0f} %.",
            "",
            "Shape is the standard deviation of ln of estimated over published speed; the last but one column, how far "
            "the speed over size 1 is off. Images that are read and decoded while the job trains are not estimated.",
            "",
            "| sweep | device | sizes | estimated best | best | loss % | score | right | shape % | without 1 | "
            "over size 1 % | loads data |",
            "|---|---|---:|---:|---:|---:|---:|---|---:|---:|---:|---|",
            *lines,
            "",
            "Not rebuilt:",
            "",
            *(f"* {name}: {why}" for name, why in (LEFT_OUT | report["failed"]).items()),
            "",
        ]
    )


if __name__ == "__main__":
    main()
