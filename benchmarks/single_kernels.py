"""Products in float32 without tensor cores: public times of random shapes, fitted and counted for `kernel_times`.

The folder is scripts/asplos/data/dataset/train/collect of sitar-lab/NeuSight (MIT): linear layers on three GPUs. Shapes
that are counted were not fitted on. Its batches of products have odd dimensions, which those of an attention have not:
they are counted, and not fitted on.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bexplore.estimate.efficiencies import ProductEfficiency
from bexplore.estimate.kernels import SINGLE_BYTES
from bexplore.estimate.model import Peaks, Shapes, product_seconds
from bexplore.host.accelerators import DEVICES

SOURCE = "sitar-lab/NeuSight (MIT): products of random shapes in float32"
# Key in the table -> its file, and what this card has in place of the table's: multiples of its clock and bandwidth.
# Source: NVIDIA's data sheets: 14.13 TFLOP/s of a V100 PCIe, 1,555 GB/s of an A100 with 40 GB.
CARDS = {
    "a100": ("NVIDIA A100-PCIE-40GB", 1.0, 1.555 / 2.0),
    "v100": ("Tesla V100-PCIE-32GB", 14.13 / 15.67, 1.0),
    "t4": ("Tesla T4", 1.0, 1.0),
}
FEWEST_FLOPS, FEWEST_S = 1e9, 1.2e-4  # below, a launch counts more than the kernel
# What the timer adds. Source: the same folder, add, mul and div of arrays that exceed the cache fourfold: what does not
# grow with their bytes is 15, 17 and 14 us on the three cards.
TIMER_S = 1.5e-5
NUM_FITTED, NUM_COUNTED = 800, 4000
SHARES_OF_FLOPS = (1e9, 1e10, 1e11, 1e15)

Row = dict[str, Any]


@dataclass(frozen=True)
class Singles:
    """Products of one card."""

    shapes: np.ndarray  # (num_products, 4) batch, rows, columns, inner
    seconds: np.ndarray

    @property
    def flops(self) -> np.ndarray:
        return 2 * self.shapes.prod(axis=1)

    def take(self, places: np.ndarray) -> Singles:
        return Singles(self.shapes[places], self.seconds[places])


def fit_singles(
    folder: Path,
    bounds: dict[str, tuple[float, float, float]],
    minimize: Callable[..., dict[str, float]],
    quantiles: Callable[[np.ndarray], Row],
) -> tuple[Row, dict[str, ProductEfficiency], dict[str, np.ndarray]]:
    """Return errors by card and number of operations, the fitted numbers, and the counted errors of ln."""
    report, fitted, errors = {}, {}, {}
    within = bounds | {"peak_share": (0.88, 0.3, 1.0), "launch_s": (2e-6, 5e-7, 5e-6)}
    within |= {"bandwidth_share": (0.8, 0.4, 1.0), "smoothness": (0.3, 0.0, 0.95)}
    for key, (card, clock, bandwidth) in CARDS.items():
        singles, batches = read_singles(folder, "linear", card), read_singles(folder, "bmm", card)
        order = np.random.default_rng(0).permutation(len(singles.seconds))
        some, others = singles.take(order[:NUM_FITTED]), singles.take(order[NUM_FITTED : NUM_FITTED + NUM_COUNTED])
        peaks = peaks_of(key, clock, bandwidth)

        def error(values: dict[str, float], times: Singles = some, peaks: Peaks = peaks) -> np.ndarray:
            batch, rows, columns, inner = times.shapes.T
            shapes = Shapes(rows, columns, inner, batch, np.full(len(rows), SINGLE_BYTES, dtype=float))
            seconds = product_seconds(peaks, ProductEfficiency(**values), shapes) + TIMER_S
            return np.asarray(np.log(seconds / times.seconds))

        values = minimize(error, within)
        errors[key] = error(values, others)
        fitted[key] = ProductEfficiency(**values)
        report[key] = {"others": quantiles(errors[key]), "batches": quantiles(error(values, batches))}
        for fewest, most in itertools.pairwise(SHARES_OF_FLOPS):
            inside = (others.flops >= fewest) & (others.flops < most)
            report[key][f"others, {fewest:.0e} operations and more"] = quantiles(errors[key][inside])
        print("float32", key, report[key]["others"], flush=True)
    return report, fitted, errors


def peaks_of(key: str, clock: float, bandwidth: float) -> Peaks:
    peaks = Peaks.of(DEVICES[key])
    flops_per_s = {SINGLE_BYTES: (peaks.flops_per_s[SINGLE_BYTES] or 0) * clock}
    return replace(peaks, flops_per_s=flops_per_s, bytes_per_s=peaks.bytes_per_s * bandwidth)


def read_singles(folder: Path, operator: str, card: str) -> Singles:
    with (folder / operator / "p2.1.0" / f"{card}.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    shapes = np.array([[float(row[name]) for name in "BMNK"] for row in rows])
    singles = Singles(shapes, np.array([float(row["Latency"]) * 1e-3 for row in rows]))
    return singles.take((singles.flops >= FEWEST_FLOPS) & (singles.seconds >= FEWEST_S))
