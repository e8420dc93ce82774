"""The start of a configuration's ranks, and the key that those must have which the user starts."""

from __future__ import annotations

import os

from bexplore.config.config import Config
from bexplore.engine.process.launcher import EXTERNAL, Launcher
from bexplore.engine.process.rank_listener import KEY_VARIABLE, LOOPBACK
from bexplore.errors import UserInputError


def launcher_of(config: Config) -> Launcher | None:
    """Return what starts all ranks of a job; None for a job of one device, and for one rank of several.

    Raises:
        UserInputError: The user starts the ranks, and the environment has no key for them.
    """
    kind, parallelism = config.explore.launcher, config.job.parallelism
    if kind in (None, "none") or not parallelism.is_distributed:
        return None
    host, _, port = (config.explore.rendezvous or LOOPBACK).partition(":")
    if kind == EXTERNAL and worker_key() is None:
        raise UserInputError(
            f"launcher external: ranks prove by the variable {KEY_VARIABLE} that they are yours, and it is not set",
            hint=f"on every host: export {KEY_VARIABLE}=..., a long random text such as `openssl rand -hex 32` prints",
        )
    return Launcher(kind=str(kind), num_ranks=parallelism.num_ranks, host=host, port=int(port or 0))


def environment_alone(config: Config) -> dict[str, str]:
    """Return what a worker of one process has in its environment beside this process's: see `Launcher.environment`."""
    launcher = launcher_of(config)
    return {} if launcher is None else launcher.environment


def worker_key() -> str | None:
    """Return the key that the user has given; None for none."""
    return os.environ.get(KEY_VARIABLE) or None
