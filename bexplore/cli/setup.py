"""`bexplore init`, `doctor`, `attach` and `worker`: what stands before an exploration."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from bexplore.actions.ask_help import ask_for_help
from bexplore.actions.calibrate import calibrate, describe_calibration
from bexplore.actions.doctor import Check, Status, examine
from bexplore.cli.field_names import name_options
from bexplore.cli.options import COMMAND, CommandBehindDashes
from bexplore.command import attach as pth
from bexplore.config import starter
from bexplore.config.load import load_config
from bexplore.emulated_gpu import describe_tools
from bexplore.emulated_gpu.config_environment import build_environment
from bexplore.engine.process.launcher import KEY_VARIABLE
from bexplore.errors import ExitCode, UserInputError
from bexplore.host.json_files import replace_file
from bexplore.host.records import to_record
from bexplore.output.table import Table, stdout_width

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


@click.command(cls=CommandBehindDashes)
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: NAME.explore.SUFFIX.")
@click.option("--force", is_flag=True, help="Write over an existing FILE.")
@click.option(
    "--example",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Write an example that comes with bexplore; without NAME list them.",
)
@click.option("--run-help", is_flag=True, help="Run the script or COMMAND once, with --help, to see its options.")
@click.pass_context
def init(
    context: click.Context,
    source: Path | None,
    output: Path | None,
    force: bool,
    example: str | None,
    run_help: bool,
) -> None:
    """Write the smallest file with which a training can be explored, from its configuration, script or command.

    A configuration of a known family gets the word at its own key; its global batch stays what it was. Of a script, a
    notebook, a command or a Hydra tree, what is the size, the accumulation and the output folder becomes a placeholder.
    SOURCE is read and not changed; nothing is run without --run-help.

    \b
    Examples:
      bexplore init axolotl.yaml                                  writes axolotl.explore.yaml
      bexplore init train.py                                      writes train.explore.yaml
      bexplore init --run-help train.py                           the same, from the help that train.py prints
      bexplore init notebook.ipynb                                writes notebook.explore.yaml, for papermill
      bexplore init conf/config.yaml                              a Hydra tree: writes explore.yaml
      bexplore init -- torchrun --nproc-per-node 8 train.py --batch-size 16    writes explore.yaml
      bexplore init --example                                     lists the examples
      bexplore init --example quickstart                          writes quickstart.yaml
    """
    command = context.meta.get(COMMAND, ())
    if example is not None:
        if source is not None or command:
            raise click.UsageError("--example stands alone: leave SOURCE and the training command out.")
        _example(example, output, force=force)
        return
    if (source is None) == (not command):
        raise click.UsageError("Give one of SOURCE and a training command behind --.")
    made = _start(source, command, run_help=run_help)
    target = output or made.target
    _write(target, made.text, force=force)
    for note in made.notes:
        click.echo(name_options(note))
    click.echo(f"wrote {target}; next: bexplore explore {shlex.quote(str(target))} --dry-run")


def _start(source: Path | None, command: Sequence[str], *, run_help: bool) -> starter.Starter:
    if run_help:
        if source is not None and source.suffix != ".py":
            raise click.UsageError("--run-help is for a script or a command.")
        words = command or starter.list_start_words(source or Path())
        return starter.from_help(words, ask_for_help(words), script=source)
    if source is None:
        return starter.from_command(command)
    return starter.from_script(source) if source.suffix in (".py", ".ipynb") else starter.from_file(source)


def _example(name: str, output: Path | None, *, force: bool) -> None:
    if not name:
        table = Table(headings=("", ""), rows=tuple(starter.list_examples().items()), is_number=(False, False))
        click.echo("\n".join(table.as_lines(stdout_width())))
        return
    texts = starter.read_example(name)
    targets = [output or path if number == 0 else path for number, path in enumerate(texts)]
    for target, text in zip(targets, texts.values(), strict=True):
        _write(target, text, force=force)
    further = "".join(f" and {one}" for one in targets[1:])
    click.echo(f"wrote {targets[0]}{further}" + _next_of_example(targets[0]))


def _next_of_example(target: Path) -> str:
    return f"; next: bexplore explore {shlex.quote(str(target))} --dry-run" if target.suffix == ".yaml" else ""


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        if not force:
            target.open("x").close()
        replace_file(target, text.encode())
    except FileExistsError:
        raise UserInputError(
            f"{target} exists already", hint="name another file with -o, or write over it: --force"
        ) from None
    except OSError as error:
        raise UserInputError(f"cannot write {target}: {error.strerror}", hint="name another file with -o") from error


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option(
    "--noise-s",
    type=click.FloatRange(0, 600),
    default=10.0,
    show_default=True,
    help="Seconds of the noise measurement; 0 skips it.",
)
@click.option(
    "--calibrate",
    "calibrates",
    is_flag=True,
    help="Then measure for a minute what kernels take on this processor, for estimates.",
)
@click.option("--no-code", is_flag=True, help="Refuse what can run or import code.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
def doctor(config: Path | None, noise_s: float, calibrates: bool, no_code: bool, as_json: bool) -> None:
    """Check this machine, and the job of CONFIG on it: ok, warning or problem, each with a fix.

    The exit code is 0 where there is no problem. Quote the output in an issue about bexplore.

    \b
    Examples:
      bexplore doctor                  the machine, with a ten-second measurement of its noise
      bexplore doctor job.yaml         also whether the job builds and can be traced
      bexplore doctor --noise-s 0      without the noise measurement
      bexplore doctor --calibrate      measures the table with which speeds on this processor are estimated
    """
    loaded = None if config is None else load_config(config, allow_code=not no_code)
    has_problem = False
    for line in () if loaded is None else loaded.starts:
        click.echo(line, err=True)
    checks = examine(
        loaded,
        noise_s=noise_s,
        describe_emulation=describe_tools,
        make_environment=dict if loaded is None else partial(build_environment, loaded),
    )
    for check in checks:
        has_problem |= check.status is Status.PROBLEM
        check = dataclasses.replace(check, fix=name_options(check.fix))
        click.echo(json.dumps({"event": "check"} | dataclasses.asdict(check)) if as_json else _line(check))
    if has_problem:
        sys.exit(ExitCode.ENGINE_BROKE)
    if calibrates:
        found = calibrate(on_progress=lambda report: click.echo(report.get("stage", ""), err=True))
        record = {"event": "calibration"} | to_record(found)
        click.echo(json.dumps(record) if as_json else "\n".join(describe_calibration(found)))


def _line(check: Check) -> str:
    status = f"{check.status:<8}"
    if not os.environ.get("NO_COLOR"):
        status = click.style(status, fg=_COLOURS[check.status])
    line = f"{status} {check.name:<10}  {check.message}"
    return line + (f"\n{'':19}  -> {check.fix}" if check.fix else "")


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
