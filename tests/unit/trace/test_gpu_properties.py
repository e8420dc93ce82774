"""Properties of a GPU that is not there."""

from __future__ import annotations

import json

from bexplore.host.accelerators import device_by_name
from bexplore.trace.gpu_properties import GpuProperties

H100 = GpuProperties.of_device(device_by_name("h100"))


def test_properties_of_a_gpu_survive_json():
    assert GpuProperties.from_dict(json.loads(json.dumps(H100.as_dict()))) == H100


def test_a_device_that_is_no_cuda_device_has_no_properties_to_stand_in_for():
    assert GpuProperties.of_device(device_by_name("mi300x")) is None
