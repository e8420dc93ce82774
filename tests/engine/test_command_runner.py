"""Training commands that are started, observed and ended: what is measured, what is refused, and what is left."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.api import explore
from bexplore.command import judgement, watch
from bexplore.command.judgement import MAX_TIMED_STEPS
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.command.start import ProbeFolder
from bexplore.command.timing import MIN_TIMED_STEPS, WARMUP_STEPS
from bexplore.command.watch import PARK_S
from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.errors import BexploreError, EngineError, UserInputError, UserProgramError
from bexplore.exploration.base import ExploreOptions
from bexplore.measurement.probe import Compilation, Outcome
from bexplore.search.result import ProbeFinished
from tests.builders import free_port
from tests.engine.command_starts import (
    TRAIN,
    Surroundings,
    marked_processes,
    probe_of,
    search_probe_of,
    shared_memory,
    torchrun,
    training,
)

LIMIT_BYTES = 2 * 2**30

Run = Callable[..., CommandRunner]
SPAWN = TRAIN.parent / "spawned_training.py"
READS_AHEAD = TRAIN.parent / "reading_ahead.py"
MANY_LENGTHS = TRAIN.parent / "many_lengths.py"
TOKEN_S = 0.0004  # that a token costs there
SAMPLE_S = 0.004  # that a sample costs there


class StopsAfter:
    """Asks for an end so many seconds after it was asked first.

    Args:
        seconds: As above.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began_s = seconds, 0.0

    def __call__(self) -> bool:
        self._began_s = self._began_s or time.monotonic()
        return time.monotonic() - self._began_s > self._seconds


def spawning(export: Path) -> Command:
    """Return a command that spawns two ranks and writes into a folder after them."""
    words = ("--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}", "--export", str(export))
    argv = (sys.executable, str(SPAWN), *words, "--port", str(free_port()))
    return Command(argv=argv, env={"OMP_NUM_THREADS": "1"})


