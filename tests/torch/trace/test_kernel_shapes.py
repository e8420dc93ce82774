"""Kernels of single operators, for estimates of their times."""

from __future__ import annotations

import pytest
import torch

from bexplore.estimate.kernels import MatrixProduct, Work
from bexplore.trace.kernel_shapes import find_kernels, find_work

ATEN = torch.ops.aten
SAMPLES = 61  # a prime, as of a trace


@pytest.mark.parametrize(
    ("operators", "work"),
    [
        ([ATEN.add.Tensor], Work.POINTWISE),
        ([ATEN.add.Tensor, ATEN.gelu.default], Work.TRANSCENDENTAL),
        ([ATEN.exp.default, ATEN.sum.dim_IntList], Work.REDUCTION),
        ([ATEN.native_batch_norm.default], Work.CHANNELS),
        ([ATEN.bernoulli_.float], Work.RANDOM),
        ([ATEN.embedding.default], Work.GATHER),
        ([ATEN.embedding_dense_backward.default], Work.SCATTER),
        ([ATEN.max_pool2d_with_indices.default], Work.POOLING),
        ([ATEN.logical_not.default, ATEN.expand.default], Work.POINTWISE),
    ],
)
def test_the_costliest_operator_decides_the_work_of_a_kernel(operators, work):
    assert find_work(operators) is work


@pytest.mark.parametrize(
    ("operator", "products"),
    [
        (ATEN.mkldnn_rnn_layer.default, {(5 * 7, 64, 8): 1, (7, 64, 16): 5}),
        (
            ATEN.mkldnn_rnn_layer_backward.default,
            {(5 * 7, 8, 64): 1, (64, 8, 5 * 7): 1, (7, 16, 64): 5, (64, 16, 5 * 7): 1},
        ),
    ],
)
def test_a_recurrent_layer_has_a_product_for_each_step(operator, products):
    """Five steps, 8 inputs, 16 states and their four gates; of 7 samples."""
    shapes = ((5, SAMPLES, 8), (64, 8), (64, 16))
    traced = find_kernels(operator, shapes, None, flops=1, itemsize=4, probe_batch=SAMPLES)
    found = {(one.at(7).rows, one.at(7).columns, one.at(7).inner): one.calls for one in traced}
    assert found == products


def test_the_gradient_of_a_convolutions_weights_is_told_from_its_other_products():
    gradient, images, weight = (SAMPLES, 8, 4, 4), (SAMPLES, 3, 4, 4), (8, 3, 3, 3)
    rest = ([0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    traced = find_kernels(
        ATEN.convolution_backward.default,
        (gradient, images, weight, *rest),
        None,
        flops=1,
        itemsize=4,
        probe_batch=SAMPLES,
    )
    kernels = [one.at(2) for one in traced]
    assert all(isinstance(one, MatrixProduct) and one.window == 9 for one in kernels)
    assert [one.is_weight_gradient for one in kernels] == [False, True]
