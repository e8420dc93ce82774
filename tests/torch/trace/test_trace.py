from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from bexplore.engine.worker.peak_memory import measure_peak
from bexplore.estimate.dispatch import Dispatch
from bexplore.estimate.kernels import Attention, MatrixProduct, Stream
from bexplore.job import CompileSettings, Job, Mode, Precision
from bexplore.trace import CostModel, TraceError
from bexplore.trace.cost_model import Phase, Polynomial
from bexplore.trace.fake_build import build_fake
from bexplore.trace.kernel_shapes import find_kernels
from bexplore.trace.lifetimes import LifetimeTracker
from bexplore.trace.operations import count_flops
from bexplore.trace.repeated_blocks import find_repeats, truncate
from bexplore.trace.tracer import trace_job
from bexplore.workloads import build
from tests.builders import JOBS

DECODER = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "vocab_size": 512, "max_position_embeddings": 32}
EAGER = CompileSettings(enabled=False)


def decoder_job(*, model: dict | None = None, **fields) -> Job:
    return Job(workload="decoder", model=DECODER | (model or {}), compile=EAGER, sequence_length=32, **fields)


def own_job(model: str, *, batch: str = "samples", compiled: bool = True, **arguments: str) -> Job:
    paths = {"model": f"traced_programs:{model}", "batch": f"traced_programs:{batch}", "arguments": arguments}
    settings = CompileSettings() if compiled else EAGER
    return Job(workload="imported", model=paths, import_root=str(JOBS), compile=settings)


@functools.cache
def eager_trace() -> CostModel:
    return trace_job(decoder_job())


@functools.cache
def compiled_trace(full_depth: bool) -> CostModel:
    return trace_job(own_job("Deep"), full_depth=full_depth)


def own_step(step: str, **arguments: str) -> Job:
    model = {"step": f"traced_programs:{step}", "arguments": arguments}
    return Job(workload="imported", model=model, import_root=str(JOBS), compile=EAGER)


def measured_peak(job: Job, micro_batch_size: int) -> int:
    workload = build(job)
    batch = workload.make_batch(micro_batch_size)
    if job.compile.enabled:
        for module in workload.compiled_modules:
            module.compile(backend=job.compile.backend, dynamic=False)

    def step() -> None:
        for _ in range(2):
            workload.forward_backward(batch, 0.5)
        workload.update()

    step()
    states = [dict(optimizer.state) for optimizer in workload.optimizers]
    weights = [[*module.parameters(), *module.buffers()] for module in workload.compiled_modules]
    peak = measure_peak(step, torch.device("cpu"), alive=[batch, states, weights])
    assert peak is not None
    return peak.allocated_bytes


@pytest.mark.parametrize("micro_batch_size", [1, 24])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"optimizer": "SGD", "optimizer_arguments": {"lr": 0.1, "momentum": 0.9}},
        {"max_gradient_norm": 1.0, "activation_checkpointing": "full"},
        {"mode": Mode.EVAL},
    ],
    ids=["adamw", "sgd", "clipped and checkpointed", "evaluation"],
)
def test_the_peak_of_an_eager_step_is_what_the_allocator_measures(fields, micro_batch_size):
    job = decoder_job(**fields)
    predicted = trace_job(job).peak_memory_bytes(micro_batch_size)
    assert predicted == pytest.approx(measured_peak(job, micro_batch_size), rel=0.01)


