"""`bexplore network`: the speed between the devices that will train, which plans read."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import click

from bexplore.errors import UserInputError
from bexplore.host.json_files import write_json
from bexplore.planning.network import FILE_NAME
from bexplore.run.run_directory import open_run
from bexplore.units import parse_bytes


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The file to write; default: network.json."
)
@click.option("--min-size", default="1MiB", show_default=True, metavar="SIZE", help="The smallest tensor.")
@click.option("--max-size", default="8GiB", show_default=True, metavar="SIZE", help="The largest, if it fits.")
@click.option("--json", "as_json", is_flag=True, help="Print the file's content as one JSON object.")
def network(run: Path | None, output: Path | None, min_size: str, max_size: str, as_json: bool) -> None:
    """Time all-reduce, reduce-scatter and all-gather between the devices that will train.

    A launcher starts it on each of them, any number of nodes. With RUN the result is written beside the run, where
    bexplore plan finds it.

    \b
    Examples:
      bexplore network RUN                                      what a launcher starts on each device:
      torchrun --nproc-per-node 8 -m bexplore network RUN       one node
      torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m bexplore network RUN
    """
    smallest, largest = parse_bytes(min_size), parse_bytes(max_size)
    if smallest > largest:
        raise UserInputError(
            f"--min-size {min_size} is above --max-size {max_size}", hint=f"type --max-size {min_size} to time one size"
        )
    is_first = os.environ.get("RANK", "0") == "0"
    path = output or (Path(FILE_NAME) if run is None else (open_run(run).directory if is_first else run) / FILE_NAME)
    if is_first:
        _check_writable(path)  # now, and not when all is timed
    from bexplore.planning.network_timing import time_network  # torch is behind it

    figures = time_network(smallest, largest, lambda line: click.echo(line, err=as_json))
    if figures is None:
        return
    record = dataclasses.asdict(figures)
    write_json(path, record)
    if as_json:
        click.echo(json.dumps({"event": "network", **record}))
        return
    for line in figures.slow:
        click.echo(f"slow: {line}")
    for line in figures.notes:
        click.echo(f"note: {line}")
    click.echo(str(path))


def _check_writable(path: Path) -> None:
    """Make the folder of a file, and check that the file can be written."""
    hint = "name a file in a folder that you may write to, by -o FILE"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserInputError(f"cannot make the folder {path.parent}: {error.strerror}", hint=hint) from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserInputError(f"cannot write {path}", hint=hint)
