"""Processes that this one starts: in sessions of their own, marked, ended when this one ends, their output kept."""

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

from bexplore.errors import EngineError
from bexplore.host import process_tree
from bexplore.host.process_tree import WORKER_MARK, end_marked
from bexplore.host.secret_values import hidden, hide_in_file

# What a worker may print before the rest is dropped; a step that prints in a loop must not fill the disk.
MAX_LOG_BYTES = 4 * 2**20
TAIL_BYTES = 4096

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
    """Return the mark of one worker, or of one group of them; no other mark begins with it."""
    # The dot ends the number: marks are compared by how they begin.
    return f"{_Reaper.mark()}-{next(_numbers)}."


def start_process(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own."""
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
                    [sys.executable, "-I", "-S", process_tree.__file__, "marked", WORKER_MARK, mark],
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
            end_marked(WORKER_MARK, mark)
            process.kill()
            process.wait()


class BoundedLog:
    """Drains a pipe for ever, writes its first bytes to a file and remembers the last ones."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._path, self._file = path, path.open("ab", buffering=0)
        except OSError as error:
            raise EngineError(
                f"cannot write the worker's log {path}: {error.strerror}",
                hint="make room or make the folder writable, then run the same command again: it goes on from here",
            ) from error
        self._tail = b""
        self._thread: threading.Thread | None = None

    def follow(self, pipe: Any) -> None:
        """Drain a pipe from now on."""
        self._thread = threading.Thread(target=self._drain, args=(pipe,), daemon=True)
        self._thread.start()

    def tail_text(self) -> str:
        """Return the last that was printed."""
        if self._thread is not None:
            self._thread.join(timeout=1)  # let the last output of a dead worker arrive
        return hidden(self._tail.decode(errors="replace").strip())

    def close(self) -> None:
        """Close the file once the pipe has ended."""
        if self._thread is not None:
            self._thread.join(timeout=1)
        if self._thread is None or not self._thread.is_alive():
            self._file.close()
            hide_in_file(self._path)

    def _write(self, chunk: bytes) -> None:
        try:
            self._file.write(chunk)
        except OSError:
            pass  # a full disk must not stop the drain: the worker would block on its full pipe

    def _drain(self, pipe: Any) -> None:
        written = 0
        while chunk := os.read(pipe.fileno(), 65536):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if written < MAX_LOG_BYTES:
                written += len(chunk)
                self._write(chunk[: MAX_LOG_BYTES - written + len(chunk)])
        pipe.close()
