"""`bexplore init`: the smallest file with which a training can be explored."""

from __future__ import annotations

from pathlib import Path

import click

from bexplore.cli.training_command import COMMAND, CommandBehindDashes
from bexplore.config.starter import starter
from bexplore.errors import UserInputError


@click.command(cls=CommandBehindDashes)
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: NAME.explore.SUFFIX.")
@click.option("--force", is_flag=True, help="Write over an existing FILE.")
@click.pass_context
def init(context: click.Context, source: Path | None, output: Path | None, force: bool) -> None:
    """Write the smallest file with which a training can be explored, from its configuration, script or command.

    A configuration of a known family gets the word at its own key; its global batch stays what it was. Of a script, a
    command or a Hydra tree, the options that are the size, the accumulation and the output folder become placeholders.
    SOURCE is read and not changed; nothing is run.

    \b
    Examples:
      bexplore init axolotl.yaml                                  writes axolotl.explore.yaml
      bexplore init train.py                                      writes train.explore.yaml
      bexplore init conf/config.yaml                              a Hydra tree: writes explore.yaml
      bexplore init -- torchrun --nproc-per-node 8 train.py --batch-size 16    writes explore.yaml
    """
    command = context.meta.get(COMMAND, ())
    if (source is None) == (not command):
        raise click.UsageError("Give one of SOURCE and a training command behind --.")
    if command:
        made = starter.of_command(command)
    else:
        assert source is not None  # one of the two is given
        made = starter.of_script(source) if source.suffix == ".py" else starter.of_file(source)
    target = output or made.target
    _write(target, made.text, force=force)
    for note in made.notes:
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