@pytest.mark.parametrize(
    ("job", "within"),
    [
        pytest.param(own_job("Breaking"), 0.01, id="compiled, with a graph break"),
        pytest.param(own_job("ChangingInPlace"), 0.01, id="compiled, that changes what came before a break"),
        pytest.param(own_job("Reading", compiled=False), 0.01, id="that reads a number"),
        pytest.param(own_job("Copying", compiled=False), 0.01, id="that copies its layers"),
        # The table of the loss is that which its targets allow.
        pytest.param(own_job("Speech", batch="utterances", compiled=False), 0.02, id="of the CTC loss"),
        pytest.param(own_job("Speech", batch="utterances"), 0.02, id="of the CTC loss, compiled"),
        pytest.param(own_job("Checking", compiled=False), 0.01, id="with checks of values"),
        pytest.param(own_job("Checking"), 0.01, id="with checks of values, compiled"),
        pytest.param(own_job("DataDependent", compiled=False), 0.05, id="of rows that a mask selects"),
        pytest.param(own_job("LoopOfExperts", compiled=False), 0.05, id="of a loop of experts"),
        pytest.param(own_job("LoopOfExperts"), 0.05, id="of a loop of experts, compiled"),
        pytest.param(own_job("Lists", compiled=False), 0.05, id="of lists of lengths"),
        pytest.param(own_job("GroupedExperts", compiled=False), 0.01, id="of experts in one product"),
        pytest.param(own_job("Recurrent", compiled=False), 0.01, id="of an LSTM"),
        pytest.param(own_job("Transposed", compiled=False), 0.01, id="of images that were transposed"),
        pytest.param(own_job("Highest", compiled=False), 0.01, id="of a gradient that counts"),
        pytest.param(own_job("Scanning", compiled=False), 0.001, id="of gradients that are added"),
        pytest.param(own_job("Viewing", compiled=False), 0.001, id="of gradients that are added to views"),
        pytest.param(own_job("Penalty", compiled=False), 0.01, id="of gradients within the forward pass"),
    ],
)
def test_the_peak_of_a_step_is_what_the_allocator_measures(job, within):
    assert trace_job(job).peak_memory_bytes(24) == pytest.approx(measured_peak(job, 24), rel=within)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(own_step("ByHistory"), id="of L-BFGS"),
        pytest.param(own_step("ByHistory", line_search="strong_wolfe"), id="of L-BFGS that searches along lines"),
        pytest.param(own_step("Averaging", way="model"), id="of an average that no attribute names"),
        pytest.param(own_step("Averaging", way="tensors"), id="of an average that the first update makes"),
        pytest.param(own_step("Carrying"), id="of what one pass leaves to the next"),
        pytest.param(own_step("Refusing"), id="of an update that looks for NaN"),
    ],
)
def test_the_peak_of_a_step_of_ones_own_has_all_that_lasts(job):
    alive: list[object] = []

    def steps() -> None:
        workload = build(job)
        batch = workload.make_batch(24)
        alive[:] = workload, batch
        for _ in range(3):
            workload.forward_backward(batch, 0.5)
            workload.forward_backward(batch, 0.5)
            workload.update()

    # From the start on: of what lived before the profiler began, it does not see the end.
    peak = measure_peak(steps, torch.device("cpu"), alive=[])
    assert peak is not None
    model = trace_job(job)
    assert model.peak_memory_bytes(24) == pytest.approx(peak.allocated_bytes, rel=0.001)
    assert model.growing == ()


def test_what_a_step_keeps_more_of_each_time_is_said():
    (line,) = trace_job(own_step("Replaying")).growing
    assert line.startswith("seen of the step grows by 64.0 KiB with each pass")


@pytest.mark.parametrize("way", ["gather", "max", "topk", "index_select", "cummax", "index"])
def test_the_gradient_of_a_selection_is_written_into_its_zeros(way):
    job = own_job("Selecting", compiled=False, way=way)
    assert trace_job(job).peak_memory_bytes(24) == pytest.approx(measured_peak(job, 24), rel=0.001)


def test_a_small_batch_has_the_order_of_operators_that_is_best_for_it():
    job = own_job("Solved")
    model = trace_job(job)

    assert model.peak_memory_bytes(4) == pytest.approx(measured_peak(job, 4), rel=0.02)
    assert model.small is not None
    large = dataclasses.replace(model, small=None)
    assert large.peak_memory_bytes(4) > 1.02 * model.peak_memory_bytes(4)


@pytest.mark.parametrize("model", ["converted", "ReadingWhileBuilt"])
def test_a_model_whose_code_reads_values_while_it_is_built_is_traced(model):
    job = dataclasses.replace(own_job(model, compiled=False), max_gradient_norm=1.0)
    assert trace_job(job).peak_memory_bytes(24) == pytest.approx(measured_peak(job, 24), rel=0.01)
    assert trace_job(job).num_parameters == sum(one.numel() for one in build(job).loss_module.parameters())


