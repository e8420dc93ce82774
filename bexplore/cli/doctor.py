"""`bexplore doctor`: what an exploration needs, line by line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bexplore.errors import ExitCode

if TYPE_CHECKING:
    from bexplore.doctor import Check

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(short_help="Check whether this machine and a job are ready.")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option(
    "--noise-s", type=click.FloatRange(0, 600), default=10.0, show_default=True, help="Noise measurement; 0 for none."
)
@click.option("--no-code", is_flag=True, help="Refuse a configuration that names code to import.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def doctor(config: Path | None, noise_s: float, no_code: bool, as_json: bool) -> None:
    """Check this machine, and the job of CONFIG on it: ok, warning or problem, and what to type.

    It ends with code 0 where there is no problem, and is what an issue about bexplore should quote.

    \b
    Examples:
      bexplore doctor                  the machine, with a ten-second measurement of its noise
      bexplore doctor job.yaml         also whether the job builds and can be traced
      bexplore doctor --noise-s 0      at once
    """
    from bexplore.config.load import load_config
    from bexplore.doctor import Status, examine

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
