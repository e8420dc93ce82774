"""Streams and events of a device that computes nothing: they order no work, and are there for code that names them.

`fully_shard` gathers and reduces on streams of its own and keeps buffers until their events. Source: `FSDPCommContext`
in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py. On fake tensors no work waits for another, and which buffer
is kept until when is decided by that code alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Event:
    """A point of a stream, which is always past."""

    def __init__(self, **_options: Any) -> None:
        """Make an event with the options of `torch.cuda.Event`."""

    def record(self, stream: Stream | None = None) -> None:
        """Do nothing."""

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return that all work before it is done."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""


class Stream:
    """A queue of work, which is always empty."""

    def __init__(self, device: Any = None, priority: int = 0, **_options: Any) -> None:
        """Make a stream with the options of `torch.cuda.Stream`."""
        self.priority = priority

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event of this stream."""
        return Event() if event is None else event

    def wait_event(self, event: Event) -> None:
        """Do nothing."""

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return that all work is done."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""


_current = [Stream()]


def current_stream(device: Any = None) -> Stream:
    """Return the stream on which work is put now."""
    return _current[-1]


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Put work on a stream within; None changes nothing."""
    _current.append(stream or _current[-1])
    try:
        yield
    finally:
        _current.pop()
