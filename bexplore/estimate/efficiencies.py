"""Fitted efficiencies of devices: `efficiencies.json`, written by `python -m benchmarks.kernel_times FOLDER SINGLES`.

Peaks are published and stand in `host/accelerators.py`; here is what share of them kernels reach, and how far the model
was from kernels of models that it was not fitted on.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bexplore.host.accelerators import DEVICES, FLOAT32_LANES, Device
from bexplore.host.json_files import read_json
from bexplore.host.records import from_record

_TABLE = Path(__file__).with_name("efficiencies.json")
# Major compute capability, and (major, minor) where it is another -> the fitted device that is built most alike: a
# multiprocessor of 8.6, 8.9 and 12.x has a quarter of the cache and half the tensor cores of one of 8.0 and 9.0.
_ALIKE = {(7, 0): "a100", (8, 0): "a100", (8, 6): "a40", (8, 9): "a40", (9, 0): "h100", (10, 0): "h100"}
_ALIKE |= {(10, 3): "h100", (12, 0): "a40", (12, 1): "a40", (7, 5): "a40"}
_SINGLE_ALIKE = {(7, 0): "v100", (7, 5): "t4"}  # the same in float32; others are like an A100
_SINGLE = "a100"
# What a multiprocessor with 128 lanes of float32 arithmetic reaches of its peak, over what one with 64 does: it issues
# an instruction to all lanes in each clock, so that each that loads is one that multiplies less.
# Source: cublasSgemm of 8,192 x 8,192 x 8,192 on an H100 SXM, 50.5 of 66.9 TFLOP/s (waynehacking8's
# blackwell-tensorcore-kernels, results/bench_sm90a.csv), over what the numbers of an A100 give for it.
_MANY_LANES, _MANY_LANES_SHARE = 128, 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductEfficiency:
    """What matrix products reach on one device."""

    peak_share: float  # share of the published peak within a large tile
    bandwidth_share: float  # share of the memory's published peak
    launch_s: float  # a kernel that does nothing
    wave_s: float  # each wave: filling the pipeline, and what does not overlap with other tiles
    operand_cost: float  # elements by which a tile's rows and columns are longer in time, for loading operands
    overlap: float  # exponent with which arithmetic and traffic are added; infinite: the longer one counts alone
    smoothness: float  # 0: whole waves of tiles; 1: multiprocessors share the last wave evenly
    store_share: float  # share of writing the result that does not overlap with arithmetic
    split_s: float  # adding up the parts of a split inner dimension
    clock_loss: float  # relative slowdown of kernels that are long enough to meet the power limit
    choice_spread: float  # relative difference of times that the library's choice of a tile does not see


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEfficiency:
    """What kernels that only move bytes reach on one device."""

    bandwidth_share: float  # share of the memory's published peak
    floor_s: float  # the shortest kernel
    cache_gain: float  # relative speed-up of a kernel whose bytes are all in the cache of the second level


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Errors on kernels of models that were not fitted on, as standard deviations of ln."""

    kernel: float  # of one kernel
    common: float  # that all kernels of a program have in common


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """One device's fitted numbers."""

    product: ProductEfficiency  # in half precision
    streams: Mapping[str, StreamEfficiency]  # by `Stream.kind`
    product_spread: Spread
    stream_spread: Spread
    single: SingleEfficiency | None = None  # in float32 without tensor cores; the table has it apart


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEfficiency:
    """What matrix products in float32 reach."""

    product: ProductEfficiency
    spread: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    source: str  # whose kernel times, and how they were fitted
    devices: Mapping[str, Efficiencies]  # by key of `DEVICES`
    singles: Mapping[str, SingleEfficiency]  # by key of `DEVICES`
    transfer_sd: float  # standard deviation of ln that a device adds that was not fitted on


def find_efficiencies(device: Device) -> tuple[Efficiencies, float] | None:
    """Return a device's efficiencies, and the standard deviation of ln of taking them from another one, 0 for its own.

    None for a device whose bandwidth is not published, or that is not a CUDA device.
    """
    if device.capability is None or not device.bandwidth_bytes_per_s:
        return None
    table = _read_table()
    own = next((key for key in table.devices if DEVICES[key] is device), None)
    alike = own or _ALIKE.get(device.capability)
    if alike is None:
        return None
    single = table.singles[_SINGLE_ALIKE.get(device.capability, _SINGLE)]
    if FLOAT32_LANES.get(device.capability) == _MANY_LANES:
        product = replace(single.product, peak_share=single.product.peak_share * _MANY_LANES_SHARE)
        single = replace(single, product=product)
    return replace(table.devices[alike], single=single), 0.0 if own else table.transfer_sd


@functools.cache
def _read_table() -> _Table:
    return from_record(_Table, read_json(_TABLE))


def digest_table() -> str:
    """Return eight hexadecimal digits of the fitted table: estimates of another one are no longer comparable."""
    return hashlib.sha256(_TABLE.read_bytes()).hexdigest()[:8]
