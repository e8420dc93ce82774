from __future__ import annotations

import pytest

from bexplore.errors import UserInputError
from bexplore.job import Parallelism
from bexplore.planning.costs import PassCost
from bexplore.planning.plan import make_plans
from bexplore.planning.request import Devices, PlanRequest
from tests.unit.planning.builders import together
from tests.unit.run.builders import GIB, cost_model

# Of a rank of four: states of 1 GiB and a quarter GiB a sample, 3 GiB with eight samples.
PASSES = {1: PassCost(seconds=0.2, last_s=0.2), 8: PassCost(seconds=0.8, last_s=0.8)}
OF_FOUR = Parallelism(data_parallel_shard_degree=4)


def sharded(**fields):
    given = {"passes": PASSES, "parallelism": OF_FOUR, "num_replicas": 4, "cost_model": cost_model()}
    return together(**given | {"memory_budget_bytes": 4 * GIB} | fields)


def plan(of, number: int, **request):
    return make_plans(of, PlanRequest(devices=(Devices(number=number),), **request)).plans[0]


def test_fewer_ranks_hold_more_states_and_take_a_size_that_fits():
    assert plan(sharded(), 4).micro_batch_size == 8
    assert plan(sharded(), 2).micro_batch_size == 8  # 2 GiB of states and 2 of activations
    assert plan(sharded(memory_budget_bytes=5 * GIB), 1).micro_batch_size == 1  # 4 GiB of states alone
    assert plan(sharded(), 8).micro_batch_size == 8


def test_ranks_over_the_budget_at_every_size_are_refused():
    with pytest.raises(UserInputError, match="4 times the parameters") as error:
        plan(sharded(memory_budget_bytes=3 * GIB), 1)
    assert "`devices=4` or more" in error.value.hint


def test_ranks_that_hold_more_without_a_trace_have_a_caution():
    assert "whether these fit is not known" in " ".join(plan(sharded(cost_model=None), 2).cautions)
    assert "whether these fit" not in " ".join(plan(sharded(cost_model=None), 4).cautions)


def test_a_smaller_tensor_parallel_degree_holds_more_activations_too():
    halves = sharded(parallelism=Parallelism(tensor_parallel_degree=2), num_replicas=1)
    assert plan(halves, 2).micro_batch_size == 8
    assert plan(halves, 1, tensor_parallel_degree=1).micro_batch_size == 1  # twice 3 GiB with eight samples


def test_replicas_of_a_device_measured_alone_need_buckets():
    alone = {"parallelism": Parallelism(), "num_replicas": 1, "holds_communication": False, "gradient_bytes": GIB}
    tight = plan(sharded(**alone), 2)
    assert "2.00 GiB more for gradient buckets and collectives, 5.00 GiB of 4.00 GiB" in " ".join(tight.cautions)
    assert "more for gradient" not in " ".join(plan(sharded(**alone, memory_budget_bytes=5 * GIB), 2).cautions)
    assert "more for gradient" not in " ".join(plan(sharded(**alone), 1).cautions)
