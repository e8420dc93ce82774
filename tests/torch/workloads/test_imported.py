"""The user's own models, batches, losses and whole steps, by import path."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bexplore.errors import UserInputError
from bexplore.job import Job, Mode, Precision
from bexplore.workloads import build

USER_CODE = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, width=8, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.norm(self.conv(images)).relu().mean(dim=(2, 3)))

class Keywords(Net):
    def forward(self, *, images, labels, scale):
        return {"loss": scale * F.cross_entropy(super().forward(images), labels), "extra": images}

class WholeBatch(Net):
    def forward(self, batch):
        return super().forward(batch["images"])

class LogitsAndLoss(Net):
    def forward(self, images, labels=None):
        logits = super().forward(images)
        return logits, F.cross_entropy(logits, labels)

class OwnLoss(Net):
    def forward(self, images):
        return super().forward(images).square().mean()

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(108, 108), nn.Linear(108, 108)
        self.second.weight = self.first.weight

    def forward(self, images):
        return self.second(self.first(images.flatten(1)))

def pairs(micro_batch_size, classes=5, **_):
    return torch.randn(micro_batch_size, 3, 6, 6), torch.arange(micro_batch_size) % classes

def keywords(micro_batch_size):
    images, labels = pairs(micro_batch_size)
    return {"images": images, "labels": labels, "scale": torch.tensor(2.0), "name": "x"} | {}

def dicts(micro_batch_size):
    images, labels = pairs(micro_batch_size)
    return {"images": images, "labels": labels, "scale": torch.tensor(2.0)}

def dicts_in_pairs(micro_batch_size):
    images, labels = pairs(micro_batch_size)
    return {"images": images}, labels

def of_whole_batch(output, batch):
    return F.cross_entropy(output, batch["labels"])

def images(micro_batch_size):
    return torch.randn(micro_batch_size, 3, 6, 6)

def transposed(micro_batch_size):
    return torch.randn(7, micro_batch_size, 8)

def list_of_images(micro_batch_size):
    return [torch.randn(3, 6, 6) for _ in range(micro_batch_size)]

def strings(micro_batch_size):
    return ["a"] * micro_batch_size

def smooth(output, targets, smoothing=0.0):
    return F.cross_entropy(output, targets, label_smoothing=smoothing)

def not_a_loss(output, targets):
    return output

def not_a_module():
    return 3

def strict(micro_batch_size, length):
    return torch.zeros(micro_batch_size, length)

def raises():
    raise RuntimeError("a bug of the user's own")

CONSTANT = 5

class Step:
    '''Two optimizers, a frozen part, clipping of its own.'''
    def __init__(self, width=4):
        self.frozen = nn.Linear(3, width).requires_grad_(False)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 1)
        self.modules = {"frozen": self.frozen, "first": self.first, "second": self.second}
        self.optimizers = {"a": torch.optim.SGD(self.first.parameters(), lr=0.1),
                           "b": torch.optim.Adam(self.second.parameters())}

    def make_batch(self, micro_batch_size):
        return torch.randn(micro_batch_size, 3)

    def evaluate(self, batch):
        return self.second(self.first(self.frozen(batch))).square().mean()

    def forward_backward(self, batch):
        loss = self.evaluate(batch) + 0.1 * self.first(self.frozen(batch)).abs().mean()
        loss.backward()
        return loss

    def update(self):
        nn.utils.clip_grad_norm_(self.second.parameters(), 1.0)
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

class ScaledStep(Step):
    def forward_backward(self, batch, loss_scale=1.0):
        loss = self.evaluate(batch)
        (loss * loss_scale).backward()
        return loss

class NoUpdate:
    modules = []
    def make_batch(self, micro_batch_size): ...
    def forward_backward(self, batch): ...

class NoForwardBackward:
    modules = []
    def make_batch(self, micro_batch_size): ...
    def update(self): ...

class NoEvaluate(NoUpdate): ...

class NoModules:
    def make_batch(self, micro_batch_size): ...
    def forward_backward(self, batch): ...
    def update(self): ...

class TakesNothing(Step):
    def forward_backward(self): ...

class SaysNothing(Step):
    def forward_backward(self, batch):
        super().forward_backward(batch)
"""


