"""Fits the model of kernel times to public ones: `python -m benchmarks.kernel_times FOLDER SINGLES`.

FOLDER has `gemm_bf16_like.csv` and `memory_bound.csv`: median milliseconds of operators of a layer by number of tokens,
as microsoft/vidur (MIT) published them, one row a call. They are not in the repository. What is counted was never
fitted on: each model and width of tensor parallelism is left out in turn, one model is predicted from the other, and
each device from the others. The table that the product reads, `bexplore/estimate/efficiencies.json`, is fitted on all.
SINGLES has products in float32 (`benchmarks.single_kernels`).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import single_kernels
from benchmarks.machine_facts import machine_facts
from bexplore import estimate
from bexplore.estimate.efficiencies import ProductEfficiency, StreamEfficiency
from bexplore.estimate.kernels import HALF_BYTES
from bexplore.estimate.model import Peaks, Shapes, product_seconds, stream_seconds
from bexplore.host.accelerators import DEVICES
from bexplore.host.records import to_record

RESULTS = Path(__file__).parent / "results"
TABLE = Path(estimate.__file__).with_name("efficiencies.json")
SOURCE = (
    "microsoft/vidur (MIT), profiling/compute: median times of the operators of Llama-2-7b and phi-2 in half "
    "precision, fitted by benchmarks/kernel_times.py"
)
COMMAND = "kernel_times FOLDER SINGLES"
DEVICES_FITTED = ("h100", "a100", "a40")
FEWEST_TOKENS = 16  # below, a serving engine decodes; no training has so few
FEWEST_OF_CURVE = 128
EVERY = 9  # rows that are fitted on: neighbours have the same tiles
# Name -> first value, lowest, highest.
PRODUCT_BOUNDS = {
    "peak_share": (0.88, 0.6, 1.0),
    "bandwidth_share": (0.9, 0.5, 1.0),
    "launch_s": (3e-6, 5e-7, 1.2e-5),
    "wave_s": (1.5e-6, 0.0, 8e-6),
    "operand_cost": (10.0, 0.0, 40.0),
    "overlap": (4.0, 1.2, 20.0),
    "smoothness": (0.4, 0.0, 0.95),
    "store_share": (0.1, 0.0, 1.5),
    "split_s": (2e-6, 0.0, 8e-6),
    "clock_loss": (0.03, -0.05, 0.3),
    "choice_spread": (0.05, 0.004, 0.3),
}
STREAM_BOUNDS = {"bandwidth_share": (0.8, 0.2, 1.0), "floor_s": (3e-6, 1e-7, 2e-5), "cache_gain": (0.3, 0.0, 4.0)}
# Additions here are of tensors that the cache partly has. What pointwise kernels reach of a memory's peak where it has
# none, on arrays of up to 1.6 GB in float32: 0.875 to 0.90 on an A100, 0.91 to 0.92 on a V100 (sitar-lab/NeuSight, MIT,
# collect/add to tanh: bytes over the time that grows with them).
POINTWISE_BOUNDS = STREAM_BOUNDS | {"bandwidth_share": (0.88, 0.85, 0.92)}
SOFT = 0.05  # errors of ln beyond which one counts by its size and no longer by its square

Row = dict[str, Any]


@dataclass(frozen=True)
class Times:
    """Rows of one kind of kernels, as arrays of the same length."""

    device: np.ndarray
    group: np.ndarray  # model and width of tensor parallelism
    kind: np.ndarray
    tokens: np.ndarray
    # (num_rows, 3) rows, columns, inner of products; (num_rows, 2) bytes of streams, and how many follow each other
    shape: np.ndarray
    seconds: np.ndarray

    def where(self, chosen: np.ndarray) -> Times:
        return Times(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the two tables of kernel times")
    parser.add_argument("singles", type=Path, help="folder with tables of products in float32, by operator")
    folder = parser.parse_args().folder
    products, streams = read_products(folder), read_streams(folder)
    report: Row = {"products": {}, "streams": {}, "facts": machine_facts() | {"command": COMMAND}}
    table: Row = {"source": SOURCE, "devices": {}}
    for device in DEVICES_FITTED:
        own, moved = products.where(products.device == device), streams.where(streams.device == device)
        report["products"][device], product_errors = judge_products(device, own)
        report["streams"][device], stream_errors = judge_streams(device, moved)
        table["devices"][device] = {
            "product": to_record(fit_product(device, own)),
            "streams": {
                kind: to_record(fit_stream(device, moved.where(moved.kind == kind))) for kind in np.unique(moved.kind)
            },
            "product_spread": spread(own.group, product_errors),
            "stream_spread": spread(moved.group, stream_errors),
        }
        print(device, json.dumps(report["products"][device]["left out in turn"]), flush=True)
    report["transfer"], table["transfer_sd"] = judge_transfer(products, table["devices"])
    report["singles"], singles, errors = single_kernels.fit_singles(
        parser.parse_args().singles, PRODUCT_BOUNDS, minimize, quantiles
    )
    table["singles"] = {
        key: {"product": to_record(own), "spread": {"kernel": float(np.std(errors[key])), "common": 0.0}}
        for key, own in singles.items()
    }
    TABLE.write_text(json.dumps(_rounded(table), indent=1) + "\n")
    (RESULTS / "kernel_times.json").write_text(json.dumps(_rounded(report | {"table": table}), indent=1) + "\n")
    (RESULTS / "kernel_times.md").write_text(markdown(report))
    print(markdown(report))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


# Kernel times


def _read(path: Path) -> Iterator[Row]:
    with path.open() as lines:
        yield from csv.DictReader(lines)


def _gather(rows: list[Row], kinds: list[str], tokens: list[int], shapes: Sequence[tuple[float, ...]]) -> Times:
    times = Times(
        device=np.array([row["device"] for row in rows]),
        group=np.array([f"{row['model']} x{row['tensor_parallel']}" for row in rows]),
        kind=np.array(kinds),
        tokens=np.array(tokens),
        shape=np.array(shapes, dtype=float),
        seconds=np.array([float(row["median_ms"]) * 1e-3 for row in rows]),
    )
    return times.where(times.tokens >= FEWEST_TOKENS)


def read_products(folder: Path) -> Times:
    rows = list(_read(folder / "gemm_bf16_like.csv"))
    tokens = [int(row["m_tokens"]) for row in rows]
    shapes = [(float(row["m_tokens"]), float(row["n"]), float(row["k"])) for row in rows]
    return _gather(rows, [row["operator"] for row in rows], tokens, shapes)


def read_streams(folder: Path) -> Times:
    """Read what moves bytes: norms read and write a row, an addition reads two.

    The activation of Llama multiplies two halves; that of phi-2 has one input. phi-2 adds twice, since attention and
    feed-forward stand side by side, and has another kernel for its norm.
    """
    rows = list(_read(folder / "memory_bound.csv"))
    kinds, moved = [], []
    for row in rows:
        is_llama = row["model"].startswith("Llama")
        if row["operator"] == "mlp_act":
            kind, passes, calls = ("activation", 3, 1) if is_llama else ("gelu", 2, 1)
        elif "norm" in row["operator"]:
            kind, passes, calls = "reduction" if is_llama else "layer_norm", 2, 1
        else:
            kind, passes, calls = "pointwise", 3, 1 if is_llama else 2
        kinds.append(kind)
        moved.append((float(passes * HALF_BYTES * int(row["tokens"]) * int(row["width"])), float(calls)))
    return _gather(rows, kinds, [int(row["tokens"]) for row in rows], moved)


# Fits


def fit_product(device: str, times: Times) -> ProductEfficiency:
    peaks = Peaks.of(DEVICES[device])
    some = times.where(np.arange(len(times.seconds)) % EVERY == 0)
    products = shapes_of(some)

    def errors(values: dict[str, float]) -> np.ndarray:
        return np.log(product_seconds(peaks, ProductEfficiency(**values), products) / some.seconds)

    return ProductEfficiency(**minimize(errors, PRODUCT_BOUNDS))


def shapes_of(times: Times) -> Shapes:
    one = np.ones(len(times.seconds))
    rows, columns, inner = times.shape.T
    return Shapes(rows, columns, inner, one, HALF_BYTES * one)


def fit_stream(device: str, times: Times) -> StreamEfficiency:
    bounds = POINTWISE_BOUNDS if np.all(times.kind == "pointwise") else STREAM_BOUNDS
    return StreamEfficiency(**minimize(lambda values: stream_errors(device, StreamEfficiency(**values), times), bounds))


def stream_errors(device: str, own: StreamEfficiency, times: Times) -> np.ndarray:
    moved, calls = times.shape.T
    return np.log(calls * stream_seconds(Peaks.of(DEVICES[device]), own, moved) / times.seconds)


def minimize(
    errors: Callable[[dict[str, float]], np.ndarray], bounds: dict[str, tuple[float, float, float]]
) -> dict[str, float]:
    """Find the values with the smallest soft errors within bounds, by Levenberg's method from the first values."""
    first, low, high = np.array(list(bounds.values())).T

    def at(place: np.ndarray) -> np.ndarray:
        return errors(dict(zip(bounds, map(float, low + (high - low) * place), strict=True)))

    def cost(error: np.ndarray) -> float:
        return float(np.sum(np.sqrt(1 + (error / SOFT) ** 2) - 1))

    place, damping = (first - low) / (high - low), 1e-2
    error = at(place)
    for _ in range(60):
        step = np.where(place < 0.5, 1e-3, -1e-3)
        jacobian = np.stack([(at(place + step * unit) - error) / step[i] for i, unit in enumerate(np.eye(len(place)))])
        weighted = jacobian / np.sqrt(1 + (error / SOFT) ** 2)
        normal, gradient = weighted @ jacobian.T, weighted @ error
        for _ in range(12):
            moved = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), gradient)
            tried = np.clip(place - moved, 0, 1)
            new = at(tried)
            if cost(new) < cost(error):
                break
            damping *= 3
        else:
            break
        has_settled = cost(error) - cost(new) < 1e-5 * cost(error)
        place, error, damping = tried, new, max(damping / 5, 1e-6)
        if has_settled:
            break
    return dict(zip(bounds, map(float, low + (high - low) * place), strict=True))


