"""The table of accelerators: names that people type, names that drivers print, and figures that can be true."""

from __future__ import annotations

import re

import pytest
from click.shell_completion import ShellComplete

from bexplore.cli import cli
from bexplore.errors import UserInputError
from bexplore.host.accelerators import (
    DEVICES,
    MULTIPROCESSORS,
    SHARED_MEMORY_PER_BLOCK_BYTES,
    device_by_name,
    find_device,
    published_device,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100", "h100"),
        (" H100 ", "h100"),
        ("H100 SXM5", "h100"),
        ("H100-80GB", "h100"),
        ("H100 PCIe", "h100-pcie"),
        ("h100_pcie", "h100-pcie"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("RTX 4090 24 GB", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("nvidia-l4", "l4"),
        ("nvidia-tesla-t4", "t4"),
        ("A100-80GB", "a100"),
        ("A100 80G", "a100"),
        ("A100 80 GiB", "a100"),
        ("a100-sxm4-40gb", "a100-40gb"),
        ("RTX A6000", "a6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("rtx pro 6000 blackwell", "rtx-pro-6000"),
        ("V100 16GB", "v100-16gb"),
        ("a10g", "a10g"),
        ("MI300X", "mi300x"),
        ("H800", "h800"),
        ("H20 96GB", "h20"),
        ("H20 141GB", "h20-3e"),
        ("A800 40GB", "a800-40gb"),
        ("RTX 3060 12GB", "rtx-3060"),
        ("RTX 3060 8 GB", "rtx-3060-8gb"),
        ("rtx3080ti", "rtx-3080-ti"),
        ("3080 12G", "rtx-3080-12gb"),
        ("rtx-4060ti-16gb", "rtx-4060-ti-16gb"),
        ("RTX4070Ti SUPER", "rtx-4070-ti-super"),
        ("4070 Super", "rtx-4070-super"),
        ("4090D", "rtx-4090-d"),
        ("GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("RTX A5000", "a5000"),
        ("RTX 5000 Ada", "rtx-5000-ada"),
        ("Tesla P100", "p100"),
        ("Titan RTX", "titan-rtx"),
        ("DGX Spark", "gb10"),
    ],
)
def test_a_device_is_found_however_it_is_typed(name, key):
    assert device_by_name(name) is DEVICES[key]


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("h10", "h100"),
        ("h100pcie", "h100-pcie"),
        ("RTX 6000", "6000"),
        ("RTX 3060 SUPER", '"rtx-3060"'),
        ("rtx 4070 ti laptop", '"rtx-4070-ti"'),
        ("RTX 5090 Ti", '"rtx-5090"'),
        ("RTX 3080 20GB", '"rtx-3080"'),
        ("mi300a", '"mi300x"'),
        ("titan-rt", '"titan-rtx"'),
        ("rtx 40900", '"rtx-4090"'),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(name, guess):
    with pytest.raises(UserInputError, match=f'no figures for a device "{name}"') as caught:
        device_by_name(name)
    assert caught.value.hint.startswith("did you mean")
    assert guess in caught.value.hint.partition("?")[0]
    assert all(key in caught.value.hint for key in DEVICES)


FOREIGN = (
    "b400, x100, h300, v200, b100, gb300, a16, a1000, a400, l2, k80, p40, m40, abacus, banana, rtx 3050, rtx 4900, "
    "rtx 2060, rtx 500 ada, gtx 1080 ti, gtx 480, grid k520, jetson orin, titan v, rtx 6090, a55000, cuda, gpu, 100, "
    "80gb, , -, 0"
)


@pytest.mark.parametrize("name", FOREIGN.split(", "))
def test_a_name_like_no_other_is_not_guessed(name):
    with pytest.raises(UserInputError) as caught:
        device_by_name(name)
    assert caught.value.hint.startswith("known, or give the size")


def slips(key: str) -> set[str]:
    """A name with one character left out, typed twice, or swapped with the next."""
    places = range(len(key))
    return {
        name
        for place in places
        for name in (
            key[:place] + key[place + 1 :],
            key[:place] + key[place] + key[place:],
            key[:place] + key[place : place + 2][::-1] + key[place + 2 :],
        )
    }


def number_of(key: str) -> str:
    """The digits of a name that are not its memory's."""
    return "".join(re.findall(r"\d", re.sub(r"\d+gb", "", key)))


@pytest.mark.parametrize("key", DEVICES)
def test_a_slip_leads_to_the_device_meant_never_to_another_number(key):
    for name in slips(key) | {f"{key} super", f"{key} laptop"}:
        try:
            device_by_name(name)
        except UserInputError as error:
            guess = re.match(r'did you mean "([^"]+)"', error.hint)
            numbers = {number_of(key), number_of(name)}
            assert guess is None or key == guess[1] or number_of(guess[1]) in numbers, (name, guess)


def test_most_slips_lead_to_the_device_or_to_one_of_its_number():
    names = [(name, key) for key in DEVICES for name in sorted(slips(key)) if find_device(name) is None]
    some, helped = names[::10], 0
    for name, key in some:
        with pytest.raises(UserInputError) as caught:
            device_by_name(name)
        guess = re.match(r'did you mean "([^"]+)"', caught.value.hint)
        helped += guess is not None and number_of(guess[1]) == number_of(key)
    assert helped > 0.5 * len(some)


@pytest.mark.parametrize(
    ("names", "what", "advice"),
    [
        (("TPU v5e", "tpu-v4", "v5p", "v4-8", "Google TPU", "Trillium"), "a TPU is no CUDA device", "not through XLA"),
        (("trainium2", "trn1", "AWS Inferentia", "inf2"), "AWS Neuron", "not through XLA"),
        (("CS-3", "Cerebras CS-2", "WSE-3"), "Cerebras", "micro_batch_size: explore"),
        (("gaudi3", "Intel Gaudi 2", "HPU"), "Gaudi is no CUDA device", "explore.device: hpu"),
        (("m1", "M3 Max", "Apple M4 Pro", "mps", "Mac Studio"), "an Apple processor", "explore.device: mps"),
        (
            ("Arc B580", "b580", "a770", "Ponte Vecchio", "Max 1550", "xpu", "Flex 170"),
            "Intel is no CUDA device",
            "explore.device: xpu",
        ),
        (
            ("mi210", "MI250X", "RX 7900 XTX", "rx7900xtx", "7900 XTX", "Radeon Pro W7900", "RX 580", "RX 5700 XT"),
            "none of AMD's that are known (mi300x, mi325x, mi355x)",
            "explore.device: cuda, as torch for ROCm calls it",
        ),
        (("Ascend 910B", "npu"), "Ascend is no CUDA device", "explore.device: npu"),
        (("cpu", "Xeon 8480+", "EPYC 9654", "Ryzen 9 7950X"), "it is a processor", "without `device_name`"),
    ],
)
def test_an_accelerator_of_another_maker_is_named_with_what_works(names, what, advice):
    for name in names:
        with pytest.raises(UserInputError) as caught:
            device_by_name(name)
        assert caught.value.message.startswith(f'no figures for a device "{name}": ')
        assert what in caught.value.message
        assert advice in caught.value.hint
        assert "\n" not in caught.value.hint


def test_the_known_devices_are_listed_by_family_and_once():
    with pytest.raises(UserInputError) as caught:
        device_by_name("abacus")
    families = dict(line.strip().split(": ") for line in caught.value.hint.splitlines()[1:])
    assert list(families) == ["data center", "workstation", "GeForce", "AMD"]
    assert sorted(", ".join(families.values()).split(", ")) == sorted(DEVICES)
    assert "..." not in caught.value.hint


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("A100-SXM-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("Tesla V100-PCIE-32GB", "v100"),
        ("Tesla V100-PCIE-16GB", "v100-16gb"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GH200 120GB", "gh200"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
    ],
)
def test_a_driver_of_another_form_factor_or_version_names_the_same_device(name, key):
    assert find_device(name) is DEVICES[key]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A40-48Q",
        "GRID T4-16C",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3060 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
        "NVIDIA GeForce RTX 4070 Ti SUPER Laptop GPU",
        "NVIDIA GeForce RTX 4060 Ti SUPER",
        "NVIDIA GeForce RTX 2080",
        "NVIDIA GeForce RTX 2080 SUPER with Max-Q Design",
        "NVIDIA GeForce RTX 5070 Ti Laptop GPU",
        "NVIDIA RTX A5000 Laptop GPU",
        "NVIDIA RTX 5000 Ada Generation Laptop GPU",
        "Quadro RTX 5000",
        "NVIDIA TITAN V",
        "NVIDIA A16",
        "NVIDIA L2",
        "Tesla P100-PCIE-12GB",
        "NVIDIA GeForce RTX 5090 D",
        "Quadro RTX 6000",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GB300",
        "AMD Instinct MI300A",
    ],
)
def test_slices_and_relatives_of_a_device_are_not_taken_for_it(name):
    assert find_device(name) is None


@pytest.mark.parametrize("key", DEVICES)
def test_key_and_driver_name_of_a_device_lead_to_it_alone(key):
    device = DEVICES[key]
    namesakes = [one for one in DEVICES.values() if one.name == device.name]
    assert find_device(device.name) is namesakes[0]
    for memory_bytes in (device.total_memory_bytes, 1.05 * device.total_memory_bytes):
        assert published_device(info(device.name, total_memory_bytes=memory_bytes)) is device
    assert published_device(info(device.name)) is (device if len(namesakes) == 1 else None)
    assert find_device(key) is DEVICES[key]
    assert find_device(f"{key} {' '.join(DEVICES[key].further_words)}") is DEVICES[key]


def info(name: str, **more: object) -> dict[str, object]:
    """A device info of a worker on the device that a driver calls so."""
    return {"device": "cuda:0", "device_name": name, **more}


def test_every_device_has_its_size_among_its_words():
    for key, device in DEVICES.items():
        words = {*key.split("-"), *device.further_words, *re.findall(r"\d+gb", device.name.lower())}
        sizes = [int(word[:-2]) * GIB for word in words if re.fullmatch(r"\d+gb", word)]
        assert any(0.85 * size < device.total_memory_bytes < size for size in sizes), key


@pytest.mark.parametrize(
    ("name", "gib", "key"),
    [
        ("NVIDIA GeForce RTX 3060", 12, "rtx-3060"),
        ("NVIDIA GeForce RTX 3060", 8, "rtx-3060-8gb"),
        ("NVIDIA GeForce RTX 3080", 10, "rtx-3080"),
        ("NVIDIA GeForce RTX 3080", 11.83, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 7.6, "rtx-4060-ti"),
        ("NVIDIA GeForce RTX 3080", 20, None),  # no maker's: more memory was soldered on
        ("NVIDIA GeForce RTX 3080", None, None),
        ("NVIDIA GeForce RTX 4090", 48, "rtx-4090"),
    ],
)
def test_devices_of_one_driver_name_are_told_apart_by_memory(name, gib, key):
    facts = info(name, total_memory_bytes=None if gib is None else gib * GIB)
    assert published_device(facts) is (None if key is None else DEVICES[key])


def test_a_processor_has_no_published_figures():
    assert published_device({"device": "cpu", "device_name": "NVIDIA L4"}) is None
    assert published_device({"device": "cuda:0", "device_name": "NVIDIA L4"}) is DEVICES["l4"]


@pytest.mark.parametrize("key", DEVICES)
def test_figures_of_a_device_can_be_true(key):
    device = DEVICES[key]
    assert 7 * GIB < device.total_memory_bytes < 300 * GIB
    assert 0.19e12 < device.bandwidth_bytes_per_s < 9e12
    # At least Ampere has bfloat16 units; a ratio beyond these bounds is a wrong unit or a figure with sparsity.
    if key != "gb10" and (device.capability is None or device.capability >= (8, 0)):
        assert 30 < device.bfloat16_flops_per_s / device.bandwidth_bytes_per_s < 460
    else:
        assert device.bfloat16_flops_per_s is None


@pytest.mark.parametrize("key", [key for key, device in DEVICES.items() if device.name.startswith("NVIDIA GeForce")])
def test_the_peak_of_a_geforce_is_that_of_its_units_at_its_clock(key):
    device = DEVICES[key]
    if device.capability >= (8, 0):
        peak = 512 * device.num_multiprocessors * device.chip.clock_khz * 1000
        assert device.bfloat16_flops_per_s == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("key", [key for key, device in DEVICES.items() if device.chip is not None])
def test_the_bus_of_a_device_carries_its_bandwidth(key):
    device = DEVICES[key]
    gigabits_per_s = 8 * device.bandwidth_bytes_per_s / device.chip.bus_bits / 1e9  # of one wire
    is_stacked = device.chip.bus_bits > 512
    assert (1.4 if is_stacked else 8) < gigabits_per_s < (8.1 if is_stacked else 30.1)
    assert 0.99 < device.chip.l2_bytes / 2**20 * 128 / device.chip.bus_bits < 50 or is_stacked


@pytest.mark.parametrize("key", [key for key, device in DEVICES.items() if device.name.startswith(("NVIDIA", "Tesla"))])
def test_every_cuda_device_has_what_its_program_depends_on(key):
    device = DEVICES[key]
    assert device.capability in MULTIPROCESSORS
    assert 10 <= device.num_multiprocessors <= 192


@pytest.mark.parametrize(
    ("key", "whole_gib"), [("t4", 14), ("l4", 21), ("l40s", 44), ("h100", 79), ("h200", 139), ("b200", 178)]
)
def test_memory_is_what_torch_reports_and_not_what_is_sold(key, whole_gib):
    assert DEVICES[key].total_memory_bytes // GIB == whole_gib


@pytest.mark.parametrize("capability", MULTIPROCESSORS)
def test_a_block_opts_in_to_at_most_the_shared_memory_of_a_multiprocessor(capability):
    limits = MULTIPROCESSORS[capability]
    reserved_bytes = 1024 if capability >= (8, 0) else 0  # by the system, for each block
    if capability < (7, 0):  # no block opts in
        assert limits.shared_memory_per_block_bytes == SHARED_MEMORY_PER_BLOCK_BYTES < limits.shared_memory_bytes
    else:
        assert limits.shared_memory_per_block_bytes == limits.shared_memory_bytes - reserved_bytes
        assert limits.shared_memory_per_block_bytes > SHARED_MEMORY_PER_BLOCK_BYTES
    assert limits.max_threads in (1024, 1536, 2048)


def test_the_shell_completes_a_device():
    complete = ShellComplete(cli, {}, "bexplore", "_BEXPLORE_COMPLETE")
    found = [item.value for item in complete.get_completions(["trace", "job.yaml", "--device-name"], "H1")]
    assert found == ["h100", "h100-pcie", "h100-nvl"]
