"""The guard as users meet it: the command, a git revision, the pytest plugin, a live worker that alternates."""

from __future__ import annotations

import os

import psutil
import pytest

from bexplore.engine.runner import EngineRunner
from bexplore.guard.pairs import run_pair
from bexplore.guard.snapshot import time_block
from bexplore.measurement.probe import Compilation, Probe
from tests.builders import DEVICE, JOBS, imported_job
from tests.unit.guard.builders import write_job

pytest_plugins = ["pytester"]


@pytest.mark.on_device
def test_live_workers_are_interleaved_without_compiling_again(run_on):
    runner = run_on(imported_job())
    observation = runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.EXACT, max_passes=3))
    assert observation.is_measured, observation.reason

    answer = runner.time_passes(micro_batch_size=4, num_passes=3)
    rounds = run_pair(lambda *n: time_block(runner, 4, *n), lambda *n: time_block(runner, 4, *n), pass_time_s=0.05)

    assert len(answer["pass_times_s"]) == (3 if DEVICE == "cpu" else 1)  # back to back on an accelerator
    assert answer["cpu_time_s"] > 0
    assert answer["num_compiled"] == 0
    assert all(abs(one.log_wall_ratio) < 10 and abs(one.log_cpu_ratio) < 10 for one in rounds)
    assert runner.loaded_from(JOBS) == [str(JOBS / "programs.py")]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot place threads")
def test_compared_workers_run_each_round_on_the_same_processors(run_on):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")

    def processors(runner: EngineRunner, round_number: int) -> list[frozenset[int]]:
        runner.time_passes(micro_batch_size=4, num_passes=1, round_number=round_number)
        threads = psutil.Process(runner.worker_pid).threads()
        return [frozenset(os.sched_getaffinity(thread.id)) for thread in threads]

    runners = [run_on(imported_job(), environment={"OMP_NUM_THREADS": "1"}) for _ in range(2)]
    for runner in runners:
        runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.EAGER, max_passes=3))
    placed = [[set(processors(runner, round_number)) for runner in runners] for round_number in (0, 1)]
    everywhere = run_on(imported_job(), environment={"OMP_NUM_THREADS": str(len(allowed))})
    everywhere(Probe(number=0, micro_batch_size=4, compilation=Compilation.EAGER, max_passes=3))

    assert [len(one) for round_number in placed for one in round_number] == [1] * 4
    assert placed[0][0] == placed[0][1] != placed[1][0] == placed[1][1]
    assert all(len(processors) == 1 for round_number in placed for one in round_number for processors in one)
    assert set(processors(everywhere, 0)) == {frozenset(allowed)}


@pytest.mark.on_device
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

    (pytester.path / "guard.json").write_text("<<<<<<< HEAD")
    result = pytester.runpytest_subprocess(*plugin)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*guard.json is not JSON*", "restore the file, or write a new one with:*"])
    result.stdout.no_fnmatch_line("*Error*")
