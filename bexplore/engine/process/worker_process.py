"""The explorer's side of a worker: start, request and answer, watchdog, and the end of all that it started."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from bexplore.engine.process import reaper
from bexplore.engine.process.memory_watchdog import POLL_S, MemoryWatchdog
from bexplore.engine.protocol import messages
from bexplore.engine.protocol.failures import classify_exit
from bexplore.engine.protocol.messages import FROM_WORKER, Answer, Failed, Request, receive, send
from bexplore.errors import EngineError
from bexplore.host.blas_threads import users_environment
from bexplore.host.machine import oom_kills
from bexplore.measurement.probe import Outcome

# What a worker may print before the rest is dropped; a step that prints in a loop must not fill the disk.
MAX_LOG_BYTES = 4 * 2**20
TAIL_BYTES = 4096
# Importing torch and its compiler takes seconds; from a cold disk, tens of seconds.
PRELOAD_LIMIT_S = 120.0
# How long an end of the pipe may come before the end of the process that it announces. Seconds.
CLOSED_PIPE_S = 2.0

# Whether this thread waits for a worker just now, so that an interruption loses nothing but the probe.
_waiting = threading.local()

Progress = Callable[[dict[str, Any]], None]

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the answer to a request may take.

    Attributes:
        stage_s: Seconds that each stage may be silent, or a function of the stage's name; None for no limit.
        total_s: Seconds of the whole answer; None for no limit.
        resident_bytes: Resident memory of the worker and its children; None for no limit.
    """

    stage_s: float | Callable[[str], float] | None
    total_s: float | None = None
    resident_bytes: int | None = None

    def of_stage_s(self, stage: str) -> float | None:
        """Return the seconds that a stage may be silent; None for no limit."""
        return self.stage_s(stage) if callable(self.stage_s) else self.stage_s


def is_waiting() -> bool:
    """Return whether this thread waits for a worker just now."""
    return getattr(_waiting, "now", False)


