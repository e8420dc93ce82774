"""The processes of one start: begun in a session of their own, found by a mark in their environment, all ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import psutil

from bexplore.host.secret_values import hidden

LOG = "log.txt"  # of the folder of a start: what the training prints
MARK = "BEXPLORE_PROBE"  # variable that names the folder of the start, in every process of it
# Seconds that launchers get to end by themselves once their ranks have ended, then by SIGTERM, and that all get to end
# by SIGKILL. Source: a judgement; a launcher ends within a second or two of its ranks.
LEAVE_S, TERM_S, KILL_S = 4.0, 5.0, 5.0
_POLL_S = 0.05
SHARED_MEMORY = Path("/dev/shm")
# A module of torch's core that every process with torch has mapped.
_TORCH = "libtorch_python"
# Programs and modules that start ranks, or pass signals to those in a container or on another host, and run no code of
# the user. Sources: the console scripts of torch, accelerate and DeepSpeed; Slurm, MPI and container runtimes.
_LAUNCHERS = frozenset(
    (
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
        *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch", "pdsh", "ssh"),
        *("srun", "slurmstepd", "mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "orted", "prterun"),
        *("docker", "podman", "singularity", "apptainer", "enroot", "kubectl"),
    )
)
_OPTIONS_WITH_VALUE = ("-W", "-X")  # of Python
# Rounds in which processes are stopped: one that starts another meanwhile is found by the next.
_STOP_ROUNDS = 3


class Start:
    """One start of the user's command.

    Args:
        argv: The command, filled in.
        env: Variables of the environment beyond those of this process.
        folder: Folder of the start, which marks its processes.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.log_path = folder / LOG
        self._shared_before = _listed(SHARED_MEMORY)
        self._known: dict[int, str] = {}  # process id -> the time at which it started
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
        """Return the process ids of this start on this host, whoever their parent is now.

        A launcher that carries PYTHONPATH alone (DeepSpeed's, by ssh) leaves the mark behind, but not the observer. A
        process that was found once counts until it is gone: one that is ending has no environment any more, and may
        still hold memory of a device.
        """
        marks = f"{MARK}={self.folder}\0", str(self.folder / "observer")
        for pid in psutil.pids():
            if pid == os.getpid():
                continue
            environment = _environment(pid)
            if any(mark in environment for mark in marks) or _session(pid) == self.process.pid:
                self._known[pid] = _started(pid)
        self._known = {pid: started for pid, started in self._known.items() if started and _started(pid) == started}
        return sorted(self._known)

    def unobserved(self) -> list[int]:
        """Return the processes with torch in them, on this host, in which no observer is loaded.

        Forks of an observed process have its command line, and are its helpers.
        """
        observed = self._observed()
        known = {_command_line(pid) for pid in observed}
        others = (pid for pid in self.alive() if pid not in observed and _TORCH in _maps(pid))
        return [pid for pid in others if _command_line(pid) not in known]

    def _observed(self) -> set[int]:
        """Return the processes of this host that have loaded the observer, those that have ended too."""
        notes = (self.folder / "observer").glob(f"importing-{os.uname().nodename}-*")
        return {int(path.name.rpartition("-")[2]) for path in notes}

    def hold_scripts(self) -> None:
        """Stop the scripts that wait for a launcher: one whose training has failed would go on."""
        observed = self._observed()
        above = {parent for pid in observed for parent in _ancestors(pid)} - observed
        self._signal(lambda pid: pid in above, signal.SIGSTOP)

    def log_tail(self, num_lines: int = 60) -> str:
        """Return the last lines of what the command wrote."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
            return hidden("\n".join(log.read().decode(errors="replace").splitlines()[-num_lines:]))

    def end(self, *, ranks: Collection[int] = (), release: Callable[[], None] = lambda: None) -> list[int]:
        """End every process of this start; return those that are left.

        None of them runs any further code of the user: what neither launches nor waits to leave is stopped before any
        other process ends, and killed after it. A script goes on where what it waits for has ended, and a training
        saves its state on SIGTERM, which therefore launchers alone get.

        Args:
            ranks: Processes that wait for their release, and leave by themselves then.
            release: Lets them leave.
        """
        shared = self._shared_memory()
        self._signal(lambda pid: pid not in ranks, signal.SIGSTOP)
        release()
        if ranks:
            self._wait(lambda pid: pid in ranks or _is_launcher(pid), LEAVE_S)
        self._signal(lambda pid: True, signal.SIGKILL)
        self._wait(_is_launcher, LEAVE_S / 4)
        for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            for pid in self.alive():
                _kill(pid, number)
            if self._wait(lambda pid: True, wait_s):
                break
        for path in shared:
            path.unlink(missing_ok=True)
        return self.alive()

    def _signal(self, is_meant: Callable[[int], bool], number: signal.Signals) -> None:
        """Send a signal to processes that are no launchers, and to those that they start meanwhile."""
        done: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            found = {pid for pid in self.alive() if is_meant(pid) and not _is_launcher(pid)} - done
            for pid in found:
                _kill(pid, number)
            if not found:
                return
            done |= found

    def _wait(self, is_awaited: Callable[[int], bool], seconds: float) -> bool:
        """Wait until no such process is left; return whether that is so."""
        limit_s = time.monotonic() + seconds
        while True:
            self.process.poll()  # reaps the command
            if not any(map(is_awaited, self.alive())):
                return True
            if time.monotonic() >= limit_s:
                return False
            time.sleep(_POLL_S)

    def _shared_memory(self) -> set[Path]:
        """Return the named segments that the processes of this start have made, which outlive them."""
        mapped = {word for pid in self.alive() for word in _maps(pid).split() if word.startswith(f"{SHARED_MEMORY}/")}
        return {Path(path) for path in mapped if Path(path).name not in self._shared_before}


def program_of(words: Sequence[str]) -> str:
    """Return the name of the program of a command line: of a Python its script or its module; empty for code."""
    if not words or not Path(words[0]).name.startswith("python"):
        return Path(words[0]).name if words else ""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c"):
            return next(rest, "") if word == "-m" else ""
        if word in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return Path(word).name
    return ""


def _ancestors(pid: int) -> list[int]:
    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.Error:  # it has ended
        return []


def _is_launcher(pid: int) -> bool:
    return program_of(_command_line(pid).split("\0")) in _LAUNCHERS


def _listed(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _environment(pid: int) -> str:
    return _read(pid, "environ") + "\0"


def _command_line(pid: int) -> str:
    return _read(pid, "cmdline")


def _maps(pid: int) -> str:
    return _read(pid, "maps")


def _session(pid: int) -> int | None:
    """Return the session of a process that runs; None for one that has ended and only waits to be reaped."""
    try:
        return os.getsid(pid) if _started(pid) else None
    except OSError:
        return None


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty for one that has ended.

    One that only waits to be reaped has ended, unless threads of it still do.
    """
    fields = _read(pid, "stat").rpartition(")")[2].split()
    if not fields or (fields[0] in "ZX" and len(_listed(Path(f"/proc/{pid}/task"))) <= 1):
        return ""
    return fields[19]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ""


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it ended meanwhile, or is another user's, and is reported as left
