"""The traced update is the one that a device runs: scalers step, and accelerators take all parameters at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._foreach_utils import _has_foreach_support

from bexplore.job import Job, Precision
from bexplore.trace.passes import trace_update
from bexplore.trace.torch_private import use_foreach_kernels
from bexplore.workloads import Workload
from bexplore.workloads.decoder import build_decoder

DECODER = {"vocab_size": 64, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 8}


def decoder(precision: Precision, **fields) -> Workload:
    """A tiny decoder on the CPU, also with float16, which `build` refuses there."""
    return build_decoder(Job(workload="decoder", model=DECODER, sequence_length=8, precision=precision, **fields))


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.AUTOCAST_FLOAT16])
@pytest.mark.parametrize("clips", [False, True])
def test_the_states_of_adam_are_traced_whatever_the_precision(precision, clips):
    fake_mode = FakeTensorMode()
    with fake_mode:
        workload = decoder(precision, max_gradient_norm=1.0 if clips else None)
        parameters = list(workload.loss_module.parameters())
        workload.forward_backward(workload.make_batch(7))
    updated = trace_update(workload, parameters, fake_mode, 7)

    num_bytes = sum(parameter.numel() * 4 for parameter in parameters)
    # two moments, and counters of steps
    assert 2 * num_bytes <= updated.state_bytes <= 2 * num_bytes + 4 * len(parameters)
    assert updated.events


def test_the_first_update_of_a_float16_job_is_not_skipped():
    workload = decoder(Precision.AUTOCAST_FLOAT16)
    workload.forward_backward(workload.make_batch(2), 2.0**6)  # gradients of a model that is not as tame as this one
    workload.update()

    assert len(workload.optimizers[0].state) == len(list(workload.loss_module.parameters()))


def test_fake_parameters_on_an_accelerator_are_updated_all_at_once():
    with FakeTensorMode():
        parameters = [nn.Parameter(torch.empty(4, device="cuda")) for _ in range(2)]
        on_cpu = [nn.Parameter(torch.empty(4))]

    assert _default_to_fused_or_foreach(parameters, differentiable=False) == (False, False)
    with use_foreach_kernels():
        assert _default_to_fused_or_foreach(parameters, differentiable=False) == (False, True)
        assert _default_to_fused_or_foreach(on_cpu, differentiable=False) == (False, False)
        assert _has_foreach_support(parameters, torch.device("cuda"))
    assert _default_to_fused_or_foreach(parameters, differentiable=False) == (False, False)


def peak_of_update(device: str) -> int:
    """Bytes that an update of eight equal parameters holds at most beside them, their gradients and their states."""
    fake_mode = FakeTensorMode()
    with fake_mode:
        parameters = [nn.Parameter(torch.empty(1000, device=device)) for _ in range(8)]
    optimizer = torch.optim.AdamW(parameters)
    workload = Workload(
        job=Job(workload="imported"),
        loss_module=None,
        compiled_modules=[],
        make_batch=lambda size: size,
        forward_backward=lambda batch: None,
        update=optimizer.step,
        optimizers=[optimizer],
    )
    events = trace_update(workload, parameters, fake_mode, 7).events
    running = peak = 0
    for event in events:
        running += event.size(7)
        peak = max(peak, running)
    return int(peak)


def test_temporaries_of_an_update_on_a_device_are_of_all_parameters():
    assert peak_of_update("cpu") <= 3 * 4000
    assert peak_of_update("cuda") >= 8 * 4000
