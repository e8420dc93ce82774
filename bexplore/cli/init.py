"""`bexplore init`: the smallest file with which a training can be explored."""

from __future__ import annotations

from pathlib import Path

import click

from bexplore.cli.training_command import COMMAND, CommandBehindDashes
from bexplore.config import starter
from bexplore.errors import UserInputError


@click.command(cls=CommandBehindDashes)
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: NAME.explore.SUFFIX.")
@click.option("--force", is_flag=True, help="Write over an existing FILE.")
@click.pass_context
def init(context: click.Context, source: Path | None, output: Path | None, force: bool) -> None:
    """Write the smallest file with which a training can be explored, from its configuration, script or command.

    A configuration of a known family gets the word at its own key; its global batch stays what it was. Of a script or
    a command, the options that are the size, the accumulation and the output folder become placeholders. SOURCE is
    read and not changed; nothing is run.

    \b
    Examples:
      bexplore init axolotl.yaml                                  writes axolotl.explore.yaml
      bexplore init train.py                                      writes train.explore.yaml
      bexplore init -- torchrun --nproc-per-node 8 train.py --batch-size 16    writes explore.yaml
    """
    command = context.meta.get(COMMAND, ())
    if (source is None) == (not command):
        raise click.UsageError("Give one of SOURCE and a training command behind --.")
    if command:
        (text, notes), target = starter.of_command(command), Path("explore.yaml")
    elif source is not None and source.suffix == ".py":
        (text, notes), target = starter.of_command(("python", str(source))), source.with_suffix(".explore.yaml")
    else:
        assert source is not None  # one of the two is given
        (text, notes), target = starter.of_file(source), source.with_suffix(f".explore{source.suffix}")
    target = output or target
    _write(target, text, force=force)
    for note in notes:
        click.echo(note)
    click.echo(f"wrote {target}; next: bexplore explore {target} --dry-run")


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("w" if force else "x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise UserInputError(
            f"{target} exists already", hint="name another file with -o, or write over it: --force"
        ) from None
    except OSError as error:
        raise UserInputError(f"cannot write {target}: {error.strerror}", hint="name another file with -o") from error
