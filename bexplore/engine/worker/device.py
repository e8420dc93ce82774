"""What a worker can say about its device, through torch."""

from __future__ import annotations

import platform
from typing import Any

import torch


def device_facts(name: str) -> dict[str, Any]:
    """Facts that decide whether two measurements may be compared, and the device's memory.

    Args:
        name: A torch device, or `auto` for the accelerator that torch finds, else the CPU.

    Returns:
        `device`, `device_name`, `total_memory_bytes`, `free_memory_bytes` (None on the CPU), `torch_version`,
        `num_threads`, `capability`, `num_multiprocessors`.

    Raises:
        RuntimeError: torch does not know the device or it is not there.
    """
    device = _resolve(name)
    torch.empty(1, device=device)
    facts: dict[str, Any] = {
        "device": str(device),
        "device_name": platform.processor() or platform.machine(),
        "total_memory_bytes": None,
        "free_memory_bytes": None,
        "torch_version": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else None,
        "num_multiprocessors": None,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        facts |= {
            "device_name": properties.name,
            "total_memory_bytes": total_bytes,
            "free_memory_bytes": free_bytes,
            "capability": f"{properties.major}.{properties.minor}",
            "num_multiprocessors": properties.multi_processor_count,
        }
    return facts


def _resolve(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator is not None else torch.device("cpu")
