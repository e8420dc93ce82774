"""The lock of a device."""

from __future__ import annotations

from bexplore.engine.process.device_lock import LockHolder, device_lock, lock_name, try_device_lock

H100 = "NVIDIA H100 80GB HBM3"
UUID = "1e6a2c1d-5a51-7a33-9d0c-6a1f0c6b2f1e"
FACTS = {"device": "cuda:0", "device_name": H100, "uuid": UUID, "pci_bus_id": "00000000:1b:00.0"}


def test_a_device_has_one_lock_whatever_it_is_called_and_two_devices_have_two():
    other = FACTS | {"uuid": UUID.replace("1e6a", "2e6a")}
    holder = LockHolder(folder="a")
    with device_lock(lock_name("cuda:0", FACTS), holder=holder, waiting=print):
        assert try_device_lock(lock_name("cuda:1", FACTS), holder=holder) is None
        for name in (lock_name("cuda:0", other), lock_name("cpu", {"uuid": None})):
            lock = try_device_lock(name, holder=holder)
            assert lock is not None
            lock.close()
