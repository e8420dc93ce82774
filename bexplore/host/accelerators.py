"""Accelerators by name: what torch reports of each, and its published peaks. An unknown one has none: no guesses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bexplore.errors import UserInputError

WARP_SIZE = 32  # threads; this and the next three are the same for every compute capability in MULTIPROCESSORS
MAX_THREADS_PER_BLOCK = 1024
REGISTERS_PER_MULTIPROCESSOR = 65536  # of 32 bits
SHARED_MEMORY_PER_BLOCK_BYTES = 48 * 1024  # without opting in to more
# Device memory of a CUDA process before its first tensor: context, kernels of the libraries. Source: reports
# of 0.4 to 0.6 GiB; to be measured.
CUDA_CONTEXT_BYTES = int(0.6 * 2**30)
# Memory that collectives allocate outside torch's allocator: 1 to 2 GiB by reports from the field.
COLLECTIVES_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """What a compute capability decides.

    Attributes:
        max_threads: Threads that can reside on one multiprocessor.
        shared_memory_bytes: Shared memory of one multiprocessor.
        shared_memory_per_block_bytes: The most of it that one block can opt in to.
    """

    max_threads: int
    shared_memory_bytes: int
    shared_memory_per_block_bytes: int


def _multiprocessor(max_threads: int, shared_kib: int, shared_per_block_kib: int) -> Multiprocessor:
    return Multiprocessor(
        max_threads=max_threads,
        shared_memory_bytes=shared_kib * 1024,
        shared_memory_per_block_bytes=shared_per_block_kib * 1024,
    )


# (major, minor) -> threads, KiB of shared memory, KiB of it for one block.
# Source: CUDA C++ Programming Guide, section "Compute Capabilities", table of technical specifications; the same
# numbers stand in NVIDIA's cccl, libcudacxx/include/cuda/__device/arch_traits.h.
MULTIPROCESSORS = {
    (7, 0): _multiprocessor(2048, 96, 96),
    (7, 5): _multiprocessor(1024, 64, 64),
    (8, 0): _multiprocessor(2048, 164, 163),
    (8, 6): _multiprocessor(1536, 100, 99),
    (8, 9): _multiprocessor(1536, 100, 99),
    (9, 0): _multiprocessor(2048, 228, 227),
    (10, 0): _multiprocessor(2048, 228, 227),
    (10, 3): _multiprocessor(2048, 228, 227),
    (12, 0): _multiprocessor(1536, 100, 99),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What a driver tells of a CUDA device beside its size.

    Attributes:
        l2_bytes: Cache of the second level.
        bus_bits: Width of the memory's bus.
        clock_khz: Highest clock of the multiprocessors.
    """

    l2_bytes: int
    bus_bits: int
    clock_khz: int


def _chip(l2_mib: int, bus_bits: int, clock_mhz: int) -> Chip:
    return Chip(l2_bytes=l2_mib * 2**20, bus_bits=bus_bits, clock_khz=clock_mhz * 1000)