# What was not fitted on


def judge_products(device: str, times: Times) -> tuple[Row, np.ndarray]:
    """Return the errors by scheme, and each row's error of ln when its own group was left out."""
    left_out = np.zeros(len(times.seconds))
    for group in np.unique(times.group):
        inside = times.group == group
        left_out[inside] = product_errors(device, fit_product(device, times.where(~inside)), times.where(inside))
    rows = {"left out in turn": summarize(times, left_out)}
    for group in np.unique(times.group):
        inside = times.group == group
        rows[f"left out: {group}"] = summarize(times.where(inside), left_out[inside])
    is_phi = np.char.startswith(times.group, "phi")
    for name, inside in (("phi-2 from Llama-2-7b", is_phi), ("Llama-2-7b from phi-2", ~is_phi)):
        errors = product_errors(device, fit_product(device, times.where(~inside)), times.where(inside))
        rows[name] = summarize(times.where(inside), errors)
    fitted = product_errors(device, fit_product(device, times), times)
    return rows | {"fitted on all": summarize(times, fitted)}, left_out


def product_errors(device: str, own: ProductEfficiency, times: Times) -> np.ndarray:
    return np.log(product_seconds(Peaks.of(DEVICES[device]), own, shapes_of(times)) / times.seconds)


def judge_streams(device: str, times: Times) -> tuple[Row, np.ndarray]:
    """Return the errors by kind with each group left out in turn.

    phi-2 alone has its norm and its activation: of these every other number of tokens is left out.
    """
    left_out = np.zeros(len(times.seconds))
    for kind in np.unique(times.kind):
        own_kind = times.kind == kind
        groups = np.unique(times.group[own_kind])
        part = times.group if len(groups) > 1 else np.arange(len(times.seconds)) % 2
        for one in np.unique(part[own_kind]):
            inside = own_kind & (part == one)
            own = fit_stream(device, times.where(own_kind & (part != one)))
            left_out[inside] = stream_errors(device, own, times.where(inside))
    rows = {"left out in turn": quantiles(left_out)}
    is_phi = np.char.startswith(times.group, "phi")
    for name, inside in (("Llama-2-7b", ~is_phi), ("phi-2", is_phi)):
        rows |= {
            f"{name}, {kind}": quantiles(left_out[inside & (times.kind == kind)])
            for kind in np.unique(times.kind[inside])
        }
    return rows, left_out


