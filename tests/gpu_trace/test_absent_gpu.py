"""Programs of a GPU that is not there, planned for real: what `make test` knows as records is made here anew.

After a change that is meant to change plans: `REWRITE_RECORDS=1 make test-gpu-trace`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.actions.trace import trace_job
from bexplore.config.load import load_config

pytestmark = pytest.mark.gpu_trace

HERE = Path(__file__).parent
RECORDED = HERE.parent / "recorded"
JOBS = HERE.parents[1] / "benchmarks" / "jobs"
NAMES = ("gpt", "bert", "llama_hf", "vit")


@pytest.mark.parametrize("name", NAMES)
def test_a_transformer_is_planned_for_a_gpu_as_recorded(name):
    command = [sys.executable, str(HERE / "absent_gpu_child.py"), str(JOBS / f"engine_cuda_{name}.yaml"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    path = RECORDED / f"cuda_plan_{name}.json"
    if os.environ.get("REWRITE_RECORDS"):
        path.write_text(json.dumps(found["record"], separators=(",", ":")))
    assert found["device_name"] == "NVIDIA H100 80GB HBM3"
    assert found["num_processes"] == 0, "planning started processes that build kernels"
    assert found["record"] == json.loads(path.read_text())


def test_a_named_device_is_traced_by_its_own_program(tmp_path):
    config = load_config(HERE.parents[1] / "configs" / "quickstart.yaml")
    arguments = {"micro_batch_sizes": (8,), "model_dir": str(tmp_path)}
    (record,) = trace_job(config, device_name="h100", **arguments)
    assert (record["device"], record["device_name"]) == ("cuda", "NVIDIA H100 80GB HBM3")
    assert record["notes"] == []
    (again,) = trace_job(config, device_name="h100", **arguments)
    assert again["remembered_from"]
    (other,) = trace_job(config, device_name="l4", **arguments)
    assert other["device_name"] == "NVIDIA L4"
    assert other["remembered_from"] is None


def test_attention_that_is_recomputed_takes_less_memory(tmp_path):
    """It takes the state of its random generator along, of which an absent device has none."""
    config = load_config(HERE.parents[1] / "configs" / "quickstart.yaml")
    recomputing = dataclasses.replace(config, job=dataclasses.replace(config.job, activation_checkpointing="full"))
    arguments = {"micro_batch_sizes": (64,), "device_name": "h100", "model_dir": str(tmp_path), "fresh": True}
    usual, lean = (trace_job(one, **arguments)[0]["peak_memory_bytes"]["64"] for one in (config, recomputing))
    assert lean < usual


CONSTANTS = """
import torch

class Scaled(torch.nn.Linear):
    def forward(self, x):
        x = super().forward(x) * torch.tensor(2.0, device=x.device)  # of no dimension
        x = x * torch.tensor([2.0, 3.0] * 4, device=x.device)
        return torch.cat([torch.tensor([], device=x.device), x.flatten()]).view_as(x)  # a cache begins as empty

def model():
    return Scaled(8, 8)

def batch(size):
    return torch.randn(size, 8), torch.randn(size, 8)
"""


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_constant_of_the_model_stays_off_an_absent_gpu(tmp_path, compiles):
    (tmp_path / "scaled.py").write_text(CONSTANTS)
    job = tmp_path / "job.yaml"
    job.write_text(
        "train_input: {micro_batch_size: explore}\n"
        f"explore: {{compile: {str(compiles).lower()}, "
        "workload: {model: 'scaled:model', batch: 'scaled:batch', loss: 'torch.nn.functional:mse_loss'}}\n"
    )
    (record,) = trace_job(load_config(job), device_name="h100", micro_batch_sizes=(8,), model_dir=str(tmp_path))
    assert record["device_name"] == "NVIDIA H100 80GB HBM3"
    assert record["peak_memory_bytes"]["8"] > 0


FLEX = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def is_before(_batch, _head, query, key):
    return query >= key

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 8)

    def forward(self, x):
        batch, tokens, _ = x.shape
        heads = (one.view(batch, tokens, 2, 32).transpose(1, 2) for one in self.project(x).chunk(3, -1))
        mask = create_block_mask(is_before, None, None, tokens, tokens, device=x.device)
        return self.out(flex_attention(*heads, block_mask=mask).transpose(1, 2).reshape(batch, tokens, 64))

def model():
    return Attention()

def batch(size):
    return torch.randn(size, 512, 64), torch.randn(size, 512, 8)
"""


