"""The shared program: which kind on which device, and what its compiler is told to expect."""

from __future__ import annotations

import math
import types
from unittest import mock

import pytest
import torch
import torch._inductor.config
from torch._dynamo.source import ConstantSource
from torch._inductor.codegen import simd, triton_utils
from torch._inductor.fx_passes import pad_mm
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import FixedLayout
from torch._inductor.scheduler import MixOrderReduction
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.engine.worker import torch_private
from bexplore.engine.worker.compilation import compile_workload, feasible_mode, mark_batch_dimension
from bexplore.engine.worker.session import Session
from bexplore.job import Job
from bexplore.measurement.probe import Compilation, Probe
from bexplore.workloads import build
from tests.builders import imported_job

NESTED, UNBACKED, DYNAMIC, STATIC = SharedMode


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
        RunProbe(
            job=job, probe=Probe(number=0, micro_batch_size=1, compilation=Compilation.SHARED), shared_mode=UNBACKED
        ),
        report=lambda **_: None,
    )
    on_cpu = session.batches.longest(6)
    session.batches.device = torch.device("cuda")
    on_cuda = [session.batches.longest(size) for size in (4, 8)]

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


def test_kernels_are_chosen_at_the_hinted_size_not_at_thousands():
    padded_gib, example_gib = measured_gib(hint=2)
    padded_without_gib, example_without_gib = measured_gib(hint=None)

    # An odd vocabulary asks for padding; `mode: max-autotune` asks for templates.
    assert max(padded_gib, example_gib) < 1
    assert min(padded_without_gib, example_without_gib) > 700


@pytest.fixture
def chosen_for_largest(monkeypatch):
    """Kernels of this process are chosen for lengths of up to 64 where 4 is compiled for; no longer after the test."""
    for module in (simd, triton_utils):
        monkeypatch.setattr(module, "expr_fits_within_32bit", module.expr_fits_within_32bit)
    monkeypatch.setattr(MixOrderReduction, "can_fuse", MixOrderReduction.can_fuse)
    monkeypatch.setattr(MixOrderReduction, "is_for_largest", True, raising=False)
    monkeypatch.delattr(MixOrderReduction, "is_for_largest")  # set anew below, and gone once both are undone
    monkeypatch.setattr(torch_private, "_largest_lengths", {})
    with torch.compiler.config.patch(cache_key_tag=""):
        torch_private.choose_kernels_for_largest(64)
        torch_private.expect_length(4, 64)
        yield


@pytest.mark.parametrize(
    ("elements_per_sample", "fits"), [(2**24, True), (2**25 - 1, True), (2**25, False), (2**29, False)]
)
def test_indices_have_64_bits_where_those_of_the_largest_size_do(chosen_for_largest, elements_per_sample, fits):
    environment = ShapeEnv()
    samples = environment.create_symbol(4, ConstantSource("samples"), dynamic_dim=DimDynamic.DYNAMIC)
    graph = types.SimpleNamespace(sizevars=SizeVarAllocator(environment), aot_compilation=False)
    with V.set_graph_handler(graph):
        assert simd.expr_fits_within_32bit(samples * elements_per_sample) is fits
    assert environment.guards == []


def test_a_length_that_nobody_expects_is_judged_as_it_is(chosen_for_largest):
    environment = ShapeEnv()
    length = environment.create_symbol(5, ConstantSource("length"), dynamic_dim=DimDynamic.DYNAMIC)
    graph = types.SimpleNamespace(sizevars=SizeVarAllocator(environment), aot_compilation=False)
    with V.set_graph_handler(graph):
        assert simd.expr_fits_within_32bit(length * 2**28)
