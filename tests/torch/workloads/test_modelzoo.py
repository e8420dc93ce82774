"""Every model of the ModelZoo, scaled down and in its own keys: built, traced and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bexplore.config.load import load_config
from bexplore.job import Job
from bexplore.workloads import build
from bexplore.workloads.torch_private import tree_leaves
from tests.unit.config.dialects.modelzoo_files import TINY, file_of

pytest.importorskip("transformers", reason="the extra `hf` is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def job_of(family: str, folder: Path) -> Job:
    path = folder / "job.yaml"
    path.write_text(json.dumps(file_of(family)))
    return load_config(path, overrides=["explore.device=cpu"]).job


@pytest.mark.parametrize("family", TINY)
def test_a_step_of_it_trains_what_is_not_frozen(family, tmp_path):
    workload = build(job_of(family, tmp_path))
    for micro_batch_size in (2, 3):
        assert torch.isfinite(workload.forward_backward(workload.make_batch(micro_batch_size)))
    trained = [parameter for parameter in workload.loss_module.parameters() if parameter.requires_grad]
    with_gradient = sum(parameter.grad is not None for parameter in trained)
    assert 0 < with_gradient <= len(trained)
    assert with_gradient > 0.8 * len(trained)  # a pooler or the layers above a selected one may have no part
    workload.update()


@pytest.mark.parametrize("family", TINY)
def test_a_sample_of_it_does_not_depend_on_how_many_are_asked_for(family, tmp_path):
    workload = build(job_of(family, tmp_path))
    small, large = (tree_leaves(workload.make_batch(size)) for size in (2, 4))
    assert workload.batch_dimensions == [0] * len(small)
    assert all(torch.equal(a, b[:2]) for a, b in zip(small, large, strict=True))


@pytest.mark.parametrize("family", TINY)
def test_it_is_built_on_fake_tensors(family, tmp_path):
    with FakeTensorMode():
        workload = build(job_of(family, tmp_path))
        assert len(tree_leaves(workload.make_batch(3))) == len(workload.batch_dimensions)


def test_frozen_parts_of_a_model_of_images_and_text_are_not_trained(tmp_path):
    module = build(job_of("llava", tmp_path)).loss_module
    trained = {name.split(".")[2] for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained == {"multi_modal_projector"}
