"""One start of the command: its folder, its processes, and the devices that they use.

The folder has the observer, the reports and the log. The processes begin below a reaper of their own, and all are found
and ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.config.command import Command, CommandFile
from bexplore.errors import UserInputError
from bexplore.host import process_tree
from bexplore.host.process_tree import PROBE_MARK, ProcessTree, find_ancestors, list_pids, read_file
from bexplore.host.secret_values import hidden, hide_in_file
from bexplore.units import format_bytes

OBSERVER = Path(__file__).parent / "observer"
LOG_VARIABLE = "BEXPLORE_OBSERVER_LOG"  # names a file to which each observed process adds a line for each event
TOLD = ("last_step", "release", "next")  # files with a line for the ranks
# Switches with which trackers and telemetry are off, by their own documentation.
TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
LOG = "log.txt"  # of the folder of a start: what the training prints
# A module of torch's core that every process with torch has mapped.
_TORCH = "libtorch_python"
# Programs of Inductor, which compile or tune kernels in processes of their own: these get the folders of sys.path as
# their PYTHONPATH, without the observer's. Source: python_subprocess_env of torch/_inductor/utils.py.
_COMPILERS = "/torch/_inductor/"
_REAPER_S = 5.0  # that a reaper gets to end once all that it cares for has. Source: as of `process_tree.LIMITS_S`
TOOL = "nvidia-smi"
QUERY_LIMIT_S = 5.0
LOOK_PERIOD_S = 5.0  # a query takes up to a tenth of a second of one processor
# Seconds that the driver gets to free the memory of processes that have ended. Source: chosen; it takes below a
# second as a rule, and a process that is stuck in the driver takes for ever.
FREE_LIMIT_S, FREE_POLL_S = 30.0, 0.25
# Bytes beyond those before the start that count as free. Source: the driver keeps a few MiB for itself.
SLACK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFolder:
    """The folder of a probe; of a further probe of a start it has reports alone."""

    path: Path

    @property
    def reports(self) -> Path:
        """Where the observer writes."""
        return self.path / "reports"

    def write(self, command: Command, values: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
        """Write all that a start needs; return the variables of its environment."""
        inject = self.path / "observer"
        if os.pathsep in str(inject):
            raise UserInputError(
                f"the folder of the results has a '{os.pathsep}', at which PYTHONPATH is split: {self.path}",
                hint="name another folder for them: `model_dir=FOLDER`",
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)  # the copy of the file, the environment and what the training prints may hold secrets
        (self.path / "output").mkdir()
        self._make_reports()
        # Contents alone: the folders and files of an installed package may be read-only, and these are written.
        sources = {source.relative_to(OBSERVER): source for source in OBSERVER.rglob("*.py")}
        for place, source in {**sources, Path("bexplore_process_tree.py"): Path(process_tree.__file__)}.items():
            (inject / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, inject / place)
        (inject / process_tree.LIFE).touch()
        (inject / "place").write_text(process_tree.read_namespace())
        _compile(inject)
        if command.file is not None:
            self._write_copy(command.file, values)
        _, env = command.filled(values)
        log = env.get(LOG_VARIABLE, os.environ.get(LOG_VARIABLE))
        told = {**settings, "reports": str(self.reports), "log": str(Path(log).absolute()) if log else None}
        (inject / "probe.json").write_text(json.dumps(told))
        own_path = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        path = os.pathsep.join([str(inject), *([own_path] if own_path else [])])
        # MLflow has no switch: its runs go where all that the start writes is removed.
        trackers = TRACKERS_OFF | {"MLFLOW_TRACKING_URI": (self.path.resolve() / "output" / "mlruns").as_uri()}
        trackers |= {name: value for name, value in env.items() if name in trackers}
        # For hosts to which a launcher carries PYTHONPATH alone.
        (inject / "environment").write_text("".join(f"{name}={value}\n" for name, value in trackers.items()))
        return trackers | env | {"PYTHONPATH": path}

    def _write_copy(self, file: CommandFile, values: Mapping[str, str]) -> None:
        place = file.place_copy(self.path)
        for old in file.find_old_copies():
            old.unlink(missing_ok=True)
        if file.beside is not None:
            (self.path / process_tree.COPY).write_text(str(place))  # by which the reaper finds it, too
        try:
            if file.siblings is not None:
                _link_siblings(file.siblings, place)
            place.unlink(missing_ok=True)
            place.touch(0o600, exist_ok=False)  # it may hold what the user's file keeps from others
            place.write_text(file.copy(values))
        except OSError as error:
            raise UserInputError(
                f"{file.name} names other files from its own folder, and its copies cannot lie there: "
                f"{error.strerror}: {place.parent}",
                hint="let bexplore write there, or name those files by absolute paths",
            ) from None

    def beat(self) -> None:
        """Tell the ranks that the explorer lives: they leave where the file stays as it is."""
        with contextlib.suppress(OSError):
            (self.reports / "explorer").write_text(str(time.time()))

    def stop_after(self, step: int) -> None:
        """Name the step after which all ranks stop."""
        self._tell("last_step", str(step))

    def go_on(self, following: ProbeFolder, settings: Mapping[str, Any]) -> None:
        """Let the parked ranks of this probe go on with a further one, and report in its folder."""
        following._make_reports()
        self._tell("next", json.dumps({**settings, "reports": str(following.reports)}))

    def release(self) -> None:
        """Let the ranks end: every one has its record. A folder that somebody removed keeps none of them from it."""
        with contextlib.suppress(OSError):
            self._tell("release", "now")

    def _make_reports(self) -> None:
        """Make the folder and, empty, the files that the ranks wait for.

        A host that has looked for a file in vain may not see for half a minute that there is one now, but an opened
        file has what was last written in it: close-to-open consistency, nfs(5).
        """
        self.reports.mkdir(parents=True)
        for name in TOLD:
            (self.reports / name).touch()

    def _tell(self, name: str, text: str) -> None:
        (self.reports / name).write_text(text + "\n")

    def clean(self) -> None:
        """Remove what the training wrote, its copy of the file and the observer; reports and log stay, masked."""
        process_tree.remove_copy(str(self.path))
        for name in ("output", "observer", "config"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.is_file() and path.name != LOG:
                path.unlink(missing_ok=True)
        hide_in_file(self.path / LOG)
        self.hide_in_reports()

    def hide_in_reports(self) -> None:
        """Mask secrets in what the ranks have reported, such as the text of an exception."""
        for path in self.reports.glob("*.json"):
            hide_in_file(path)


def _link_siblings(folder: Path, place: Path) -> None:
    """Link all that lies beside the user's file beside its copy, but for what the copy itself lies in."""
    place.parent.mkdir(exist_ok=True)
    for one in folder.iterdir():
        if one.name != place.name and not place.resolve().is_relative_to(one.resolve()):
            (place.parent / one.name).symlink_to(one)


