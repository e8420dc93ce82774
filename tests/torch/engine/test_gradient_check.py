"""Does the micro-batch size change the training? Known cases of both kinds, and the state that must survive."""

from __future__ import annotations

import dataclasses
import textwrap

import pytest
import torch

from bexplore.engine.protocol.messages import Failed
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.engine.worker import step_checks
from bexplore.engine.worker.step_checks import GradientEquivalence, compare_gradients
from bexplore.job import Job, Mode, Precision
from bexplore.measurement.probe import Outcome
from bexplore.workloads import Workload, build
from tests.builders import imported_job

GPT = {"vocab_size": 61, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 8}
USER_CODE = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, norm=None, drop=0.0):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, None: lambda width: nn.Identity()}[norm](16)
        self.drop = nn.Dropout(drop)
        self.second = nn.Linear(16, 4)

    def forward(self, inputs):
        return self.second(self.drop(self.norm(self.first(inputs)).relu()))

class FrozenStatistics(Net):
    def __init__(self):
        super().__init__(norm="batch")

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

class BranchesOnTraining(Net):
    def forward(self, inputs):
        output = super().forward(inputs)
        return output if self.training else {"prediction": output}

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, inputs):
        return self.lstm(inputs.unsqueeze(1).expand(-1, 3, -1))[0][:, -1, :4]

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True)

    def forward(self, inputs):
        return self.layer(inputs.unsqueeze(1).expand(-1, 3, -1))[:, 0, :4]

class FunctionalDropout(Net):
    def forward(self, inputs):
        return super().forward(F.dropout(inputs, 0.5, self.training))

class DropPath(nn.Module):
    def forward(self, x):
        return x * torch.rand(x.size(0), 1, device=x.device).round() if self.training else x

class StochasticDepth(Net):
    def __init__(self):
        super().__init__()
        self.norm = DropPath()

class Random(Net):
    def forward(self, inputs):
        return super().forward(inputs) * torch.rand(inputs.size(0), 1).round()

class RouterMoe(Net):
    '''The squared mean load of the experts: Switch Transformer's balancing term, whose mean is over the batch.'''
    def forward(self, inputs):
        output = super().forward(inputs)
        return output, output.softmax(dim=-1).mean(dim=0).square().sum()

class MoeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), RouterMoe()])

    def forward(self, inputs, targets):
        output, balance = self.layers[1](self.layers[0](inputs))
        return F.cross_entropy(output, targets) + balance

def pairs(micro_batch_size):
    return torch.randn(micro_batch_size, 6), torch.arange(micro_batch_size) % 4

def padded(micro_batch_size):
    inputs, targets = pairs(micro_batch_size)
    tokens = targets.unsqueeze(1).repeat(1, 5)
    lengths = torch.arange(micro_batch_size) % 5 + 1
    tokens[torch.arange(5) >= lengths.unsqueeze(1)] = -100
    return inputs, tokens

def lists(micro_batch_size):
    return [torch.randn(6) for _ in range(micro_batch_size)], torch.zeros(micro_batch_size, 4)

def contrastive(output, targets):
    output = F.normalize(output, dim=1)
    return F.cross_entropy(output @ output.T.roll(1, 0), torch.arange(len(output), device=output.device))

def mean_of_tokens(output, targets):
    return F.cross_entropy(output.unsqueeze(1).expand(-1, 5, -1).flatten(0, 1), targets.flatten())

def mean_of_means(output, targets):
    losses = F.cross_entropy(output.unsqueeze(2).expand(-1, -1, 5), targets, reduction="none")
    return (losses.sum(dim=1) / (targets >= 0).sum(dim=1)).mean()

def summed(output, targets):
    return F.cross_entropy(output, targets, reduction="sum")

def infinite(output, targets):
    return F.cross_entropy(output, targets) * float("inf")

class Step:
    def __init__(self):
        self.net = Net(norm="batch")
        self.modules = [self.net]
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def make_batch(self, micro_batch_size):
        return pairs(micro_batch_size)
    def forward_backward(self, batch):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        loss.backward()
        return loss
    def update(self):
        self.optimizer.step()

