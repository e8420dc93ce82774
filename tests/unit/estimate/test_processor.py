"""The table of a processor: what is fitted from times, and what it estimates."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from bexplore.estimate import calibrations
from bexplore.estimate.kernels import SINGLE_BYTES, MatrixProduct, Stream
from bexplore.estimate.model import Bound
from bexplore.estimate.processor import (
    Calibration,
    TimedKernel,
    TimedProgram,
    estimate_program,
    find_features,
    fit_calibration,
    fit_rates,
    fit_streams,
    solve_non_negative,
)

RATES = np.array([5e-6, 1e-11, 4e-10, 2e-10, 6e-10])  # of a call, an operation, elements of the three matrices
BYTE_S, FLOOR_S = 1e-10, 3e-6
LAUNCH_S, PASS_S = 7e-6, 1e-4


def products() -> list[MatrixProduct]:
    sizes = [(rows, columns, inner) for rows in (8, 100, 1000, 5000) for columns in (64, 700) for inner in (32, 900)]
    return [MatrixProduct(rows=r, columns=c, inner=i, itemsize=SINGLE_BYTES) for r, c, i in sizes]


def streams() -> list[Stream]:
    return [Stream(num_bytes=2.0**power) for power in range(10, 28)]


def true_seconds(kernel: MatrixProduct | Stream) -> float:
    if isinstance(kernel, Stream):
        return max(FLOOR_S, kernel.num_bytes * BYTE_S)
    return float(np.array(find_features(kernel)) @ RATES)


def calibration(*, is_noisy: bool = False) -> Calibration:
    random = np.random.default_rng(0)
    timed = [
        TimedKernel(kernel=one, seconds=true_seconds(one) * math.exp(0.1 * is_noisy * random.standard_normal()))
        for one in (*products(), *streams())
    ]
    programs = []
    for is_compiled, times in ((False, 10), (False, 30), (True, 10), (True, 30)):
        kernel = products()[0]
        seconds = times * (true_seconds(kernel) + LAUNCH_S) + is_compiled * PASS_S
        programs.append(TimedProgram(calls={kernel: times}, seconds=seconds, is_compiled=is_compiled, is_apart=False))
    apart = dataclasses.replace(programs[0], seconds=programs[0].seconds * 1.2, is_apart=True)
    return fit_calibration(
        timed, [*programs, apart], name="a processor", num_threads=2, torch_version="2.13.0", made_at="now"
    )


def test_rates_of_products_are_found_from_their_times():
    timed = [TimedKernel(kernel=one, seconds=true_seconds(one)) for one in products()]
    assert np.array(fit_rates(timed)) == pytest.approx(RATES, rel=0.02)


def test_a_rate_is_never_below_zero():
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert solve_non_negative(matrix, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_seconds_of_a_stream_lie_between_those_of_measured_sizes():
    sizes, seconds = fit_streams([TimedKernel(kernel=one, seconds=one.num_bytes * BYTE_S) for one in streams()])
    assert np.array(seconds) == pytest.approx(np.array(sizes) * BYTE_S, rel=0.01)


def test_launches_are_what_passes_take_beyond_their_kernels():
    found = calibration()
    assert found.eager.kernel_s == pytest.approx(LAUNCH_S, rel=0.05)
    assert found.compiled.kernel_s == pytest.approx(LAUNCH_S, rel=0.05)
    assert found.compiled.pass_s == pytest.approx(PASS_S, rel=0.05)


def test_the_spread_is_that_of_times_that_were_kept_apart():
    exact, noisy = calibration(), calibration(is_noisy=True)
    assert exact.products["product single"].spread.kernel < 0.01
    assert 0.05 < noisy.products["product single"].spread.kernel < 0.2
    assert exact.program_sd == pytest.approx(math.log(1.2), rel=0.1)


def test_a_program_takes_its_kernels_and_their_launches():
    kernel = Stream(num_bytes=2.0**25)
    found = estimate_program(calibration(), {kernel: 3}, is_compiled=True)
    assert found.seconds == pytest.approx(3 * (true_seconds(kernel) + LAUNCH_S) + PASS_S, rel=0.03)
    assert max(found.shares, key=lambda bound: found.shares[bound]) is Bound.BANDWIDTH
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_memory_that_the_system_gives_anew_counts_once_in_a_pass():
    table = dataclasses.replace(calibration(), fresh_s=1e-9)
    small, large = (Stream(num_bytes=2.0**25, result_bytes=one) for one in (2.0**20, 2.0**25))

    def seconds(kernel: Stream, kept_bytes: float) -> float:
        return estimate_program(table, {kernel: 1}, is_compiled=False, kept_bytes=kept_bytes).seconds

    assert seconds(large, 0) - seconds(small, 0) == pytest.approx(2**25 * 1e-9)
    assert seconds(small, 2.0**26) == seconds(small, 0)  # what is kept for the next pass
    assert seconds(small, 2.0**27) - seconds(small, 0) == pytest.approx(2**26 * 1e-9)
    assert seconds(large, 2.0**26 + 2.0**25) == seconds(large, 0)


def test_a_table_is_taken_for_its_own_processor_threads_and_torch_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    calibrations.keep(calibration())
    assert calibrations.recall() == calibration()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert calibrations.recall() is None
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(calibrations, "processor_name", lambda: "another processor")
    assert calibrations.recall() is None


def test_a_broken_file_is_no_table(tmp_path, monkeypatch):
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path))
    calibrations.keep(calibration()).write_text("{")
    assert calibrations.recall() is None