def _compile(folder: Path) -> None:
    """Compile what every process of a start imports; a Python of another version compiles it for itself."""
    for path in folder.rglob("*.py"):
        cached = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        py_compile.compile(str(path), cfile=str(cached), doraise=True)


class Start:
    """One start of the user's command, whose processes its folder marks."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.log_path = folder / LOG
        self._return_code: int | None = None
        self._told = b""
        with self.log_path.open("wb") as log:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", process_tree.__file__, "run", str(folder), str(os.getpid())],
                env=os.environ | dict(env) | {PROBE_MARK: str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,  # which the command has, too
                start_new_session=True,
                bufsize=0,  # one answer is read here, and a later one may have come with it
            )
        self._tree = ProcessTree(str(folder), self._reaper.pid)
        self.pid = self._begin(argv)

    def _begin(self, argv: Sequence[str]) -> int:
        assert self._reaper.stdin is not None and self._reaper.stdout is not None
        words = b"".join(os.fsencode(word) + b"\0" for word in argv)
        message = b"%d\n" % len(words) + words
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its answer tells
            while message:
                message = message[os.write(self._reaper.stdin.fileno(), message) :]
        answer, _, number = self._reaper.stdout.readline().decode().partition(" ")
        if answer != "started":
            self._dismiss()
            raise OSError(int(number or 0), os.strerror(int(number)) if number else "its reaper was ended")
        os.set_blocking(self._reaper.stdout.fileno(), False)
        return int(number)

    @property
    def return_code(self) -> int | None:
        """As `subprocess` gives it; None while the command runs, and where it ran until it was ended."""
        assert self._reaper.stdout is not None
        if self._return_code is None and not self._reaper.stdout.closed:
            with contextlib.suppress(BlockingIOError):
                read = os.read(self._reaper.stdout.fileno(), 4096)
                self._told += read
                if self._told.endswith(b"\n"):
                    self._return_code = int(self._told.split()[1])
                elif not read:  # somebody ended the reaper
                    self._return_code = self._reaper.wait()
                    self._tree.reaper = None  # its number may be given to another
        return self._return_code

    def alive(self) -> list[int]:
        """Return the process ids of this start on this host, whoever their parent is now."""
        return self._tree.alive()

    def find_unobserved(self) -> list[int]:
        """Return the processes with torch in them, on this host, in which no observer is loaded.

        Forks of an observed process have its command line, and are its helpers; so are those that compile for it.
        """
        observed = self._find_observed()
        known = {read_file(pid, "cmdline") for pid in observed}
        others = (pid for pid in self.alive() if pid not in observed and _TORCH in read_file(pid, "maps"))
        return [pid for pid in others if read_file(pid, "cmdline") not in known and not _is_compiler(pid)]

    def _find_observed(self) -> set[int]:
        """Return the processes of this host that have loaded the observer, those that have ended too."""
        notes = (self.folder / "observer").glob(f"importing-{os.uname().nodename}-*")
        return {int(path.name.rpartition("-")[2]) for path in notes}

    def hold_scripts(self) -> None:
        """Stop the scripts that wait for a launcher: one whose training has failed would go on."""
        observed = self._find_observed()
        above = {parent for pid in observed for parent in find_ancestors(pid)} - observed
        self._tree.signal(lambda pid: pid in above, signal.SIGSTOP)

    def log_tail(self, num_lines: int = 60) -> str:
        """Return the last lines of what the command wrote."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
            return hidden("\n".join(log.read().decode(errors="replace").splitlines()[-num_lines:]))

    def end(self, *, ranks: Collection[int] = (), release: Callable[[], None] = lambda: None) -> list[int]:
        """End every process of this start, as `ProcessTree.end`; return those that are left, and to their reaper."""
        left = self._tree.end(ranks=ranks, release=release)
        if not left:
            self._reaper.kill()
        self._dismiss()
        return left

    def _dismiss(self) -> None:
        """Let the reaper end: its input ends with this."""
        for stream in (self._reaper.stdin, self._reaper.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._reaper.wait(_REAPER_S)
            self._tree.reaper = None
        except subprocess.TimeoutExpired:
            pass  # it still tries to end what is left


def end_leftovers(run_dir: Path) -> list[str]:
    """End what explorers of a run that are gone have left on this host; return what that was, for people."""
    texts = []
    for folder, tree in _find_left_trees(str(run_dir.resolve())):
        found = tree.alive()
        left = tree.end()
        name = Path(folder).name
        texts.append(f"an explorer that is gone left processes of {name}, which were ended: {found}")
        if left:
            texts.append(f"processes of {name} could not be ended, and disturb what is measured: {left}")
    return texts


def _find_left_trees(run_dir: str) -> Iterator[tuple[str, ProcessTree]]:
    """Yield each start of a run whose explorer is gone, and its processes; wait for the reapers that end theirs.

    Explorers may share a run: what belongs to one that lives is left alone.
    """
    limit_s = time.monotonic() + 2 * sum(process_tree.ORPHANED_LIMITS_S)
    while any(not lives for _, lives in _find_reapers()) and time.monotonic() < limit_s:
        time.sleep(0.05)
    lead, cared_for = f"{PROBE_MARK}={run_dir}{os.sep}", {folder for folder, _ in _find_reapers()}
    variables = (one for pid in list_pids() for one in process_tree.read_environment(pid).split("\0"))
    found = {one.removeprefix(f"{PROBE_MARK}=") for one in variables if one.startswith(lead)}
    for folder in sorted(found - cared_for):
        tree = ProcessTree(folder, None)
        if tree.alive():
            yield folder, tree


def _find_reapers() -> Iterator[tuple[str, bool]]:
    """Yield the folder of each start that has a reaper on this host, and whether its explorer lives."""
    for pid in list_pids():
        words = read_file(pid, "cmdline").split("\0")
        if "run" in words[:-3] and Path(words[words.index("run") - 1]).name == Path(process_tree.__file__).name:
            folder, explorer = words[words.index("run") + 1 : words.index("run") + 3]
            if process_tree.read_start_time(pid):
                yield folder, str(process_tree.read_parent(pid)) == explorer


def _is_compiler(pid: int) -> bool:
    """Return whether a process is one of Inductor's, or was started by one."""
    return any(_COMPILERS in read_file(one, "cmdline") for one in (pid, *find_ancestors(pid)))


def read_used_bytes() -> dict[str, int]:
    """Return device -> bytes of its memory in use; empty without a device."""
    rows = _query("--query-gpu=uuid,memory.used")
    return {row[0]: int(row[1]) * 2**20 for row in rows if len(row) == 2 and row[1].isdecimal()}


@dataclass(slots=True, kw_only=True)
class DeviceUse:
    """The use of this host's devices, from before a start until it has ended."""

    before: dict[str, int] = field(default_factory=read_used_bytes)  # device -> bytes in use before the start
    _others: dict[str, set[int]] = field(default_factory=dict)
    _looked_s: float = 0.0

    def look(self, own: Collection[int]) -> None:
        """Note who else uses the devices of the start's own processes just now, a few times a minute."""
        if not self.before or time.monotonic() - self._looked_s < LOOK_PERIOD_S:
            return
        self._looked_s = time.monotonic()
        users: dict[str, set[int]] = {}
        for device, pid in _query("--query-compute-apps=gpu_uuid,pid"):
            users.setdefault(device, set()).update([int(pid)] if pid.isdecimal() else [])
        for device, pids in users.items():
            others = pids - set(own)
            if others != pids:  # else the start does not use it, or a container does not translate the ids
                self._others.setdefault(device, set()).update(others)

    def warnings(self) -> list[str]:
        """Return warnings about others on the devices of the start."""
        return [
            f"other processes used device {device} meanwhile (process {', '.join(map(str, sorted(pids)))}): "
            "the times are noisier"
            for device, pids in sorted(self._others.items())
            if pids
        ]

    def wait_until_free(self) -> list[str]:
        """Wait until the devices hold no more than before the start; return warnings about those that do."""
        limit_s = time.monotonic() + FREE_LIMIT_S
        while held := self._find_held_bytes():
            if time.monotonic() >= limit_s:
                return [
                    f"device {device} holds {format_bytes(more)} more than before the start: the next size has less"
                    for device, more in sorted(held.items())
                ]
            time.sleep(FREE_POLL_S)
        return []

    def _find_held_bytes(self) -> dict[str, int]:
        now = read_used_bytes() if self.before else {}
        more = {device: used - self.before.get(device, used) for device, used in now.items()}
        return {device: count for device, count in more.items() if count > SLACK_BYTES}


def _query(query: str) -> list[list[str]]:
    """Return the lines that the driver's tool prints, each in its parts; none where it is not there or fails."""
    if shutil.which(TOOL) is None:
        return []
    command = [TOOL, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 1]