class PlainStep(Step):
    def __init__(self):
        super().__init__()
        self.net.norm = nn.Identity()

class ForgetfulStep(PlainStep):
    def forward_backward(self, batch):
        self.optimizer.zero_grad()
        return super().forward_backward(batch)
"""


@pytest.fixture(scope="module")
def import_root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradient_equivalence")
    (folder / "same_training_code.py").write_text(textwrap.dedent(USER_CODE))
    return str(folder)


@pytest.fixture
def make_workload(import_root):
    def make(model: str = "Net", batch: str = "pairs", loss: str | None = None, **arguments) -> Workload:
        paths = {"model": model, "batch": batch} | ({"loss": loss} if loss else {})
        model_section = {name: f"same_training_code:{path}" for name, path in paths.items()}
        job = Job(workload="imported", model=model_section | {"arguments": arguments}, import_root=import_root)
        return build(job)

    return make


def make_step(step: str, import_root: str) -> Workload:
    return build(Job(workload="imported", model={"step": f"same_training_code:{step}"}, import_root=import_root))


def compare(workload: Workload, base: int = 2, size: int = 8) -> GradientEquivalence:
    return compare_gradients(workload, base_micro_batch_size=base, micro_batch_size=size)


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.AUTOCAST_BFLOAT16, Precision.BFLOAT16])
@pytest.mark.parametrize(("base", "size"), [(1, 8), (3, 7), (8, 2)])
def test_a_gpt_trains_the_same_at_every_size(precision, base, size):
    job = Job(workload="decoder", model=GPT, precision=precision)
    comparison = compare(build(job), base, size)
    assert comparison.same is True
    assert comparison.modules == ()
    assert "does not change the training" in comparison.message


@pytest.mark.parametrize("activation_checkpointing", ["none", "selective", "full"])
def test_dropout_is_no_difference(activation_checkpointing):
    model = GPT | {"dropout": 0.5, "attention_dropout": 0.5}
    job = Job(workload="decoder", model=model, activation_checkpointing=activation_checkpointing)
    assert compare(build(job)).same is True


@pytest.mark.parametrize("model", ["Recurrent", "Transformer", "StochasticDepth", "FunctionalDropout"])
def test_dropout_of_every_kind_is_switched_off(make_workload, model):
    assert compare(make_workload(model)).same is True


def test_batch_normalization_changes_the_training_and_is_named(make_workload):
    comparison = compare(make_workload(norm="batch"))
    assert comparison.same is False
    assert comparison.modules == ("model.norm (BatchNorm1d)",)
    assert comparison.worst_relative_difference > 0.1
    assert "changes the training" in comparison.message
    assert "Batch statistics: model.norm (BatchNorm1d)" in comparison.message


def test_layer_normalization_does_not_change_the_training(make_workload):
    assert compare(make_workload(norm="layer")).same is True


def test_frozen_batch_statistics_do_not_change_the_training(make_workload):
    assert compare(make_workload("FrozenStatistics")).same is True


def test_what_is_frozen_is_not_blamed(make_workload):
    comparison = compare(make_workload("FrozenStatistics", loss="contrastive"))
    assert (comparison.same, comparison.modules) == (False, ())


def test_a_loss_within_the_batch_changes_the_training(make_workload):
    comparison = compare(make_workload(loss="contrastive"), 4, 8)
    assert comparison.same is False
    assert comparison.modules == ()
    assert "compares the samples of a batch" in comparison.message


def test_a_mean_weighted_by_padding_changes_the_training(make_workload):
    assert compare(make_workload(batch="padded", loss="mean_of_tokens")).same is False


def test_a_mean_over_samples_of_padded_means_does_not(make_workload):
    assert compare(make_workload(batch="padded", loss="mean_of_means")).same is True


def test_a_sum_where_a_mean_is_meant_changes_the_training(make_workload):
    assert compare(make_workload(loss="summed")).same is False


def test_balancing_of_experts_changes_the_training_and_is_named(make_workload):
    comparison = compare(make_workload("MoeNet"))
    assert comparison.same is False
    assert comparison.modules == ("model.layers.1 (RouterMoe)",)


def test_code_that_branches_on_training_sees_training(make_workload):
    assert compare(make_workload("BranchesOnTraining")).same is True


def test_random_passes_are_not_judged(make_workload):
    # Of 64 samples: the masks of 8 are equal once in 256 runs.
    comparison = compare(make_workload("Random"), 8, 64)
    assert comparison.same is None
    assert comparison.worst_relative_difference is None
    assert "random numbers" in comparison.message


def test_gradients_that_are_not_finite_are_not_judged(make_workload):
    assert compare(make_workload(loss="infinite")).same is None


def test_samples_that_cannot_be_told_apart_are_not_judged(make_workload):
    assert compare(dataclasses.replace(make_workload(), batch_dimensions=None)).same is None


def test_a_whole_step_without_a_loss_scale_is_compared_too(import_root):
    changed, plain = compare(make_step("Step", import_root)), compare(make_step("PlainStep", import_root), 3, 7)
    assert (changed.same, changed.modules) == (False, ("norm (BatchNorm1d)",))
    assert plain.same is True


def test_a_step_that_clears_its_gradients_in_every_pass_is_not_judged(import_root):
    assert compare(make_step("ForgetfulStep", import_root)).same is None


def test_evaluation_is_not_judged():
    assert compare(build(Job(workload="decoder", model=GPT, mode=Mode.EVAL))).same is None


def test_equal_sizes_are_the_same_without_a_pass(make_workload):
    without_passes = dataclasses.replace(make_workload(norm="batch"), forward_backward=None)
    assert compare(without_passes, 4, 4).same is True


def test_gradients_buffers_random_state_and_modes_are_left_as_they_were(make_workload):
    workload = make_workload(norm="batch", drop=0.5)
    workload.forward_backward(workload.make_batch(4))
    module = workload.loss_module
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    values = {name: gradient.clone() for name, gradient in gradients.items()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    modes = [child.training for child in module.modules()]
    random_state = torch.get_rng_state()
    attention, dropout = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.dropout
    compare(workload)
    for name, parameter in module.named_parameters():
        assert parameter.grad is gradients[name]
        assert torch.equal(parameter.grad, values[name])
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())
    assert [child.training for child in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.nn.functional.scaled_dot_product_attention is attention
    assert torch.nn.functional.dropout is dropout


def test_no_pass_is_larger_than_the_larger_size_and_few_are_run():
    workload = build(Job(workload="decoder", model=GPT))
    sizes = []

    def watched(batch, loss_scale=1.0):
        sizes.append(len(batch[0]))
        return workload.forward_backward(batch, loss_scale)

    compare(dataclasses.replace(workload, forward_backward=watched), 1, 50)
    assert max(sizes) <= 50
    assert sum(sizes) <= 4 * step_checks._MOST_SMALL_PASSES


def test_a_compiled_model_is_compared_without_compiling_again():
    torch._dynamo.reset()
    workload = build(Job(workload="decoder", model=GPT))
    graphs = []
    workload.loss_module.compile(backend=lambda graph, _inputs: graphs.append(graph) or graph.forward)
    assert compare(workload).same is True
    assert graphs == []


def test_the_result_is_made_of_json_values(make_workload):
    import json

    record = dataclasses.asdict(compare(make_workload(norm="batch")))
    assert json.loads(json.dumps(record))["modules"] == ["model.norm (BatchNorm1d)"]


def test_labels_that_number_samples_are_told_where_parts_fail(tmp_path, monkeypatch):
    failed = Failed(outcome=Outcome.CRASHED, reason="IndexError: Target 1", details={"exception_type": "IndexError"})
    runner = EngineRunner(RunnerSettings(job=imported_job(), run_dir=tmp_path))
    monkeypatch.setattr(runner, "_ask", lambda request, **limits: failed)

    found = runner.gradient_equivalence(base_micro_batch_size=1, micro_batch_size=4)

    assert found["same"] is None
    assert "could not be compared: IndexError: Target 1; labels that number the samples" in found["message"]
