"""Accelerators by name: what torch reports of each, and its published peaks. An unknown one has none: no guesses."""

from __future__ import annotations

import ctypes
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
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
    """What a compute capability decides."""

    max_threads: int  # threads that can reside on one multiprocessor
    shared_memory_bytes: int  # shared memory of one multiprocessor
    shared_memory_per_block_bytes: int  # the most of it that one block can opt in to


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
    (6, 0): _multiprocessor(2048, 64, 48),  # no block can opt in to more than each gets
    (7, 0): _multiprocessor(2048, 96, 96),
    (7, 5): _multiprocessor(1024, 64, 64),
    (8, 0): _multiprocessor(2048, 164, 163),
    (8, 6): _multiprocessor(1536, 100, 99),
    (8, 9): _multiprocessor(1536, 100, 99),
    (9, 0): _multiprocessor(2048, 228, 227),
    (10, 0): _multiprocessor(2048, 228, 227),
    (10, 3): _multiprocessor(2048, 228, 227),
    (12, 0): _multiprocessor(1536, 100, 99),
    (12, 1): _multiprocessor(1536, 100, 99),
}

# Units of float32 arithmetic of a multiprocessor. Source: CUDA C++ Programming Guide, table of the throughput of native
# arithmetic instructions.
FLOAT32_LANES = {(6, 0): 64, (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128}
FLOAT32_LANES |= {(10, 0): 128, (10, 3): 128, (12, 0): 128, (12, 1): 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What a driver tells of a CUDA device beside its size."""

    l2_bytes: int  # cache of the second level
    bus_bits: int  # width of the memory's bus
    clock_khz: int  # highest clock of the multiprocessors


def _chip(l2_mib: float, bus_bits: int, clock_mhz: int) -> Chip:
    return Chip(l2_bytes=int(l2_mib * 2**20), bus_bits=bus_bits, clock_khz=clock_mhz * 1000)


# Key in DEVICES -> MiB of cache, bits of the bus, MHz. Sources: NVIDIA's architecture white papers, data sheets, and
# outputs of deviceQuery; where none tells the cache, what the same die has for each 32 bits of its bus. No program and
# no memory of a training depends on them, only what a program prints.
_CHIPS = {
    "p100": _chip(4, 4096, 1329),
    "v100": _chip(6, 4096, 1530),
    "v100-16gb": _chip(6, 4096, 1530),
    "v100s": _chip(6, 4096, 1597),
    "t4": _chip(4, 256, 1590),
    "titan-rtx": _chip(6, 384, 1770),
    "rtx-2080-ti": _chip(5.5, 352, 1545),
    "a2": _chip(2, 128, 1770),
    "a10": _chip(6, 384, 1695),
    "a10g": _chip(6, 384, 1710),
    "a30": _chip(24, 3072, 1440),
    "a40": _chip(6, 384, 1740),
    "a4000": _chip(4, 256, 1560),
    "a4500": _chip(5, 320, 1650),
    "a5000": _chip(6, 384, 1695),
    "a5500": _chip(6, 384, 1665),
    "a6000": _chip(6, 384, 1800),
    "a100": _chip(40, 5120, 1410),
    "a100-40gb": _chip(40, 5120, 1410),
    "a800": _chip(40, 5120, 1410),
    "a800-40gb": _chip(40, 5120, 1410),
    "rtx-3060": _chip(3, 192, 1777),
    "rtx-3060-8gb": _chip(2, 128, 1777),
    "rtx-3060-ti": _chip(4, 256, 1665),
    "rtx-3070": _chip(4, 256, 1725),
    "rtx-3070-ti": _chip(4, 256, 1770),
    "rtx-3080": _chip(5, 320, 1710),
    "rtx-3080-12gb": _chip(6, 384, 1710),
    "rtx-3080-ti": _chip(6, 384, 1665),
    "rtx-3090": _chip(6, 384, 1695),
    "rtx-3090-ti": _chip(6, 384, 1860),
    "l4": _chip(48, 192, 2040),
    "l20": _chip(96, 384, 2520),
    "l40": _chip(96, 384, 2490),
    "l40s": _chip(96, 384, 2520),
    "rtx-4060": _chip(24, 128, 2460),
    "rtx-4060-ti": _chip(32, 128, 2535),
    "rtx-4060-ti-16gb": _chip(32, 128, 2535),
    "rtx-4070": _chip(36, 192, 2475),
    "rtx-4070-super": _chip(48, 192, 2475),
    "rtx-4070-ti": _chip(48, 192, 2610),
    "rtx-4070-ti-super": _chip(48, 256, 2610),
    "rtx-4080": _chip(64, 256, 2505),
    "rtx-4080-super": _chip(64, 256, 2550),
    "rtx-4090": _chip(72, 384, 2520),
    "rtx-4090-d": _chip(72, 384, 2520),
    "rtx-5000-ada": _chip(64, 256, 2550),
    "rtx-6000-ada": _chip(96, 384, 2505),
    "h100": _chip(50, 5120, 1980),
    "h100-pcie": _chip(50, 5120, 1755),
    "h100-nvl": _chip(60, 6144, 1785),
    "h800": _chip(50, 5120, 1980),
    "h800-pcie": _chip(50, 5120, 1755),
    "h20": _chip(60, 6144, 1980),
    "h20-3e": _chip(60, 6144, 1980),
    "gh200": _chip(60, 6144, 1980),
    "h200": _chip(60, 6144, 1980),
    "h200-nvl": _chip(60, 6144, 1785),
    "b200": _chip(126, 8192, 1965),
    "gb200": _chip(126, 8192, 1965),
    "b300": _chip(126, 8192, 1920),
    "gb10": _chip(24, 256, 2418),
    "rtx-5060-ti": _chip(32, 128, 2572),
    "rtx-5060-ti-16gb": _chip(32, 128, 2572),
    "rtx-5070": _chip(48, 192, 2512),
    "rtx-5070-ti": _chip(48, 256, 2452),
    "rtx-5080": _chip(64, 256, 2617),
    "rtx-5090": _chip(96, 512, 2407),
    "rtx-pro-6000": _chip(128, 512, 2617),
}


class LinkKind(StrEnum):
    """What joins the devices of a node."""

    NVLINK = "NVLink"
    PCIE = "PCIe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How a device is joined to the others of its node."""

    kind: LinkKind
    bytes_per_s: float  # one way, of all links of the device, as NCCL counts with
    num_devices: int  # of a node


# Bytes/s one way that NCCL counts with: of an NVLink, by compute capability, and of 16 lanes of the third generation of
# PCIe, which each later one doubles. Source: NVIDIA/nccl, src/graph/topo.h (SM70_NVLINK_BW and so on, PCI_BW) and
# kvDictPciGen in topo.cc. Published peaks, 25 and 50 GB/s of an NVLink and 15.75 GB/s of those lanes, are a fifth more.
_NVLINK_BYTES_PER_S = {(7, 0): 20e9, (8, 0): 20e9, (9, 0): 20.6e9, (10, 0): 40.1e9, (10, 3): 40.1e9}
_PCIE_BYTES_PER_S = 12e9
# Key in DEVICES -> NVLinks of a device, where they join all devices of a node, by a switch or (V100) as a mesh; bridges
# of pairs do not. Source: NVIDIA's data sheets: V100 300 GB/s both ways in all, A100 600, A800 400, H100, H200 and H20
# 900, H800 400, B200, B300 and GB200 1,800; each NVLink has 50, from Blackwell on 100.
_NVLINKS = {"v100": 6, "v100-16gb": 6, "a100": 12, "a100-40gb": 12, "a800": 8, "a800-40gb": 8, "h100": 18, "h200": 18}
_NVLINKS |= {"h800": 8, "h20": 18, "h20-3e": 18, "b200": 18, "b300": 18, "gb200": 18}
# Keys of devices with 8 lanes, and of those that are alone in their node. Source: NVIDIA's data sheets.
_EIGHT_LANES = frozenset(["a2", "rtx-4060", "rtx-4060-ti", "rtx-4060-ti-16gb", "rtx-5060-ti", "rtx-5060-ti-16gb"])
_ALONE = frozenset(["gh200", "gb10"])
# Devices of a node. Source: NVIDIA's HGX and DGX systems from Volta to Blackwell have 8; a rack of GB200, whose NVLinks
# join all of it, has 72.
_DEVICES_OF_NODE, _DEVICES_OF_RACK = 8, {"gb200": 72}


def _find_links(key: str, capability: tuple[int, int] | None) -> Links | None:
    if capability is None or key in _ALONE:
        return None
    num_devices = _DEVICES_OF_RACK.get(key, _DEVICES_OF_NODE)
    if key in _NVLINKS:
        speed = _NVLINKS[key] * _NVLINK_BYTES_PER_S[capability]
        return Links(kind=LinkKind.NVLINK, bytes_per_s=speed, num_devices=num_devices)
    doublings = 0 if capability < (8, 0) else 1 if capability < (9, 0) else 2
    speed = _PCIE_BYTES_PER_S * 2**doublings / (2 if key in _EIGHT_LANES else 1)
    return Links(kind=LinkKind.PCIE, bytes_per_s=speed, num_devices=num_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator."""

    name: str  # what the driver calls it
    # Words that its name may have beside those of its key. Any other word makes another device of it (Laptop, SUPER, D,
    # Max-Q, MIG, vGPU profiles): its peaks differ, and a wrong peak is worse than none.
    further_words: frozenset[str]
    total_memory_bytes: int  # what torch reports as `total_memory`; less than the figure that it is sold under
    capability: tuple[int, int] | None  # CUDA compute capability, (major, minor); None where it is not a CUDA device
    num_multiprocessors: int | None  # streaming multiprocessors; None where it is not a CUDA device
    # Peak of dense bfloat16 arithmetic with float32 accumulation; None where the device has no such units, or its maker
    # publishes no such figure.
    bfloat16_flops_per_s: float | None
    bandwidth_bytes_per_s: float | None  # peak of the memory
    chip: Chip | None = None  # what the driver tells beside; None where it is not a CUDA device
    links: Links | None = None  # to other devices of a node; None where it is alone there, or not a CUDA device

    @property
    def float32_flops_per_s(self) -> float | None:
        """The peak of float32 without tensor cores: two operations a clock for each lane; None where unknown."""
        lanes = None if self.capability is None else FLOAT32_LANES.get(self.capability)
        if lanes is None or self.chip is None or self.num_multiprocessors is None:
            return None
        return 2.0 * lanes * self.num_multiprocessors * self.chip.clock_khz * 1000

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
# Memory: the comment of a line has the range that was found in public texts on Linux (out-of-memory messages of torch,
# outputs of deviceQuery and hashcat, printed device properties; some name no card), the line its lower end: drivers and
# ECC take different shares, newer drivers larger ones. "as" another: no text was found, or only one with an older
# driver; what is sold as the same size and built alike has the same share taken.
# Multiprocessors: NVIDIA's architecture white papers and tuning guides, and outputs of deviceQuery.
# Peaks: makers' data sheets and white papers, halved where they count sparsity. For a GeForce that they leave out, 512
# operations a clock for each multiprocessor, which gives the white papers' figures of the others; 1024 for an RTX A.
# Words: drivers name a GH200 by its processor's memory; the server's edition of the RTX PRO 6000 has slower memory.
# Bandwidth: of an RTX 3060 Ti with GDDR6 (with GDDR6X 0.608), and an RTX 4070 with GDDR6X (with GDDR6 0.48).
# Sizes: where a driver has one name for several, the key without a size is the one that was sold first, or the smaller.
DEVICES = {
    "p100": _device("Tesla P100-PCIE-16GB", "16gb pcie", 15.88, (6, 0), 56, None, 0.732),  # 15.88 to 15.90
    "v100": _device("Tesla V100-SXM2-32GB", "32gb pcie", 31.72, (7, 0), 80, None, 0.9),  # 31.72 to 31.75
    "v100-16gb": _device("Tesla V100-SXM2-16GB", "pcie", 15.75, (7, 0), 80, None, 0.9),  # 15.75 to 15.78
    "v100s": _device("Tesla V100S-PCIE-32GB", "32gb pcie", 31.72, (7, 0), 80, None, 1.134),  # as v100
    "t4": _device("Tesla T4", "16gb", 14.56, (7, 5), 40, None, 0.32),  # 14.56 to 14.76
    "titan-rtx": _device("NVIDIA TITAN RTX", "24gb", 23.62, (7, 5), 72, None, 0.672),  # 23.62 to 23.65
    "rtx-2080-ti": _device("NVIDIA GeForce RTX 2080 Ti", "11gb", 10.57, (7, 5), 68, None, 0.616),  # 10.57 to 10.76
    "a2": _device("NVIDIA A2", "16gb pcie", 14.56, (8, 6), 10, 18, 0.2),  # as t4; one report of 14.8, rounded
    "a10": _device("NVIDIA A10", "24gb pcie", 21.98, (8, 6), 72, 125, 0.6),  # 21.98 to 21.99
    "a10g": _device("NVIDIA A10G", "24gb", 22.05, (8, 6), 80, 70, 0.6),  # 22.05 to 22.20
    "a30": _device("NVIDIA A30", "24gb pcie", 23.53, (8, 0), 56, 165, 0.933),  # 23.53, one report
    "a40": _device("NVIDIA A40", "48gb pcie", 44.34, (8, 6), 84, 149.7, 0.696),  # 44.34 to 44.35
    "a4000": _device("NVIDIA RTX A4000", "16gb", 15.61, (8, 6), 48, 76.7, 0.448),  # 15.61 to 15.74, without ECC
    "a4500": _device("NVIDIA RTX A4500", "20gb", 19.6, (8, 6), 56, 94.6, 0.64),  # 19.7, one report, rounded
    "a5000": _device("NVIDIA RTX A5000", "24gb", 23.52, (8, 6), 64, 111.1, 0.768),  # as a5500; to 23.68, 22.19 with ECC
    "a5500": _device("NVIDIA RTX A5500", "24gb", 23.52, (8, 6), 80, 136.4, 0.768),  # 23.52, one report, without ECC
    "a6000": _device("NVIDIA RTX A6000", "48gb", 47.4, (8, 6), 84, 154.8, 0.768),  # 47.40 to 47.64, without ECC
    "a100": _device("NVIDIA A100-SXM4-80GB", "80gb pcie", 79.14, (8, 0), 108, 312, 2.0),  # 79.14 to 79.35
    "a100-40gb": _device("NVIDIA A100-SXM4-40GB", "pcie", 39.38, (8, 0), 108, 312, 1.56),  # 39.38 to 39.56
    "a800": _device("NVIDIA A800-SXM4-80GB", "80gb pcie", 79.13, (8, 0), 108, 312, 2.0),  # 79.13 to 79.33
    "a800-40gb": _device("NVIDIA A800-SXM4-40GB", "pcie active", 39.38, (8, 0), 108, 312, 1.56),  # as a100-40gb
    "rtx-3060": _device("NVIDIA GeForce RTX 3060", "12gb", 11.63, (8, 6), 28, 25.5, 0.36),  # 11.63 to 11.77
    "rtx-3060-8gb": _device("NVIDIA GeForce RTX 3060", "", 7.57, (8, 6), 28, 25.5, 0.24),  # as rtx-3070
    "rtx-3060-ti": _device("NVIDIA GeForce RTX 3060 Ti", "8gb", 7.64, (8, 6), 38, 32.4, 0.448),  # 7.64, one report
    "rtx-3070": _device("NVIDIA GeForce RTX 3070", "8gb", 7.57, (8, 6), 46, 40.6, 0.448),  # 7.57 to 7.79
    "rtx-3070-ti": _device("NVIDIA GeForce RTX 3070 Ti", "8gb", 7.65, (8, 6), 48, 43.5, 0.608),  # 7.65, one report
    "rtx-3080": _device("NVIDIA GeForce RTX 3080", "10gb", 9.75, (8, 6), 68, 59.5, 0.76),  # 9.75 to 9.78
    "rtx-3080-12gb": _device("NVIDIA GeForce RTX 3080", "", 11.63, (8, 6), 70, 61.3, 0.912),  # as rtx-3080-ti; to 11.83
    "rtx-3080-ti": _device("NVIDIA GeForce RTX 3080 Ti", "12gb", 11.63, (8, 6), 80, 68.2, 0.912),  # 11.63 to 11.77
    "rtx-3090": _device("NVIDIA GeForce RTX 3090", "24gb", 23.55, (8, 6), 82, 71, 0.936),  # 23.55 to 23.70
    "rtx-3090-ti": _device("NVIDIA GeForce RTX 3090 Ti", "24gb", 23.54, (8, 6), 84, 80, 1.008),  # 23.54 to 23.65
    "l4": _device("NVIDIA L4", "24gb", 21.95, (8, 9), 58, 121, 0.3),  # 21.95 to 22.03
    "l20": _device("NVIDIA L20", "48gb pcie", 44.32, (8, 9), 92, 119.5, 0.864),  # as l40; one report of 44.39
    "l40": _device("NVIDIA L40", "48gb", 44.32, (8, 9), 142, 181, 0.864),  # 44.32 to 44.40
    "l40s": _device("NVIDIA L40S", "48gb", 44.31, (8, 9), 142, 362, 0.86),  # 44.31 to 44.52
    "rtx-4060": _device("NVIDIA GeForce RTX 4060", "8gb", 7.62, (8, 9), 24, 30.2, 0.272),  # 7.62, one report
    "rtx-4060-ti": _device("NVIDIA GeForce RTX 4060 Ti", "8gb", 7.62, (8, 9), 34, 44.1, 0.288),  # 7.62
    "rtx-4060-ti-16gb": _device("NVIDIA GeForce RTX 4060 Ti", "", 15.57, (8, 9), 34, 44.1, 0.288),  # 15.57, one report
    "rtx-4070": _device("NVIDIA GeForce RTX 4070", "12gb", 11.58, (8, 9), 46, 58.3, 0.504),  # 11.58 to 11.72
    "rtx-4070-super": _device("NVIDIA GeForce RTX 4070 SUPER", "12gb", 11.58, (8, 9), 56, 71, 0.504),  # as rtx-4070
    "rtx-4070-ti": _device("NVIDIA GeForce RTX 4070 Ti", "12gb", 11.58, (8, 9), 60, 80.2, 0.504),  # as rtx-4070
    "rtx-4070-ti-super": _device(
        "NVIDIA GeForce RTX 4070 Ti SUPER", "16gb", 15.56, (8, 9), 66, 88.2, 0.672
    ),  # 15.56 to 15.69
    "rtx-4080": _device("NVIDIA GeForce RTX 4080", "16gb", 15.57, (8, 9), 76, 97.5, 0.7168),  # 15.57 to 15.67
    "rtx-4080-super": _device(
        "NVIDIA GeForce RTX 4080 SUPER", "16gb", 15.57, (8, 9), 80, 104.4, 0.736
    ),  # 15.57, one report
    "rtx-4090": _device("NVIDIA GeForce RTX 4090", "24gb", 23.52, (8, 9), 128, 165.2, 1.008),  # 23.52 to 23.68
    "rtx-4090-d": _device("NVIDIA GeForce RTX 4090 D", "24gb", 23.54, (8, 9), 114, 147.1, 1.008),  # 23.54 to 23.64
    "rtx-5000-ada": _device(
        "NVIDIA RTX 5000 Ada Generation", "32gb", 31.5, (8, 9), 100, 261.1, 0.576
    ),  # 31.6, one report, rounded
    "rtx-6000-ada": _device(
        "NVIDIA RTX 6000 Ada Generation", "48gb", 47.4, (8, 9), 142, 364.2, 0.96
    ),  # to 47.48, no ECC
    "h100": _device("NVIDIA H100 80GB HBM3", "80gb hbm3", 79.11, (9, 0), 132, 989, 3.35),  # 79.11 to 79.25
    "h100-pcie": _device("NVIDIA H100 PCIe", "80gb", 79.11, (9, 0), 114, 756, 2.0),  # 79.11
    "h100-nvl": _device("NVIDIA H100 NVL", "94gb", 93.02, (9, 0), 132, 835, 3.9),  # 93.02 to 93.10
    "h800": _device("NVIDIA H800", "80gb hbm3", 79.11, (9, 0), 132, 989, 3.35),  # as h100
    "h800-pcie": _device("NVIDIA H800 PCIe", "80gb", 79.11, (9, 0), 114, 756, 2.0),  # as h100-pcie
    "h20": _device("NVIDIA H20", "96gb hbm3", 95, (9, 0), 78, 148, 4.0),  # 95.00 to 95.1
    "h20-3e": _device("NVIDIA H20-3e", "141gb hbm3e", 139.8, (9, 0), 78, 148, 4.8),  # as h200
    "gh200": _device("NVIDIA GH200 480GB", "96gb 120gb 480gb hbm3", 94.5, (9, 0), 132, 989, 4.0),  # 94.50 to 95.00
    "h200": _device("NVIDIA H200", "141gb hbm3e", 139.8, (9, 0), 132, 989, 4.8),  # 139.80 to 139.81
    "h200-nvl": _device("NVIDIA H200 NVL", "141gb hbm3e", 139.8, (9, 0), 132, 835, 4.8),  # as h200
    "b200": _device("NVIDIA B200", "180gb 192gb", 178.35, (10, 0), 148, 2250, 8.0),  # 178.35 to 178.36
    "gb200": _device("NVIDIA GB200", "186gb 192gb", 184.31, (10, 0), 152, 2500, 8.0),  # 184.31
    "b300": _device("NVIDIA B300 SXM6 AC", "288gb ac", 267.69, (10, 3), 148, 2250, 8.0),  # 267.69
    # 119.63 to 121.69, shared with the host; of its peaks NVIDIA publishes one, of sparse arithmetic on 4 bits
    "gb10": _device("NVIDIA GB10", "128gb dgx spark", 119.63, (12, 1), 48, None, 0.273),
    "rtx-5060-ti": _device("NVIDIA GeForce RTX 5060 Ti", "8gb", 7.5, (12, 0), 36, 47.4, 0.448),  # as the next, by share
    "rtx-5060-ti-16gb": _device("NVIDIA GeForce RTX 5060 Ti", "", 15.47, (12, 0), 36, 47.4, 0.448),  # 15.47 to 15.48
    "rtx-5070": _device("NVIDIA GeForce RTX 5070", "12gb", 11.5, (12, 0), 48, 61.7, 0.672),  # 11.50
    "rtx-5070-ti": _device("NVIDIA GeForce RTX 5070 Ti", "16gb", 15.43, (12, 0), 70, 87.9, 0.896),  # 15.43 to 15.48
    "rtx-5080": _device("NVIDIA GeForce RTX 5080", "16gb", 15.46, (12, 0), 84, 112.6, 0.96),  # 15.46 to 15.51
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

DEVICES = {
    key: replace(device, chip=_CHIPS.get(key), links=_find_links(key, device.capability))
    for key, device in DEVICES.items()
}

# Words of a name that distinguish no devices.
_IGNORED_WORDS = frozenset(
    ("nvidia", "amd", "tesla", "geforce", "instinct", "rtx", "sxm", "sxm2", "sxm4", "sxm5", "sxm6", "generation")
)
# What people call a device beside its key and its driver's name.
_OTHER_NAMES = {frozenset(("dgx", "spark")): "gb10", frozenset(("h20", "141gb")): "h20-3e"}
# Share by which a device's memory may differ from the table's: drivers of Windows report up to 6 % more.
_MEMORY_TOLERANCE = 0.08
# Title -> how the drivers' names begin; the first that fits holds.
_FAMILIES = {
    "AMD": ("AMD",),
    "GeForce": ("NVIDIA GeForce", "NVIDIA TITAN"),
    "workstation": ("NVIDIA RTX", "NVIDIA GB10"),
    "data center": ("NVIDIA", "Tesla"),
}


def _keys_of(family: str) -> str:
    return ", ".join(key for key, device in DEVICES.items() if _family(device) == family)


def _family(device: Device) -> str:
    return next(title for title, beginnings in _FAMILIES.items() if device.name.startswith(beginnings))


_NO_CUDA = "is no CUDA device: its program is neither traced by name nor emulated"
_BY_SIZE = "bexplore trace JOB --memory-budget 16GiB tells which sizes of this machine's program fit in so much"
_WHERE_SEEN = "bexplore explore JOB runs where torch.accelerator finds it"
_NOT_BY_XLA = f"{_WHERE_SEEN}, and not through XLA; {_BY_SIZE}"
# Names of accelerators of other makers; what they are, and what can be said of them. The first that fits holds.
_OTHER_MAKERS = tuple(
    (re.compile(rf"\b({names})\b"), what, hint)
    for names, what, hint in (
        (r"tpu\w*|trillium|ironwood|v[2-9][ep]|v[2-9] \d+", f"a TPU {_NO_CUDA}", _NOT_BY_XLA),
        (
            r"trainium ?\d?|inferentia ?\d?|neuron\w*|trn\d\w*|inf[12]\w*",
            f"a device of AWS Neuron (Trainium, Inferentia) {_NO_CUDA}",
            _NOT_BY_XLA,
        ),
        (
            r"cerebras|cs ?[1-3x]|wse ?\d?",
            "a Cerebras system compiles a program by itself; bexplore reads its files, and searches for other devices",
            "micro_batch_size: explore searches there; here name a CUDA device, such as h100",
        ),
        (
            r"gaudi ?\d?|habana|hpu|hl ?\d+\w*",
            f"Gaudi {_NO_CUDA}",
            f"{_WHERE_SEEN} (explore.device: hpu); {_BY_SIZE}",
        ),
        (
            r"apple|mac|macbook|mps|metal|m[1-9]",
            f"the GPU of an Apple processor {_NO_CUDA}",
            f"{_WHERE_SEEN} (explore.device: mps, explore.memory_budget: 16GiB); {_BY_SIZE}",
        ),
        (
            r"intel|arc|xpu|pvc|ponte|(max|flex) 1\d\d0?|a3[18]0|a580|a7[57]0|b5[78]0|b[56]0",
            f"a GPU of Intel {_NO_CUDA}",
            f"{_WHERE_SEEN} (explore.device: xpu); {_BY_SIZE}",
        ),
        (
            r"radeon|rx ?\d*\w*|w[67]\d00\w*|[679]\d\d0 ?xtx?|vega|mi ?\d+\w*|strix",
            f"it is none of AMD's that are known ({_keys_of('AMD')}), and {_NO_CUDA}",
            f"{_WHERE_SEEN} (explore.device: cuda, as torch for ROCm calls it); {_BY_SIZE}",
        ),
        (
            r"ascend|npu|\d10b\d?",
            f"Ascend {_NO_CUDA}",
            f"{_WHERE_SEEN} (explore.device: npu); {_BY_SIZE}",
        ),
        (
            r"cpu|xeon|epyc|ryzen|threadripper|graviton\d?",
            "it is a processor",
            "without `device_name` the program of this machine is traced",
        ),
    )
)


def device_by_name(name: str) -> Device:
    """Look up the device that a user names, such as `h100`, `RTX 4090` or `A100-SXM4-40GB`.

    Raises:
        UserInputError: The table has no such device. For one of another maker the message tells what can be said of
            it; else the hint lists the known ones, after the one that was meant where a slip explains the name.
    """
    device = find_device(name)
    if device is not None:
        return device
    message, near = f'no figures for a device "{name}"', _nearest_key(name)
    text = " ".join(_words(name))
    for names, what, hint in _OTHER_MAKERS if near is None else ():
        if names.search(text):
            raise UserInputError(f"{message}: {what}", hint=hint)
    guess = f'did you mean "{near}"? ' if near else ""
    known = "\n".join(f"  {family}: {_keys_of(family)}" for family in reversed(_FAMILIES))
    raise UserInputError(message, hint=f"{guess}known, or give the size by explore.memory_budget: 80GiB:\n{known}")


def published_device(facts: Mapping[str, Any]) -> Device | None:
    """Return the device of a device info; None for a processor, and where the table has no such device.

    Of several that their driver calls the same, it is the one of that memory; None where the info does not tell it.
    """
    if str(facts.get("device", "cpu")).startswith("cpu"):
        return None
    found = find_device(str(facts.get("device_name", "")))
    namesakes = [device for device in DEVICES.values() if found is not None and device.name == found.name]
    if len(namesakes) < 2:
        return found
    memory_bytes = facts.get("total_memory_bytes") or 0
    near = min(namesakes, key=lambda device: abs(device.total_memory_bytes - memory_bytes))
    is_near = abs(near.total_memory_bytes - memory_bytes) <= _MEMORY_TOLERANCE * near.total_memory_bytes
    return near if is_near else None


def find_device(name: str) -> Device | None:
    """Look up a device as its driver names it, such as `NVIDIA H100 80GB HBM3`, or a user.

    Returns:
        None where the table has no such device, which a slice or a cut-down version of one in it is.
    """
    words = frozenset(_words(name))
    if words in _OTHER_NAMES:
        return DEVICES[_OTHER_NAMES[words]]
    keys = ((set(_words(key)), device) for key, device in DEVICES.items())
    return next((device for own, device in keys if own <= words <= own | device.further_words), None)


def _spaced(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.lower()).strip()


def _words(name: str) -> list[str]:
    text = re.sub(r"\b(\d+) ?gi?b?\b", r"\1gb", _spaced(name))  # "80 GB", "80G" and "80GiB" are one word
    text = re.sub(r"\brtx(?=\S)", "rtx ", text)  # "rtx4090"
    text = re.sub(r"\b(\d{4})(ti)?(super|d)?\b", r"\1 \2 \3", text)  # "4070ti"
    return [word for word in text.split() if word not in _IGNORED_WORDS]


def _nearest_key(name: str) -> str | None:
    """Return the key that a name means but for a slip, or but for what follows the number; None where there is none."""
    typed, words, text = _parts(name), set(_words(name)), _spaced(name)

    def is_near(key: str) -> bool:
        is_misspelt = _is_slip(text, _spaced(key)) and re.findall(r"\d", text) == re.findall(r"\d", key)
        return is_misspelt or _is_near(typed, _parts(key))

    def likeness(key: str) -> tuple[bool, bool, bool, float]:
        ratio = difflib.SequenceMatcher(None, text, _spaced(key)).ratio()
        return _is_slip(text, _spaced(key)), _parts(key)[1] == typed[1], words.issuperset(_words(key)), ratio

    near = list(filter(is_near, DEVICES))
    meant = set(map(_parts, near))
    if len(meant) > 1 and typed not in meant:  # 100 is A100 as well as H100
        return None
    return max(near, key=likeness, default=None)


def _parts(name: str) -> tuple[str, str]:
    """Return the letters before the first digit of a device, all words where it has none, and its digits.

    Those of its memory's size are left out.
    """
    text = " ".join(word for word in _words(name) if not re.fullmatch(r"\d+gb", word))
    match = re.search(r"([a-z]*)\d", text)
    return (match[1] if match else text, "".join(re.findall(r"\d", text)))


def _is_near(typed: tuple[str, str], known: tuple[str, str]) -> bool:
    letters, number = typed
    if letters == known[0]:
        return number == known[1] or _is_number_slip(number, known[1])
    return number == known[1] and letters != "" and _is_slip(letters, known[0])


def _is_number_slip(typed: str, meant: str) -> bool:
    """Return whether a number is another one but for a slip.

    Most slips make the number of another device (A1000 of A100, L2 of L20, RX 580 of RTX 5080, RTX 500 Ada of 5000):
    only a fifth digit, and a zero that lacks at the end, make none.
    """
    if len(typed) > 4:
        return _is_slip(typed, meant)
    return len(typed) > 1 and f"{typed}0" == meant and not typed.endswith("00")


def _is_slip(typed: str, meant: str) -> bool:
    """Return whether a character was left out or typed twice, or two were swapped."""
    places = range(len(meant))
    slips = {meant[:place] + meant[place + 1 :] for place in places}
    slips |= {meant[:place] + meant[place] + meant[place:] for place in places}
    slips |= {meant[:place] + meant[place : place + 2][::-1] + meant[place + 2 :] for place in places}
    return typed in slips


# A function of the emulated CUDA runtime: 0 where it is there and has no device.
_MARK = "bexplore_is_emulated"


def is_emulated() -> bool:
    """Return whether the CUDA devices of this process are emulated, whose times mean nothing; needs no torch."""
    has_devices = getattr(ctypes.CDLL(None), _MARK, None)
    return has_devices is not None and has_devices() != 0
