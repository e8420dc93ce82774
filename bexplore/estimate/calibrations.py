"""Measured tables of processors in the user's cache: one for each processor, number of threads and torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bexplore.errors import BexploreError
from bexplore.estimate.processor import Calibration
from bexplore.host.json_files import cache_folder, read_json, write_json
from bexplore.host.machine import num_threads, package_version, processor_name
from bexplore.host.records import from_record, to_record

THIS = "this"  # what `explore.device_name` calls this machine's processor
_FOLDER = "calibrations"
_FORMAT = 1  # of a file; files of other formats are ignored


def keep(calibration: Calibration) -> Path:
    """Write the table of this machine; return its file.

    Raises:
        EngineError: The folder cannot be written.
    """
    path = _find_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": _FORMAT, "calibration": to_record(calibration)})
    return path


def names_this(name: str | None) -> bool:
    """Return whether a name means this machine's processor."""
    return (name or "").strip().lower() == THIS


def recall() -> Calibration | None:
    """Return the table of this processor, its threads and this torch; None where nothing was measured with them."""
    try:
        entry = read_json(_find_path())
        return from_record(Calibration, entry["calibration"]) if entry["format"] == _FORMAT else None
    except (BexploreError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def digest(calibration: Calibration) -> str:
    """Return eight hexadecimal digits of a table: estimates of another one are not comparable."""
    return hashlib.sha256(repr(calibration).encode()).hexdigest()[:8]


def _find_path() -> Path:
    decides = (processor_name(), str(num_threads()), package_version("torch"))
    key = hashlib.sha256("\n".join(decides).encode()).hexdigest()[:16]
    return cache_folder(_FOLDER) / f"{key}.json"
