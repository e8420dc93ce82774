"""Launchers: the words that start a job's ranks, on this host or on others."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bexplore.engine.process.rank_listener import KEY_VARIABLE, LOOPBACK

# The user starts the launcher, on hosts without a scheduler: see `external_hint`.
EXTERNAL = "external"
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How the ranks of a job are started."""

    kind: str  # `torchrun`, `srun`, `ray`, `external`, or a command with `{worker}` and perhaps `{num_ranks}`
    num_ranks: int
    host: str = LOOPBACK  # at which ranks call; loopback where all are on this host
    port: int = 0  # 0 for any

    @property
    def environment(self) -> dict[str, str]:
        """What the launcher adds to the environment of a rank: one that runs alone has the same, and is comparable.

        Source: `config_from_args` in torch/distributed/run.py; `set_omp_num_threads_if_unset` in Ray's utils.py, where
        a rank has one processor.
        """
        sets_threads = self.num_ranks > 1 and self.kind in ("torchrun", "ray")
        return {THREADS: "1"} if sets_threads and THREADS not in os.environ else {}

    @property
    def is_external(self) -> bool:
        """Whether the user starts the ranks, and a launcher of theirs starts them again after each end."""
        return self.kind == EXTERNAL

    def command(self, address: str, preload: Sequence[str]) -> list[str]:
        """Return the words that start all ranks, each of which calls an address.

        Source: `torchrun --help`; srun(1); the parts of Ray in `ray_launcher`.
        """
        worker = [sys.executable, "-P", "-m", "bexplore.engine.worker", "--connect", address, *preload]
        count = str(self.num_ranks)
        if self.kind == "torchrun":
            run = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
            return [*run, "--max-restarts", "0", "--no-python", *worker]
        if self.kind == "srun":
            # Inside an allocation another step may hold its tasks: this one shares them.
            shared = ["--overlap"] if "SLURM_JOB_ID" in os.environ else []
            return ["srun", "--ntasks", count, "--kill-on-bad-exit=1", *shared, *worker]
        if self.kind == "ray":
            return [sys.executable, "-P", "-m", "bexplore.engine.process.ray_launcher", count, *worker]
        words = [word.replace("{num_ranks}", count) for word in shlex.split(self.kind)]
        return [part for word in words for part in (worker if word == "{worker}" else [_filled(word, worker)])]


def _filled(word: str, worker: Sequence[str]) -> str:
    """Put the worker's command into a word that holds more, such as a script of a shell."""
    return word.replace("{worker}", shlex.join(worker))


def external_hint(address: str, num_ranks: int) -> str:
    """Return what to type on each host where the user starts the launcher."""
    return (
        f"with {KEY_VARIABLE} set as here, type on each host: torchrun --nnodes HOSTS --nproc-per-node DEVICES "
        f"--max-restarts 1000 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500 --no-python bexplore worker "
        f"--connect {address}   ({num_ranks} ranks in all)"
    )
