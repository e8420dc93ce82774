"""What starts leave in the working folder, beside the output folder that they were given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_ENTRIES = 10_000  # that are compared. Source: chosen; they are listed in a tenth of a second
MOST_NAMES = 4  # that are told
_OWN = ("local_compile_", ".", "__pycache__")  # how names begin that no training chooses


class WorkingFolder:
    """The names in a folder, and in the folders of it, as they were when an exploration began."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = self._list()

    def describe_new(self) -> str:
        """Return which names are new since then, for people; empty for none, or for too many to compare."""
        after = self._list()
        if self._before is None or after is None:
            return ""
        added = after - self._before
        new = sorted(name for name in added if name.rpartition("/")[0] not in added)
        if not new:
            return ""
        more = f" and {len(new) - MOST_NAMES} more" if len(new) > MOST_NAMES else ""
        return (
            f"new in {self.folder} since the exploration began: {', '.join(new[:MOST_NAMES])}{more}; where starts "
            "wrote them, the command writes outside of {output_dir}"
        )

    def _list(self) -> set[str] | None:
        found = set()
        try:
            for name, is_folder in _scan(self.folder):
                found.add(name)
                if is_folder:
                    found.update(f"{name}/{inner}" for inner, _ in _scan(self.folder / name))
                if len(found) > MOST_ENTRIES:
                    return None
        except OSError:
            return None
        return found


def _scan(folder: Path) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(_OWN):
                yield entry.name, entry.is_dir(follow_symlinks=False)
