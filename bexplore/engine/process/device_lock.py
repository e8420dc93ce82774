"""One explorer of a host at a time on a device."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bexplore.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who measures on a device, as the lock's file names it.

    Attributes:
        folder: Where its results and logs go.
        since: When it began (ISO 8601, UTC).
        pid: Its process.
    """

    folder: str
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    pid: int = field(default_factory=os.getpid)

    def __str__(self) -> str:
        return f"process {self.pid} in {self.folder}, since {self.since}"


@contextmanager
def device_lock(name: str, *, holder: LockHolder, waiting: Callable[[LockHolder | None], None]) -> Iterator[None]:
    """Keep a second explorer of this host off the device while one measures.

    Args:
        name: Of the device: see `lock_name`.
        holder: Written into the lock's file.
        waiting: Called once if another explorer holds the lock, with who that is; None where its file is empty.
    """
    path = _lock_path(name)
    with _open_lock(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(_read_holder(path))
            fcntl.flock(handle, fcntl.LOCK_EX)
        _write_holder(handle, holder)
        yield


def try_device_lock(name: str, *, holder: LockHolder) -> ExitStack | None:
    """Return the lock as a context to close; None where another explorer holds it."""
    with ExitStack() as stack:
        handle = stack.enter_context(_open_lock(_lock_path(name)))
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        _write_holder(handle, holder)
        return stack.pop_all()


def lock_name(device: str, device_info: Mapping[str, Any]) -> str:
    """Return the name by which all explorers of this host lock a device.

    Its UUID where it has one, of a MIG instance its own: torch's index depends on CUDA_VISIBLE_DEVICES.
    """
    return str(device_info.get("uuid") or device)


def _lock_path(name: str) -> Path:
    folder = Path(os.environ.get("BEXPLORE_LOCK_DIR", tempfile.gettempdir()))
    return folder / f"bexplore-{os.getuid()}-{name.replace(':', '-')}.lock"


def _write_holder(handle: IO[str], holder: LockHolder) -> None:
    with suppress(OSError):  # a full disk: the lock itself holds
        handle.truncate(0)
        handle.write(json.dumps(asdict(holder)))
        handle.flush()


def _read_holder(path: Path) -> LockHolder | None:
    try:
        return LockHolder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # not written yet
        return None


def _open_lock(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except OSError as error:
        raise EngineError(
            f"cannot open the device lock {path}: {error.strerror}",
            hint="set BEXPLORE_LOCK_DIR to a folder that can be written",
        ) from error
