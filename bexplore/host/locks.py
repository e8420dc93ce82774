"""Locks between processes, held by the kernel: they end with the process, however it ends.

The file of a lock is never one that a symbolic link leads to. Where a file system has no locks, the lock is one of this
host, in a folder of the user's own.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bexplore.errors import EngineError
from bexplore.host import logs

# What is held is written within milliseconds; a lock that is not free after this long belongs to a stopped process.
WAIT_S = 30.0
_POLL_S = 0.02
# What flock(2) says on a file system without locks. Sources: Lustre mounted without `flock` (ENOSYS), 9p and some FUSE
# file systems (EOPNOTSUPP), NFS whose lock daemon is away (ENOLCK).
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the last one: a pipe must not block
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def open_lock(path: Path, *, is_own: bool = False) -> IO[str]:
    """Open the file of a lock, which is made where it is absent; nothing in it changes.

    Args:
        path: The file.
        is_own: Whether a file of another user is refused. In a folder that users share their locks are shared too.

    Raises:
        OSError: The file cannot be opened.
        EngineError: It is a symbolic link, no regular file, or another user's.
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600 if is_own else 0o666)
        except PermissionError:
            if is_own:
                raise
            descriptor = os.open(path, os.O_RDONLY | _OPEN)  # of another user: to lock a file, reading it is enough
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, "it is a symbolic link, which is not followed") from error
        raise
    found = os.fstat(descriptor)
    why_not = "it is no regular file" if not stat.S_ISREG(found.st_mode) else ""
    if is_own and (found.st_uid != os.getuid() or found.st_nlink != 1):
        why_not = why_not or "it belongs to another user, or has a second name"
    if why_not:
        os.close(descriptor)
        raise _refused(path, why_not)
    can_write = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    return os.fdopen(descriptor, "r+" if can_write else "r")


def runtime_folder() -> Path:
    """Return the folder of this host in which nobody but the user writes; it is made where it is absent.

    Raises:
        EngineError: It is another user's, others may write in it, or it cannot be made.
    """
    # A process without the variable, such as one of cron, must meet the locks of one that has it.
    named = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"]
    base = next((Path(one) for one in named if one and _is_users_own(Path(one))), None)
    folder = Path(tempfile.gettempdir()) / f"bexplore-{os.getuid()}" if base is None else base / "bexplore"
    hint = "remove it, or set BEXPLORE_LOCK_DIR to a folder of your own"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    except OSError as error:
        raise EngineError(f"cannot make the folder of locks {folder}: {error.strerror}", hint=hint) from error
    if not _is_users_own(folder):
        raise EngineError(f"{folder} is not yours alone: another user made it, or may write in it", hint=hint)
    return folder


@contextmanager
def holding(handle: IO[Any], path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of an open file.

    Raises:
        EngineError: Another process held it all the while.
    """
    deadline = time.monotonic() + wait_s
    with _lockable(handle, path) as lock:
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{path} is locked by another process for more than {wait_s:.0f} s",
                    hint=f"see who holds it with: fuser {path}",
                )
            time.sleep(_POLL_S)
        yield  # the lock ends when the handle is closed: what is written then is within it too


def try_lock(handle: IO[Any]) -> bool:
    """Lock an open file; return whether that was possible at once. The lock ends when the handle is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a path, whose file is made where it is absent.

    Raises:
        EngineError: The file cannot be made, or another process held the lock all the while.
    """
    with _opened(path) as handle, holding(handle, path, wait_s=wait_s):
        yield


@contextmanager
def present(path: Path) -> Iterator[bool]:
    """Be one of the processes that are present; gives whether there was none before.

    Whoever comes must hold a lock of another path meanwhile, so that two who come together do not both count as first.
    """
    with _opened(path) as handle, _lockable(handle, path) as lock:
        is_first = try_lock(lock)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield is_first


def _opened(path: Path) -> IO[str]:
    try:
        return open_lock(path)
    except OSError as error:
        raise EngineError(
            f"cannot open the lock {path}: {error.strerror}",
            hint="make the folder writable, or choose another with `model_dir`",
        ) from error


@contextmanager
def _lockable(handle: IO[Any], path: Path) -> Iterator[IO[Any]]:
    """Give the handle, or where its file system has no locks, that of a file of this host in its stead."""
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        _warn_of_no_locks(path.parent)
        with open_lock(runtime_folder() / f"{name}.lock", is_own=True) as instead:
            yield instead
        return
    yield handle


@functools.cache
def _warn_of_no_locks(folder: Path) -> None:
    what = "the file system has no locks: do not start explorers of other hosts in this folder"
    logs.log.warning(what, folder=str(folder))


def _is_users_own(folder: Path) -> bool:
    """Return whether a path is a folder of the user, no link to one, in which nobody else may write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_private = not found.st_mode & _WRITABLE_BY_OTHERS
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_private


def _refused(path: Path, why: str) -> EngineError:
    return EngineError(f"the lock {path} is not opened: {why}", hint="remove it: somebody else may have put it there")
