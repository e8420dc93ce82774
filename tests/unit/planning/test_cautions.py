from __future__ import annotations

import dataclasses

import pytest

from bexplore.planning.cautions import PUBLISHED, find_usual_batch
from bexplore.planning.costs import PassCost
from bexplore.planning.network import NetworkFigures
from bexplore.planning.plan import make_plans
from bexplore.planning.request import Amount, Devices, PlanRequest
from tests.unit.planning.builders import costs, timed_network, traced

FAST = NetworkFigures.stated(1e15)
USUAL = (Amount(number=1024),)  # of a million tokens, for a model of a billion parameters


def cautions(of=None, network=FAST, **request) -> str:
    return "\n".join(make_plans(of or costs(), PlanRequest(**request), network).plans[-1].cautions)


def test_a_usual_batch_on_one_device_has_no_caution():
    assert cautions(batch_sizes=USUAL) == ""


def test_a_batch_unusual_for_the_models_size_names_range_and_source():
    text = cautions()
    assert "64,000 tokens is less than the 500,000 to" in text
    assert "arXiv 2005.14165" in text
    assert "more than" in cautions(batch_sizes=(Amount(number=10**5),))


def test_every_size_of_model_that_is_trained_today_has_a_usual_batch():
    for number in (100e6, 1e9, 7e9, 13e9, 70e9, 175e9, 405e9, 1e12):
        usual = find_usual_batch(number)
        assert usual is not None
        assert usual.low <= usual.high
    assert find_usual_batch(1e3) is None


def test_an_update_above_a_tenth_of_the_step_is_told():
    assert "the update is" in cautions(costs(update_s=1.0))
    assert "the update is" not in cautions(costs(update_s=0.6))


def test_communication_above_a_tenth_of_the_step_is_told():
    assert "does not hide is" in cautions(devices=(Devices(number=2),), network=NetworkFigures.stated(1e9))


def test_more_devices_than_the_batch_can_feed_are_told():
    assert "cannot feed so many devices" in cautions(devices=(Devices(number=32),))
    assert "cannot feed" not in cautions(devices=(Devices(number=8),))


def test_a_batch_too_small_for_one_device_names_the_one_that_is_large_enough():
    told = cautions(costs(num_replicas=1), devices=(Devices(number=1),), batch_sizes=(Amount(number=2),))

    assert "does not use the micro-batch size" in told
    assert "devices" not in told


def test_a_batch_that_grows_without_throughput_is_told():
    sizes = (Amount(number=1024), Amount(number=2048))
    assert "2048 has 1.00x the samples/s of 1024" in cautions(batch_sizes=sizes)
    assert "the larger one is not faster" not in cautions(costs(update_s=20.0, batch_size=8), batch_sizes=sizes)


def test_a_batch_that_grows_by_a_speed_that_was_given_has_no_such_caution():
    sizes = (Amount(number=1024), Amount(number=2048))
    assert "not faster" not in cautions(traced(), network=None, mfu=0.4, batch_sizes=sizes)


# Parameters, samples of a batch and their tokens of the trainings in benchmarks/results/published_trainings.md.
TRAININGS = {
    "LLaMA 65B": (65.2e9, 2048, 2048),
    "TinyLlama 1.1B": (1.1e9, 1024, 2048),
    "BLOOM 176B": (176.247e9, 2048, 2048),
    "OPT-175B": (175e9, 1024, 2048),
    "GPT-3 175B": (174.6e9, 1536, 2048),
    "Megatron 1T": (1008e9, 3072, 2048),
    "Megatron-Turing NLG 530B": (529.6e9, 1920, 2048),
    "PaLM 540B": (540.35e9, 2048, 2048),
    "Gopher 280B": (280e9, 3072, 2048),
    "BloombergGPT 50B": (50.6e9, 2048, 2048),
    "Skywork-13B": (13.85e9, 3906, 4096),
    "Nemotron-4 15B": (14.07e9, 1152, 4096),
    "Llama 3.1 405B": (405.85e9, 2048, 8192),
    "SmolLM3 3B": (3.075e9, 576, 4096),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_no_published_training_has_an_unusual_batch(name):
    num_parameters, samples, length = TRAININGS[name]
    assert find_usual_batch(num_parameters).is_usual(samples * length)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda one: one.name)
def test_no_batch_of_the_table_is_unusual_in_tokens_of_a_power_of_two(published):
    usual = find_usual_batch(published.num_parameters)
    assert usual.is_usual(published.batch_tokens)
    assert usual.is_usual(1.048576 * published.batch_tokens)


def test_batches_of_recent_trainings_are_usual_from_a_billion_parameters():
    assert find_usual_batch(1e9).is_usual(60e6)
    assert not find_usual_batch(1e9).is_usual(70e6)
    assert not find_usual_batch(125e6).is_usual(60e6)


def test_a_smaller_size_than_the_found_one_names_batches_it_divides():
    text = cautions(batch_sizes=(Amount(number=1020),), devices=(Devices(number=1),))
    assert "size 8 that was found does not divide a batch of 1020 on 1 replica" in text
    assert "25% longer a sample: it divides 1016 and 1024" in text


def test_a_smaller_size_that_is_as_fast_has_no_caution():
    alike = {size: PassCost(seconds=0.1 * size, last_s=0.1 * size) for size in (4, 8)}
    assert "does not divide" not in cautions(costs(passes=alike), batch_sizes=(Amount(number=1020),))


def test_a_batch_of_a_trace_that_fills_no_device_is_told():
    text = cautions(traced(), network=None, mfu=0.4, devices=(Devices(number=32),))
    assert "32 replicas have 2 samples of the batch each, less than the micro-batch size 16 that fits" in text
    assert "cannot feed" not in cautions(traced(), network=None, mfu=0.4, devices=(Devices(number=4),))


def network(**fields) -> NetworkFigures:
    given = {"num_ranks": 4, "num_hosts": 2, "backend": "nccl", "device_name": "NVIDIA H100"}
    return dataclasses.replace(timed_network({2**20: 1e12}), **given | fields)


def cautions_of(timed: NetworkFigures) -> str:
    four = (Devices(number=4, num_nodes=2),)
    return cautions(costs(device_name="NVIDIA H100"), timed, devices=four, batch_sizes=USUAL)


def test_a_network_of_the_plans_own_ranks_has_no_caution():
    assert "the network was" not in cautions_of(network())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_ranks": 2}, "timed between 2 ranks, and replicas are 4"),
        ({"num_hosts": 1}, "timed on 1 host, and the plan has 2 nodes"),
        ({"backend": "gloo", "device_name": ""}, "timed by gloo, and the job trains on an accelerator"),
        ({"device_name": "NVIDIA A100"}, 'between devices of "NVIDIA A100", and the job ran on "NVIDIA H100"'),
    ],
)
def test_a_network_that_differs_from_the_plan_is_told_with_both(fields, words):
    text = cautions_of(network(**fields))
    assert words in text
    assert text.count("the network was") == 1


def test_replicas_without_a_trace_are_told_why_communication_is_left_out():
    text = cautions(costs(gradient_bytes=None), devices=(Devices(number=2),))
    assert "left out: the bytes of the gradients are not known without a trace" in text
