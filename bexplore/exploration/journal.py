"""The observations of a run on disk: append, fsync, then use."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bexplore.errors import EngineError, UserInputError
from bexplore.host.locks import lock_handle
from bexplore.measurement.probe import Observation


class Journal:
    """Observations, one JSON object a line, in the order in which they were made.

    A last line that is cut short, as power loss or a kill leaves it, is not an observation: it is skipped when reading
    and replaced by the next append. Any other damage is an error, and nothing is written to a damaged journal. Several
    explorers may append to one journal: the file itself is their lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Observation]:
        """All whole observations; empty where there is no journal yet.

        Raises:
            UserInputError: A line that is not the last one cannot be read.
        """
        observations = []
        lines = self._whole_lines()
        for number, line in enumerate(lines, start=1):
            try:
                observations.append(Observation.from_dict(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserInputError(
                    f"{self.path}:{number}: this is not an observation: {error!r}",
                    hint="restore the file, or start over with --fresh; nothing was overwritten",
                ) from error
        return observations

    def append(self, observation: Observation) -> None:
        """Write one observation through to the disk; when this returns, it is not lost.

        Raises:
            EngineError: The disk is full, read-only or gone.
        """
        record = json.dumps(observation.as_dict(), allow_nan=True) + "\n"
        try:
            with self.path.open("ab") as handle:
                lock_handle(handle, self.path)
                handle.truncate(self._whole_bytes())
                handle.write(record.encode())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise EngineError(
                f"cannot append to {self.path}: {error.strerror}",
                hint="make room or make the folder writable, then run the same command again: it goes on from here",
            ) from error

    def _whole_bytes(self) -> int:
        """Bytes up to the end of the last line that is whole."""
        return _end_of_whole_lines(self._data())

    def _whole_lines(self) -> list[bytes]:
        data = self._data()
        return data[: _end_of_whole_lines(data)].splitlines()

    def _data(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserInputError(f"cannot read {self.path}: {error.strerror}", hint="check its permissions") from error


def _end_of_whole_lines(data: bytes) -> int:
    """A line that power loss left as zeros ends in none, or in what belongs to no line: neither was ever believed."""
    end = data.rfind(b"\n") + 1
    start_of_last = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    return start_of_last if b"\0" in data[start_of_last:end] else end
