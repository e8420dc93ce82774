"""A training command behind `--`, and the options that go with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from bexplore.errors import UserInputError
from bexplore.host.secret_values import VARIABLE_NAME

COMMAND = "bexplore.command"  # key of `context.meta`


class CommandBehindDashes(click.Command):
    """A command that takes all words behind the first `--` as they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words behind the dashes from the parser."""
        if "--" in args:
            index = args.index("--")
            ctx.meta[COMMAND] = tuple(args[index + 1 :])
            args = args[:index]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where the command stands."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def command_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that go with a training command; the values reach the function as further keywords."""
    options = (
        click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable for COMMAND; repeatable."),
        click.option("--replicas", type=click.IntRange(min=1), help="Data-parallel replicas that COMMAND starts."),
        click.option(
            "--global-batch-size", type=click.IntRange(min=1), help="Samples of one optimizer step of COMMAND."
        ),
        click.option(
            "--sizes-per-start", type=click.IntRange(min=1), help="Sizes that one start of COMMAND may serve."
        ),
        click.option("--writes-are-fine", is_flag=True, help="Let COMMAND write where it likes, without {output_dir}."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def overrides_of_command(
    *,
    command: Sequence[str],
    env: Sequence[str] = (),
    replicas: int | None = None,
    global_batch_size: int | None = None,
    sizes_per_start: int | None = None,
    writes_are_fine: bool = False,
) -> Iterator[str]:
    """Yield the settings of the `explore` section that the command line gives, as `--set` takes them.

    Raises:
        UserInputError: A variable has no value.
    """
    if command:
        yield f"explore.command={json.dumps(list(command))}"
    if env:
        yield f"explore.env={json.dumps(dict(map(_variable, env)))}"
    if replicas is not None:
        yield f"explore.replicas={replicas}"
    if global_batch_size is not None:
        yield f"explore.global_batch_size={global_batch_size}"
    if sizes_per_start is not None:
        yield f"explore.sizes_per_start={sizes_per_start}"
    if writes_are_fine:
        yield "explore.writes_are_fine=true"


def refuse_without_command(given: Mapping[str, object]) -> None:
    """Raise UserInputError where an option of a training command is given, and no command."""
    for name, value in given.items():
        if value:
            raise UserInputError(
                f"--{name.replace('_', '-')} goes with a training command, and there is none",
                hint="type the command behind --, or leave the option out",
            )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or (not equals and not VARIABLE_NAME.fullmatch(name)):  # not repeated: it may be a value
        raise UserInputError("--env needs NAME=VALUE, or the NAME of a variable", hint="type --env OMP_NUM_THREADS=1")
    if not equals and name not in os.environ:
        raise UserInputError(
            f"--env {name}: without =VALUE the value is that of this environment, which has none",
            hint=f"type --env {name}=VALUE, or export it",
        )
    return name, value if equals else os.environ[name]
