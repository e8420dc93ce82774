"""`plan`: the plans of a run or of a configuration; the command line and Python share it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bexplore.engine.process.timeouts import Progress
from bexplore.errors import UserInputError, require
from bexplore.planning.from_run import costs_of_run
from bexplore.planning.network_figures import FILE_NAME, NetworkFigures
from bexplore.planning.plan import Plan
from bexplore.planning.planner import Plans, make_plans
from bexplore.planning.request import PlanRequest
from bexplore.planning.step_costs import StepCosts
from bexplore.run.run_directory import Run, find_runs, open_run

if TYPE_CHECKING:
    from bexplore.config.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What plans are made from.

    Attributes:
        costs: Of a step.
        network_path: What `bexplore network` wrote beside the run; None for none.
    """

    costs: StepCosts
    network_path: Path | None = None


def plan_source(
    path: Path,
    *,
    load: Callable[[Path], Config] | None = None,
    device_name: str | None = None,
    model_dir: str | None = None,
    on_progress: Progress = lambda message: None,
) -> PlanSource:
    """Read a run, or trace a configuration.

    Args:
        path: A run, its log, the folder of all runs of a job, or a configuration.
        load: Reads the configuration; None for `load_config`.
        device_name: As in `costs_of_config`.
        model_dir: As in `costs_of_config`.
        on_progress: As in `costs_of_config`.

    Raises:
        BexploreError: The run is unfinished, or a device is named for it; or the configuration cannot be traced.
    """
    if is_run(path):
        if device_name is not None:
            raise UserInputError(
                f'--device-name "{device_name}" names the device of a CONFIG, and {path} was measured on its own',
                hint="leave it out, or name the configuration in place of the run",
            )
        return source_of_run(open_run(path))
    from bexplore.config.load import load_config  # these imports take longer than a plan of a run
    from bexplore.planning.from_config import costs_of_config

    config = (load or load_config)(path)
    costs = costs_of_config(config, device_name=device_name, model_dir=model_dir, on_progress=on_progress)
    return PlanSource(costs=costs)


def source_of_run(run: Run) -> PlanSource:
    """Read a run, and the network that was timed for it.

    Raises:
        UserInputError: The run is unfinished, or damaged.
    """
    beside = (folder / FILE_NAME for folder in (run.directory, run.directory.parent))
    return PlanSource(costs=costs_of_run(run), network_path=next((one for one in beside if one.exists()), None))


def plans_of(
    source: PlanSource, request: PlanRequest, *, network: NetworkFigures | Path | float | None = None
) -> Plans:
    """Return the plans that are wanted.

    Args:
        network: Speeds between replicas, the file that holds them, or one bus bandwidth in bytes/s; None for what
            `bexplore network` wrote beside the run.

    Raises:
        UserInputError: Nothing of it can be planned, or the network has no speed or a damaged file.
    """
    is_given, wanted = network is not None, source.network_path if network is None else network
    if isinstance(wanted, Path):
        wanted = NetworkFigures.read(wanted)
    elif isinstance(wanted, int | float):
        require(
            math.isfinite(wanted) and wanted > 0,
            f"a bandwidth of {wanted!r} bytes/s moves nothing",
            "give it above 0, such as 50e9",
        )
        wanted = NetworkFigures.stated(float(wanted))
    return make_plans(source.costs, request, wanted, is_network_given=is_given)


def plan(
    path: Path | str,
    request: PlanRequest | None = None,
    *,
    network: NetworkFigures | Path | float | None = None,
    device_name: str | None = None,
) -> Plans:
    """Plan the training of a run or of a configuration.

    Args:
        path: As in `plan_source`.
        request: What is wanted; None for the file's own numbers.
        network: As in `plans_of`.
        device_name: As in `costs_of_config`.

    Raises:
        BexploreError: As in `plan_source` and `plans_of`.
    """
    source = plan_source(Path(path), device_name=device_name)
    return plans_of(source, request or PlanRequest(), network=network)


def plan_of_file(run: Run) -> Plan | None:
    """Return the plan of a run by its file's own numbers; None where it gives too few, or they cannot be shared so."""
    try:
        return plans_of(source_of_run(run), PlanRequest()).plans[0]
    except UserInputError:
        return None


def is_run(path: Path) -> bool:
    """Whether a path names a run rather than a configuration."""
    return path.is_dir() or path.suffix == ".log" or path.name == "latest" or bool(find_runs(path))
