"""What is known so far: one JSON file, written anew after every step, which may travel to another machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.context import Facts
from benchmarks.gpu_check.verdict import Verdict, Word


class State:
    """The records of a file by step. One of another device or torch counts as not there.

    Args:
        path: The file; it need not exist.
        machine: `device` and `torch` of this run.
    """

    def __init__(self, path: Path, machine: Mapping[str, str]) -> None:
        self._path = path
        self.machine = dict(machine)
        stored = json.loads(path.read_text()) if path.exists() else {"steps": {}}
        is_same = stored.get("machine") == self.machine
        self.steps: dict[str, Any] = stored["steps"] if is_same else {}
        self.dropped = "" if is_same or not stored["steps"] else str(stored.get("machine"))

    def add(self, name: str, verdict: Verdict, facts: Facts, *, wall_s: float, at: str) -> None:
        """Keep a step on disk."""
        told = {"verdict": verdict.word.value, "found": verdict.found, "wall_s": round(wall_s, 1), "at": at}
        self.steps[name] = told | {"facts": facts}
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({"machine": self.machine, "steps": self.steps}, indent=1) + "\n")
        partial.replace(self._path)

    def is_done(self, name: str) -> bool:
        """Whether a step has ended, in whatever way."""
        return self.steps.get(name, {}).get("verdict", Word.NOT_RUN) != Word.NOT_RUN

    def is_ok(self, name: str) -> bool:
        """Whether it ended as expected."""
        return bool(self.steps.get(name, {}).get("verdict") == Word.OK)

    def facts(self) -> dict[str, Facts]:
        """Facts of the steps that have ended."""
        return {name: record["facts"] for name, record in self.steps.items()}
