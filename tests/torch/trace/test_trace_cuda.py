"""The trace of programs for CUDA devices, as far as it needs no Triton: recorded plans, rules, and what falls back."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import torch._inductor.config as inductor_config

from bexplore.engine import program_client
from bexplore.engine.program_client import recall_or_trace, trace_in_worker
from bexplore.host.accelerators import device_by_name
from bexplore.trace import CostModel, TraceError, absent_gpu
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.absent_gpu.attention import Attention, AttentionBackend, choose_backend
from bexplore.trace.convolutions import Layouts
from bexplore.trace.lifetimes import Allocate, CompiledGraph, Output, replay
from bexplore.trace.operators import workspace_sizes
from bexplore.trace.tracer import trace_job
from tests.builders import RECORDED, imported_job
from tests.torch.trace.recorded_lines import most_bytes, steps_of

H100 = GpuProperties.from_device(device_by_name("h100"))
PRIME = 61


@pytest.mark.parametrize("job", ["gpt", "bert", "llama_hf", "vit"])
def test_a_recorded_plan_of_a_gpu_program_is_read_as_when_it_was_recorded(job):
    record = json.loads((RECORDED / f"cuda_plan_{job}.json").read_text())
    read = [most_bytes(steps_of(graph, record["probe_batch"]), 64) for graph in record["graphs"]]
    assert read == record["most_bytes"]


def test_a_workspace_of_a_kernel_takes_memory():
    record = json.loads((RECORDED / "cuda_plan_gpt.json").read_text())
    steps = [step for graph in record["graphs"] for step in steps_of(graph, record["probe_batch"])]
    workspaces = [step for step in steps if isinstance(step, Allocate) and "workspace" in step.name]
    assert workspaces
    assert all(step.size(8) > 0 and step.place.label == "workspace of a kernel" for step in workspaces)


def test_a_buffer_that_a_line_of_text_makes_takes_memory():
    record = json.loads((RECORDED / "cuda_plan_gpt.json").read_text())
    made = [line["node"]["name"] for graph in record["graphs"] for line in graph["lines"] if "text" in line]
    steps = [step for graph in record["graphs"] for step in steps_of(graph, record["probe_batch"])]
    allocated = {step.name for step in steps if isinstance(step, Allocate)}
    assert made
    assert set(made) <= allocated


def test_an_output_without_memory_ends_the_trace_and_says_which():
    layout = {"shape": (4,), "symbolic": (), "stride": (1,), "offset": 0, "dtype": torch.float32}
    output = Output(name="buf7", device=torch.device("cpu"), **layout)
    with pytest.raises(TraceError, match="an output without memory: buf7"):
        replay(CompiledGraph(input_names=(), steps=(), outputs=(output,)), [], *_replaying())


def _replaying():
    from torch._subclasses.fake_tensor import FakeTensorMode

    from bexplore.trace.lifetimes import LifetimeTracker

    return LifetimeTracker(PRIME), FakeTensorMode()


def test_a_program_is_planned_without_measuring_or_recording_anything():
    measuring = ("shape_padding", "max_autotune", "max_autotune_gemm", "coordinate_descent_tuning", "graph_partition")
    seen = []

    def observe(graph, probe_batch):
        seen.extend([*(getattr(inductor_config, name) for name in measuring), inductor_config.triton.cudagraphs])

    with inductor_config.patch(dict.fromkeys((*measuring, "triton.cudagraphs"), True)):
        trace_job(imported_job(backend="inductor"), observe=observe)
    assert seen
    assert not any(seen)


def test_rows_that_are_padded_grow_with_the_samples():
    record = {
        "is_backward": False,
        "lines": [{"line": "AllocateLine", "node": _buffer("buf0", [PRIME * 1024, 50257], [50304, 1])}],
    }
    [step] = steps_of(record, PRIME)
    rows = 8 * 1024
    assert step.size(8) == 2 * ((rows - 1) * 50304 + 50257)


def _buffer(name, size, stride, dtype="bfloat16"):
    return {"name": name, "workspace": False, "size": size, "stride": stride, "offset": 0, "dtype": dtype}


CUDNN, FLASH, EFFICIENT, MATH = AttentionBackend


@pytest.mark.parametrize(
    ("device", "call", "backend"),
    [
        ("h100", {}, CUDNN),
        ("b200", {}, CUDNN),
        ("a100", {}, FLASH),
        ("rtx 4090", {}, FLASH),
        ("t4", {}, MATH),  # bfloat16 needs capability 8.0
        ("t4", {"dtype": torch.float16}, EFFICIENT),
        ("v100", {"dtype": torch.float32}, EFFICIENT),
        ("a100", {"dtype": torch.float32}, EFFICIENT),
        ("a100", {"mask": True}, EFFICIENT),
        ("h100", {"mask": True}, CUDNN),
        ("h100", {"mask": True, "dropout": 0.1}, EFFICIENT),  # cuDNN's dropout is a multiple of 1/16
        ("h100", {"dropout": 0.1}, FLASH),
        ("h100", {"dropout": 0.125}, CUDNN),
        ("h100", {"head": 160}, FLASH),
        ("a100", {"head": 320}, EFFICIENT),
        ("a100", {"head": 36}, FLASH),  # padded to 40
        ("a100", {"head": 36, "mask": True}, MATH),
        ("rtx 4090", {"head": 224}, EFFICIENT),  # its backward pass lacks shared memory
        ("rtx 4090", {"head": 256}, FLASH),
        ("a100", {"keys": 77, "is_causal": True}, EFFICIENT),
        ("a100", {"keys": 77}, FLASH),
        ("h100", {"keys": 1}, FLASH),
        ("a100", {"key_heads": 2, "enable_gqa": True}, FLASH),
        ("a100", {"key_heads": 2, "enable_gqa": True, "mask": True}, MATH),
        ("h100", {"key_heads": 2, "enable_gqa": True, "mask": True}, CUDNN),
        ("a100", {"key_heads": 2}, MATH),
    ],
)
def test_attention_takes_the_kernel_that_the_device_would_take(device, call, backend):
    call = dict(call)
    dtype, head, keys = call.pop("dtype", torch.bfloat16), call.pop("head", 64), call.pop("keys", 128)
    key_heads, masked = call.pop("key_heads", 4), call.pop("mask", False)

    def tensor(heads, length):
        return torch.empty(2, heads, length, head, dtype=dtype, device="meta", requires_grad=True)

    mask = torch.empty(2, 1, 128, keys, dtype=torch.bool, device="meta") if masked else None
    defaults = {"dropout": 0.0, "is_causal": False, "enable_gqa": False}
    attention = Attention(tensor(4, 128), tensor(key_heads, keys), tensor(key_heads, keys), mask, **(defaults | call))
    assert choose_backend(attention, device_by_name(device).capability) is backend


def test_the_backward_pass_of_attention_sums_in_float32_on_a_gpu():
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    query, keys = (PRIME, 12, 1000, 60), (PRIME, 4, 1000, 60)
    common = {"result": None, "probe_batch": PRIME, "itemsize": 2, "layouts": Layouts()}
    [own] = workspace_sizes(backward, (query, query, query), device="cuda", **common)
    [shared] = workspace_sizes(backward, (query, query, keys), device="cuda", **common)
    assert own(8) == 8 * 12 * 1024 * (64 + 1) * 4
    assert shared(8) == own(8) + 2 * 8 * 12 * 1000 * 60 * 2
    assert workspace_sizes(backward, (query, query, query), device="cpu", **common) == ()


def test_without_triton_the_program_of_the_cpu_stands_in_and_says_so(tmp_path, monkeypatch):
    why = "Triton, which writes the kernels of a CUDA device, is not installed: pip install 'bexplore[gpu-trace]'"
    monkeypatch.setattr(program_client, "reason_against", lambda: why)
    job = dataclasses.replace(imported_job(backend="inductor"), device="cuda:0")
    model = trace_in_worker(job, tmp_path, lambda message: None, gpu=H100)
    assert isinstance(model, CostModel), model
    assert (model.device, model.device_name, model.relative_sd) == ("cpu", "", 0.4)
    assert why in model.notes[0]


def test_what_stood_in_for_a_gpu_is_not_remembered_as_its_program(tmp_path, monkeypatch):
    monkeypatch.setattr(program_client, "reason_against", lambda: "no Triton")
    job = dataclasses.replace(imported_job(backend="inductor"), device="cuda:0")
    for _ in range(2):
        model = recall_or_trace(job, tmp_path, lambda message: None, gpu=H100, fresh=False)
        assert isinstance(model, CostModel), model
        assert model.remembered_from is None


def test_a_torch_that_was_not_checked_is_a_reason_against_an_absent_gpu(monkeypatch):
    monkeypatch.setattr(absent_gpu, "find_spec", lambda name: object())
    monkeypatch.setattr(absent_gpu, "version", lambda name: "2.99.0+cpu")
    assert "2.99.0" in absent_gpu.reason_against()


def test_triton_is_asked_for_by_the_extra_that_has_it(monkeypatch):
    monkeypatch.setattr(absent_gpu, "find_spec", lambda name: None)
    assert "pip install 'bexplore[gpu-trace]'" in absent_gpu.reason_against()


def test_an_absent_gpu_cannot_appear_after_torch_was_imported():
    with pytest.raises(TraceError, match="before torch is imported"):
        absent_gpu.stand_in(H100)
