"""The guard as users meet it: the command, a git revision, the pytest plugin, a live worker that takes turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import psutil
import pytest

from bexplore.engine import EngineRunner
from bexplore.errors import EngineError, UserInputError
from bexplore.guard.paired_timing import run_pair
from bexplore.guard.pairs import refuse_foreign
from bexplore.guard.reference import Reference, foreign_files, open_reference
from bexplore.guard.snapshot import block_of
from bexplore.measurement.probe import Compilation, Probe
from tests.builders import JOBS, imported_job

pytest_plugins = ["pytester"]

CONFIG = """\
train_input:
  batch_size: 24
  micro_batch_size: 4
explore:
  device: cpu
  memory_budget: 512MiB
  workload:
    model: programs:{model}
    batch: programs:samples
    loss: programs:cross_entropy
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, "perceptron")


def write_job(folder: Path, model: str) -> Path:
    (folder / "programs.py").write_text((JOBS / "programs.py").read_text())
    path = folder / "job.yaml"
    path.write_text(CONFIG.format(model=model))
    return path


def guard(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bexplore", "guard", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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


def test_a_second_configuration_or_folder_is_a_reference_too(job, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_job(other, "breaking")

    with open_reference(str(other / "job.yaml"), job) as by_file, open_reference(str(other), job) as by_folder:
        assert by_file.config_path == by_folder.config_path == other / "job.yaml"


def test_a_reference_that_imports_the_present_code_is_refused():
    reference = Reference(title="main (0123456789)", config_path=Path("job.yaml"), foreign_root=Path("/repository"))
    files = ["/repository/model.py", "/repository/.venv/lib/site-packages/torch/__init__.py"]

    assert foreign_files(files) == ["/repository/model.py"]
    with pytest.raises(EngineError, match="of the present checkout"):
        refuse_foreign(foreign_files(files), reference)
    refuse_foreign([], reference)


def test_live_workers_take_turns_without_compiling_again(run_on):
    runner = run_on(imported_job())
    observation = runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.EXACT, max_passes=3))
    assert observation.is_measured, observation.reason

    answer = runner.time_passes(micro_batch_size=4, num_passes=3)
    rounds = run_pair(lambda *n: block_of(runner, 4, *n), lambda *n: block_of(runner, 4, *n), pass_time_s=0.05)

    assert len(answer["pass_times_s"]) == 3
    assert answer["cpu_time_s"] > 0
    assert answer["num_compiled"] == 0
    assert all(abs(one.log_wall_ratio) < 10 and abs(one.log_cpu_ratio) < 10 for one in rounds)
    assert runner.loaded_from(JOBS) == [str(JOBS / "programs.py")]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot place threads")
def test_workers_that_are_compared_run_a_turn_on_the_same_processors_and_the_next_on_others(run_on):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")

    def processors(runner: EngineRunner, turn: int) -> list[frozenset[int]]:
        runner.time_passes(micro_batch_size=4, num_passes=1, turn=turn)
        threads = psutil.Process(runner.worker_pid).threads()
        return [frozenset(os.sched_getaffinity(thread.id)) for thread in threads]

    runners = [run_on(imported_job(), environment={"OMP_NUM_THREADS": "1"}) for _ in range(2)]
    for runner in runners:
        runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.EAGER, max_passes=3))
    placed = [[set(processors(runner, turn)) for runner in runners] for turn in (0, 1)]
    everywhere = run_on(imported_job(), environment={"OMP_NUM_THREADS": str(len(allowed))})
    everywhere(Probe(number=0, micro_batch_size=4, compilation=Compilation.EAGER, max_passes=3))

    assert [len(one) for turn in placed for one in turn] == [1] * 4
    assert placed[0][0] == placed[0][1] != placed[1][0] == placed[1][1]
    assert all(len(processors) == 1 for turn in placed for one in turn for processors in one)
    assert set(processors(everywhere, 0)) == {frozenset(allowed)}


def test_a_worker_that_was_started_ahead_runs_the_first_probe(run_on):
    runner = run_on(imported_job())
    runner.start()
    runner.await_started()
    started = runner.worker_pid

    observation = runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.EAGER, max_passes=3))

    assert observation.is_measured, observation.reason
    assert (observation.worker, runner.worker_pid) == (0, started)


def test_the_pytest_plugin_asserts_on_exact_facts(pytester, monkeypatch):
    # By name, whether or not this environment has the entry point of the installed package.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    write_job(pytester.path, "perceptron")
    pytester.makepyfile(
        """
        def test_it_compiles_as_it_did(bexplore_guard):
            bexplore_guard("job.yaml", baseline="guard.json", portable=True)
        """
    )
    plugin = ("-p", "bexplore.pytest_plugin")

    pytester.runpytest_subprocess(*plugin, "--bexplore-update").assert_outcomes(passed=1)
    write_job(pytester.path, "breaking")
    result = pytester.runpytest_subprocess(*plugin)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*graph breaks: 0 -> 1*", "*renew it with: pytest --bexplore-update*"])
