"""Other programs on the device, its clocks and its limits."""

from __future__ import annotations

from bexplore.host.contention import selector

H100 = "NVIDIA H100 80GB HBM3"
UUID = "1e6a2c1d-5a51-7a33-9d0c-6a1f0c6b2f1e"
FACTS = {"device": "cuda:0", "device_name": H100, "uuid": UUID, "pci_bus_id": "00000000:1b:00.0"}


def test_a_device_is_queried_by_bus_or_uuid_and_the_cpu_never():
    assert selector(FACTS) == "00000000:1b:00.0"
    assert selector(FACTS | {"pci_bus_id": None}) == f"GPU-{UUID}"
    assert selector({"device": "cpu", "uuid": None, "pci_bus_id": None}) is None
