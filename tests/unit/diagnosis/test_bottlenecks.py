"""Bottlenecks are named from what was measured, and nothing is said without evidence."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.diagnosis.bottlenecks import Bottleneck, JobEvidence, find_bottlenecks, find_shape_hints
from bexplore.host.accelerators import DEVICES
from bexplore.job import Job, Parallelism, Precision, TorchSettings
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.run.parts.ranks import RanksPart
from bexplore.trace.cost_model import CostModel, Polynomial
from tests.builders import cost_model

GPU = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "num_multiprocessors": 132}
CPU = {"device": "cpu"}
JOB = Job(workload="imported", precision=Precision.BFLOAT16, device="cuda")


def sweep(pass_times_s: dict[int, float], *, update_s: float = 1e-6, refused: int | None = None) -> list[Observation]:
    made = [
        Observation(
            probe=Probe(number=number, micro_batch_size=size),
            outcome=Outcome.MEASURED,
            pass_times_s=(seconds,) * 3,
            update_times_s=(update_s,),
        )
        for number, (size, seconds) in enumerate(pass_times_s.items())
    ]
    if refused is not None:
        made.append(Observation(probe=Probe(number=99, micro_batch_size=refused), outcome=Outcome.OUT_OF_MEMORY))
    return made


def model(flops: float, num_bytes: float) -> CostModel:
    """Operations and bytes of a pass for one sample."""
    own, moved = Polynomial(0, flops), Polynomial(0, num_bytes)
    return cost_model(model_flops=own, hardware_flops=own, bytes_moved=moved, peaks={})


def found_in(job: Job, observations: list[Observation], **fields) -> tuple[Bottleneck, ...]:
    return find_bottlenecks(JobEvidence(job=job, observations=observations, **fields))


def kinds(pass_times_s: dict[int, float], *, facts=GPU, cost_model=None, steps=1, **options) -> list[str]:
    found = found_in(
        JOB,
        sweep(pass_times_s, **options),
        micro_batch_size=max(pass_times_s),
        accumulation_steps=steps,
        cost_model=cost_model,
        device_info=facts,
    )
    return [item.kind for item in found]


def test_a_job_that_scales_and_uses_the_device_has_no_bottleneck():
    assert kinds({1: 0.10, 2: 0.11, 4: 0.14, 8: 0.25}) == []


def test_a_pass_that_never_takes_longer_is_launch_overhead():
    assert kinds({1: 0.010, 2: 0.0101, 4: 0.0102, 8: 0.0105}) == ["launch"]


@pytest.mark.parametrize(
    ("best", "refused", "maximum", "action"),
    [
        (8, None, None, "larger sizes, or explore.compile"),
        (8, None, 8, "a larger explore.max, or explore.compile"),
        (8, 16, None, "explore.compile"),  # the next one does not fit
        (4, None, None, "explore.compile"),  # the larger one that ran was slower
    ],
)
def test_larger_sizes_are_advised_against_launches_only_where_they_may_be_had(best, refused, maximum, action):
    ran = sweep({1: 0.010, 2: 0.0101, 4: 0.0102, 8: 0.0103}, refused=refused)
    fields = {"micro_batch_size": best, "accumulation_steps": 1, "device_info": GPU, "maximum": maximum}
    launch = next(one for one in found_in(JOB, ran, **fields) if one.kind == "launch")
    assert launch.action.startswith(action)


@pytest.mark.parametrize(
    ("shares", "found"), [({"host": 0.3, "launch": 0.3}, ["launch"]), ({"arithmetic": 0.7, "launch": 0.3}, [])]
)
def test_an_estimated_pass_is_limited_by_its_launches_only_where_these_are_most_of_it(shares, found):
    observations = [
        dataclasses.replace(one, outcome=Outcome.ESTIMATED, details={"estimate": {"shares": shares}})
        for one in sweep({1: 0.004, 64: 0.006})
    ]
    result = found_in(JOB, observations, micro_batch_size=64, accumulation_steps=1, device_info=GPU)
    assert [one.kind for one in result] == found


def test_time_in_proportion_to_the_size_from_the_start_is_a_busy_processor():
    assert kinds({1: 0.1, 2: 0.2, 4: 0.4}, facts=CPU) == ["saturated"]


def test_a_pass_at_the_published_bandwidth_is_limited_by_memory():
    h100 = DEVICES["h100"]
    moved = 0.8 * h100.bandwidth_bytes_per_s * 0.1
    assert kinds({1: 0.1, 2: 0.2, 4: 0.4}, cost_model=model(1e9, moved)) == ["bandwidth"]


def test_few_operations_for_each_byte_are_limited_by_memory_on_any_device():
    assert kinds({1: 0.1, 2: 0.2}, facts=CPU, cost_model=model(2e9, 1e9)) == ["bandwidth"]


def test_a_well_used_device_is_said_to_compute():
    h100 = DEVICES["h100"]
    flops = 0.5 * h100.bfloat16_flops_per_s * 0.1
    assert kinds({1: 0.1, 2: 0.2, 4: 0.4}, cost_model=model(flops, 1e3)) == ["compute"]


def test_operations_that_are_not_counted_are_named_and_explain_nothing():
    known = model(1e6, 1e6)
    part = dataclasses.replace(known, unknown={"mine::scan": 0.25})
    flat = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}
    # a pass of a second is long: only its low utilization would show a device that waits
    assert [kinds(flat, cost_model=one)[0] for one in (known, part)] == ["launch", "not_counted"]
    low = {1: 0.1, 2: 0.2}
    assert kinds(low, facts=CPU, cost_model=known) == ["bandwidth"]
    assert "bandwidth" not in kinds(low, facts=CPU, cost_model=part)
    found = found_in(JOB, sweep(low), device_info=CPU, micro_batch_size=2, cost_model=part)
    assert "mine::scan (25%" in found[-1].finding


def test_throughput_that_grows_up_to_the_budget_is_limited_by_memory():
    assert "capacity" in kinds({1: 0.10, 2: 0.11, 4: 0.14, 8: 0.2}, refused=12)
    assert "capacity" not in kinds({1: 0.10, 2: 0.11, 4: 0.22, 8: 0.44}, refused=12)


def test_throughput_that_grows_up_to_the_users_largest_size_is_limited_by_that():
    growing, flat = {1: 0.10, 2: 0.11, 4: 0.14, 8: 0.2}, {1: 0.10, 2: 0.11, 4: 0.22, 8: 0.44}

    def has_limit(times, maximum):
        found = found_in(JOB, sweep(times), micro_batch_size=8, maximum=maximum, device_info=CPU)
        return [one.kind for one in found if one.kind == "maximum"] != []

    assert has_limit(growing, 8)
    assert not any(has_limit(*one) for one in ((growing, None), (growing, 16), (flat, 8)))
    assert not has_limit({1: 0.10, 7: 0.175, 8: 0.2}, 8)  # which grew below, and is flat at its end


def test_a_long_update_is_said_with_its_share_of_the_step():
    found = found_in(
        JOB, sweep({1: 0.1, 2: 0.11}, update_s=0.11), micro_batch_size=2, accumulation_steps=1, device_info=CPU
    )
    assert "takes 50% of a step of 1 accumulation step (110 ms beside 110 ms of passes)" in found[0].finding
    assert "fused" not in found[0].action
    assert found[0].evidence["update_share"] == pytest.approx(0.5)
    assert kinds({1: 0.1, 2: 0.11}, facts=CPU, update_s=0.11, steps=100) == []


def test_the_optimizers_that_could_be_fused_are_named_as_they_are():
    told = {"unfused_optimizers": ["torch.optim.SGD", "torch.optim.Adam"]}
    observations = [dataclasses.replace(item, details=told) for item in sweep({1: 0.1, 2: 0.11}, update_s=0.11)]

    found = found_in(JOB, observations, micro_batch_size=2, accumulation_steps=1, device_info=CPU)

    assert found[0].action.endswith("or torch.optim.SGD(fused=True) or torch.optim.Adam(fused=True)")


def loader(samples_per_s: float, problem: str = "", largest_batch: int = 2) -> dict:
    sizes = {"micro_batch_size": 2, "largest_batch": largest_batch}
    return {"samples_per_s": samples_per_s, "num_workers": 2, "problem": problem, **sizes}


def input_of(**record) -> list:
    found = found_in(
        JOB,
        sweep({1: 0.1, 2: 0.2}),
        micro_batch_size=2,
        accumulation_steps=4,
        device_info=CPU,
        loader=loader(**record),
    )
    return [item for item in found if item.kind == "input"]


def test_a_loader_slower_than_the_step_is_the_limit():
    (found,) = input_of(samples_per_s=8.0)

    assert found.finding == (
        "the input pipeline is the limit: the loader gives 8 samples/s with 2 workers, the step takes 10"
    )
    assert found.evidence == {"loader_samples_per_s": 8.0, "step_samples_per_s": pytest.approx(10.0, rel=1e-3)}
    assert input_of(samples_per_s=12.0) == []


def command_that_reads(share: float, num_workers: int = 0) -> tuple[Bottleneck, ...]:
    """Return the limits of a training whose larger sizes gain nothing, and a step of which reads batches so long."""
    details = {"share_of_reading": share, "num_loader_workers": num_workers, "micro_batches_per_step": 1.0}
    measured = [dataclasses.replace(item, details=details) for item in sweep({1: 0.1, 2: 0.2})]
    return found_in(JOB, measured, micro_batch_size=2, device_info=CPU, is_of_command=True)


def test_a_step_that_reads_its_batches_most_of_the_time_has_no_other_limit():
    (found,) = command_that_reads(0.8)

    assert found.finding == "reading its batches takes 80% of a step (160 ms of 200 ms), in the process that trains"
    assert found.action.startswith("give the loader workers (num_workers), ")
    assert command_that_reads(0.8, num_workers=2)[0].finding.endswith("of a step (160 ms of 200 ms), with 2 workers")
    assert command_that_reads(0.8, num_workers=2)[0].action.startswith("raise num_workers, ")


def test_a_step_that_reads_its_batches_a_part_of_the_time_may_have_another_limit():
    assert [item.kind for item in command_that_reads(0.3)] == ["input", "saturated"]
    assert [item.kind for item in command_that_reads(0.1)] == ["saturated"]


def test_a_loader_that_never_gives_so_many_samples_is_told():
    (found,) = input_of(samples_per_s=12.0, largest_batch=1)

    assert found.finding == "the largest batch of the data loader has a size of 1, not 2: so many never come"
    assert found.action.startswith("set explore.max to 1,")


def test_a_loader_that_could_not_be_timed_is_said_with_its_reason():
    (found,) = input_of(samples_per_s=None, problem="FileNotFoundError: shard_007.tar")

    assert "could not be timed: FileNotFoundError: shard_007.tar" in found.finding


def test_graph_breaks_are_told_with_their_reason():
    broken = [
        dataclasses.replace(item, num_graph_breaks=2, graph_break_reasons=("print in model.py:3",))
        for item in sweep({1: 0.1, 2: 0.1})
    ]
    found = found_in(JOB, broken, micro_batch_size=2, device_info=CPU)
    assert [item.kind for item in found] == ["graph_breaks"]
    assert "model.py:3" in found[0].finding


def test_nothing_advises_a_command_to_set_a_key_that_it_does_not_take():
    job = dataclasses.replace(JOB, precision=Precision.FLOAT32)
    ran = [dataclasses.replace(one, num_graph_breaks=2) for one in sweep({1: 0.010, 2: 0.0101, 4: 0.0102, 8: 0.0103})]
    facts = GPU | {"device": "cuda:0", "capability": 9.0}
    fields = {"micro_batch_size": 8, "accumulation_steps": 1, "device_info": facts}

    of_job, of_command = (found_in(job, ran, **fields, is_of_command=one) for one in (False, True))

    advised = {one.kind for one in of_job if "explore." in one.action}
    assert advised == {"launch", "graph_breaks", "precision"}
    assert {one.kind for one in of_command} == {one.kind for one in of_job}
    assert not any("explore." in one.action for one in of_command)


def test_without_measurements_nothing_is_said():
    assert found_in(JOB, [], micro_batch_size=None) == ()
    assert found_in(JOB, sweep({4: 0.1}), micro_batch_size=4) == ()


@pytest.mark.parametrize(
    ("model_section", "count"),
    [
        ({"vocab_size": 50257, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072}, 1),
        ({"vocab_size": 50304, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072}, 0),
        ({"vocab_size": 50304, "hidden_size": 1600, "num_heads": 25, "intermediate_size": 6400}, 0),
        ({"vocab_size": 50304, "hidden_size": 768, "num_heads": 64, "intermediate_size": 3072}, 1),
    ],
)
def test_shapes_that_tensor_cores_like_less_are_hints(model_section, count):
    job = Job(workload="decoder", model=model_section, precision=Precision.BFLOAT16)
    assert len(find_shape_hints(job, 8, num_multiprocessors=None)) == count


def test_gpt2s_vocabulary_is_padded_to_the_number_that_everybody_uses():
    job = Job(workload="decoder", model={"vocab_size": 50257}, precision=Precision.BFLOAT16)
    assert find_shape_hints(job, 8, num_multiprocessors=None)[0].action == "pad it to 50304"


def test_a_wave_that_is_hardly_filled_is_a_hint():
    section = {"hidden_size": 1024, "intermediate_size": 4096}
    job = Job(workload="decoder", model=section, precision=Precision.BFLOAT16, sequence_length=128)
    # 9 samples: 9 x 16 = 144 tiles, two waves of 132; 8 samples: 128 tiles, one wave filled to 97 %.
    assert "filled to 55%" in find_shape_hints(job, 9, num_multiprocessors=132)[0].finding
    assert find_shape_hints(job, 8, num_multiprocessors=132) == []
    assert kinds({1: 0.1, 2: 0.11}, facts=CPU) == []


@pytest.mark.parametrize(
    ("capability", "precision", "chosen", "is_said"),
    [
        ("9.0", Precision.FLOAT32, None, True),
        ("8.0", Precision.FLOAT32, None, True),
        ("7.5", Precision.FLOAT32, None, False),
        ("9.0", Precision.AUTOCAST_BFLOAT16, None, False),
        ("9.0", Precision.FLOAT32, "high", False),
        ("9.0", Precision.FLOAT32, "highest", False),
    ],
)
def test_tf32_is_suggested_where_nobody_chose_and_the_device_has_it(capability, precision, chosen, is_said):
    torch_settings = TorchSettings(float32_matmul_precision=chosen)
    job = Job(workload="imported", precision=precision, device="cuda", torch=torch_settings)
    facts = GPU | {"capability": capability}
    found = found_in(job, sweep({1: 0.1, 2: 0.11}), micro_batch_size=2, device_info=facts)
    assert any(item.kind == "precision" for item in found) is is_said


def test_the_capability_of_a_processor_says_nothing_of_tf32():
    job = Job(workload="imported")
    facts = CPU | {"capability": "AVX512"}
    assert all(
        item.kind != "precision" for item in found_in(job, sweep({1: 0.1}), micro_batch_size=1, device_info=facts)
    )


def communicating(parallelism: Parallelism, *, efficiency: float | None = 0.75, **fields) -> tuple[Bottleneck, ...]:
    """Bottlenecks of all ranks of a job whose pass takes a second."""
    exposed_s = None if efficiency is None else 1.0 - efficiency
    ranks = RanksPart(
        **{
            "description": str(parallelism),
            "num_ranks": parallelism.num_ranks,
            "num_replicas": parallelism.num_replicas,
            "holds_communication": True,
            "exposed_communication_s": exposed_s,
            "parallel_efficiency": efficiency,
            "accumulation_steps": 4,
        }
        | fields
    )
    job = dataclasses.replace(JOB, parallelism=parallelism)
    found = found_in(job, sweep({1: 0.3, 2: 0.5, 4: 1.0}), micro_batch_size=4, device_info=CPU, parallel=ranks)
    return tuple(item for item in found if item.kind == "communication")


FSDP = Parallelism(data_parallel_shard_degree=8)
DDP = Parallelism(data_parallel_replicate_degree=8)


def test_exposed_communication_is_a_bottleneck_with_its_share():
    (found,) = communicating(FSDP)

    assert found.finding == (
        "communication is the limit: 250 ms of a pass, 25%, are spent on it beyond what computation hides "
        "(FSDP over 8 ranks), or on the processors of a host, which its ranks share"
    )
    assert found.evidence == {"communication_share": 0.25, "exposed_communication_s": 0.25, "num_ranks": 8}
    assert "2006.15704" in found.source
    assert "2304.11277" in found.source


def test_communication_is_none_where_it_is_hidden_or_was_not_measured():
    assert communicating(FSDP, efficiency=0.91) == ()
    assert communicating(FSDP, efficiency=None) == ()
    assert communicating(FSDP, holds_communication=False) == ()
    assert communicating(FSDP, efficiency=1.02) == ()


MORE_PASSES = "a larger batch_size (more accumulation steps"


@pytest.mark.parametrize(
    ("parallelism", "advised", "left_out"),
    [
        (FSDP, [MORE_PASSES, "fsdp_reshard_after_forward: never", "replicate_degree"], ["bucket_view"]),
        (dataclasses.replace(FSDP, gradient_sync="every"), ["gradient_sync: last"], ["batch_size"]),
        (dataclasses.replace(FSDP, fsdp_reshard_after_forward="never"), ["replicate_degree"], ["reshard"]),
        (DDP, [MORE_PASSES, "gradient_as_bucket_view: true"], ["reshard", "replicate_degree"]),
        (dataclasses.replace(DDP, gradient_as_bucket_view=True), [MORE_PASSES], ["bucket_view"]),
        (Parallelism(tensor_parallel_degree=8), ["fewer devices"], ["batch_size", "reshard", "bucket_view"]),
    ],
)
def test_the_advice_against_communication_names_what_is_not_set_already(parallelism, advised, left_out):
    (found,) = communicating(parallelism)

    assert all(text in found.action for text in [*advised, "a faster link"])
    assert not any(text in found.action for text in [*left_out, "micro-batch"])  # the search has tried the sizes


def test_a_step_of_one_pass_needs_more_of_them_before_reducing_last_gains():
    every = dataclasses.replace(FSDP, gradient_sync="every")

    (found,) = communicating(every, accumulation_steps=1)

    assert "a larger batch_size with explore.parallelism.gradient_sync: last" in found.action