def judge_transfer(products: Times, devices: Row) -> tuple[Row, float]:
    """Return the errors of each device with another one's efficiencies, and their common standard deviation."""
    rows, biases = {}, []
    for device in DEVICES_FITTED:
        times = products.where(products.device == device)
        for other in DEVICES_FITTED:
            if other != device:
                errors = product_errors(device, ProductEfficiency(**devices[other]["product"]), times)
                rows[f"{device} from {other}"] = summarize(times, errors)
                biases.append(float(np.mean(errors)))
    return rows, float(np.sqrt(np.mean(np.square(biases))))


def quantiles(errors: np.ndarray) -> Row:
    return {
        "median_error": float(np.median(np.abs(errors))),
        "p90_error": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
    }


def summarize(times: Times, errors: np.ndarray) -> Row:
    """Add what the sum of a layer's products over tokens is wrong by, and what the estimated best number loses."""
    shapes, losses = [], []
    for group in np.unique(times.group):
        inside = (times.group == group) & (times.tokens >= FEWEST_OF_CURVE)
        tokens, place = np.unique(times.tokens[inside], return_inverse=True)
        # one number of tokens was measured twice: a mean for each is that of the four operators
        count = np.bincount(place)
        true = np.bincount(place, times.seconds[inside]) / count
        seen = np.bincount(place, times.seconds[inside] * np.exp(errors[inside])) / count
        shapes.append(float(np.std(np.log(seen / true))))
        throughput = tokens / true
        losses.append(float(1 - throughput[np.argmax(tokens / seen)] / throughput.max()))
    return quantiles(errors) | {
        "shape_rms": float(np.mean(shapes)),
        "loss_mean": float(np.mean(losses)),
        "loss_worst": max(losses),
    }


