"""The options that several commands share, and the training command behind `--`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bexplore.errors import BexploreError, UserInputError
from bexplore.host import logs
from bexplore.host.json_files import parse_json
from bexplore.host.secret_values import VARIABLE_NAME
from bexplore.job import Mode
from bexplore.units import counted

if TYPE_CHECKING:
    from bexplore.config.config import Config

COMMAND = "bexplore.command"  # key of `context.meta`


class CommandBehindDashes(click.Command):
    """A command that takes all words behind the first `--` as they are."""

    allow_extra_args = True  # refused here, with what to type

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words behind the dashes from the parser."""
        if "--" in args:
            index = args.index("--")
            ctx.meta[COMMAND] = tuple(args[index + 1 :])
            args = args[:index]
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = _find_key(error.option_name)
            if key is None or not any("--set" in option.opts for option in self.params):
                raise
            text = f"{error.message.rstrip('.')}; {key} is a key: type --set {key}=VALUE"
            raise click.NoSuchOption(error.option_name, text, ctx=error.ctx) from None
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(
                f"Got unexpected extra {'arguments' if len(rest) > 1 else 'argument'} ({' '.join(rest)}); "
                "one file is read, and a training command stands behind --, as in -- python train.py",
                ctx=ctx,
            )
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where the command stands."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _find_key(option: str) -> str | None:
    """Return the key of the `explore` section that an option which does not exist is named as; None for none."""
    from bexplore.config.schema import dotted_keys  # reads pydantic, which no other error needs

    key = f"explore.{option.lstrip('-').replace('-', '_')}"
    return key if key in dotted_keys() else None


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
    """Yield the settings of the `explore` section that the command line gives, as `--set` takes them."""
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


_MAY_HOLD_A_PASSWORD = "explore.storage="
_STANDS_BEHIND_DASHES = "explore.command="
VARIABLES = "explore.env="  # then a JSON object, as `overrides_of_command` writes it

