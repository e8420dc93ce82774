"""Builders of the costs of a step, for the tests of plans."""

from __future__ import annotations

from typing import Any

from bexplore.estimate.collectives import Collective
from bexplore.job import Parallelism
from bexplore.planning.costs import PassCost, StepCosts
from bexplore.planning.network import NetworkFigures, TimedCollective


def costs(**fields: Any) -> StepCosts:
    """A measured job: sizes 1, 2, 4 and 8, of which 8 is the fastest a sample; updates of 0.1 s; batches of 64."""
    measured = {1: 0.2, 2: 0.3, 4: 0.5, 8: 0.8}
    given: dict[str, Any] = {
        "title": "a job",
        "origin": "measured by run_1",
        "passes": {size: PassCost(seconds=seconds, last_s=seconds) for size, seconds in measured.items()},
        "update_s": 0.1,
        "model_flops": 1e12,
        "hardware_flops": 1.25e12,
        "num_parameters": 10**9,
        "gradient_bytes": 4e9,
        "peak_flops_per_s": 100e12,
        "tokens_per_sample": 1000,
        "micro_batch_size": 8,
        "batch_size": 64,
        "max_steps": 1000,
    }
    return StepCosts(**given | fields)


def traced(**fields: Any) -> StepCosts:
    """A job of which a trace alone is known: sizes up to 16 fit."""
    return costs(**{"passes": {}, "update_s": None, "sizes": 16, "micro_batch_size": None, **fields})


def together(**fields: Any) -> StepCosts:
    """The measured job on two ranks that ran together."""
    return costs(**{"parallelism": replicas(2), "holds_communication": True, "num_replicas": 2, **fields})


def replicas(number: int) -> Parallelism:
    """Whole copies of the model."""
    return Parallelism(data_parallel_replicate_degree=number)


def timed_network(speeds: dict[int, float], num_ranks: int = 2) -> NetworkFigures:
    """A network whose all-reduces of some sizes have some bus bandwidths, bytes/s."""
    share = Collective.ALL_REDUCE.sent_share(num_ranks)
    timed = (
        TimedCollective.from_rounds(Collective.ALL_REDUCE, size, [share * size / speed] * 5, num_ranks)
        for size, speed in speeds.items()
    )
    return NetworkFigures(num_ranks=num_ranks, backend="gloo", timed=tuple(timed))