def test_a_model_that_reads_values_is_built_for_another_device():
    job = dataclasses.replace(own_job("ReadingWhileBuilt", compiled=False), device="meta")  # a device without values
    workload, fake_mode = build_fake(job)
    with fake_mode:
        tensors = [*workload.loss_module.parameters(), *torch.utils._pytree.tree_leaves(workload.make_batch(2))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)


def test_a_conversion_by_the_users_code_keeps_weights_tied():
    with FakeTensorMode():
        model = build(own_job("converted")).loss_module.model
    assert model.left.weight is model.right.weight
    assert model.left.weight.dtype is torch.float64
    assert all(isinstance(one, FakeTensor) or isinstance(one.data, FakeTensor) for one in model.parameters())


@pytest.mark.parametrize(("model", "micro_batch_size"), [("Convolutional", 4), ("Strided", 32)])
@pytest.mark.parametrize("mode", list(Mode))
def test_the_peak_of_convolutions_has_room_for_reordered_operands(model, micro_batch_size, mode):
    job = dataclasses.replace(own_job(model, batch="images", compiled=False), mode=mode)
    predicted = trace_job(job).peak_memory_bytes(micro_batch_size)
    assert predicted == pytest.approx(measured_peak(job, micro_batch_size), rel=0.03)


def test_a_deep_model_costs_what_its_full_depth_costs():
    short, whole = compiled_trace(False), compiled_trace(True)
    for micro_batch_size in (1, 7, 500):
        assert short.phases(micro_batch_size) == pytest.approx(whole.phases(micro_batch_size), rel=1e-3)
    assert short.hardware_flops == whole.hardware_flops
    few, many = (
        {kernel: calls for kernel, calls in model.kernel_calls(7).items() if not isinstance(kernel, Stream)}
        for model in (short, whole)
    )
    assert few == pytest.approx(many)
    assert short.num_parameters == whole.num_parameters


def test_the_largest_buffers_name_the_line_of_the_source():
    labels = [label for label, _ in compiled_trace(False).largest_buffers(500)]
    assert any(label.startswith("traced_programs.py:") for label in labels)


def test_operations_are_six_a_weight_and_token_and_the_attention():
    """6 N per token without the embeddings that are only looked up, and 12 h s per layer and token."""
    tokens, width = 32, 64
    weights = 2 * 12 * width * width + 512 * width
    expected = tokens * (6 * weights + 2 * 12 * width * tokens)
    assert eager_trace().flops_per_sample == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("micro_batch_size", [1, 7])
@pytest.mark.parametrize(
    "job",
    [
        decoder_job(),
        decoder_job(activation_checkpointing="full", precision=Precision.AUTOCAST_BFLOAT16),
        own_job("Deep"),
        own_job("Strided", batch="images"),
        own_job("Strided", batch="images", compiled=False),
    ],
    ids=["eager", "checkpointed in bfloat16", "compiled", "convolutions", "eager convolutions"],
)
def test_the_kernels_of_a_pass_have_its_operations(job, micro_batch_size):
    cost_model = trace_job(job)
    calls = cost_model.kernel_calls(micro_batch_size)
    masked = 2  # attention here is causal, which the operations of a pass do not count
    counted = sum(
        number * kernel.flops * (masked if isinstance(kernel, Attention) else 1)
        for kernel, number in calls.items()
        if not isinstance(kernel, Stream)
    )
    assert counted == pytest.approx(cost_model.hardware_flops(micro_batch_size), rel=1e-3)
    moved = sum(number * kernel.num_bytes for kernel, number in calls.items() if isinstance(kernel, Stream))
    assert 0 < moved <= cost_model.bytes_moved(micro_batch_size)


def test_an_operator_of_weights_and_samples_moves_bytes_of_both():
    tracker = LifetimeTracker(61)
    add, samples, bias = torch.ops.aten.add.Tensor, torch.empty(61, 8), torch.empty(8)
    with tracker.record(Phase.FORWARD):
        tracker.count(add, (samples, bias), {}, samples)
    assert tracker.costs[0].bytes_moved == Polynomial(8 * 4, 2 * 8 * 4)


def test_a_causal_mask_leaves_half_of_the_operations_of_attention():
    query = torch.Size((2, 4, 64, 16))
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    whole, half = (
        find_kernels(operator, (query, query, query, 0.0, causal), (query,), flops=1000, itemsize=2, probe_batch=61)[0]
        for causal in (False, True)
    )
    assert (whole.at(1).flops, half.at(1).flops) == (1000, 500)


