from __future__ import annotations

import dataclasses
import json

import pytest

from bexplore.actions import trace as trace_module
from bexplore.errors import UserInputError
from bexplore.host.accelerators import DEVICES
from bexplore.host.records import from_record
from bexplore.job import Job, Parallelism
from bexplore.job.lengths import Lengths
from bexplore.measurement.probe import Compilation
from bexplore.planning.api import PlanSource, plan, plan_as_in_file, plan_from, read_source
from bexplore.planning.costs import find_peak
from bexplore.planning.network import FILE_NAME
from bexplore.planning.request import Amount, Devices, PlanRequest
from bexplore.planning.sources import read_costs, trace_costs
from tests.unit.config.builders import Folder, sections
from tests.unit.planning.builders import timed_network
from tests.unit.run.builders import make_run, probe

NETWORK = {2**20: 1e9, 2**30: 1e9}


def test_a_run_gives_what_it_measured_of_its_answer(tmp_path):
    costs = read_costs(make_run(tmp_path))
    assert costs.passes[8].seconds == pytest.approx(8 / 410)
    assert costs.passes[8].is_exact
    assert costs.update_s == pytest.approx(0.01)
    assert costs.model_flops == pytest.approx(1e12)
    assert costs.peak_flops_per_s == pytest.approx(989e12)
    assert (costs.micro_batch_size, costs.tokens_per_sample) == (8, 128)


def test_sizes_of_the_searchs_program_are_scaled_to_the_trainings(tmp_path):
    costs = read_costs(make_run(tmp_path))
    assert costs.passes[1].seconds == pytest.approx(1 / 100 * 400 / 410)
    assert not costs.passes[1].is_exact


def test_sizes_that_did_not_run_are_none_of_a_plan(tmp_path):
    assert sorted(read_costs(make_run(tmp_path)).passes) == [1, 8]


@pytest.mark.parametrize(("passes_per_step", "batch_size"), [(8, 64), (None, None)])
def test_a_command_that_makes_its_batch_of_the_size_is_planned_with_that_batch(tmp_path, passes_per_step, batch_size):
    run = make_run(tmp_path)
    path = run.directory / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"passes_per_step": passes_per_step}))

    assert read_costs(run).batch_size == batch_size


@pytest.mark.parametrize("outcome", ["measured", "estimated"])
def test_passes_of_a_command_are_measured_where_they_ran(tmp_path, outcome):
    run = make_run(tmp_path)
    meta = run.meta()
    (run.directory / "meta.json").write_text(json.dumps(meta | {"job": meta["job"] | {"workload": "command"}}))
    journal = run.directory / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    estimate = {"estimate": {"device_name": "H100", "relative_sd": 0.1}}
    told = [
        line | {"outcome": outcome, "details": line["details"] | estimate} if "outcome" in line else line
        for line in lines
    ]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in told))

    (one,) = plan_from(PlanSource(costs=read_costs(run)), PlanRequest(batch_sizes=(Amount(number=16),))).plans

    assert one.basis[0].startswith(f"passes of size 8: {outcome}")
    assert one.is_measured == (outcome == "measured")


def test_an_unfinished_run_is_refused_with_the_command_that_finishes_it(tmp_path):
    with pytest.raises(UserInputError) as error:
        read_costs(make_run(tmp_path, finished=False))
    assert "bexplore explore job.yaml" in error.value.hint


def test_a_run_of_float32_has_no_utilization(tmp_path):
    run = make_run(tmp_path)
    meta = run.meta()
    (run.directory / "meta.json").write_text(json.dumps(meta | {"job": {**meta["job"], "precision": "float32"}}))
    assert read_costs(run).peak_flops_per_s is None


def test_passes_of_all_ranks_hold_their_communication(tmp_path):
    run = make_run(tmp_path)
    meta = run.meta()
    job = dataclasses.replace(from_record(Job, meta["job"]), parallelism=Parallelism(data_parallel_replicate_degree=2))
    (run.directory / "meta.json").write_text(json.dumps(meta | {"job": job.as_record(), "batch_size": 64}))
    ranks = [{"rank": rank, "host": "a"} for rank in (0, 1)]
    timed = {"ranks": ranks, "pass_times_by_kind_s": [[0.02, 0.03]] * 3, "accumulation_steps": 4}
    run.journal.append(probe(4, 8, 400.0, Compilation.EXACT, details={"parallel": timed}))
    costs = read_costs(run)
    assert costs.holds_communication
    assert (costs.passes[8].seconds, costs.passes[8].last_s) == (0.02, 0.03)


