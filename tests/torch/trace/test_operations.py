"""Operations of single calls by hand, and the names of operators that nothing counts."""

from __future__ import annotations

import pytest
import torch

from bexplore.trace.cost_model import describe_unknown
from bexplore.trace.operations import count_flops, find_unknown

ATEN = torch.ops.aten
B = 61  # a prime, as the trace's sizes are
ROWS, EXPERTS, INNER, OUTER, TOKENS = 2 * B, 8, 32, 48, 5


def size(*lengths: int) -> torch.Size:
    return torch.Size(lengths)


def product(rows: int, inner: int, outer: int) -> int:
    return 2 * rows * inner * outer


RECURRENT = [size(TOKENS, B, INNER), size(4 * OUTER, INNER), size(4 * OUTER, OUTER), size(4 * OUTER), size(4 * OUTER)]
OF_A_LAYER = product(TOKENS * B, INNER + OUTER, 4 * OUTER)


@pytest.mark.parametrize(
    ("operator", "arguments", "flops"),
    [
        (ATEN._grouped_mm.default, [size(ROWS, INNER), size(EXPERTS, INNER, OUTER)], product(ROWS, INNER, OUTER)),
        (ATEN._grouped_mm.default, [size(INNER, ROWS), size(ROWS, OUTER)], product(ROWS, INNER, OUTER)),
        (
            ATEN._grouped_mm.default,
            [size(EXPERTS, B, INNER), size(EXPERTS, INNER, OUTER)],
            EXPERTS * product(B, INNER, OUTER),
        ),
        (
            ATEN._scaled_grouped_mm.default,
            [size(ROWS, INNER), size(EXPERTS, INNER, OUTER), size(ROWS), size(EXPERTS, OUTER)],
            product(ROWS, INNER, OUTER),
        ),
        (ATEN._scaled_mm.default, [size(B, INNER), size(INNER, OUTER), size(), size()], product(B, INNER, OUTER)),
        (ATEN._int_mm.default, [size(B, INNER), size(INNER, OUTER)], product(B, INNER, OUTER)),
        (ATEN.mv.default, [size(B, INNER), size(INNER)], product(B, INNER, 1)),
        (ATEN.addmv.default, [size(B), size(B, INNER), size(INNER)], product(B, INNER, 1)),
        (ATEN.mkldnn_rnn_layer.default, RECURRENT, OF_A_LAYER),
        (ATEN.mkldnn_rnn_layer_backward.default, RECURRENT, 2 * OF_A_LAYER),
        (ATEN._cudnn_rnn.default, [RECURRENT[0], 2 * RECURRENT[1:]], 2 * OF_A_LAYER),
        (ATEN._cudnn_rnn_backward.default, [RECURRENT[0], 2 * RECURRENT[1:]], 4 * OF_A_LAYER),
        (ATEN.gelu.default, [size(B, INNER)], 0),
    ],
    ids=str,
)
def test_operations_are_those_by_hand(operator, arguments, flops):
    assert (count_flops(operator, tuple(arguments), {}, None) or 0) == flops
    assert find_unknown(operator) == ""


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 4, 16])
def test_each_gradient_of_a_convolution_takes_as_many_operations_as_its_result(groups, is_transposed):
    images, weight = torch.empty(2, 16, 12, 12, device="meta"), torch.empty(16, 16 // groups, 3, 3, device="meta")
    settings = [[2, 2], [1, 1], [1, 1], is_transposed, [0, 0], groups]
    result = torch.convolution(images, weight, None, *settings).shape
    forward = count_flops(ATEN.convolution.default, (images.shape, weight.shape, None, *settings), {}, result)
    points = 12 * 12 if is_transposed else 6 * 6
    assert forward == 2 * 2 * points * 16 * (16 // groups) * 9
    for is_needed, times in (([True, False, False], 1), ([False, True, False], 1), ([True, True, True], 2)):
        arguments = (result, images.shape, weight.shape, [0], *settings, is_needed)
        assert count_flops(ATEN.convolution_backward.default, arguments, {}, None) == times * forward


def test_a_keyword_counts_like_an_argument_in_its_place():
    keywords = {"mat2": size(EXPERTS, INNER, OUTER), "offs": size(EXPERTS)}
    flops = count_flops(ATEN._grouped_mm.default, (size(ROWS, INNER),), keywords, None)
    assert flops == product(ROWS, INNER, OUTER)


@torch.library.custom_op("bexplore_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (torch.ops.bexplore_tests.twice.default, "bexplore_tests::twice"),
        (ATEN._fft_c2c.default, "torch's _fft_c2c"),
        (ATEN.linalg_cholesky_ex.default, "torch's linalg_cholesky_ex"),
        (torch.ops.higher_order.triton_kernel_wrapper_mutation, "a Triton kernel"),
        (torch.ops.higher_order.associative_scan, "associative_scan"),
        (ATEN.view.default, ""),
    ],
)
def test_what_no_formula_counts_is_named(operator, name):
    assert count_flops(operator, (size(B, INNER),), {}, None) is None
    assert find_unknown(operator) == name


def test_the_note_names_operators_and_their_share_of_bytes():
    (note,) = describe_unknown({"bexplore_tests::twice": 0.31, "a Triton kernel": 0.001})
    assert "bexplore_tests::twice (31% of the bytes moved), a Triton kernel (<1% of the bytes moved)" in note
    assert describe_unknown({}) == ()
