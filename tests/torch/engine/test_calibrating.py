"""What a worker measures of this processor, with few sizes."""

from __future__ import annotations

import pytest
import torch

from bexplore.engine.worker import calibrating
from bexplore.estimate.kernels import MatrixProduct, Stream, Work
from bexplore.estimate.processor import Calibration, estimate_program
from bexplore.host.records import from_record, to_record


@pytest.fixture
def few_sizes(monkeypatch):
    monkeypatch.setattr(calibrating, "_ROWS", (8, 32))
    monkeypatch.setattr(calibrating, "_LAYERS", ((16, 32), (64, 16)))
    monkeypatch.setattr(calibrating, "_BATCHED", ((2, 4, 4, 4),))
    monkeypatch.setattr(calibrating, "_CONVOLUTIONS", ((3, 8, 8, 3),))
    monkeypatch.setattr(calibrating, "_IMAGES", (1, 2))
    monkeypatch.setattr(calibrating, "_ATTENTION", ((1, 2, 16, 8), (2, 2, 16, 8)))
    monkeypatch.setattr(calibrating, "_STREAM_ELEMENTS", (1024, 8192))
    monkeypatch.setattr(
        calibrating, "_PROGRAMS", tuple(one for one in calibrating._PROGRAMS if not one[0].compile.enabled)
    )
    monkeypatch.setattr(calibrating, "_PASSES_S", 0.01)


def test_every_kind_of_kernel_is_measured_and_a_program_estimated(few_sizes):
    stages = []
    found = calibrating.calibrate(torch.device("cpu"), 0.0, report=lambda **report: stages.append(report["stage"]))
    assert found == from_record(Calibration, to_record(found))
    assert set(found.streams) == {work.value for work in Work}
    assert {
        f"{kind} {precision}"
        for kind in ("product", "attention", "attention backward")
        for precision in ("half", "single")
    } < set(found.products)
    assert "convolution single" in found.products
    calls = {MatrixProduct(rows=100, columns=64, inner=64, itemsize=4): 2.0, Stream(num_bytes=4e6): 3.0}
    assert estimate_program(found, calls, is_compiled=False).seconds > 0
    assert len(stages) > 2


def test_kernels_are_named_as_the_trace_names_them(few_sizes):
    """What a case says of itself is what its call does: operations of products, and bytes of sums."""
    cases = calibrating._list_cases(torch.device("cpu"))
    products = [case for case in cases if isinstance(case.kernel, MatrixProduct) and not case.kernel.window]
    assert products
    for case in products:
        result = case.make()()
        assert case.kernel.batch * case.kernel.rows * case.kernel.columns == result.numel()
        assert case.kernel.itemsize == result.itemsize
