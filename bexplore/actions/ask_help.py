"""Runs a program once with `--help`: the user's own code, so only with the user's consent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from bexplore.config.command import quote_words
from bexplore.errors import UserInputError

_SECONDS = 60  # imports of transformers and Lightning from a cold disk take half of it
_MOST_CHARACTERS = 200_000


def ask_for_help(words: Sequence[str]) -> str:
    """Return what a program prints with `--help`; it and what it started is ended after a minute.

    Raises:
        UserInputError: It cannot be started, prints no help, or does not end.
    """
    shown = f"{quote_words(words)} --help"
    by_hand = f"type the option of the size yourself: bexplore init -- {quote_words(words)} OPTION {{micro_batch_size}}"
    own = dict(os.environ, COLUMNS="200", NO_COLOR="1", TERM="dumb", PAGER="cat")
    try:
        process = subprocess.Popen(
            [*words, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=own,
            start_new_session=True,
        )
    except OSError as error:
        raise UserInputError(
            f"{shown} cannot be started: {error.strerror}", hint="type a command that starts"
        ) from None
    try:
        output, _ = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserInputError(
            f"{shown} did not end within {_SECONDS} s; it was ended",
            hint=by_hand,
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = output[:_MOST_CHARACTERS].decode(errors="replace")
    if "--" not in text or (process.returncode and "usage" not in text.lower()):
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "it prints nothing")
        raise UserInputError(f"{shown} prints no options: {last.strip()}", hint=by_hand)
    return text
