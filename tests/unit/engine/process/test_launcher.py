"""The words that start ranks."""

from __future__ import annotations

import shlex
import sys

import pytest

from bexplore.engine.process.launcher import Launcher, external_hint

WORKER = f"{sys.executable} -P -m bexplore.engine.worker --connect 127.0.0.1:5"


def words(kind: str, num_ranks: int = 4) -> str:
    return shlex.join(Launcher(kind=kind, num_ranks=num_ranks).command("127.0.0.1:5", ()))


def test_torchrun_starts_the_ranks_of_this_host_once(monkeypatch):
    expected = "-m torch.distributed.run --standalone --nproc-per-node 4 --max-restarts 0 --no-python"
    assert words("torchrun") == f"{sys.executable} -P {expected} {WORKER}"


@pytest.mark.parametrize(("inside", "shared"), [(False, ""), (True, " --overlap")])
def test_srun_ends_all_ranks_with_one_and_shares_its_allocation(monkeypatch, inside, shared):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if inside:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert words("srun") == f"srun --ntasks 4 --kill-on-bad-exit=1{shared} {WORKER}"


def test_a_template_gets_the_worker_as_words_or_within_a_script():
    assert words("mpirun -n {num_ranks} {worker}") == f"mpirun -n 4 {WORKER}"
    script = shlex.split(words("sh -c 'ssh other {worker} & wait'"))
    assert script == ["sh", "-c", f"ssh other {WORKER} & wait"]


def test_the_key_stands_in_no_command():
    for kind in ("torchrun", "srun", "ray", "mpirun {worker}"):
        assert "KEY" not in words(kind)
    hint = external_hint("10.0.0.5:29400", 16)
    assert "--connect 10.0.0.5:29400" in hint
    assert "16 ranks" in hint
