"""The jobs on which the trace of a rank is compared with a rank: models, and the ways in which ranks share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.job import CompileSettings, Job, Parallelism

RANKS = (1, 2, 8, 64, 1024)
SIZES = (4, 16)
PROGRAMS = ("eager", "compiled")
# The compiled programs of blocks do not depend on how many ranks there are, but for the shares of matrices.
_COMPILED_RANKS = (1, 2, 8)
COPIES = 2  # of HSDP
_HEADS = 8  # the most ranks of one tensor-parallel group; the others shard

_DECODER = {
    "num_layers": 2,
    "hidden_size": 256,
    "num_heads": _HEADS,
    "vocab_size": 2048,
    "max_position_embeddings": 128,
}
_LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "intermediate_size": 688,
    "vocab_size": 2048,
    "max_position_embeddings": 128,
}
_CONVNEXT = {"num_stages": 2, "depths": [2, 2], "hidden_sizes": [64, 128], "num_labels": 100}

_MODELS: Mapping[str, Mapping[str, Any]] = {
    "decoder": {"workload": "decoder", "model": _DECODER, "sequence_length": 128},
    "llama": {
        "workload": "transformers",
        "model": {"task": "causal_lm", "model_type": "llama", "config": _LLAMA},
        "data": {"sequence_length": 128},
        "sequence_length": 128,
    },
    "convnext": {
        "workload": "transformers",
        "model": {"task": "image_classification", "model_type": "convnext", "config": _CONVNEXT},
        "data": {"image_size": 64},
    },
}
_MATRICES = ("decoder", "llama")  # models with a plan for tensor parallelism
_BFLOAT16 = {"mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"}
# Settings beside the degrees, by the name of the way.
_WAYS: Mapping[str, Mapping[str, Any]] = {
    "FSDP2": {},
    "FSDP2, always reshard": {"fsdp_reshard_after_forward": "always"},
    "FSDP2, never reshard": {"fsdp_reshard_after_forward": "never"},
    "FSDP2, bfloat16": _BFLOAT16,
    "HSDP": {},
    "TP": {},
    "DDP": {},
}

LARGE_RANKS = 64
LARGE_JOB = """
train_input: {batch_size: 512, micro_batch_size: explore}
model:
  name: gpt3
  vocab_size: 50257
  hidden_size: 4096
  num_hidden_layers: 32
  num_heads: 32
  max_position_embeddings: 2048
  mixed_precision: true
  fp16_type: bfloat16
runconfig: {num_csx: 64}
explore:
  parallelism: {mixed_precision_param: bfloat16, mixed_precision_reduce: float32, gradient_sync: every}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job on a number of ranks.

    Attributes:
        model: A key of the models.
        way: How the ranks share the work; `one device` for one rank.
        num_ranks: All ranks.
        program: `eager` or `compiled`.
    """

    model: str
    way: str
    num_ranks: int
    program: str

    @property
    def name(self) -> str:
        """The case in words, by which it is found."""
        return f"{self.model} | {self.way} | {self.num_ranks} | {self.program}"

    @property
    def job(self) -> Job:
        """The job of one rank."""
        parallelism = _parallelism(self.way, self.num_ranks)
        return Job(
            **_MODELS[self.model],
            compile=CompileSettings(enabled=self.program == "compiled"),
            max_gradient_norm=1.0,
            parallelism=parallelism,
            num_replicas=parallelism.num_replicas,
        )


def cases() -> list[Case]:
    """Return all cases: the quick ones first, and those with few ranks."""
    return [
        Case(model=model, way=way, num_ranks=num_ranks, program=program)
        for program in PROGRAMS
        for num_ranks in (RANKS if program == "eager" else _COMPILED_RANKS)
        for model in _MODELS
        for way in _ways(model, num_ranks)
    ]


def _ways(model: str, num_ranks: int) -> list[str]:
    if num_ranks == 1:
        return ["one device"]
    left_out = {"TP"} if model not in _MATRICES else set()
    left_out |= {"HSDP"} if num_ranks <= COPIES else set()
    return [way for way in _WAYS if way not in left_out]


def _parallelism(way: str, num_ranks: int) -> Parallelism:
    if num_ranks == 1:
        return Parallelism()
    degrees = {"data_parallel_shard_degree": num_ranks}
    if way == "HSDP":
        degrees = {"data_parallel_replicate_degree": COPIES, "data_parallel_shard_degree": num_ranks // COPIES}
    elif way == "TP":
        matrices = min(num_ranks, _HEADS)
        degrees = {"tensor_parallel_degree": matrices, "data_parallel_shard_degree": num_ranks // matrices}
    elif way == "DDP":
        degrees = {"data_parallel_replicate_degree": num_ranks}
    settings: dict[str, Any] = {**degrees, **_WAYS[way]}
    return Parallelism(**settings)
