"""Scores of estimated sizes against measured kernel times: `python -m benchmarks.estimated_scores FOLDER`.

FOLDER has the tables of `benchmarks.kernel_times`. The four products of a layer over its number of tokens stand for a
job whose sizes are these numbers. Sizes are chosen by the estimate alone; the truth is the published time. Beside that,
how alike errors at two numbers of tokens are: the variogram, half the mean square of their difference.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernel_times import RESULTS, Times, read_products, read_streams
from benchmarks.machine_facts import machine_facts
from bexplore.estimate.confidence import ErrorDraws, SizeEstimate
from bexplore.estimate.kernels import MatrixProduct, Stream
from bexplore.estimate.model import estimate_kernels, estimate_sum
from bexplore.host.accelerators import DEVICES
from bexplore.job.batching import INDIFFERENCE_ZONE

Row = dict[str, Any]
DISTANCES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of ln of the tokens: bounds of the rows of the variogram
RANGES = ((128, 512), (128, 1024), (128, 4096), (256, 2048), (512, 4096), (1024, 4096))  # of tokens, of a job
STEPS = (1, 2, 4)  # of the candidates: each of the published numbers of tokens, or every second or fourth
SCORES = (0, 20, 40, 60, 80, 101)


def errors_of(times: Times, device: str) -> np.ndarray:
    """Return ln of estimated over published seconds of each row."""
    is_stream = times.shape.shape[1] == 2  # bytes, and how many such kernels follow each other
    kernels = [
        Stream(num_bytes=shape[0], kind=str(kind))
        if is_stream
        else MatrixProduct(rows=int(shape[0]), columns=int(shape[1]), inner=int(shape[2]))
        for shape, kind in zip(times.shape, times.kind, strict=True)
    ]
    found = estimate_kernels(DEVICES[device], kernels)
    assert found is not None
    calls = times.shape[:, 1] if is_stream else 1.0
    return np.log(np.array([one.seconds for one in found]) * calls / times.seconds)


def variogram(times: Times, errors: np.ndarray) -> list[float]:
    """Return the root of the variogram in each class of distances, over the curves of one kernel."""
    squares: dict[int, list[float]] = collections.defaultdict(list)
    for curve in {(group, kind) for group, kind in zip(times.group, times.kind, strict=True)}:
        own = (times.group == curve[0]) & (times.kind == curve[1])
        at, error = np.log(times.tokens[own]), errors[own]
        distances = np.abs(np.subtract.outer(at, at))
        pairs = np.triu(distances > 0)
        classes = np.digitize(distances[pairs], DISTANCES[1:])
        halves = 0.5 * np.subtract.outer(error, error)[pairs] ** 2
        for one in np.unique(classes):
            squares[int(one)].append(float(halves[classes == one].mean()))
    return [float(np.sqrt(np.mean(squares[one]))) for one in sorted(squares)]


def curves(products: Times) -> Iterator[tuple[str, np.ndarray]]:
    """Yield device and (tokens, published s, estimated s, own error) of each layer."""
    for device in np.unique(products.device):
        for group in np.unique(products.group):
            own = products.where((products.device == device) & (products.group == group))
            rows = []
            for tokens in np.unique(own.tokens):
                layer = own.where(own.tokens == tokens)
                shapes = [MatrixProduct(rows=int(m), columns=int(n), inner=int(k)) for m, n, k in layer.shape]
                found = estimate_sum(DEVICES[device], collections.Counter(shapes))
                assert found is not None
                rows.append((tokens, layer.seconds.sum(), found.seconds, found.own_sd))
            yield device, np.array(rows)


def judge(curve: np.ndarray) -> tuple[float, float]:
    """Return the probability of the size that is estimated best, and what it loses."""
    estimates = [
        SizeEstimate(micro_batch_size=int(tokens), seconds=seconds, own_sd=own) for tokens, _, seconds, own in curve
    ]
    best = int(np.argmax(curve[:, 0] / curve[:, 2]))
    regrets = ErrorDraws(estimates).regrets(int(curve[best, 0]))
    speeds = curve[:, 0] / curve[:, 1]
    return float((regrets <= INDIFFERENCE_ZONE).mean()), 1.0 - speeds[best] / speeds.max()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the two tables of kernel times")
    folder = parser.parse_args().folder
    products, streams = read_products(folder), read_streams(folder)
    report: Row = {
        "variogram": {},
        "facts": machine_facts() | {"command": "python -m benchmarks.estimated_scores FOLDER"},
    }
    for name, times in (("products", products), ("streams", streams)):
        for device in np.unique(times.device):
            own = times.where((times.device == device) & (times.tokens >= RANGES[0][0]))
            report["variogram"][f"{device}, {name}"] = variogram(own, errors_of(own, device))
    judged = [
        judge(curve[(curve[:, 0] >= low) & (curve[:, 0] <= high)][::step])
        for _, curve in curves(products)
        for low, high in RANGES
        for step in STEPS
    ]
    report["judged"] = [[round(score, 4), round(loss, 5)] for score, loss in judged]
    (RESULTS / "estimated_scores.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "estimated_scores.md").write_text(markdown(report))
    print(markdown(report))


def reliability(judged: list[tuple[float, float]]) -> list[str]:
    """Return a row of the table for each class of scores, and one for all."""
    scores, losses = np.array(judged).T
    lines = []
    for low, high in [*itertools.pairwise(SCORES), (0, SCORES[-1])]:
        own = (100 * scores >= low) & (100 * scores < high)
        if not own.any():
            continue
        right = losses[own] <= INDIFFERENCE_ZONE
        name = "all" if (low, high) == (0, SCORES[-1]) else f"{low} to {min(high, 100)}"
        lines.append(
            f"| {name} | {own.sum()} | {100 * scores[own].mean():.0f} | {100 * right.mean():.0f} % | "
            f"{100 * losses[own].mean():.1f} % |"
        )
    return lines


def markdown(report: Row) -> str:
    """The report for people."""
    heads = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(DISTANCES)] + [f"{DISTANCES[-1]:g} on"]
    return "\n".join(
        [
            "# Scores of estimated sizes",
            "",
            f"`{report['facts']['command']}`, {report['facts']['at']}. Published: microsoft/vidur (MIT). Sizes that "
            "are estimated best, of curves of a layer's products over tokens: their scores, the share that lies within "
            f"{INDIFFERENCE_ZONE:.0%} of the truly best, and what they lose.",
            "",
            "| score | curves | mean score | right | loss |",
            "|---|---:|---:|---:|---:|",
            *reliability(report["judged"]),
            "",
            "Root of the variogram of errors, % of a kernel's time, by the distance in ln of the tokens:",
            "",
            f"| | {' | '.join(heads)} |",
            "|---|" + "---:|" * len(heads),
            *(
                f"| {name} | {' | '.join(f'{100 * one:.1f}' for one in values)} |"
                for name, values in report["variogram"].items()
            ),
            "",
        ]
    )


if __name__ == "__main__":
    main()
