"""The shared program: which kind on which device, and what its compiler is told to expect."""

from __future__ import annotations

import json
import math
import types
from unittest import mock

import pytest
import torch
import torch._inductor.config
from torch._inductor.fx_passes import pad_mm
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import FixedLayout
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch.utils._pytree import tree_leaves

from benchmarks import shared_kernels
from benchmarks.kernel_counts import count_kernels
from bexplore.engine.protocol.shared_mode import SharedMode, mode_after, shared_modes
from bexplore.engine.worker.compilation import compile_workload, feasible_mode, mark_batch_dimension
from bexplore.engine.worker.session import Session
from bexplore.job import Job
from bexplore.measurement.probe import Compilation, Probe
from bexplore.workloads import build
from tests.builders import RECORDED, imported_job

NESTED, UNBACKED, DYNAMIC, STATIC = SharedMode
# Written by `python -m benchmarks.shared_kernels`.
KERNELS = json.loads((RECORDED / "shared_kernels.json").read_text())


@pytest.mark.parametrize(
    ("device_type", "version", "has_convolutions", "expected"),
    [
        ("cpu", "2.11.0", False, (NESTED, UNBACKED, DYNAMIC, STATIC)),
        ("cpu", "2.13.0+cpu", False, (NESTED, UNBACKED, DYNAMIC, STATIC)),
        ("cpu", "2.13.0+cpu", True, (DYNAMIC, STATIC)),
        ("cuda", "2.11.0+cu128", False, (DYNAMIC, STATIC)),
        ("cuda", "2.12.1", False, (DYNAMIC, UNBACKED, STATIC)),
        ("cuda", "2.13.0+cu130", False, (DYNAMIC, UNBACKED, STATIC)),
        ("cuda", "3.0.0a0+git1234", False, (DYNAMIC, UNBACKED, STATIC)),
        ("cuda", "2.13.0+cu130", True, (DYNAMIC, STATIC)),
    ],
)
def test_the_order_of_modes_follows_from_device_version_and_convolutions(
    device_type, version, has_convolutions, expected
):
    assert shared_modes(device_type, version, has_convolutions=has_convolutions) == expected


def test_the_mode_after_one_that_does_not_compile_is_the_next_of_the_device():
    modes = shared_modes("cuda", "2.13.0")

    assert [mode_after(mode, modes) for mode in modes] == [UNBACKED, STATIC, None]


@pytest.mark.parametrize(("device", "expected"), [("cpu", NESTED), ("cuda:0", DYNAMIC)])
def test_a_search_begins_with_the_first_mode_of_its_device(device, expected, run_on):
    runner = run_on(imported_job(device=device))

    assert runner._request("probe", Probe(number=0, micro_batch_size=1))["shared_mode"] is expected


@pytest.mark.parametrize(
    ("device", "wanted", "expected"),
    [("cpu", NESTED, UNBACKED), ("cpu", DYNAMIC, DYNAMIC), ("cuda:0", DYNAMIC, DYNAMIC), ("cuda:0", UNBACKED, STATIC)],
)
def test_convolutions_are_hidden_from_the_compiler_on_a_cpu_only(device, wanted, expected):
    workload = types.SimpleNamespace(job=imported_job(device=device), compiled_modules=[torch.nn.Conv2d(1, 1, 3)])

    assert feasible_mode(workload, wanted, ()) is expected


def test_an_accelerator_is_told_the_first_size_of_a_process_and_a_cpu_none():
    job = imported_job()
    session = Session(
        job, compilation=Compilation.SHARED, shared_mode=UNBACKED, budget_bytes=None, report=lambda **_: None
    )
    on_cpu = session._make_batch(6)
    session.device = torch.device("cuda")
    on_cuda = [session._make_batch(size) for size in (4, 8)]

    assert [[tensor._dynamo_hint_overrides for tensor in tree_leaves(batch)] for batch in (on_cpu, *on_cuda)] == [
        [{}, {}],
        [{0: 4}, {0: 4}],
        [{0: 4}, {0: 4}],
    ]


class PlannedError(Exception):
    """The compiler has got as far as the test looks."""


def measured_gib(hint: int | None) -> tuple[float, float]:
    """GiB that the compiler would take to choose kernels for 2 samples of a tiny GPT.

    Returns:
        Of operands and result of the largest product that it would time with padding; of the largest tensor that it
        would fill to time templates with.
    """
    model = {"vocab_size": 50257, "hidden_size": 32, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 1024}
    job = Job(workload="decoder", model=model, data={"sequence_length": 1024}, sequence_length=1024)
    workload = build(job)
    compile_workload(workload, job.compile, Compilation.SHARED, UNBACKED, ())
    batch = workload.make_batch(2)
    mark_batch_dimension(batch, workload.batch_dimensions, UNBACKED, hint=hint)
    padded_bytes, example_bytes = [], []

    def refuse_to_pad(match, first, second, op, input=None):
        rows, inner, columns = *pad_mm.hint_symbols(first.shape), pad_mm.hint_symbols(second.shape)[1]
        padded_bytes.append(first.dtype.itemsize * (rows * inner + inner * columns + rows * columns))
        return False

    def example(size, stride, device, dtype, *_):
        example_bytes.append(dtype.itemsize * math.prod(size))
        return torch.empty(0, dtype=dtype)

    def fill_examples(graph):
        for buffer in graph.buffers:
            if isinstance(buffer.get_output_spec(), FixedLayout):
                AlgorithmSelectorCache.benchmark_example_value(buffer)
        raise PlannedError

    torch._dynamo.reset()
    with (
        # As on a CUDA device.
        mock.patch.object(pad_mm, "check_device", lambda *_: True),
        mock.patch.object(pad_mm, "has_triton", lambda: True),
        mock.patch.object(pad_mm, "_should_pad", refuse_to_pad),
        mock.patch.object(AlgorithmSelectorCache, "generate_example_value", example),
        mock.patch.object(GraphLowering, "compile_to_module", fill_examples),
        torch._inductor.config.patch(force_disable_caches=True),
        pytest.raises(Exception, match="PlannedError"),
    ):
        workload.forward_backward(batch)
    return max(padded_bytes) / 2**30, max(example_bytes) / 2**30


def test_kernels_are_chosen_at_the_hinted_size_and_not_at_thousands_of_samples():
    padded_gib, example_gib = measured_gib(hint=2)
    padded_without_gib, example_without_gib = measured_gib(hint=None)

    # An odd vocabulary asks for padding; `mode: max-autotune` asks for templates.
    assert max(padded_gib, example_gib) < 1
    assert min(padded_without_gib, example_without_gib) > 700


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
