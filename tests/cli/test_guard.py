"""The command `guard`."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bexplore.errors import UserInputError
from bexplore.guard.reference import open_reference
from tests.unit.guard.builders import write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, "perceptron")


def guard(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bexplore", "guard", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.on_device
def test_the_command_writes_a_baseline_and_later_names_what_became_worse(job, tmp_path):
    written = guard("job.yaml", "--baseline", "guard.json", "--facts", "exact", "--update", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert str(tmp_path) not in (tmp_path / "guard.json").read_text()

    write_job(tmp_path, "breaking")
    options = ("--facts", "exact", "--junit", "out/guard.xml", "--github")
    found = guard("job.yaml", "--baseline", "guard.json", *options, cwd=tmp_path)

    assert found.returncode == 1, found.stdout + found.stderr
    assert "REGRESSION" in found.stdout
    assert "new: Call to `torch._dynamo.graph_break()` at programs.py:" in found.stdout
    assert "model.model programs:perceptron -> programs:breaking" in found.stdout
    assert "::error file=programs.py,line=" in found.stderr
    assert ElementTree.parse(tmp_path / "out" / "guard.xml").getroot().get("failures") != "0"


def test_an_error_is_shown_where_regressions_are(job, tmp_path):
    job.write_text(job.read_text() + "  max_probess: 3\n")
    line = len(job.read_text().splitlines())
    options = ("--baseline", "guard.json", "--junit", "guard.xml", "--github")
    found = guard("job.yaml", *options, cwd=tmp_path)

    assert found.returncode == 2
    assert f"::error file=job.yaml,line={line},title=bexplore guard::" in found.stderr
    assert ElementTree.parse(tmp_path / "guard.xml").getroot().get("errors") == "1"


@pytest.mark.parametrize("options", [("--against", ""), ("--against=",)])
def test_an_option_that_an_unset_variable_leaves_empty_is_refused(job, tmp_path, options):
    found = guard("job.yaml", *options, cwd=tmp_path)

    assert found.returncode == 2
    assert "error: --against is empty" in found.stderr


def test_a_revision_is_compared_from_a_worktree_that_is_gone_afterwards(job, tmp_path):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "a job")
    programs = tmp_path / "programs.py"
    programs.write_text(programs.read_text().replace("WIDTH = 32", "WIDTH = 64"))

    found = guard("job.yaml", "--against", "HEAD", "--facts", "portable", "--json", cwd=tmp_path)

    assert found.returncode == 1, found.stdout + found.stderr
    event = json.loads(found.stdout)
    (parameters,) = [one for one in event["findings"] if one["name"] == "num_parameters"]
    assert (parameters["before"], parameters["after"]) == ("1,188", "4,420")
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "nothing to compare with"),
        (("--baseline", "absent.json"), "cannot read the baseline"),
        (("--update",), "no baseline to write"),
        (("--update", "--against", "main"), "exclude each other"),
    ],
)
def test_a_mistake_in_the_command_is_told_before_a_worker_starts(job, tmp_path, arguments, told):
    done = guard("job.yaml", *arguments, cwd=tmp_path)

    assert done.returncode == 2
    assert told in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize("against", ["no-such-revision", "--upload-pack=x"])
def test_what_is_neither_path_nor_revision_is_the_users_input(job, against):
    git(job.parent, "init", "--quiet")
    with pytest.raises(UserInputError, match="neither a path nor a git revision"), open_reference(against, job):
        pass
