"""The processes of one start: begun in a session of their own, found by a mark in their environment, all ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "BEXPLORE_PROBE"  # variable that names the folder of the start, in every process of it
# Seconds that processes get to end by themselves, by SIGTERM and by SIGKILL. Source: a judgement; a launcher ends its
# ranks and then itself within a second or two of theirs.
GRACE_S, TERM_S, KILL_S = 2.0, 5.0, 5.0
_POLL_S = 0.05
SHARED_MEMORY = Path("/dev/shm")
# A module of torch's core that every process with torch has mapped.
_TORCH = "libtorch_python"


class Start:
    """One start of the user's command.

    Args:
        argv: The command, filled in.
        env: Variables of the environment beyond those of this process.
        folder: Folder of the start, which marks its processes.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.log_path = folder / "log.txt"
        self._shared_before = _listed(SHARED_MEMORY)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                env=os.environ | dict(env) | {MARK: str(folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def return_code(self) -> int | None:
        """As `subprocess` gives it; None while the command runs."""
        return self.process.poll()

    def alive(self) -> list[int]:
        """Return the process ids of this start on this host, whoever their parent is now."""
        mark = f"{MARK}={self.folder}\0".encode()
        own = (pid for pid in psutil.pids() if pid != os.getpid())
        return [pid for pid in own if mark in _environment(pid) or _session(pid) == self.process.pid]

    def unobserved(self) -> list[int]:
        """Return the processes of this start that have torch in them, on this host."""
        return [pid for pid in self.alive() if _TORCH in _maps(pid)]

    def log_tail(self, num_lines: int = 60) -> str:
        """Return the last lines of what the command wrote."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-num_lines:])

    def end(self, *, grace_s: float = 0.0) -> list[int]:
        """End every process of this start; return those that are left.

        Args:
            grace_s: Seconds that the command itself gets to end, while others (workers of a loader whose rank has gone,
                say) are not waited for.
        """
        shared = self._shared_memory()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        is_over = self._wait_for_end(0.0)
        for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            if not is_over:
                for pid in self.alive():
                    _kill(pid, number)
                is_over = self._wait_for_end(wait_s)
        for path in shared:
            path.unlink(missing_ok=True)
        return [] if is_over else self.alive()

    def _shared_memory(self) -> set[Path]:
        """Return the named segments that the processes of this start have made, which outlive them."""
        mapped = {word for pid in self.alive() for word in _maps(pid).split() if word.startswith(f"{SHARED_MEMORY}/")}
        return {Path(path) for path in mapped if Path(path).name not in self._shared_before}

    def _wait_for_end(self, seconds: float) -> bool:
        limit_s = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None and not self.alive():
                return True
            if time.monotonic() >= limit_s:
                return False
            time.sleep(_POLL_S)


def _listed(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""


def _session(pid: int) -> int | None:
    """Return the session of a process that runs; None for one that has ended and only waits to be reaped."""
    try:
        return None if _is_zombie(pid) else os.getsid(pid)
    except OSError:
        return None


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended meanwhile
