from __future__ import annotations

from bexplore.planning.network_figures import NetworkFigures
from bexplore.planning.planner import make_plans
from bexplore.planning.published import usual_batch_tokens
from bexplore.planning.request import Amount, Devices, PlanRequest
from tests.planning_builders import costs

FAST = NetworkFigures.stated(1e15)
USUAL = (Amount(number=1024),)  # of a million tokens, for a model of a billion parameters


def cautions(of=None, network=FAST, **request) -> str:
    return "\n".join(make_plans(of or costs(), PlanRequest(**request), network).plans[-1].cautions)


def test_a_usual_batch_on_one_device_has_no_caution():
    assert cautions(batch_sizes=USUAL) == ""


def test_a_batch_outside_of_what_is_usual_for_the_models_size_names_the_range_and_its_source():
    text = cautions()
    assert "64,000 tokens is less than the 500,000 to" in text
    assert "arXiv 2005.14165" in text
    assert "more than" in cautions(batch_sizes=(Amount(number=10**5),))


def test_every_size_of_model_that_is_trained_today_has_a_usual_batch():
    for number in (100e6, 1e9, 7e9, 13e9, 70e9, 175e9, 405e9, 1e12):
        usual = usual_batch_tokens(number)
        assert usual is not None
        assert usual.low <= usual.high
    assert usual_batch_tokens(1e3) is None


def test_an_update_above_a_tenth_of_the_step_is_told():
    assert "the update is" in cautions(costs(update_s=1.0))
    assert "the update is" not in cautions(costs(update_s=0.6))


def test_communication_above_a_tenth_of_the_step_is_told():
    assert "does not hide is" in cautions(devices=(Devices(number=2),), network=NetworkFigures.stated(1e9))


def test_more_devices_than_the_batch_can_feed_are_told():
    assert "cannot feed so many devices" in cautions(devices=(Devices(number=32),))
    assert "cannot feed" not in cautions(devices=(Devices(number=8),))


def test_a_batch_that_grows_without_throughput_is_told():
    sizes = (Amount(number=1024), Amount(number=2048))
    assert "2048 has 1.00x the samples/s of 1024" in cautions(batch_sizes=sizes)
    assert "the larger one is not faster" not in cautions(costs(update_s=20.0, batch_size=8), batch_sizes=sizes)
