"""Jobs and faults of `benchmarks.distributed`: two ranks, gloo, one thread each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.job import CompileSettings, Job, Parallelism
from bexplore.measurement.probe import Outcome

FAULTS_ROOT = str(Path(__file__).parents[1] / "tests" / "jobs")
NUM_RANKS = 2
SHARDED = Parallelism(data_parallel_shard_degree=NUM_RANKS)
REPLICATED = Parallelism(data_parallel_replicate_degree=NUM_RANKS)
TENSOR = Parallelism(tensor_parallel_degree=NUM_RANKS)
BATCH_SIZE = 256  # of all replicas
LARGEST = 32  # micro-batch size that is tried

_GPT = {
    "hidden_size": 192,
    "num_layers": 4,
    "num_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": 64,
}
_LLAMA = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedJob:
    """A job of two ranks, and the launcher with which it is explored."""

    name: str
    launcher: str
    workload: dict[str, Any]
    parallelism: Parallelism

    @property
    def job(self) -> Job:
        """The job, compiled as by default."""
        return Job(
            **self.workload,
            sequence_length=64,
            max_gradient_norm=1.0,
            num_replicas=self.parallelism.num_replicas,
            parallelism=self.parallelism,
        )


def _decoder(**changed: Any) -> dict[str, Any]:
    return {"workload": "decoder", "model": _GPT | changed}


def _llama() -> dict[str, Any]:
    model = {"task": "causal_lm", "model_type": "llama", "config": _LLAMA}
    return {"workload": "transformers", "model": model, "data": {"sequence_length": 64}}


JOBS = (
    DistributedJob(name="GPT, FSDP2", launcher="torchrun", workload=_decoder(), parallelism=SHARDED),
    DistributedJob(name="GPT, DDP", launcher="srun", workload=_decoder(), parallelism=REPLICATED),
    DistributedJob(name="transformers LLaMA, FSDP2", launcher="ray", workload=_llama(), parallelism=SHARDED),
    DistributedJob(
        name="GPT, tensor parallel", launcher="torchrun", workload=_decoder(num_layers=2), parallelism=TENSOR
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure that one rank meets, and what must be said of it.

    Attributes:
        kind: A key of `FAULTS` in tests/jobs/rank_faults.py.
        rank: On which rank.
        at: In which forward pass; 0 while the model is made.
        launcher: Of the ranks.
        expected: Outcome of the probe.
    """

    kind: str
    rank: int
    at: int
    launcher: str
    expected: str

    @property
    def name(self) -> str:
        """All of it in a line."""
        return f"{self.launcher}: {self.kind} on rank {self.rank}, {STAGES[self.at]}"

    @property
    def job(self) -> Job:
        """A small eager job that meets it."""
        arguments = {"fault": self.kind, "fault_rank": self.rank, "fault_at": self.at}
        paths = {"model": "rank_faults:model", "batch": "rank_faults:batch", "loss": "rank_faults:loss"}
        return Job(
            workload="imported",
            model=paths | {"arguments": arguments},
            import_root=FAULTS_ROOT,
            compile=CompileSettings(enabled=False),
            num_replicas=NUM_RANKS,
            parallelism=SHARDED,
        )


STAGES = {0: "while it is built", 1: "in the first pass", 6: "in a timed pass"}
_EXPECTED = {
    "kill": Outcome.CRASHED,
    "exit": Outcome.CRASHED,
    "error": Outcome.CRASHED,
    "memory": Outcome.OUT_OF_MEMORY,
    "stop": Outcome.TIMED_OUT,
    "hang": Outcome.TIMED_OUT,
    "slow": Outcome.MEASURED,
    "disconnect": Outcome.CRASHED,
}


def faults() -> Iterator[Fault]:
    """Yield 104 faults: each kind, rank and stage by torchrun, and by the others as many as make a hundred."""
    for launcher, stages in (("torchrun", (0, 1, 6)), ("srun", (0, 6)), ("ray", (6, 0))):
        for at, rank, kind in itertools.product(stages, range(NUM_RANKS), _EXPECTED):
            is_left_out = launcher == "ray" and at == 0 and kind not in ("kill", "error", "memory", "stop")
            if not is_left_out:
                yield Fault(kind=kind, rank=rank, at=at, launcher=launcher, expected=str(_EXPECTED[kind]))