@pytest.fixture
def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Makes runners of commands; nothing of their starts may be left when the test ends."""
    run_dir = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    for name in ("LEAST_TIMED_S", "MOST_TIMED_S"):
        monkeypatch.setattr(watch, name, 0.2)
    monkeypatch.setattr(watch, "AFTER_ERROR_S", 1.0)

    def make(command: Command, **fields) -> CommandRunner:
        return CommandRunner(command, CommandSettings(run_dir=run_dir, **fields))

    # A short path: the sockets of a loader's workers lie there, and the path of one has at most 107 characters.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        folders = (tmp_path, TRAIN.parent, Path(temporary))
        before = Surroundings.of(*folders, but=run_dir)
        yield make
        assert marked_processes(run_dir) == shared_memory(run_dir) == []
        assert Surroundings.of(*folders, but=run_dir).changed_since(before) == []
    assert not list(run_dir.rglob("checkpoint*"))


def refused(runner: CommandRunner, kind: type[BexploreError] = UserProgramError) -> BexploreError:
    """Return the error with which a runner refuses a command."""
    with pytest.raises(kind) as raised:
        runner(probe_of(4))
    return raised.value


# What is measured


@pytest.mark.on_device
def test_a_plain_loop_is_measured_and_its_batch_figures_verified(run_of):
    runner = run_of(training("--accumulation", "{accumulation}", num_replicas=1))

    observation = runner(probe_of(8))

    assert observation.outcome is Outcome.MEASURED
    assert set(observation.details["verdicts"].values()) == {"verified"}
    assert observation.details["passes_per_step"] == 2
    assert len(observation.pass_times_s) >= MIN_TIMED_STEPS
    assert observation.peak_memory_bytes > 0
    assert runner.num_replicas == 1


@pytest.mark.on_device
def test_two_ranks_are_two_replicas_also_after_one_out_of_memory(run_of):
    runner = run_of(training("--fault", "backward:injected", "--rank", "1", "--step", "3", ranks=2))

    failed = runner(probe_of(4))

    assert failed.outcome is Outcome.OUT_OF_MEMORY
    assert "on rank 1: OutOfMemoryError: CUDA out of memory" in failed.reason

    runner.command = training(ranks=2, num_replicas=2)
    observation = runner(probe_of(4, number=1))

    assert observation.is_measured
    assert observation.details["num_ranks"] == observation.details["num_replicas"] == 2


@pytest.mark.parametrize("tells", ["mask", "lengths", "file"])
def test_sizes_are_compared_at_the_same_tokens_of_a_sample(run_of, tells):
    """Size 1 is timed with short samples alone, size 8 with long ones."""
    given = {"sample_lengths": (10,) * 64 + (50,) * 4032} if tells == "file" else {}
    runner = run_of(training("--tells", tells, script=MANY_LENGTHS, num_replicas=1, **given))

    found = [runner(probe_of(size, number=number)) for number, size in enumerate((1, 8))]

    tokens = {one.details["tokens_per_sample"] for one in found}
    assert len(tokens) == 1
    for one in found:
        seconds = statistics.median(one.pass_times_s) / (one.micro_batch_size * tokens.copy().pop())
        assert seconds * 1.05 > TOKEN_S and seconds < 2 * TOKEN_S
    assert not any("differ in length" in text for one in found for text in one.warnings)


def test_batches_of_many_lengths_that_tell_no_tokens_are_warned_of(run_of):
    runner = run_of(training("--tells", "nothing", script=MANY_LENGTHS, num_replicas=1))

    observation = runner(probe_of(8))

    assert observation.details["tokens_per_sample"] is None
    assert "its batches differ in length (10 to 50 elements a sample)" in " ".join(observation.warnings)


# Out of memory


@pytest.mark.promise("a training command that takes more memory than its limit", "refused, and out of memory")
@pytest.mark.parametrize("place", ["forward", "backward", "update"])
def test_memory_that_the_limit_refuses_anywhere_is_out_of_memory(run_of, place):
    runner = run_of(training("--fault", f"{place}:refused"), memory_limit_bytes=LIMIT_BYTES)

    observation = runner(probe_of(4))

    assert observation.outcome is Outcome.OUT_OF_MEMORY
    assert "DefaultCPUAllocator: can't allocate memory" in observation.reason
    assert f'strike("{place}")' in observation.traceback_text


@pytest.mark.on_device
@pytest.mark.parametrize("place", ["forward", "backward", "update"])
def test_a_refusal_of_memory_that_the_program_swallows_is_out_of_memory(run_of, place):
    runner = run_of(training("--fault", f"{place}:injected", "--step", "2", "--swallow"))

    assert runner(probe_of(4)).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.on_device
def test_a_program_that_shrinks_its_size_is_out_of_memory_at_the_first(run_of):
    runner = run_of(training("--fault", "forward:injected", "--shrink"))

    observation = runner(probe_of(8))

    assert observation.outcome is Outcome.OUT_OF_MEMORY
    assert observation.pass_times_s == ()


def test_a_program_that_drops_batches_silently_is_out_of_memory(run_of):
    runner = run_of(training("--drop-above", "4"))
    assert runner(probe_of(4)).is_measured

    observation = runner(probe_of(8, number=1))

    assert observation.outcome is Outcome.OUT_OF_MEMORY
    assert "arrived for each that was trained" in observation.reason


# Ranks that are lost, wait or differ


@pytest.mark.on_device
@pytest.mark.promise("SIGKILL of one rank of a command", "that rank is named as the cause")
def test_a_killed_rank_is_the_cause_and_not_the_connections_others_lose(run_of):
    observation = run_of(training("--fault", "update:killed", "--rank", "1", "--step", "2", ranks=2))(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert observation.reason.startswith("rank 1 was killed")


@pytest.mark.promise("a rank of a command hangs", "timed out, with the last step; nothing is left")
def test_a_rank_that_hangs_ends_the_probe_and_the_last_step_is_named(run_of, monkeypatch):
    monkeypatch.setattr(watch, "HANG_S", 2.0)

    observation = run_of(training("--fault", "forward:hang", "--rank", "1", "--step", "4", ranks=2))(probe_of(4))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "no rank completed a step after step" in observation.reason


def test_an_evaluation_that_takes_longer_than_a_hang_may_is_none(run_of, monkeypatch):
    monkeypatch.setattr(watch, "HANG_S", 3.0)

    observation = run_of(training("--evaluate", "8"))(probe_of(4))

    assert observation.is_measured
    assert max(observation.pass_times_s) < 1.0


@pytest.mark.parametrize(("how", "ranks"), [("--sample", 1), ("--sample", 2), ("--save", 1), ("--save", 2)])
def test_an_evaluation_that_reads_nothing_is_no_hang_and_not_of_the_steps(run_of, monkeypatch, how, ranks):
    monkeypatch.setattr(watch, "HANG_S", 8.0)

    observation = run_of(training(how, "16", ranks=ranks))(probe_of(4))

    assert observation.is_measured, observation.reason
    assert max(observation.pass_times_s) < 1.0


@pytest.mark.parametrize("how", ["hang", "doze"])
def test_a_single_rank_that_sleeps_forever_waits_for_no_other(run_of, monkeypatch, how):
    monkeypatch.setattr(watch, "HANG_S", 3.0)

    observation = run_of(training("--fault", f"forward:{how}", "--step", "4"))(probe_of(4))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "and the process has not worked since" in observation.reason


@pytest.mark.on_device
def test_ranks_that_wait_in_different_collectives_are_ended(run_of, monkeypatch):
    monkeypatch.setattr(watch, "HANG_S", 8.0)

    observation = run_of(training("--fault", "forward:collective", "--rank", "1", "--step", "4", ranks=2))(probe_of(4))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "a rank waits for one that does not come" in observation.reason


def test_a_program_that_only_reads_by_torch_is_refused_soon(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "UNUSED_S", 3.0)
    script = tmp_path / "run" / "elsewhere.py"
    script.parent.mkdir()
    script.write_text(
        "import sys, time, torch\n"
        "while True:\n"
        "    for batch in torch.utils.data.DataLoader(torch.randn(100, 4), int(sys.argv[1])):\n"
        "        time.sleep(0.005)\n"
    )
    command = Command(argv=(sys.executable, str(script), "{micro_batch_size}"))

    error = refused(run_of(command, sizes_per_start=8, candidates=(4, 32)))

    assert "batches and trains without torch.optim.Optimizer.step" in error.message


def test_a_start_without_a_step_names_what_it_may_be_beside_slow(run_of):
    observation = run_of(training("--fault", "forward:hang", "--step", "0"))(probe_of(4, time_limit_s=8.0))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "and no step was seen; where it trains in processes of a cluster (Ray's)" in observation.reason


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_fails_after_enough_steps_is_no_measurement(run_of, monkeypatch, ranks):
    monkeypatch.setattr(watch, "LEAST_TIMED_S", 1000.0)  # the explorer itself ends nothing
    monkeypatch.setattr(watch, "MOST_TIMED_S", 1000.0)
    fault = ("--fault", "forward:exit", "--rank", str(ranks - 1), "--step", "20")

    observation = run_of(training(*fault, ranks=ranks))(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert "with status" in observation.reason
    assert observation.pass_times_s == ()


def test_fewer_ranks_than_replicas_are_refused_with_both_numbers(run_of):
    error = refused(run_of(training(num_replicas=2)))

    assert "the command started 1 rank where 2 replicas were asked for" in error.message


# Code of the user after the observed steps


def test_a_script_that_spawns_its_ranks_runs_nothing_after_them(run_of, tmp_path):
    runner = run_of(spawning(tmp_path))

    observation = runner(probe_of(4))

    assert observation.is_measured
    assert observation.details["num_ranks"] == 2
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.promise("a shell script goes on after its launcher", "it is ended before its next line")
@pytest.mark.parametrize("fault", [(), ("--fault", "update:injected", "--rank", "1", "--step", "3")])
def test_a_shell_script_runs_nothing_after_its_launcher(run_of, tmp_path, fault):
    command = training(*fault, ranks=2)
    line = f"{shlex.join(command.argv)}; touch {tmp_path}/after; sleep 60"
    runner = run_of(dataclasses.replace(command, argv=("bash", "-c", line)))

    observation = runner(probe_of(4))

    assert observation.is_measured == (not fault)
    assert not (tmp_path / "after").exists()


@pytest.mark.promise("a training saves its state when it is ended", "it is ended before it can")
def test_a_rank_that_is_ended_because_another_failed_saves_nothing(run_of, tmp_path):
    script = tmp_path / "run" / "saving.py"
    script.parent.mkdir()
    save = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: Path('{tmp_path}/saved').write_text('state'))\n"
    script.write_text(TRAIN.read_text().replace("OPTIONS = read_options()", f"{save}OPTIONS = read_options()"))
    runner = run_of(training("--fault", "forward:hang", script=script), should_stop=StopsAfter(6.0))

    with pytest.raises(KeyboardInterrupt):
        runner(probe_of(4))

    assert not (tmp_path / "saved").exists()


# Commands that do something else


@pytest.mark.promise("a command that resumes from a training's checkpoint", "refused at its first start")
def test_a_training_that_loads_the_state_of_an_optimizer_is_refused(run_of):
    error = refused(run_of(training("--resume")))

    assert "loaded an optimizer's state before its first step" in error.message


def test_an_unobserved_training_behind_an_observed_launcher_is_refused(run_of, monkeypatch):
    monkeypatch.setattr(watch, "UNOBSERVED_S", 2.0)
    command = training()
    launcher = "import subprocess, sys, torch; subprocess.run([sys.executable, '-I', *sys.argv[1:]])"
    runner = run_of(dataclasses.replace(command, argv=(sys.executable, "-c", launcher, *command.argv[1:])))

    assert "the observer was not loaded into it" in refused(runner).message


def test_a_compiler_with_torch_and_without_observer_is_no_training(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "UNOBSERVED_S", 1.0)
    worker = tmp_path / "run" / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    worker.parent.mkdir(parents=True)
    worker.write_text("import sys, torch; open(sys.argv[1], 'w').close(); sys.stdin.read()")
    loaded = tmp_path / "run" / "loaded"
    compiling = (
        f"import os, runpy, subprocess, sys, time; words = [sys.executable, '-I', {str(worker)!r}, {str(loaded)!r}]; "
        "kept = subprocess.Popen(words, stdin=subprocess.PIPE); import torch\n"
        f"while not os.path.exists({str(loaded)!r}): time.sleep(0.01)\n"
        "time.sleep(3); del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = training()
    runner = run_of(dataclasses.replace(command, argv=(sys.executable, "-c", compiling, *command.argv[1:])))

    assert runner(probe_of(4)).outcome is Outcome.MEASURED


def test_trackers_are_off_and_the_users_own_sitecustomize_runs(run_of, tmp_path):
    own = tmp_path / "run" / "own"
    own.mkdir(parents=True)
    kept = f"import os; open('{tmp_path}/run/environment', 'w').write(os.environ['WANDB_MODE'])"
    (own / "sitecustomize.py").write_text(kept)
    command = training()
    command.env["PYTHONPATH"] = str(own)

    assert run_of(command)(probe_of(4)).is_measured
    assert (tmp_path / "run" / "environment").read_text() == "disabled"


@pytest.mark.on_device
def test_memory_is_told_by_rank(run_of):
    observation = run_of(training(ranks=2))(probe_of(4))

    by_rank = observation.details["peak_memory_bytes_by_rank"]
    assert len(by_rank) == 2 and all(by_rank)
    assert observation.peak_memory_bytes == max(by_rank)


@pytest.mark.on_device
def test_a_bug_of_the_script_has_its_traceback_and_is_never_too_big(run_of):
    observation = run_of(training("--fault", "forward:bug"))(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert "ValueError: the shapes of the batch and of the labels differ" in observation.reason
    assert 'strike("forward")' in observation.traceback_text


@pytest.mark.parametrize("steps", [2, 6])
def test_a_training_too_short_is_refused_with_the_steps_that_it_needs(run_of, steps):
    error = refused(run_of(training("--steps", str(steps))))

    assert f"the training ended after {steps} steps; 7 are needed" in error.message


def test_a_size_with_too_few_steps_tells_the_largest_that_has_enough(run_of):
    script = ("--samples", "56", "--epochs", "1")
    runner = run_of(training(*script))

    assert runner(probe_of(4)).is_measured
    too_large = runner(probe_of(16, number=1))
    assert too_large.outcome is Outcome.CRASHED
    assert "the training ended after 4 steps; 7 are needed: sizes above 9 are left out" in too_large.reason
    assert runner(probe_of(too_large.max_samples, number=2)).is_measured


def test_a_training_that_ends_well_after_enough_steps_is_measured(run_of):
    observation = run_of(training("--steps", "7"))(probe_of(4))

    assert observation.is_measured
    assert len(observation.pass_times_s) == MIN_TIMED_STEPS


def test_a_command_that_ignores_the_size_is_refused_at_the_second_size(run_of, tmp_path):
    script = tmp_path / "run" / "fixed.py"
    script.parent.mkdir()
    script.write_text(TRAIN.read_text().replace("train(model, OPTIONS.micro_batch_size // (", "train(model, 4 // ("))
    runner = run_of(training(script=script))

    assert runner(probe_of(4)).is_measured
    with pytest.raises(UserProgramError, match="micro-batches of 4 samples arrived where 8 were asked for"):
        runner(probe_of(8, number=1))


def test_a_size_that_the_data_cannot_fill_tells_the_data_of_each_rank(run_of):
    runner = run_of(training("--samples", "40", ranks=2), candidates=(4, 8, 64))

    fits, too_large = runner(probe_of(4)), runner(probe_of(64, number=1))

    assert fits.is_measured
    assert fits.max_samples == 20
    assert "an epoch has 20 samples on each rank: larger sizes are left out" in fits.warnings
    assert too_large.outcome is Outcome.CRASHED
    assert "micro-batches of 20 samples arrived where 64 were asked for: the data has no more" in too_large.reason


@pytest.mark.parametrize("workers", [0, 2])
def test_a_size_at_which_epochs_are_empty_tells_how_many_samples_exist(run_of, workers):
    runner = run_of(training("--samples", "20", "--drop-last", "--workers", str(workers)), candidates=(4, 64))

    observation = runner(probe_of(64))

    assert observation.outcome is Outcome.CRASHED
    assert "epochs without a batch of 64: the data of a rank has 20 samples" in observation.reason
    assert observation.max_samples == 20
    assert observation.elapsed_s < 100.0  # of the 120 that it has


def test_data_without_a_batch_of_any_size_is_refused_with_its_samples(run_of):
    runner = run_of(training("--samples", "20", "--drop-last"), candidates=(64, 128))

    with pytest.raises(UserProgramError, match="epochs without a batch of 64: the data of a rank has 20 samples"):
        runner(probe_of(64))


def test_a_start_at_a_size_above_the_data_falls_to_a_smaller_size(run_of, tmp_path):
    runner = run_of(training("--samples", "20", "--drop-last"), sizes_per_start=8, candidates=(2, 4, 16, 64))

    observations = [runner(search_probe_of(size, number=number)) for number, size in enumerate((4, 16, 2))]
    runner.close()

    assert all(one.is_measured for one in observations)
    assert {one.probe.compilation for one in observations} == {Compilation.SHARED}
    assert starts(tmp_path / "run") == ["000_size_4", "000_size_4_2"]


def test_a_start_at_an_unasked_size_is_given_up_where_no_pass_comes(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(judgement, "FIRST_PASS_S", 12.0)
    script = tmp_path / "run" / "spins.py"
    script.parent.mkdir()
    spins = "import os, sys, time\nif sys.argv[2] == '64':\n    time.sleep(1000)\n"
    script.write_text(TRAIN.read_text().replace("import argparse\n", f"{spins}import argparse\n", 1))
    runner = run_of(training(script=script), sizes_per_start=8, candidates=(4, 64))

    observation = runner(search_probe_of(4))

    assert observation.is_measured and observation.probe.compilation is Compilation.EXACT
    assert starts(tmp_path / "run") == ["000_size_4", "000_size_4_2"]


def test_an_epoch_without_batch_fails_its_size_once_another_was_measured(run_of):
    measured = run_of(training("--samples", "6", "--drop-last"))(probe_of(4))
    runner = run_of(training("--epochs", "0"))
    runner.learn(measured)

    observation = runner(probe_of(8, number=1))

    assert observation.outcome is Outcome.CRASHED
    assert "ended without an optimizer step" in observation.reason


def test_a_training_that_never_updates_is_one_without_observed_step(run_of):
    assert "no step observed" in refused(run_of(training("--frozen"))).message


@pytest.mark.promise("a disk is full in a step of a command", "an error of the host with exit code 4")
def test_a_disk_that_is_full_in_a_step_is_an_error_of_the_host(run_of):
    error = refused(run_of(training("--fault", "forward:full", "--step", "2")), EngineError)

    assert error.message.startswith("a disk is full: OSError: [Errno 28]")


@pytest.mark.promise("the training of a command is stopped for a while (SIGSTOP, SIGCONT)", "that start is not used")
def test_a_start_whose_training_was_stopped_for_a_while_is_no_measurement(run_of, tmp_path):
    stopped = []

    def stop_once() -> bool:
        """Stop the first training that steps, and let it go on two seconds later."""
        pids = [int(path.name.rpartition("-")[2]) for path in (tmp_path / "run").rglob("steps-*")]
        if pids and not stopped:
            stopped.append(time.time())
            os.kill(pids[0], signal.SIGSTOP)
            threading.Timer(2.0, os.kill, (pids[0], signal.SIGCONT)).start()
        return False

    observation = run_of(training(), should_stop=stop_once)(probe_of(4))

    assert observation.is_measured, observation.reason
    assert any("was suspended for" in warning for warning in observation.warnings)
    assert starts(tmp_path / "run") == ["000_size_4", "000_size_4_2"]
    assert observation.started_at_s > stopped[0]  # the hours of a suspension are no cost of a probe


def test_a_command_that_is_not_found_is_refused_with_its_name(run_of):
    error = refused(run_of(Command(argv=("no-such-trainer", "{micro_batch_size}"))), UserInputError)

    assert "no-such-trainer" in error.message


def test_an_end_before_torch_is_refused_with_its_status_and_words(run_of):
    script = "import sys; print('no data here'); sys.exit(3)"

    error = refused(run_of(Command(argv=(sys.executable, "-c", script))))

    assert error.message == "the command ended with status 3 before any process imported torch: no data here"
    assert "no data here" in error.traceback_text


@pytest.mark.parametrize("launch", [lambda: (sys.executable,), lambda: torchrun(2)], ids=["python", "torchrun"])
def test_a_script_that_is_not_there_is_refused_at_the_first_start_with_its_name(run_of, launch):
    error = refused(run_of(Command(argv=(*launch(), "no_such_train.py", "{micro_batch_size}"))))

    assert "imported torch: " in error.message
    assert re.search("can't open file '.*/no_such_train.py'", error.message)


def test_arguments_that_a_program_refuses_under_accelerate_launch_are_told(run_of):
    pytest.importorskip("accelerate")
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--cpu")

    observation = run_of(Command(argv=(*launch, str(TRAIN), "--bs", "{micro_batch_size}")))(probe_of(4))

    assert observation.reason.endswith("training_command.py: error: unrecognized arguments: --bs 4")


def test_a_program_that_logs_its_error_before_a_batch_and_ends_well_is_told_by_it(run_of):
    script = "import torch, traceback\ntry: raise KeyError('train.txt')\nexcept KeyError: traceback.print_exc()"
    runner = run_of(Command(argv=(sys.executable, "-c", script, "{micro_batch_size}")))

    assert runner(probe_of(64, number=1)).outcome is Outcome.CRASHED
    assert refused(runner).message.endswith("whatever the size: the command ended with status 0: KeyError: 'train.txt'")


def test_a_python_without_torch_is_told_which_one_has_it(run_of):
    without_packages = (sys.executable, "-S", "-c", "import torch")

    error = refused(run_of(Command(argv=without_packages)))

    assert "its Python has no torch" in error.hint and sys.executable in error.hint


def test_a_python_that_ignores_the_environment_is_refused_with_advice(run_of, monkeypatch):
    monkeypatch.setattr(watch, "UNOBSERVED_S", 2.0)
    argv = (sys.executable, "-I", str(TRAIN), "--micro-batch-size", "{micro_batch_size}")

    error = refused(run_of(Command(argv=argv)))

    assert "the observer was not loaded" in error.message
    assert "bexplore attach --install" in error.hint


@pytest.mark.promise("Ctrl-C while a command trains", "all of its ranks are ended")
def test_an_interrupt_in_the_middle_of_a_start_ends_all_of_its_ranks(run_of, tmp_path):
    def is_training() -> bool:
        return bool(list((tmp_path / "run").rglob("steps-*")))

    with pytest.raises(KeyboardInterrupt):
        run_of(training(ranks=2), should_stop=is_training)(probe_of(4))


@pytest.mark.promise("a signal ends the explorer of a command", "its training ends")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_explorer_that_is_ended_by_a_signal_ends_its_training(tmp_path, number):
    words = [sys.executable, "-m", "bexplore", "explore", "--quiet", "--", *training().argv]
    explorer = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.rglob("steps-*")):
        assert explorer.poll() is None
        time.sleep(0.05)
    assert marked_processes(tmp_path)

    explorer.send_signal(number)

    assert explorer.wait(60) == 130
    assert marked_processes(tmp_path) == []


@pytest.mark.promise(
    "the host of a command's explorer is gone",
    "ranks on other hosts stop at a common step and save nothing",
)
def test_ranks_stop_at_a_common_step_where_no_sign_of_the_explorer_comes(run_of, monkeypatch):
    monkeypatch.setattr(ProbeFolder, "beat", lambda self: None)
    monkeypatch.setattr(watch, "LIFE_LIMIT_S", 2.0)
    for name in ("LEAST_TIMED_S", "MOST_TIMED_S"):
        monkeypatch.setattr(watch, name, 1000.0)  # the explorer itself ends nothing

    observation = run_of(training(ranks=2))(probe_of(4))

    assert observation.is_measured


# Several sizes in one start


def starts(run_dir: Path) -> list[str]:
    """Return the folders of the starts, which have a log; a further size of a start has reports alone."""
    return sorted(path.parent.name for path in run_dir.rglob("log.txt"))


def rows_of_ranks(run_dir: Path, folder: str) -> list[set[str]]:
    """Return, by rank, the leading dimensions of the batches that arrived."""
    return [set(json.loads(path.read_text())["rows"]) for path in sorted(run_dir.rglob(f"{folder}/**/rank-*.json"))]


@pytest.mark.on_device
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 0)])
def test_one_start_serves_several_sizes_which_are_verified_on_every_rank(run_of, tmp_path, ranks, workers):
    command = training("--accumulation", "{accumulation}", "--workers", str(workers), ranks=ranks, num_replicas=ranks)
    runner = run_of(command, sizes_per_start=3, candidates=(4, 32, 64))

    first, *others = [runner(search_probe_of(size, number=number)) for number, size in enumerate((4, 64, 32))]
    runner.close()

    assert starts(tmp_path / "run") == ["000_size_4"]
    for observation, size in zip((first, *others), (4, 64, 32), strict=True):
        assert observation.is_measured, observation.reason
        assert observation.probe == search_probe_of(size, number=observation.probe.number)
        assert set(observation.details["verdicts"].values()) == {"verified"}
        assert observation.details["num_replicas"] == ranks
        assert rows_of_ranks(tmp_path / "run", f"*_size_{size}") == [{str(size)}] * ranks
    assert first.start_time_s > 0 and {one.start_time_s for one in others} == {0.0}
    assert {one.worker for one in (first, *others)} == {0}
    assert [one.resident_memory_bytes is None for one in (first, *others)] == [False, False, True]
    assert first.peak_memory_bytes < min(one.peak_memory_bytes for one in others)
    # Each process of a loader may still hold two batches of 64 that it read ahead: 33 float32 a sample.
    read_ahead_bytes = workers * 2 * 64 * 33 * 4
    assert others[1].peak_memory_bytes < others[0].peak_memory_bytes + read_ahead_bytes


@pytest.mark.parametrize("sizes_per_start", [1, 3])
def test_a_command_that_divides_its_batch_is_told_to_give_the_global_one(run_of, sizes_per_start):
    runner = run_of(training("--divide", ranks=2), sizes_per_start=sizes_per_start, candidates=(4, 8, 32, 64))

    with pytest.raises(UserProgramError, match="the command divides it by its 2 ranks") as raised:
        runner(search_probe_of(4))

    assert raised.value.hint == "write {global_batch_size} in place of {micro_batch_size}"


def test_ranks_of_a_further_size_know_its_last_step_beforehand(run_of, tmp_path):
    runner = run_of(training(ranks=2), sizes_per_start=3, candidates=(2, 4, 8))

    for number, size in enumerate((4, 8, 2)):
        assert runner(search_probe_of(size, number=number)).is_measured
    runner.close()

    named = {path.parts[-3]: path.read_text() for path in (tmp_path / "run").rglob("reports/last_step")}
    assert named.pop("000_size_4") and set(named.values()) == {""}
    steps = [len(json.loads(path.read_text())["steps"]) for path in (tmp_path / "run").rglob("*_size_8/**/rank-*.json")]
    assert len(steps) == 2 and len(set(steps)) == 1
    assert WARMUP_STEPS + MIN_TIMED_STEPS <= steps[0] < WARMUP_STEPS + MAX_TIMED_STEPS


def test_a_start_of_long_steps_ends_after_as_few_as_are_timed(run_of, tmp_path):
    runner = run_of(training("--pause", "1.0"))

    observation = runner(probe_of(4))

    assert observation.is_measured and len(observation.pass_times_s) >= MIN_TIMED_STEPS
    steps = json.loads(next((tmp_path / "run").rglob("rank-*.json")).read_text())["steps"]
    assert len(steps) <= WARMUP_STEPS + MIN_TIMED_STEPS + 1


def test_a_start_serves_only_so_many_sizes_and_none_above_its_own(run_of, tmp_path):
    runner = run_of(training(), sizes_per_start=2, candidates=(2, 4, 8))

    for number, size in enumerate((4, 2, 8, 16)):
        assert runner(search_probe_of(size, number=number)).is_measured
    runner.close()

    assert starts(tmp_path / "run") == ["000_size_4", "002_size_8", "003_size_16"]


@pytest.mark.parametrize("how", ["thread", "buffer", "copy", "crops", "function", "workers"])
def test_batches_read_ahead_at_the_size_before_are_not_timed(run_of, how):
    words = ("--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}", "--how", how)
    command = Command(argv=(sys.executable, str(READS_AHEAD), *words), env={"OMP_NUM_THREADS": "1"})
    runner = run_of(command, sizes_per_start=8, candidates=(2, 4, 32))

    observations = [runner(search_probe_of(size, number=number)) for number, size in enumerate((2, 32, 4))]
    runner.close()

    assert all(one.is_measured for one in observations), [one.reason for one in observations]
    assert {one.probe.compilation for one in observations} == {Compilation.SHARED}
    for observation in observations:
        assert min(observation.pass_times_s) >= SAMPLE_S * observation.micro_batch_size
    assert statistics.median(observations[-1].pass_times_s) < SAMPLE_S * 32  # not those of the size before


def test_a_verification_ends_the_start_that_waits_and_has_one_of_its_own(run_of, tmp_path):
    runner = run_of(training(), sizes_per_start=8, candidates=(4, 8))
    assert runner(search_probe_of(4)).is_measured
    waiting = marked_processes(tmp_path / "run")

    verified = runner(probe_of(8, number=1))

    assert waiting and verified.is_measured and verified.probe.compilation is Compilation.EXACT
    assert starts(tmp_path / "run") == ["000_size_4", "001_size_8"]


def test_a_command_whose_batches_cannot_be_cut_starts_for_each_size(run_of, tmp_path):
    runner = run_of(training("--batched-dataset"), sizes_per_start=8, candidates=(4, 8, 16))

    observations = [runner(search_probe_of(size, number=number)) for number, size in enumerate((4, 16))]

    assert all(one.is_measured for one in observations)
    assert {one.probe.compilation for one in observations} == {Compilation.EXACT}
    assert rows_of_ranks(tmp_path / "run", "000_size_4_2") == [{"4"}]
    assert starts(tmp_path / "run") == ["000_size_4", "000_size_4_2", "001_size_16"]


def test_a_program_that_takes_one_size_alone_starts_for_each_size(run_of):
    runner = run_of(training("--static"), sizes_per_start=8, candidates=(4, 8, 16))

    first, second, third = [runner(search_probe_of(size, number=number)) for number, size in enumerate((4, 16, 8))]

    compilations = [one.probe.compilation for one in (first, second, third)]
    assert all(one.is_measured for one in (first, second, third))
    assert compilations == [Compilation.SHARED, Compilation.EXACT, Compilation.EXACT]
    assert not runner.shares_starts


@pytest.mark.on_device
def test_a_size_out_of_memory_has_its_own_start_and_the_next_share_one(run_of, tmp_path):
    runner = run_of(training("--largest", "8"), sizes_per_start=8, candidates=(2, 4, 8, 16))

    small, large, after, last = [runner(search_probe_of(s, number=n)) for n, s in enumerate((4, 16, 8, 2))]
    runner.close()

    assert large.outcome is Outcome.OUT_OF_MEMORY
    assert large.elapsed_s > 0 and large.probe.compilation is Compilation.EXACT
    assert small.is_measured and after.is_measured and last.is_measured
    assert starts(tmp_path / "run") == ["000_size_4", "001_size_16_2", "002_size_8"]
    assert runner.shares_starts


def test_a_training_that_ends_after_some_sizes_starts_again(run_of, tmp_path):
    runner = run_of(training("--steps", "400"), sizes_per_start=8, candidates=(4, 8))

    observations = []
    while len(starts(tmp_path / "run")) < 2 and len(observations) < 30:  # a busy machine takes fewer steps of each size
        number = len(observations)
        observations.append(runner(search_probe_of(8 if number % 2 else 4, number=number)))
    runner.close()

    assert all(one.is_measured for one in observations)
    assert runner.shares_starts and len(starts(tmp_path / "run")) == 2


def test_an_interrupt_in_the_second_size_of_a_start_ends_all_ranks(run_of, tmp_path):
    def is_training() -> bool:
        return bool(list((tmp_path / "run").rglob("001_*/**/steps-*")))

    runner = run_of(training(ranks=2), sizes_per_start=8, candidates=(4, 8), should_stop=is_training)
    assert runner(search_probe_of(4)).is_measured

    with pytest.raises(KeyboardInterrupt):
        runner(search_probe_of(8, number=1))


@pytest.mark.promise("ranks of a command wait for an explorer that does not come back", "they end by themselves")
def test_ranks_that_wait_for_an_explorer_that_is_gone_end_by_themselves(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr("bexplore.command.watch.PARK_S", 8.0)  # on busy cores a rank is seconds behind the other
    runner = run_of(training(ranks=2), sizes_per_start=8, candidates=(4, 8))

    assert runner(search_probe_of(4)).is_measured

    ended = time.monotonic() + 90.0
    while marked_processes(tmp_path / "run") and time.monotonic() < ended:
        time.sleep(0.1)
    assert marked_processes(tmp_path / "run") == []
    monkeypatch.setattr("bexplore.command.watch.PARK_S", PARK_S)  # a rank may wait so long for the other one
    assert runner(search_probe_of(8, number=1)).probe.compilation is Compilation.SHARED  # in a new start
    runner.close()


def test_a_python_that_cannot_be_observed_is_refused_after_one_start(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "UNOBSERVED_S", 2.0)
    argv = (sys.executable, "-I", str(TRAIN), "--micro-batch-size", "{micro_batch_size}")
    runner = run_of(Command(argv=argv), sizes_per_start=8, candidates=(4, 8))

    with pytest.raises(UserProgramError, match="the observer was not loaded"):
        runner(search_probe_of(4))

    assert starts(tmp_path / "run") == ["000_size_4"]


@pytest.mark.on_device
def test_an_exploration_shares_a_start_and_verifies_its_winner_in_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "LEAST_TIMED_S", 0.2)
    overrides = [f"explore.command={json.dumps(list(training().argv))}", "explore.candidates=[2, 8]"]
    config = load_config(None, overrides=[*overrides, "explore.sizes_per_start=8", "explore.max_probes=3"])

    events = list(explore(config, ExploreOptions(model_dir="run")))

    observations = [event.observation for event in events if isinstance(event, ProbeFinished)]
    assert [one.probe.compilation for one in observations[:2]] == [Compilation.SHARED] * 2
    verified = [one.micro_batch_size for one in observations[2:]]
    assert {one.probe.compilation for one in observations[2:]} == {Compilation.EXACT}
    assert events[-1].result.micro_batch_size in verified  # the other one too, where the first fell behind it
    assert len(starts(tmp_path)) == 2 + len(verified)  # the smallest size has one of its own, too
    assert marked_processes(tmp_path) == []
