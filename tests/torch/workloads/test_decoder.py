"""The built-in decoder, the optimizers, the precisions: what can be trained without any code of the user's own."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._dynamo.decorators import mark_unbacked
from torch._subclasses.fake_tensor import FakeTensorMode

from bexplore.errors import UserInputError
from bexplore.job import Job, Mode, Precision
from bexplore.workloads import Workload, build
from bexplore.workloads.decoder import ACTIVATIONS, GATED_ACTIVATIONS, DecoderConfig

GPT = {"vocab_size": 61, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 8}
LLAMA = GPT | {
    "num_key_value_heads": 2,
    "position_embedding": "rotary",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "intermediate_size": 24,
    "use_bias": False,
    "tie_embeddings": False,
}


def make_job(model: dict | None = None, **fields: object) -> Job:
    return Job(workload="decoder", model=GPT | (model or {}), **fields)


def parameters_of(workload: Workload) -> dict[str, torch.Tensor]:
    assert workload.loss_module is not None
    return dict(workload.loss_module.named_parameters())


def test_gpt_2_small_has_the_published_number_of_parameters():
    workload = build(Job(workload="decoder", device="meta"))
    assert sum(parameter.numel() for parameter in parameters_of(workload).values()) == 124_439_808


def test_llama_2_7b_has_the_published_number_of_parameters():
    model = LLAMA | {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "num_key_value_heads": None,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
    }
    workload = build(Job(workload="decoder", model=model, device="meta", optimizer="SGD"))
    assert sum(parameter.numel() for parameter in parameters_of(workload).values()) == 6_738_415_616


@pytest.mark.parametrize(
    "model",
    [
        GPT | {"dropout": 0.1, "attention_dropout": 0.1, "output_bias": True},
        LLAMA,
        LLAMA | {"rotary_dim": 2, "head_size": 6},
        GPT | {"position_embedding": "alibi"},
        GPT | {"position_embedding": "alibi", "num_key_value_heads": 1},
        GPT | {"position_embedding": "fixed"},
        GPT | {"position_embedding": "none", "attention_bias": False, "feed_forward_bias": False},
    ],
)
def test_every_family_learns_from_a_batch_it_sees_again(model):
    workload = build(Job(workload="decoder", model=model, optimizer="AdamW", optimizer_arguments={"lr": 1e-2}))
    losses = []
    for _ in range(8):
        losses.append(float(workload.forward_backward(workload.make_batch(2))))
        workload.update()
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *GATED_ACTIVATIONS])
def test_every_activation_runs(activation):
    workload = build(make_job({"activation": activation}))
    assert torch.isfinite(workload.forward_backward(workload.make_batch(1)))


@pytest.mark.parametrize("model", [GPT, LLAMA, GPT | {"position_embedding": "alibi"}])
def test_no_token_sees_the_future(model):
    decoder = build(Job(workload="decoder", model=model)).loss_module.decoder
    tokens = torch.arange(8).reshape(1, 8)
    changed = tokens.clone()
    changed[0, 5] = 60
    before, after = decoder(tokens), decoder(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_rotary_attention_depends_on_distances_only():
    decoder = build(Job(workload="decoder", model=LLAMA)).loss_module.decoder
    heads = torch.randn(1, 1, 8, 4, generator=torch.Generator().manual_seed(0))
    same_vector = heads[:, :, :1].expand(1, 1, 8, 4)
    rotated = decoder.positions(same_vector)
    scores = (rotated @ rotated.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores.diagonal(2), scores[0, 2].expand(6))
    assert not torch.allclose(scores[0, 0], scores[0, 3])


def test_a_sample_does_not_depend_on_how_many_are_asked_for():
    workload = build(make_job(seed=3))
    small, large = workload.make_batch(2), workload.make_batch(5)
    assert all(torch.equal(a, b[:2]) for a, b in zip(small, large, strict=True))
    assert not torch.equal(large[0][0], large[0][1])


def test_the_targets_are_the_tokens_that_follow():
    inputs, targets = build(make_job()).make_batch(3)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, again, other = (parameters_of(build(make_job(seed=seed))) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_building_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build(make_job(seed=9))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("model", [GPT | {"dropout": 0.1}, LLAMA, GPT | {"position_embedding": "alibi"}])
def test_one_graph_without_breaks_serves_every_size_one_included(model):
    torch._dynamo.reset()
    workload = build(Job(workload="decoder", model=model))
    graphs = []

    def count_graphs(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    workload.loss_module.compile(fullgraph=True, backend=count_graphs)
    for micro_batch_size in (2, 1, 3):
        batch = workload.make_batch(micro_batch_size)
        for tensor in batch:
            mark_unbacked(tensor, 0, shape_id="samples")
        workload.forward_backward(batch)
    assert len(graphs) == 1


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16, Precision.AUTOCAST_BFLOAT16])
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_a_step_runs_with_fake_tensors(model, precision):
    with FakeTensorMode():
        workload = build(Job(workload="decoder", model=model, precision=precision))
        loss = workload.forward_backward(workload.make_batch(3))
        workload.update()
    assert loss.shape == ()


def test_two_half_passes_give_the_gradients_of_a_whole_one():
    workload = build(make_job())
    batch = workload.make_batch(4)
    workload.forward_backward(batch)
    whole = {name: parameter.grad.clone() for name, parameter in parameters_of(workload).items()}
    for parameter in parameters_of(workload).values():
        parameter.grad = None
    for half in (slice(0, 2), slice(2, 4)):
        workload.forward_backward(tuple(tensor[half] for tensor in batch), 0.5)
    for name, parameter in parameters_of(workload).items():
        torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-4, atol=1e-6)


def test_an_update_steps_and_clears_the_gradients():
    workload = build(make_job())
    before = {name: parameter.detach().clone() for name, parameter in parameters_of(workload).items()}
    workload.forward_backward(workload.make_batch(2))
    workload.update()
    after = parameters_of(workload)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in after.values())


def test_the_gradient_is_clipped_before_the_update():
    job = make_job(optimizer="SGD", optimizer_arguments={"lr": 1.0}, max_gradient_norm=1e-3)
    workload = build(job)
    before = {name: parameter.detach().clone() for name, parameter in parameters_of(workload).items()}
    workload.forward_backward(workload.make_batch(2))
    workload.update()
    moved = torch.stack([(p.detach() - before[name]).norm() for name, p in parameters_of(workload).items()]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


def test_evaluation_runs_forward_only_and_without_dropout():
    workload = build(make_job({"dropout": 0.5, "attention_dropout": 0.5}, mode=Mode.EVAL))
    batch = workload.make_batch(2)
    losses = {float(workload.forward_backward(batch)) for _ in range(2)}
    workload.update()
    assert len(losses) == 1
    assert workload.optimizers == []
    assert all(parameter.grad is None for parameter in parameters_of(workload).values())


def test_autocast_keeps_float32_weights_and_computes_in_bfloat16():
    workload = build(make_job(precision=Precision.AUTOCAST_BFLOAT16))
    seen = []
    block = workload.loss_module.decoder.blocks[0]
    block.feed_forward.up.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    loss = workload.forward_backward(workload.make_batch(2))
    assert seen == [torch.bfloat16]
    assert loss.dtype is torch.float32
    assert {p.dtype for p in parameters_of(workload).values()} == {torch.float32}


def test_pure_bfloat16_converts_the_weights_and_keeps_the_loss_in_float32():
    workload = build(make_job(precision=Precision.BFLOAT16))
    loss = workload.forward_backward(workload.make_batch(2))
    workload.update()
    assert {p.dtype for p in parameters_of(workload).values()} == {torch.bfloat16}
    assert loss.dtype is torch.float32


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adafactor", "RMSprop", "NAdam", "Adagrad"])
def test_any_optimizer_of_torch_steps(name):
    workload = build(make_job(optimizer=name))
    workload.forward_backward(workload.make_batch(1))
    workload.update()
    assert type(workload.optimizers[0]) is getattr(torch.optim, name)


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"optimizer": "adamw"}, "'adamw'", "Did you mean AdamW?"),
        ({"optimizer": "LBFGS"}, "LBFGS cannot be explored", "such as AdamW"),
        ({"optimizer_arguments": {"weight_decai": 0.1}}, "'weight_decai'", "Did you mean weight_decay?"),
        ({"optimizer_arguments": {"lr": -1}}, "lr=-1", "Correct the optimizer's arguments"),
        ({"workload": "decodr"}, "'decodr'", "Did you mean decoder?"),
        ({"device": "gpu"}, "'gpu'", "cuda"),
        ({"precision": Precision.AUTOCAST_FLOAT16}, "autocast_float16", "autocast_bfloat16"),
        ({"sequence_length": 9}, "9 exceeds max_position_embeddings 8", "Shorten"),
        ({"model": {"hiden_size": 3}}, "'hiden_size'", "Did you mean hidden_size?"),
        ({"model": {"num_heads": 5}}, "not a multiple of num_heads 5", "head_size"),
        ({"model": {"num_key_value_heads": 3}}, "num_key_value_heads 3", "same number"),
        ({"model": {"activation": "gelo"}}, "'gelo'", "Did you mean gelu?"),
        ({"model": {"num_layers": 0}}, "num_layers is 0", "1 or more"),
        ({"model": {"vocab_size": "61"}}, "vocab_size is '61'", "integer"),
        ({"model": {"dropout": 1.0}}, "dropout is 1.0", "below 1"),
        ({"model": {"use_bias": "yes"}}, "use_bias is 'yes'", "true or false"),
        ({"model": {"position_embedding": "rotary", "rotary_dim": 3}}, "rotary_dim is 3", "even"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_to_type(fields, message, hint):
    model = GPT | fields.get("model", {})
    with pytest.raises(UserInputError) as caught:
        build(dataclasses.replace(make_job(), **(fields | {"model": model})))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_frozen_model_cannot_be_trained():
    from bexplore.workloads.workload import build_optimizer

    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(UserInputError, match="nothing to train"):
        build_optimizer("SGD", {}, frozen.parameters())


def test_the_defaults_of_the_configuration_are_valid():
    DecoderConfig().check()