def spread(groups: np.ndarray, errors: np.ndarray) -> Row:
    """Return the standard deviations of one kernel's own error, and of what a group's have in common."""
    names, place = np.unique(groups, return_inverse=True)
    biases = np.array([np.mean(errors[groups == name]) for name in names])
    return {"kernel": float(np.std(errors - biases[place])), "common": float(np.sqrt(np.mean(biases**2)))}


def markdown(report: Row) -> str:
    """The report for people."""
    head = "| device | kernels | median % | p90 % | bias % | shape rms % | best tokens lose %: mean | worst |"
    lines = [
        f"| {device} | {name} | "
        + " | ".join(
            f"{100 * row[key]:.1f}" if key in row else ""
            for key in ("median_error", "p90_error", "bias", "shape_rms", "loss_mean", "loss_worst")
        )
        + " |"
        for part in ("products", "streams", "singles")
        for device, rows in report[part].items()
        for name, row in ((f"{part}, {name}", row) for name, row in rows.items())
    ]
    lines += [
        f"| {name.split()[0]} | products, {name} | {100 * row['median_error']:.1f} | {100 * row['p90_error']:.1f} | "
        f"{100 * row['bias']:.1f} | {100 * row['shape_rms']:.1f} | {100 * row['loss_mean']:.1f} | "
        f"{100 * row['loss_worst']:.1f} |"
        for name, row in report["transfer"].items()
    ]
    return "\n".join(
        [
            "# Estimated and published kernel times",
            "",
            f"`python -m benchmarks.{report['facts']['command']}`, {report['facts']['at']}. Times: {SOURCE}. At "
            f"least {FEWEST_TOKENS} tokens. Errors are of ln; a positive bias is an estimate that is too slow. The "
            "shape is that of the sum of a layer's four products over numbers of tokens from "
            f"{FEWEST_OF_CURVE} on. Times of kernels that move bytes were published in whole microseconds.",
            "",
            head,
            "|---|---|---:|---:|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
