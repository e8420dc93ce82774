"""`bexplore attach` and `bexplore worker`: what is set up where the training runs."""

from __future__ import annotations

import os
import re
import sys

import click

from bexplore.command import attach as pth
from bexplore.engine.process.rank_listener import KEY_VARIABLE
from bexplore.errors import UserInputError

_ADDRESS = re.compile(r"[^:\s]+:\d{1,5}")


@click.command()
@click.option("--install", "action", flag_value="install", help="Write the file.")
@click.option("--remove", "action", flag_value="remove", help="Remove the file.")
@click.option("--python", default=sys.executable, show_default="this one", help="The Python that trains.")
def attach(action: str | None, python: str) -> None:
    """Let a Python load the observer of `bexplore explore -- COMMAND` where it ignores PYTHONPATH.

    One `.pth` file in its site-packages; it does nothing outside of a probe.

    \b
    Examples:
      bexplore attach --install --python /opt/training/bin/python
      bexplore attach --remove --python /opt/training/bin/python
    """
    if action == "install":
        click.echo(f"wrote {pth.install(python)}; remove it: bexplore attach --remove --python {python}")
    elif action == "remove":
        removed = pth.remove(python)
        click.echo(f"removed {removed}" if removed else "nothing to remove")
    else:
        installed = (pth.site_packages(python) / pth.NAME).exists()
        click.echo(f"{'installed' if installed else 'not installed'} for {python}; see bexplore attach --help")


@click.command()
@click.option("--connect", "address", metavar="HOST:PORT", required=True, help="Where the explorer listens.")
def worker(address: str) -> None:
    """Be one rank of a job that `bexplore explore` explores with `explore.launcher: external`.

    Started on each host by a launcher of yours, which starts it again after each end; it waits for the explorer.

    \b
    Example, on each of two hosts, with the same key everywhere:
      export BEXPLORE_WORKER_KEY=...    # such as `openssl rand -hex 32` prints
      torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 1000 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29500 --no-python \\
        bexplore worker --connect HOST:29400
    """
    if not _ADDRESS.fullmatch(address):
        raise UserInputError(f"--connect takes HOST:PORT, not {address!r}", hint="type --connect 10.0.0.5:29400")
    if not os.environ.get(KEY_VARIABLE):
        raise UserInputError(
            f"{KEY_VARIABLE} is not set: the explorer refuses ranks without the key",
            hint=f"export {KEY_VARIABLE}=... as where bexplore explore runs",
        )
    # The worker's own process, without what a command line has imported.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "bexplore.engine.worker", "--connect", address])
