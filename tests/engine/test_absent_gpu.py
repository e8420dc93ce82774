"""A GPU that is not there, in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def test_autograd_runs_on_fake_tensors_of_a_gpu_that_is_not_there():
    program = """
from bexplore.trace.absent_gpu import load_hooks
library = load_hooks()
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
library.register_absent_device_guard()
with FakeTensorMode():
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    print(x.grad.device)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "cuda:0", done.stderr[-2000:]
