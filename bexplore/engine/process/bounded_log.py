"""The output of a worker: its first bytes in a file, its last ones remembered."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError
from bexplore.host.secret_values import hidden, hide_in_file

# What a worker may print before the rest is dropped; a step that prints in a loop must not fill the disk.
MAX_LOG_BYTES = 4 * 2**20
TAIL_BYTES = 4096


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