@pytest.fixture(scope="module")
def import_root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    package = folder / "users_project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text(textwrap.dedent(USER_CODE))
    (package / "needs_more.py").write_text("import a_package_that_is_not_there")
    return str(folder)


@pytest.fixture
def make_job(import_root):
    def make(model: str = "Net", batch: str = "pairs", *, arguments=None, loss=None, **fields) -> Job:
        paths = {"model": f"users_project.code:{model}", "batch": f"users_project.code:{batch}"}
        if loss is not None:
            paths["loss"] = loss if ":" in loss else f"users_project.code:{loss}"
        return Job(workload="imported", model=paths | {"arguments": arguments or {}}, import_root=import_root, **fields)

    return make


@pytest.fixture
def step_job(import_root):
    def make(step: str = "Step", **fields) -> Job:
        model = {"step": f"users_project.code:{step}", "arguments": fields.pop("arguments", {})}
        return Job(workload="imported", model=model, import_root=import_root, **fields)

    return make


@pytest.mark.parametrize(
    ("model", "batch", "loss"),
    [
        ("Net", "pairs", None),
        ("Net", "pairs", "smooth"),
        ("Net", "pairs", "torch.nn:CrossEntropyLoss"),
        ("Net", "pairs", "torch.nn.functional:cross_entropy"),
        ("Keywords", "dicts", None),
        ("WholeBatch", "dicts", "of_whole_batch"),
        ("WholeBatch", "dicts_in_pairs", None),
        ("Net", "dicts_in_pairs", None),
        ("LogitsAndLoss", "pairs", None),
        ("OwnLoss", "images", None),
    ],
)
def test_every_form_of_model_batch_and_loss_trains(make_job, model, batch, loss):
    workload = build(make_job(model, batch, loss=loss))
    before = [parameter.detach().clone() for parameter in workload.loss_module.parameters()]
    loss_value = workload.forward_backward(workload.make_batch(4))
    workload.update()
    assert loss_value.shape == () and torch.isfinite(loss_value)
    assert any(not torch.equal(a, b) for a, b in zip(before, workload.loss_module.parameters(), strict=True))


def test_forms_without_a_loss_path_agree_with_the_loss_written_out(make_job):
    losses = {}
    for model, batch, loss in (("Net", "pairs", "smooth"), ("Net", "pairs", None), ("LogitsAndLoss", "pairs", None)):
        workload = build(make_job(model, batch, loss=loss))
        losses[model, loss] = float(workload.forward_backward(workload.make_batch(4)))
    assert len(set(losses.values())) == 1


def test_each_callable_gets_the_arguments_that_it_names(make_job):
    job = make_job(arguments={"width": 4, "classes": 3, "smoothing": 0.5}, loss="smooth")
    workload = build(job)
    _, labels = workload.make_batch(7)[0]
    assert workload.loss_module.model.head.weight.shape == (3, 4)
    assert int(labels.max()) == 2
    assert workload.loss_module.loss.keywords == {"smoothing": 0.5}


def test_the_import_root_comes_first_on_the_import_path(make_job, tmp_path):
    (tmp_path / "code.py").write_text(textwrap.dedent(USER_CODE))  # named like a module of the standard library
    job = make_job()
    build(job)
    import sys

    assert sys.path[0] == job.import_root


def test_batches_are_the_same_at_every_call(make_job):
    workload = build(make_job())
    first, second = workload.make_batch(3)[0], workload.make_batch(3)[0]
    assert torch.equal(first[0], second[0])


@pytest.mark.parametrize(
    ("model", "batch", "loss", "expected"),
    [
        ("Net", "pairs", None, [0, 0]),
        ("Keywords", "dicts", None, [0, 0, None]),
        ("Net", "transposed", "not_a_loss", [1]),
        ("Net", "list_of_images", "not_a_loss", None),
    ],
)
def test_the_sample_dimension_of_each_tensor_is_found(make_job, model, batch, loss, expected):
    assert build(make_job(model, batch, loss=loss)).batch_dimensions == expected


