"""What a command started ends with its killed explorer, whatever its processes did to get away, on each host."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path

import psutil
import pytest

from bexplore.command.start import OBSERVER, Start, end_leftovers
from bexplore.host import process_tree
from bexplore.host.process_tree import PROBE_MARK, WORKER_MARK
from tests.builders import wait_for

SLEEPS = "import time; time.sleep(60)"


@pytest.fixture
def started(tmp_path: Path):
    """Return a function that starts a shell line or a Python program."""
    starts = []

    def start(*argv: str) -> Start:
        starts.append(Start(argv, env={}, folder=tmp_path))
        return starts[-1]

    yield start
    for one in starts:
        assert one.end() == []


# Ways of a command to leave its parent, its session, its group or its environment; `{sleep}` writes its process id.
WAYS_OUT = {
    "a shell that waits for it": "bash -c {sleep}; echo {after}",
    "a session of its own": "setsid bash -c {sleep} & wait",
    "a session of its own, whose parent ends": "setsid --fork bash -c {sleep}",
    "an empty environment": "env -i bash -c {sleep}; echo {after}",
    "an empty environment in a session of its own, whose parent ends": "env -i setsid --fork bash -c {sleep}",
    "a shell that goes on at each signal": "trap 'echo {after}' TERM INT HUP; bash -c {sleep}; echo {after}; sleep 600",
    "a process that is stopped": "bash -c {sleep} & sleep 0.3; kill -STOP $!; wait",
    "processes that start others all the time": "bash -c {sleep} & while true; do sleep 0.01 & done",
}
EXPLORER = """\
import sys, time
from pathlib import Path
from bexplore.command.start import Start
start = Start(["bash", "-c", sys.argv[2]], env={}, folder=Path(sys.argv[1]))
(Path(sys.argv[1]) / "started").touch()
time.sleep(600)
"""


@pytest.fixture
def killed_explorer(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that kills the explorer of a shell line once that has written a process id."""

    def kill(line: str, after: str = "started") -> Path:
        folder = tmp_path / "probes" / "000_size_4"
        for name in ("observer", "output"):
            (folder / name).mkdir(parents=True)
        explorer = subprocess.Popen([sys.executable, "-c", EXPLORER, str(folder), line])
        wait_for(folder / after)
        explorer.kill()
        explorer.wait()
        return folder

    return kill


def belongs(folder: Path, pid: int | None = None) -> list[int]:
    """Return the processes that carry the mark of a start, its reaper included; and another one, if that runs."""
    marked = [one for one in psutil.pids() if f"{PROBE_MARK}={folder}\0" in process_tree.read_environment(one)]
    return [one for one in (*marked, *([pid] if pid else [])) if process_tree.read_start_time(one)]


def wait_until_gone(folder: Path, pid: int | None = None) -> None:
    limit_s = time.monotonic() + 60.0  # 5 s by the limits of each stage; the rest is for a busy machine
    num_looks = 0
    while num_looks < 5 and time.monotonic() < limit_s:
        num_looks = 0 if belongs(folder, pid) else num_looks + 1  # what has just been forked has no mark yet
        time.sleep(0.05)
    assert belongs(folder, pid) == []


@pytest.mark.promise("SIGKILL of a command's explorer", "all that the command started is gone within 5 s")
@pytest.mark.parametrize("way", WAYS_OUT)
def test_nothing_of_a_command_outlives_its_killed_explorer(killed_explorer, tmp_path, way):
    written, after = tmp_path / "pid", tmp_path / "after"
    sleep = shlex.quote(f"echo $$ > {written}.part; mv {written}.part {written}; exec sleep 600")

    copy = tmp_path / ".job.bexplore-1-2.yaml"  # that the start has beside the user's file
    copy.touch()
    (tmp_path / "probes" / "000_size_4").mkdir(parents=True)
    (tmp_path / "probes" / "000_size_4" / process_tree.COPY).write_text(str(copy))

    folder = killed_explorer(WAYS_OUT[way].format(sleep=sleep, after=f"> {after}"), after=f"../../{written.name}")

    wait_until_gone(folder, int(written.read_text()))
    assert not copy.exists()
    assert not after.exists()  # none of it ran on
    assert not (folder / "output").exists() and not (folder / "observer").exists()
    assert sum(process_tree.ORPHANED_LIMITS_S) < 5.0


