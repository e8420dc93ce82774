"""The modes of the shared compilation."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.messages import SharedMode, mode_after, shared_modes
from bexplore.job import CompileSettings


@pytest.mark.parametrize(
    ("settings", "device", "uses"),
    [
        (CompileSettings(mode="reduce-overhead"), "cuda", True),
        (CompileSettings(mode="max-autotune"), "cuda:1", True),
        (CompileSettings(mode="max-autotune-no-cudagraphs"), "cuda", False),
        (CompileSettings(options={"triton.cudagraphs": True}), "cuda", True),
        (CompileSettings(backend="cudagraphs"), "cuda", True),
        (CompileSettings(), "cuda", False),
        (CompileSettings(mode="reduce-overhead"), "cpu", False),
        (CompileSettings(enabled=False, mode="reduce-overhead"), "cuda", False),
    ],
)
def test_cuda_graphs_are_known_by_mode_option_and_backend(settings, device, uses):
    assert settings.uses_cuda_graphs(device) is uses


NESTED, UNBACKED, DYNAMIC, STATIC = SharedMode


@pytest.mark.parametrize(
    ("device_type", "version", "has_convolutions", "expected"),
    [
        ("cpu", "2.11.0", False, (NESTED, UNBACKED, DYNAMIC, STATIC)),
        ("cpu", "2.13.0+cpu", False, (NESTED, UNBACKED, DYNAMIC, STATIC)),
        ("cpu", "2.13.0+cpu", True, (DYNAMIC, STATIC)),
        ("cuda", "2.11.0+cu128", False, (DYNAMIC, STATIC)),
        ("cuda", "2.12.1", False, (DYNAMIC, UNBACKED, STATIC)),
        ("cuda", "2.13.0+cu130", False, (DYNAMIC, UNBACKED, STATIC)),
        ("cuda", "3.0.0a0+git1234", False, (DYNAMIC, UNBACKED, STATIC)),
        ("cuda", "2.13.0+cu130", True, (DYNAMIC, STATIC)),
    ],
)
def test_the_order_of_modes_follows_from_device_version_and_convolutions(
    device_type, version, has_convolutions, expected
):
    assert shared_modes(device_type, version, has_convolutions=has_convolutions) == expected


def test_after_a_mode_that_does_not_compile_comes_the_device_s_next():
    modes = shared_modes("cuda", "2.13.0")

    assert [mode_after(mode, modes) for mode in modes] == [UNBACKED, STATIC, None]