def test_a_users_model_compiles_into_one_graph(make_job):
    torch._dynamo.reset()
    workload = build(make_job(loss="smooth", arguments={"smoothing": 0.1}))
    workload.loss_module.compile(fullgraph=True, backend="eager")
    assert torch.isfinite(workload.forward_backward(workload.make_batch(4)))


def test_pure_bfloat16_converts_weights_and_floating_inputs(make_job):
    workload = build(make_job(precision=Precision.BFLOAT16))
    images, labels = workload.make_batch(2)[0]
    workload.forward_backward(((images, labels),))
    assert images.dtype is torch.bfloat16 and labels.dtype is torch.int64


def test_evaluation_leaves_running_statistics_alone(make_job):
    workload = build(make_job(mode=Mode.EVAL))
    before = workload.loss_module.model.norm.running_mean.clone()
    workload.forward_backward(workload.make_batch(4))
    workload.update()
    assert torch.equal(workload.loss_module.model.norm.running_mean, before)


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
def test_a_users_model_runs_with_fake_tensors(make_job, precision):
    with FakeTensorMode():
        workload = build(make_job("Tied", precision=precision))
        assert workload.forward_backward(workload.make_batch(4)).shape == ()
        workload.update()
    assert workload.loss_module.model.first.weight is workload.loss_module.model.second.weight


def test_a_users_step_runs_with_fake_tensors(step_job):
    with FakeTensorMode():
        workload = build(step_job())
        assert workload.forward_backward(workload.make_batch(4)).shape == ()
        workload.update()
    assert all(optimizer.state for optimizer in workload.optimizers[1:])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"model": "users_project.code.Net"}, "'users_project.code.Net', which is not an import path"),
        ({"model": 7}, "7, which is not an import path"),
        ({"model": "users_projekt.code:Net"}, "no module 'users_projekt'"),
        ({"model": "users_project.kode:Net"}, "no module 'users_project.kode'"),
        ({"model": "users_project.code:Nett"}, "no 'Nett' in it"),
        ({"model": "users_project.code:CONSTANT"}, "no function or class"),
        ({"model": "users_project.code:not_a_module"}, "returned int, not a torch.nn.Module"),
        ({"batch": "users_project.code:strings"}, "holds no tensor"),
        ({"batch": "users_project.code:strict"}, "missing a required argument: 'length'"),
        ({"loss": "users_project.code:images"}, "too many positional arguments"),
        ({"losss": "users_project.code:smooth"}, "no setting 'losss'"),
        ({"arguments": {"witdh": 3}, "batch": "users_project.code:images"}, "'witdh'"),
        ({"model": None}, "needs `model`"),
    ],
)
def test_a_mistake_in_a_path_is_named_with_its_value(make_job, paths, message):
    job = make_job()
    job = Job(workload="imported", model=dict(job.model) | paths, import_root=job.import_root)
    with pytest.raises(UserInputError) as caught:
        build(job)
    assert message in caught.value.message
    assert caught.value.hint


def test_a_near_miss_of_a_name_is_suggested(make_job):
    with pytest.raises(UserInputError) as caught:
        build(make_job("Nett"))
    assert "Did you mean Net?" in caught.value.hint


def test_a_loss_that_is_no_scalar_is_refused_with_its_shape(make_job):
    workload = build(make_job(loss="not_a_loss"))
    with pytest.raises(UserInputError, match=r"of shape \(2, 5\)") as refused:
        workload.forward_backward(workload.make_batch(2))
    assert refused.value.hint.endswith("in explore.workload.loss.")


def test_an_exception_of_the_users_code_is_not_caught(make_job):
    with pytest.raises(RuntimeError, match="a bug of the user's own"):
        build(make_job("raises"))


def test_a_package_that_the_users_module_lacks_is_the_users_own_error(make_job):
    job = make_job()
    model = dict(job.model) | {"model": "users_project.needs_more:Net"}
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        build(Job(workload="imported", model=model, import_root=job.import_root))


