"""What a result tells of a job's ranks, from made observations."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from bexplore.job import Parallelism
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run.facts import pass_times_by_kind, step_time_s, verified_by
from bexplore.run.parts.ranks import RanksPart, find_ranks, one_rank_caution
from bexplore.run.result import RunResult
from tests.unit.run.builders import run_result

GIB = 2**30
FSDP = Parallelism(data_parallel_shard_degree=4)
DDP = Parallelism(data_parallel_replicate_degree=4)
UPDATE_S = 0.5
RANKS = (
    {"rank": 0, "host": "node1", "products_per_s": 1000.0, "peak_memory_bytes": 3 * GIB},
    {"rank": 1, "host": "node1", "products_per_s": 900.0, "peak_memory_bytes": 2 * GIB},
    {"rank": 2, "host": "node2", "products_per_s": 1000.0, "peak_memory_bytes": 3 * GIB},
    {"rank": 3, "host": "node2", "products_per_s": 1100.0, "peak_memory_bytes": None},
)


def ran(
    inner_s: float = 1.0,
    last_s: float = 1.5,
    *,
    size: int = 8,
    steps: int | None = 4,
    ranks: Any = (),
    compilation: Compilation = Compilation.EXACT,
    **parallel: Any,
) -> Observation:
    """A probe of a rank whose passes differ."""
    share = 0.0 if steps is None else 1.0 / steps
    details = {
        "accumulation_steps": steps,
        "pass_times_by_kind_s": [[inner_s, last_s], [inner_s, last_s]],
        "products_per_s": 1.0,
    }
    of_all = {"ranks": list(ranks), "launcher": "torchrun", "num_ranks": len(ranks)} if ranks else {}
    return Observation(
        probe=Probe(number=0, micro_batch_size=size, compilation=compilation),
        outcome=Outcome.MEASURED,
        pass_times_s=(inner_s + (last_s - inner_s) * share,) * 2,
        update_times_s=(UPDATE_S,),
        details={"parallel": details | of_all | parallel},
    )


def result_of(
    observation: Observation | None, *, journal: tuple[Observation, ...] = (), parallelism: Parallelism = FSDP
) -> RanksPart:
    found = find_ranks(parallelism, observation, (observation, *journal) if observation else journal)
    assert found is not None
    return found


def test_a_job_of_one_device_has_no_ranks_to_tell_of():
    assert find_ranks(Parallelism(), ran(), ()) is None


def test_one_rank_of_n_tells_its_passes_and_that_they_hold_no_communication():
    found = result_of(ran(1.0, 1.5, steps=4))

    assert (found.description, found.num_ranks, found.num_replicas) == ("FSDP over 4 ranks", 4, 4)
    assert (found.launcher, found.hosts, found.holds_communication) == (None, (), False)
    assert (found.accumulation_steps, found.inner_pass_s, found.last_pass_s) == (4, 1.0, 1.5)
    assert (found.effective_pass_s, found.update_s) == (1.125, UPDATE_S)
    assert found.one_rank_pass_s == found.effective_pass_s
    assert (found.exposed_communication_s, found.parallel_efficiency, found.slowest_rank) == (None, None, None)


def test_all_ranks_tell_where_they_ran_which_is_slowest_and_which_needs_most_memory():
    found = result_of(ran(ranks=RANKS))

    assert (found.launcher, found.hosts, found.holds_communication) == ("torchrun", ("node1", "node2"), True)
    assert found.slowest_rank == 1
    assert found.slowest_rank_lag == pytest.approx(0.1)
    assert (found.worst_peak_rank, found.worst_peak_memory_bytes) == (0, 3 * GIB)
    assert (found.one_rank_pass_s, found.exposed_communication_s, found.parallel_efficiency) == (None, None, None)


def test_ranks_that_report_neither_speed_nor_memory_leave_both_unknown():
    found = result_of(ran(ranks=[{"rank": 0, "host": "a", "products_per_s": None, "peak_memory_bytes": None}]))

    assert (found.slowest_rank, found.slowest_rank_lag) == (None, None)
    assert (found.worst_peak_rank, found.worst_peak_memory_bytes) == (None, None)


@pytest.mark.parametrize("compilation", [Compilation.EXACT, Compilation.EAGER])
def test_exposed_communication_is_what_all_ranks_take_longer_than_one_that_is_alone(compilation):
    alone = ran(1.0, 1.0, compilation=compilation)
    found = result_of(ran(1.2, 1.4, ranks=RANKS, compilation=compilation), journal=(alone,))

    assert found.effective_pass_s == pytest.approx(1.25)
    assert found.one_rank_pass_s == pytest.approx(1.0)
    assert found.exposed_communication_s == pytest.approx(0.25)
    assert found.parallel_efficiency == pytest.approx(0.8)


def test_one_rank_is_compared_in_the_program_of_the_search_and_its_ratio_holds_for_the_trainings_own():
    shared = ran(2.0, 2.0, ranks=RANKS, compilation=Compilation.SHARED, one_rank_pass_s=1.5)
    exact = ran(1.0, 1.0, ranks=RANKS, one_rank_pass_s=1.5)  # of the search's program too: slower than this one

    found = result_of(exact, journal=(shared,))

    assert found.parallel_efficiency == pytest.approx(0.75)
    assert found.one_rank_pass_s == pytest.approx(0.75)
    assert found.exposed_communication_s == pytest.approx(0.25)
    assert result_of(exact).parallel_efficiency is None


def test_only_the_recommended_size_and_only_what_ran_is_compared():
    ended = dataclasses.replace(ran(), outcome=Outcome.OUT_OF_MEMORY, pass_times_s=())

    assert result_of(ran(ranks=RANKS), journal=(ran(size=4), ended)).parallel_efficiency is None


def test_a_size_that_another_explorer_measured_leaves_all_but_the_degrees_unknown():
    assert result_of(None) == RanksPart(description="FSDP over 4 ranks", num_ranks=4, num_replicas=4)


def test_a_step_of_one_pass_has_no_pass_that_reduces_nothing():
    found = result_of(ran(1.5, 1.5, steps=1))

    assert (found.inner_pass_s, found.last_pass_s, found.effective_pass_s) == (None, 1.5, 1.5)


def test_without_a_batch_size_the_pass_that_reduces_nothing_is_ranked():
    found = result_of(ran(1.0, 1.5, steps=None))

    assert (found.accumulation_steps, found.effective_pass_s) == (None, 1.0)


def test_passes_that_do_not_differ_are_not_told_apart():
    alike = dataclasses.replace(
        ran(), pass_times_s=(1.0,), details={"parallel": {"accumulation_steps": 4, "pass_times_by_kind_s": []}}
    )

    assert pass_times_by_kind(alike) == (None, None)
    assert result_of(alike).effective_pass_s == 1.0


@pytest.mark.parametrize("steps", [None, 1, 2, 3, 7, 64])
def test_a_ranked_pass_times_the_passes_of_a_step_and_an_update_are_the_step(steps):
    inner_s, last_s = (0.3, 0.3) if steps == 1 else (0.1, 0.3)
    observation = ran(inner_s, last_s, steps=steps)

    if steps is not None:
        expected_s = steps * observation.pass_time_s + UPDATE_S
        assert step_time_s(observation, steps) == pytest.approx(expected_s)
    if steps != 1:
        assert step_time_s(observation, 10) == pytest.approx(9 * 0.1 + 0.3 + UPDATE_S)


def test_a_step_of_one_pass_does_not_tell_how_long_one_of_several_takes():
    observation = ran(1.5, 1.5, steps=1)

    assert step_time_s(observation, 1) == 1.5 + UPDATE_S
    assert step_time_s(observation, 2) is None


def test_an_observation_of_all_ranks_verifies_a_size_before_one_of_one_rank():
    together, alone = ran(ranks=RANKS, compilation=Compilation.SHARED), ran()

    assert verified_by([together, alone], 8) is together
    assert verified_by([alone], 8) is alone


@pytest.mark.parametrize(
    ("parallelism", "told"),
    [
        (FSDP, "one rank of 4: the times hold no communication; with sharded parameters larger sizes can only gain"),
        (FSDP, "since what is gathered does not grow with the size"),
        (DDP, "with replicas larger sizes can only gain from it, since what is reduced does not grow with the size"),
        (Parallelism(tensor_parallel_degree=2), "one rank of 2: the times hold no communication, and what ranks of"),
        (Parallelism(tensor_parallel_degree=2), "exchange grows with the size"),
    ],
)
def test_one_rank_says_what_its_times_lack_and_what_that_means_for_larger_sizes(parallelism, told):
    assert told in one_rank_caution(parallelism)


def test_a_result_on_disk_keeps_its_ranks():
    kept = run_result(micro_batch_size=8, parallel=result_of(ran(ranks=RANKS)))

    assert RunResult.from_record(json.loads(json.dumps(kept.as_record()))) == kept


def test_a_pass_that_reduces_nothing_takes_the_slowest_ranks_own_time_and_not_the_slower_one_of_each_pass():
    own = [{**rank, "inner_pass_s": seconds} for rank, seconds in zip(RANKS, (0.8, 0.9, 0.7, 0.8), strict=True)]

    assert pass_times_by_kind(ran(1.0, 1.5, ranks=own)) == (0.9, 1.5)
    assert step_time_s(ran(1.0, 1.5, ranks=own), 4) == pytest.approx(3 * 0.9 + 1.5 + UPDATE_S)
