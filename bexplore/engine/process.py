"""The explorer's side of a worker: starts it, asks it, watches it, and ends all of its process group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from bexplore.engine.channel import receive, send
from bexplore.engine.failures import Failure, classify_exit
from bexplore.engine.machine import oom_kills, resident_bytes
from bexplore.probe import Outcome

POLL_S = 0.05
# What a worker may print before the rest is dropped; a step that prints in a loop must not fill the disk.
MAX_LOG_BYTES = 4 * 2**20
TAIL_BYTES = 4096

# Whether this thread waits for a worker just now, so that an interruption loses nothing but the probe.
_waiting = threading.local()

Progress = Callable[[dict[str, Any]], None]


def is_waiting() -> bool:
    """Whether this thread waits for a worker just now."""
    return getattr(_waiting, "now", False)


class WorkerProcess:
    """One worker process in a group of its own.

    Args:
        log_path: Receives what the worker and the user's code print.
        environment: Variables added to this process's own.
    """

    def __init__(self, log_path: Path, *, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._log = _BoundedLog(log_path)
        # Must be the main thread: the kernel ends the worker when the thread that started it ends.
        self._process = subprocess.Popen(
            # -P: a file in the working folder that is called like a standard module must not be imported.
            [sys.executable, "-P", "-m", "bexplore.engine.worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=os.environ | dict(environment or {}),
        )
        theirs.close()
        self._oom_kills_before = oom_kills()
        self._log.follow(self._process.stdout)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker can still be asked."""
        return self._process.poll() is None and not self._connection.closed

    def ask(
        self,
        request: dict[str, Any],
        *,
        on_progress: Progress,
        time_limit_s: Callable[[str], float | None],
        resident_limit_bytes: int | None,
    ) -> dict[str, Any] | Failure:
        """Send a request and wait for its answer.

        Args:
            request: What to do, `kind` first.
            on_progress: Called with each progress message.
            time_limit_s: Stage name -> seconds that it may take; None for no limit.
            resident_limit_bytes: Resident memory beyond which the worker is ended; None for no limit.

        Returns:
            The worker's answer, or how it ended without one.
        """
        _waiting.now = True
        try:
            return self._converse(request, on_progress, time_limit_s, resident_limit_bytes)
        finally:
            _waiting.now = False

    def _converse(
        self,
        request: dict[str, Any],
        on_progress: Progress,
        time_limit_s: Callable[[str], float | None],
        resident_limit_bytes: int | None,
    ) -> dict[str, Any] | Failure:
        try:
            send(self._connection, request)
        except OSError:
            return self._ended()
        stage, stage_began = "start", time.monotonic()
        while True:
            try:
                if self._connection.poll(POLL_S):
                    message = receive(self._connection)
                    if message.get("kind") == "answer":
                        return message
                    if message.get("stage") or "pass_time_s" in message:
                        stage, stage_began = str(message.get("stage") or stage), time.monotonic()
                    on_progress(message)
                    continue
            except (EOFError, OSError):
                return self._ended()
            except ValueError as error:
                return Failure(outcome=Outcome.CRASHED, reason=f"the worker sent what is not a message: {error}")
            limit_s = time_limit_s(stage)
            if limit_s is not None and time.monotonic() - stage_began > limit_s:
                return Failure(outcome=Outcome.TIMED_OUT, reason=f"no progress in stage '{stage}' for {limit_s:.0f} s")
            if resident_limit_bytes is not None and resident_bytes(self.pid) > resident_limit_bytes:
                limit_mib = resident_limit_bytes / 2**20
                return Failure(
                    outcome=Outcome.OUT_OF_MEMORY, reason=f"the worker's resident memory passed {limit_mib:.0f} MiB"
                )

    def close(self) -> None:
        """End the worker and everything that it started; safe to call twice."""
        descendants = self._descendants()
        self._connection.close()
        _kill_group(self.pid)
        for process in descendants:
            # Compiler pools start sessions of their own, so that the group's signal does not reach them.
            try:
                process.kill()
            except psutil.Error:
                pass  # ended meanwhile
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel (a device driver, say); it is killed and ends when the kernel lets go
        self._log.close()

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.Error:
            return []

    def _ended(self) -> Failure:
        try:
            code: int | None = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        return classify_exit(
            code, killed_by_kernel=oom_kills() > self._oom_kills_before, last_output=self._log.tail_text()
        )


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # ended already, and its number perhaps given to another


class _BoundedLog:
    """Drains a pipe for ever, writes its first bytes to a file and remembers the last ones."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._tail = b""
        self._thread: threading.Thread | None = None

    def follow(self, pipe: Any) -> None:
        self._thread = threading.Thread(target=self._drain, args=(pipe,), daemon=True)
        self._thread.start()

    def tail_text(self) -> str:
        if self._thread is not None:
            self._thread.join(timeout=1)  # let the last words of a dead worker arrive
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(timeout=1)
        if self._thread is None or not self._thread.is_alive():
            self._file.close()

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
