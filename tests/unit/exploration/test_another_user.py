"""Another user in the same folders: clear errors, runs of one's own, and nothing of the other's is changed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bexplore.errors import BexploreError, EngineError, UserInputError
from bexplore.host.locks import locked
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run.run_directory import create_run, exclusively, find_runs, open_run

OTHER_USER = 12345
NOW = datetime(2026, 1, 1, tzinfo=UTC)
META = {"job": {}, "environment": {}, "search_specification": {}}
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user reaches; pytest's own is closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def another_user() -> Iterator[None]:
    os.setegid(OTHER_USER)
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def observation() -> Observation:
    probe = Probe(number=0, micro_batch_size=8, compilation=Compilation.EXACT)
    return Observation(probe=probe, outcome=Outcome.TIMED_OUT, reason="none")


@pytest.mark.promise("another user reads the run of a training command", "its folder is closed to others (0700)")
def test_the_run_of_a_command_is_closed_to_others(shared):
    run = create_run(shared, meta=META, now=NOW, is_private=True)

    assert stat.S_IMODE(run.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.log_path.stat().st_mode) == 0o600
    with another_user():
        assert find_runs(shared) == []
        with pytest.raises(UserInputError, match="another user, who has closed it"):
            open_run(run.directory)


@pytest.mark.promise("another user explores in a folder that only its owner may write", "one error; what to type")
def test_a_folder_of_another_user_is_refused_with_what_to_type(shared):
    run = create_run(shared, meta=META, now=NOW)
    run.journal.append(observation())
    before = run.journal.path.read_bytes()

    with another_user():
        assert [one.directory for one in find_runs(shared)] == [run.directory]
        assert not find_runs(shared)[0].can_be_resumed
        with pytest.raises(EngineError, match="cannot write the run directory") as refused:
            create_run(shared, meta=META, now=NOW + timedelta(seconds=1))
        with pytest.raises(BexploreError, match="cannot append"):
            run.journal.append(observation())
    assert "`model_dir`" in refused.value.hint
    assert run.journal.path.read_bytes() == before


@pytest.mark.promise("two users explore in a folder that both may write", "each has runs of its own; locks are shared")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_two_users_of_one_folder_have_runs_of_their_own_and_one_lock(shared, mode):
    shared.chmod(mode)
    with exclusively(shared):
        run = create_run(shared, meta=META, now=NOW)

    with another_user():
        with exclusively(shared):
            own = create_run(shared, meta=META, now=NOW + timedelta(seconds=1))
        own.journal.append(observation())
        assert [one.can_be_resumed for one in find_runs(shared)] == [True, False]
    assert [one.directory for one in find_runs(shared)] == [own.directory, run.directory]
    assert not list(shared.glob(".latest.*"))


@pytest.mark.promise("another user's lock file of a shared folder is held", "waited for, as one's own")
def test_a_lock_that_another_user_holds_is_waited_for(shared):
    shared.chmod(0o777)
    held, refused = locked(shared / ".lock"), pytest.raises(EngineError, match="locked by another process")
    with held, another_user(), refused, locked(shared / ".lock", wait_s=0.1):
        pass
