"""One explorer of a host at a time on a device."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bexplore.errors import EngineError
from bexplore.host.json_files import parse_json
from bexplore.host.locks import NO_LOCKS, open_lock, runtime_folder, try_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who measures on a device, as the lock's file names it."""

    folder: str  # where its results and logs go
    # When it began (ISO 8601, UTC).
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    pid: int = field(default_factory=os.getpid)

    def __str__(self) -> str:
        return f"process {self.pid} in {self.folder}, since {self.since}"


@contextmanager
def device_locks(
    names: Sequence[str], *, holder: LockHolder, waiting: Callable[[LockHolder | None], None]
) -> Iterator[None]:
    """Keep other explorers of this host off several devices; locked in one order, so that none waits in a circle."""
    with ExitStack() as stack:
        for name in sorted(set(names)):
            stack.enter_context(device_lock(name, holder=holder, waiting=waiting))
        yield


@contextmanager
def device_lock(name: str, *, holder: LockHolder, waiting: Callable[[LockHolder | None], None]) -> Iterator[None]:
    """Keep a second explorer of this host off the device while one measures.

    `waiting` is called once if another explorer holds the lock, with who that is; with None where its file is empty.
    """
    path = _lock_path(name)
    with _open_lock(path) as handle:
        if not try_lock(handle):
            waiting(_read_holder(path))
            fcntl.flock(handle, fcntl.LOCK_EX)
        _write_holder(handle, holder)
        yield


def try_device_locks(names: Sequence[str], *, holder: LockHolder) -> ExitStack | None:
    """Return the locks as a context to close; None where another explorer holds one."""
    with ExitStack() as stack:
        for name in sorted(set(names)):
            handle = stack.enter_context(_open_lock(_lock_path(name)))
            if not try_lock(handle):
                return None
            _write_holder(handle, holder)
        return stack.pop_all()


def lock_names(device: str, device_info: Mapping[str, Any], *, num_ranks: int = 1) -> list[str]:
    """Return the names by which all explorers of this host lock devices.

    The UUID where a device has one, of a MIG instance its own: torch's index depends on CUDA_VISIBLE_DEVICES.
    """
    if num_ranks > 1 and device_info.get("uuids"):
        return [str(uuid) for uuid in device_info["uuids"][:num_ranks]]
    return [str(device_info.get("uuid") or device)]


def _lock_path(name: str) -> Path:
    named = os.environ.get("BEXPLORE_LOCK_DIR")
    folder = Path(named) if named else runtime_folder()
    plain_name = re.sub(r"[^\w.-]", "-", name)
    return folder / f"bexplore-{os.getuid()}-{plain_name}.lock"


def _write_holder(handle: IO[str], holder: LockHolder) -> None:
    with suppress(OSError):  # a full disk: the lock itself holds
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps(asdict(holder)))
        handle.flush()


def _read_holder(path: Path) -> LockHolder | None:
    try:
        return LockHolder(**parse_json(path.read_text()))
    except (OSError, ValueError, TypeError):  # not written yet
        return None


def _open_lock(path: Path) -> IO[str]:
    try:
        handle = open_lock(path, is_own=True)
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:
        has_locks = error.errno not in NO_LOCKS
        raise EngineError(
            f"cannot {'open' if has_locks else 'hold'} the device lock {path}: {error.strerror}",
            hint=f"set BEXPLORE_LOCK_DIR to a folder {'that can be written' if has_locks else 'of a local disk'}",
        ) from error
    return handle
