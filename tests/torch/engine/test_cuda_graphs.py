"""CUDA graphs: gradients outlive a replay, and graphs of one size are no burden of another."""

from __future__ import annotations

import math

import torch

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.engine.worker.measuring import measure
from bexplore.engine.worker.session import Session
from bexplore.engine.worker.steps import Steps
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Probe, Purpose
from bexplore.workloads import build
from tests.builders import imported_job

NOT_COMPILED = CompileSettings(enabled=False)


def test_gradients_of_a_program_in_cuda_graphs_are_summed_over_passes():
    workload = build(imported_job("graphed", compile=NOT_COMPILED))
    steps = Steps(workload, torch.device("cpu"), uses_cuda_graphs=True)
    layer = workload.loss_module.model
    first, second = workload.make_batch(4), workload.make_batch(8)
    wanted = torch.zeros_like(layer.weight)
    for ((x, targets),) in (first, second):
        wanted += torch.autograd.grad(torch.nn.functional.cross_entropy(x @ layer.weight.T, targets), layer.weight)[0]

    steps.forward_backward(first)
    steps.keep_gradients()
    steps.clear_gradients()
    steps.forward_backward(first)
    steps.forward_backward(second)

    torch.testing.assert_close(layer.weight.grad, wanted)
    assert layer.unused.grad is None
    steps.update()
    assert not layer.weight.grad.any()


def test_a_size_is_measured_with_gradients_outside_of_cuda_graphs(monkeypatch):
    monkeypatch.setattr(CompileSettings, "uses_cuda_graphs", lambda self, device: True)
    session = Session(
        RunProbe(
            job=imported_job("graphed", compile=NOT_COMPILED),
            probe=Probe(number=0, micro_batch_size=1, compilation=Compilation.EXACT),
            shared_mode=SharedMode.NESTED,
        ),
        report=lambda **_: None,
    )

    facts = measure(
        session, Probe(number=0, micro_batch_size=4, max_passes=3, purpose=Purpose.VERIFY), pass_budget_s=0.1
    )

    assert math.isfinite(facts["loss"])
    assert any("zero_grad(set_to_none=False)" in warning for warning in facts["warnings"])
    assert not session.try_recover()
