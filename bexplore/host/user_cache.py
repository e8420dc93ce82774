"""The user's cache: what can be made again at any time."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "BEXPLORE_CACHE_DIR"


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: in `$BEXPLORE_CACHE_DIR`, else in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        RuntimeError: The user has no home folder.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own, name)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bexplore", name)
