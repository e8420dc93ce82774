"""The check of the user's training step, in process."""

from __future__ import annotations

import pytest
import torch

from bexplore.engine.worker.step_checks import check_step
from bexplore.errors import UserInputError
from bexplore.job import Job
from bexplore.workloads import build
from tests.builders import imported_job, step_job


def checked(job: Job, micro_batch_size: int) -> bool:
    workload = build(job)
    parameters = [parameter for module in workload.compiled_modules for parameter in module.parameters()]
    return check_step(workload, parameters, micro_batch_size)


@pytest.mark.parametrize(
    ("step", "micro_batch_size", "told"),
    [
        ("NoBackward", 1, "no parameter has a gradient"),
        ("NoBackward", 32, "no parameter has a gradient"),
        ("ZeroGradients", 32, "All gradients are zero, of 17 batches of 4 samples"),
        ("IgnoresItsBatch", 32, "does not depend on its batch"),
    ],
)
def test_a_step_that_cannot_train_is_refused(step, micro_batch_size, told):
    with pytest.raises(UserInputError, match=told) as caught:
        checked(step_job(step), micro_batch_size)
    assert caught.value.hint


@pytest.mark.parametrize(
    "step",
    [
        "PlainStep",
        "InBatchNegatives",
        "Margin",
        "ConstantData",
        "NewHead",
        "StepsInItsPasses",
        "UnlistedModules",
        "Adversaries",
        "ScaledStep",
    ],
)
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4, 512])
def test_a_step_that_trains_in_its_own_way_is_not_refused(step, micro_batch_size):
    assert checked(step_job(step), micro_batch_size) is (micro_batch_size >= 4)


def test_a_model_with_batch_and_loss_is_checked_too():
    assert checked(imported_job(model="normalized"), 8)


def test_gradients_buffers_and_the_random_state_are_left_as_they_were():
    workload = build(imported_job(model="normalized"))
    module = workload.compiled_modules[0]
    buffers = [buffer.clone() for buffer in module.buffers()]
    before = torch.random.get_rng_state()

    check_step(workload, list(module.parameters()), 8)

    assert all(map(torch.equal, buffers, module.buffers()))
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(before, torch.random.get_rng_state())
