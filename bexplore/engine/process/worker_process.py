"""The explorer's side of a worker, alone or one of many ranks: start, request and answer, and the end of it all.

Each worker has a session of its own and a mark, ends when this process ends, and has its output kept.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bexplore.engine.process.limits import POLL_S, Limits, MemoryWatchdog, Patience, Progress, processor_time_s
from bexplore.engine.protocol import messages
from bexplore.engine.protocol.failures import classify_exit
from bexplore.engine.protocol.messages import (
    FROM_WORKER,
    Answer,
    Failed,
    Refused,
    Request,
    Whereabouts,
    lost,
    receive,
    send,
)
from bexplore.errors import EngineError
from bexplore.host import process_tree
from bexplore.host.blas_threads import users_environment
from bexplore.host.machine import oom_kills
from bexplore.host.process_tree import WORKER_MARK, end_marked, find_descendants, send_signal
from bexplore.host.secret_values import hidden, hide_in_file
from bexplore.measurement.probe import Outcome

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


# Importing torch and its compiler takes seconds; from a cold disk, tens of seconds.
PRELOAD_LIMIT_S = 120.0
# How long an end of the pipe may come before the end of the process that it announces. Seconds.
CLOSED_PIPE_S = 2.0


@dataclass(slots=True)
class Peer:
    """One process while it works at a request: a worker, or one rank of many."""

    pid: int
    name: str  # in the reasons of its failures
    connection: Connection
    patience: Patience
    watch: MemoryWatchdog  # of its memory
    failure_at_end: Callable[[], Failed]  # returns how it ended, once its connection has
    # Whether it is gone, although what it started may hold its connection open.
    has_ended: Callable[[], bool] = lambda: False
    answer: Answer | None = None  # its answer; None while it works
    answered_s: float = 0.0  # when that came, of the monotonic clock

    def send(self, request: Request) -> None:
        """Send a request; that the process is gone is its answer."""
        try:
            send(self.connection, request)
        except OSError:
            self.conclude(self.failure_at_end())

    def hear(self, on_progress: Progress) -> None:
        """Take one message."""
        try:
            message = receive(self.connection, FROM_WORKER)
        except (EOFError, OSError):
            self.conclude(self.failure_at_end())
            return
        except ValueError as error:
            self.conclude(lost(Outcome.CRASHED, f"{self.name} sent what is not a message: {error}"))
            return
        if isinstance(message, messages.Progress):
            self.patience.heard(message.report)
            if message.report.get("headroom_bytes") is not None:
                self.watch.allow(int(message.report["headroom_bytes"]))
            on_progress(message.report)
        elif not isinstance(message, Whereabouts):  # of an earlier question
            self.conclude(message)

    def conclude(self, answer: Answer) -> None:
        """Note the answer, and when it came."""
        self.answer, self.answered_s = answer, time.monotonic()


# Of peers of which one is silent for too long: the one to blame, and what it does, for people.
FindHanging = Callable[[Mapping[int, Peer]], tuple[int, str]]


def converse(peers: Mapping[int, Peer], on_progress: Progress, find_hanging: FindHanging) -> None:
    """Hear all peers until each has answered, or one badly and the others have had a moment to."""
    checked_s, until_s = time.monotonic(), None
    while any(one.answer is None for one in peers.values()):
        waited_for = {one.connection: rank for rank, one in peers.items() if one.answer is None}
        ready = [waited_for[connection] for connection in wait(list(waited_for), POLL_S)]  # type: ignore[index]
        for rank in ready:
            peers[rank].hear(on_progress if rank == min(peers) else lambda report: None)
        for rank in set(waited_for.values()).difference(ready):
            if peers[rank].has_ended() and not peers[rank].connection.poll(0):
                peers[rank].conclude(peers[rank].failure_at_end())
        if not ready:
            on_progress({})  # it is still awaited
        now_s = time.monotonic()
        if until_s is None and any(isinstance(one.answer, Failed | Refused) for one in peers.values()):
            until_s = now_s + CLOSED_PIPE_S
        if until_s is not None and now_s >= until_s:
            return
        if now_s - checked_s >= POLL_S and until_s is None:
            checked_s = now_s
            _check({rank: one for rank, one in peers.items() if one.answer is None}, find_hanging)


def _check(peers: Mapping[int, Peer], find_hanging: FindHanging) -> None:
    """Note what is wrong with peers that have not answered: too much memory, or too long a silence."""
    for one in peers.values():
        reason = one.watch.violation()
        if reason:
            signal_group(one.pid, signal.SIGSTOP)  # at once: to find and end all that it started takes a while
            one.conclude(lost(Outcome.OUT_OF_MEMORY, reason))
            return
    reasons = {rank: one.patience.lost() for rank, one in peers.items()}
    if any(reasons.values()):
        culprit, what = find_hanging(peers)
        peers[culprit].conclude(lost(Outcome.TIMED_OUT, f"{reasons[culprit] or 'no progress'}{what}"))


class WorkerProcess:
    """One worker process in a group of its own."""

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
                env=users_environment() | dict(environment or {}) | {WORKER_MARK: self._mark},
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
        """Send a request; return the answer, or how the worker ended without one."""
        with waiting():
            peer = Peer(
                pid=self.pid,
                name="the worker",
                connection=self._connection,
                patience=Patience(limits, lambda: processor_time_s(self.pid)),
                watch=MemoryWatchdog(self.pid, limits.resident_bytes),
                failure_at_end=self._failure_at_end,
                has_ended=lambda: self._process.poll() is not None,
            )
            posted, self._posted = self._posted, None
            if posted != request:
                peer.send(request)
            converse({0: peer}, on_progress, lambda peers: (0, ""))
        assert peer.answer is not None  # a conversation with one ends with its answer
        return peer.answer

    def close(self) -> None:
        """End the worker and everything that it started; safe to call twice."""
        descendants = find_descendants(self.pid)
        self._connection.close()
        signal_group(self.pid, signal.SIGKILL)
        for pid in descendants:
            send_signal(pid, signal.SIGKILL)
        # Compiler pools start sessions of their own, and are nobody's descendants once the worker is dead.
        end_marked(WORKER_MARK, self._mark)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel (a device driver, say); it is killed and ends when the kernel lets go
        self._log.close()

    def _failure_at_end(self) -> Failed:
        try:
            # A process that dies closes its files last: one that is still there has only closed its pipe.
            code: int | None = self._process.wait(timeout=CLOSED_PIPE_S)
        except subprocess.TimeoutExpired:
            code = None
        struck = oom_kills() > self._oom_kills_before
        failure = classify_exit(code, killed_by_kernel=struck, last_output=self._log.tail_text())
        return lost(failure.outcome, failure.reason, failure.traceback_text, ended_by=failure.ended_by)