@pytest.mark.parametrize(("groups", "kind"), [(1, MatrixProduct), (8, MatrixProduct), (16, Stream)])
def test_a_convolution_of_each_channel_alone_is_no_product(groups, kind):
    images, weight = torch.Size((61, 16, 8, 8)), torch.Size((16, 16 // groups, 3, 3))
    arguments = (images, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    operator = torch.ops.aten.convolution.default
    flops = count_flops(operator, arguments, {}, images)
    (kernel,) = find_kernels(operator, arguments, images, flops=flops, itemsize=4, probe_batch=61)
    found = kernel.at(2)
    assert isinstance(found, kind)
    if isinstance(found, Stream):
        assert found.flops == 2 * 9 * 2 * 16 * 64 and found.num_bytes == pytest.approx(
            4 * (2 * 2 * 16 * 64 + 16 * 9), rel=0.01
        )


def test_a_checkpointed_model_keeps_less_and_computes_more():
    checkpointed = trace_job(decoder_job(activation_checkpointing="full"))
    assert checkpointed.peak_memory_bytes(500) < eager_trace().peak_memory_bytes(500)
    assert checkpointed.model_flops == eager_trace().model_flops
    assert checkpointed.hardware_flops(1) > eager_trace().hardware_flops(1)


def test_an_evaluation_has_a_forward_phase_alone():
    assert list(trace_job(decoder_job(mode=Mode.EVAL)).phases(4)) == ["forward"]


def test_the_same_job_has_the_same_fingerprint():
    assert trace_job(decoder_job()).fingerprint == eager_trace().fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"hidden_size": 128}},
        {"model": {"num_layers": 3}},
        {"optimizer": "SGD"},
        {"precision": Precision.BFLOAT16},
        {"mode": Mode.EVAL},
    ],
    ids=str,
)
def test_another_program_has_another_fingerprint(changed):
    assert trace_job(decoder_job(**changed)).fingerprint != eager_trace().fingerprint


def test_a_graph_break_is_told_and_nothing_of_the_step_is_lost():
    broken = trace_job(own_job("Breaking"))
    assert "graph breaks" in broken.notes[0]
    assert broken.hardware_flops == trace_job(own_job("Breaking", compiled=False)).hardware_flops


def test_a_model_that_fixes_its_batch_is_traced_at_one_size():
    fixed = trace_job(own_job("Fixing"))
    activations = 32 * 64 * 4 * 4  # bytes of one sample's hidden values
    assert fixed.peak_memory_bytes(1001) - fixed.peak_memory_bytes(1000) >= activations


def test_samples_that_are_compared_with_each_other_cost_a_square():
    model = trace_job(own_job("Contrastive", compiled=False))
    growth = model.peak_memory_bytes(30_000) / model.peak_memory_bytes(10_000)
    assert 5 < growth < 9.1


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (
            own_job("Breaking", batch="capped_samples"),
            r"samples: a batch of \d+ samples is needed, and it has .* \(8, ",
        ),
        (own_job("Breaking", batch="named_samples"), "No tensor of a batch"),
        (
            own_job("Nested", compiled=False),
            "sizes of a nested tensor .* depend on the values .*, at traced_programs.py",
        ),
    ],
    ids=["capped batch", "no sample dimension", "nested tensors"],
)
def test_what_cannot_be_traced_is_said_in_one_line(job, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        trace_job(job)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_trace_for_an_absent_device_is_an_estimate():
    job = decoder_job(device="cuda")
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")  # the stand-in is for machines without it
    model = trace_job(job)
    assert model.notes[0].startswith("an estimate")
    assert model.relative_sd > eager_trace().relative_sd
    assert model.peak_memory_bytes(4) == eager_trace().peak_memory_bytes(4)


def test_a_trace_leaves_the_compiler_as_it_was():
    before = GraphLowering.compile_to_module
    compiled_trace(False)
    assert GraphLowering.compile_to_module is before
    assert torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2)).tolist() == [2.0, 2.0]


class Stack(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)


