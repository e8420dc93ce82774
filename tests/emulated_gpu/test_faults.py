"""Devices that fail on request."""

from __future__ import annotations

import pytest

from bexplore.emulated_gpu import Faults

FAILING = """
    import torch
    x = torch.empty(8, device="cuda")
    for attempt in range(2):
        try:
            for _ in range(20):
                x.exp()
            torch.cuda.synchronize()
        except torch.AcceleratorError as error:
            print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (Faults(illegal_access_at_launch=10), "CUDA error: an illegal memory access was encountered"),
        (Faults(uncorrectable_ecc_at_launch=10), "CUDA error: uncorrectable ECC error encountered"),
        (Faults(device_lost_at_launch=10), "CUDA error: unknown error"),
    ],
)
def test_a_kernel_that_fails_fails_every_later_call(emulate, faults, text):
    assert emulate(FAILING, faults=faults) == [text, text]


def test_a_device_that_is_lost_is_lost_for_other_processes_too(emulate):
    (text,) = emulate(
        """
        import subprocess, sys, torch
        x = torch.empty(8, device="cuda")
        x.exp()
        program = "import torch; torch.empty(8, device='cuda')"
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        print("unknown error" in result.stderr)
        """,
        faults=Faults(device_lost_at_launch=1),
    )
    assert text == "True"


def test_an_allocation_fails_though_there_is_memory_and_the_next_succeeds(emulate):
    assert emulate(
        """
        import torch
        torch.empty(8, device="cuda")
        try:
            torch.empty(2**28, device="cuda")
        except torch.OutOfMemoryError as error:
            print(str(error).split(".")[0])
        print(torch.empty(2**28, device="cuda").numel())
        """,
        faults=Faults(out_of_memory_at_allocation=2),
    ) == ["CUDA out of memory", "268435456"]
