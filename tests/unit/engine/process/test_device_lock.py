"""The lock of a device."""

from __future__ import annotations

from bexplore.engine.process.device_lock import LockHolder, device_locks, lock_names, try_device_locks

H100 = "NVIDIA H100 80GB HBM3"
UUID = "1e6a2c1d-5a51-7a33-9d0c-6a1f0c6b2f1e"
FACTS = {"device": "cuda:0", "device_name": H100, "uuid": UUID, "pci_bus_id": "00000000:1b:00.0"}


def test_a_device_has_one_lock_whatever_its_name_and_two_have_two():
    other = FACTS | {"uuid": UUID.replace("1e6a", "2e6a")}
    holder = LockHolder(folder="a")
    with device_locks(lock_names("cuda:0", FACTS), holder=holder, waiting=print):
        assert try_device_locks(lock_names("cuda:1", FACTS), holder=holder) is None
        for names in (lock_names("cuda:0", other), lock_names("cpu", {"uuid": None})):
            lock = try_device_locks(names, holder=holder)
            assert lock is not None
            lock.close()


def test_a_job_of_several_ranks_locks_the_device_of_each():
    facts = FACTS | {"uuids": [UUID, UUID.replace("1e6a", "2e6a"), UUID.replace("1e6a", "3e6a")]}
    holder = LockHolder(folder="a")
    second = facts | {"uuid": facts["uuids"][1]}
    with device_locks(lock_names("cuda:0", facts, num_ranks=2), holder=holder, waiting=print):
        assert try_device_locks(lock_names("cuda:1", second), holder=holder) is None
        third = try_device_locks([facts["uuids"][2]], holder=holder)
        assert third is not None
        third.close()
