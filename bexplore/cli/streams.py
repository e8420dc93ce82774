"""Standard streams that are closed, or whose other end may go away."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_POLL_MS = 500  # a reader that is gone is noticed within this time, even while nothing is written


def silence(descriptor: int) -> None:
    """Discard all further output to a descriptor."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


def prepare() -> None:
    """Give a closed standard stream /dev/null, and let a stderr that cannot be written to lose its lines.

    A descriptor left closed would become that of the next file, into which every process started from here would write.
    """
    for descriptor in (0, 1, 2):
        if not _is_open(descriptor, for_writing=descriptor > 0):
            silence(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # open as long as the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # likewise
    if sys.stderr is None:
        sys.stderr = _LossyStream(open(2, "wb", closefd=False), errors="backslashreplace")  # noqa: SIM115  # likewise
    elif type(sys.stderr) is io.TextIOWrapper:
        own = sys.stderr
        sys.stderr = _LossyStream(own.buffer, encoding=own.encoding, errors=own.errors, line_buffering=True)


def finish() -> None:
    """Write what is left for stdout, or discard it: Python would write it, and complain, once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout.fileno())


def tells_of_no_reader(error: OSError, stream: TextIO) -> bool:
    """Return whether an error is of the stream, because the pipe (EPIPE) or terminal (EIO) behind it has no reader."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return error.errno in (errno.EPIPE, errno.EIO) and bool(poll.poll(0))


class _LossyStream(io.TextIOWrapper):
    """A stream whose lines nobody needs: once one cannot be written, all further ones are discarded."""

    def write(self, text: str) -> int:
        """Write a text if possible."""
        try:
            return super().write(text)
        except OSError:
            silence(self.fileno())
            return len(text)

    def flush(self) -> None:
        """Write what is buffered if possible."""
        try:
            super().flush()
        except OSError:
            silence(self.fileno())


def _is_open(descriptor: int, *, for_writing: bool) -> bool:
    try:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        return False
    return not for_writing or mode != os.O_RDONLY


@contextmanager
def watched_reader(stream: TextIO, on_gone: Callable[[], None]) -> Iterator[None]:
    """Call `on_gone` repeatedly, from another thread, once the pipe or terminal behind a stream has no reader."""
    try:
        descriptor = stream.fileno()
    except OSError:  # not a file: a test's own stream
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(descriptor, on_gone, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(descriptor: int, on_gone: Callable[[], None], ended: threading.Event) -> None:
    # The mask is empty: the kernel reports POLLERR (a pipe without a reader) and POLLHUP (a closed terminal) anyway.
    poll = select.poll()
    poll.register(descriptor, 0)
    while not ended.is_set():
        if poll.poll(_POLL_MS):
            on_gone()
            ended.wait(_POLL_MS / 1000)
