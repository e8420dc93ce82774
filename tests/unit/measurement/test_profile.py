from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from bexplore.exploration.bottlenecks import profile_bottlenecks
from bexplore.measurement.profile import (
    BATCH,
    PASS,
    PREFIX,
    STEP,
    UPDATE,
    Profile,
    memory_timeline,
    profile_of,
    read_trace,
)
from bexplore.output.profile_text import kernel_rows


def span(name: str, start: float, length: float, cat: str = "cpu_op", tid: int = 1) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "tid": tid}


def region(name: str, start: float, length: float) -> dict:
    return span(f"{PREFIX}{name}", start, length, "user_annotation")


def profile(events: list[dict], **fields) -> Profile:
    given = {"micro_batch_size": 4, "num_steps": 1, "passes_per_step": 2, "trace_path": "t.json", "memory_path": None}
    return profile_of(events, **given | fields)


STEP_OF_1000 = region(STEP, 0, 1000)


def test_the_time_of_an_operator_is_without_the_operators_that_it_calls():
    found = profile([STEP_OF_1000, span("outer", 0, 100), span("inner", 10, 30), span("inner", 50, 20)])
    assert {one.name: one.self_s for one in found.top} == pytest.approx({"outer": 50e-6, "inner": 50e-6})
    assert sum(one.share for one in found.top) == pytest.approx(1.0)


def test_operators_of_two_threads_do_not_call_each_other():
    found = profile([STEP_OF_1000, span("a", 0, 100, tid=1), span("b", 10, 30, tid=2)])
    assert {one.name: one.self_s for one in found.top} == pytest.approx({"a": 100e-6, "b": 30e-6})


def test_regions_are_seconds_of_one_step():
    events = [region(STEP, 0, 100), region(STEP, 200, 100), region(PASS, 0, 30), region(PASS, 40, 30)]
    found = profile([*events, region(PASS, 200, 60), region(UPDATE, 260, 40), span("x", 0, 1)], num_steps=2)
    assert found.regions_s == pytest.approx({STEP: 100e-6, PASS: 60e-6, UPDATE: 20e-6})


def kernels(*spans: tuple[str, float, float]) -> list[dict]:
    return [STEP_OF_1000, *(span(name, start, length, "kernel") for name, start, length in spans)]


def test_a_device_is_busy_while_any_kernel_runs():
    found = profile(kernels(("gemm", 0, 400), ("gemm", 200, 400)))
    assert found.busy_share == pytest.approx(0.6)
    assert (found.num_kernels, found.is_on_device) == (2, True)


def test_collectives_count_where_nothing_else_runs_beside_them():
    found = profile(kernels(("gemm", 0, 500), ("ncclDevKernel_AllReduce", 300, 500)))
    assert found.collective_share == pytest.approx(0.3)


def kinds(events: list[dict]) -> set[str]:
    return {one.kind for one in profile_bottlenecks(profile(events))}


def test_a_device_that_waits_for_launches_is_told_with_its_kernels():
    idle = kernels(*((f"gemm_{number}", 50.0 * number, 10) for number in range(20)))
    assert kinds(idle) == {"launch"}
    (found,) = profile_bottlenecks(profile(idle))
    assert "80%" in found.finding
    assert "20 kernels" in found.finding


def test_kernels_that_move_memory_are_told_as_bandwidth():
    assert kinds(kernels(("elementwise_add", 0, 700), ("gemm", 700, 300))) == {"bandwidth"}


def test_a_network_that_holds_the_device_up_is_told():
    assert kinds(kernels(("gemm", 0, 800), ("ncclDevKernel_AllReduce", 800, 200))) == {"communication"}


def test_batches_that_the_device_waits_for_are_told():
    copies = [span("Memcpy HtoD (Pageable -> Device)", 0, 200, "gpu_memcpy")]
    assert kinds([*kernels(("gemm", 200, 800)), *copies]) == {"input"}
    assert kinds([STEP_OF_1000, region(BATCH, 0, 200), span("aten::mm", 200, 800)]) == {"input"}


def test_an_update_that_is_a_large_part_of_a_step_is_told():
    assert kinds([STEP_OF_1000, region(UPDATE, 0, 200), span("aten::mm", 0, 800)]) == {"update"}


def test_a_device_that_multiplies_matrices_all_the_time_has_no_bottleneck():
    assert kinds(kernels(("gemm", 0, 950))) == set()


def test_the_memory_timeline_begins_at_its_first_event_and_is_in_order():
    def event(time: float, num_bytes: int, total: int) -> dict:
        return {"name": "[memory]", "ts": time, "args": {"Bytes": num_bytes, "Total Allocated": total}}

    events = [event(30, -8, 8), event(10, 8, 8), event(20, 8, 16)]
    assert [(one["time_s"], one["total_bytes"]) for one in memory_timeline(events)] == [(0, 8), (1e-5, 16), (2e-5, 8)]
    assert profile([STEP_OF_1000, *events]).peak_bytes == 16


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_read_plain_and_compressed(tmp_path, name):
    data = json.dumps({"traceEvents": [STEP_OF_1000]}).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read_trace(tmp_path / name) == [STEP_OF_1000]


def test_a_record_of_a_profile_gives_it_back():
    found = profile(kernels(("gemm", 0, 950)))
    assert Profile.from_record(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_long_names_of_kernels_are_cut_for_a_terminal():
    found = profile(kernels(("triton_" + 300 * "x", 0, 950)))
    assert len(next(kernel_rows(found))[3]) < 90
