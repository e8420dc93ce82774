"""The files that a training saves outside of the folder of its exploration."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Any, Mapping

MOST_FILES = 3  # that are told


class SavedFiles:
    """What a training saves: a file that was there before the exploration is left as it was."""

    def __init__(self) -> None:
        self.kept: list[str] = []  # files that were there before
        self.left: list[str] = []  # files that starts have written

    def keeps(self, target: Any, settings: Mapping[str, Any]) -> bool:
        """Return whether a file is to be left as it was; take note of it, and of another outside of the run."""
        began_at_s = settings.get("began_at_s")
        if began_at_s is None or not isinstance(target, (str, os.PathLike)):
            return False
        path = os.path.realpath(os.fsdecode(target))
        try:
            before = os.stat(path)
        except OSError:
            before = None
        if before is not None and not stat.S_ISREG(before.st_mode):
            return False
        is_kept = before is not None and before.st_mtime < began_at_s
        own = (settings["run_dir"], os.path.realpath(tempfile.gettempdir()))
        if is_kept:
            _add(self.kept, path)
        elif not path.startswith(tuple(folder + os.sep for folder in own)):
            _add(self.left, path)
        return is_kept


def _add(paths: list[str], path: str) -> None:
    if path not in paths and len(paths) < MOST_FILES:
        paths.append(path)
