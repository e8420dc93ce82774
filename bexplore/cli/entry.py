"""The entry point: a group that imports a command when it is used, and errors as messages and exit codes."""

from __future__ import annotations

import difflib
import errno
import itertools
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from bexplore import __version__
from bexplore.cli import streams
from bexplore.cli.field_names import name_options
from bexplore.errors import BexploreError, EngineError, ExitCode, UserInputError, UserProgramError, first_line
from bexplore.host import blas_threads
from bexplore.host.secret_values import hidden, hidden_arguments, hide_process_title

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# Command -> its module and its line in the group's help, in the order of use.
COMMANDS = {
    "init": ("setup", "Write the smallest file with which a training can be explored."),
    "explore": ("explore", "Find the micro-batch size of a job."),
    "apply": ("apply", "Write the size that was found into the job's file."),
    "report": ("offline", "Show a run as an HTML page, Markdown or pictures."),
    "plan": ("plan", "Plan a training: time, devices, price, parts of a step."),
    "network": ("network", "Time the network between the devices that will train."),
    "trace": ("one_shot", "Predict memory and flops of every size without running it."),
    "probe": ("one_shot", "Run one size for real."),
    "guard": ("guard", "Compare a job's performance with a baseline."),
    "replay": ("offline", "Run the search over a table of recorded sweeps."),
    "batch-sizes": ("offline", "List the global batch sizes that are valid with a size."),
    "schema": ("offline", "Print a JSON Schema of the configuration, for editors."),
    "attach": ("setup", "Let a Python that ignores PYTHONPATH be observed."),
    "worker": ("setup", "Be one rank of a job whose ranks you start yourself."),
    "doctor": ("setup", "Check whether this machine and a job are ready."),
}


class _Unhandled(Exception):
    """Carries an error past click, which ends with exit code 1 or as interrupted at some that are none of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _past_click() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise _Unhandled(error) from error


class LazyGroup(click.Group):
    """A group whose commands are imported when one is run or its help is shown.

    The group's own help and the completion of command names then need neither torch, Optuna, pydantic nor numpy.
    """

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        """Parse the arguments; `--help` writes already here."""
        with _past_click():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _past_click():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"bexplore.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Tell where options stand: most are those of a command, and are typed behind its name."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            command = next((word for word in args if word in COMMANDS), "COMMAND")
            text = f"No such option '{error.option_name}' before the command; options stand behind it: "
            text += f"bexplore {command} ... {error.option_name}"
            raise click.NoSuchOption(error.option_name, text, ctx=error.ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or tell what to type in place of a word that is none."""
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command '{args[0]}'; {_in_place_of(args[0])}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, and the group's own options."""
        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _in_place_of(word: str) -> str:
    """Return what to type in place of a first word that is no command."""
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    if close:
        return f"did you mean {close[0]}?"
    if word in ("help", "version"):
        return f"type bexplore --{word}"
    if Path(word).suffix:  # the name of a file, be it there or not
        return f"type bexplore explore {shlex.quote(word)}"
    if shutil.which(word):
        return f"a training command stands behind --: bexplore explore -- {shlex.quote(word)} ..."
    return f"the commands are {', '.join(COMMANDS)}"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="bexplore")
def cli() -> None:
    """Find the fastest micro-batch size that fits, for any PyTorch training job, with a confidence score.

    Set `micro_batch_size: explore` in the job's YAML, then:

    \b
      bexplore doctor job.yaml     check that this machine is ready and that the job builds
      bexplore explore job.yaml    find the size
      bexplore apply job.yaml      write it into the file

    Completion of commands and options, for bash (zsh and fish likewise):

    \b
      eval "$(_BEXPLORE_COMPLETE=bash_source bexplore)"
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error raised on purpose becomes a message, a hint and an exit code.

    With `--json` the error is also the last event on stdout.

    Args:
        arguments: The arguments after the program's name; None for those of the process.
    """
    streams.prepare()
    blas_threads.use_one_thread()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        hide_arguments(given)
    try:
        _run(given, as_json="--json" in given)
    finally:
        streams.finish()


