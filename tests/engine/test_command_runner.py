"""Training commands that are started, observed and ended: what is measured, what is refused, and what is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.command import watch
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.errors import BexploreError, UserInputError, UserProgramError
from bexplore.measurement.probe import Outcome
from tests.command_builders import TRAIN, Surroundings, marked_processes, probe_of, shared_memory, training

LIMIT_BYTES = 2 * 2**30

Run = Callable[..., CommandRunner]


@pytest.fixture
def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Makes runners of commands; nothing of their starts may be left when the test ends."""
    run_dir, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(temporary))
    for name in ("LEAST_TIMED_S", "MOST_TIMED_S"):
        monkeypatch.setattr(watch, name, 0.2)
    monkeypatch.setattr(watch, "AFTER_ERROR_S", 1.0)
    before = Surroundings.of(tmp_path, TRAIN.parent, but=run_dir)

    def make(command: Command, **fields) -> CommandRunner:
        return CommandRunner(command, CommandSettings(run_dir=run_dir, **fields))

    yield make
    assert marked_processes(run_dir) == shared_memory(run_dir) == []
    assert Surroundings.of(tmp_path, TRAIN.parent, but=run_dir).changed_since(before) == []
    assert not list(run_dir.rglob("checkpoint*"))


def refused(runner: CommandRunner, kind: type[BexploreError] = UserProgramError) -> BexploreError:
    """Return the error with which a runner refuses a command."""
    with pytest.raises(kind) as raised:
        runner(probe_of(4))
    return raised.value


# What is measured


def test_a_plain_loop_is_measured_and_its_size_replicas_and_accumulation_are_verified(run_of):
    runner = run_of(training("--accumulation", "{accumulation}", num_replicas=1))

    observation = runner(probe_of(8))

    assert observation.outcome is Outcome.MEASURED
    assert set(observation.details["verdicts"].values()) == {"verified"}
    assert observation.details["passes_per_step"] == 2
    assert len(observation.pass_times_s) >= watch.MIN_TIMED_STEPS
    assert observation.peak_memory_bytes > 0
    assert runner.num_replicas == 1


def test_two_ranks_are_two_replicas_and_the_next_probe_runs_after_one_that_ran_out_of_memory(run_of):
    runner = run_of(training("--fault", "backward:injected", "--rank", "1", "--step", "3", ranks=2))

    failed = runner(probe_of(4))

    assert failed.outcome is Outcome.OUT_OF_MEMORY
    assert "on rank 1: OutOfMemoryError: CUDA out of memory" in failed.reason

    runner.command = training(ranks=2, num_replicas=2)
    observation = runner(probe_of(4, number=1))

    assert observation.is_measured
    assert observation.details["num_ranks"] == observation.details["num_replicas"] == 2


# Out of memory


@pytest.mark.parametrize("place", ["forward", "backward", "update"])
def test_memory_that_the_limit_refuses_is_out_of_memory_wherever_it_is_asked_for(run_of, place):
    runner = run_of(training("--fault", f"{place}:refused"), memory_limit_bytes=LIMIT_BYTES)

    observation = runner(probe_of(4))

    assert observation.outcome is Outcome.OUT_OF_MEMORY
    assert "DefaultCPUAllocator: can't allocate memory" in observation.reason
    assert f'strike("{place}")' in observation.traceback_text


@pytest.mark.parametrize("place", ["forward", "backward", "update"])
def test_memory_that_is_refused_and_swallowed_by_the_program_is_out_of_memory(run_of, place):
    runner = run_of(training("--fault", f"{place}:injected", "--step", "2", "--swallow"))

    assert runner(probe_of(4)).outcome is Outcome.OUT_OF_MEMORY


def test_a_program_that_shrinks_the_size_by_itself_is_out_of_memory_at_the_size_that_was_asked_for(run_of):
    runner = run_of(training("--fault", "forward:injected", "--shrink"))

    observation = runner(probe_of(8))

    assert observation.outcome is Outcome.OUT_OF_MEMORY
    assert observation.pass_times_s == ()


# Ranks that are lost, wait or differ


def test_a_rank_that_is_killed_is_the_cause_and_not_the_connections_that_others_lose(run_of):
    observation = run_of(training("--fault", "update:killed", "--rank", "1", "--step", "2", ranks=2))(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert observation.reason.startswith("rank 1 was killed")


def test_a_rank_that_hangs_ends_the_probe_with_the_step_after_which_nothing_came(run_of, monkeypatch):
    monkeypatch.setattr(watch, "HANG_S", 2.0)

    observation = run_of(training("--fault", "forward:hang", "--rank", "1", "--step", "4", ranks=2))(probe_of(4))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "no rank completed a step after step" in observation.reason


def test_fewer_ranks_than_replicas_are_refused_with_both_numbers(run_of):
    error = refused(run_of(training(num_replicas=2)))

    assert "the command started 1 rank where 2 replicas were asked for" in error.message


# Commands that do something else


def test_a_bug_of_the_script_is_shown_with_its_own_traceback_and_is_never_too_big(run_of):
    observation = run_of(training("--fault", "forward:bug"))(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert "ValueError: the shapes of the batch and of the labels differ" in observation.reason
    assert 'strike("forward")' in observation.traceback_text


def test_a_training_that_is_too_short_is_refused_with_the_steps_that_it_needs(run_of):
    assert "the training ended after 2 steps; 7 are needed" in refused(run_of(training("--steps", "2"))).message


def test_a_command_that_ignores_the_size_is_refused_at_the_second_size(run_of, tmp_path):
    script = tmp_path / "run" / "fixed.py"
    script.parent.mkdir()
    script.write_text(TRAIN.read_text().replace("OPTIONS.micro_batch_size)", "4)"))
    runner = run_of(training(script=script))

    assert runner(probe_of(4)).is_measured
    with pytest.raises(UserProgramError, match="micro-batches of 4 samples arrived where 8 were asked for"):
        runner(probe_of(8, number=1))


def test_a_training_that_never_updates_is_refused_as_one_without_an_observed_step(run_of):
    assert "no step observed" in refused(run_of(training("--frozen"))).message


def test_a_command_that_is_not_found_is_refused_with_its_name(run_of):
    error = refused(run_of(Command(argv=("no-such-trainer", "{micro_batch_size}"))), UserInputError)

    assert "no-such-trainer" in error.message


def test_a_command_that_ends_before_it_imports_torch_is_refused_with_its_status_and_its_own_words(run_of):
    script = "import sys; print('no data here'); sys.exit(3)"

    error = refused(run_of(Command(argv=(sys.executable, "-c", script))))

    assert "ended with status 3 before any process imported torch" in error.message
    assert "no data here" in error.traceback_text


def test_a_python_that_ignores_the_environment_is_ended_and_refused_with_the_command_that_helps(run_of, monkeypatch):
    monkeypatch.setattr(watch, "UNOBSERVED_S", 2.0)
    argv = (sys.executable, "-I", str(TRAIN), "--micro-batch-size", "{micro_batch_size}")

    error = refused(run_of(Command(argv=argv)))

    assert "the observer was not loaded" in error.message
    assert "bexplore attach --install" in error.hint


def test_an_interrupt_in_the_middle_of_a_start_ends_all_of_its_ranks(run_of, tmp_path):
    def is_training() -> bool:
        return bool(list((tmp_path / "run").rglob("steps-*")))

    with pytest.raises(KeyboardInterrupt):
        run_of(training(ranks=2), should_stop=is_training)(probe_of(4))
