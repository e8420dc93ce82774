"""The expected duration of an exploration, by earlier ones on the same machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.errors import BexploreError
from bexplore.host import json_files
from bexplore.host.records import from_record
from bexplore.run import run_directory
from bexplore.trace.cost_model import CostModel

# Beyond this ratio of operations per sample an earlier run is too different: compilation no longer outweighs passes.
FARTHEST_RATIO = 10.0
_OF_THE_MACHINE = ("torch", "processor", "accelerator", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected duration of an exploration."""

    seconds: float | None  # the duration; None if unknown
    why: str  # the earlier run, or why it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """The duration of a finished run: timed passes, the rest of its probes, and all else."""

    run: run_directory.Run
    flops_per_sample: float
    num_probes: int
    passes_s: float
    preparation_s: float
    rest_s: float


def estimate_duration(
    folder: Path, environment: Mapping[str, Any], cost_model: CostModel | None, *, max_probes: int
) -> Estimate:
    """Scale the passes of the nearest earlier run of this machine by the operations of a sample; keep the rest.

    Args:
        folder: The job's model directory; runs of other jobs are beside it.
        environment: `Fingerprint.environment()`.
        cost_model: The job's trace; None for none.
    """
    if cost_model is None or not cost_model.hardware_flops_per_sample:
        return Estimate(seconds=None, why="the job has no trace")
    own = cost_model.hardware_flops_per_sample
    earlier = list(_earlier_runs(folder.parent, environment))
    if not earlier:
        return Estimate(seconds=None, why=f"no finished run of this machine under {folder.parent}")
    nearest = min(earlier, key=lambda run: abs(math.log(own / run.flops_per_sample)))
    ratio = own / nearest.flops_per_sample
    described = f"{nearest.run.directory}, whose samples take {1 / ratio:.2g}x as many operations"
    if not 1 / FARTHEST_RATIO <= ratio <= FARTHEST_RATIO:
        return Estimate(seconds=None, why=f"the nearest run of this machine is {described}")
    share = min(1.0, max_probes / nearest.num_probes)
    seconds = nearest.rest_s + share * (nearest.preparation_s + ratio * nearest.passes_s)
    return Estimate(seconds=seconds, why=f"by {described}")


def _earlier_runs(parent: Path, environment: Mapping[str, Any]) -> Iterator[_Earlier]:
    for folder in sorted(parent.glob("*/")):
        for run in run_directory.find_runs(folder):
            try:
                earlier = _read(run, environment)
            except (BexploreError, KeyError, TypeError, ValueError):
                continue  # damaged, or of another version: an estimate goes on without it
            if earlier is not None:
                yield earlier


def _read(run: run_directory.Run, environment: Mapping[str, Any]) -> _Earlier | None:
    result, trace = run.result(), run.directory / "trace.json"
    before: Mapping[str, Any] = run.meta().get("environment", {})
    is_same_machine = all(before.get(name) == environment[name] for name in _OF_THE_MACHINE)
    if result is None or not is_same_machine or not trace.exists():
        return None
    flops = from_record(CostModel, json_files.read_json(trace)).hardware_flops_per_sample
    observations = run.journal.read()
    if not flops or not observations:
        return None
    probes_s = sum(one.elapsed_s for one in observations)
    passes_s = sum(sum(one.pass_times_s) + sum(one.update_times_s) for one in observations)
    return _Earlier(
        run=run,
        flops_per_sample=flops,
        num_probes=len(observations),
        passes_s=min(passes_s, probes_s),
        preparation_s=max(0.0, probes_s - passes_s),
        rest_s=max(0.0, (result.search.elapsed_s or 0.0) - probes_s),
    )
