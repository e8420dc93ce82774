"""structlog's only configuration: short lines on stderr, JSON of every event in the run directory.

The logger is separate: a program that uses bexplore keeps its own structlog, and sees no lines below errors by default.
structlog brings rich with it, a tenth of a second, and is imported with the first line that is logged.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from bexplore.host.secret_values import hidden_record

if TYPE_CHECKING:
    import structlog

LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
_STDERR: TextIO | None = sys.stderr  # as the process began, whenever the first line is logged; None where it was closed


class _Logbook:
    """Where events go: to the run's file once there is one, and to stderr from a level on."""

    def __init__(self) -> None:
        self.console_level = logging.ERROR
        self.file: TextIO | None = None

    def keep(self, line: str) -> None:
        """Write a line to the file; a disk that refuses it ends the file, not the exploration."""
        assert self.file is not None
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError:
            detach_file()  # the journal, which must be written, fails with the reason


_logbook = _Logbook()


@functools.cache
def _logger() -> structlog.typing.FilteringBoundLogger:
    """Return the logger, whose last processor writes to the logbook."""
    import structlog  # with rich behind it: most commands never log

    to_file = structlog.processors.JSONRenderer(default=str)
    to_console = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)

    def write(logger: Any, name: str, event: structlog.typing.EventDict) -> str:
        if _logbook.file is not None:
            _logbook.keep(str(to_file(logger, name, dict(event))))
        if getattr(logging, event["level"].upper()) < _logbook.console_level:
            raise structlog.DropEvent
        event.pop("timestamp", None)
        return str(to_console(logger, name, event))

    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(cast("TextIO", _Stderr())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda logger, name, event: _masked(event),
            write,
        ],
    )
    return logger


def _masked(event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    masked: dict[str, Any] = hidden_record(dict(event))
    return masked


class _Stderr:
    """stderr for lines that may be lost: a full disk, or a reader that is gone, ends nothing."""

    def write(self, text: str) -> None:
        """Write a text if possible."""
        if _STDERR is not None:
            with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
                _STDERR.write(text)

    def flush(self) -> None:
        """Write what is buffered if possible."""
        if _STDERR is not None:
            with contextlib.suppress(OSError, ValueError):
                _STDERR.flush()


class _LazyLog:
    """The logger's methods, `info`, `warning` and so on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_logger(), name)


log = _LazyLog()


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
