"""Accelerators by name: memory, peak arithmetic, bandwidth. An unknown device has none of these: nothing is guessed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.errors import UserInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Published figures of one accelerator.

    Attributes:
        memory_bytes: Memory of the device.
        bfloat16_flops_per_s: Peak of dense bfloat16 arithmetic; None where not in the source.
        bandwidth_bytes_per_s: Peak of the memory; None where not in the source.
    """

    memory_bytes: int
    bfloat16_flops_per_s: float | None
    bandwidth_bytes_per_s: float | None


def _device(memory_gb: float, teraflops: float | None, terabytes_per_s: float | None) -> Device:
    return Device(
        memory_bytes=int(memory_gb * 2**30) if memory_gb in (24, 32, 40, 48, 80) else int(memory_gb * 1e9),
        bfloat16_flops_per_s=None if teraflops is None else teraflops * 1e12,
        bandwidth_bytes_per_s=None if terabytes_per_s is None else terabytes_per_s * 1e12,
    )


# Source: makers' data sheets, as collected in stas00/ml-engineering (compute/accelerator). Where a maker's gigabytes
# are powers of two (24, 32, 40, 48, 80), so are ours.
DEVICES = {
    "a100": _device(80, 312, 2.0),
    "a100-40gb": _device(40, 312, 1.56),
    "b200": _device(180, 2250, 8.0),
    "gb200": _device(186, 2500, 8.0),
    "h100": _device(80, 989, 3.35),
    "h100-pcie": _device(80, 756, 2.0),
    "h200": _device(141, 989, 4.8),
    "l40s": _device(48, 362, 0.86),
    "mi300x": _device(192, 1300, 5.3),
    "mi325x": _device(256, 1300, 6.0),
    "mi355x": _device(288, 2500, 8.0),
    "v100": _device(32, None, 0.9),
}


def device_by_name(name: str) -> Device:
    """The device that a user names, such as `h100` or `H100 PCIe`.

    Raises:
        UserInputError: The table has no such device.
    """
    key = re.sub(r"[\s_]+", "-", name.strip().lower())
    if key not in DEVICES:
        near = difflib.get_close_matches(key, DEVICES, n=1, cutoff=0.5)
        guess = f'did you mean "{near[0]}"? ' if near else ""
        raise UserInputError(
            f'no figures for a device "{name}"',
            hint=f"{guess}known: {', '.join(DEVICES)}; or give the size: --memory-budget 80GiB",
        )
    return DEVICES[key]


# What a driver calls a device -> its key. Cut-down versions (NVL, MIG slices, export models) are left out on purpose:
# their peaks differ, and a wrong peak is worse than none.
_DRIVER_NAMES = (
    (r"A100.*40GB", "a100-40gb"),
    (r"A100.*80GB", "a100"),
    (r"H100 PCIe", "h100-pcie"),
    (r"H100 80GB HBM3", "h100"),
    (r"GB200", "gb200"),
    (r"B200", "b200"),
    (r"H200", "h200"),
    (r"L40S", "l40s"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI355X", "mi355x"),
    (r"V100.*32GB", "v100"),
)


def published_device(facts: Mapping[str, Any]) -> Device | None:
    """The device that torch's facts of it name; None for a processor, and where the table has no such device."""
    if str(facts.get("device", "cpu")).startswith("cpu"):
        return None
    return find_device(str(facts.get("device_name", "")))


def find_device(driver_name: str) -> Device | None:
    """The device that a driver names, such as `NVIDIA H100 80GB HBM3`; None where the table has no such device."""
    if re.search(r"NVL|MIG|slice", driver_name):
        return None
    return next((DEVICES[key] for pattern, key in _DRIVER_NAMES if re.search(rf"\b{pattern}\b", driver_name)), None)
