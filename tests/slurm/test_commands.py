"""Training commands that srun starts, and the scripts for sbatch of docs/commands.md, on a cluster of one node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.command import watch
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.measurement.probe import Outcome
from tests.builders import ROOT, free_port
from tests.engine.command_starts import TRAIN, marked_processes, probe_of, search_probe_of, shared_memory

pytestmark = pytest.mark.external

PAGE = (ROOT / "docs" / "commands.md").read_text()
SCRIPTS = dict(re.findall(r"<!-- sbatch: (\w+) -->\n```bash\n(.*?)```", PAGE, re.DOTALL))
# The names of the ranks for a script that reads torchrun's, as the page has it.
NAMED = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
PYTHON = ("bash", "-c", f'{NAMED}; exec "$@"', "bash", sys.executable)

# The command line, with as little waiting as in these tests, and with a host of its own for each task of an array.
BEXPLORE = f"""\
#!{sys.executable}
import os, socket
from bexplore.command import watch
watch.LEAST_TIMED_S, watch.MOST_TIMED_S, watch.UNOBSERVED_S = 0.2, 0.2, 120.0
if "SLURM_ARRAY_TASK_ID" in os.environ:
    socket.gethostname = lambda: "host" + os.environ["SLURM_ARRAY_TASK_ID"]
from bexplore.cli import main
main()
"""

Run = Callable[..., CommandRunner]


@pytest.fixture
def run_of(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Makes runners of a training that srun starts on two ranks; the cluster and this machine are empty after it."""
    run_dir = tmp_path / "run"
    for name, value in (slurm | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    # Busy processors take longer than a user's to import torch on two ranks.
    limits = {"LEAST_TIMED_S": 0.2, "MOST_TIMED_S": 0.2, "AFTER_ERROR_S": 1.0, "UNOBSERVED_S": 120.0}
    for name, seconds in limits.items():
        monkeypatch.setattr(watch, name, seconds)

    def make(*words: str, start: tuple[str, ...] = PYTHON, **fields) -> CommandRunner:
        training = (str(TRAIN), "--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}")
        argv = ("srun", "--ntasks", "2", *start, *training, *words)
        command = Command(argv=argv, env={"OMP_NUM_THREADS": "1"}, num_replicas=2)
        return CommandRunner(command, CommandSettings(run_dir=run_dir, **fields))

    yield make
    assert marked_processes(run_dir) == shared_memory(run_dir) == []
    assert held_by_the_cluster() == []
    assert not list(run_dir.rglob("checkpoint*"))


def held_by_the_cluster() -> list[str]:
    """Return the jobs and steps that the cluster holds; a job that has ended is shown for a moment yet."""
    jobs = output_of("squeue", "-h", "-t", "pending,running,suspended")
    return [*jobs.splitlines(), *output_of("squeue", "-h", "-s").splitlines()]


def output_of(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_two_ranks_that_srun_starts_are_measured_in_two_sizes_of_one_start(run_of):
    runner = run_of(sizes_per_start=2, candidates=(4, 8))

    observations = [runner(search_probe_of(size, number=number)) for number, size in enumerate((4, 8))]
    runner.close()

    for observation in observations:
        assert observation.is_measured, observation.reason
        assert observation.details["num_ranks"] == observation.details["num_replicas"] == 2
        assert set(observation.details["verdicts"].values()) == {"verified"}
    assert {one.worker for one in observations} == {0}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_srun_that_is_killed_is_named_as_the_cause(run_of, rank):
    observation = run_of("--fault", "update:killed", "--rank", str(rank), "--step", "2")(probe_of(4))

    assert observation.outcome is Outcome.CRASHED
    assert observation.reason.startswith(f"rank {rank} ")
    assert "the other ranks lost their connection to it" in observation.reason


def test_a_rank_of_srun_that_hangs_is_ended_with_its_step(run_of, monkeypatch):
    monkeypatch.setattr(watch, "HANG_S", 2.0)

    observation = run_of("--fault", "forward:hang", "--rank", "1", "--step", "4")(probe_of(4))

    assert observation.outcome is Outcome.TIMED_OUT
    assert "no rank completed a step after step" in observation.reason


def test_an_interrupt_ends_the_ranks_and_the_step_of_srun(run_of, tmp_path):
    def is_training() -> bool:
        return bool(list((tmp_path / "run").rglob("steps-*")))

    with pytest.raises(KeyboardInterrupt):
        run_of(should_stop=is_training)(probe_of(4))


def test_a_torchrun_for_each_task_of_srun_is_measured_with_the_ranks_of_all_of_them(run_of):
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
    start = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting)

    observation = run_of(start=start)(probe_of(4))

    assert observation.is_measured, observation.reason
    assert observation.details["num_ranks"] == observation.details["num_replicas"] == 2


# The scripts of the page


@pytest.fixture
def submit(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Submits a script of the page to the one node, and waits for its end; returns the folder of its runs."""
    code, runs = tmp_path / "code", tmp_path / "runs"
    code.mkdir()
    script = TRAIN.read_text().replace('"--micro-batch-size"', '"--mbs", dest="micro_batch_size"')
    (code / "train.py").write_text(script)
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bexplore").write_text(BEXPLORE)
    (tmp_path / "bin" / "bexplore").chmod(0o755)
    folders = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    short = "--sizes-per-start 1 --set explore.candidates=[2,32]"
    changes = {
        "/shared/code": str(code),
        "/shared/runs": str(runs),
        "DEVICES=8": "DEVICES=1",
        "postgresql://user@host/studies": f"sqlite:///{tmp_path}/study.db",
        "bexplore explore": f"bexplore explore {short}",
    }

    def submitted(name: str, *options: str) -> Path:
        text = SCRIPTS[name]
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / "script.sh").write_text(text)
        words = ["sbatch", "--parsable", "--nodes", "1", "--output", str(tmp_path / "out_%a")]
        job = output_of(*words, *options, str(tmp_path / "script.sh")).strip()
        while output_of("squeue", "-h", "-j", job):
            time.sleep(0.5)
        codes = set(re.findall(r"ExitCode=(\S+)", output_of("scontrol", "show", "job", job)))
        assert codes == {"0:0"}, "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("out_*"))
        return runs

    yield submitted
    assert marked_processes(runs) == shared_memory(runs) == []
    assert held_by_the_cluster() == []


def results_in(runs: Path) -> list[dict]:
    """Return the results, that of the explorer which ended last at the end."""
    paths = sorted(runs.rglob("result.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in paths]


def probes_in(runs: Path) -> list[dict]:
    """Return what the journals hold."""
    journals = sorted(runs.rglob("journal.jsonl"))
    return [json.loads(line) for path in journals for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["ranks", "torchrun"])
def test_a_script_of_the_page_explores_on_the_ranks_that_srun_starts(submit, name):
    runs = submit(name, "--ntasks-per-node", "2")

    (result,) = results_in(runs)
    assert result["micro_batch_size"] >= 24  # 32 is the fastest where nothing else uses the processors
    assert result["num_replicas"] == 2
    assert {probe["details"]["num_ranks"] for probe in probes_in(runs)} == {2}


def test_the_array_of_the_page_is_a_farm_with_one_study_and_one_answer(submit):
    runs = submit("farm", "--ntasks-per-node", "1", "--array", "0-1")

    results = results_in(runs)
    assert (
        len(results) == 2 and results[-1]["micro_batch_size"] >= 24
    )  # an explorer may end before the other's last probe
    probes = [probe["probe"] for probe in probes_in(runs)]
    assert len({probe["number"] for probe in probes}) == len(probes)
    assert [probe["micro_batch_size"] for probe in probes].count(2) == 1
