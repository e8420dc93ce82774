"""Estimated against published times of NCCL's collectives: `python -m benchmarks.published_collectives`.

The model's numbers are NCCL's own; of what is here, the bandwidth of a switch that adds up was taken from one figure
(NVIDIA/nccl-tests issue 212). Single times of nccl-tests, out of place, microseconds. Sources:

* NVIDIA/nccl-tests, issue 290: 8 H100.
* NVIDIA/nccl, issue 1281: bus bandwidths of 8 H100 at large sizes, taken as those of 4 GiB.
* oracle-japan/ocitutorials, GPU clusters with NCCL Tests: 8 A100 40 GB, the same on two nodes with RDMA, and 8 V100.
* coreweave/nccl-tests, README.md: 72 GPUs of a rack of GB200.
* NVIDIA/nccl, issue 1374: bus bandwidth of 8 H800, taken as that of 4 GiB.
* aws-samples, AWS ParallelCluster, "EFA NCCL Test": the 8 T4 of one g4dn.metal, with rings of the protocol Simple.
* NVIDIA/nccl, issue 1639: bus bandwidths of 8 and 4 RTX 5090, taken as those of 8 GiB.
* tinygrad/open-gpu-kernel-modules, README.md: 6 RTX 4090 with a driver that lets them reach each other.

The tables of oracle-japan, aws-samples and tinygrad were found by their text in an index of public repositories; their
pages were not opened.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine_facts import machine_facts
from bexplore.estimate.collectives import Collective, Interconnect
from bexplore.host.accelerators import DEVICES

RESULTS = Path(__file__).parent / "results"
MIB, GIB = 2**20, 2**30
MOST_BYTES = 128 * MIB  # of what trainings send at once: buckets, blocks, activations


@dataclass(frozen=True)
class Published:
    """Times of one collective between devices."""

    device: str  # key in `DEVICES`
    num_ranks: int
    times_us: Mapping[int, float]  # by bytes of the whole tensor
    collective: Collective = Collective.ALL_REDUCE
    network_bytes_per_s: float | None = None  # bus bandwidth between nodes


def of_bandwidth(collective: Collective, num_ranks: int, num_bytes: int, bus_bytes_per_s: float) -> dict[int, float]:
    """The time of which a bus bandwidth was published."""
    return {num_bytes: 1e6 * collective.sent_share(num_ranks) * num_bytes / bus_bytes_per_s}


TIMES = (
    Published(
        "h100",
        8,
        {
            128 * MIB: 613.3,
            256 * MIB: 1139.2,
            512 * MIB: 2175.8,
            GIB: 4038.8,
            2 * GIB: 8020.3,
            4 * GIB: 15870,
        },
    ),
    Published(
        "h100", 8, of_bandwidth(Collective.REDUCE_SCATTER, 8, 4 * GIB, 360e9), collective=Collective.REDUCE_SCATTER
    ),
    Published("h100", 8, of_bandwidth(Collective.ALL_GATHER, 8, 4 * GIB, 350e9), collective=Collective.ALL_GATHER),
    Published("h800", 8, of_bandwidth(Collective.ALL_REDUCE, 8, 4 * GIB, 215e9)),
    Published(
        "a100-40gb",
        8,
        {
            MIB: 76.71,
            2 * MIB: 112.4,
            4 * MIB: 134.5,
            8 * MIB: 185.8,
            16 * MIB: 245.1,
            32 * MIB: 398.2,
            64 * MIB: 589.5,
            128 * MIB: 1191.2,
            256 * MIB: 2121.9,
            512 * MIB: 4208.2,
            GIB: 8166.8,
            8 * GIB: 63929,
        },
    ),
    Published(
        "a100-40gb",
        16,
        {
            MIB: 136.1,
            2 * MIB: 169.2,
            4 * MIB: 233.4,
            8 * MIB: 358.2,
            16 * MIB: 941.7,
            32 * MIB: 1079.0,
            512 * MIB: 14463,
            GIB: 28656,
            8 * GIB: 225083,
        },
        network_bytes_per_s=71.56e9,  # of the largest message
    ),
    Published("v100-16gb", 8, {GIB: 13867}),
    Published("gb200", 72, {512 * MIB: 1806.7, GIB: 3108.8, 2 * GIB: 5589.1, 4 * GIB: 10094, 8 * GIB: 20299}),
    Published("t4", 8, {MIB: 422.1, 8 * MIB: 2802.7, 32 * MIB: 11061, 256 * MIB: 88195, 2 * GIB: 705156}),
    Published("rtx-5090", 8, of_bandwidth(Collective.ALL_REDUCE, 8, 8 * GIB, 28e9)),
    Published("rtx-5090", 4, of_bandwidth(Collective.ALL_REDUCE, 4, 8 * GIB, 35e9)),
    Published("rtx-4090", 6, {32 * MIB: 2275.1}),
)


Errors = dict[str, dict[Any, list[float]]]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    report = {
        "facts": machine_facts() | {"command": "python -m benchmarks.published_collectives"},
        "rows": [row for published in TIMES for row in compare(published)],
    }
    (RESULTS / "published_collectives.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "published_collectives.md").write_text(markdown(report))
    print(markdown(report))


def compare(published: Published) -> Iterator[dict[str, Any]]:
    """Yield a row for each message."""
    links = Interconnect.find(DEVICES[published.device], published.network_bytes_per_s)
    assert links is not None
    for num_bytes, time_us in published.times_us.items():
        estimated_s = links.seconds(published.collective, num_bytes, published.num_ranks)
        yield {
            "device": published.device,
            "link": str(links.links.kind) if published.network_bytes_per_s is None else "network",
            "num_ranks": published.num_ranks,
            "collective": published.collective.value,
            "num_bytes": num_bytes,
            "published_s": time_us / 1e6,
            "estimated_s": estimated_s,
        }


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    errors: Errors = defaultdict(lambda: defaultdict(list))
    small: Errors = defaultdict(lambda: defaultdict(list))
    lines = []
    for row in report["rows"]:
        error = math.log(row["estimated_s"] / row["published_s"])
        for counted in (errors, small) if row["num_bytes"] <= MOST_BYTES else (errors,):
            counted[row["link"]][row["device"], row["num_ranks"], row["collective"]].append(error)
        lines.append(
            f"| {row['device']} | {row['num_ranks']} | {row['collective']} | {row['num_bytes'] / MIB:,.0f} | "
            f"{row['published_s'] * 1e3:.4g} | {row['estimated_s'] * 1e3:.4g} | {100 * math.expm1(error):+.0f} |"
        )
    return "\n".join(
        [
            "# Estimated and published times of collectives",
            "",
            f"`{report['facts']['command']}`, {report['facts']['at']}. Published: see "
            "benchmarks/published_collectives.py. The error of a link is the root mean square of ln(estimated / "
            "published), where each of its tables counts once.",
            "",
            *(
                f"* {link}: {rms(tables):.2f} ({len(tables)} tables), {rms(small[link]):.2f} over messages of up to "
                f"{MOST_BYTES // MIB} MiB ({len(small[link])})"
                for link, tables in errors.items()
            ),
            "",
            "| device | ranks | collective | MiB | published ms | estimated ms | error % |",
            "|---|---:|---|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


def rms(tables: Mapping[Any, list[float]]) -> float:
    """The root mean square of errors, each table with the same weight."""
    return math.sqrt(statistics.fmean(statistics.fmean(one**2 for one in table) for table in tables.values()))


if __name__ == "__main__":
    main()
