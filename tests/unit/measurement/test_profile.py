from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from bexplore.diagnosis.profiled import NetworkEvidence, find_network_bottlenecks, find_profile_bottlenecks
from bexplore.host.records import from_record
from bexplore.measurement.profile import (
    BACKWARD,
    BATCH,
    FORWARD,
    PASS,
    PREFIX,
    STEP,
    UPDATE,
    Profile,
    ProfiledCollective,
    is_matrix,
    memory_timeline,
    read_profile,
    read_trace,
)
from bexplore.output.profile_text import kernels_table, regions_sentence


def span(name: str, start: float, length: float, cat: str = "cpu_op", tid: int = 1) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "tid": tid}


def region(name: str, start: float, length: float) -> dict:
    return span(f"{PREFIX}{name}", start, length, "user_annotation")


def profile(events: list[dict], **fields) -> Profile:
    given = {"micro_batch_size": 4, "num_steps": 1, "passes_per_step": 2, "trace_path": "t.json", "memory_path": None}
    return read_profile(events, **given | fields)


STEP_OF_1000 = region(STEP, 0, 1000)


def test_the_time_of_an_operator_is_without_the_operators_that_it_calls():
    found = profile([STEP_OF_1000, span("outer", 0, 100), span("inner", 10, 30), span("inner", 50, 20)])
    assert {one.name: one.self_s for one in found.top} == pytest.approx({"outer": 50e-6, "inner": 50e-6})
    assert sum(one.share for one in found.top) == pytest.approx(1.0)


def test_operators_of_two_threads_do_not_call_each_other():
    found = profile([STEP_OF_1000, span("a", 0, 100, tid=1), span("b", 10, 30, tid=2)])
    assert {one.name: one.self_s for one in found.top} == pytest.approx({"a": 100e-6, "b": 30e-6})


def test_regions_and_operators_are_those_of_the_fastest_step():
    slow = [region(STEP, 0, 300), region(PASS, 0, 90), region(PASS, 100, 90), span("aten::bmm", 0, 80)]
    fast = [region(STEP, 400, 100), region(PASS, 400, 30), region(PASS, 430, 30), region(UPDATE, 460, 40)]
    found = profile([*slow, *fast, span("aten::mm", 400, 20)], num_steps=2)
    assert found.regions_s == pytest.approx({STEP: 100e-6, PASS: 60e-6, UPDATE: 40e-6})
    assert [one.name for one in found.top] == ["aten::mm"]
    assert found.step_times_s == pytest.approx((300e-6, 100e-6))
    assert "the faster of 2 steps (300 us and 100 us)" in regions_sentence(found)


def test_the_backward_half_of_a_pass_begins_with_its_first_gradient():
    gradients = [span("autograd::engine::evaluate_function: AddmmBackward0", at, 5, tid=2) for at in (30, 50, 150)]
    found = profile([STEP_OF_1000, region(PASS, 0, 100), region(PASS, 100, 100), *gradients])
    assert found.regions_s[FORWARD] == pytest.approx((30 + 50) * 1e-6)
    assert found.regions_s[BACKWARD] == pytest.approx((70 + 50) * 1e-6)


def test_operators_have_the_time_of_the_kernels_that_they_launch():
    def launched(name: str, start: float, length: float, by: int) -> dict:
        return span(name, start, length, "kernel") | {"args": {"External id": by}}

    events = [
        STEP_OF_1000,
        *(
            span(name, 0, 1) | {"args": {"External id": number}}
            for number, name in enumerate(["aten::mm", "aten::add"])
        ),
        *(launched("gemm", 0, 300, 0), launched("split", 300, 100, 0), launched("elementwise", 400, 100, 1)),
    ]
    found = profile(events)
    assert {one.name: one.self_s for one in found.operators} == pytest.approx({"aten::mm": 4e-4, "aten::add": 1e-4})
    assert [row[3] for row in kernels_table(found).rows] == ["kernel"] * 3 + ["operator"] * 2
    assert profile([STEP_OF_1000, span("aten::mm", 0, 1)]).operators == ()


MATRIX = [
    "aten::mm",
    "aten::addmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
    "aten::linear",
    "aten::convolution_backward",
    "aten::mkldnn_convolution",
    "mkldnn::_convolution_pointwise",
    "mkldnn::_linear_pointwise",
    "mkl::_mkl_linear",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "ampere_sgemm_128x64_nn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x3_nn_align8>",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
    "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
    "void at::native::conv_depthwise2d_forward_kernel<3>",
    "miopenSp3AsmConv_v30_2_1_gfx9_fp32_f2x3_stride1",
    "triton_tem_fused_addmm_3",
    "triton_mm",
]
NO_MATRIX = [
    "triton_poi_fused_convolution_relu_0",
    "triton_poi_fused__scaled_dot_product_flash_attention_clone_4",
    "triton_red_fused_addmm_native_layer_norm_2",
    "triton_per_fused_mm_sum_7",
    "graph_0_cpp_fused_convolution_relu_1",
    "prims::convert_element_type",
    "aten::to_mkldnn_convert",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "aten::add_",
    "aten::mul",
    "aten::minimum",
    "aten::native_layer_norm",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "Memcpy HtoD (Pageable -> Device)",
]


