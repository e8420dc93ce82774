"""The table of accelerators: names that people type, names that drivers print, and figures that can be true."""

from __future__ import annotations

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
    ],
)
def test_a_device_is_found_however_it_is_typed(name, key):
    assert device_by_name(name) is DEVICES[key]


@pytest.mark.parametrize(
    ("name", "guess"), [("h10", "h100"), ("h100pcie", "h100-pcie"), ("RTX 4080", "rtx-4090"), ("RTX 6000", "6000")]
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(name, guess):
    with pytest.raises(UserInputError, match=f'no figures for a device "{name}"') as caught:
        device_by_name(name)
    assert caught.value.hint.startswith("did you mean")
    assert guess in caught.value.hint.partition("?")[0]
    assert all(key in caught.value.hint for key in DEVICES)


def test_a_name_like_no_other_is_not_guessed():
    with pytest.raises(UserInputError) as caught:
        device_by_name("abacus")
    assert caught.value.hint.startswith("known: ")


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
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA A40-48Q",
        "GRID T4-16C",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 3090 Ti",
        "Quadro RTX 6000",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GB300",
        "Tesla V100S-PCIE-32GB",
        "AMD Instinct MI300A",
    ],
)
def test_slices_and_relatives_of_a_device_are_not_taken_for_it(name):
    assert find_device(name) is None


@pytest.mark.parametrize("key", DEVICES)
def test_key_and_driver_name_of_a_device_lead_to_it_alone(key):
    assert find_device(DEVICES[key].name) is DEVICES[key]
    assert find_device(key) is DEVICES[key]
    assert find_device(f"{key} {' '.join(DEVICES[key].further_words)}") is DEVICES[key]


def test_every_device_has_its_further_words():
    assert all(device.further_words for device in DEVICES.values())


def test_a_processor_has_no_published_figures():
    assert published_device({"device": "cpu", "device_name": "NVIDIA L4"}) is None
    assert published_device({"device": "cuda:0", "device_name": "NVIDIA L4"}) is DEVICES["l4"]


@pytest.mark.parametrize("key", DEVICES)
def test_figures_of_a_device_can_be_true(key):
    device = DEVICES[key]
    assert 14 * GIB < device.total_memory_bytes < 300 * GIB
    assert 0.25e12 < device.bandwidth_bytes_per_s < 9e12
    # At least Ampere has bfloat16 units; a ratio beyond these bounds is a wrong unit or a figure with sparsity.
    if device.capability is None or device.capability >= (8, 0):
        assert 70 < device.bfloat16_flops_per_s / device.bandwidth_bytes_per_s < 450
    else:
        assert device.bfloat16_flops_per_s is None


@pytest.mark.parametrize("key", [key for key, device in DEVICES.items() if device.name.startswith(("NVIDIA", "Tesla"))])
def test_every_cuda_device_has_what_its_program_depends_on(key):
    device = DEVICES[key]
    assert device.capability in MULTIPROCESSORS
    assert 40 <= device.num_multiprocessors <= 192


@pytest.mark.parametrize(
    ("key", "whole_gib"), [("t4", 14), ("l4", 21), ("l40s", 44), ("h100", 79), ("h200", 139), ("b200", 178)]
)
def test_memory_is_what_torch_reports_and_not_what_is_sold(key, whole_gib):
    assert DEVICES[key].total_memory_bytes // GIB == whole_gib


@pytest.mark.parametrize("capability", MULTIPROCESSORS)
def test_a_block_opts_in_to_at_most_the_shared_memory_of_a_multiprocessor(capability):
    limits = MULTIPROCESSORS[capability]
    reserved_bytes = 1024 if capability >= (8, 0) else 0  # by the system, for each block
    assert limits.shared_memory_per_block_bytes == limits.shared_memory_bytes - reserved_bytes
    assert limits.shared_memory_per_block_bytes > SHARED_MEMORY_PER_BLOCK_BYTES
    assert limits.max_threads in (1024, 1536, 2048)


def test_the_shell_completes_a_device():
    complete = ShellComplete(cli, {}, "bexplore", "_BEXPLORE_COMPLETE")
    found = [item.value for item in complete.get_completions(["trace", "job.yaml", "--device-name"], "H1")]
    assert found == ["h100", "h100-pcie", "h100-nvl"]
