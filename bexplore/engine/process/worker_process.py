"""The explorer's side of a worker: start, request and answer, watchdog, and the end of all that it started."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from bexplore.engine.process import reaper
from bexplore.engine.process.bounded_log import BoundedLog
from bexplore.engine.process.memory_watchdog import POLL_S, MemoryWatchdog
from bexplore.engine.process.starting import new_mark, signal_group, start_process, waiting
from bexplore.engine.process.timeouts import Limits, Patience, Progress
from bexplore.engine.protocol import messages
from bexplore.engine.protocol.failures import classify_exit
from bexplore.engine.protocol.messages import FROM_WORKER, Answer, Failed, Request, lost, receive, send
from bexplore.host.blas_threads import users_environment
from bexplore.host.machine import oom_kills
from bexplore.measurement.probe import Outcome

# Importing torch and its compiler takes seconds; from a cold disk, tens of seconds.
PRELOAD_LIMIT_S = 120.0
# How long an end of the pipe may come before the end of the process that it announces. Seconds.
CLOSED_PIPE_S = 2.0


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
        self._mark = new_mark()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._posted: Request | None = None
        try:
            self._log = BoundedLog(log_path)
            # Must be the main thread: the kernel ends the worker when the thread that started it ends.
            self._process = start_process(
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
    def pids(self) -> list[int]:
        """Process ids of all that a request runs in, but for what they start."""
        return [self.pid]

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
        with waiting():
            watch = MemoryWatchdog(self.pid, limits.resident_bytes)
            return self._converse(request, on_progress, Patience(limits), watch)

    def _converse(self, request: Request, on_progress: Progress, patience: Patience, watch: MemoryWatchdog) -> Answer:
        posted, self._posted = self._posted, None
        try:
            if posted != request:
                send(self._connection, request)
        except OSError:
            return self._ended()
        checked_s = time.monotonic()
        while True:
            answer = self._next_answer(on_progress, patience, watch)
            if answer is not None:
                return answer
            if time.monotonic() - checked_s < POLL_S:
                continue
            checked_s = time.monotonic()
            reason = patience.lost()
            if reason:
                return lost(Outcome.TIMED_OUT, reason)
            reason = watch.violation()
            if reason:
                signal_group(self.pid, signal.SIGSTOP)  # at once: to find and end all that it started takes a while
                return lost(Outcome.OUT_OF_MEMORY, reason)

    def _next_answer(self, on_progress: Progress, patience: Patience, watch: MemoryWatchdog) -> Answer | None:
        """Wait a moment for a message; return None after a report of progress or where none came."""
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
            return lost(Outcome.CRASHED, f"the worker sent what is not a message: {error}")
        return None

    def close(self) -> None:
        """End the worker and everything that it started; safe to call twice."""
        descendants = self._descendants()
        self._connection.close()
        signal_group(self.pid, signal.SIGKILL)
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
        return lost(failure.outcome, failure.reason, failure.traceback_text, ended_by=failure.ended_by)
