"""The commands and their exit codes: the command-line library's only door.

Every command imports what it needs when it runs, so that `bexplore --help` starts without torch, Optuna or pydantic.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Sequence

import click

from bexplore import __version__
from bexplore.cli.apply import apply
from bexplore.cli.doctor import doctor
from bexplore.cli.explore import explore
from bexplore.cli.guard import guard
from bexplore.cli.one_shot import probe, trace
from bexplore.cli.report import report
from bexplore.cli.streams import silence
from bexplore.cli.tables import batch_sizes, replay, schema
from bexplore.errors import BexploreError, EngineError, ExitCode, UserProgramError
from bexplore.host import blas_threads

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class _InOrder(click.Group):
    """Lists its commands in the order in which they are used, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="bexplore")
def cli() -> None:
    """Find the fastest micro-batch size that fits, for any PyTorch training job, and say how sure it is.

    Set `micro_batch_size: explore` in the job's YAML, then:

    \b
      bexplore doctor job.yaml     is this machine ready, and does the job build?
      bexplore explore job.yaml    find the size
      bexplore apply job.yaml      write it into the file

    Completion of commands and options, for bash (zsh and fish likewise):

    \b
      eval "$(_BEXPLORE_COMPLETE=bash_source bexplore)"
    """


for command in (explore, apply, report, trace, probe, guard, replay, batch_sizes, schema, doctor):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors raised on purpose become a message, a hint and an exit code.

    With `--json` each is an event on stdout as well, the last one.

    Args:
        arguments: Behind the program's name; None for those of the process.
    """
    blas_threads.use_one_thread()
    given = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in given
    try:
        sys.exit(cli(given, prog_name="bexplore", standalone_mode=False))
    except UserProgramError as error:
        if error.traceback_text:
            click.echo(error.traceback_text.rstrip() + "\n", err=True)
        _complain(error, as_json=as_json)
    except BexploreError as error:
        _complain(error, as_json=as_json)
    except click.ClickException as error:
        error.show()
        _end(error.format_message(), "", ExitCode.USER_INPUT, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        _end("interrupted", "", ExitCode.INTERRUPTED, as_json=as_json)
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone; Python would complain about its own stdout at exit
        sys.exit(ExitCode.DONE)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        silence(1)  # Python would write, and complain, once more at exit
        hint = "make room, then run the same command again: what is finished is not repeated"
        told = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        _complain(EngineError(told, hint=hint), as_json=False)


def _complain(error: BexploreError, *, as_json: bool) -> None:
    try:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
    except OSError:
        silence(2)  # stderr is a file on the full disk: the exit code is all that is left to tell
    _end(error.message, error.hint, error.exit_code, as_json=as_json)


def _end(message: str, hint: str, exit_code: ExitCode, *, as_json: bool) -> None:
    """Leave with a code, after the event for programs."""
    if as_json:
        record = {"event": "error", "message": message, "hint": hint, "exit_code": int(exit_code)}
        try:
            click.echo(json.dumps(record))
        except OSError:
            silence(1)  # nobody reads it, or its disk is full
    sys.exit(exit_code)
