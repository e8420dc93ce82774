"""Kernels of the program that the probes share against those of the exact one: `python -m benchmarks.shared_kernels`.

For CUDA jobs, on a device that is absent: nothing runs, the programs that Inductor writes are counted. Every program is
written in a process of its own (`shared_kernels_child`) by the functions that the worker uses. What is kept already in
the result file is not written again: `--again` starts over, `--report` only draws the tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.shared_kernels_child import DEVICE, KEPT_BLOCKS, STATIC
from bexplore.host.machine import package_version

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RECORDED = ROOT / "tests" / "recorded" / "shared_kernels.json"  # the same for the tests, which hold the modes to it
MIDDLE_SIZES = {"gpt": 32, "llama_hf": 32, "bert": 64, "vit": 64}
BOUND = 41  # samples up to which no tensor of the GPT has 2^31 elements
WAYS = {
    STATIC: "exact",
    "dynamic_largest": "dynamic (backed), for the largest size",
    "dynamic": "dynamic (backed)",
    "unbacked_hint": "unbacked, with a hint",
    "unbacked_bound": f"unbacked, with a hint and a bound of {BOUND} samples",
    "nested_hint": "nested, with a hint",
    "unbacked": "unbacked",
    "nested": "nested",
}
WAYS_OF_ONE_JOB = ("unbacked_hint", "unbacked_bound", "nested_hint", "unbacked", "nested")  # no others use them


def request(name: str, way: str) -> dict[str, Any]:
    """Give the arguments of `write_program` for one way to compile a job."""
    middle = MIDDLE_SIZES[name]
    mode, _, extra = way.partition("_")
    # The middle size first, as in an exploration, then the smallest and others on both sides of it.
    sizes = [middle, 1, 2, 8, 16, 2 * middle] if mode == "dynamic" else [middle]
    return {
        "name": name,
        "mode": mode,
        "sizes": sizes,
        "hint": middle if extra and mode != "dynamic" else None,
        "largest": {"bound": BOUND, "largest": 2 * middle}.get(extra),
    }


def write_program_apart(arguments: dict[str, Any]) -> list[dict[str, Any]] | dict[str, str]:
    """Run `write_program` in a process of its own; where it fails, give the `error`'s last line."""
    command = [sys.executable, "-m", "benchmarks.shared_kernels_child", json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": next(reversed(done.stderr.strip().splitlines()), "no reason given")[:300]}
    return json.loads(done.stdout.splitlines()[-1])


def totals(record: dict[str, Any]) -> dict[str, int]:
    """Sum the counts of a size over its graphs, forward and backward apart for `kernels` and `launches`."""
    graphs = record["graphs"]
    sums = {name: sum(graph[name] for graph in graphs) for name in ("unsplit_reductions", "wide_index_kernels")}
    for name in ("kernels", "launches"):
        for phase, is_backward in (("forward", False), ("backward", True)):
            own = (graph[name] for graph in graphs if graph["is_backward"] is is_backward)
            sums[f"{name}_{phase}"] = sum(own)
    return sums


def report(results: dict[str, Any]) -> str:
    """Draw the tables of a result file."""
    lines = [
        "# Kernels of the shared program against the exact one, for a CUDA device",
        "",
        f"Written by `python -m benchmarks.shared_kernels`: torch {results['torch']}, Triton {results['triton']}, the "
        f"device {results['device']} absent; the jobs `engine_cuda_*` with {results['kept_blocks']} of their blocks. "
        "Nothing ran: the programs that Inductor writes were counted.",
        "",
        "Kernels: different ones of Triton, forward / backward. Launches: of them, in a pass; of libraries: launches "
        "too. Unsplit: reductions of 2^20 elements and more by so few programs that the device is idle. 64-bit: "
        "kernels that compute their indices so. Padding: operands and result of the largest matrix product that the "
        "compiler would time with and without padding.",
        "",
        "| job | samples | program | kernels | launches | by kind | of libraries | unsplit | 64-bit | padding, GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(line for name in MIDDLE_SIZES for line in _rows(name, results["programs"].get(name, {}))),
        "",
        "Compilations over an exploration of six sizes, in this order (dynamic; an unbacked program compiles once):",
        "",
        "| job | program | sizes | compilations | why again |",
        "|---|---|---|---|---|",
        *(
            _compilations(name, way, results["programs"].get(name, {}))
            for way in ("dynamic_largest", "dynamic")
            for name in MIDDLE_SIZES
        ),
        "",
    ]
    return "\n".join(lines)


def _rows(name: str, ways: dict[str, Any]) -> Iterator[str]:
    for way, words in WAYS.items():
        if way not in ways:
            continue
        if isinstance(ways[way], dict):
            yield f"| {name} | {MIDDLE_SIZES[name]} | {words} | {ways[way]['error']} | | | | | | |"
            continue
        record = ways[way][0]
        sums = totals(record)
        kinds = _summed_kinds(record)
        own = {kind: count for kind, count in kinds.items() if _is_kind(kind)}
        of_libraries = {kind: count for kind, count in kinds.items() if not _is_kind(kind)}
        yield (
            f"| {name} | {record['micro_batch_size']} | {words} "
            f"| {sums['kernels_forward']} / {sums['kernels_backward']} "
            f"| {sums['launches_forward']} / {sums['launches_backward']} | {_listed(own)} | {_listed(of_libraries)} "
            f"| {sums['unsplit_reductions']} | {sums['wide_index_kernels']} | {record['pad_mm_gib']:.1f} |"
        )


def _summed_kinds(record: dict[str, Any]) -> dict[str, int]:
    kinds = sorted({kind for graph in record["graphs"] for kind in graph["by_kind"]})
    return {kind: sum(graph["by_kind"].get(kind, 0) for graph in record["graphs"]) for kind in kinds}


def _is_kind(name: str) -> bool:
    return name in ("pointwise", "reduction", "persistent_reduction", "template", "foreach", "split_scan", "unknown")


def _listed(counts: dict[str, int]) -> str:
    def short(name: str) -> str:
        return name.removeprefix("aten.").removesuffix(".default").replace("_scaled_dot_product_", "")

    return ", ".join(f"{short(name)} {count}" for name, count in counts.items())


def _compilations(name: str, way: str, ways: dict[str, Any]) -> str:
    records = ways.get(way, [])
    if isinstance(records, dict):
        return f"| {name} | {WAYS[way]} | | | {records['error']} |"
    sizes = ", ".join(str(record["micro_batch_size"]) for record in records)
    counts = ", ".join(str(record["compilations"]) for record in records)
    reasons = {reason for record in records for reason in record["recompile_reasons"]}
    why = "; ".join(sorted(reason.partition("  #")[0].partition(": ")[2].replace("|", "/") for reason in reasons))
    return f"| {name} | {WAYS[way]} | {sizes} | {counts} | {why} |"


def main() -> None:
    """Write what is missing, and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="start over")
    parser.add_argument("--report", action="store_true", help="only draw the tables")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    options = parser.parse_args()
    path = RESULTS / "shared_kernels.json"
    results: dict[str, Any] = {
        "torch": package_version("torch"),
        "triton": package_version("triton"),
        "device": DEVICE,
        "kept_blocks": KEPT_BLOCKS,
        "programs": {},
    }
    if path.exists() and not options.again:
        results = json.loads(path.read_text())
    programs = results["programs"]
    missing = [
        (name, way)
        for way in WAYS
        for name in MIDDLE_SIZES
        if way not in programs.get(name, {}) and (name == "gpt" or way not in WAYS_OF_ONE_JOB)
    ]

    def write(case: tuple[str, str]) -> None:
        name, way = case
        programs.setdefault(name, {})[way] = write_program_apart(request(name, way))
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(name, way, flush=True)

    if not options.report:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(write, missing))
    RECORDED.write_text(path.read_text())
    (RESULTS / "shared_kernels.md").write_text(report(results))


if __name__ == "__main__":
    main()