# Key in DEVICES -> MiB of cache, bits of the bus, MHz. Sources: NVIDIA's architecture white papers, data sheets, and
# outputs of deviceQuery. No program and no memory of a training depends on them, only what a program prints.
_CHIPS = {
    "v100": _chip(6, 4096, 1530),
    "v100-16gb": _chip(6, 4096, 1530),
    "t4": _chip(4, 256, 1590),
    "a10": _chip(6, 384, 1695),
    "a10g": _chip(6, 384, 1710),
    "a30": _chip(24, 3072, 1440),
    "a40": _chip(6, 384, 1740),
    "a6000": _chip(6, 384, 1800),
    "a100": _chip(40, 5120, 1410),
    "a100-40gb": _chip(40, 5120, 1410),
    "rtx-3090": _chip(6, 384, 1695),
    "l4": _chip(48, 192, 2040),
    "l40": _chip(96, 384, 2490),
    "l40s": _chip(96, 384, 2520),
    "rtx-4090": _chip(72, 384, 2520),
    "rtx-6000-ada": _chip(96, 384, 2505),
    "h100": _chip(50, 5120, 1980),
    "h100-pcie": _chip(50, 5120, 1755),
    "h100-nvl": _chip(60, 6144, 1785),
    "gh200": _chip(60, 6144, 1980),
    "h200": _chip(60, 6144, 1980),
    "b200": _chip(126, 8192, 1965),
    "gb200": _chip(126, 8192, 1965),
    "b300": _chip(126, 8192, 1920),
    "rtx-5090": _chip(96, 512, 2407),
    "rtx-pro-6000": _chip(128, 512, 2617),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator.

    Attributes:
        name: What the driver calls it.
        further_words: Words that its name may have beside those of its key. Any other word makes another device of it
            (Laptop, SUPER, D, Max-Q, MIG, vGPU profiles): its peaks differ, and a wrong peak is worse than none.
        total_memory_bytes: What torch reports as `total_memory`; less than the figure that it is sold under.
        capability: CUDA compute capability, (major, minor); None where it is not a CUDA device.
        num_multiprocessors: Streaming multiprocessors; None where it is not a CUDA device.
        bfloat16_flops_per_s: Peak of dense bfloat16 arithmetic with float32 accumulation; None where the device has no
            such units.
        bandwidth_bytes_per_s: Peak of the memory.
        chip: What the driver tells beside; None where it is not a CUDA device.
    """

    name: str
    further_words: frozenset[str]
    total_memory_bytes: int
    capability: tuple[int, int] | None
    num_multiprocessors: int | None
    bfloat16_flops_per_s: float | None
    bandwidth_bytes_per_s: float | None
    chip: Chip | None = None

    @property
    def memory_clock_khz(self) -> int:
        """The memory's clock, from its peak: two transfers of the bus's width each period; 0 where one is unknown."""
        if self.chip is None or self.bandwidth_bytes_per_s is None:
            return 0
        return round(self.bandwidth_bytes_per_s / (2 * self.chip.bus_bits / 8) / 1000)


def _device(
    name: str,
    further_words: str,
    memory_gib: float,
    capability: tuple[int, int] | None,
    num_multiprocessors: int | None,
    teraflops: float | None,
    terabytes_per_s: float | None,
) -> Device:
    return Device(
        name=name,
        further_words=frozenset(further_words.split()),
        total_memory_bytes=int(memory_gib * 2**30),
        capability=capability,
        num_multiprocessors=num_multiprocessors,
        bfloat16_flops_per_s=None if teraflops is None else teraflops * 1e12,
        bandwidth_bytes_per_s=None if terabytes_per_s is None else terabytes_per_s * 1e12,
    )


# Driver's name, further words of it; GiB of memory, compute capability, multiprocessors; TFLOP/s, TB/s.
#
# Memory: the comment of a line has the range that was found in public texts (out-of-memory messages of torch, outputs
# of deviceQuery, printed device properties; some name no card), the line its lower end: drivers and ECC take different
# shares.
# Multiprocessors: NVIDIA's architecture white papers and tuning guides, and outputs of deviceQuery.
# Peaks: makers' data sheets and white papers, halved where they count sparsity.
# Words: drivers name a GH200 by its processor's memory; the server's edition of the RTX PRO 6000 has slower memory.
DEVICES = {
    "v100": _device("Tesla V100-SXM2-32GB", "32gb pcie", 31.72, (7, 0), 80, None, 0.9),  # 31.72 to 31.75
    "v100-16gb": _device("Tesla V100-SXM2-16GB", "pcie", 15.75, (7, 0), 80, None, 0.9),  # 15.75 to 15.78
    "t4": _device("Tesla T4", "16gb", 14.56, (7, 5), 40, None, 0.32),  # 14.56 to 14.76
    "a10": _device("NVIDIA A10", "24gb pcie", 21.98, (8, 6), 72, 125, 0.6),  # 21.98 to 21.99
    "a10g": _device("NVIDIA A10G", "24gb", 22.05, (8, 6), 80, 70, 0.6),  # 22.05 to 22.20
    "a30": _device("NVIDIA A30", "24gb pcie", 23.53, (8, 0), 56, 165, 0.933),  # 23.53, one report
    "a40": _device("NVIDIA A40", "48gb pcie", 44.34, (8, 6), 84, 149.7, 0.696),  # 44.34 to 44.35
    "a6000": _device("NVIDIA RTX A6000", "48gb", 47.4, (8, 6), 84, 154.8, 0.768),  # 47.40 to 47.64, without ECC
    "a100": _device("NVIDIA A100-SXM4-80GB", "80gb pcie", 79.14, (8, 0), 108, 312, 2.0),  # 79.14 to 79.35
    "a100-40gb": _device("NVIDIA A100-SXM4-40GB", "pcie", 39.38, (8, 0), 108, 312, 1.56),  # 39.38 to 39.56
    "rtx-3090": _device("NVIDIA GeForce RTX 3090", "24gb", 23.55, (8, 6), 82, 71, 0.936),  # 23.55 to 23.70
    "l4": _device("NVIDIA L4", "24gb", 21.95, (8, 9), 58, 121, 0.3),  # 21.95 to 22.03
    "l40": _device("NVIDIA L40", "48gb", 44.32, (8, 9), 142, 181, 0.864),  # 44.32 to 44.40
    "l40s": _device("NVIDIA L40S", "48gb", 44.31, (8, 9), 142, 362, 0.86),  # 44.31 to 44.52
    "rtx-4090": _device("NVIDIA GeForce RTX 4090", "24gb", 23.52, (8, 9), 128, 165.2, 1.008),  # 23.52 to 23.68
    "rtx-6000-ada": _device(
        "NVIDIA RTX 6000 Ada Generation", "48gb", 47.4, (8, 9), 142, 364.2, 0.96
    ),  # to 47.48, no ECC
    "h100": _device("NVIDIA H100 80GB HBM3", "80gb hbm3", 79.11, (9, 0), 132, 989, 3.35),  # 79.11 to 79.25
    "h100-pcie": _device("NVIDIA H100 PCIe", "80gb", 79.11, (9, 0), 114, 756, 2.0),  # 79.11
    "h100-nvl": _device("NVIDIA H100 NVL", "94gb", 93.02, (9, 0), 132, 835, 3.9),  # 93.02 to 93.10
    "gh200": _device("NVIDIA GH200 480GB", "96gb 120gb 480gb hbm3", 94.5, (9, 0), 132, 989, 4.0),  # 94.50 to 95.00
    "h200": _device("NVIDIA H200", "141gb hbm3e", 139.8, (9, 0), 132, 989, 4.8),  # 139.80 to 139.81
    "b200": _device("NVIDIA B200", "180gb 192gb", 178.35, (10, 0), 148, 2250, 8.0),  # 178.35 to 178.36
    "gb200": _device("NVIDIA GB200", "186gb 192gb", 184.31, (10, 0), 152, 2500, 8.0),  # 184.31
    "b300": _device("NVIDIA B300 SXM6 AC", "288gb ac", 267.69, (10, 3), 148, 2250, 8.0),  # 267.69
    "rtx-5090": _device("NVIDIA GeForce RTX 5090", "32gb", 31.36, (12, 0), 170, 209.5, 1.792),  # 31.36 to 31.37
    "rtx-pro-6000": _device(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "96gb blackwell workstation edition",
        94.96,
        (12, 0),
        188,
        503.8,
        1.792,
    ),  # 94.96 to 94.98
    "mi300x": _device("AMD Instinct MI300X", "192gb oam vf", 191.69, None, None, 1300, 5.3),  # 191.69 to 191.98
    "mi325x": _device("AMD Instinct MI325X", "256gb oam", 255.69, None, None, 1300, 6.0),  # 255.69 to 255.98
    "mi355x": _device("AMD Instinct MI355X", "288gb oam", 287.98, None, None, 2500, 8.0),  # 287.98
}

DEVICES = {key: replace(device, chip=_CHIPS.get(key)) for key, device in DEVICES.items()}

# Words of a name that distinguish no devices.
_IGNORED_WORDS = frozenset(
    ("nvidia", "amd", "tesla", "geforce", "instinct", "rtx", "sxm", "sxm2", "sxm4", "sxm5", "sxm6", "generation")
)


def device_by_name(name: str) -> Device:
    """Look up the device that a user names, such as `h100`, `RTX 4090` or `A100-SXM4-40GB`.

    Raises:
        UserInputError: The table has no such device.
    """
    device = find_device(name)
    if device is None:
        keys = {"-".join(_words(key)): key for key in DEVICES}
        near = difflib.get_close_matches("-".join(_words(name)), keys, n=1, cutoff=0.5)
        guess = f'did you mean "{keys[near[0]]}"? ' if near else ""
        raise UserInputError(
            f'no figures for a device "{name}"',
            hint=f"{guess}known: {', '.join(DEVICES)}; or give the size: --memory-budget 80GiB",
        )
    return device


def published_device(facts: Mapping[str, Any]) -> Device | None:
    """Return the device of a device info; None for a processor, and where the table has no such device."""
    if str(facts.get("device", "cpu")).startswith("cpu"):
        return None
    return find_device(str(facts.get("device_name", "")))


def find_device(name: str) -> Device | None:
    """Look up a device as its driver names it, such as `NVIDIA H100 80GB HBM3`, or a user.

    Returns:
        None where the table has no such device, which a slice or a cut-down version of one in it is.
    """
    words = set(_words(name))
    keys = ((set(_words(key)), device) for key, device in DEVICES.items())
    return next((device for own, device in keys if own <= words <= own | device.further_words), None)


def _words(name: str) -> list[str]:
    text = re.sub(r"[\s_-]+", " ", name.lower())
    text = re.sub(r"\b(\d+) ?gi?b?\b", r"\1gb", text)  # "80 GB", "80G" and "80GiB" are one word
    text = re.sub(r"\brtx(?=\S)", "rtx ", text)  # "rtx4090"
    return [word for word in text.split() if word not in _IGNORED_WORDS]
