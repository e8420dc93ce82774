"""Optuna's storage of the study: opened, repaired where that is safe, its failures raised as `EngineError`."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from bexplore.errors import EngineError, UserInputError, first_line
from bexplore.host.json_files import replace_file
from bexplore.host.locks import locked
from bexplore.host.secret_values import hidden

_SAFE = "every finished probe is in the run's journal: run the same command again and it goes on from there"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What databases say of tables that another explorer has made meanwhile: SQLite and PostgreSQL.
_MADE_MEANWHILE = ("UNIQUE constraint failed", "already exists", "duplicate key value")
MADE_WITHIN_S = 1.0  # seconds that the other one gets to finish. Source: SQLite takes a tenth of that


def open_storage(storage: str | Path | BaseStorage | None) -> BaseStorage | None:
    """Open a storage: a database URL, a file for Optuna's journal, an open storage, or None for memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if storage is None or isinstance(storage, BaseStorage):
        return storage
    if "://" not in str(storage):
        return _open_file(Path(storage))
    try:
        return _open_database(str(storage))
    except ImportError as error:
        driver = getattr(error.__cause__, "name", None) or "its driver"
        package = "bexplore[postgresql]" if str(storage).startswith("postgresql:") else driver
        raise UserInputError(
            f"cannot open the storage {hidden(str(storage))}: the module {driver} is not installed",
            hint=f"pip install '{package}', or name another driver in the URL, such as postgresql+psycopg2://...",
        ) from error
    except Exception as error:  # drivers of any database raise what they like
        raise UserInputError(
            f"cannot open the storage {hidden(str(storage))}: {hidden(first_line(error))}",
            hint="check the URL, or leave explore.storage out",
        ) from error


def _open_database(url: str) -> BaseStorage:
    """Open a database; of explorers that create its tables at the same time, all but one find them made."""
    try:
        return RDBStorage(url)
    except Exception as error:
        if not any(words in str(error) for words in _MADE_MEANWHILE):
            raise
        time.sleep(MADE_WITHIN_S)
        return RDBStorage(url)


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn exceptions of a storage (a full disk, a locked file, a server that is gone) into one clear error."""
    try:
        yield
    except StorageInternalError as error:  # Optuna's wrapper of a database's exception
        cause = error.__cause__ or error
        raise EngineError(f"the study's storage failed: {hidden(first_line(cause))}", hint=_SAFE) from error
    except (OSError, sqlite3.Error, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = _SAFE
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            hint = f"free disk space; {_SAFE}"
        raise EngineError(f"the study's storage failed: {hidden(first_line(error))}", hint=hint) from error


class _KernelLock(JournalFileOpenLock):
    """Optuna's file lock, held by the kernel, which releases it when a process is killed."""

    def __init__(self, path: Path, on_acquired: Callable[[], None]) -> None:
        self._path, self._on_acquired = path, on_acquired
        self._mutex = threading.Lock()  # of this process's threads
        self._held = ExitStack()

    def acquire(self) -> bool:
        self._mutex.acquire()
        try:
            self._held.enter_context(locked(self._path))
            self._on_acquired()
        except BaseException:  # an interruption too; raised again
            self.release()
            raise
        return True

    def release(self) -> None:
        self._held.close()
        self._mutex.release()


class _Backend(JournalFileBackend):
    """Optuna's journal file. One that is deleted while explorers use it is put back as it was.

    Optuna would begin a new file, of which nothing is read before it is longer than the deleted one was: each explorer
    would ask for the same size again and again.
    """

    def __init__(self, path: Path, lock_path: Path) -> None:
        self._path, self._lock_path = path, lock_path
        super().__init__(str(path), lock_obj=_KernelLock(lock_path, self._put_back))
        self._kept = path.open("rb")  # the content lives as long as it is open

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Read the records from a number on."""
        if not self._is_kept():
            with locked(self._lock_path):
                self._put_back()
        if self._path.stat().st_size < max(self._log_number_offset.values()):
            raise ValueError("records were cut off")
        yield from super().read_logs(log_number_from)

    def _is_kept(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._kept.fileno()))
        except FileNotFoundError:
            return False

    def _put_back(self) -> None:
        """Write the file again if it is gone; the lock is held."""
        if self._is_kept():
            return
        if not self._path.exists():
            self._kept.seek(0)
            replace_file(self._path, self._kept.read())
        self._kept.close()
        self._kept = self._path.open("rb")


class _Journal(JournalStorage):
    """Optuna's journal; a record that is damaged while explorers run raises an `EngineError`."""

    def _sync_with_backend(self) -> None:
        try:
            super()._sync_with_backend()
        except (OSError, OptunaError):
            raise
        except Exception as error:  # any exception of Optuna's replay of its own log
            raise EngineError(f"the study's storage failed: it is damaged ({first_line(error)})", hint=_SAFE) from error


def _open_file(path: Path) -> JournalStorage:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock_path = path.with_name(f"{path.name}.lock")
        with locked(lock_path):
            _end_last_line(path)
            try:
                return _load(path, lock_path)
            except OSError:
                raise
            except Exception:  # any exception of Optuna's replay of a damaged log
                _move_aside(path)
                return _load(path, lock_path)
    except OSError as error:
        raise EngineError(
            f"cannot write the study {path}: {error.strerror}", hint="make room or make the folder writable"
        ) from error


def _load(path: Path, lock_path: Path) -> JournalStorage:
    storage = _Journal(_Backend(path, lock_path))
    for study in storage.get_all_studies():
        storage.get_all_trials(study._study_id)
    return storage


def _end_last_line(path: Path) -> None:
    """Cut off the partial line of a killed writer, to which Optuna would append the next record."""
    if not path.exists():
        return
    with path.open("rb+") as handle:
        data = handle.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            handle.truncate(whole)


def _move_aside(path: Path) -> None:
    """Rename a damaged study; a new one is then rebuilt from the run's journal."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged_{number}")).exists():
        number += 1
    path.replace(aside)