def test_blocks_that_differ_in_their_weights_alone_are_a_run():
    [repeat] = find_repeats(Stack([nn.Linear(4, 8), *(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 8)]))
    assert (repeat.name, repeat.start, repeat.copies) == ("blocks", 1, 6)


@pytest.mark.parametrize(
    "blocks",
    [
        [nn.Linear(4, 4) for _ in range(3)],
        [nn.Linear(4, 4, bias=index % 2 == 0) for index in range(8)],
        [nn.Dropout(0.1 * (index % 2)) for index in range(8)],
        [nn.Linear(4, 4)] * 8,
    ],
    ids=["few", "alternating", "with and without dropout", "shared"],
)
def test_what_is_not_a_long_run_of_identical_blocks_is_traced_whole(blocks):
    assert find_repeats(Stack(blocks)) == []


def test_blocks_that_were_left_out_come_back():
    stack = Stack([nn.Linear(4, 4) for _ in range(6)])
    before = list(stack.blocks)
    with truncate(find_repeats(stack), 4):
        assert list(stack.blocks) == before[:4]
    assert list(stack.blocks) == before


def test_a_backend_that_only_partitions_is_traced_as_it_runs():
    job = dataclasses.replace(decoder_job(), compile=CompileSettings(backend="aot_eager"))
    model = trace_job(job)
    assert model.peak_memory_bytes(64) == pytest.approx(measured_peak(job, 64), rel=0.01)
    assert model.notes == ()
    labels = [label for label, _ in model.largest_buffers(64)]
    assert not any("eval_with_key" in label for label in labels)


def test_another_backend_is_predicted_with_less_certainty():
    job = own_job("Breaking")
    other = dataclasses.replace(job, compile=CompileSettings(backend="aot_eager_decomp_partition"))
    model = trace_job(other)
    assert any("aot_eager_decomp_partition" in note for note in model.notes)
    assert model.relative_sd > trace_job(job).relative_sd


def test_the_trace_counts_identical_blocks():
    of_depth = (decoder_job(model={"num_layers": depth}) for depth in (2, 8))
    shallow, deep = (trace_job(dataclasses.replace(job, compile=CompileSettings())) for job in of_depth)
    assert (shallow.num_blocks, deep.num_blocks) == (0, 8)


def test_what_the_host_does_is_counted_for_every_block():
    short, whole = compiled_trace(False).dispatches, compiled_trace(True).dispatches
    assert short == pytest.approx(whole, rel=0.05, abs=2)  # what is outside of blocks is shared out, too
    assert short[Dispatch.GRAPH] == 2 < short[Dispatch.KERNEL]  # forward and backward


def test_an_eager_program_is_a_call_of_each_operator():
    shallow, deep = (trace_job(decoder_job(model={"num_layers": number})).dispatches for number in (1, 3))
    for kind in (Dispatch.OPERATOR, Dispatch.BACKWARD_OPERATOR, Dispatch.VIEW):
        each, rest = (deep[kind] - shallow[kind]) / 2, shallow[kind]
        assert 5 < each < rest < each + 60
    assert Dispatch.KERNEL not in deep


def test_an_update_moves_parameters_gradients_and_states():
    model = trace_job(decoder_job())
    moved = sum(number * kernel.num_bytes for kernel, number in model.update_kernel_calls().items())
    assert moved >= 7 * 4 * model.num_parameters  # AdamW reads four tensors for each, and writes three
    assert model.update_dispatches and not trace_job(decoder_job(mode=Mode.EVAL)).update_kernels


@pytest.mark.parametrize(("precision", "allows"), [("highest", False), ("high", True)])
def test_products_in_float32_may_be_rounded_where_the_program_allows_it(monkeypatch, precision, allows):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    rows, weight, images = torch.Size((61, 16)), torch.Size((16, 8)), torch.Size((61, 16, 8, 8))
    (product,) = find_kernels(
        torch.ops.aten.mm.default, (rows, weight), torch.Size((61, 8)), flops=1, itemsize=4, probe_batch=61
    )
    convolution = (images, torch.Size((16, 16, 3, 3)), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    (convolved,) = find_kernels(
        torch.ops.aten.convolution.default, convolution, images, flops=1, itemsize=4, probe_batch=61
    )
    assert product.at(2).allows_tf32 is allows
    assert convolved.at(2).allows_tf32  # by PyTorch's default
