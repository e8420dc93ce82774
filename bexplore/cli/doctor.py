"""`bexplore doctor`: a line for each requirement of an exploration."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import click

from bexplore.config.load import load_config
from bexplore.errors import ExitCode
from bexplore.exploration.doctor import Check, Status, examine

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option(
    "--noise-s",
    type=click.FloatRange(0, 600),
    default=10.0,
    show_default=True,
    help="Seconds of the noise measurement; 0 skips it.",
)
@click.option("--no-code", is_flag=True, help="Refuse a configuration that names code to import.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
def doctor(config: Path | None, noise_s: float, no_code: bool, as_json: bool) -> None:
    """Check this machine, and the job of CONFIG on it: ok, warning or problem, each with a fix.

    The exit code is 0 where there is no problem. Quote the output in an issue about bexplore.

    \b
    Examples:
      bexplore doctor                  the machine, with a ten-second measurement of its noise
      bexplore doctor job.yaml         also whether the job builds and can be traced
      bexplore doctor --noise-s 0      without the noise measurement
    """
    loaded = None if config is None else load_config(config, allow_code=not no_code)
    has_problem = False
    for check in examine(loaded, noise_s=noise_s):
        has_problem |= check.status is Status.PROBLEM
        click.echo(json.dumps({"event": "check"} | dataclasses.asdict(check)) if as_json else _line(check))
    if has_problem:
        sys.exit(ExitCode.ENGINE_BROKE)


def _line(check: Check) -> str:
    status = f"{check.status:<8}"
    if not os.environ.get("NO_COLOR"):
        status = click.style(status, fg=_COLOURS[check.status])
    line = f"{status} {check.name:<10}  {check.message}"
    return line + (f"\n{'':19}  -> {check.fix}" if check.fix else "")
