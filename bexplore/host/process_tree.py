"""The processes of a tree: found by their mark and their ancestor, whatever they did to get away, stopped and ended.

Compiler pools and launchers start sessions of their own, and a process that is killed leaves its children behind: the
kernel's own means (process groups, death signals) reach neither. The file is also a program, which ends a tree when the
explorer is killed:

`process_tree.py marked VARIABLE MARK` waits until its standard input ends, and then ends what carries the mark.

`process_tree.py run FOLDER EXPLORER` is the parent of a command on the explorer's host. Every orphan below it becomes
its child (PR_SET_CHILD_SUBREAPER, prctl(2)), so that it finds what has left its session, its parent and its
environment, too. It ends all of that when its standard input ends, or when the explorer is no longer its parent.

`process_tree.py host FOLDER` does the same on another host, where the first Python process of a start begins it. It
finds processes by their environment, and ends them when the file `life` is filled or gone.

The standard library alone, Python 3.8 and newer: the file is copied into the folder of a start, whose processes may
have a Python of their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

# Variables that mark processes: the folder of the start of a command, and `<explorer's mark>-<number of the worker>`.
PROBE_MARK, WORKER_MARK = "BEXPLORE_PROBE", "BEXPLORE_WORKER"
OBSERVER, OUTPUT = "observer", "output"  # folders of a start that go with it
COPY = "copy"  # file of such a folder: where the copy of the user's file lies, if beside that
LIFE = "life"  # file beside the observer: empty while the explorer lives
# Seconds that launchers get to end by themselves once their ranks have ended, then by SIGTERM, and that all get to end
# by SIGKILL. Source: chosen; a launcher ends within a second or two of its ranks.
LIMITS_S = (4.0, 5.0, 5.0)
# The same where the explorer was killed: nothing of a start outlives it by 5 s.
ORPHANED_LIMITS_S = (1.0, 1.5, 1.5)
_MARKED_ROUNDS_S = (0.0, 0.1, 0.5, 1.0, 2.0)  # pauses before each search: a process may be starting another just now
_POLL_S = 0.05
_LOOK_S = 1.0  # between two looks for the explorer, should a fork of it hold the other end of the pipe open
_HOST_LOOK_S = 0.5
_HOST_IDLE_S = 10.0  # without a process of the start on this host, after which nothing is left to wait for
SHARED_MEMORY = "/dev/shm"
# Temporary folders that multiprocessing and torch make for a socket, and that a process removes which ends by itself.
# Sources: multiprocessing/util.py; torch/lib/libshm/libshm.h.
_SOCKET_FOLDERS = ("pymp-", "torch-shm-dir-")
# The temporary folder of torchrun, which it never removes, and the variable of its ranks that names a file below it.
# Source: torch/distributed/elastic/multiprocessing/api.py.
_LOG_FOLDER, _ERROR_FILE = "torchelastic_", "TORCHELASTIC_ERROR_FILE="
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
# Programs and modules that start ranks, or pass signals to those in a container or on another host, and run no code of
# the user. Sources: the console scripts of torch, accelerate, Composer, DeepSpeed; Slurm, MPI and container runtimes.
LAUNCHERS = frozenset(
    (
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
        *("composer", "deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch", "pdsh", "ssh"),
        *("srun", "slurmstepd", "mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "orted", "prterun"),
        *("docker", "podman", "singularity", "apptainer", "enroot", "kubectl"),
    )
)
_OPTIONS_WITH_VALUE = ("-W", "-X")  # of Python
# Rounds in which processes are stopped: one that starts another meanwhile is found by the next.
_STOP_ROUNDS = 3


class ProcessTree:
    """The processes of one start of a command on this host, whoever their parent is now.

    A launcher that carries PYTHONPATH alone (DeepSpeed's, by ssh) leaves the mark behind, but not the observer; what
    clears its environment stays a descendant of the reaper.

    Args:
        folder: Folder of the start.
        reaper: Process id of its reaper; None where it has none on this host, or none any more.
    """

    def __init__(self, folder: str, reaper: int | None) -> None:
        self._marks = f"{PROBE_MARK}={folder}\0", os.path.join(folder, OBSERVER)  # noqa: PTH118 - text, as it stands there
        self.reaper = reaper
        self._known: dict[int, str] = {}  # process id -> the time at which it started
        self._seen: set[int] = set()  # the process ids of those that have ended too
        self._log_folders: set[str] = set()
        self._shared_before = _list_shared_memory()

    def alive(self) -> list[int]:
        """Return the process ids of those that run.

        A process that was found once counts until it is gone: one that is ending has no environment any more, and may
        still hold memory of a device.
        """
        parents = {pid: read_parent(pid) for pid in list_pids() if pid not in (os.getpid(), self.reaper)}
        for pid in parents:
            environment = read_environment(pid)
            is_below = self.reaper is not None and _descends(pid, self.reaper, parents)
            if is_below or any(mark in environment for mark in self._marks):
                self._known[pid] = read_start_time(pid)
                self._seen.add(pid)
                self._log_folders |= _find_log_folders(environment)
        self._known = {pid: at for pid, at in self._known.items() if at and read_start_time(pid) == at}
        return sorted(self._known)

    def end(
        self,
        *,
        limits_s: tuple[float, float, float] = LIMITS_S,
        ranks: Collection[int] = (),
        release: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """End them all; return those that are left.

        None of them runs any further code of the user: what neither launches nor waits to leave is stopped before any
        other process ends, and killed after it. A script goes on where what it waits for has ended, and a training
        saves its state on SIGTERM, which therefore launchers alone get.

        Args:
            limits_s: Seconds for each stage.
            ranks: Processes that wait for their release, and leave by themselves then.
            release: Lets them leave.
        """
        leave_s, term_s, kill_s = limits_s
        shared, folders = self._find_segments(), self._find_socket_folders()
        self.signal(lambda pid: pid not in ranks, signal.SIGSTOP)
        shared, folders = (
            shared | self._find_segments(),
            folders | self._find_socket_folders(),
        )  # made until they stopped
        release()
        if ranks:
            self._wait(lambda pid: pid in ranks or is_launcher(pid), leave_s)
        self.signal(lambda pid: True, signal.SIGKILL)
        self._wait(is_launcher, leave_s / 4)
        for number, wait_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
            for pid in self.alive():
                send_signal(pid, number)
            if self._wait(lambda pid: True, wait_s):
                break
        for path in (shared - self._shared_before) | {path for path in _list_shared_memory() if self._is_named(path)}:
            Path(path).unlink(missing_ok=True)
        for path in folders | self._log_folders:
            shutil.rmtree(path, ignore_errors=True)
        return self.alive()

    def _find_segments(self) -> set[str]:
        """Return the segments of shared memory that the processes map or hold open."""
        pids = self.alive()
        mapped = {word for pid in pids for word in read_file(pid, "maps").split()}
        return {path for path in mapped.union(*map(_list_open_files, pids)) if path.startswith(f"{SHARED_MEMORY}/")}

    def _find_socket_folders(self) -> set[str]:
        """Return the temporary folders that were made for a socket that the processes hold."""
        pids = self.alive()
        held = set().union(*map(_list_open_files, pids))
        lines = {line for pid in pids for line in read_file(pid, "net/unix").splitlines()[1:]}  # each has its network
        bound = (line.split(None, 7) for line in lines)  # the number of a socket stands before its path
        folders = {os.path.dirname(words[7]) for words in bound if len(words) > 7 and f"socket:[{words[6]}]" in held}  # noqa: PTH120
        return {path for path in folders if os.path.basename(path).startswith(_SOCKET_FOLDERS)}  # noqa: PTH119

    def _is_named(self, path: str) -> bool:
        """Return whether a segment has the process id of one of them in its name, as those of torch have."""
        numbers = re.split(r"[_.-]", os.path.basename(path))  # noqa: PTH119 - text
        return any(str(pid) in numbers for pid in self._seen)

    def signal(self, is_meant: Callable[[int], bool], number: signal.Signals) -> None:
        """Send a signal to processes that are no launchers, and to those that they start meanwhile."""
        done: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            found = {pid for pid in self.alive() if is_meant(pid) and not is_launcher(pid)} - done
            for pid in found:
                send_signal(pid, number)
            if not found:
                return
            done |= found

    def _wait(self, is_awaited: Callable[[int], bool], seconds: float) -> bool:
        """Wait until no such process is left; return whether that is so."""
        limit_s = time.monotonic() + seconds
        while True:
            if not any(map(is_awaited, self.alive())):
                return True
            if time.monotonic() >= limit_s:
                return False
            time.sleep(_POLL_S)


def find_program(words: Sequence[str]) -> str:
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


def is_launcher(pid: int) -> bool:
    """Return whether a process starts ranks, and runs no code of the user."""
    return find_program(read_file(pid, "cmdline").split("\0")) in LAUNCHERS


def read_environment(pid: int) -> str:
    """Return the environment with which a process was started, each variable ended by a zero; empty if unknown."""
    return read_file(pid, "environ") + "\0"


def read_start_time(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty for one that has ended.

    One that only waits to be reaped has ended, unless threads of it still do.
    """
    fields = _read_stat(pid)
    if not fields or (fields[0] in "ZX" and _count_threads(pid) <= 1):
        return ""
    return fields[19]


def read_parent(pid: int) -> int:
    """Return the process id of the parent; 0 for a process that is gone."""
    fields = _read_stat(pid)
    return int(fields[1]) if fields else 0


def read_file(pid: int, name: str) -> str:
    """Return a file of a process in /proc; empty where it is gone, or another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ""


def read_namespace() -> str:
    """Return the name of the processes that see one another: those of one kernel and one namespace of process ids."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return os.uname().nodename


def find_marked(variable: str, start: str) -> list[int]:
    """Return the ids of other processes whose mark begins like this; empty where the system has no /proc."""
    lead = f"\0{variable}={start}"
    others = (pid for pid in list_pids() if pid != os.getpid())
    return [pid for pid in others if lead in "\0" + read_environment(pid)]


def end_marked(variable: str, start: str) -> int:
    """Kill the processes whose mark begins like this; return how many there were."""
    found = find_marked(variable, start)
    for pid in found:
        send_signal(pid, signal.SIGKILL)
    return len(found)


def find_ancestors(pid: int) -> set[int]:
    """Return the process ids of the parent, its parent and so on."""
    found: set[int] = set()
    while (pid := read_parent(pid)) and pid not in found:
        found.add(pid)
    return found


def find_descendants(pid: int) -> list[int]:
    """Return the process ids of the children, their children and so on."""
    parents = {one: read_parent(one) for one in list_pids()}
    return [one for one in parents if _descends(one, pid, parents)]


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def list_pids() -> list[int]:
    """Return the process ids of this host, or of this container; empty where the system has no /proc."""
    if not os.path.isdir("/proc"):  # noqa: PTH112
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - read once a second


def _read_stat(pid: int) -> list[str]:
    return read_file(pid, "stat").rpartition(")")[2].split()


def _count_threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except OSError:
        return 0


def _list_shared_memory() -> set[str]:
    """Return the named segments of shared memory, which outlive the processes that made them."""
    folder = Path(SHARED_MEMORY)
    return {str(path) for path in folder.iterdir()} if folder.is_dir() else set()


def _list_open_files(pid: int) -> Iterator[str]:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):  # it was closed meanwhile
                yield os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
    except OSError:
        return  # it ended meanwhile, or is another user's


