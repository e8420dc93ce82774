"""The public function `explore`; the command line and the one-liners of Python programs call it too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.emulated_gpu.config_environment import build_environment
from bexplore.errors import UserInputError
from bexplore.exploration.base import Exploration, ExploreOptions
from bexplore.exploration.command import CommandExploration
from bexplore.exploration.estimated import EstimatedExploration
from bexplore.exploration.job import JobExploration
from bexplore.exploration.setup import add_loader_lengths
from bexplore.host import logs
from bexplore.run.event_records import event_record
from bexplore.run.events import JobEvent


def explore(config: Config | str | Path, options: ExploreOptions | None = None) -> Iterator[JobEvent]:
    """Find the micro-batch size of a training job; yield events as they happen.

    Args:
        config: The job's YAML file, or the file already loaded.
        options: Options outside of the job; None for the defaults.

    Yields:
        `Planned`; `Traced`; for each probe `ProbeStarted`, `ProbeFinished` and, once something was measured,
        `Recommended`; `Finished`. Or only `AlreadyFinished`, where a finished run of the same job is on disk.

    Raises:
        UserInputError: The configuration is wrong, or has nothing to explore.
        NothingFitsError: Not even the smallest candidate fits the memory budget.
        UserProgramError: The user's own program fails at every size.
        EngineError: The device, the disk or the storage cannot be used.
    """
    loaded = config if isinstance(config, Config) else load_config(Path(config))
    if not loaded.request.is_search:
        raise UserInputError(
            f"{loaded.path}: micro_batch_size is {loaded.request.kind.value}: there is nothing to explore",
            hint="set micro_batch_size: explore",
        )
    options = options or ExploreOptions()
    loaded = add_loader_lengths(loaded, options.on_progress)
    for event in _open_exploration(loaded, options).events():
        record = event_record(event)
        if record is not None:
            logs.log.debug(record.pop("event"), **record)
        yield event


def _open_exploration(config: Config, options: ExploreOptions) -> Exploration:
    if config.is_only_estimated:
        return EstimatedExploration(config, options)
    kind = JobExploration if config.command is None else CommandExploration
    return kind(config, options, partial(build_environment, config, options.on_progress))
