"""What several tests in process need."""

from __future__ import annotations

import pytest
import torch

from tests.torch.groups import leave_group


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test draws the same numbers alone, after others and in every run."""
    torch.manual_seed(0)


@pytest.fixture
def one_thread():
    """Threads that wait for each other take most of the time of steps this small, above all beside other processes."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def no_group_left():
    """The ranks of a process are those of its first job, which must not be those of the next test."""
    leave_group()
    yield
    leave_group()
