from __future__ import annotations

import pytest

from bexplore.cli.plan_options import name_options, parse_until
from bexplore.errors import UserInputError
from bexplore.planning.costs import PassCost
from bexplore.planning.network import NetworkFigures
from bexplore.planning.plan import make_plans
from bexplore.planning.request import Amount, Devices, PlanRequest, Work
from tests.unit.planning.builders import costs, together, traced

FAST = NetworkFigures.stated(1e15)
DAY = 86400.0


def test_there_is_a_plan_for_each_number_of_devices_and_each_batch():
    request = PlanRequest(
        devices=(Devices(number=1), Devices(number=2)), batch_sizes=(Amount(number=64), Amount(number=128))
    )
    found = [(plan.num_devices, plan.global_batch_size) for plan in make_plans(costs(), request, FAST).plans]
    assert found == [(1, 64), (1, 128), (2, 64), (2, 128)]


def test_what_cannot_be_planned_is_told_beside_what_can():
    found = make_plans(costs(), PlanRequest(devices=(Devices(number=2), Devices(number=3))), FAST)
    assert [plan.num_devices for plan in found.plans] == [2]
    (refused,) = found.refused
    assert refused.devices.number == 3
    assert "`devices=2 or 4`" in refused.hint


def test_the_fewest_devices_in_time_follow_the_number_too_few():
    one_day = costs(max_steps=None)
    alone = make_plans(one_day, PlanRequest(work=Work(steps=100_000)), FAST).plans[0]
    request = PlanRequest(work=Work(steps=100_000), until_s=alone.training_time_s / 3)
    too_few, enough = make_plans(one_day, request, FAST).plans
    assert (too_few.num_devices, too_few.is_in_time) == (2, False)
    assert (enough.num_devices, enough.is_in_time) == (4, True)


def test_a_time_that_no_number_of_devices_meets_names_the_fastest():
    with pytest.raises(UserInputError, match="the fastest takes") as error:
        make_plans(costs(), PlanRequest(until_s=1.0), FAST)
    assert "`until_s=" in error.value.hint


def test_the_hint_of_a_time_that_is_too_short_is_a_time_that_is_enough():
    request = PlanRequest(work=Work(steps=10**6))
    with pytest.raises(UserInputError) as error:
        make_plans(costs(), PlanRequest(work=request.work, until_s=60.0), FAST)
    until_s = float(error.value.hint.split("`until_s=")[1].partition("`")[0])
    assert make_plans(costs(), PlanRequest(work=request.work, until_s=until_s), FAST).plans[-1].is_in_time


def test_a_time_without_an_amount_of_training_is_refused():
    with pytest.raises(UserInputError, match="how much is trained"):
        make_plans(costs(max_steps=None), PlanRequest(until_s=DAY))


def test_a_job_without_a_batch_size_needs_one():
    with pytest.raises(UserInputError, match="no batch_size") as error:
        make_plans(costs(batch_size=None, micro_batch_size=24, num_replicas=2), PlanRequest())
    assert error.value.hint == "type `batch_sizes=48`"


def test_the_events_of_plans_have_what_cannot_be_planned_too():
    found = make_plans(costs(), PlanRequest(devices=(Devices(number=2), Devices(number=3))), FAST)
    assert [record["event"] for record in found.records()] == ["training_plan", "training_plan_refused"]


def test_slow_links_are_told_with_all_plans():
    network = NetworkFigures(num_ranks=0, stated_bytes_per_s=1e12, slow=("rank 3 is slow",))
    assert "the network: rank 3 is slow" in make_plans(costs(), PlanRequest(), network).notes


def notes(of=None, network=None, **request) -> str:
    return "\n".join(make_plans(of or costs(), PlanRequest(**request), network).notes)


def test_a_time_not_met_names_the_time_and_the_devices_that_meet_it():
    alone = make_plans(costs(), PlanRequest(), FAST).plans[0].training_time_s
    text = notes(network=FAST, until_s=alone / 3, devices=(Devices(number=1), Devices(number=2)))
    assert "none of these is done in" in text
    assert "or `devices=4`" in text
    assert float(text.split("`until_s=")[1].partition("`")[0]) >= alone / 2
    assert "none of these" not in notes(network=FAST, until_s=alone, devices=(Devices(number=1),))


def test_a_time_that_no_devices_meet_says_so():
    assert "no number of devices is done by then" in notes(network=FAST, until_s=1.0, devices=(Devices(number=1),))


def test_a_short_time_is_named_without_an_exponent():
    tiny = costs(max_steps=1, passes={8: PassCost(seconds=1e-6, last_s=1e-6)}, update_s=1e-6)
    with pytest.raises(UserInputError) as error:
        make_plans(tiny, PlanRequest(until_s=1e-9), FAST)
    typed = name_options(error.value.hint).split("--until ")[1].partition(",")[0]
    assert parse_until(typed) > 0


@pytest.mark.parametrize(
    ("of", "wish", "words"),
    [
        (costs(max_steps=None), {"price_per_device_hour": 2.0}, "`price_per_device_hour` has no effect"),
        (costs(max_steps=None), {"effective_time": 0.9}, "`effective_time` has no effect"),
        (costs(), {"overlap": 0.5}, "`overlap` has no effect: one replica"),
        (costs(), {"network": FAST}, "`network` has no effect: one replica"),
        (together(), {"network": FAST}, "the ranks of these plans were timed together"),
        (costs(), {"overlap": 0.5, "devices": (Devices(number=2),)}, "no bandwidth is known"),
    ],
)
def test_an_option_without_effect_is_named_with_the_reason(of, wish, words):
    assert words in notes(of, **wish)


def test_options_that_have_an_effect_are_not_named():
    wish = {"network": FAST, "overlap": 0.5, "devices": (Devices(number=2),), "price_per_device_hour": 2.0}
    assert "no effect" not in notes(**wish)


def test_tokens_of_a_batch_become_one_that_the_asked_devices_share():
    tokens = (Amount(number=2.06e6, is_tokens=True),)
    alone = make_plans(costs(), PlanRequest(batch_sizes=tokens), FAST).plans[0]
    wish = PlanRequest(batch_sizes=tokens, until_s=alone.training_time_s / 200)
    found = make_plans(costs(), wish, FAST).plans[-1]
    assert (found.global_batch_size, found.num_devices) == (2048, 256)
    assert "which many numbers of devices can share" in found.basis[0]


def test_more_samples_than_a_batch_has_are_refused():
    with pytest.raises(UserInputError, match="more than 1,000,000,000"):
        make_plans(costs(), PlanRequest(batch_sizes=(Amount(number=10**10),)))


def test_a_trace_needs_no_batch_that_it_cannot_share():
    found = make_plans(traced(), PlanRequest(mfu=0.4, devices=(Devices(number=2), Devices(number=3))))
    assert [one.devices.number for one in found.refused] == [3]
