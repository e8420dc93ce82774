"""`plan`: the plans of a run or of a configuration; the command line and Python share it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bexplore.engine.process.limits import Progress
from bexplore.errors import UserInputError, require
from bexplore.planning.costs import StepCosts
from bexplore.planning.network import FILE_NAME, NetworkFigures
from bexplore.planning.plan import Plans, make_plans
from bexplore.planning.request import PlanRequest
from bexplore.planning.sources import read_costs, trace_costs
from bexplore.planning.step import Plan
from bexplore.run.run_directory import Run, find_runs, open_run

if TYPE_CHECKING:
    from bexplore.config.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What plans are made from: the costs of a step, and the file that `bexplore network` wrote beside the run."""

    costs: StepCosts
    network_path: Path | None = None


def open_source(
    path: Path,
    *,
    load: Callable[[Path], Config] | None = None,
    device_name: str | None = None,
    model_dir: str | None = None,
    on_progress: Progress = lambda message: None,
) -> PlanSource:
    """Read a run, or trace a configuration: the arguments are those of `plan`.

    Args:
        load: Reads the configuration; None for `load_config`.
        model_dir: Folder of the worker's log; None for the configuration's own.
    """
    if is_run(path):
        require(
            device_name is None,
            f'`device_name` "{device_name}" names the device of a CONFIG, and {path} was measured on its own',
            "leave it out, or name the configuration in place of the run",
        )
        return read_source(open_run(path))
    from bexplore.config.load import load_config  # this import takes longer than a plan of a run

    config = (load or load_config)(path)
    costs = trace_costs(config, device_name=device_name, model_dir=model_dir, on_progress=on_progress)
    return PlanSource(costs=costs)


def read_source(run: Run) -> PlanSource:
    """Read a run, and find the network that was timed for it."""
    beside = (folder / FILE_NAME for folder in (run.directory, run.directory.parent))
    return PlanSource(costs=read_costs(run), network_path=next((one for one in beside if one.exists()), None))


def plan_from(
    source: PlanSource, request: PlanRequest, *, network: NetworkFigures | Path | float | None = None
) -> Plans:
    """Return the plans that are asked for.

    Args:
        network: Speeds between replicas, the file that holds them, or one bus bandwidth in bytes/s; None for what
            `bexplore network` wrote beside the run.
    """
    is_given, wanted = network is not None, source.network_path if network is None else network
    if isinstance(wanted, Path):
        wanted = NetworkFigures.read(wanted)
    elif isinstance(wanted, int | float):
        require(
            math.isfinite(wanted) and wanted > 0,
            f"bandwidth must be above 0 bytes/s, not {wanted!r}",
            "type it in bytes/s, such as 50e9",
        )
        wanted = NetworkFigures.stated(float(wanted))
    costs = source.costs.without_estimates() if request.speeds else source.costs
    return make_plans(costs, request, wanted, is_network_given=is_given)


def plan(
    path: Path | str,
    request: PlanRequest | None = None,
    *,
    network: NetworkFigures | Path | float | None = None,
    device_name: str | None = None,
) -> Plans:
    """Plan the training of a run or of a configuration.

    Args:
        path: A run, its log, the folder of all runs of a job, or a configuration.
        request: What is asked for; None for the file's own numbers.
        network: Speeds between replicas, the file that holds them, or one bus bandwidth in bytes/s; None for what
            `bexplore network` wrote beside the run.
        device_name: The device of a configuration, present or not; None for this machine's.

    Raises:
        BexploreError: The run is unfinished, the configuration cannot be traced, or nothing can be planned; the hint
            has the nearest that can.
    """
    source = open_source(Path(path), device_name=device_name)
    return plan_from(source, request or PlanRequest(), network=network)


def plan_as_in_file(run: Run) -> Plan | None:
    """Return the plan of a run by its file's own numbers; None where it gives too few, or they cannot be shared so."""
    try:
        return plan_from(read_source(run), PlanRequest()).plans[0]
    except UserInputError:
        return None


def is_run(path: Path) -> bool:
    """Whether a path names a run rather than a configuration."""
    return path.is_dir() or path.suffix == ".log" or path.name == "latest" or bool(find_runs(path))
