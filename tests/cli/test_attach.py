"""`bexplore attach` in a real environment: it is installed, works under `python -I`, is removed, and leaves nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bexplore.cli import cli
from bexplore.command import attach as pth
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.errors import UserInputError
from bexplore.host.process_tree import PROBE_MARK
from tests.engine.command_starts import TRAIN, marked_processes, probe_of

FINDERS = "import sys; print([type(finder).__name__ for finder in sys.meta_path].count('_TorchFinder'))"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of a new environment without packages."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    return environment / "bin" / "python"


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """The folder of a start with the observer in it."""
    folder = tmp_path / "start"
    (folder / "observer").mkdir(parents=True)
    for source in Path(pth.__file__).with_name("observer").glob("*.py"):
        (folder / "observer" / source.name).write_bytes(source.read_bytes())
    return folder


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["attach", *words])


def contents(python: Path) -> dict[str, str]:
    """Return the files of an environment, each with its digest."""
    files = (path for path in python.parents[1].rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def finders(python: Path, *options: str, **variables: str) -> int:
    """Return how many finders of the observer a Python has when it starts."""
    done = subprocess.run(
        [python, *options, "-c", FINDERS], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return int(done.stdout)


def test_the_observer_is_loaded_under_isolation_once_it_is_installed_and_not_outside_of_a_start(python, start):
    before, in_start = contents(python), {PROBE_MARK: str(start)}
    assert finders(python, "-I", **in_start) == 0

    installed = typed("--install", "--python", str(python))

    (path,) = set(contents(python)) - set(before)
    assert installed.output == f"wrote {path}; remove it: bexplore attach --remove --python {python}\n"
    assert {name: digest for name, digest in contents(python).items() if name != path} == before
    assert typed("--python", str(python)).output.startswith(f"installed for {python}")
    for options in (("-I",), ("-E",), ()):
        assert finders(python, *options, **in_start) == 1
        assert finders(python, *options) == 0
        assert finders(python, *options, **{PROBE_MARK: str(start / "gone")}) == 0
    assert finders(python, PYTHONPATH=str(start / "observer"), **in_start) == 1  # not twice

    removed = typed("--remove", "--python", str(python))

    assert removed.output == f"removed {path}\n"
    assert contents(python) == before
    assert finders(python, "-I", **in_start) == 0
    assert typed("--python", str(python)).output.startswith(f"not installed for {python}")
    assert typed("--remove", "--python", str(python)).output == "nothing to remove\n"


def test_it_may_be_installed_twice(python):
    first = pth.install(str(python))

    assert pth.install(str(python)) == first
    assert first.read_text() == pth.LINE


def test_a_training_under_isolation_is_measured_once_it_is_installed(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bexplore.command.watch.LEAST_TIMED_S", 0.2)
    pth.install(str(python))
    packages = Path(pth.site_packages(str(python)), "torch_of_the_tests.pth")
    packages.write_text(f"{pth.site_packages(sys.executable)}\n")
    argv = (str(python), "-I", str(TRAIN), "--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}")
    runner = CommandRunner(Command(argv=argv), CommandSettings(run_dir=tmp_path / "run"))

    observation = runner(probe_of(4))

    assert observation.is_measured, observation.reason
    assert set(observation.details["verdicts"].values()) == {"verified"}
    assert marked_processes(tmp_path / "run") == []


@pytest.mark.promise("`attach` to a Python whose folder is read-only", "an error; nothing is written")
@pytest.mark.parametrize("action", ["install", "remove"])
def test_a_folder_that_may_not_be_changed_is_an_error_with_both_ways_out(python, monkeypatch, action):
    # The tests may run as root, whom no mode of a folder keeps out.
    def refuse(path: Path, *_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    before = contents(python)
    with monkeypatch.context() as refusing, pytest.raises(UserInputError) as raised:
        for name in ("open", "unlink"):
            refusing.setattr(Path, name, refuse)
        getattr(pth, action)(str(python))

    folder = pth.site_packages(str(python))
    verb = "write" if action == "install" else "remove"
    assert raised.value.message == f"cannot {verb} {folder / pth.NAME}: Permission denied"
    assert raised.value.hint == (
        f"type it as the owner of {folder}, or with the Python of an environment of yours: "
        f"bexplore attach --{action} --python PYTHON"
    )
    assert contents(python) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="no mode of a folder keeps root out")
@pytest.mark.parametrize("action", ["install", "remove"])
def test_the_mode_of_the_folder_keeps_it_as_it_is(python, action):
    path = pth.install(str(python))
    if action == "install":
        path.unlink()
    path.parent.chmod(0o555)
    try:
        with pytest.raises(UserInputError, match="Permission denied"):
            getattr(pth, action)(str(python))
        assert path.exists() == (action == "remove")
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("exit 0", "is no Python: it does not name its site-packages"),
        ("echo site-packages", "is no Python: it does not name its site-packages"),
        ("echo broken >&2; exit 3", "cannot be run: broken"),
        ("exit 3", "cannot be run: it ended with status 3"),
    ],
)
def test_what_is_no_python_is_refused_and_nothing_is_written(tmp_path, monkeypatch, program, says):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "program"
    other.write_text(f"#!/bin/sh\n{program}\n")
    other.chmod(0o755)

    for action in (pth.install, pth.remove):
        with pytest.raises(UserInputError, match=f"program {says}") as raised:
            action(str(other))
        assert "`python=/opt/training/bin/python`" in raised.value.hint
    assert list(tmp_path.iterdir()) == [other]


def test_a_python_that_is_not_there_is_refused_with_its_name(tmp_path):
    with pytest.raises(UserInputError, match=r"/nowhere/python cannot be run: .*No such file or directory"):
        pth.install("/nowhere/python")


@pytest.mark.promise("`attach` to a Python that ignores the file", "refused; the file is taken away again")
def test_a_python_that_does_not_read_the_file_is_refused_and_the_file_is_taken_away(python, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(pth, "site_packages", lambda python: elsewhere)

    with pytest.raises(UserInputError, match=r"does not read .*/elsewhere/bexplore_attach\.pth when it starts"):
        pth.install(str(python))

    assert list(elsewhere.iterdir()) == []


def test_a_module_in_the_working_folder_is_not_taken_for_one_of_python(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sysconfig.py").write_text("raise SystemExit('not this one')")

    assert pth.install(str(python)).parent.name == "site-packages"
