"""What an exploration needs before its first run: the launcher of its ranks, the lengths that a loader gives."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.config.workload import find_contradictions, give_lengths
from bexplore.engine.process.launcher import EXTERNAL, KEY_VARIABLE, LOOPBACK, Launcher
from bexplore.engine.process.limits import Limits, Progress
from bexplore.engine.program_client import RESIDENT_BYTES, ask_once
from bexplore.engine.protocol.messages import Done, ReadLengths, Refused
from bexplore.engine.runner import RunnerSettings
from bexplore.errors import UserInputError, UserProgramError


def find_launcher(config: Config) -> Launcher | None:
    """Return what starts all ranks of a job; None for a job of one device, and for one rank of several."""
    kind, parallelism = config.settings.launcher, config.job.parallelism
    if kind in (None, "none") or not parallelism.is_distributed:
        return None
    host, _, port = (config.settings.rendezvous or LOOPBACK).partition(":")
    if kind == EXTERNAL and read_worker_key() is None:
        raise UserInputError(
            f"launcher external: ranks prove by the variable {KEY_VARIABLE} that they are yours, and it is not set",
            hint=f"on every host: export {KEY_VARIABLE}=..., a long random text such as `openssl rand -hex 32` prints",
        )
    return Launcher(kind=str(kind), num_ranks=parallelism.num_ranks, host=host, port=int(port or 0))


def find_lone_environment(config: Config) -> dict[str, str]:
    """Return what a worker of one process has in its environment beside this process's: see `Launcher.environment`."""
    launcher = find_launcher(config)
    return {} if launcher is None else launcher.environment


def make_runner_settings(
    config: Config,
    device_info: Mapping[str, Any],
    *,
    run_dir: Path,
    budget_bytes: int | None,
    environment: Mapping[str, str],
    **fields: Any,
) -> RunnerSettings:
    """Return what a runner of all ranks of a job is built from, with further fields of `RunnerSettings`."""
    return RunnerSettings(
        job=config.job,
        run_dir=run_dir,
        budget_bytes=budget_bytes,
        device_info=device_info,
        free_memory_bytes=device_info["free_memory_bytes"],
        environment=environment,
        replica_batch_size=config.replica_batch_size,
        launcher=find_launcher(config),
        worker_key=read_worker_key(),
        **fields,
    )


def read_worker_key() -> str | None:
    """Return the key that the user has given; None for none."""
    return os.environ.get(KEY_VARIABLE) or None


# Between two reports of progress: before its first batch a loader may start processes, or open a large data set.
STAGE_LIMIT_S = 300.0


def add_loader_lengths(config: Config, on_progress: Progress = lambda message: None) -> Config:
    """Return a job with the lengths that its loader gives, where the file takes them from there."""
    options = config.settings.lengths
    if options is None or options.source is None or config.job.lengths is not None:
        return config
    on_progress({"stage": "lengths"})
    with tempfile.TemporaryDirectory() as folder:
        answer = ask_once(
            ReadLengths(job=config.job, num_samples=options.num_samples),
            Path(folder, "loader.log"),
            limits=Limits(stage_s=STAGE_LIMIT_S, resident_bytes=RESIDENT_BYTES),
            on_progress=on_progress,
        )
    if isinstance(answer, Refused):
        raise answer.error()
    if not isinstance(answer, Done):
        raise UserProgramError(
            f"the lengths of samples cannot be read from the loader: {answer.reason}",
            traceback_text=answer.traceback_text,
        )
    lengths = answer.values["lengths"]
    give = functools.partial(give_lengths, config.settings, samples=lengths, in_tokens=config.request.is_in_tokens)
    job, warnings = give(config.job)
    for name, message, hint in find_contradictions(job):
        raise UserInputError(f"explore.lengths.{name}: {message}", hint=hint)
    variants = tuple(dataclasses.replace(one, job=give(one.job)[0]) for one in config.variants)
    return dataclasses.replace(config, job=job, variants=variants, warnings=(*config.warnings, *warnings))
