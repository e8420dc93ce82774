"""Plans a job for a GPU that is not there, in a process of its own: `python absent_gpu_child.py JOB.yaml BLOCKS`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import psutil

from bexplore.host.accelerators import device_by_name
from bexplore.trace.absent_gpu import GpuProperties, stand_in

ROOT = Path(__file__).parents[2]
SIZE = 64  # samples, of the peaks that are told


def with_blocks(model: dict[str, Any], num_blocks: int) -> dict[str, Any]:
    """The model with so many of its blocks."""
    if "config" in model:
        return model | {"config": model["config"] | {"num_hidden_layers": num_blocks}}
    return model | {"num_layers": num_blocks}


def main(path: Path, num_blocks: int) -> None:
    properties = GpuProperties.from_device(device_by_name("h100"))
    assert properties is not None
    stand_in(properties)
    sys.path.insert(0, str(ROOT))
    from bexplore.config.load import load_config
    from bexplore.trace.tracer import trace_job
    from tests.torch.trace.recorded_lines import most_bytes, record_graph, steps_of

    job = load_config(path).on_device("cuda:0").job
    job = dataclasses.replace(job, model=with_blocks(dict(job.model), num_blocks))
    graphs: list[dict[str, Any]] = []
    primes: list[int] = []

    def observe(graph: Any, probe_batch: int) -> None:
        primes.append(probe_batch)
        graphs.append(record_graph(graph))

    model = trace_job(job, full_depth=True, observe=observe)
    most = [most_bytes(steps_of(graph, primes[0]), SIZE) for graph in graphs]
    record = {"probe_batch": primes[0], "most_bytes": most, "graphs": graphs}
    num_processes = len(psutil.Process().children())
    told = {"device_name": model.device_name, "phases": model.phases(SIZE), "num_processes": num_processes}
    print(json.dumps(told | {"record": record}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