def ranks_together(tmp_path, parallelism: Parallelism, *, alone_s: float | None = None, **timed):
    """A run of two ranks whose answer took 0.04 s a pass in the mean of a step, and one rank alone `alone_s`."""
    run = make_run(tmp_path)
    meta = run.meta()
    job = dataclasses.replace(from_record(Job, meta["job"]), parallelism=parallelism)
    (run.directory / "meta.json").write_text(json.dumps(meta | {"job": job.as_record(), "batch_size": 64}))
    ranks = {"ranks": [{"rank": rank, "host": "a"} for rank in (0, 1)]}
    alone = {} if alone_s is None else {"one_rank_pass_s": alone_s}
    (run.directory / "journal.jsonl").unlink()
    run.journal.append(probe(4, 8, 200.0, Compilation.SHARED, details={"parallel": ranks | alone}))
    run.journal.append(probe(5, 8, 200.0, Compilation.EXACT, details={"parallel": ranks | timed}))
    return read_costs(run)


EVERY = Parallelism(data_parallel_replicate_degree=2, gradient_sync="every")
LAST = Parallelism(data_parallel_replicate_degree=2)
SHARDED = Parallelism(data_parallel_shard_degree=2)
KINDS = {"pass_times_by_kind_s": [[0.036, 0.052]] * 3, "accumulation_steps": 4}


def test_passes_that_all_reduce_hold_what_one_rank_alone_does_not_take(tmp_path):
    cost = ranks_together(tmp_path, EVERY, alone_s=0.03).passes[8]
    assert (cost.seconds, cost.last_s) == (pytest.approx(0.04), pytest.approx(0.04))
    assert cost.exposed_s == pytest.approx(0.01)


def test_communication_that_no_rank_ran_without_is_unknown(tmp_path):
    assert ranks_together(tmp_path, EVERY).passes[8].exposed_s is None


def test_the_one_pass_of_a_step_reduces_and_others_would_not(tmp_path):
    one_pass = {"pass_times_by_kind_s": [[0.04, 0.04]] * 3, "accumulation_steps": 1}
    cost = ranks_together(tmp_path, LAST, alone_s=0.03, **one_pass).passes[8]
    assert (cost.seconds, cost.last_s, cost.exposed_s) == (pytest.approx(0.03), pytest.approx(0.04), 0.0)


def test_the_one_pass_of_a_step_of_shards_gathers_too(tmp_path):
    one_pass = {"pass_times_by_kind_s": [[0.04, 0.04]] * 3, "accumulation_steps": 1}
    cost = ranks_together(tmp_path, SHARDED, alone_s=0.03, **one_pass).passes[8]
    assert cost.exposed_s == pytest.approx(0.01 * 2 / 3)  # two gathers, and one scatter of as many bytes
    assert cost.seconds == pytest.approx(0.04 - 0.01 / 3)


def test_passes_of_shards_that_differ_hold_their_gathers(tmp_path):
    cost = ranks_together(tmp_path, SHARDED, alone_s=0.03, **KINDS).passes[8]
    assert (cost.seconds, cost.last_s) == (pytest.approx(0.036), pytest.approx(0.052))
    assert cost.exposed_s == pytest.approx(0.01 - 0.016 / 4)


def test_passes_of_replicas_that_differ_exchange_nothing_before_the_last(tmp_path):
    assert ranks_together(tmp_path, LAST, **KINDS).passes[8].exposed_s == 0.0


def test_the_hosts_of_ranks_that_ran_together_are_counted(tmp_path):
    assert ranks_together(tmp_path / "a", LAST, **KINDS).num_hosts == 1
    assert read_costs(make_run(tmp_path / "b")).num_hosts is None


def test_sizes_that_did_not_run_have_the_speed_that_the_search_predicts(tmp_path):
    costs = read_costs(make_run(tmp_path))
    assert costs.find_cost(4).is_predicted
    assert costs.find_cost(4).seconds == pytest.approx(4 / 280 * (405 / 410))  # scaled to the answer that was verified
    assert costs.find_cost(13) is None  # it ran out of memory
    assert costs.find_cost(64) is None


def test_a_network_that_was_timed_beside_a_run_is_read_with_it(tmp_path):
    run = make_run(tmp_path)
    network = dataclasses.asdict(timed_network(NETWORK))
    (run.directory / FILE_NAME).write_text(json.dumps(network))
    assert read_source(run).network_path == run.directory / FILE_NAME
    request = PlanRequest(devices=(Devices(number=2),), batch_sizes=())
    meta = run.meta() | {"batch_size": 64}
    (run.directory / "meta.json").write_text(json.dumps(meta))
    found = plan(tmp_path, request).plans[0]
    assert found.communication_s is not None
    assert "gloo between 2 ranks" in "".join(found.basis)


