"""The observations of a run on disk: append, fsync, then use."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bexplore.errors import EngineError, UserInputError
from bexplore.host.json_files import parse_json
from bexplore.host.locks import holding
from bexplore.host.records import from_record, to_record
from bexplore.measurement.probe import Observation


class Journal:
    """Observations in order, one JSON object a line.

    A last line that power loss or a kill cut short is skipped by reads and replaced by the next append. Any other
    damage is an error, and nothing is written to a damaged journal. Several processes may append to one journal: the
    file itself is their lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Observation]:
        """Return all whole observations; empty where there is no journal yet.

        Raises:
            UserInputError: A line that is not the last one cannot be read.
        """
        observations = []
        data = self._data()
        for number, line in enumerate(data[: _end_of_whole_lines(data)].splitlines(), start=1):
            try:
                observations.append(from_record(Observation, parse_json(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise UserInputError(
                    f"{self.path}:{number}: this is not an observation: {error!r}",
                    hint="restore the file, or start over with `fresh=True`; nothing was overwritten",
                ) from error
        return observations

    def count(self) -> int:
        """Return the number of whole observations, without reading them."""
        data = self._data()
        return data.count(b"\n", 0, _end_of_whole_lines(data))

    def append(self, observation: Observation) -> None:
        """Append one observation and flush it to the disk.

        Raises:
            EngineError: The disk is full, read-only or gone.
        """
        record = json.dumps(to_record(observation), allow_nan=True) + "\n"
        try:
            with self.path.open("ab") as handle, holding(handle, self.path):
                handle.truncate(_end_of_whole_lines(self._data()))
                handle.write(record.encode())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise EngineError(
                f"cannot append to {self.path}: {error.strerror}",
                hint="free disk space or make the folder writable, then run the same command again: it resumes here",
            ) from error

    def _data(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserInputError(f"cannot read {self.path}: {error.strerror}", hint="check its permissions") from error


def _end_of_whole_lines(data: bytes) -> int:
    """Return the number of bytes of whole lines; a last line with zeros of a power loss was never used."""
    end = data.rfind(b"\n") + 1
    start_of_last = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    return start_of_last if b"\0" in data[start_of_last:end] else end
