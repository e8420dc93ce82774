"""Processes that this one starts: in sessions of their own, marked in their environment, ended when this one ends."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bexplore.engine.process import reaper
from bexplore.errors import EngineError

# Whether this thread waits for a worker just now, so that an interruption loses nothing but the probe.
_waiting = threading.local()

_numbers = itertools.count()


def is_waiting() -> bool:
    """Return whether this thread waits for a worker just now."""
    return getattr(_waiting, "now", False)


@contextmanager
def waiting() -> Iterator[None]:
    """Let `is_waiting` tell that this thread waits for a worker."""
    _waiting.now = True
    try:
        yield
    finally:
        _waiting.now = False


def new_mark() -> str:
    """Return the mark of one worker, or of one group of them; no other mark begins with it.

    Raises:
        EngineError: The system has no room for the process that ends what is marked, should this one be killed.
    """
    # The dot ends the number: marks are compared by how they begin.
    return f"{_Reaper.mark()}-{next(_numbers)}."


def start_process(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own.

    Raises:
        EngineError: The system has no room for one more.
    """
    try:
        return subprocess.Popen(command, start_new_session=True, **options)
    except OSError as error:
        raise EngineError(
            f"cannot start {Path(command[0]).name}: {error.strerror}",
            hint="end other programs or raise the limits of processes and memory, then run the same command again",
        ) from error


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group; nothing where it has ended."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # ended already, and its number perhaps given to another


class _Reaper:
    """The one program that ends this process's workers, and all that they started, if this process is killed."""

    _mark: str | None = None
    _lock = threading.Lock()

    @classmethod
    def mark(cls) -> str:
        """Return this process's mark; the first call starts the reaper, and again in a forked process."""
        with cls._lock:
            owner = f"{os.getpid()}"
            if cls._mark is None or not cls._mark.startswith(f"{owner}."):
                mark = f"{owner}.{uuid.uuid4().hex}"
                process = start_process(
                    [sys.executable, "-I", "-S", reaper.__file__, mark],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                atexit.register(cls._dismiss, mark, process)
                cls._mark = mark
            return cls._mark

    @staticmethod
    def _dismiss(mark: str, process: subprocess.Popen[bytes]) -> None:
        """End what was not closed; then there is nothing left to guard."""
        if mark.startswith(f"{os.getpid()}."):
            reaper.end_marked(mark)
            process.kill()
            process.wait()
