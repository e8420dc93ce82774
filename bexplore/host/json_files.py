"""Files that are replaced in one step, JSON files among them, and the user's cache, which holds some."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bexplore.errors import EngineError, UserInputError

CACHE_VARIABLE = "BEXPLORE_CACHE_DIR"


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: in `$BEXPLORE_CACHE_DIR`, else in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        RuntimeError: The user has no home folder.
    """
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own, name)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bexplore", name)


def parse_json(text: str | bytes) -> Any:
    """Return the value that a text holds: the only place where the package reads JSON.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        UserInputError: The file is missing, unreadable or holds something else.
    """
    try:
        value = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserInputError(
            f"cannot read {path}: {error}", hint="restore the file, or start over with `fresh=True`"
        ) from error
    if not isinstance(value, dict):
        raise UserInputError(
            f"{path}: expected a JSON object", hint="restore the file, or start over with `fresh=True`"
        )
    return value


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step: a reader sees the old one or the new one, whole; a link still leads to it.

    Raises:
        OSError: The disk is full or read-only; the old file is as it was.
    """
    if path.exists() and not path.is_file():  # a pipe or a terminal
        path.write_bytes(data)
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file by one JSON object, in one step.

    Raises:
        EngineError: The disk is full or read-only; the old file is as it was.
    """
    try:
        replace_file(path, (json.dumps(value, indent=1, default=str) + "\n").encode())
    except OSError as error:
        raise EngineError(
            f"cannot write {path}: {error.strerror}",
            hint="make room or make the folder writable, then run the same command again: nothing finished is repeated",
        ) from error