def _run(given: list[str], *, as_json: bool) -> None:
    try:
        _refuse_empty(given)
        sys.exit(cli(given, prog_name="bexplore", standalone_mode=False))
    except BexploreError as error:
        if isinstance(error, UserProgramError) and error.traceback_text:
            click.echo(hidden(error.traceback_text).rstrip() + "\n", err=True)
        _fail(error, as_json=as_json)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and ";" not in error.message:  # which has its own advice already
            _tell_where_option_is(error)
        if "--" in given and "unexpected extra argument" in error.message and ";" not in error.message:
            command = given[0]
            vars(error)["message"] = f"{command} takes no training command; {_OF_COMMANDS.get(command, _EXPLORE)}"
        vars(error)["message"] = hidden(error.message)
        error.show()
        _end(error.format_message(), "", ExitCode.USER_INPUT, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        _end("interrupted", "", ExitCode.INTERRUPTED, as_json=as_json)
    except Exception as caught:
        cause = caught.error if isinstance(caught, _Unhandled) else caught
        if isinstance(cause, OSError) and streams.tells_of_no_reader(cause, sys.stdout):
            sys.exit(ExitCode.DONE)
        _fail(_as_own(cause), as_json=as_json)


# What does for a training command what another command does for a configuration.
_EXPLORE = "bexplore explore -- COMMAND runs it"
_OF_COMMANDS = {
    "trace": "bexplore explore --device-name NAME -- COMMAND tells its memory on an emulated device",
    "guard": "bexplore report RUN RUN compares two explorations of it",
    "plan": "bexplore plan RUN plans with an exploration of it",
}


def _tell_where_option_is(error: click.NoSuchOption) -> None:
    """Tell of an option of another command which one has it, in place of one that is spelt alike."""
    command, option = str(error.ctx.info_name if error.ctx else ""), error.option_name
    given = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    having = [name for name, one in given.items() if one and any(option in param.opts for param in one.params)]
    if (command, option) == ("apply", "--dry-run"):
        advice = "leave it out: apply shows the change, and asks before it writes"
    elif having:
        advice = f"it is one of {', '.join(having)}"
    else:
        return
    vars(error).update(message=f"No such option '{option}' of {command}; {advice}", possibilities=())


def _refuse_empty(given: Sequence[str]) -> None:
    """Refuse an option that is empty, as by a variable of a shell that is not set: it would be another question."""
    own = list(itertools.takewhile(lambda word: word != "--", given))  # behind it stands a training command
    split = (word.partition("=") for word in own)
    pairs = [*itertools.pairwise(own), *((name, value) for name, equals, value in split if equals)]
    for name, value in pairs:
        if name.startswith("--") and not value.strip():
            raise UserInputError(f"{name} is empty", hint="give it a value, or leave it out; is a variable not set?")


def _as_own(error: Exception) -> EngineError:
    """Return the message of an error that was not raised on purpose; a fault of bexplore shows its traceback."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return EngineError(
            f"cannot write {error.filename or 'the output'}: {error.strerror}",
            hint="free disk space, then run the same command again: finished work is not repeated",
        )
    traceback.print_exception(error)
    hint = "report it with the lines above and what `bexplore doctor` prints"
    if os.environ.get("PYTHONPATH"):
        hint = (
            "PYTHONPATH puts other packages before bexplore's own: leave it out, and give it to the training alone by "
            f"--env PYTHONPATH=...; if that does not help, {hint}"
        )
    return EngineError(f"bexplore itself failed: {type(error).__name__}: {first_line(error)}", hint=hint)


def hide_arguments(given: Sequence[str]) -> None:
    """Keep the secrets among the arguments from those who list processes."""
    shown = hidden_arguments(given)
    if shown != list(given):
        hide_process_title(given, shown)


def _fail(error: BexploreError, *, as_json: bool) -> None:
    message, hint = name_options(error.message), name_options(error.hint)
    click.echo(f"error: {hidden(message)}", err=True)
    if hint:
        click.echo(f"hint: {hidden(hint)}", err=True)
    _end(message, hint, error.exit_code, as_json=as_json)


def _end(message: str, hint: str, exit_code: ExitCode, *, as_json: bool) -> None:
    if as_json:
        record = {"event": "error", "message": hidden(message), "hint": hidden(hint), "exit_code": int(exit_code)}
        try:
            click.echo(json.dumps(record))
        except OSError:
            pass  # the reader is gone, or its disk is full
    sys.exit(exit_code)
