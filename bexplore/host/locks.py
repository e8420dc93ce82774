"""Locks between processes, held by the kernel: they end with the process, however it ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bexplore.errors import EngineError

# What is held is written within milliseconds; a lock that is not free after this long belongs to a stopped process.
WAIT_S = 30.0
_POLL_S = 0.02


def lock_handle(handle: IO[Any], path: Path, *, wait_s: float = WAIT_S) -> None:
    """Lock an open file; it is free again when the handle is closed.

    Raises:
        EngineError: Another process held it all the while.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{path} is locked by another process for more than {wait_s:.0f} s",
                    hint=f"see who holds it with: fuser {path}",
                ) from None
            time.sleep(_POLL_S)


@contextmanager
def locked(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a path, whose file is made where it is absent.

    Raises:
        EngineError: The file cannot be made, or another process held the lock all the while.
    """
    try:
        handle = path.open("a")
    except OSError as error:
        raise EngineError(
            f"cannot open the lock {path}: {error.strerror}",
            hint="make the folder writable, or choose another with --model-dir",
        ) from error
    with handle:
        lock_handle(handle, path, wait_s=wait_s)
        yield


@contextmanager
def present(path: Path) -> Iterator[bool]:
    """Be one of the processes that are present; gives whether there was none before.

    Whoever comes must hold a lock of another path meanwhile, so that two who come together do not both count as first.
    """
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_first = True
        except BlockingIOError:
            is_first = False
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield is_first