CONFIG = click.argument("config", type=click.Path(path_type=Path))
DEVICE_NAME = click.option(
    "--device-name",
    metavar="NAME",
    help="An NVIDIA device that is not here, such as h100: a speed is estimated for it, a command is emulated; this: "
    "a job is estimated for this machine's processor.",
)
_DEVICE_NAME = "explore.device_name="


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The values of the common options.

    Attributes:
        as_json: JSON lines on stdout, nothing else there.
        overrides: `dotted.key=value`, in order.
        model_dir: Folder of the results; None for the configuration's own.
        allow_code: Whether the configuration may name what is run or imported.
        mode: `train` or `eval`; None for the file's own.
        verbosity: -1 to 2.
    """

    as_json: bool
    overrides: tuple[str, ...]
    model_dir: str | None
    allow_code: bool
    mode: str | None
    verbosity: int

    def load(self, path: Path | None) -> Config:
        """Load and check a configuration, or a training command without one."""
        from bexplore.config.load import load_config  # pydantic's schema takes longer than a plan of a run

        mode = None if self.mode is None else Mode(self.mode)
        config = load_config(path, overrides=self.overrides, allow_code=self.allow_code, mode=mode)
        return replace(config, options=self._options_of_the_job())

    def load_own_job(self, path: Path) -> Config:
        """Load a job that bexplore builds itself."""
        config = self.load(path)
        if config.command is not None:
            raise UserInputError(
                f"{path}: explore.command trains: its program is the command's, and cannot be built here",
                hint=f"bexplore explore {config.typed}, or describe the job by explore.workload",
            )
        self.announce(config)
        return config

    def _options_of_the_job(self) -> tuple[str, ...]:
        hidden = (_MAY_HOLD_A_PASSWORD, _STANDS_BEHIND_DASHES, VARIABLES, _DEVICE_NAME)
        named = [("--set", override) for override in self.overrides if not override.startswith(hidden)]
        named += [("--env", variable) for variable in self._list_variables()]
        devices = (one.removeprefix(_DEVICE_NAME) for one in self.overrides if one.startswith(_DEVICE_NAME))
        named += [("--device-name", parse_json(name) if name.startswith('"') else name) for name in devices]
        named += [(f"--{name}", value) for name, value in (("model-dir", self.model_dir), ("mode", self.mode)) if value]
        return tuple(part for option in named for part in option)

    def _list_variables(self) -> list[str]:
        """Return the names of the variables of `--env`, which takes their values, that may be secret, from its own
        environment then; and the values of those that a start fills in."""
        from bexplore.config.command import begins_with_placeholder

        given = (parse_json(one.removeprefix(VARIABLES)) for one in self.overrides if one.startswith(VARIABLES))
        values = [item for variables in given for item in variables.items()]
        return [f"{name}={value}" if begins_with_placeholder(value) else name for name, value in values]

    def announce(self, config: Config) -> None:
        """Say on stderr what the configuration starts and imports, before the first of it."""
        if self.verbosity >= 0:
            for line in config.starts:
                click.echo(line, err=True)

    def require_torch(self) -> None:
        """Check that torch is installed, before a worker fails without it."""
        if find_spec("torch") is None:
            raise UserInputError(
                "torch is not installed here", hint="pip install torch; bexplore doctor checks the rest"
            )

    def report_wait(self, message: Mapping[str, Any]) -> None:
        """Report on stderr which process a worker waits for, a loader that is read, and each of several traces."""
        if self.verbosity < 0:
            return
        if message.get("stage") == "lock":
            click.echo(f"waiting for the device, which {message['holder']} uses", err=True)
        elif message.get("stage") == "lengths":
            click.echo("reading the lengths of samples from the loader", err=True)
        elif message.get("stage") == "trace" and "device_name" in message:
            click.echo(f"tracing the program of {message['device_name']}", err=True)
        elif message.get("stage") == "trace" and "num_devices" in message:
            click.echo(f"tracing one rank of {counted(message['num_devices'], 'device')}", err=True)

    def with_device_name(self, name: str | None) -> Common:
        """Return the same options on an emulated device; as they are without a name."""
        return self if name is None else self.with_override(f"{_DEVICE_NAME}{json.dumps(name)}")

    def with_override(self, override: str) -> Common:
        """Return the same options with one more override."""
        return replace(self, overrides=(*self.overrides, override))


def _complete_keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from bexplore.config import document  # as in `load`
    from bexplore.config.schema import dotted_keys

    keys = ["micro_batch_size", *dotted_keys()]
    file = next(iter(context.args), None)  # an option that lacks its value keeps click from reading the arguments
    with suppress(BexploreError):  # a file that cannot be read has none
        keys += document.read(Path(file)).dotted_keys() if file else []
    return [f"{key}=" for key in dict.fromkeys(keys) if key.startswith(incomplete)]


_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Write JSON lines to stdout, one event a line."),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=_complete_keys,
        help="Override a dotted key; repeatable.",
    ),
    click.option("--dialect", metavar="NAME", help="Family of CONFIG; default: recognised from its keys."),
    click.option("--seed", type=click.IntRange(min=0), help="Same as --set explore.seed=N."),
    click.option("--model-dir", metavar="DIR", help="Write results to local_compile_<mode>/DIR."),
    click.option("--no-code", is_flag=True, help="Refuse what can run or import code."),
    click.option("--mode", type=click.Choice(["train", "eval"]), help="The side of the configuration to use."),
    click.option("-v", "--verbose", count=True, help="Write more to stderr; twice for everything."),
    click.option("-q", "--quiet", is_flag=True, help="Write only errors to stderr."),
)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command, which receives them as one `common`."""

    @wraps(command)
    def with_common(
        *arguments: Any, dialect: str | None, seed: int | None, no_code: bool, verbose: int, quiet: bool, **options: Any
    ) -> Any:
        verbosity = -1 if quiet else min(verbose, 2)
        logs.configure(verbosity)
        own = {name: options.pop(name) for name in ("as_json", "overrides", "model_dir", "mode")}
        common = Common(**own, allow_code=not no_code, verbosity=verbosity)
        if dialect is not None:
            common = common.with_override(f"explore.dialect={dialect}")
        if seed is not None:
            common = common.with_override(f"explore.seed={seed}")
        return command(*arguments, common=common, **options)

    for option in reversed(_OPTIONS):
        with_common = option(with_common)
    return with_common