def _find_log_folders(environment: str) -> set[str]:
    named = (word[len(_ERROR_FILE) :] for word in environment.split("\0") if word.startswith(_ERROR_FILE))
    above = (path for name in named for path in Path(name).parents)
    return {str(path) for path in above if path.name.startswith(_LOG_FOLDER)}


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal; nothing where the process has ended, or is another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # what is left is reported


def _adopt_orphans() -> None:
    import ctypes  # 10 ms, and of this program alone

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _read_command() -> list[bytes]:
    """Return the command, which standard input begins with: its length, and its words with a zero after each."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as stream:
        length, read = b"", b""
        while not length.endswith(b"\n"):
            one = stream.read(1)
            if not one:
                return []
            length += one
        while len(read) < int(length):
            more = stream.read(int(length) - len(read))
            if not more:
                return []
            read += more
    return read.split(b"\0")[:-1]


def watch_marked(variable: str, start: str) -> None:
    """Wait for the end of standard input, as when the explorer is killed; then end what it has marked."""
    while os.read(0, 4096):
        pass
    for pause_s in _MARKED_ROUNDS_S:
        time.sleep(pause_s)
        end_marked(variable, start)


def run(folder: str, explorer: int) -> None:
    """Start the command; tell how that and it ended; end all of its processes where the explorer is gone."""
    import select
    import subprocess

    _adopt_orphans()
    processes = ProcessTree(folder, os.getpid())
    words = _read_command()
    if not words:
        return
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    except OSError as error:
        _answer(b"failed %d\n" % (error.errno or errno.ENOENT))
        return
    _answer(b"started %d\n" % command.pid)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(ended, select.POLLIN)
    is_running = True
    while os.getppid() == explorer:
        ready = {number for number, _ in poller.poll(_LOOK_S * 1000)}
        if ended in ready:
            os.read(ended, 4096)
            is_running = not _reap(command.pid) and is_running
        if not is_running and not processes.alive():
            return  # nothing is left to care for
        if 0 in ready and not os.read(0, 4096):
            break
    _tell_other_hosts(folder)
    left = processes.end(limits_s=ORPHANED_LIMITS_S)
    if not left:
        _remove(folder)


def _reap(command: int) -> bool:
    """Take the statuses of all children that have ended; tell that of the command, and return whether it is there."""
    is_there = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return is_there
        if not pid:
            return is_there
        if pid == command:
            is_there = True
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            _answer(b"ended %d\n" % code)


def _answer(line: bytes) -> None:
    try:
        os.write(1, line)
    except OSError:
        pass  # the explorer has gone


def _tell_other_hosts(folder: str) -> None:
    try:
        Path(folder, OBSERVER, LIFE).write_text("gone\n")
    except OSError:
        pass  # nobody waits for it, or the folder is gone, which says the same


def _remove(folder: str) -> None:
    """Remove what the training wrote and what the observer was loaded from, as at the end of any start."""
    remove_copy(folder)
    for name in (OBSERVER, OUTPUT):
        shutil.rmtree(Path(folder, name), ignore_errors=True)


def remove_copy(folder: str) -> None:
    """Remove the copy of the user's file that a start has beside it, where there is one."""
    try:
        Path(Path(folder, COPY).read_text()).unlink()
    except OSError:
        pass  # there is none


def watch_host(folder: str) -> None:
    """End what belongs to a start on this host once the explorer is gone; leave when nothing is left."""
    if os.fork():
        return  # whoever started this one waits for it
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    processes, idle_s = ProcessTree(folder, None), 0.0
    while idle_s < _HOST_IDLE_S:
        if _is_over(folder):
            processes.end(limits_s=ORPHANED_LIMITS_S)
            break
        time.sleep(_HOST_LOOK_S)
        idle_s = 0.0 if processes.alive() else idle_s + _HOST_LOOK_S
    try:
        Path(folder, OBSERVER, f"watched-{read_namespace()}").unlink()
    except OSError:
        pass  # the start is over


def _is_over(folder: str) -> bool:
    try:
        with Path(folder, OBSERVER, LIFE).open("rb") as stream:  # opened anew: nfs(5), close-to-open consistency
            return bool(stream.read())
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ESTALE)  # any other may pass


if __name__ == "__main__":
    if sys.argv[1] == "marked":
        watch_marked(sys.argv[2], sys.argv[3])
    elif sys.argv[1] == "run":
        run(sys.argv[2], int(sys.argv[3]))
    else:
        watch_host(sys.argv[2])
