"""What a program sees of emulated devices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bexplore.host.accelerators import DEVICES, MULTIPROCESSORS, is_emulated

GIB = 2**30

PROPERTIES = """
    import torch
    own = torch.cuda.get_device_properties(0)
    print(own.name, own.major, own.minor, own.total_memory, own.multi_processor_count, own.L2_cache_size)
    print(own.shared_memory_per_block_optin, own.shared_memory_per_multiprocessor, own.max_threads_per_multi_processor)
"""


@pytest.mark.parametrize("name", ["h100", "p100", "t4", "rtx-4090", "b200", "gb10"])
def test_the_properties_are_those_of_the_table(emulate, name):
    device = DEVICES[name]
    multiprocessor = MULTIPROCESSORS[device.capability]

    assert emulate(PROPERTIES, device=name) == [
        f"{device.name} {device.capability[0]} {device.capability[1]} {device.total_memory_bytes} "
        f"{device.num_multiprocessors} {device.chip.l2_bytes}",
        f"{multiprocessor.shared_memory_per_block_bytes} {multiprocessor.shared_memory_bytes} "
        f"{multiprocessor.max_threads}",
    ]


@pytest.mark.parametrize("name", ["t4", "a100", "rtx-4090", "b300", "rtx-5090", "gb10"])
def test_sorting_and_embeddings_run_on_each_generation(emulate, name):
    (capability,) = emulate(
        """
        import torch
        numbers = torch.randint(9, (4, 512), device="cuda")
        numbers.flatten().sort(), numbers.unique(), numbers.cumsum(1), torch.nonzero(numbers)
        torch.nn.Embedding(99, 8).cuda()(torch.arange(3000).cuda() % 99).sum().backward()
        torch.cuda.synchronize()
        print(torch.cuda.get_device_capability())
        """,
        device=name,
    )
    assert capability == str(DEVICES[name].capability)


def test_an_allocation_beyond_the_capacity_is_refused_as_by_pytorch(emulate):
    (text,) = emulate(
        """
        import torch
        held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(str(error).splitlines()[0])
        """,
        memory_bytes=8 * GIB,
    )
    assert text.startswith("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 8.00 GiB of")
    assert "is allocated by PyTorch, and" in text


def test_each_of_two_devices_has_its_own_memory(emulate):
    assert emulate(
        """
        import torch
        free = [torch.cuda.mem_get_info(device)[0] for device in range(2)]
        held = torch.empty(2**30, dtype=torch.uint8, device="cuda:1")
        print(torch.cuda.device_count(), [free[device] - torch.cuda.mem_get_info(device)[0] for device in range(2)])
        print(torch.arange(3).to("cuda:1").to("cuda:0").tolist())
        """,
        num_devices=2,
    ) == ["2 [0, 1073741824]", "[0, 1, 2]"]


def test_a_program_sees_the_devices_that_it_chooses(emulate):
    (count,) = emulate(
        "import torch; print(torch.cuda.device_count())", num_devices=4, environment={"CUDA_VISIBLE_DEVICES": "2,3"}
    )
    assert count == "2"


def test_memory_that_one_process_takes_another_lacks_until_it_ends(emulate):
    taken, given_back = emulate(
        """
        import subprocess, sys, torch
        child = "import torch; x = torch.empty(2**30, dtype=torch.uint8, device='cuda'); print(flush=True); input()"
        torch.empty(1, device="cuda")
        before = torch.cuda.mem_get_info()[0]
        process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdout.readline()
        print((before - torch.cuda.mem_get_info()[0]) // 2**20)
        process.kill()
        process.wait()
        print(before - torch.cuda.mem_get_info()[0])
        """
    )
    assert 1024 <= int(taken) <= 2048  # the tensor and the context
    assert int(given_back) == 0


def test_what_the_host_copied_to_a_device_comes_back(emulate):
    assert emulate(
        """
        import torch
        values = torch.arange(100_000, dtype=torch.float32)
        pinned = values.pin_memory()
        print(torch.equal(values.cuda().cpu(), values), pinned.is_pinned(), values.is_pinned())
        on_device = pinned.to("cuda", non_blocking=True)
        print(torch.equal(on_device.clone().cpu(), values))
        print(torch.full((3,), 7, device="cuda").tolist(), torch.arange(4).cuda().sum().item())
        """
    ) == ["True True False", "True", "[7, 7, 7] 6"]


def test_the_result_of_a_kernel_reads_as_zeros_whatever_its_place_held(emulate):
    assert (
        emulate(
            """
        import torch
        for _ in range(3):
            torch.tensor([2.0**62]).cuda()
            print(torch.empty(8, device="cuda").exp().mean().item(), torch.nonzero(torch.rand(9, device="cuda")).shape)
        """
        )
        == ["0.0 torch.Size([0, 1])"] * 3
    )


def test_masks_and_integers_by_which_programs_decide_are_computed(emulate):
    assert emulate(
        """
        import torch
        mask = torch.ones(64, 512, dtype=torch.long, device="cuda")
        print(mask.sum().item(), mask.to(torch.bool).all().item(), (mask == 1).all().item())
        print(torch.zeros(9, device="cuda").any().item())
        labels = torch.tensor([[5, -100, 7], [1, -100, -100]]).cuda()
        print((labels != -100).sum().item(), labels.max().item(), labels.min().item(), (labels + labels)[0, 0].item())
        print(torch.full((), 65536.0, device="cuda").item())
        """
    ) == ["32768 True True", "False", "3 7 -100 10", "65536.0"]


def test_what_a_mask_picks_has_as_many_rows_as_the_mask_says(emulate):
    assert emulate(
        """
        import torch
        for rows, columns in ((2, 4), (64, 1568), (64, 16000)):  # one pass of the count, and two
            mask = torch.zeros(rows, columns, dtype=torch.float64)
            mask[:, : columns // 4] = 1
            mask = mask.to("cuda", non_blocking=True).to(torch.bool)
            x = torch.empty(rows, columns, 8, device="cuda")
            print(x[mask].shape[0], x[~mask].shape[0], x[torch.logical_not(mask)].reshape(rows, -1, 8).shape[1])
            print(x[mask & mask].shape[0], x[mask | ~mask].shape[0], mask.nonzero().shape)
        labels = torch.tensor([[5, -100, 7], [1, -100, -100]]).cuda()
        print(labels[labels != -100].shape, (labels != -100).nonzero()[:, 0].shape, (labels == 9).nonzero().shape)
        """
    ) == [
        *("2 6 3", "2 8 torch.Size([2, 2])"),
        *("25088 75264 1176", "25088 100352 torch.Size([25088, 2])"),
        *("256000 768000 12000", "256000 1024000 torch.Size([256000, 2])"),
        "torch.Size([3]) torch.Size([3]) torch.Size([0, 2])",
    ]


def test_lengths_are_known_long_after_their_batch_came(emulate):
    assert emulate(
        """
        import torch
        lengths = torch.tensor([20, 23, 21]).cuda()
        numbers = lengths.int()
        x = torch.empty(64, 64, device="cuda")
        for _ in range(500):
            x = torch.relu(x @ x) + 1
        loss = x.square().mean()
        print(lengths.max().item(), numbers.max().item(), lengths.tolist(), lengths.sum().item(), loss.item())
        print(lengths[:2].tolist())  # a part may be of another tensor in its place
        """
    ) == ["23 23 [20, 23, 21] 64 0.0", "[0, 0]"]


def test_checks_of_values_that_are_not_known_hold(emulate):
    assert (
        emulate(
            """
        import torch
        for size in (64, 100_000, 3_000_000):
            x = torch.rand(size, device="cuda")
            print((x == x.clone()).all().item(), torch.isfinite(x).all().item(), torch.isnan(x).any().item())
        """
        )
        == ["True True False"] * 3
    )


def test_streams_and_events_follow_a_clock(emulate):
    assert emulate(
        """
        import torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        x = torch.empty(8, device="cuda")
        stream = torch.cuda.Stream()
        start.record()
        for _ in range(10):
            x.exp()
        end.record()
        stream.wait_event(end)
        busy = not stream.query()
        stream.synchronize()
        print(busy, stream.query(), start.elapsed_time(end) >= 100)
        """,
        environment={"BEXPLORE_EMULATED_NANOSECONDS_PER_LAUNCH": str(10_000_000)},
    ) == ["True True True"]


def test_nvml_tells_names_memory_and_processes(emulate):
    assert emulate(
        """
        import ctypes, os, torch
        x = torch.empty(2**28, dtype=torch.uint8, device="cuda")
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), (ctypes.c_ulonglong * 3)()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        nvml.nvmlDeviceGetName(device, name, 96)
        nvml.nvmlDeviceGetMemoryInfo(device, memory)
        print(name.value.decode(), memory[0] - memory[1] == memory[2] >= 2**28)
        count, found = ctypes.c_uint(8), (ctypes.c_ulonglong * 24)()
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found)
        print(count.value, found[0] == os.getpid())
        """
    ) == ["NVIDIA H100 80GB HBM3 True", "1 True"]


# What logs and trackers of trainings ask, beside names and memory: of a number or a text, and where a device lacks it.
ASKED_OF_NVML = (
    *("ApplicationsClock 0", "Architecture", "BoardId", "Brand", "ClockInfo 0", "Clock 0 0", "ComputeMode"),
    *("CurrPcieLinkGeneration", "CurrentClocksEventReasons", "DisplayActive", "EncoderUtilization"),
    *("EnforcedPowerLimit", "FanSpeed", "Index", "MaxClockInfo 1", "MaxPcieLinkWidth", "MemoryBusWidth", "MinorNumber"),
    *("NumGpuCores", "P2PStatus", "PcieThroughput 0", "PerformanceState", "PersistenceMode", "PowerManagementLimit"),
    *("PowerUsage", "Serial", "Temperature 0", "TotalEccErrors 0 0", "TotalEnergyConsumption", "UtilizationRates"),
)


def test_nvml_answers_what_logs_of_trainings_ask(emulate):
    lines = emulate(
        f"""
        import ctypes
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device = ctypes.c_void_p()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        for asked in {ASKED_OF_NVML}:
            name, *words = asked.split()
            others = [device, 0] if name == "P2PStatus" else [int(word) for word in words]
            found = (ctypes.c_ulonglong * 16)()
            print(name, getattr(nvml, f"nvmlDeviceGet{{name}}")(device, *others, found, 64))
        """
    )
    answers = dict(line.split() for line in lines)
    assert len(answers) == len(ASKED_OF_NVML)
    assert set(answers.values()) == {"0", "3"}  # NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED
    assert [answers[name] for name in ("TotalEnergyConsumption", "Architecture", "PowerUsage", "FanSpeed")] == list(
        "0003"
    )


def test_nvidia_smi_tells_what_trainings_ask_it(emulate):
    lines = emulate(
        """
        import subprocess, torch
        x = torch.empty(2**28, dtype=torch.uint8, device="cuda")
        for words in (
            "--query-gpu=gpu_name,memory.total,enforced.power.limit --format=csv",
            "--query-gpu=memory.total,memory.used --format=csv,nounits,noheader -i 1",
            "-L",
            "topo -m",
            "",
        ):
            done = subprocess.run(["nvidia-smi", *words.split()], capture_output=True, text=True)
            print(done.returncode, done.stderr, *done.stdout.splitlines(), sep="|")
        """,
        num_devices=2,
    )
    names, memory, listed, topology, told = (line.split("|") for line in lines)
    total, used = map(int, memory[2].split(", "))
    assert total > 80_000 and 0 <= used < 2_000
    device = f"NVIDIA H100 80GB HBM3, {total} MiB, [N/A]"
    assert names == ["0", "", "name, memory.total [MiB], enforced.power.limit [W]", device, device]
    assert [line.partition(" (UUID: ")[0] for line in listed[2:]] == [f"GPU {i}: NVIDIA H100 80GB HBM3" for i in (0, 1)]
    assert topology[2].split()[:2] == ["GPU0", "GPU1"] and "MiB /" in "".join(told[2:])
    assert {one[0] for one in (memory, listed, topology, told)} == {"0"}


def test_a_process_knows_whether_its_devices_are_emulated(emulate):
    program = "from bexplore.host.accelerators import is_emulated; print(is_emulated())"
    without_devices = {"BEXPLORE_EMULATED_DEVICES": "0"}  # the libraries alone, with which a CUDA build can be imported

    assert emulate(program) == ["True"]
    assert emulate(program, environment=without_devices) == ["False"]
    assert not is_emulated()


def test_nvidias_own_libraries_beside_pytorch_stay_unused(emulate, cuda_folder, tmp_path):
    site = tmp_path / "site"
    (site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    real = tmp_path / "real.c"
    real.write_text("int cudaGetDeviceCount(int *count) { *count = 7; return 0; }")
    library = site / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    subprocess.run(
        ["g++", "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o", library, real], check=True
    )
    for name in ("torch", "torchgen", "functorch", "triton"):
        # The files are linked, not the folders: through those the loader would come back to where they lie.
        subprocess.run(["cp", "-rs", cuda_folder.resolve() / name, site / name], check=True)

    assert emulate(
        "import torch; print(torch.cuda.device_count(), torch.__file__)", environment={"PYTHONPATH": str(site)}
    ) == [f"1 {site}/torch/__init__.py"]


def test_other_programs_see_no_emulated_device(emulate, cuda_folder):
    emulate("import torch")
    program = "import torch; print(torch.cuda.is_available())"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert result.stdout.strip() == "False"
