"""`bexplore attach`: let a Python that ignores PYTHONPATH load the observer during probes."""

from __future__ import annotations

import sys

import click

from bexplore.command import attach as pth


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
