"""Workspaces of cuBLAS and hipBLAS, by torch's own rules."""

from __future__ import annotations

import pytest

from bexplore.trace.operators import blas_workspace_bytes, count_blas_workspaces

MIB = 2**20


def workspace(capability=(9, 0), torch_version=(2, 13), **facts) -> int:
    facts = {"environment": {}} | facts
    return blas_workspace_bytes(capability=capability, torch_version=torch_version, **facts)


@pytest.mark.parametrize(
    ("capability", "torch_version", "mib"),
    [
        ((7, 5), (2, 13), 8.125),
        ((8, 0), (2, 11), 8.125),
        ((8, 9), (2, 13), 8.125),
        ((9, 0), (2, 11), 32),
        ((9, 0), (2, 13), 32),
        ((10, 0), (2, 11), 8.125),
        ((10, 0), (2, 12), 32),
        ((12, 0), (2, 12), 32),
    ],
)
def test_the_default_depends_on_the_capability_and_on_torch(capability, torch_version, mib):
    assert workspace(capability, torch_version) == mib * MIB


@pytest.mark.parametrize(
    ("configured", "mib"), [(":4096:8", 32), (":16:8", 0.125), (":4096:2:16:8", 8.125), (":0:0", 0), ("none", 32)]
)
def test_the_environment_overrides_it_where_it_can_be_parsed(configured, mib):
    assert workspace(environment={"CUBLAS_WORKSPACE_CONFIG": configured}) == mib * MIB


def test_on_rocm_it_depends_on_the_architecture_and_has_more_names():
    assert workspace(gcn_architecture="gfx90a:sramecc+:xnack-") == 32 * MIB
    assert workspace(gcn_architecture="gfx942") == workspace(gcn_architecture="gfx950") == 128 * MIB
    configured = {"ROCBLAS_WORKSPACE_CONFIG": ":1024:1"}
    assert workspace(gcn_architecture="gfx942", environment=configured) == MIB
    assert workspace(environment=configured) == 32 * MIB


@pytest.mark.parametrize(
    ("torch_version", "is_rocm", "environment", "number"),
    [
        ((2, 13), False, {}, 2),
        ((2, 15), False, {}, 1),
        ((2, 15), False, {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}, 2),
        ((2, 15), True, {}, 2),
        ((2, 15), True, {"TORCH_CUBLAS_WORKSPACE_CACHE": "0"}, 1),
    ],
)
def test_workspaces_are_kept_for_two_threads_or_taken_one_at_a_time(torch_version, is_rocm, environment, number):
    facts = {"torch_version": torch_version, "is_rocm": is_rocm, "environment": environment}
    assert count_blas_workspaces(**facts) == number