def test_flex_attention_counts_the_blocks_that_its_mask_leaves(tmp_path):
    (tmp_path / "flex.py").write_text(FLEX)
    job = tmp_path / "job.yaml"
    job.write_text(
        "train_input: {micro_batch_size: explore}\n"
        "explore: {workload: {model: 'flex:model', batch: 'flex:batch', loss: 'torch.nn.functional:mse_loss'}}\n"
    )
    (record,) = trace_job(load_config(job), device_name="h100", micro_batch_sizes=(8,), model_dir=str(tmp_path))
    project, out = 2 * 512 * 64 * 192, 2 * 512 * 64 * 8  # of which the first has no gradient of its input
    blocks = (1 + 2 + 3 + 4) / 16  # of 128 queries and keys
    attention = blocks * 4 * 512 * 512 * 64
    assert record["flops_per_sample"] == 2 * project + 3 * out + 3 * attention


ABSENT = """
from bexplore.host.accelerators import device_by_name
from bexplore.trace.absent_gpu import stand_in
from bexplore.trace.absent_gpu import GpuProperties

stand_in(GpuProperties.from_device(device_by_name("h100")))
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

"""
CONVOLUTIONS = """
import itertools
last, usual = torch.channels_last, torch.contiguous_format
convolutions = [((16, 8, 3, 3), torch.nn.functional.conv2d), ((8, 4, 2, 2), torch.nn.functional.conv_transpose2d)]
cases = itertools.product((usual, last), (usual, last), (torch.half, torch.double), convolutions)
with FakeTensorMode():
    for images_format, weight_format, dtype, (shape, convolve) in cases:
        images = torch.empty(4, 8, 10, 10, device="cuda", dtype=dtype).to(memory_format=images_format)
        weight = torch.empty(shape, device="cuda", dtype=dtype).to(memory_format=weight_format)
        is_last = last in (images_format, weight_format) and dtype is torch.half
        result = convolve(images, weight)
        assert result.is_contiguous(memory_format=last if is_last else usual), (shape, images_format, weight_format)
"""

ACTIVATIONS = """
from torch.utils._python_dispatch import TorchDispatchMode

class Recording(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        called.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

for name in ("silu", "mish", "gelu", "softplus", "leaky_relu", "hardswish"):
    called = []
    with FakeTensorMode(), Recording():
        x = torch.empty(8, device="cuda", requires_grad=True)
        y = getattr(torch.nn.functional, name)(x)
        called.clear()
        y.backward(y.detach())
    assert [one for one in called if one not in ("detach", "device")] == [f"{name}_backward"], called

called = []
with FakeTensorMode(), Recording():
    torch.nn.functional.rms_norm(torch.empty(8, 16, device="cuda"), (16,), torch.empty(16, device="cuda"))
assert "_fused_rms_norm" in called and "rsqrt" not in called, called
"""
MASKS = """
from torch.utils._python_dispatch import TorchDispatchMode

class Recording(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "constant_pad_nd":
            padded.append(tuple(result.shape))
        return result

for shape, expected in (
    ((1, 1, 49, 49), [(1, 1, 49, 64)]),
    ((1, 4, 49, 49), [(1, 4, 49, 64)]),
    ((64, 1, 49, 49), [(64, 1, 49, 64)]),
    ((1, 1, 48, 48), []),
):
    padded = []
    with FakeTensorMode(), Recording():
        query, mask = torch.empty(64, 4, shape[-1], 32, device="cuda"), torch.empty(shape, device="cuda")
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    assert padded == expected, (shape, padded)
"""


@pytest.mark.parametrize("program", [CONVOLUTIONS, ACTIVATIONS, MASKS], ids=["layouts", "kernels", "masks"])
def test_operators_do_on_an_absent_gpu_what_cuda_kernels_do(program):
    command = [sys.executable, "-c", ABSENT + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
