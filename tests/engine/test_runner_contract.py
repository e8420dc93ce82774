"""The contract of runners, for those that run a real training: the engine's workers, and a command of the user's."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys

import pytest

from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.engine.open_runner import AllRanksRunner
from bexplore.job import CompileSettings, Parallelism
from bexplore.measurement.probe import Compilation, Observation, Probe
from tests.builders import imported_job
from tests.engine.rank_jobs import NUM_RANKS, settings
from tests.unit.measurement.runner_contract import RunnerContract, Subject

pytestmark = pytest.mark.on_device

MIB = 2**20


class TestEngineRunner(RunnerContract):
    """Real workers, which stay warm from test to test."""

    @pytest.fixture
    def subject(self, warm_on):
        runner = warm_on(imported_job("greedy"), budget_bytes=512 * MIB)
        return Subject(runner=runner, fitting=(1, 2, 4), too_large=100)


@pytest.fixture(scope="module")
def all_ranks(tmp_path_factory):
    job = imported_job("greedy", compile=CompileSettings(enabled=False))
    job = dataclasses.replace(job, parallelism=Parallelism(data_parallel_replicate_degree=NUM_RANKS), num_replicas=2)
    launched = dataclasses.replace(settings(tmp_path_factory.mktemp("all_ranks"), job), budget_bytes=1024 * MIB)
    with AllRanksRunner(launched) as runner:
        yield remembered(runner)


class TestAllRanksRunner(RunnerContract):
    """Two ranks under a launcher, each size after one of them has run it alone."""

    @pytest.fixture
    def subject(self, all_ranks):
        return Subject(runner=all_ranks, fitting=(1, 2, 4), too_large=100, keeps_programs=False)


TRAINING = """
import os, sys, torch
size, device = int(sys.argv[1]), os.environ.get("BEXPLORE_TEST_DEVICE", "cpu")
model = torch.nn.Linear(4096, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(size, 4096, device=device)).sum().backward()
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


TRAINING_WITH_LOADER = TRAINING.replace(
    "while True:\n    model(torch.ones(size, 4096, device=device))",
    """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10**8
    def __getitem__(self, index):
        return torch.ones(1)
for batch in torch.utils.data.DataLoader(Rows(), batch_size=size):
    model(batch.to(device).expand(-1, 4096).contiguous())""",
)


@pytest.fixture(scope="module")
def shared_start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared_start")
    (folder / "train.py").write_text(TRAINING_WITH_LOADER)
    command = Command(argv=(sys.executable, str(folder / "train.py"), "{micro_batch_size}"), env=ONE_THREAD)
    several = CommandSettings(
        run_dir=folder, memory_limit_bytes=2048 * MIB, sizes_per_start=8, candidates=(1, 8, 64, 400_000)
    )
    with contextlib.closing(CommandRunner(command, several)) as runner:
        shared = remembered(runner)
        for size in (1, 8, 64):
            assert shared(Probe(number=0, micro_batch_size=size, max_passes=5)).is_measured
        yield shared


class TestSharedStart(RunnerContract):
    """A command of which one start serves several sizes."""

    @pytest.fixture
    def subject(self, shared_start):
        return Subject(runner=shared_start, fitting=(1, 8, 64), too_large=400_000)


ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def remembered(runner):
    """Return a runner that runs each size, program and bound on its timings once."""
    first = functools.cache(lambda probe: runner(probe))

    def run(probe: Probe) -> Observation:
        asked = Probe(
            number=0,
            micro_batch_size=probe.micro_batch_size,
            max_passes=probe.max_passes,
            compilation=probe.compilation,
            fresh_worker=probe.fresh_worker and probe.compilation is Compilation.SHARED,
        )
        return dataclasses.replace(first(asked), probe=probe)

    return run
