"""Kernels of the shared program beside those of the exact one, as recorded."""

from __future__ import annotations

import json

import pytest

from benchmarks import shared_kernels
from benchmarks.kernel_counts import count_kernels
from bexplore.engine.protocol.shared_mode import shared_modes
from tests.builders import RECORDED

# Written by `python -m benchmarks.shared_kernels`.
KERNELS = json.loads((RECORDED / "shared_kernels.json").read_text())


def totals(name: str, way: str) -> dict[str, int]:
    return shared_kernels.totals(KERNELS["programs"][name][way][0])


def in_all(sums: dict[str, int], count: str) -> int:
    return sums[f"{count}_forward"] + sums[f"{count}_backward"]


@pytest.mark.parametrize("name", shared_kernels.MIDDLE_SIZES)
def test_the_first_mode_on_cuda_has_the_kernels_of_the_exact_program(name):
    first = shared_modes("cuda", KERNELS["torch"], has_convolutions=name == "vit")[0]
    exact, shared = totals(name, "static"), totals(name, first.value)

    for count in ("kernels", "launches"):
        assert in_all(shared, count) == pytest.approx(in_all(exact, count), rel=0.05)
    assert shared["unsplit_reductions"] == exact["unsplit_reductions"] == 0
    assert shared["wide_index_kernels"] == exact["wide_index_kernels"]


@pytest.mark.parametrize("name", shared_kernels.MIDDLE_SIZES)
def test_kernels_for_the_largest_size_are_those_of_the_exact_program_and_compile_twice(name):
    exact, shared = totals(name, "static"), totals(name, "dynamic_largest")
    records = KERNELS["programs"][name]["dynamic_largest"]

    for count in ("kernels", "launches"):
        assert in_all(shared, count) == pytest.approx(in_all(exact, count), rel=0.05)
    assert shared["wide_index_kernels"] <= 0.1 * in_all(shared, "kernels")  # whose tensors have 2^31 elements
    by_size = {record["micro_batch_size"]: record["compilations"] for record in records}
    assert {size for size, count in by_size.items() if count} == {shared_kernels.MIDDLE_SIZES[name], 1}


def test_an_unbacked_program_without_a_hint_has_others():
    exact, unbacked = totals("gpt", "static"), totals("gpt", "unbacked")

    assert unbacked["unsplit_reductions"] > 5
    assert unbacked["wide_index_kernels"] > exact["wide_index_kernels"]
    assert KERNELS["programs"]["gpt"]["unbacked"][0]["pad_mm_gib"] > 700


@pytest.mark.gpu_trace
@pytest.mark.parametrize("name", shared_kernels.MIDDLE_SIZES)
def test_the_recorded_counts_are_those_of_this_compiler(name):
    first = shared_modes("cuda", KERNELS["torch"], has_convolutions=name == "vit")[0]
    wanted = shared_kernels.request(name, first.value)
    written = shared_kernels.write_program_apart(wanted | {"sizes": wanted["sizes"][:1]})

    assert written == KERNELS["programs"][name][first.value][:1]


PROGRAM = """
triton_a = async_compile.triton('triton_a', '''
@triton_heuristics.reduction(
    size_hints={'x': 1024, 'r0_': 65536},
    reduction_hint=ReductionHint.OUTER,
)
def triton_a(in_ptr0, out_ptr0, xnumel, r0_numel):
    xoffset = tl.program_id(0).to(tl.int64) * XBLOCK
''', device_str='cuda')
triton_b = async_compile.triton('triton_b', '''
@triton_heuristics.pointwise(
    size_hints={'x': 1024},
)
def triton_b(in_ptr0, out_ptr0, xnumel):
    xoffset = tl.program_id(0) * XBLOCK
''', device_str='cuda')

def repeated(args):
    triton_b.run(arg0, buf0, 1024, stream=stream0)
    extern_kernels.mm(buf0, arg1, out=buf1)

def call(args):
    # torch.ops.aten.mm.default(arg0, arg1)
    triton_a.run(arg0, buf0, 1024, 65536, stream=stream0)
    (buf1,) = repeated(repeated_args)
    (buf2,) = repeated(repeated_args)
    buf3 = torch.ops.aten._flash.default(buf2)
    assert_size_stride(buf3, (1,), (1,), 'torch.ops.aten._flash.default')

def benchmark_compiled_module(args):
    triton_b.run(arg0, buf0, 1024, stream=stream0)
"""


def test_launches_of_a_nested_region_count_as_often_as_it_is_called():
    counts = count_kernels(PROGRAM, num_multiprocessors=132)

    assert (counts.kernels, counts.launches) == (2, 3)
    assert counts.by_kind == {"aten._flash.default": 1, "mm": 2, "pointwise": 2, "reduction": 1}


def test_a_few_columns_that_loop_over_all_rows_are_an_unsplit_reduction():
    counts = count_kernels(PROGRAM, num_multiprocessors=132)

    assert counts.unsplit_reductions == 1
    assert counts.wide_index_kernels == 1
    inner = PROGRAM.replace("OUTER", "INNER")  # a program for each of 1024 results
    assert count_kernels(inner, num_multiprocessors=132).unsplit_reductions == 0
