"""Properties of a GPU that is not there."""

from __future__ import annotations

import json

import pytest

from bexplore.host.accelerators import DEVICES, device_by_name
from bexplore.host.records import from_record, to_record
from bexplore.trace.absent_gpu import GpuProperties

H100 = GpuProperties.from_device(device_by_name("h100"))


def test_properties_of_a_gpu_survive_json():
    assert from_record(GpuProperties, json.loads(json.dumps(to_record(H100)))) == H100


def test_a_device_that_is_no_cuda_device_has_no_properties_to_stand_in_for():
    assert GpuProperties.from_device(device_by_name("mi300x")) is None


@pytest.mark.parametrize("key", [key for key, device in DEVICES.items() if device.capability is not None])
def test_each_cuda_device_of_the_table_has_all_that_a_compiler_reads(key):
    device = DEVICES[key]
    properties = GpuProperties.from_device(device)
    major, minor = device.capability
    told = {
        "device": "cuda:0",
        "device_name": device.name,
        "capability": f"{major}.{minor}",
        "num_multiprocessors": device.num_multiprocessors,
        "total_memory_bytes": device.total_memory_bytes,
    }
    assert GpuProperties.from_device_info(told) == properties
    assert properties.as_torch()["total_memory"] == device.total_memory_bytes
