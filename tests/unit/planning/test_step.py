from __future__ import annotations

import pytest

from bexplore.errors import UserInputError
from bexplore.job import Parallelism, Precision
from bexplore.planning.costs import PassCost, PredictedSpeeds
from bexplore.planning.network import NetworkFigures
from bexplore.planning.plan import make_plans
from bexplore.planning.request import Amount, Devices, PlanRequest, Work
from tests.unit.planning.builders import costs, together, traced

FAST = NetworkFigures.stated(1e15)


def plan(of=None, network=None, **request):
    return make_plans(of or costs(), PlanRequest(**request), network).plans[0]


def on(number: int) -> tuple[Devices, ...]:
    return (Devices(number=number),)


def test_the_plan_of_the_files_own_numbers_is_its_passes_and_its_update():
    found = plan()
    assert (found.num_devices, found.micro_batch_size, found.accumulation_steps) == (1, 8, 8)
    assert found.step_time_s == pytest.approx(8 * 0.8 + 0.1)
    assert found.training_time_s == pytest.approx(1000 * 6.5)
    assert found.device_hours == pytest.approx(6500 / 3600)
    assert found.is_measured
    assert found.share(found.update_s) == pytest.approx(0.1 / 6.5)


def test_a_global_batch_is_passes_times_nodes_times_devices_times_size():
    found = plan(devices=(Devices(number=4, num_nodes=2),), network=NetworkFigures.stated(1e12))
    parts = (found.accumulation_steps, found.num_nodes, found.num_devices // found.num_nodes, found.micro_batch_size)
    assert parts == (2, 2, 2, 8)
    assert found.global_batch_size == 64


def test_utilization_is_operations_over_the_peak_of_all_devices():
    found = plan()
    assert found.mfu == pytest.approx(64 * 1e12 / 6.5 / 100e12)
    assert found.hfu == pytest.approx(1.25 * found.mfu)


def test_the_fastest_size_that_divides_the_batch_of_a_replica_is_taken():
    assert plan(batch_sizes=(Amount(number=12),)).micro_batch_size == 4
    assert plan(batch_sizes=(Amount(number=6),)).micro_batch_size == 2


def test_a_batch_that_no_size_divides_names_the_nearest_on_both_sides():
    of_eight = costs(passes={8: PassCost(seconds=0.8, last_s=0.8)})
    with pytest.raises(UserInputError, match="cannot be divided among 1 replica") as error:
        plan(of_eight, batch_sizes=(Amount(number=20),))
    assert error.value.hint == "type `batch_sizes=16 or 24`"


def test_devices_that_are_no_whole_replicas_name_the_nearest_on_both_sides():
    with pytest.raises(UserInputError) as error:
        plan(devices=on(30), pipeline_stages=4, tensor_parallel_degree=2)
    assert error.value.hint == "type `devices=24 or 32`"


def test_more_replicas_than_samples_are_refused_with_what_is_nearest():
    with pytest.raises(UserInputError, match="cannot be divided among 128 replicas") as error:
        plan(devices=on(128))
    assert error.value.hint == "type `batch_sizes=128`, or `devices=64`"


def test_devices_that_do_not_divide_the_batch_name_the_nearest_sizes():
    with pytest.raises(UserInputError) as error:
        plan(devices=on(3))
    assert error.value.hint == "type `batch_sizes=63 or 66`, or `devices=2 or 4`"


def test_a_price_is_that_of_all_device_hours():
    found = plan(devices=on(2), price_per_device_hour=3.0, network=NetworkFigures.stated(1e12))
    assert found.price == pytest.approx(3.0 * found.device_hours)
    assert found.device_hours == pytest.approx(2 * found.training_time_s / 3600)


def test_time_that_does_not_train_lengthens_the_training_and_no_step():
    whole, ninety = plan(), plan(effective_time=0.9)
    assert ninety.step_time_s == whole.step_time_s
    assert ninety.training_time_s == pytest.approx(whole.training_time_s / 0.9)


def test_a_pipeline_idles_for_its_stages_less_one():
    found = plan(devices=on(4), pipeline_stages=4)
    assert found.accumulation_steps == 8
    assert found.passes_s == pytest.approx(8 * 0.8 / 4)
    assert found.bubble_s / (found.passes_s + found.bubble_s) == pytest.approx(3 / (8 + 3))
    assert found.update_s == pytest.approx(0.1 / 4)
    assert any("left out" in line for line in found.basis)


def test_tensor_parallel_ranks_divide_the_work_not_multiply_the_batch():
    found = plan(devices=on(2), tensor_parallel_degree=2)
    assert (found.num_replicas, found.accumulation_steps) == (1, 8)
    assert found.passes_s == pytest.approx(8 * 0.8 / 2)


def test_replicas_of_an_unknown_network_leave_communication_out():
    found = plan(devices=on(2))
    assert found.communication_s is None
    assert any("left out" in line for line in found.cautions)


def test_a_slow_network_is_what_computation_does_not_hide():
    hidden = plan(devices=on(2), network=NetworkFigures.stated(1e12), overlap=1.0)
    slow = plan(devices=on(2), network=NetworkFigures.stated(1e9), overlap=1.0)
    shown = plan(devices=on(2), network=NetworkFigures.stated(1e9), overlap=0.0)
    assert shown.communication_s == pytest.approx(4.0)  # 4 GB of gradients, of which each rank of two sends all
    assert slow.communication_s == pytest.approx(4.0 - 2 / 3 * 0.8)
    assert hidden.communication_s < 0.001 * hidden.step_time_s


def test_timed_communication_is_that_of_the_plan_on_the_same_ranks():
    passes = {8: PassCost(seconds=0.8, last_s=1.0)}
    found = plan(together(passes=passes))
    assert (found.num_devices, found.accumulation_steps) == (2, 4)
    assert found.step_time_s == pytest.approx(3 * 0.8 + 1.0 + 0.1)
    assert found.is_measured


def test_timed_communication_grows_with_the_bytes_that_each_rank_sends():
    passes = {4: PassCost(seconds=0.4, last_s=0.6)}
    found = plan(together(passes=passes), devices=on(16))
    assert found.communication_s == pytest.approx(0.2 * (15 / 16) / (1 / 2))
    assert not found.is_measured


def test_tensor_parallel_communication_hides_beside_a_ranks_part():
    found = plan(devices=on(16), tensor_parallel_degree=8, network=NetworkFigures.stated(1e9))
    assert (found.num_replicas, found.accumulation_steps) == (2, 4)
    # 4 GB of gradients over 8 ranks at 1 GB/s, beside two thirds of an eighth of a pass of 0.8 s
    assert found.communication_s == pytest.approx(0.5 - 2 / 3 * 0.8 / 8)


def test_passes_that_all_reduce_hold_their_communication_in_each():
    each = PassCost(seconds=1.0, last_s=1.0, exposed_s=0.2)
    found = plan(together(passes={8: each}))
    assert found.communication_s == pytest.approx(4 * 0.2)
    assert found.passes_s == pytest.approx(4 * 0.8)
    assert found.step_time_s == pytest.approx(4 * 1.0 + 0.1)


def test_communication_not_timed_apart_is_unknown_within_the_passes():
    found = plan(together(passes={8: PassCost(seconds=1.0, last_s=1.0, exposed_s=None)}))
    assert found.communication_s is None
    assert found.step_time_s == pytest.approx(4 * 1.0 + 0.1)
    assert "not timed apart" in " ".join(found.cautions)


def test_shards_on_other_ranks_gather_other_bytes_in_each_pass():
    own = Parallelism(data_parallel_shard_degree=2)
    passes = {8: PassCost(seconds=1.0, last_s=1.1, exposed_s=0.2)}
    sharded = together(passes=passes, parallelism=own)
    found = plan(sharded, devices=on(4))
    share = (3 / 4) / (1 / 2)
    assert found.communication_s == pytest.approx(share * (0.2 + 0.3))
    assert found.passes_s == pytest.approx(2 * 0.8)


def test_other_ranks_than_timed_are_computed_with_the_given_network():
    of_two = together(passes={4: PassCost(seconds=0.4, last_s=0.6)})
    found = plan(of_two, devices=on(16), network=NetworkFigures.stated(1e9), overlap=0.0)
    assert found.communication_s == pytest.approx(2 * 15 / 16 * 4.0)
    assert found.network == "1 GB/s of bus bandwidth, as stated"


def test_ranks_timed_together_need_no_network_unless_on_other_hosts():
    of_two = together(passes={8: PassCost(seconds=0.8, last_s=1.0)}, num_hosts=1)
    network = NetworkFigures.stated(1e9)
    here = plan(of_two, network=network)
    apart = plan(of_two, devices=(Devices(number=2, num_nodes=2),), network=network, overlap=0.0)
    assert (here.network, here.communication_s) == (None, pytest.approx(0.2))
    assert apart.communication_s == pytest.approx(4.0)
    assert here.is_measured
    assert not apart.is_measured


def test_ranks_on_other_hosts_than_timed_are_told_without_a_network():
    of_two = together(passes={8: PassCost(seconds=0.8, last_s=1.0)}, num_hosts=1)
    found = plan(of_two, devices=(Devices(number=8, num_nodes=8),))
    text = " ".join(found.cautions)
    assert "timed between 2 ranks within 1 host, and is planned between 8 on 8 hosts" in text


def test_an_update_of_shards_shrinks_with_their_share():
    sharded = together(parallelism=Parallelism(data_parallel_shard_degree=2))
    assert plan(sharded, devices=on(8)).update_s == pytest.approx(0.1 / 4)


def test_a_trace_needs_a_speed_and_a_run_takes_none():
    with pytest.raises(UserInputError, match="no seconds"):
        plan(traced())
    with pytest.raises(UserInputError, match="was measured"):
        plan(mfu=0.4)
    with pytest.raises(UserInputError, match="`mfu` and `hfu`"):
        plan(traced(), mfu=0.4, hfu=0.4)


def test_a_trace_with_a_utilization_gives_the_time_of_its_operations():
    found = plan(traced(), mfu=0.5)
    assert found.step_time_s == pytest.approx(64 * 1e12 / (0.5 * 100e12))
    assert found.mfu == pytest.approx(0.5)
    assert (found.micro_batch_size, found.accumulation_steps) == (16, 4)
    assert plan(traced(), hfu=0.5).step_time_s == pytest.approx(1.25 * found.step_time_s)


def test_a_trace_with_a_throughput_of_a_device_needs_no_peak():
    found = plan(traced(peak_flops_per_s=None), rate=Amount(number=16_000, is_tokens=True), devices=on(2))
    assert found.step_time_s == pytest.approx(64 * 1000 / 16_000 / 2)
    assert found.mfu is None


def test_a_utilization_of_an_unknown_peak_is_refused():
    with pytest.raises(UserInputError, match="published peak"):
        plan(traced(peak_flops_per_s=None), mfu=0.4)


def test_a_utilization_of_float32_says_that_the_table_has_none():
    with pytest.raises(UserInputError, match="float32 has no peak in the table"):
        plan(traced(peak_flops_per_s=None, precision=Precision.FLOAT32, device_name="NVIDIA H100"), mfu=0.4)


@pytest.mark.parametrize(
    "wish", [{"overlap": 0.5}, {"network": NetworkFigures.stated(1e9)}], ids=["overlap", "network"]
)
def test_whole_steps_take_no_communication_of_passes(wish):
    with pytest.raises(UserInputError, match="whole steps"):
        plan(traced(), mfu=0.4, **wish)


def test_a_batch_of_a_trace_that_replicas_cannot_share_names_the_nearest():
    with pytest.raises(UserInputError) as error:
        plan(traced(), mfu=0.4, devices=on(48))
    assert error.value.hint == "type `batch_sizes=48 or 96`, or `devices=32 or 64`"


def test_a_trace_of_other_ranks_tells_no_size_of_a_pipeline():
    found = plan(traced(), mfu=0.4, devices=on(8), pipeline_stages=4)
    assert (found.num_replicas, found.micro_batch_size) == (2, None)
    assert "the trace is not of these" in found.cautions[0]


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(UserInputError, match="12 blocks") as error:
        plan(costs(num_blocks=12), devices=on(16), pipeline_stages=16)
    assert error.value.hint == "type `pipeline_stages=12` or fewer"


def test_the_training_of_the_file_has_as_many_samples_with_another_batch():
    assert plan(batch_sizes=(Amount(number=128),)).num_steps == 500


def test_tokens_of_a_batch_are_rounded_to_what_replicas_share_and_told():
    found = plan(batch_sizes=(Amount(number=1.96e6, is_tokens=True),), devices=on(32), network=FAST)
    assert found.global_batch_size == 2048
    assert "1,960 samples: rounded to 2,048" in found.basis[0]


def test_tokens_that_the_best_size_hardly_divides_take_a_smaller_size():
    found = plan(batch_sizes=(Amount(number=12_000, is_tokens=True),))
    assert (found.global_batch_size, found.micro_batch_size) == (12, 4)


def test_tokens_of_a_batch_are_samples_of_which_one_at_least():
    assert plan(batch_sizes=(Amount(number=64_200, is_tokens=True),)).global_batch_size == 64
    with pytest.raises(UserInputError, match="holds no sample"):
        plan(batch_sizes=(Amount(number=100, is_tokens=True),))


def test_a_training_of_unknown_length_has_the_time_of_a_step_alone():
    found = plan(costs(max_steps=None))
    assert (found.num_steps, found.training_time_s, found.device_hours) == (None, None, None)
    assert found.step_time_s > 0
    assert plan(costs(max_steps=None), work=Work(tokens=64e6)).num_steps == 1000


def band(sizes: dict[int, float], **fields) -> PredictedSpeeds:
    """Speeds that a search predicts, samples/s by size."""
    fits = fields.pop("fits", tuple(1.0 for _ in sizes))
    return PredictedSpeeds(sizes=tuple(sizes), samples_per_s=tuple(sizes.values()), fits=fits, **fields)


ENDS = {1: PassCost(seconds=0.2, last_s=0.2), 16: PassCost(seconds=1.6, last_s=1.6)}  # 5 and 10 samples/s


def test_a_faster_size_that_did_not_run_is_planned_by_predicted_speed():
    of_ends = costs(passes=ENDS, micro_batch_size=16, predicted=band({1: 5.0, 4: 8.0, 16: 10.0}), batch_size=12)
    found = plan(of_ends)
    assert found.micro_batch_size == 12
    assert 12 / 10.0 < found.passes_s < 12 / 8.0
    assert not found.is_measured
    assert "predicted" in found.basis[0]


def test_a_size_that_ran_is_taken_before_one_predicted_hardly_faster():
    ends = ENDS | {4: PassCost(seconds=0.404, last_s=0.404)}
    of_ends = costs(passes=ends, micro_batch_size=16, predicted=band({1: 5.0, 4: 10.0, 16: 10.1}), batch_size=12)
    assert plan(of_ends).micro_batch_size == 4


@pytest.mark.parametrize(
    "predicted",
    [band({1: 5.0, 8: 9.0, 16: 10.0}, fits=(1.0, 0.0, 1.0)), band({1: 5.0, 16: 10.0}, candidates=frozenset((1, 16)))],
    ids=["does not fit", "no candidate"],
)
def test_a_size_that_may_not_run_or_is_no_candidate_is_none_of_a_plan(predicted):
    assert plan(costs(passes=ENDS, micro_batch_size=16, predicted=predicted, batch_size=12)).micro_batch_size == 1


def test_a_batch_of_one_sample_for_each_replica_is_planned():
    found = plan(traced(), mfu=0.4, devices=on(64))

    assert (found.micro_batch_size, found.accumulation_steps) == (1, 1)
