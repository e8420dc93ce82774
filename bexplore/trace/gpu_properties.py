"""The properties of a CUDA device, as `torch.cuda.get_device_properties` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.host import accelerators
from bexplore.job import device_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """Properties of a device that a compiler reads.

    Attributes:
        name: Name by the driver.
        capability: Compute capability, major and minor.
        num_multiprocessors: Streaming multiprocessors.
        total_memory_bytes: Memory by the driver.
    """

    name: str
    capability: tuple[int, int]
    num_multiprocessors: int
    total_memory_bytes: int

    @classmethod
    def from_device_info(cls, info: Mapping[str, Any]) -> GpuProperties | None:
        """Return the properties in a worker's device info; None where it is no known CUDA device."""
        if device_kind(str(info.get("device"))) != "cuda" or not info.get("num_multiprocessors"):
            return None
        major, minor = (int(part) for part in str(info["capability"]).split("."))
        if (major, minor) not in accelerators.MULTIPROCESSORS:
            return None
        return cls(
            name=info["device_name"],
            capability=(major, minor),
            num_multiprocessors=info["num_multiprocessors"],
            total_memory_bytes=info["total_memory_bytes"],
        )

    @classmethod
    def from_device(cls, device: accelerators.Device) -> GpuProperties | None:
        """Return the properties of a device of the table; None where it is no CUDA device, or lacks some."""
        if device.capability is None or device.num_multiprocessors is None:
            return None
        return cls(
            name=device.name,
            capability=device.capability,
            num_multiprocessors=device.num_multiprocessors,
            total_memory_bytes=device.total_memory_bytes,
        )

    def as_torch(self) -> dict[str, Any]:
        """Return the attributes of torch's object of properties, with those that follow from the capability."""
        multiprocessor = accelerators.MULTIPROCESSORS[self.capability]
        return {
            "name": self.name,
            "major": self.capability[0],
            "minor": self.capability[1],
            "multi_processor_count": self.num_multiprocessors,
            "total_memory": self.total_memory_bytes,
            "max_threads_per_multi_processor": multiprocessor.max_threads,
            "regs_per_multiprocessor": accelerators.REGISTERS_PER_MULTIPROCESSOR,
            "shared_memory_per_multiprocessor": multiprocessor.shared_memory_bytes,
            "shared_memory_per_block_optin": multiprocessor.shared_memory_per_block_bytes,
            "shared_memory_per_block": accelerators.SHARED_MEMORY_PER_BLOCK_BYTES,
            "max_threads_per_block": accelerators.MAX_THREADS_PER_BLOCK,
            "warp_size": accelerators.WARP_SIZE,
            "gcnArchName": "",
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
        }
