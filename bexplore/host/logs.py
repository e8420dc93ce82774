"""structlog's only configuration: short lines on stderr, JSON of every event in the run directory.

The logger is separate: a program that uses bexplore keeps its own structlog, and sees no lines below errors by default.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any, TextIO

import structlog

LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}


class _Logbook:
    """The last processor: every event to the run's file once there is one, and to stderr from a level on."""

    def __init__(self) -> None:
        self.console_level = logging.ERROR
        self.file: TextIO | None = None
        self.to_file = structlog.processors.JSONRenderer(default=str)
        self.to_console = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)

    def __call__(self, logger: Any, name: str, event: structlog.typing.EventDict) -> str:
        if self.file is not None:
            self._keep(str(self.to_file(logger, name, dict(event))))
        if getattr(logging, event["level"].upper()) < self.console_level:
            raise structlog.DropEvent
        event.pop("timestamp", None)
        return str(self.to_console(logger, name, event))

    def _keep(self, line: str) -> None:
        """Write a line to the file; a disk that refuses it ends the file, not the exploration."""
        assert self.file is not None
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError:
            detach_file()  # the journal, which must be written, fails with the reason


_logbook = _Logbook()

log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
    structlog.PrintLogger(sys.stderr),
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _logbook,
    ],
)


def configure(verbosity: int) -> None:
    """Set how much goes to stderr.

    Args:
        verbosity: -1 errors, 0 warnings, 1 what happens, 2 everything; the file has everything.
    """
    _logbook.console_level = LEVELS[max(-1, min(2, verbosity))]


def attach_file(path: Path) -> None:
    """Write every log event from now on to this file, one JSON object a line."""
    detach_file()
    try:
        _logbook.file = path.open("a")
    except OSError as error:
        log.warning("no log file", path=str(path), reason=error.strerror)


def detach_file() -> None:
    """Close the file, if there is one."""
    file, _logbook.file = _logbook.file, None
    if file is not None:
        with contextlib.suppress(OSError):  # the disk is full
            file.close()
