"""Standard streams whose other end may go away."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_POLL_MS = 500  # a reader that is gone is noticed within this time, even while nothing is written


def silence(descriptor: int) -> None:
    """Discard all further output to a descriptor."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


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
