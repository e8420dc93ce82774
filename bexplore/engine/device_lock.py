"""One explorer of a host at a time on a device."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from bexplore.errors import EngineError


@contextmanager
def device_lock(name: str, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Keep a second explorer of this host off the device while one measures.

    Args:
        name: Of the device: see `lock_name`.
        waiting: Called once if another explorer holds the lock.
    """
    with _open_lock(_lock_path(name)) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def try_device_lock(name: str) -> ExitStack | None:
    """The same lock, which closing what is returned gives back; None where another explorer holds it."""
    with ExitStack() as stack:
        handle = stack.enter_context(_open_lock(_lock_path(name)))
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return stack.pop_all()


def lock_name(device: str, device_facts: Mapping[str, Any]) -> str:
    """What all explorers of this host call a device.

    Its UUID where it has one, of a MIG instance its own: torch's index depends on CUDA_VISIBLE_DEVICES.
    """
    return str(device_facts.get("uuid") or device)


def _lock_path(name: str) -> Path:
    folder = Path(os.environ.get("BEXPLORE_LOCK_DIR", tempfile.gettempdir()))
    return folder / f"bexplore-{os.getuid()}-{name.replace(':', '-')}.lock"


def _open_lock(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except OSError as error:
        raise EngineError(
            f"cannot open the device lock {path}: {error.strerror}",
            hint="set BEXPLORE_LOCK_DIR to a folder that can be written",
        ) from error