class WorkerProcess:
    """One worker process in a group of its own.

    Args:
        log_path: Receives what the worker and the user's code print.
        environment: Variables added to this process's own.
        preload: Modules to import at once, before any request.
    """

    def __init__(
        self, log_path: Path, *, environment: Mapping[str, str] | None = None, preload: Sequence[str] = ()
    ) -> None:
        # The dot ends the number: marks are compared by how they begin.
        self._mark = f"{_Reaper.mark()}-{next(_numbers)}."
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._posted: Request | None = None
        try:
            self._log = _BoundedLog(log_path)
            # Must be the main thread: the kernel ends the worker when the thread that started it ends.
            self._process = _popen(
                # -P: a file in the working folder that is called like a standard module must not be imported.
                [sys.executable, "-P", "-m", "bexplore.engine.worker", str(theirs.fileno()), *preload],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=users_environment() | dict(environment or {}) | {reaper.VARIABLE: self._mark},
            )
        finally:
            theirs.close()
        self._oom_kills_before = oom_kills()
        self._log.follow(self._process.stdout)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take a request."""
        return self._process.poll() is None and not self._connection.closed

    def await_preloaded(self) -> None:
        """Return once a worker has imported what it was given to `preload`, has ended, or takes too long."""
        if self._connection.poll(PRELOAD_LIMIT_S):
            try:
                receive(self._connection, FROM_WORKER)
            except (EOFError, OSError, ValueError):
                self.close()

    def post(self, request: Request) -> None:
        """Send a request whose answer `ask` waits for, with the same request, later."""
        try:
            send(self._connection, request)
        except OSError:
            return  # `ask` will find out how it ended
        self._posted = request

    def ask(
        self,
        request: Request,
        *,
        limits: Limits,
        on_progress: Progress = lambda report: None,
    ) -> Answer:
        """Send a request and wait for its answer.

        Returns:
            The worker's answer, or how it ended without one.
        """
        _waiting.now = True
        try:
            watch = MemoryWatchdog(self.pid, limits.resident_bytes)
            return self._converse(request, on_progress, _Patience(limits), watch)
        finally:
            _waiting.now = False

    def _converse(self, request: Request, on_progress: Progress, patience: _Patience, watch: MemoryWatchdog) -> Answer:
        posted, self._posted = self._posted, None
        try:
            if posted != request:
                send(self._connection, request)
        except OSError:
            return self._ended()
        checked_s = time.monotonic()
        while True:
            try:
                if self._connection.poll(POLL_S):
                    message = receive(self._connection, FROM_WORKER)
                    if not isinstance(message, messages.Progress):
                        return message
                    patience.heard(message.report)
                    if message.report.get("headroom_bytes") is not None:
                        watch.allow(int(message.report["headroom_bytes"]))
                    on_progress(message.report)
                elif self._process.poll() is not None and not self._connection.poll(0):
                    return self._ended()  # a child of the worker may still hold the other end of the pipe open
            except (EOFError, OSError):
                return self._ended()
            except ValueError as error:
                return _lost(Outcome.CRASHED, f"the worker sent what is not a message: {error}")
            if time.monotonic() - checked_s < POLL_S:
                continue
            checked_s = time.monotonic()
            reason = patience.lost()
            if reason:
                return _lost(Outcome.TIMED_OUT, reason)
            reason = watch.violation()
            if reason:
                _signal_group(self.pid, signal.SIGSTOP)  # at once: to find and end all that it started takes a while
                return _lost(Outcome.OUT_OF_MEMORY, reason)

    def close(self) -> None:
        """End the worker and everything that it started; safe to call twice."""
        descendants = self._descendants()
        self._connection.close()
        _signal_group(self.pid, signal.SIGKILL)
        for process in descendants:
            try:
                process.kill()
            except psutil.Error:
                pass  # ended meanwhile
        # Compiler pools start sessions of their own, and are nobody's descendants once the worker is dead.
        reaper.end_marked(self._mark)
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

    def _ended(self) -> Failed:
        try:
            # A process that dies closes its files last: one that is still there has only closed its pipe.
            code: int | None = self._process.wait(timeout=CLOSED_PIPE_S)
        except subprocess.TimeoutExpired:
            code = None
        struck = oom_kills() > self._oom_kills_before
        failure = classify_exit(code, killed_by_kernel=struck, last_output=self._log.tail_text())
        return _lost(failure.outcome, failure.reason, failure.traceback_text)


def _lost(outcome: Outcome, reason: str, last_output: str = "") -> Failed:
    return Failed(outcome=outcome, reason=reason, traceback_text=last_output, has_ended=True)


class _Patience:
    """How long a worker may take: each stage, silence included, and all of them together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stage = "start"
        self._began_s = self._heard_s = time.monotonic()

    def heard(self, message: Mapping[str, Any]) -> None:
        """Note that a stage begins, or that a pass of it is done."""
        if message.get("stage") or "pass_time_s" in message:
            self._stage, self._heard_s = str(message.get("stage") or self._stage), time.monotonic()

    def lost(self) -> str:
        """Return why the worker is lost; empty while it is not."""
        now, limit_s = time.monotonic(), self._limits.of_stage_s(self._stage)
        if limit_s is not None and now - self._heard_s > limit_s:
            return f"no progress in stage '{self._stage}' for {limit_s:.0f} s"
        total_s = self._limits.total_s
        if total_s is not None and now - self._began_s > total_s:
            return f"not done after {total_s:.0f} s, now in stage '{self._stage}'"
        return ""


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
                process = _popen(
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


def _popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
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


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # ended already, and its number perhaps given to another


class _BoundedLog:
    """Drains a pipe for ever, writes its first bytes to a file and remembers the last ones."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise EngineError(
                f"cannot write the worker's log {path}: {error.strerror}",
                hint="make room or make the folder writable, then run the same command again: it goes on from here",
            ) from error
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
