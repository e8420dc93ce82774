"""The driver that Triton asks which device it writes kernels for; none of them is built."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class AbsentDriver:
    """Tell Triton the target, and refuse whatever would need the device itself.

    Args:
        capability: Compute capability, major and minor.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    def get_current_target(self) -> GPUTarget:
        """Give the kind of device, its capability and the width of a warp."""
        return self._target

    def get_current_device(self) -> int:
        """Give the index of the only device."""
        return 0

    def get_device_interface(self) -> Any:
        """Give torch's interface of the device."""
        return torch.cuda


def use_absent_driver(capability: tuple[int, int]) -> None:
    """Make Triton take the absent device for the active one."""
    driver.set_active(AbsentDriver(capability))
