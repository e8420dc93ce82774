"""One JSON object a line for programs; nothing else goes to the same stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from bexplore.exploration.events import JobEvent, Planned, event_record
from bexplore.output.append_file import AppendFile


def json_line(record: Mapping[str, Any]) -> str:
    """The line of a record."""
    return json.dumps(record, default=str) + "\n"


class JsonLines:
    """Writes the events of `bexplore.exploration.events` to a stream as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: JobEvent) -> None:
        """Write the event, if it is one that is written."""
        record = event_record(event)
        if record is not None:
            self._stream.write(json_line(record))
            self._stream.flush()


class EventFile:
    """Keeps the same lines in the run directory."""

    def __init__(self) -> None:
        self._file: AppendFile | None = None

    def __call__(self, event: JobEvent) -> None:
        """Append the event, once the run is known."""
        if isinstance(event, Planned) and event.run is not None:
            self._file = AppendFile(event.run.directory / "events.jsonl")
        record = event_record(event)
        if self._file is not None and record is not None:
            self._file.write(json_line(record))