@pytest.mark.parametrize("name", MATRIX)
def test_kernels_that_multiply_matrices_are_known_by_their_names(name):
    assert is_matrix(name)


@pytest.mark.parametrize("name", NO_MATRIX)
def test_one_that_only_moves_or_fuses_what_was_multiplied_is_not(name):
    assert not is_matrix(name)


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
    return {one.kind for one in find_profile_bottlenecks(profile(events))}


def test_a_device_that_waits_for_launches_is_told_with_its_kernels():
    idle = kernels(*((f"gemm_{number}", 50.0 * number, 10) for number in range(20)))
    assert kinds(idle) == {"launch"}
    (found,) = find_profile_bottlenecks(profile(idle))
    assert "80%" in found.finding
    assert "20 kernels" in found.finding


def test_kernels_that_move_memory_are_told_as_bandwidth():
    assert kinds(kernels(("elementwise_add", 0, 700), ("gemm", 700, 300))) == {"bandwidth"}


def test_a_network_that_holds_the_device_up_is_told():
    assert kinds(kernels(("gemm", 0, 800), ("ncclDevKernel_AllReduce", 800, 200))) == {"communication"}


def gloo(name: str, start: float, length: float, elements: int, tid: int = 9) -> dict:
    told = {"Input Dims": [[elements]], "Input type": ["float"]}
    return span(f"gloo:{name}", start, length, "user_annotation", tid) | {"args": told}


DDP_STEP = [
    STEP_OF_1000,
    span("aten::mm", 0, 500),
    span("c10d::allreduce_", 500, 10),
    gloo("all_reduce", 400, 500, 1000),
    span("autograd::engine::evaluate_function: AddmmBackward0", 0, 1000),
    span("aten::copy_", 900, 100),
]


def test_gloo_counts_where_no_operator_computes_beside_it():
    assert profile(DDP_STEP).collective_share == pytest.approx(0.4)
    assert kinds(DDP_STEP) == {"communication"}
    assert profile([STEP_OF_1000, span("aten::mm", 0, 1000)]).collective_share is None


def test_an_operator_that_waits_for_gloo_does_not_compute():
    blocking = [span("c10d::_reduce_scatter_base_", 200, 300), gloo("all_reduce", 210, 280, 1000)]
    found = profile([STEP_OF_1000, span("CompiledFunction", 0, 1000), *blocking])
    assert found.collective_share == pytest.approx(0.28)


def test_collectives_have_the_bytes_of_gloo_and_of_nccl():
    told = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16"}
    nccl = span("ncclDevKernel_AllGather", 0, 100, "kernel") | {"args": told}
    assert profile([STEP_OF_1000, nccl]).collectives == (
        ProfiledCollective(name="all_gather", num_bytes=80, num_calls=1, is_part=False, self_s=pytest.approx(1e-4)),
    )
    found = profile([STEP_OF_1000, gloo("all_gather", 0, 100, 10), gloo("all_reduce", 0, 50, 5), gloo("send", 0, 1, 5)])
    assert [(one.name, one.num_bytes, one.is_part) for one in found.collectives] == [
        ("all_gather", 40, True),
        ("all_reduce", 20, False),
    ]


@pytest.mark.parametrize(
    ("seconds", "reason"), [(300e-6, "the bandwidth explains it"), (30e-6, "waiting for a slower rank")]
)
def test_exposed_communication_is_compared_with_the_timed_bandwidth(seconds, reason):
    (found,) = find_profile_bottlenecks(profile(DDP_STEP), NetworkEvidence(seconds=lambda one: seconds))
    assert "(400 us); at the bandwidth that was timed" in found.finding
    assert reason in found.finding
    assert found.evidence["explained_s"] == seconds
    assert "bexplore network" not in found.action


def test_without_a_timed_collective_the_finding_says_how_to_time_it():
    (found,) = find_profile_bottlenecks(profile(DDP_STEP), NetworkEvidence())
    assert "bexplore network" in found.action


def test_slow_parts_of_the_network_are_findings_with_their_speeds():
    network = NetworkEvidence(slow=("rank 3 is slow",), speeds={"slowest_link_bytes_per_s": 1e9})
    (found,) = find_network_bottlenecks(network)
    assert (found.kind, found.evidence) == ("communication", {"slowest_link_bytes_per_s": 1e9})
    assert "rank 3 is slow" in found.finding
    assert find_network_bottlenecks(None) == ()


def test_a_pass_s_communication_is_compared_with_the_timed_bandwidth():
    (found,) = find_network_bottlenecks(NetworkEvidence(exposed_s=0.4, explained_s=0.1))
    assert "adds 400 ms to a pass" in found.finding
    assert "take 100 ms in all: most of it is waiting" in found.finding
    assert find_network_bottlenecks(NetworkEvidence(exposed_s=-0.1, explained_s=0.1)) == ()


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
    found = dataclasses.replace(profile(kernels(("gemm", 0, 950))), collectives=profile(DDP_STEP).collectives)
    assert found.collectives
    assert from_record(Profile, json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_long_names_of_kernels_are_cut_for_a_terminal():
    found = profile(kernels(("triton_" + 300 * "x", 0, 950)))
    assert len(kernels_table(found).rows[0][4]) < 90