def test_samples_of_many_lengths_have_no_utilization(tmp_path):
    run = make_run(tmp_path)
    meta = run.meta()
    job = dataclasses.replace(from_record(Job, meta["job"]), lengths=Lengths.from_samples([16, 64, 128]))
    (run.directory / "meta.json").write_text(json.dumps(meta | {"job": job.as_record()}))
    costs = read_costs(run)
    assert (costs.model_flops, costs.hardware_flops) == (None, None)
    assert costs.tokens_per_sample == pytest.approx((16 + 64 + 128) / 3)


def test_a_device_by_name_is_refused_for_a_run(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(UserInputError, match='`device_name` "h100"') as error:
        plan(run.directory, device_name="h100")
    assert "leave it out" in error.value.hint


@pytest.mark.parametrize("bytes_per_s", [0, -1.0, float("nan"), float("inf")])
def test_a_bandwidth_that_moves_nothing_is_refused(tmp_path, bytes_per_s):
    with pytest.raises(UserInputError, match="must be above 0"):
        plan(make_run(tmp_path).directory, PlanRequest(), network=bytes_per_s)


def test_the_plan_of_a_file_without_a_batch_size_is_none(tmp_path):
    assert plan_as_in_file(make_run(tmp_path)) is None


def record(**fields):
    """A trace of a job that fits up to 16 samples."""
    given = {
        "device": "cpu",
        "device_name": "",
        "num_parameters": 1000,
        "num_blocks": 0,
        "flops_per_sample": 1e9,
        "hardware_flops_per_sample": 2e9,
        "max_micro_batch_size": 16,
        "notes": (),
        "settings": {"precision": "float32", "activation_checkpointing": "none"},
        "operations_over_file": 1.0,
    }
    return given | fields


@pytest.fixture
def costs(tmp_path, monkeypatch):
    """Costs of a file by the traces that a test makes up."""

    def of(*records):
        explore = {"settings": {"activation_checkpointing": ["none", "full"]}}
        config = Folder(tmp_path).load(sections(explore=explore))
        monkeypatch.setattr(trace_module, "trace_job", lambda *_, **__: list(records))
        return trace_costs(config, device_name="h100", model_dir=None)

    return of


def test_settings_of_another_precision_are_left_out(costs):
    other = record(settings={"precision": "bfloat16", "activation_checkpointing": "none"})
    more = record(settings={"precision": "float32", "activation_checkpointing": "full"}, operations_over_file=1.3)
    found = costs(record(), other, more)
    assert [one.time_share for one in found.other_settings] == [1.3]
    assert "settings of another precision are left out" in " ".join(found.notes)
    assert "precision" not in " ".join(costs(record(), more).notes)


def test_a_job_of_which_no_sample_fits_says_so(costs):
    assert "not even one sample fits" in " ".join(costs(record(max_micro_batch_size=None)).notes)
    assert costs(record()).notes == ()


@pytest.mark.parametrize("key", DEVICES)
def test_a_plan_has_the_name_and_the_peak_of_each_device_of_the_table(tmp_path, monkeypatch, key):
    config = Folder(tmp_path).load(sections(explore={"precision": "bfloat16"}))
    monkeypatch.setattr(trace_module, "trace_job", lambda *_, **__: [record()])
    found = trace_costs(config, device_name=key, model_dir=None)

    assert found.device_name == DEVICES[key].name
    assert found.peak_flops_per_s == find_peak(config.job, DEVICES[key].bfloat16_flops_per_s)


ESTIMATE = {
    "device_name": "NVIDIA H100 80GB HBM3",
    "replica_s": {"1": 0.01, "4": 0.02, "16": 0.05, "32": 0.1},
    "update_s": 0.004,
    "relative_sd": 0.2,
    "micro_batch_size": 16,
    "samples_per_s": 320.0,
}
ESTIMATED = record(estimate=ESTIMATE, peak_memory_bytes=dict.fromkeys(ESTIMATE["replica_s"], 2**30))
ESTIMATED["memory_budget_bytes"] = 2**36


def test_estimated_passes_are_planned_and_told_as_such(costs):
    found = costs(ESTIMATED)

    (one,) = plan_from(PlanSource(costs=found), PlanRequest(batch_sizes=(Amount(number=64),))).plans
    assert one.micro_batch_size == 16 and one.step_time_s == pytest.approx(2 * 0.05 + 0.004, rel=1e-3)  # two replicas
    assert one.basis[0] == "passes of size 16: estimated, not run"
    assert "estimated for NVIDIA H100 80GB HBM3, not run, to within 40%" in " ".join(found.notes)
    assert 32 not in found.passes  # it does not fit


def test_a_stated_speed_goes_before_an_estimated_one(costs):
    request = PlanRequest(batch_sizes=(Amount(number=64),), rate=Amount(number=100.0))
    (one,) = plan_from(PlanSource(costs=costs(ESTIMATED)), request).plans
    assert one.step_time_s == pytest.approx(64 / 100.0 / 2)
