"""One explorer of a host at a time on a device."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from bexplore.errors import EngineError


@contextmanager
def device_lock(device: str, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Keep a second explorer of this host off the device while one measures.

    Args:
        device: Name of the torch device.
        waiting: Called once if another explorer holds the lock.
    """
    with _open_lock(_lock_path(device)) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def try_device_lock(device: str) -> ExitStack | None:
    """The same lock, which closing what is returned gives back; None where another explorer holds it."""
    with ExitStack() as stack:
        handle = stack.enter_context(_open_lock(_lock_path(device)))
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return stack.pop_all()


def _lock_path(device: str) -> Path:
    folder = Path(os.environ.get("BEXPLORE_LOCK_DIR", tempfile.gettempdir()))
    return folder / f"bexplore-{os.getuid()}-{device.replace(':', '-')}.lock"


def _open_lock(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except OSError as error:
        raise EngineError(
            f"cannot open the device lock {path}: {error.strerror}",
            hint="set BEXPLORE_LOCK_DIR to a folder that can be written",
        ) from error
