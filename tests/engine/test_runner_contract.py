"""The contract of runners, for those that run a real training: the engine's workers, and a command of the user's."""

from __future__ import annotations

import dataclasses
import functools
import sys

import pytest

from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.measurement.probe import Compilation, Observation, Probe
from tests.builders import imported_job
from tests.runner_contract import RunnerContract, Subject

MIB = 2**20


class TestEngineRunner(RunnerContract):
    """Real workers, which stay warm from test to test."""

    @pytest.fixture
    def subject(self, warm_on):
        runner = warm_on(imported_job("greedy"), budget_bytes=512 * MIB)
        return Subject(runner=runner, fitting=(1, 2, 4), too_large=100)


TRAINING = """
import sys, torch
size = int(sys.argv[1])
model = torch.nn.Linear(4096, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(size, 4096)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def started_command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    (folder / "train.py").write_text(TRAINING)
    command = Command(argv=(sys.executable, str(folder / "train.py"), "{micro_batch_size}"), env=ONE_THREAD)
    return remembered(CommandRunner(command, CommandSettings(run_dir=folder, memory_limit_bytes=2048 * MIB)))


class TestCommandRunner(RunnerContract):
    """A command, started once for each size: a start takes seconds, and the promises are about what it returns."""

    @pytest.fixture
    def subject(self, started_command):
        return Subject(
            runner=started_command,
            fitting=(1, 8, 64),
            too_large=400_000,
            compilation=Compilation.EXACT,
            keeps_programs=False,
        )


ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def remembered(runner):
    """Return a runner that starts the command once for each size and bound on its timings."""

    @functools.cache
    def first(size: int, max_passes: int) -> Observation:
        return runner(Probe(number=0, micro_batch_size=size, max_passes=max_passes, compilation=Compilation.EXACT))

    def run(probe: Probe) -> Observation:
        return dataclasses.replace(first(probe.micro_batch_size, probe.max_passes), probe=probe)

    return run
