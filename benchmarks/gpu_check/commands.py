"""`bexplore` as a user types it, in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that has ended.

    Attributes:
        code: Its exit code.
        events: The JSON objects of its stdout.
        errors: The last lines of its stderr.
    """

    code: int
    events: list[dict[str, Any]]
    errors: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event.get("event") == kind]


def bexplore(arguments: Sequence[str]) -> Ran:
    """Run `bexplore ARGUMENTS`; its run folders go."""
    with tempfile.TemporaryDirectory(prefix="bexplore-gpu-check-") as folder:
        command = [sys.executable, "-m", "bexplore", *arguments]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Ran(code=done.returncode, events=events, errors=done.stderr[-2000:])
