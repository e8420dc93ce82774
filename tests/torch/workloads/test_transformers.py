"""Models of the `transformers` library by configuration, without any download."""

from __future__ import annotations

import sys

import pytest
import torch
from torch._dynamo.decorators import mark_unbacked
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from bexplore.errors import UserInputError
from bexplore.job import Job, Mode
from bexplore.job.lengths import Lengths
from bexplore.workloads import build

pytest.importorskip("transformers", reason="the extra `hf` is not installed")

_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12, "vocab_size": 61}
MODELS = {
    "gpt2": ("causal_lm", _GPT2 | {"bos_token_id": 0, "eos_token_id": 0}),
    "llama": ("causal_lm", _BERT | {"num_key_value_heads": 1, "vocab_size": 61}),
    "bert": ("masked_lm", _BERT | {"vocab_size": 61}),
    "t5": ("seq2seq_lm", {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 24, "vocab_size": 61}),
    "vit": ("image_classification", _BERT | {"image_size": 8, "patch_size": 4, "num_labels": 7}),
    "resnet": (
        "image_classification",
        {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_labels": 7},
    ),
}
DATA = {
    "causal_lm": {"sequence_length": 12},
    "masked_lm": {"sequence_length": 12},
    "seq2seq_lm": {"sequence_length": 12, "target_length": 5},
    "image_classification": {"image_size": 8},
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def make_job(model_type: str, *, config: dict | None = None, data: dict | None = None, **fields) -> Job:
    task, settings = MODELS[model_type]
    return Job(
        workload="transformers",
        model={"task": task, "model_type": model_type, "config": settings | (config or {})},
        data=DATA[task] | (data or {}),
        **fields,
    )


@pytest.mark.parametrize("model_type", MODELS)
def test_one_graph_without_breaks_trains_at_every_size(model_type):
    torch._dynamo.reset()
    workload = build(make_job(model_type))
    graphs = []

    def count_graphs(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    workload.loss_module.compile(fullgraph=True, backend=count_graphs)
    for micro_batch_size in (2, 3):
        batch = workload.make_batch(micro_batch_size)
        for tensor in pytree.tree_leaves(batch):
            if model_type == "resnet":  # batch normalization asks whether there is more than one value
                torch._dynamo.mark_dynamic(tensor, 0)
            else:
                mark_unbacked(tensor, 0, shape_id="samples")
        assert torch.isfinite(workload.forward_backward(batch))
        workload.update()
    assert len(graphs) == 1


@pytest.mark.parametrize("model_type", MODELS)
def test_a_step_runs_with_fake_tensors(model_type):
    with FakeTensorMode():
        workload = build(make_job(model_type))
        assert workload.forward_backward(workload.make_batch(3)).shape == ()
        workload.update()


@pytest.mark.parametrize("model_type", MODELS)
def test_a_sample_does_not_depend_on_how_many_are_asked_for(model_type):
    workload = build(make_job(model_type))
    small, large = (pytree.tree_leaves(workload.make_batch(size)) for size in (2, 4))
    assert workload.batch_dimensions == [0] * len(small)
    assert all(torch.equal(a, b[:2]) for a, b in zip(small, large, strict=True))


def test_every_sample_has_as_many_masked_tokens():
    (batch,) = build(make_job("bert")).make_batch(4)
    masked = (batch["labels"] != -100).sum(dim=1)
    assert masked.tolist() == [2] * 4
    assert bool((batch["input_ids"][batch["labels"] != -100] == 60).all())


def test_source_and_target_have_lengths_of_their_own():
    (batch,) = build(make_job("t5")).make_batch(2)
    assert (batch["input_ids"].shape, batch["labels"].shape) == ((2, 12), (2, 5))


@pytest.mark.parametrize("model_type", ["vit", "resnet"])
def test_images_of_several_sizes_are_batches_of_several_lengths(model_type):
    lengths = Lengths.from_samples([8, 12, 16])
    workload = build(make_job(model_type, data={"image_size": 16}, lengths=lengths, sequence_length=16))
    for size in (8, 16):
        (batch,) = workload.make_batch_of_length(3, size)
        assert batch["pixel_values"].shape == (3, 3, size, size)
        assert workload.forward_backward((batch,)).isfinite()


def test_a_mask_of_ones_is_given_where_it_is_asked_for():
    (batch,) = build(make_job("llama", data={"attention_mask": True})).make_batch(2)
    assert bool((batch["attention_mask"] == 1).all())


def test_attention_is_scaled_dot_product_attention_and_nothing_is_cached():
    config = build(make_job("llama")).loss_module.model.config
    assert config._attn_implementation == "sdpa"
    assert config.use_cache is False


def test_evaluation_runs_forward_only():
    workload = build(make_job("bert", mode=Mode.EVAL))
    loss = workload.forward_backward(workload.make_batch(2))
    assert not loss.requires_grad
    assert not workload.loss_module.training


@pytest.mark.parametrize(
    ("model", "data", "message", "hint"),
    [
        ({"task": "causal"}, {}, "no task 'causal'", "Did you mean causal_lm?"),
        ({"model_type": "gpt22"}, {}, "no model_type 'gpt22'", "Did you mean gpt2?"),
        ({"model_type": "resnet", "config": {}}, {}, "cannot build causal_lm of resnet", "config.json"),
        ({"config": _GPT2 | {"n_head": 5}}, {}, "divisible by num_heads", "config.json"),
        ({"config": _GPT2 | {"n_embd": "wide"}}, {}, "n_embd", "config.json"),
        ({"config": {"n_layers": 2}}, {}, "no key 'n_layers'", "Did you mean n_layer?"),
        ({"size": 3}, {}, "no setting 'size'", "Choose one of"),
        ({}, {"sequence_length": 13}, "13 exceeds the 12 positions", "Shorten"),
        ({}, {"image_size": 13}, "no setting 'image_size'", "Choose one of"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_to_type(model, data, message, hint):
    job = make_job("gpt2")
    with pytest.raises(UserInputError) as caught:
        build(Job(workload="transformers", model=dict(job.model) | model, data=dict(job.data) | data))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_keys_of_a_real_config_file_that_the_library_ignores_pass():
    job = make_job("gpt2", config={"task_specific_params": {}, "n_ctx": 12, "torch_dtype": "float32"})
    assert torch.isfinite(build(job).forward_backward(build(job).make_batch(1)))


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserInputError) as caught:
        build(make_job("gpt2"))
    assert caught.value.hint == "pip install 'bexplore[hf]'"
