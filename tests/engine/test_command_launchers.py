"""Training commands whose ranks are actors of Ray, and the commands that were not run on a CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bexplore.command import watch
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.measurement.probe import Outcome
from tests.builders import ROOT
from tests.engine.command_starts import marked_processes, probe_of, search_probe_of, shared_memory

pytestmark = pytest.mark.external

PAGE = (ROOT / "docs" / "commands.md").read_text()
(RAY_INIT,) = re.findall(r"<!-- ray: init -->\n```python\n(.*?)```", PAGE, re.DOTALL)  # as the page tells users
# A driver of two actors that train together; half a processor each, so that a machine with one has room for them.
DRIVER = (
    RAY_INIT
    + """
import argparse, signal, socket, sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

@ray.remote(num_cpus=0.5)
class Trainer:
    def train(self, rank, port, size, killed):
        distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        model = DistributedDataParallel(torch.nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        samples = TensorDataset(torch.randn(size * 4096, 32))
        while True:
            for step, (batch,) in enumerate(DataLoader(samples, size, sampler=DistributedSampler(samples))):
                if rank == killed and step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int)
parser.add_argument("--killed", type=int)
parser.add_argument("--out")
options = parser.parse_args()
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
actors = [Trainer.remote() for _ in range(2)]
ray.get([actor.train.remote(rank, port, options.size, options.killed) for rank, actor in enumerate(actors)])
"""
)
# A cluster that is there before the command, in a process that holds it until its input ends.
CLUSTER = """
import ray
context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
print(context.address_info["gcs_address"], flush=True)
input()
"""

Run = Callable[..., CommandRunner]


@pytest.fixture
def ray_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of Ray's files and sockets, whose paths must be short; no process of Ray is left after the test."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("HOME", str(tmp_path))  # in which Ray keeps files, too
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # both of a cluster and of who joins it
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setenv("RAY_TMPDIR", temporary)
        yield Path(temporary)
        assert processes_that_name(temporary) == []


def processes_that_name(folder: str) -> list[str]:
    """Return the command lines of processes that have a folder among their arguments."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if folder in line]


@pytest.fixture
def cluster(ray_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of Ray that does not know the variables of a start."""
    holder = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert holder.stdout is not None
    monkeypatch.setenv("RAY_ADDRESS", holder.stdout.readline().strip())
    yield
    holder.communicate("\n")


@pytest.fixture
def run_of(tmp_path: Path, ray_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Makes runners of the driver; nothing of its starts is left when the test ends."""
    run_dir = tmp_path / "run"
    limits = {"LEAST_TIMED_S": 0.2, "MOST_TIMED_S": 0.2, "AFTER_ERROR_S": 1.0, "UNOBSERVED_S": 120.0}
    for name, seconds in limits.items():
        monkeypatch.setattr(watch, name, seconds)
    (tmp_path / "driver.py").write_text(DRIVER)

    def make(*words: str, **fields) -> CommandRunner:
        driver = (sys.executable, str(tmp_path / "driver.py"), "--size", "{micro_batch_size}", "--out", "{output_dir}")
        command = Command(argv=(*driver, *words), env={"OMP_NUM_THREADS": "1"}, num_replicas=2)
        return CommandRunner(command, CommandSettings(run_dir=run_dir, **fields))

    yield make
    assert marked_processes(run_dir) == shared_memory(run_dir) == []


def assert_two_verified_ranks(observation) -> None:
    assert observation.is_measured, observation.reason
    assert observation.details["num_ranks"] == observation.details["num_replicas"] == 2
    assert set(observation.details["verdicts"].values()) == {"verified"}


def test_actors_of_a_cluster_that_the_command_starts_are_two_ranks(run_of):
    runner = run_of(sizes_per_start=2, candidates=(4, 8))

    observations = [runner(search_probe_of(size, number=number)) for number, size in enumerate((4, 8))]
    runner.close()

    for observation in observations:
        assert_two_verified_ranks(observation)
    assert {one.worker for one in observations} == {0}


def test_a_killed_actor_is_no_measurement_and_the_other_is_ended(run_of):
    observation = run_of("--killed", "1")(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert observation.pass_times_s == ()


def test_actors_of_a_cluster_that_was_there_are_ranks_and_it_stays(run_of, cluster, tmp_path):
    marked: set[int] = set()

    def look() -> bool:
        marked.update(marked_processes(tmp_path / "run"))
        return False

    runner = run_of(should_stop=look)

    for number, size in enumerate((4, 8)):
        assert_two_verified_ranks(runner(probe_of(size, number=number)))
    ranks = {json.loads(path.read_text())["pid"] for path in (tmp_path / "run").rglob("rank-*.json")}
    assert len(ranks) == 4
    assert ranks <= marked


# What was not run on a CPU


def commands_in(text: str) -> list[str]:
    """Return the commands of a block, each in one line."""
    return [line for line in re.sub(r"\\\n\s+", "", text).splitlines() if line.startswith("bexplore ")]


def test_the_commands_that_were_not_run_stand_on_both_pages():
    own, measured = (
        re.search(r"## Not run on a CPU\n.*?```\n(.*?)```", text, re.DOTALL)
        for text in (PAGE, (ROOT / "benchmarks" / "results" / "command.md").read_text())
    )

    assert own and measured
    assert commands_in(own[1]) == commands_in(measured[1])
    assert len(commands_in(own[1])) == 3
