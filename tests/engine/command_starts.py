"""Training commands for tests and benchmarks, and what a start of one may leave behind."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from bexplore.config.command import Command
from bexplore.host.process_tree import PROBE_MARK
from bexplore.measurement.probe import Compilation, Probe

TRAIN = Path(__file__).parents[1] / "jobs" / "training_command.py"


def training(*words: str, ranks: int = 1, script: Path = TRAIN, **fields) -> Command:
    """Return a command that trains with one process, or with torchrun and several."""
    start = (sys.executable,) if ranks == 1 else torchrun(ranks)
    argv = (*start, str(script), "--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}", *words)
    return Command(argv=argv, env={"OMP_NUM_THREADS": "1"}, **fields)


def search_probe_of(size: int, **fields) -> Probe:
    """Return a probe of a search in which a start may serve several sizes."""
    return probe_of(size, compilation=Compilation.SHARED, **fields)


def torchrun(ranks: int) -> tuple[str, ...]:
    """Return torchrun, with a rendezvous on a free port."""
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))


def probe_of(size: int, **fields) -> Probe:
    """Return a probe of a size."""
    given = {"number": 0, "micro_batch_size": size, "compilation": Compilation.EXACT, "time_limit_s": 120.0} | fields
    return Probe(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a start must leave as it is.

    Attributes:
        files: Files in the given folders, with their sizes.
    """

    files: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, *folders: Path, but: Path) -> Surroundings:
        """Look at folders; one of them, that of the run, is left out."""
        found = set()
        for folder in folders:
            for path in folder.rglob("*"):
                if but not in (path, *path.parents) and "__pycache__" not in path.parts and path.is_file():
                    found.add((str(path), path.stat().st_size))
        return cls(files=frozenset(found))

    def changed_since(self, before: Surroundings) -> list[str]:
        """Return the files that came, went or changed their size."""
        return sorted({name for name, _ in self.files ^ before.files})


def marked_processes(run_dir: Path) -> list[int]:
    """Return the processes on this machine that carry the mark of a start in a run's folder."""
    mark = f"{PROBE_MARK}={run_dir}".encode()
    return [pid for pid in psutil.pids() if pid != os.getpid() and mark in _environment(pid)]


def shared_memory(run_dir: Path) -> list[str]:
    """Return the files in shared memory that carry the process id of a process of a run's starts."""
    pids = {path.stem.rpartition("-")[2] for path in run_dir.rglob("hello-*.json")}
    return [path.name for path in Path("/dev/shm").iterdir() if pids & set(re.split(r"[_.-]", path.name))]


def listening_ports(run_dir: Path) -> list[int]:
    """Return the TCP ports on which a process of a run's starts listens, or one that cannot be seen."""
    own = {None, *marked_processes(run_dir)}
    found = psutil.net_connections(kind="tcp")
    return sorted({one.laddr.port for one in found if one.status == psutil.CONN_LISTEN and one.pid in own})


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
