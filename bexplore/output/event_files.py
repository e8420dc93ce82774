"""Events as JSON lines, one object a line, on a stream and in the run directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from bexplore.run.event_records import event_record
from bexplore.run.events import JobEvent, Planned


def warn_on_stderr(text: str) -> None:
    """Write a warning line."""
    sys.stderr.write(f"warning: {text}\n")


class AppendFile:
    """A text file beside the journal. Lines that it cannot take are lost: the journal holds what must be kept.

    Args:
        warn: Called once, when the file refuses a line.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.path = path
        self._warn: Callable[[str], None] | None = warn

    def write(self, text: str) -> None:
        """Append a text."""
        try:
            with self.path.open("a") as handle:
                handle.write(text)
        except OSError as error:
            if self._warn is not None:
                self._warn(f"cannot append to {self.path}: {error.strerror}; the exploration goes on without it")
                self._warn = None


def json_line(record: Mapping[str, Any]) -> str:
    """Return the line of a record."""
    return json.dumps(record, default=str) + "\n"


class JsonLines:
    """A sink that writes events to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: JobEvent) -> None:
        """Write an event that has a record."""
        record = event_record(event)
        if record is not None:
            self._stream.write(json_line(record))
            self._stream.flush()


class EventFile:
    """A sink that writes the same lines to the run directory, from the plan on."""

    def __init__(self) -> None:
        self._file: AppendFile | None = None

    def __call__(self, event: JobEvent) -> None:
        """Append an event."""
        if isinstance(event, Planned) and event.run is not None:
            self._file = AppendFile(event.run.directory / "events.jsonl")
        record = event_record(event)
        if self._file is not None and record is not None:
            self._file.write(json_line(record))
