"""Traces of earlier runs: a job whose program has not changed since is not traced again.

The fingerprint of a program is known only after its trace. So an entry also lists what the trace was made from, as the
direct mode of ccache does: digests of the user's own source files, and versions of installed packages. An entry is used
only while all are unchanged. A file that the program opens by itself is not among them: `fresh` ignores the cache.

Any error of the cache means that the job is traced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bexplore.errors import BexploreError
from bexplore.host.json_files import cache_folder, read_json, write_json
from bexplore.host.machine import num_threads, processor_name
from bexplore.host.records import from_record, to_record
from bexplore.host.secret_values import hidden_record
from bexplore.job import Job
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.cost_model import CostModel

_FOLDER = "traces"
MAX_ENTRIES = 100  # each is some 20 KiB
_FORMAT = 7  # of an entry; entries of other formats are ignored
_INSTALLED = ("site-packages", "dist-packages")
# Beginnings of environment variables that change what the compiler does, which kernels of the processor run, and which
# workspaces libraries take ...
_VARIABLES = ("TORCHINDUCTOR_", "ATEN_CPU_", "CUBLAS", "HIPBLAS", "ROCBLAS", "TORCH_CUBLAS")
_PLACES = ("TORCHINDUCTOR_CACHE_DIR",)  # ... and those that do not
# Errors of reading an entry that is damaged, or whose sources are gone.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, metadata.PackageNotFoundError, BexploreError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources of a trace."""

    # SHA-256 digest, by path, of each source file outside of the standard library and installed packages
    files: Mapping[str, str]
    packages: Mapping[str, str]  # version, by name, of each installed package of which a module was imported

    def are_unchanged(self) -> bool:
        """Return whether every file and every package is unchanged; one that is gone raises."""
        return all(metadata.version(name) == version for name, version in self.packages.items()) and all(
            _digest(Path(path)) == digest for path, digest in self.files.items()
        )


def find_imported_sources(began_s: float) -> Sources | None:
    """Return what this process has imported; None where a file may have changed since the first import (Unix time)."""
    paths = set(_list_own_files())
    if any(path.stat().st_mtime >= began_s for path in paths):
        return None
    names = {name.partition(".")[0] for name in sys.modules}
    packages = {package for name, own in metadata.packages_distributions().items() if name in names for package in own}
    return Sources(
        files={str(path): _digest(path) for path in sorted(paths)},
        packages={name: metadata.version(name) for name in sorted(packages)},
    )


def recall(job: Job, *, gpu: GpuProperties | None) -> CostModel | None:
    """Return the trace of the same job in an earlier run, if nothing that it was made from has changed."""
    key = _make_key(job, gpu)
    for path in _list_entries(f"*-{key}.json"):
        with suppress(*_DAMAGE):
            entry = read_json(path)
            if entry["format"] == _FORMAT and Sources(**entry["sources"]).are_unchanged():
                cost_model = from_record(CostModel, entry["cost_model"])
                os.utime(path)  # the entries that were used last are kept
                return dataclasses.replace(cost_model, remembered_from=str(entry["traced_at"]))
    return None


def remember(job: Job, cost_model: CostModel, sources: Sources, *, gpu: GpuProperties | None) -> None:
    """Keep a trace for later runs, under the fingerprint of its program, and remove the oldest entries."""
    entry = {
        "format": _FORMAT,
        "traced_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources": dataclasses.asdict(sources),
        "cost_model": to_record(cost_model),
    }
    with suppress(OSError, RuntimeError, BexploreError):  # no room, no home
        cache_folder(_FOLDER).mkdir(parents=True, exist_ok=True)
        write_json(cache_folder(_FOLDER) / f"{cost_model.fingerprint}-{_make_key(job, gpu)}.json", entry)
        for path in _list_entries("*.json")[MAX_ENTRIES:]:
            path.unlink(missing_ok=True)


def _list_entries(pattern: str) -> list[Path]:
    with suppress(OSError, RuntimeError):  # another process removed one meanwhile; no home
        return sorted(cache_folder(_FOLDER).glob(pattern), key=lambda path: -path.stat().st_mtime_ns)
    return []


def _make_key(job: Job, gpu: GpuProperties | None) -> str:
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in _PLACES
    }
    device = None if gpu is None else to_record(gpu)
    processor = processor_name(), num_threads()  # a convolution's memory depends on both
    parts = [
        hidden_record(job.as_record(), by_value=False),
        metadata.version("torch"),
        sys.version_info[:2],
        device,
        processor,
        variables,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _list_own_files() -> Iterator[Path]:
    """Yield the files of imported modules that belong neither to Python nor to an installed package."""
    standard = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str):
            continue
        path = Path(name)
        is_installed = any(part in _INSTALLED for part in path.parts)
        if path.is_file() and not is_installed and not standard.intersection(path.parents):
            yield path.absolute()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
