"""Convolutions that the compiler does not look into: the same numbers, and one program for every size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.graph import GraphLowering

from bexplore.engine.worker import opaque_convolution as ours
from bexplore.engine.worker import torch_private

CASES = [
    ((2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 4, 8, 9), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
    ((1, 2, 5, 4, 6), (3, 2, 2, 2, 2), {}),
]


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ours._DIMENSIONS:
        monkeypatch.setattr(F, name, getattr(F, name))  # put back after the test
    ours.make_convolutions_opaque()


@pytest.mark.parametrize(("shape", "kernel", "options"), CASES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_results_and_gradients_are_those_of_torch(shape, kernel, options, has_bias, replaced):
    name = f"conv{len(shape) - 2}d"
    tensors = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (shape, kernel, kernel[:1])]
    arguments = (*tensors[:2], tensors[2] if has_bias else None)

    wanted = getattr(torch, name)(*arguments, **options)
    found = getattr(F, name)(*arguments, **options)
    weights = torch.randn_like(wanted)
    inputs = [tensor for tensor in arguments if tensor is not None]

    torch.testing.assert_close(found, wanted)
    for ours_, theirs in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((wanted * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours_, theirs)


@pytest.mark.parametrize(("shape", "kernel", "options"), CASES)
def test_the_operator_keeps_what_torch_asks_of_one(shape, kernel, options):
    count = len(shape) - 2
    sizes = [ours._each(options.get(name, default), count) for name, default in ours_defaults()]
    tensors = (torch.randn(shape, requires_grad=True), torch.randn(kernel, requires_grad=True), torch.randn(kernel[:1]))

    torch.library.opcheck(ours.convolution, (*tensors, *sizes, options.get("groups", 1)))


def ours_defaults() -> list[tuple[str, int]]:
    return [("stride", 1), ("padding", 0), ("dilation", 1)]


def test_autocast_reaches_it_as_it_reaches_torchs_own(replaced):
    layer, images = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer(images)

    assert inside.dtype is torch.bfloat16
    assert layer(images).dtype is torch.float32


def test_an_image_without_samples_and_a_padding_by_name_are_left_to_torch(replaced):
    image, kernel = torch.randn(3, 8, 8), torch.randn(4, 3, 3, 3)

    torch.testing.assert_close(F.conv2d(image, kernel), torch.conv2d(image, kernel))
    torch.testing.assert_close(
        F.conv2d(image[None], kernel, padding="same"), torch.conv2d(image[None], kernel, padding="same")
    )


@pytest.mark.parametrize(
    "modules",
    [
        [nn.ConvTranspose2d(3, 4, 3)],
        [nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)],
        [nn.LazyConv2d(4, 3)],
    ],
    ids=["transposed", "channels last", "no weight yet"],
)
def test_what_the_operator_would_change_is_left_to_the_compiler(modules):
    assert ours.has_convolutions(modules)
    assert not ours.can_be_opaque(modules)


def layouts_chosen(dynamic: bool) -> list[bool]:
    """Whether channels come last in each graph of a training step of a wide convolution."""
    chosen = []

    def compiler(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]):
        chosen.append(GraphLowering.decide_layout_opt(graph, is_inference=False))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    layer = nn.Conv2d(80, 96, 3)
    images = torch.randn(4, 80, 8, 8)
    if dynamic:
        torch._dynamo.mark_dynamic(images, 0)
    torch.compile(layer, backend=aot_autograd(fw_compiler=compiler))(images).sum().backward()
    return chosen


def test_the_shared_program_has_the_exact_one_s_layout_of_convolutions(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", GraphLowering.decide_layout_opt)  # put back after the test
    exact = layouts_chosen(dynamic=False)
    assert layouts_chosen(dynamic=True)[0] is False

    torch_private.choose_layout_as_for_a_number()

    assert exact[0] is True
    assert layouts_chosen(dynamic=True) == exact
