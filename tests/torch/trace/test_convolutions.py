"""Memory of single convolutions against the allocator: even widths and odd ones, each direction, each layout."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bexplore.engine.worker.torch_private import memory_events
from bexplore.trace.convolutions import BACKWARD, FORWARD, find_layouts
from bexplore.trace.operations import map_shapes
from bexplore.trace.operators import workspace_sizes

SAMPLES = 16
PRIME = 1009  # so that nothing counts as a multiple of the samples


def layer(inner: int, outer: int, kernel: int, length: int, **settings: Any) -> dict[str, Any]:
    facts = {"dimensions": 2, "stride": 1, "padding": kernel // 2, "groups": 1, "transposed": False}
    return facts | {"inner": inner, "outer": outer, "kernel": kernel, "length": length} | settings


def find_highest(run: Callable[[], Any]) -> int:
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    del kept
    return max(itertools.accumulate(size for _, size in memory_events(profiler)))


def predict(operator: Any, arguments: Any, result: Any) -> float:
    images = arguments[0]
    outputs = [tensor for tensor in (result if isinstance(result, tuple) else [result]) if tensor is not None]
    sizes = workspace_sizes(
        operator,
        map_shapes(arguments),
        map_shapes(result),
        PRIME,
        itemsize=images.itemsize,
        layouts=find_layouts(operator, arguments),
        device="cpu",
    )
    return sum(tensor.untyped_storage().nbytes() for tensor in outputs) + max(0.0, *(size(1) for size in sizes))


@pytest.mark.parametrize("wanted", ["all", "images", "weights"])
@pytest.mark.parametrize(
    "facts",
    [
        layer(32, 64, 3, 32),
        layer(32, 64, 4, 32, stride=2, padding=1),
        layer(64, 64, 1, 32),
        layer(3, 128, 16, 64, stride=16, padding=0),
        layer(3, 32, 3, 32),
        layer(24, 40, 3, 32),
        layer(32, 12, 3, 32),
        layer(64, 128, 1, 512, dimensions=1),
        layer(16, 16, 3, 12, dimensions=3, in_blocks=True),
        layer(16, 3, 1, 16, dimensions=3),
        layer(64, 64, 3, 32, groups=64),
        layer(24, 24, 3, 32, groups=24),
        layer(24, 24, 3, 32, groups=4),
        layer(64, 32, 4, 16, stride=2, padding=1, transposed=True),
        layer(32, 16, 3, 16, transposed=True),
        layer(32, 16, 3, 16, transposed=True, biased=True),
    ],
    ids=lambda facts: " ".join(str(value) for value in facts.values()),
)
def test_a_convolution_takes_what_the_allocator_gives(facts, wanted) -> None:
    if facts.get("in_blocks") and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("the gradient of volumes' weights is a product of matrices there")
    torch.manual_seed(0)
    dimensions, groups, transposed = facts["dimensions"], facts["groups"], facts["transposed"]
    images = torch.randn(SAMPLES, facts["inner"], *[facts["length"]] * dimensions)
    ends = (facts["inner"], facts["outer"]) if transposed else (facts["outer"], facts["inner"])
    weight = torch.randn(ends[0], ends[1] // groups, *[facts["kernel"]] * dimensions)
    shared: tuple[Any, ...] = (
        [facts["stride"]] * dimensions,
        [facts["padding"]] * dimensions,
        [1] * dimensions,
        transposed,
    )
    shared += ([0] * dimensions, groups)
    bias = torch.randn(facts["outer"]) if facts.get("biased") else None
    arguments = (images, weight, bias, *shared)
    result = FORWARD(*arguments)
    if wanted == "all":
        assert predict(FORWARD, arguments, result) == pytest.approx(find_highest(lambda: FORWARD(*arguments)), rel=0.01)
    mask = [wanted != "weights", wanted != "images", False]
    backward = (torch.randn_like(result), images, weight, None, *shared, mask)
    measured = find_highest(lambda: BACKWARD(*backward))
    # Products of matrices have columns of one sample for each thread.
    assert predict(BACKWARD, backward, BACKWARD(*backward)) == pytest.approx(measured, rel=0.01, abs=2**20)


@pytest.fixture
def set_threads():
    """Sets the number of threads of a test."""
    number = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(number)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "AVX512", reason="most are no products there")
@pytest.mark.parametrize("length", [14, 32])
@pytest.mark.parametrize(
    ("dimensions", "kernel", "dilation", "groups"),
    [(1, 3, 4, 1), (2, 3, 2, 1), (2, 5, 2, 1), (2, 16, 1, 1), (2, 7, 1, 24), (2, 3, 1, 4), (3, 3, 1, 1), (3, 4, 1, 1)],
)
def test_the_gradient_of_weights_as_a_product_has_what_each_thread_takes(
    set_threads, dimensions, kernel, dilation, groups, length
):
    set_threads(2)
    images = torch.randn(4, 24, *[length] * dimensions)
    weight = torch.randn(24, 24 // groups, *[kernel] * dimensions)
    settings = ([1] * dimensions, [dilation * (kernel // 2)] * dimensions, [dilation] * dimensions)
    shared = (*settings, False, [0] * dimensions, groups)
    gradient = torch.randn_like(FORWARD(images, weight, None, *shared))
    backward = (gradient, images, weight, None, *shared, [False, True, False])
    measured = find_highest(lambda: BACKWARD(*backward))
    assert predict(BACKWARD, backward, BACKWARD(*backward)) == pytest.approx(measured, rel=0.001, abs=2**9)


@pytest.mark.parametrize("last", [["images"], ["gradient"], ["weight"], ["images", "gradient"], ["weight", "gradient"]])
@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 32)])
def test_what_lies_otherwise_than_a_convolution_is_computed_is_copied(last, kernel, groups) -> None:
    tensors = {"images": torch.randn(SAMPLES, 32, 32, 32), "weight": torch.randn(64, 32 // groups, kernel, kernel)}
    tensors["gradient"] = torch.randn(SAMPLES, 64, 32, 32)
    for name in last:
        tensors[name] = tensors[name].contiguous(memory_format=torch.channels_last)
    shared = ([1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups, [True, True, False])
    backward = (tensors["gradient"], tensors["images"], tensors["weight"], None, *shared)
    forward = (tensors["images"], tensors["weight"], None, *shared[:-1])
    for operator, arguments in ((FORWARD, forward), (BACKWARD, backward)):
        measured = find_highest(functools.partial(operator, *arguments))
        assert predict(operator, arguments, operator(*arguments)) == pytest.approx(measured, rel=0.01, abs=2**18)


@pytest.mark.parametrize("is_last", [False, True], ids=["weights plain", "weights last"])
@pytest.mark.parametrize(
    ("inner", "outer", "groups", "kernel"),
    [
        (64, 64, 1, 3),
        (128, 128, 32, 3),  # ResNeXt
        (1024, 1024, 32, 3),
        (24, 24, 4, 3),
        (96, 96, 8, 5),
        (64, 64, 64, 3),  # each channel has a kernel of its own
        (64, 64, 64, 5),
        (64, 128, 64, 3),  # each channel has several
    ],
)
def test_weights_of_images_whose_channels_come_last_are_copied_and_in_blocks(inner, outer, groups, kernel, is_last):
    images = torch.randn(4, inner, 14, 14).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outer, inner // groups, kernel, kernel)
    if is_last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    shared = ([1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups)
    forward = (images, weight, None, *shared)
    result = FORWARD(*forward)
    measured = find_highest(lambda: FORWARD(*forward))
    # A product takes some 60 KiB for its threads.
    assert predict(FORWARD, forward, result) == pytest.approx(measured, rel=0.001, abs=2**16)

    backward = (torch.randn_like(result), images, weight, None, *shared, [True, True, False])
    measured = find_highest(lambda: BACKWARD(*backward))
    assert predict(BACKWARD, backward, BACKWARD(*backward)) == pytest.approx(measured, rel=0.001, abs=2**13)


@pytest.mark.parametrize("padding", [(0, 0, 0), (0, 1, 1), (1, 0, 0)])
def test_the_gradient_of_weights_of_volumes_depends_on_what_is_before_them(set_threads, padding):
    set_threads(1)  # with AVX-512 several of them sum weights of their own, which are not counted
    images, weight = torch.randn(4, 16, 10, 10, 10), torch.randn(16, 16, 3, 3, 3)
    shared = ([1] * 3, list(padding), [1] * 3, False, [0] * 3, 1)
    gradient = torch.randn_like(FORWARD(images, weight, None, *shared))
    backward = (gradient, images, weight, None, *shared, [False, True, False])
    measured = find_highest(lambda: BACKWARD(*backward))
    assert predict(BACKWARD, backward, BACKWARD(*backward)) == pytest.approx(measured, rel=0.001, abs=2**9)
