"""The variables of an emulated device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bexplore.emulated_gpu import Faults, emulated_environment, environment
from bexplore.errors import EmulationError
from bexplore.host.accelerators import DEVICES, is_emulated

CUDA_DEVICES = [name for name, device in DEVICES.items() if device.capability is not None]


@pytest.fixture(autouse=True)
def libraries(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libcudart.so.13", "libcuda.so.1"):
        (folder / name).touch()
    monkeypatch.setattr(environment, "built_libraries", lambda torch_folder: folder)
    return folder


@pytest.mark.parametrize("name", CUDA_DEVICES)
def test_each_cuda_device_of_the_table_can_be_emulated(name):
    device = DEVICES[name]
    found = emulated_environment(device)

    assert found["BEXPLORE_EMULATED_NAME"] == device.name
    assert int(found["BEXPLORE_EMULATED_MEMORY_BYTES"]) == device.total_memory_bytes
    assert int(found["BEXPLORE_EMULATED_MULTIPROCESSORS"]) == device.num_multiprocessors
    peak = 2 * int(found["BEXPLORE_EMULATED_MEMORY_CLOCK_KHZ"]) * 1000 * int(found["BEXPLORE_EMULATED_BUS_BITS"]) / 8
    assert peak == pytest.approx(device.bandwidth_bytes_per_s, rel=1e-4)
    assert all(int(found[f"BEXPLORE_EMULATED_{key}"]) > 0 for key in ("L2_BYTES", "CLOCK_KHZ", "CONTEXT_BYTES"))


def test_another_device_cannot_be_emulated():
    with pytest.raises(EmulationError, match="AMD Instinct MI300X cannot be emulated: it is no CUDA device"):
        emulated_environment(DEVICES["mi300x"])


@pytest.mark.parametrize("num_devices", [0, 65])
def test_the_number_of_devices_has_limits(num_devices):
    with pytest.raises(EmulationError, match=f"{num_devices} emulated devices"):
        emulated_environment(DEVICES["h100"], num_devices=num_devices)


def test_all_libraries_are_loaded_before_the_program(libraries, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so")
    found = emulated_environment(DEVICES["h100"], num_devices=2)

    assert found["LD_PRELOAD"] == f"{libraries}/libcuda.so.1:{libraries}/libcudart.so.13:/usr/lib/libjemalloc.so"
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["TRITON_LIBCUDA_PATH"] == str(libraries)


def test_faults_and_a_capacity_are_told_only_where_they_are_given():
    plain = emulated_environment(DEVICES["h100"])
    given = emulated_environment(DEVICES["h100"], memory_bytes=123, faults=Faults(illegal_access_at_launch=5))

    assert "BEXPLORE_EMULATED_ILLEGAL_ACCESS_AT_LAUNCH" not in plain
    assert given["BEXPLORE_EMULATED_ILLEGAL_ACCESS_AT_LAUNCH"] == "5"
    assert given["BEXPLORE_EMULATED_MEMORY_BYTES"] == "123"


def test_results_of_emulated_tuning_are_kept_apart_from_real_ones():
    found = emulated_environment(DEVICES["h100"])

    assert "emulated_gpu" in found["TORCHINDUCTOR_CACHE_DIR"]
    assert "emulated_gpu" in found["TRITON_CACHE_DIR"]


def test_this_process_sees_none_of_it():
    before = dict(os.environ)
    emulated_environment(DEVICES["h100"])

    assert dict(os.environ) == before
    assert not is_emulated()


def test_two_environments_share_no_memory_and_ended_ones_leave_no_folder():
    first, second = (Path(emulated_environment(DEVICES["h100"])["BEXPLORE_EMULATED_SHARED_FOLDER"]) for _ in range(2))
    assert first != second
    left = first.with_name("bexplore-emulated-999999999-left")  # a number that no process has
    left.mkdir()

    emulated_environment(DEVICES["h100"])

    assert first.is_dir()
    assert second.is_dir()
    assert not left.exists()
