"""Files that are written beside the journal: where a disk refuses them, that is said once and the work goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def warn_on_stderr(text: str) -> None:
    """Write a warning for people."""
    sys.stderr.write(f"warning: {text}\n")


class AppendFile:
    """A text file that grows; what it cannot take is lost, since the journal holds all that must be kept.

    Args:
        path: The file.
        warn: Told once, when the file refuses a line.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.path = path
        self._warn: Callable[[str], None] | None = warn

    def write(self, text: str) -> None:
        """Append a text as it is."""
        try:
            with self.path.open("a") as handle:
                handle.write(text)
        except OSError as error:
            if self._warn is not None:
                self._warn(f"cannot append to {self.path}: {error.strerror}; the exploration goes on without it")
                self._warn = None
