"""A worker's device: which one a name means, what torch says about it, and how much of its memory is free."""

from __future__ import annotations

import platform
import time
from typing import Any

import torch

from bexplore.errors import UserInputError
from bexplore.host.accelerators import is_emulated
from bexplore.job import device_kind

# Free share of the device's memory below which a library that fails is taken to have lacked memory.
FULL_SHARE = 0.01
# How long memory that a killed process held may take to come back, and how often it is read. Seconds.
MEMORY_RETURN_LIMIT_S = 15.0
MEMORY_RETURN_POLL_S = 0.25
# Free memory may be smaller than it was by this and count as back: half of the margin that a budget keeps. Bytes.
MEMORY_RETURN_SLACK_BYTES = 256 * 2**20


def take(name: str, limit_bytes: int | None = None) -> torch.device:
    """Make a job's device the current one and return it; this process may take no more of its memory than a limit."""
    device = torch.device(name)
    make_current(device)
    bound_memory(device, limit_bytes)
    return device


def device_info(name: str) -> dict[str, Any]:
    """Describe a device: what decides whether measurements compare, and its memory; make it the current one.

    Args:
        name: A torch device, or `auto` for the accelerator that torch finds, else the CPU.

    Returns:
        `device`, with its index where it is an accelerator; `device_name`, `total_memory_bytes`, `free_memory_bytes`
        (None on the CPU, and where torch keeps no account), `torch_version`, `num_threads`, `capability`,
        `num_multiprocessors`; `is_emulated`, whether its results and times mean nothing; `uuid`, `uuids` of all devices
        that torch sees, and `pci_bus_id` (None but on CUDA).

    Raises:
        UserInputError: torch does not know the name, or sees no such device.
        RuntimeError: The device is there and cannot be used.
    """
    device = resolve_device(name)
    make_current(device)
    torch.empty(1, device=device)
    free_bytes, total_bytes = memory_info(device) or (None, None)
    facts: dict[str, Any] = {
        "device": str(device),
        "device_name": _title(device) or platform.processor() or platform.machine(),
        "total_memory_bytes": total_bytes,
        "free_memory_bytes": free_bytes,
        "torch_version": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else None,
        "num_multiprocessors": None,
        "uuid": None,
        "uuids": None,
        "pci_bus_id": None,
        "is_emulated": is_emulated(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "capability": f"{properties.major}.{properties.minor}",
            "num_multiprocessors": properties.multi_processor_count,
            "uuid": str(properties.uuid),
            "uuids": [str(torch.cuda.get_device_properties(one).uuid) for one in _visible_accelerators()],
            "pci_bus_id": _pci_bus_id(properties),
        }
    return facts


def find_device_of_rank(name: str, local_rank: int) -> str:
    """Return the device of one of several ranks on this host: of a kind of accelerators, the one with its number."""
    visible = _visible_accelerators()
    kind = device_kind(name)
    if kind == "cpu" or not visible:
        return name
    return f"{visible[0].type}:{local_rank % len(visible)}"


def resolve_device(name: str) -> torch.device:
    """Return the device that a name means; an accelerator's always has an index.

    Some functions of `torch.cuda` take no device without one. Source: torch/cuda/memory.py,
    `set_per_process_memory_fraction`, which calls `_get_device_index` without `optional=True`.
    """
    visible = _visible_accelerators()
    try:
        device = (visible[0] if visible else torch.device("cpu")) if name == "auto" else torch.device(name)
    except RuntimeError:
        raise _unseen(name, visible) from None
    if device.type == "cpu":
        return torch.device("cpu")
    of_its_kind = [one for one in visible if one.type == device.type]
    if of_its_kind and (name == "auto" or device.index is None):
        device = torch.device(device.type, _current_index(device.type))
    if device not in of_its_kind:
        raise _unseen(name, visible)
    return device


def make_current(device: torch.device) -> None:
    """Make a device the one on which this thread's events, streams and contexts are; nothing if torch sees none."""
    module: Any = getattr(torch, device.type, None)
    if device in _visible_accelerators() and hasattr(module, "set_device"):
        module.set_device(device)


def memory_info(device: torch.device) -> tuple[int, int] | None:
    """Return free and total bytes of an accelerator's memory; None for the CPU, and where torch keeps no account."""
    if device.type == "cpu":
        return None
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        return torch.accelerator.get_memory_info(device)
    except RuntimeError:  # of a backend, or a driver, without an account
        return None


def bound_memory(device: torch.device, limit_bytes: int | None) -> None:
    """Let this process's allocator take no more of a CUDA device than a limit; None for no limit."""
    if device.type == "cuda" and limit_bytes is not None and torch.cuda.is_available():
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), device)


def is_nearly_full(device: torch.device) -> bool:
    """Return whether the device, or this process's share of it, has next to no memory left."""
    try:
        free_bytes, total_bytes = memory_info(device) or (1, 1)
        if device.type == "cuda":
            allowed_bytes = torch.cuda.get_per_process_memory_fraction(device) * total_bytes
            free_bytes = min(free_bytes, int(allowed_bytes) - torch.cuda.memory_reserved(device))
    except RuntimeError:  # a device in such a state answers nothing
        return False
    return free_bytes < FULL_SHARE * total_bytes


def await_memory(device: torch.device, expected_bytes: int | None) -> int | None:
    """Wait until as much memory is free as there was, which a process that was killed just now may still hold.

    Return the bytes that are free where they are too few after all, else None.
    """
    if expected_bytes is None:
        return None
    until = time.monotonic() + MEMORY_RETURN_LIMIT_S
    while (info := memory_info(device)) is not None and info[0] < expected_bytes - MEMORY_RETURN_SLACK_BYTES:
        if time.monotonic() >= until:
            return info[0]
        time.sleep(MEMORY_RETURN_POLL_S)
    return None


def _visible_accelerators() -> list[torch.device]:
    kind = _accelerator()
    return [] if kind is None else [torch.device(kind, i) for i in range(getattr(torch, kind).device_count())]


def _accelerator() -> str | None:
    if torch.cuda.is_available():
        return "cuda"
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return None if accelerator is None else accelerator.type


def _current_index(kind: str) -> int:
    module: Any = getattr(torch, kind)
    return module.current_device() if hasattr(module, "current_device") else 0


def _unseen(name: str, visible: list[torch.device]) -> UserInputError:
    seen = ", ".join(f"{one} ({_title(one) or 'no name'})" for one in visible)
    what = f"torch sees {seen} and cpu" if seen else f"torch {torch.__version__} sees no accelerator; it sees: cpu"
    known = ", ".join([*map(str, visible), "cpu"])
    return UserInputError(
        f"device '{name}' cannot be used: {what}",
        hint=f"set explore.device to one of {known}; CUDA_VISIBLE_DEVICES hides devices from torch",
    )


def _title(device: torch.device) -> str:
    module: Any = getattr(torch, device.type, None)
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else ""


def _pci_bus_id(properties: Any) -> str | None:
    """Return the bus id as nvidia-smi takes it."""
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain, bus, slot = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return f"{domain:08x}:{bus:02x}:{slot:02x}.0"
