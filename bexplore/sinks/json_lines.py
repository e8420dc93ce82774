"""One JSON object a line for programs; nothing else goes to the same stream."""

from __future__ import annotations

import json
from typing import TextIO

from bexplore.events import JobEvent, Planned, event_record


class JsonLines:
    """Writes the events of `bexplore.events` to a stream as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: JobEvent) -> None:
        """Write the event, if it is one that is written."""
        record = event_record(event)
        if record is not None:
            self._stream.write(json.dumps(record, default=str) + "\n")
            self._stream.flush()


class EventFile:
    """Keeps the same lines in the run directory."""

    def __init__(self) -> None:
        self._path = None

    def __call__(self, event: JobEvent) -> None:
        """Append the event, once the run is known."""
        if isinstance(event, Planned) and event.run is not None:
            self._path = event.run.directory / "events.jsonl"
        if self._path is not None:
            with self._path.open("a") as handle:
                JsonLines(handle)(event)