@pytest.mark.promise("SIGKILL of a command's explorer while the command starts", "nothing of it is left")
@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.05, 0.1])
def test_nothing_is_left_where_the_explorer_is_killed_at_once(tmp_path, pause_s):
    explorer = subprocess.Popen([sys.executable, "-c", EXPLORER, str(tmp_path), "sleep 600"])
    wait_for(tmp_path / "log.txt")
    time.sleep(pause_s)

    explorer.kill()
    explorer.wait()

    wait_until_gone(tmp_path)


def test_a_process_of_an_own_session_without_environment_is_found(started, tmp_path):
    start = started("env", "-i", "setsid", "--fork", "bash", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    wait_for(tmp_path / "pid")

    while not (text := (tmp_path / "pid").read_text()):
        time.sleep(0.01)
    assert int(text) in start.alive()


def test_a_command_has_its_own_status_or_the_reason_why_it_cannot_start(started, tmp_path):
    start = started("bash", "-c", "exit 3")
    while start.return_code is None:
        time.sleep(0.01)
    assert start.return_code == 3

    with pytest.raises(FileNotFoundError):
        started(str(tmp_path / "absent"))


def test_the_end_of_a_start_ends_its_reaper(started):
    start = started("sleep", "60")
    while len(belongs(start.folder)) < 2:  # the command's environment is not there at once
        time.sleep(0.01)

    assert start.end() == []

    assert belongs(start.folder) == []


@pytest.mark.promise(
    "SIGKILL of a command's explorer and of the process that ends its training", "the next explorer ends and names it"
)
def test_what_an_explorer_left_is_ended_and_named_what_lives_stays(started, tmp_path):
    left, lives = (tmp_path / "probes" / name for name in ("000_size_4", "001_size_8"))
    for folder in (left, lives):
        folder.mkdir(parents=True)
    orphan = subprocess.Popen(["sleep", "600"], env={PROBE_MARK: str(left)}, start_new_session=True)
    other = Start(["sleep", "600"], env={}, folder=lives)

    (text,) = end_leftovers(tmp_path)

    assert "000_size_4" in text and str(orphan.pid) in text
    assert orphan.wait(60) == -signal.SIGKILL
    assert other.alive() == [other.pid]
    assert other.end() == []


# Other hosts


def is_watched(observer: Path) -> bool:
    """Return whether a process watches this host as if it were another one, below nobody that trains."""
    watching = [
        pid
        for pid in psutil.pids()
        if f"{observer}/bexplore_process_tree.py\0" in process_tree.read_file(pid, "cmdline")
    ]
    return len(watching) == 1 and process_tree.read_parent(process_tree.read_parent(watching[0])) != os.getpid()


@pytest.mark.promise("SIGKILL of the explorer of a command that trains on several hosts", "gone on each host")
@pytest.mark.parametrize("how", ["told", "removed"])
def test_a_part_on_another_host_ends_when_its_explorer_is_gone(tmp_path, how):
    observer = tmp_path / "observer"
    shutil.copytree(OBSERVER, observer)
    (observer / "place").write_text("another host")
    (observer / process_tree.LIFE).touch()
    shutil.copyfile(process_tree.__file__, observer / "bexplore_process_tree.py")
    environment = {"PYTHONPATH": str(observer), "PATH": os.environ["PATH"]}  # a launcher carries no more
    ranks = [
        subprocess.Popen([sys.executable, "-c", SLEEPS], env=environment, start_new_session=True) for _ in range(2)
    ]
    while not is_watched(observer):
        time.sleep(0.01)
    assert all(rank.poll() is None for rank in ranks)

    if how == "told":
        (observer / process_tree.LIFE).write_text("gone\n")
    else:
        shutil.rmtree(observer)

    assert [rank.wait(60) for rank in ranks] == [-signal.SIGKILL] * 2


# How a process leaves a segment behind that is killed before it unlinks it, as torch does right after mapping one.
SEGMENTS = {
    "open and not mapped yet": "kept = os.open(path, os.O_CREAT | os.O_RDWR)",
    "mapped and closed": "file = os.open(path, os.O_CREAT | os.O_RDWR); os.ftruncate(file, 4096); "
    "kept = mmap.mmap(file, 4096); os.close(file)",
    "neither, with its process id": "path = f'/dev/shm/torch_{os.getpid()}_7_0'; open(path, 'w').close()",
}


@pytest.mark.parametrize("way", SEGMENTS)
@pytest.mark.skipif(not Path(process_tree.SHARED_MEMORY).is_dir(), reason="no shared memory in files")
def test_shared_memory_of_a_killed_process_is_removed(started, tmp_path, way):
    path = Path(process_tree.SHARED_MEMORY) / f"bexplore_test_{tmp_path.name}"
    code = f"import mmap, os, sys, time; path = {str(path)!r}; {SEGMENTS[way]}; "
    code += "print(path, file=open(sys.argv[1] + '.part', 'w')); os.rename(sys.argv[1] + '.part', sys.argv[1]); "
    start = started(sys.executable, "-c", code + SLEEPS.removeprefix("import time; "), str(tmp_path / "made"))
    wait_for(tmp_path / "made")
    made = Path((tmp_path / "made").read_text().strip())
    assert made.exists()

    assert start.end() == []

    assert not made.exists()


# Folders of sockets that a process removes which ends by itself: those of worker processes of a data loader, and that
# of torch's manager of shared memory.
SOCKETS = {
    "multiprocessing": "from multiprocessing.connection import Listener; kept = Listener(family='AF_UNIX'); "
    "path = os.path.dirname(kept.address)",
    "torch": "import socket, tempfile; path = tempfile.mkdtemp(prefix='torch-shm-dir-'); "
    "kept = socket.socket(socket.AF_UNIX); kept.bind(path + '/manager.sock'); kept.listen()",
}


@pytest.mark.parametrize("way", SOCKETS)
def test_a_killed_process_s_socket_folder_is_removed_others_stay(started, tmp_path, way):
    code = f"import os, sys; {SOCKETS[way]}; "
    code += "print(path, file=open(sys.argv[1] + '.part', 'w')); os.rename(sys.argv[1] + '.part', sys.argv[1]); "
    start = started(sys.executable, "-c", code + SLEEPS, str(tmp_path / "made"))
    wait_for(tmp_path / "made")
    made = Path((tmp_path / "made").read_text().strip())
    assert made.is_dir()

    with Listener(family="AF_UNIX") as others:
        assert start.end() == []

        assert not made.exists()
        assert Path(others.address).exists()


@pytest.mark.parametrize("ends_itself", [False, True], ids=["ended", "ended by itself"])
def test_torchrun_s_log_folder_goes_and_the_user_s_own_stays(started, tmp_path, ends_itself):
    own, named = tmp_path / "torchelastic_x1", tmp_path / "logs"
    for folder in (own, named):
        (folder / "none_y" / "attempt_0" / "0").mkdir(parents=True)
    files = [f"TORCHELASTIC_ERROR_FILE={folder}/none_y/attempt_0/0/error.json" for folder in (own, named)]
    wait = shlex.quote(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    start = started("bash", "-c", f"env {files[0]} bash -c {wait} & env {files[1]} bash -c {wait} & wait")
    # A fork has the environment of its parent until it starts its program.
    while not all(any(file in process_tree.read_environment(pid) for pid in start.alive()) for file in files):
        time.sleep(0.01)
    if ends_itself:
        start.alive()
        (tmp_path / "go").touch()
        while start.alive():
            time.sleep(0.01)

    assert start.end() == []

    assert not own.exists()
    assert named.exists()


# Marks of workers


def marked_sleep(mark: str, *before: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([*before, "sleep", "60"], env={**os.environ, WORKER_MARK: mark}, start_new_session=True)
    while process.pid not in process_tree.find_marked(WORKER_MARK, mark):  # a fork has no environment of its own yet
        time.sleep(0.005)
    return process


def test_what_carries_a_mark_is_killed_and_another_mark_is_left_alone():
    own, other = marked_sleep(f"{os.getpid()}.a-1."), marked_sleep(f"{os.getpid()}.a-12.")

    assert process_tree.end_marked(WORKER_MARK, f"{os.getpid()}.a-1.") == 1

    assert own.wait(60) == -signal.SIGKILL
    assert process_tree.find_marked(WORKER_MARK, f"{os.getpid()}.a-") == [other.pid]
    other.kill()
    other.wait()


def test_descendants_are_found_through_a_session_of_their_own():
    shell = marked_sleep(f"{os.getpid()}.b-1.", "setsid", "-w", "bash", "-c", "sleep 60 & wait", "bash")
    while len(found := process_tree.find_descendants(shell.pid)) < 2:
        time.sleep(0.005)

    assert all(shell.pid in process_tree.find_ancestors(pid) for pid in found)
    process_tree.end_marked(WORKER_MARK, f"{os.getpid()}.b-1.")
    shell.wait()


def test_the_program_ends_what_is_marked_once_its_input_ends():
    sleeper = marked_sleep(f"{os.getpid()}.c-1.")
    words = [sys.executable, "-I", "-S", process_tree.__file__, "marked", WORKER_MARK, f"{os.getpid()}.c-"]
    program = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert sleeper.poll() is None

    program.communicate()

    assert sleeper.wait(60) == -signal.SIGKILL
