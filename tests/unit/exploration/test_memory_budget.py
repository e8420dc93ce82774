"""Tensors and what is held for them: two accounts, from the device's own to the last words."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bexplore.actions import trace as trace_module
from bexplore.config.load import load_config
from bexplore.config.schema import ExploreSettings
from bexplore.errors import UserInputError
from bexplore.exploration.base import ExploreOptions
from bexplore.exploration.job import JobExploration, TracedJob
from bexplore.exploration.memory_budget import (
    COLLECTIVES_BYTES,
    CUDA_CONTEXT_BYTES,
    DEVICE_MARGIN_BYTES,
    DEVICE_MARGIN_SHARE,
    HOST_OVERHEAD_BYTES,
    HOST_SHARE,
    count_gradient_bytes,
    describe_absent_memory,
    find_memory_account,
    resolve_budget,
)
from bexplore.host.records import from_record, to_record
from bexplore.job import Job, Mode, Precision
from bexplore.job.batching import MAX_SAMPLES
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.output.report.page import sizes_table
from bexplore.output.report.report_data import read_report_data
from bexplore.output.tables import trace_table
from bexplore.run.event_records import event_record, probe_record, trace_record
from bexplore.run.events import Traced
from bexplore.search.posterior.memory import EXPECTED_RATIO
from bexplore.search.space import MemoryAccount
from bexplore.trace.cost_model import Polynomial
from tests.builders import cost_model
from tests.unit.run.builders import make_run, probe

GIB = 2**30
BFLOAT16_JOB = """\
train_input: {batch_size: 24, micro_batch_size: explore}
model: {name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}
runconfig: {num_csx: 2}
explore: {device: cpu, precision: bfloat16, memory_budget: 1GiB}
"""


def test_each_device_has_the_account_that_its_limit_is_about():
    assert find_memory_account("cuda:1") is MemoryAccount.RESERVED
    assert find_memory_account("cpu") in (
        MemoryAccount.RESIDENT,
        MemoryAccount.TENSORS,
    )  # without /proc
    assert find_memory_account("mps") is MemoryAccount.TENSORS


def test_what_must_fit_is_the_reserved_memory_and_the_prediction_stands_beside_the_tensors():
    observation = Observation(
        probe=Probe(number=0, micro_batch_size=8, predicted_peak_memory_bytes=3 * GIB),
        outcome=Outcome.MEASURED,
        peak_memory_bytes=3 * GIB,
        resident_memory_bytes=4 * GIB,
        num_alloc_retries=2,
    )
    assert observation.needed_memory_bytes == 4 * GIB
    record = probe_record(observation)
    assert record["peak_memory_bytes"] == record["predicted_peak_memory_bytes"] == 3 * GIB
    assert (record["resident_memory_bytes"], record["num_alloc_retries"]) == (4 * GIB, 2)
    assert from_record(Observation, json.loads(json.dumps(to_record(observation)))) == observation


def test_the_budget_of_a_device_by_name_leaves_room_for_the_context():
    facts = describe_absent_memory(80 * GIB)
    budget = resolve_budget(ExploreSettings(), facts, num_replicas=1, gradient_bytes=None)
    margin = round(0.03 * 80 * GIB)
    assert budget.budget_bytes == pytest.approx(80 * GIB - CUDA_CONTEXT_BYTES - margin, abs=2)
    assert budget.warnings == ()


ONE_GIB_AND_ONE_A_SAMPLE = cost_model(Polynomial(GIB, GIB), device="cuda")


def test_a_trace_counts_with_what_the_allocator_will_reserve():
    budget = {"memory_budget_bytes": 64 * GIB, "why_budget": "of the test"}
    tensors, reserved = (
        trace_record(ONE_GIB_AND_ONE_A_SAMPLE, budget_bytes=64 * GIB, judged_by=account, micro_batch_sizes=(56, 57, 63))
        for account in (MemoryAccount.TENSORS, MemoryAccount.RESERVED)
    )
    assert tensors["max_micro_batch_size"] == 63
    assert reserved["max_micro_batch_size"] == int(64 / EXPECTED_RATIO) - 1 == 56
    assert tensors["peak_memory_bytes"] == reserved["peak_memory_bytes"]
    lines = [line.split() for line in trace_table(reserved | budget).splitlines()]
    assert [line[-1] for line in lines if line and line[0] in ("56", "57", "63")] == ["yes", "no", "no"]
    assert "reserve 1.105 times the peak" in trace_table(reserved | budget)
    assert "reserve" not in trace_table(tensors | budget)


@pytest.mark.parametrize(
    ("bounds", "budget", "told", "largest"),
    [
        ({}, 10, ["1", "2", "4", "8", "16"], 9),
        ({"maximum": 6}, 10, ["1", "2", "4", "6"], 6),
        ({"minimum": 3, "maximum": 6}, 10, ["3", "4", "6"], 6),
        ({"minimum": 12}, 10, ["12", "16"], None),
        ({"maximum": 6}, 10**12, ["1", "2", "4", "6"], 6),
    ],
)
def test_a_trace_tells_of_the_sizes_that_may_be_tried(bounds, budget, told, largest):
    facts = trace_record(ONE_GIB_AND_ONE_A_SAMPLE, budget_bytes=budget * GIB, **bounds)
    assert (list(facts["peak_memory_bytes"]), facts["max_micro_batch_size"]) == (told, largest)
    table = trace_table(facts | {"memory_budget_bytes": budget * GIB, "why_budget": ""})
    rows = {line.split()[0]: line.split()[-1] for line in table.splitlines() if line.endswith((" yes", " no"))}
    assert rows == {size: "yes" if largest and int(size) <= largest else "no" for size in told}


def test_the_event_of_a_step_that_was_not_traced_has_the_fields_of_one_that_was():
    traced, untraced = (
        event_record(Traced(record=record, reason="", memory_budget_bytes=GIB, why_budget=""))
        for record in (trace_record(ONE_GIB_AND_ONE_A_SAMPLE, budget_bytes=GIB), None)
    )
    assert list(untraced) == list(traced)
    assert (untraced["device"], untraced["bounds"], untraced["notes"]) == (None, None, [])


def test_the_largest_size_of_a_trace_is_the_largest_of_its_table_that_fits():
    facts = trace_record(ONE_GIB_AND_ONE_A_SAMPLE, budget_bytes=10**9 * 4 * GIB)
    assert facts["max_micro_batch_size"] == max(map(int, facts["peak_memory_bytes"])) == MAX_SAMPLES
    assert "(the largest that may be tried)" in trace_table(facts | {"memory_budget_bytes": 1, "why_budget": ""})


def test_a_trace_and_an_exploration_keep_the_same_free_for_replicas(tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    path.write_text(BFLOAT16_JOB)
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda *_, **__: ONE_GIB_AND_ONE_A_SAMPLE)
    config = load_config(path)
    facts = {"device": "cpu", "total_memory_bytes": None, "free_memory_bytes": None}

    traced = trace_module.trace_job(config, model_dir=str(tmp_path / "x"))[0]

    explored = JobExploration(config, ExploreOptions(model_dir=str(tmp_path / "x")))._budget(
        facts, ONE_GIB_AND_ONE_A_SAMPLE
    )
    assert "kept free for gradient buckets" in explored.why
    assert traced["memory_budget_bytes"] == explored.budget_bytes


def test_a_trace_keeps_to_the_bounds_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    path.write_text(BFLOAT16_JOB.replace("explore: {", "explore: {min: 3, max: 6, "))
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda *_, **__: ONE_GIB_AND_ONE_A_SAMPLE)
    config = load_config(path)
    budget = resolve_budget(config.settings, {"device": "cpu"}, num_replicas=1, gradient_bytes=None)

    traced = trace_module.trace_job(config, model_dir=str(tmp_path / "x"))[0]

    assert traced["bounds"] == [3, 6]
    exploration = JobExploration(config, ExploreOptions(model_dir=str(tmp_path / "x")))
    held = TracedJob(run=None, facts={}, budget=budget, cost_model=ONE_GIB_AND_ONE_A_SAMPLE)
    assert exploration._traced(held).record["bounds"] == [3, 6]


def test_gradients_are_as_wide_as_the_weights():
    job = Job(workload="decoder")
    of = {one: count_gradient_bytes(dataclasses.replace(job, precision=one), 10) for one in Precision}
    assert of.pop(Precision.BFLOAT16) == 20
    assert set(of.values()) == {40}
    assert count_gradient_bytes(dataclasses.replace(job, mode=Mode.EVAL), 10) is None


def test_a_report_shows_both_accounts(tmp_path):
    run = make_run(tmp_path)
    for size in (1, 2):
        run.journal.append(probe(10 + size, size, 30.0, resident_memory_bytes=3 * GIB))
    table = sizes_table(read_report_data(run))
    assert "3.00 GiB" in [row[table.headings.index("resident memory")] for row in table.rows]


@pytest.mark.parametrize("budget", ["auto", 0.8])
def test_a_device_without_an_account_of_its_memory_never_gets_the_hosts(budget):
    facts = {"device": "mps:0", "device_name": "", "free_memory_bytes": None, "total_memory_bytes": None}
    with pytest.raises(UserInputError, match="'mps:0' is not known") as error:
        resolve_budget(ExploreSettings(memory_budget=budget), facts, num_replicas=1, gradient_bytes=None)
    assert "explore.memory_budget" in error.value.hint
    given = resolve_budget(ExploreSettings(memory_budget="8GiB"), facts, num_replicas=1, gradient_bytes=None)
    assert (given.budget_bytes, given.warnings) == (8 * GIB, ())


HOST = {"device": "cpu", "free_memory_bytes": None, "total_memory_bytes": 64 * GIB}
GPU = {"device": "cuda:0", "free_memory_bytes": 79 * GIB, "total_memory_bytes": 80 * GIB}


def budget(
    facts=GPU,
    *,
    replicas: int = 1,
    gradients: int | None = None,
    host: int | None = None,
    of_rank: bool = False,
    here: int = 1,
    **settings,
):
    return resolve_budget(
        ExploreSettings(**settings),
        facts,
        num_replicas=replicas,
        gradient_bytes=gradients,
        host_available_bytes=host,
        is_traced_for_ranks=of_rank,
        num_ranks_here=here,
    )


def test_a_job_on_the_host_gets_a_share_of_what_is_available_less_the_overhead_of_torch():
    found = budget(HOST, host=10 * GIB)

    assert found.budget_bytes == int(HOST_SHARE * 10 * GIB) - HOST_OVERHEAD_BYTES
    assert found.why == "80% of 10.0 GiB available, less 1.50 GiB for torch"
    assert budget(HOST, host=GIB).budget_bytes == 0


@pytest.mark.parametrize("memory_budget", ["300MiB", "1GiB"])
def test_a_budget_that_is_smaller_than_what_is_kept_free_is_refused(memory_budget: str):
    with pytest.raises(UserInputError, match=r"leaves nothing to the job; 1.00 GiB kept free") as error:
        budget(memory_budget=memory_budget, replicas=2)
    assert "give more than 1.00 GiB, or set explore.replica_reserve" in error.value.hint
    assert budget(memory_budget=memory_budget).budget_bytes > 0  # one replica keeps nothing free
    assert budget(memory_budget=memory_budget, replicas=2, replica_reserve="10MiB").budget_bytes > 0


def test_a_device_keeps_a_margin_free_and_its_other_users_are_a_warning():
    assert (budget().budget_bytes, budget().warnings) == (79 * GIB - int(DEVICE_MARGIN_SHARE * 80 * GIB), ())
    shared = budget(GPU | {"free_memory_bytes": 60 * GIB})
    assert shared.warnings == ("20.0 GiB of the device's memory are used by other processes",)
    small = budget({"device": "cuda:0", "free_memory_bytes": 8 * GIB, "total_memory_bytes": 8 * GIB})
    assert small.budget_bytes == 8 * GIB - DEVICE_MARGIN_BYTES


def test_a_given_budget_is_taken_as_it_is_and_one_beyond_what_is_free_is_a_warning():
    given = budget(memory_budget="40GiB")
    assert (given.budget_bytes, given.why, given.warnings) == (40 * GIB, "set by explore.memory_budget", ())
    assert budget(memory_budget=0.5).budget_bytes == 40 * GIB
    beyond = budget(memory_budget="79.5GiB")
    assert beyond.budget_bytes == int(79.5 * GIB)
    assert beyond.warnings == ("the memory budget of 79.5 GiB is more than the 79.0 GiB that are free",)
    assert budget(HOST, host=GIB, memory_budget="2GiB").warnings[0].endswith("1.00 GiB that are free")


@pytest.mark.parametrize(
    ("facts", "replicas", "gradients", "reserve"),
    [
        (GPU, 1, GIB, 0),
        (GPU, 2, GIB, GIB + COLLECTIVES_BYTES),
        (GPU, 2, None, COLLECTIVES_BYTES),
        (HOST, 8, GIB, GIB),
    ],
)
def test_several_replicas_keep_a_copy_of_the_gradients_and_collectives_free(facts, replicas, gradients, reserve):
    alone, found = budget(facts, host=50 * GIB), budget(facts, replicas=replicas, gradients=gradients, host=50 * GIB)

    assert found.budget_bytes == alone.budget_bytes - reserve
    assert ("replicas" in found.why) is (reserve > 0)


def test_the_reserve_of_replicas_is_the_users_to_set_and_never_takes_more_than_there_is():
    alone = budget().budget_bytes
    assert budget(replicas=4, gradients=GIB, replica_reserve="3GiB").budget_bytes == alone - 3 * GIB
    assert budget(replicas=1, replica_reserve="3GiB").budget_bytes == alone - 3 * GIB
    assert budget(replicas=4, replica_reserve="99GiB").budget_bytes == 0


@pytest.mark.parametrize(
    ("facts", "replicas", "reserve", "kept"),
    [
        (GPU, 8, COLLECTIVES_BYTES, "; 1.00 GiB kept free for collectives"),
        (GPU, 1, COLLECTIVES_BYTES, "; 1.00 GiB kept free for collectives"),  # of tensor parallelism
        (HOST, 8, 0, ""),
    ],
)
def test_a_rank_whose_parallelism_is_traced_keeps_no_copy_of_the_gradients_free(facts, replicas, reserve, kept):
    alone = budget(facts, host=50 * GIB)
    found = budget(facts, replicas=replicas, gradients=GIB, host=50 * GIB, of_rank=True)

    assert found.budget_bytes == alone.budget_bytes - reserve
    assert found.why == f"{alone.why}{kept}; gradient buckets and shards of a rank are in its trace and its probes"


def test_the_users_own_reserve_goes_before_that_of_a_traced_rank():
    alone = budget().budget_bytes
    assert budget(of_rank=True, replicas=4, replica_reserve="3GiB").budget_bytes == alone - 3 * GIB
    none_kept = budget(of_rank=True, replicas=4, replica_reserve=0)
    assert none_kept.budget_bytes == alone
    assert "kept free" not in none_kept.why


def test_ranks_on_the_processors_of_one_host_share_its_memory():
    found = budget(HOST, host=50 * GIB, of_rank=True, here=4)

    assert found.budget_bytes == int(HOST_SHARE * 50 * GIB / 4) - HOST_OVERHEAD_BYTES
    assert found.why.startswith("80% of 50.0 GiB available, shared by 4 ranks, less")
    assert budget(of_rank=True, here=4).budget_bytes == budget(of_rank=True).budget_bytes  # each has a device


def test_an_exploration_of_ranks_reserves_no_gradients(tmp_path):
    facts = {"device": "cpu", "total_memory_bytes": None, "free_memory_bytes": None}
    why = {}
    for name, section in (("replicas", ""), ("ranks", "parallelism: {}, ")):
        path = tmp_path / f"{name}.yaml"
        path.write_text(BFLOAT16_JOB.replace("explore: {", "explore: {" + section))
        exploration = JobExploration(load_config(path), ExploreOptions(model_dir=str(tmp_path / "x")))
        why[name] = exploration._budget(facts, ONE_GIB_AND_ONE_A_SAMPLE).why
    assert {name for name, text in why.items() if "kept free" in text} == {"replicas"}
