"""What the commands share: the options of every command that reads a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bexplore.errors import BexploreError, UserInputError

if TYPE_CHECKING:
    from bexplore.config.config import Config

_MAY_HOLD_A_PASSWORD = "explore.storage="

CONFIG = click.argument("config", type=click.Path(path_type=Path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that every command which reads a configuration has.

    Attributes:
        as_json: JSON lines on stdout, nothing else there.
        overrides: `dotted.key=value`, in order.
        model_dir: Folder of the results; None for the configuration's own.
        allow_code: Whether import paths of the configuration may be imported.
        mode: `train` or `eval`; None for what the file asks for.
        verbosity: -1 to 2.
    """

    as_json: bool
    overrides: tuple[str, ...]
    model_dir: str | None
    allow_code: bool
    mode: str | None
    verbosity: int

    def load(self, path: Path) -> Config:
        """The checked configuration."""
        from bexplore.config.load import load_config
        from bexplore.job import Mode

        mode = None if self.mode is None else Mode(self.mode)
        config = load_config(path, overrides=self.overrides, allow_code=self.allow_code, mode=mode)
        return replace(config, options=self._options_of_the_job())

    def _options_of_the_job(self) -> tuple[str, ...]:
        named = [("--set", override) for override in self.overrides if not override.startswith(_MAY_HOLD_A_PASSWORD)]
        named += [(f"--{name}", value) for name, value in (("model-dir", self.model_dir), ("mode", self.mode)) if value]
        return tuple(part for option in named for part in option)

    def require_torch(self) -> None:
        """Say what is missing before a worker dies of it.

        Raises:
            UserInputError: torch is not installed.
        """
        if find_spec("torch") is None:
            raise UserInputError("torch is not installed here", hint="pip install torch; bexplore doctor tells more")

    def tell_wait(self, message: Mapping[str, Any]) -> None:
        """Say on stderr whom a worker waits for."""
        if message.get("stage") == "lock" and self.verbosity >= 0:
            click.echo(f"waiting for the device, which {message['holder']} uses", err=True)

    def with_override(self, override: str) -> Common:
        """The same options and one more override."""
        return replace(self, overrides=(*self.overrides, override))


def _keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete a key of `--set` at the shell: those of the `explore` section, and those that the file has."""
    from bexplore.config.document import document
    from bexplore.config.schema import dotted_keys

    keys = ["micro_batch_size", *dotted_keys()]
    file = next(iter(context.args), None)  # an option that lacks its value keeps click from reading the arguments
    with suppress(BexploreError):  # of a file that cannot be read, none
        keys += document.read(Path(file)).dotted_keys() if file else []
    return [f"{key}=" for key in dict.fromkeys(keys) if key.startswith(incomplete)]


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command and hand them over as one `common`."""

    @click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout, one event a line, nothing else there.")
    @click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=_keys,
        help="Override a dotted key; repeatable.",
    )
    @click.option("--seed", type=click.IntRange(min=0), help="Same as --set explore.seed=N.")
    @click.option("--model-dir", metavar="DIR", help="Results go to local_compile_<mode>/DIR.")
    @click.option("--no-code", is_flag=True, help="Refuse configurations that name code to import.")
    @click.option("--mode", type=click.Choice(["train", "eval"]), help="Which side of the configuration to explore.")
    @click.option("-v", "--verbose", count=True, help="Say more on stderr; twice for everything.")
    @click.option("-q", "--quiet", is_flag=True, help="Say only errors on stderr.")
    @wraps(command)
    def with_common(
        *arguments: Any,
        as_json: bool,
        overrides: tuple[str, ...],
        seed: int | None,
        model_dir: str | None,
        no_code: bool,
        mode: str | None,
        verbose: int,
        quiet: bool,
        **others: Any,
    ) -> Any:
        from bexplore import logs

        verbosity = -1 if quiet else min(verbose, 2)
        logs.configure(verbosity)
        common = Common(
            as_json=as_json,
            overrides=overrides if seed is None else (*overrides, f"explore.seed={seed}"),
            model_dir=model_dir,
            allow_code=not no_code,
            mode=mode,
            verbosity=verbosity,
        )
        return command(*arguments, common=common, **others)

    return with_common
