"""Locks between processes: nothing is followed, emptied or shared with another user, also without flock."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from bexplore.engine.process.device_lock import LockHolder, device_lock, try_device_locks
from bexplore.errors import EngineError
from bexplore.host import locks
from bexplore.host.locks import locked, present, runtime_folder
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run.journal import Journal
from bexplore.search.study.storage import open_storage

HOLDER = LockHolder(folder="a")
OTHER_USER = 12345
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def no_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder without a folder of locks; no host's own is used."""
    monkeypatch.delenv("BEXPLORE_LOCK_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(locks.tempfile, "tempdir", str(tmp_path))
    is_own = locks._is_users_own
    monkeypatch.setattr(locks, "_is_users_own", lambda path: tmp_path in path.parents and is_own(path))
    return tmp_path / f"bexplore-{os.getuid()}"


@pytest.fixture
def without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a file system without locks, as Lustre is without the mount option `flock`."""
    folder, flock = tmp_path / "lustre", fcntl.flock
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir(mode=0o700)

    def refusing(handle, operation):
        number = handle if isinstance(handle, int) else handle.fileno()
        if Path(f"/proc/self/fd/{number}").readlink().is_relative_to(folder):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)
    return folder


def hold(path: Path, name: str = "cpu"):
    return device_lock(name, holder=HOLDER, waiting=print)


def of_device(folder: Path, name: str = "cpu") -> Path:
    return folder / f"bexplore-{os.getuid()}-{name}.lock"


@pytest.mark.promise("a symbolic link in place of a device's lock", "refused; its target keeps every byte")
@pytest.mark.parametrize("target_exists", [True, False])
def test_a_symbolic_link_is_refused_as_a_lock_and_left_as_it_was(tmp_path, target_exists):
    target = tmp_path / "thesis.tex"
    if target_exists:
        target.write_text("years of work")
    of_device(tmp_path).symlink_to(target)

    with pytest.raises(EngineError, match="symbolic link"), hold(tmp_path):
        pass
    with pytest.raises(EngineError, match="symbolic link"):
        try_device_locks(["cpu"], holder=HOLDER)

    assert target.exists() == target_exists
    assert not target_exists or target.read_text() == "years of work"


@pytest.mark.promise("a second name (hard link) of a file in place of a device's lock", "refused; the file keeps all")
def test_a_lock_with_a_second_name_is_refused_and_not_emptied(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    of_device(tmp_path).hardlink_to(tmp_path / "thesis.tex")

    with pytest.raises(EngineError, match="second name"), hold(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.promise("a named pipe in place of a lock", "refused at once; nothing waits")
def test_a_pipe_in_place_of_a_lock_is_refused_without_waiting(tmp_path):
    os.mkfifo(of_device(tmp_path))
    os.mkfifo(tmp_path / ".lock")

    with pytest.raises(EngineError, match="no regular file"), hold(tmp_path):
        pass
    with pytest.raises(EngineError, match="no regular file"), locked(tmp_path / ".lock"):
        pass


@pytest.mark.promise("a symbolic link in place of a lock of a run or a study", "refused; nothing is made at its target")
@pytest.mark.parametrize("lock", [locked, present])
def test_a_lock_in_a_shared_folder_follows_no_link(tmp_path, lock):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(EngineError, match="symbolic link"), lock(tmp_path / ".lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@as_root
@pytest.mark.promise("a device's lock that another user has made", "refused, with the variable that names a folder")
def test_a_device_lock_of_another_user_is_refused(tmp_path):
    of_device(tmp_path).write_text("")
    os.chown(of_device(tmp_path), OTHER_USER, OTHER_USER)

    with pytest.raises(EngineError, match="another user"), hold(tmp_path):
        pass


@pytest.mark.promise("a device whose name climbs out of the folder of locks", "the name is one file name")
def test_the_name_of_a_device_stays_in_the_folder_of_locks(tmp_path):
    (tmp_path / "locks").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BEXPLORE_LOCK_DIR", str(tmp_path / "locks"))
        with hold(tmp_path, "../../x:1"):
            pass
    assert [path.parent for path in tmp_path.rglob("*.lock")] == [tmp_path / "locks"]


def test_locks_lie_in_a_folder_of_the_users_own_that_nobody_else_reads(no_runtime_folder):
    with hold(no_runtime_folder):
        assert of_device(no_runtime_folder).exists()
    assert stat.S_IMODE(no_runtime_folder.stat().st_mode) == 0o700


def test_the_sessions_own_runtime_folder_is_taken_where_there_is_one(no_runtime_folder, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert runtime_folder() == tmp_path / "run" / "bexplore"


@pytest.mark.promise(
    "the folder of locks is a link, is open to others, or was made by another user", "refused; nothing is written in it"
)
@pytest.mark.parametrize("how", ["link", "open", pytest.param("other", marks=as_root)])
def test_a_folder_of_locks_that_others_can_reach_is_refused(no_runtime_folder, tmp_path, how):
    folder = tmp_path / "theirs"
    folder.mkdir()
    if how == "link":
        no_runtime_folder.symlink_to(folder)
    else:
        folder = folder.rename(no_runtime_folder)
        os.chown(folder, OTHER_USER if how == "other" else -1, -1)
        folder.chmod(0o777 if how == "open" else 0o755)

    with pytest.raises(EngineError, match="not yours alone"), hold(no_runtime_folder):
        pass
    assert list(folder.iterdir()) == []


@as_root
def test_a_runtime_folder_of_another_user_is_passed_over(no_runtime_folder, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", OTHER_USER, OTHER_USER)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))  # as after `sudo -E`
    assert runtime_folder() == no_runtime_folder


@pytest.mark.promise("results on a file system without flock", "explorers of one host still keep apart, and a warning")
def test_without_flock_a_lock_of_this_host_stands_in(without_flock, capfd):
    with locked(without_flock / ".lock"):
        with pytest.raises(EngineError, match="locked by another process"), locked(without_flock / ".lock", wait_s=0.1):
            pass
        with locked(without_flock / ".other"):
            pass
    with locked(without_flock / ".lock"), present(without_flock / ".e") as first, present(without_flock / ".e") as next:
        assert (first, next) == (True, False)


@pytest.mark.promise("a journal and a study on a file system without flock", "written and read as elsewhere")
def test_without_flock_a_journal_and_a_study_work(without_flock):
    journal = Journal(without_flock / "journal.jsonl")
    probe = Probe(number=0, micro_batch_size=8, compilation=Compilation.EXACT)
    journal.append(Observation(probe=probe, outcome=Outcome.TIMED_OUT, reason="none"))
    assert [one.micro_batch_size for one in journal.read()] == [8]
    assert open_storage(without_flock / "study.log").get_all_studies() == []


@pytest.mark.promise("a folder of device locks without flock", "an error that names the variable for another folder")
def test_a_device_lock_without_flock_says_what_to_set(without_flock, monkeypatch):
    monkeypatch.setenv("BEXPLORE_LOCK_DIR", str(without_flock))
    with pytest.raises(EngineError, match="cannot hold the device lock") as caught, hold(without_flock):
        pass
    assert "BEXPLORE_LOCK_DIR" in caught.value.hint
