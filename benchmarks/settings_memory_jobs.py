"""The jobs and the settings on which predicted memory is compared with measured memory: small, of every kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trace_jobs import transformers_job
from bexplore.job import CompileSettings, Job, Precision

EAGER = CompileSettings(enabled=False)
_LENGTH = 128
_TEXT = {"vocab_size": 512, "max_position_embeddings": _LENGTH}
_DECODER = _TEXT | {"num_layers": 2, "hidden_size": 128, "num_heads": 4}
_LLAMA_DECODER = _DECODER | {
    "position_embedding": "rotary",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "intermediate_size": 344,
    "use_bias": False,
    "tie_embeddings": False,
    "num_key_value_heads": 2,
}
_BODY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}

# What an exploration of settings would choose from: fields of a job, by the words of the table.
_CHECKPOINTED: Mapping[str, Mapping[str, Any]] = {
    "nothing recomputed": {},
    "selective": {"activation_checkpointing": "selective"},
    "full": {"activation_checkpointing": "full"},
}
_COMPILED = _CHECKPOINTED | {
    "budget 0.5": {"activation_memory_budget": 0.5},
    "budget 0.0": {"activation_memory_budget": 0.0},
}
_BFLOAT16 = {"precision": Precision.BFLOAT16}
_MOSTLY_EAGER = {
    **{f"{name}, eager": fields | {"compile": EAGER} for name, fields in _CHECKPOINTED.items()},
    "bfloat16, eager": _BFLOAT16 | {"compile": EAGER},
    "budget 0.5": {"activation_memory_budget": 0.5},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job under one choice of settings.

    Attributes:
        model: Its model, in words.
        settings: The choice, in words.
        job: What is traced and run.
        sizes: Micro-batch sizes; one where each is compiled anew.
    """

    model: str
    settings: str
    job: Job
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the case is recorded under."""
        return f"{self.model} | {self.settings}"


def cases() -> list[Case]:
    """Return all cases, those of a job in a row."""
    return [
        Case(
            model=model,
            settings=settings,
            job=(changed := _changed(job, fields)),
            sizes=(16,) if changed.compile.enabled else (4, 16),
        )
        for model, (job, choices) in _JOBS.items()
        for settings, fields in choices.items()
    ]


def case(name: str) -> Case:
    """Return the case of a name."""
    return next(one for one in cases() if one.name == name)


def _changed(job: Job, fields: Mapping[str, Any]) -> Job:
    """Return a job with other fields; `arguments` are those of the user's own code."""
    own = dict(fields)
    if "arguments" in own:
        own["model"] = {**job.model, "arguments": own.pop("arguments")}
    return dataclasses.replace(job, **own)


def _decoder(model: Mapping[str, Any]) -> Job:
    return Job(workload="decoder", model=model, sequence_length=_LENGTH)


def _text(task: str, model_type: str, config: Mapping[str, Any]) -> Job:
    return transformers_job(task, model_type, _TEXT | config, sequence_length=_LENGTH)


def _images(model_type: str, config: Mapping[str, Any], **fields: Any) -> Job:
    config = {"num_labels": 10, "image_size": 64} | config
    return transformers_job("image_classification", model_type, config, data={"image_size": 64}, **fields)


def _own(model: str, batch: str, **fields: Any) -> Job:
    paths = {"model": f"benchmarks.jobs.{model}", "batch": f"benchmarks.jobs.{batch}"}
    return Job(workload="imported", model=paths, import_root=str(Path(__file__).parents[1]), **fields)


_T5 = {"num_layers": 2, "d_model": 128, "d_kv": 32, "num_heads": 4, "d_ff": 512, "vocab_size": 512}
_RESNET = {"layer_type": "basic", "depths": [2, 2], "hidden_sizes": [32, 64], "embedding_size": 32}
_ARGUMENTS = {
    **{
        f"num_recomputed={number}, eager": {"arguments": {"num_recomputed": number}, "compile": EAGER}
        for number in (0, 2, 4)
    },
    "expansion=8, eager": {"arguments": {"expansion": 8}, "compile": EAGER},
    "num_recomputed=2": {"arguments": {"num_recomputed": 2}},
}
_WIDTHS = {
    "nothing recomputed, eager": {"compile": EAGER},
    "selective, eager": {"activation_checkpointing": "selective", "compile": EAGER},
    "full, eager": {"activation_checkpointing": "full", "compile": EAGER},
    "width=32, eager": {"arguments": {"width": 32}, "compile": EAGER},
    "budget 0.5": {"activation_memory_budget": 0.5},
}

_JOBS: Mapping[str, tuple[Job, Mapping[str, Mapping[str, Any]]]] = {
    "decoder": (_decoder(_DECODER), _COMPILED),
    "decoder like LLaMA": (_decoder(_LLAMA_DECODER), _COMPILED),
    "gpt2": (
        transformers_job(
            "causal_lm",
            "gpt2",
            {"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 512, "n_positions": _LENGTH},
            sequence_length=_LENGTH,
        ),
        _MOSTLY_EAGER,
    ),
    "llama": (
        _text("causal_lm", "llama", _BODY | {"num_key_value_heads": 2, "intermediate_size": 344}),
        _MOSTLY_EAGER,
    ),
    "bert": (_text("masked_lm", "bert", _BODY), _MOSTLY_EAGER),
    "t5": (transformers_job("seq2seq_lm", "t5", _T5, sequence_length=_LENGTH), _MOSTLY_EAGER),
    "vit": (_images("vit", _BODY | {"patch_size": 8}), _MOSTLY_EAGER),
    "resnet": (_images("resnet", _RESNET), _MOSTLY_EAGER),
    "own encoder": (
        _own("traced_models:encoder", "traced_models:vectors", checkpointed_modules=("body.layers.*",)),
        _MOSTLY_EAGER,
    ),
    "own mixer": (_own("traced_models:mixer", "traced_models:vectors"), _MOSTLY_EAGER),
    "own residual net": (_own("settings_models:ResidualNet", "settings_models:images"), _WIDTHS),
    "own feed-forward": (_own("settings_models:feed_forward", "traced_models:vectors"), _ARGUMENTS),
}

# A LLaMA of 7 billion parameters in bfloat16, state of AdamW included, on one device of 80 GB.
LARGE_JOB = """
train_input: {batch_size: 64, micro_batch_size: explore}
runconfig: {num_csx: 1}
explore:
  precision: bfloat16
  settings: {activation_checkpointing: [none, selective, full]}
  workload:
    sequence_length: 2048
    transformers:
      task: causal_lm
      model_type: llama
      config: {}
    optimizer:
      name: AdamW
      arguments: {lr: 0.0003}
"""
LARGE_MEMORY = "80GiB"