def test_a_whole_step_trains_what_is_not_frozen(step_job):
    workload = build(step_job(arguments={"width": 6}))
    frozen, first, second = workload.compiled_modules
    before = [module.weight.detach().clone() for module in (frozen, first, second)]
    workload.forward_backward(workload.make_batch(4))
    workload.update()
    moved = [not torch.equal(a, m.weight) for a, m in zip(before, (frozen, first, second), strict=True)]
    assert moved == [False, True, True]
    assert workload.loss_module is None
    assert [type(optimizer).__name__ for optimizer in workload.optimizers] == ["SGD", "Adam"]
    assert workload.batch_dimensions == [0]
    assert frozen.weight.shape == (6, 3)


def test_a_step_that_takes_a_loss_scale_gets_it(step_job):
    gradients = []
    for scale in (1.0, 0.5):
        workload = build(step_job("ScaledStep", seed=1))
        workload.forward_backward(workload.make_batch(4), scale)
        gradients.append(workload.compiled_modules[1].weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0] * 0.5)


def test_a_step_is_evaluated_without_gradients(step_job):
    workload = build(step_job(mode=Mode.EVAL))
    seen = []
    workload.compiled_modules[1].register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    workload.forward_backward(workload.make_batch(4))
    workload.update()
    assert seen == [False]
    assert all(module.weight.grad is None for module in workload.compiled_modules)


def test_a_batch_path_replaces_the_steps_own_batches(step_job):
    job = step_job()
    model = dict(job.model) | {"batch": "users_project.code:strict", "arguments": {"length": 3}}
    workload = build(Job(workload="imported", model=model, import_root=job.import_root))
    assert torch.equal(workload.make_batch(2), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("step", "fields", "message"),
    [
        ("NoUpdate", {}, "NoUpdate without update"),
        ("not_a_module", {}, "int without modules, make_batch, forward_backward, update"),
        ("TakesNothing", {}, r"TakesNothing.forward_backward', whose signature \(\) does not fit the call \(batch\)"),
        ("Step", {"precision": Precision.BFLOAT16}, "decides its precision"),
        ("Step", {"max_gradient_norm": 1.0}, "clips by itself"),
        ("Step", {"arguments": {"depth": 1}}, "'depth'"),
    ],
)
def test_a_step_that_cannot_be_used_is_refused(step_job, step, fields, message):
    with pytest.raises(UserInputError, match=message):
        build(step_job(step, **fields))


@pytest.mark.parametrize(
    ("step", "mode", "signature"),
    [
        ("NoUpdate", Mode.TRAIN, "def update(self) -> None"),
        ("NoForwardBackward", Mode.TRAIN, "def forward_backward(self, batch: Any) -> torch.Tensor"),
        ("NoEvaluate", Mode.EVAL, "def evaluate(self, batch: Any) -> torch.Tensor"),
        ("NoModules", Mode.TRAIN, "modules: a torch.nn.Module, or an iterable or mapping of them"),
    ],
)
def test_what_a_step_lacks_is_named_with_its_signature(step_job, step, mode, signature):
    with pytest.raises(UserInputError) as caught:
        build(step_job(step, mode=mode))
    assert f"Give it {signature}." in caught.value.hint


def test_a_step_that_returns_no_loss_is_refused(step_job):
    workload = build(step_job("SaysNothing"))
    with pytest.raises(UserInputError, match="forward_backward returned NoneType"):
        workload.forward_backward(workload.make_batch(2))


def test_a_module_that_lies_elsewhere_has_the_path_to_type(make_job, tmp_path, monkeypatch):
    (tmp_path / "lies_at_the_root.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    model = dict(make_job().model) | {"model": "lies_at_the_root:Net"}
    job = Job(workload="imported", model=model, import_root=str(tmp_path / "configs"))

    with pytest.raises(UserInputError) as caught:
        build(job)

    assert f"type PYTHONPATH={tmp_path} in front" in caught.value.hint
