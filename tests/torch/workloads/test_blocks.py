"""Activation checkpointing: what is recomputed, what is kept, and that the training stays the same."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bexplore.errors import UserInputError
from bexplore.job import CompileSettings, Job, Mode
from bexplore.workloads import Workload, build
from tests.builders import imported_job, step_job

GPT = {"vocab_size": 61, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 8}
RANDOM = GPT | {"dropout": 0.5, "attention_dropout": 0.5}
VIT = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 16}
MODES = ("none", "selective", "full")


def decoder_job(**fields) -> Job:
    return Job(workload="decoder", model=GPT, **fields)


def vit_job(**fields) -> Job:
    model = {"task": "image_classification", "model_type": "vit", "config": VIT | {"patch_size": 4}}
    return Job(workload="transformers", model=model, **fields)


def own_job(**fields) -> Job:
    return imported_job("stack", **fields)


class Calls(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def gradients_of(job: Job, *, compiled: bool = False) -> dict[str, torch.Tensor]:
    workload = build(dataclasses.replace(job, compile=CompileSettings(enabled=compiled)))
    for module in workload.compiled_modules if compiled else ():
        module.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    torch.manual_seed(3)
    workload.forward_backward(workload.make_batch(3))
    return {name: one.grad for name, one in parameters_of(workload)}


def parameters_of(workload: Workload) -> list[tuple[str, torch.nn.Parameter]]:
    assert workload.loss_module is not None
    return list(workload.loss_module.named_parameters())


def calls_of(mode: str) -> Counter[str]:
    workload = build(decoder_job(activation_checkpointing=mode))
    with Calls() as calls:
        workload.forward_backward(workload.make_batch(3))
    return calls.counts


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize(
    "job",
    [decoder_job(), Job(workload="decoder", model=RANDOM), vit_job(), own_job()],
    ids=["decoder", "with dropout", "vit", "own"],
)
def test_the_gradients_are_those_without_checkpointing(job, mode, compiled):
    expected = gradients_of(job, compiled=compiled)
    found = gradients_of(dataclasses.replace(job, activation_checkpointing=mode), compiled=compiled)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_full_checkpointing_computes_the_products_of_a_block_twice():
    none, full = calls_of("none"), calls_of("full")
    assert full["_scaled_dot_product_flash_attention_for_cpu"] == 2 * GPT["num_layers"]
    # of the four products of a block the last is not recomputed: nothing that the backward pass needs comes after it
    assert full["addmm"] - none["addmm"] == 3 * GPT["num_layers"]


def test_selective_checkpointing_keeps_products_and_attention_alone():
    none, selective = calls_of("none"), calls_of("selective")
    for operator in ("addmm", "mm", "bmm", "_scaled_dot_product_flash_attention_for_cpu"):
        assert selective[operator] == none[operator]
    for operator in ("native_layer_norm", "gelu"):
        assert selective[operator] > none[operator]


def test_an_evaluation_recomputes_nothing():
    workload = build(decoder_job(mode=Mode.EVAL, activation_checkpointing="full"))
    assert not any("forward" in vars(module) for module in workload.compiled_modules[0].modules())


def test_the_user_names_the_blocks_of_an_own_model():
    workload = build(own_job(activation_checkpointing="full", checkpointed_modules=("blocks.1",)))
    model = workload.loss_module.model
    assert ["forward" in vars(block) for block in model.blocks] == [False, True, False]


@pytest.mark.parametrize(
    ("job", "message", "hint"),
    [
        (imported_job(), "no list of repeated blocks", "explore.checkpointed_modules"),
        (imported_job(checkpointed_modules=("layers.*",)), "'layers.\\*', which fits no module", "model.first"),
        (step_job("scaled_step"), "recomputes by itself", "inside the step"),
    ],
    ids=["without blocks", "without such a name", "own step"],
)
def test_what_cannot_be_recomputed_is_an_error_with_a_hint(job, message, hint):
    with pytest.raises(UserInputError, match=message) as caught:
        build(dataclasses.replace(job, activation_checkpointing="full"))
    assert hint in caught.value.hint


SPEECH = """
import torch
from transformers import MoonshineConfig, MoonshineForConditionalGeneration

def model():
    sizes = dict(hidden_size=32, intermediate_size=32, vocab_size=61)
    layers = dict(encoder_num_hidden_layers=1, decoder_num_hidden_layers=2)
    heads = dict(encoder_num_attention_heads=2, decoder_num_attention_heads=2, pad_token_id=0)
    return MoonshineForConditionalGeneration(MoonshineConfig(**sizes, **layers, **heads))

def batch(size):
    return {"input_values": torch.randn(size, 4000), "labels": torch.ones(size, 4, dtype=torch.long)}
"""


def test_a_recomputed_model_of_transformers_keeps_no_keys_and_values(tmp_path):
    """Its blocks would keep them twice, and fail: CheckpointError."""
    (tmp_path / "speech.py").write_text(SPEECH)
    model = {"model": "speech:model", "batch": "speech:batch"}
    job = Job(workload="imported", model=model, import_root=str(tmp_path), compile=CompileSettings(enabled=False))
    plain, recomputed = (
        gradients_of(dataclasses.replace(job, activation_checkpointing=one)) for one in ("none", "full")
    )
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient)
