"""Explorations of a device that is not here: times of a model, memory of a trace, and words that say so."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from bexplore.actions.apply import plan_edit
from bexplore.api import explore
from bexplore.config.load import load_config
from bexplore.errors import EngineError, UserInputError
from bexplore.estimate.dispatch import Dispatch
from bexplore.estimate.model import Bound, count_waves
from bexplore.exploration import job as job_module
from bexplore.exploration.base import ExploreOptions
from bexplore.exploration.emulated_speeds import TracedProgram
from bexplore.exploration.estimated import EstimateRunner, find_waves
from bexplore.guard.snapshot import find_guarded
from bexplore.host.accelerators import DEVICES
from bexplore.job import Job, Parallelism
from bexplore.measurement.probe import Outcome, Probe
from bexplore.output.report.files import ReportFile
from bexplore.output.summary import summary_text
from bexplore.planning.api import PlanSource, plan_from
from bexplore.planning.request import Amount, Devices, PlanRequest
from bexplore.planning.sources import read_costs
from bexplore.run.event_records import event_record
from bexplore.run.events import Recommended
from bexplore.run.result import RunResult
from bexplore.search.result import ProbeFinished
from bexplore.trace.cost_model import KernelKind, Polynomial, TracedKernel
from tests.builders import calibration, cost_model

GIB = 2**30
TEXT = """\
train_input: {batch_size: 48, micro_batch_size: explore}
model: {name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}
runconfig: {model_dir: m}
explore: {compile: false}
"""
PRODUCT = TracedKernel(
    kind=KernelKind.PRODUCT,
    sizes=(Polynomial(0, 1024), Polynomial(4096), Polynomial(4096), Polynomial(1)),
    itemsize=2,
    calls=24,
)
STREAM = TracedKernel(kind=KernelKind.STREAM, sizes=(Polynomial(2**20, 2**22), Polynomial()), calls=300)
TRACE = cost_model(
    Polynomial(8 * GIB, 2 * GIB),
    kernels=(PRODUCT, STREAM),
    model_flops=Polynomial(0, 24 * 2 * 1024 * 4096**2),
    hardware_flops=Polynomial(0, 24 * 2 * 1024 * 4096**2),
)


@pytest.fixture
def in_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_module, "trace_all", lambda *_arguments, **_given: [TRACE])
    Path("job.yaml").write_text(TEXT)


def config_of(device: str = "h100", *overrides: str):
    return load_config(Path("job.yaml"), overrides=[f"explore.device_name={device}", *overrides])


def events_of(device: str = "h100", *overrides: str) -> list:
    return list(explore(config_of(device, *overrides), ExploreOptions()))


def test_an_update_is_estimated_beside_the_passes_and_planned():
    update = (TracedKernel(kind=KernelKind.STREAM, sizes=(Polynomial(2**30), Polynomial())),)
    with_update, without = (
        runner_of(**fields)(Probe(number=0, micro_batch_size=8)) for fields in (dict(update_kernels=update), {})
    )
    assert with_update.update_time_s > 2**30 / 3.35e12  # bytes over the bandwidth
    assert with_update.pass_time_s == without.pass_time_s
    assert without.update_times_s == ()


def test_a_host_that_is_slower_than_the_kernels_makes_small_sizes_as_slow_as_each_other():
    waiting = runner_of(dispatches={Dispatch.OPERATOR: 1e4})
    one, two = (waiting.estimate(size, 0) for size in (1, 2))
    assert one.seconds == pytest.approx(two.seconds, rel=0.01)
    assert one.shares[Bound.HOST] > 0.5


def runner_of(budget_bytes: int = 75 * GIB, **fields) -> EstimateRunner:
    program = TracedProgram(job=Job(workload="decoder", model={}), cost_model=dataclasses.replace(TRACE, **fields))
    return EstimateRunner(DEVICES["h100"], [program], budget_bytes=budget_bytes, smallest=1)


def test_a_probe_is_answered_as_estimated_and_tells_no_measured_time():
    answer = runner_of()(Probe(number=0, micro_batch_size=8))

    record = event_record(ProbeFinished(observation=answer))
    assert answer.outcome is Outcome.ESTIMATED and answer.is_measured
    assert record["outcome"] == "estimated" and record["pass_times_s"] == []
    assert record["estimate"]["pass_s"] == pytest.approx(8 / record["samples_per_s"])
    assert record["estimate"]["device_name"] == "NVIDIA H100 80GB HBM3"
    assert sum(record["estimate"]["shares"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("size", "outcome"), [(28, "estimated"), (30, "out_of_memory"), (60, "out_of_memory")])
def test_a_size_fits_where_it_does_so_in_spite_of_the_error_of_the_trace(size, outcome):
    assert runner_of(relative_sd=0.0)(Probe(number=0, micro_batch_size=28)).outcome == "estimated"
    assert runner_of(relative_sd=0.01)(Probe(number=0, micro_batch_size=size)).outcome == outcome


def test_the_smallest_size_is_not_refused_for_the_error_of_the_trace_alone():
    probe = Probe(number=0, micro_batch_size=1)
    assert runner_of(round(11.5 * GIB), relative_sd=0.1)(probe).outcome == "estimated"
    assert runner_of(10 * GIB, relative_sd=0.1)(probe).outcome == "out_of_memory"


def test_a_trace_without_kernels_has_no_estimate():
    with pytest.raises(EngineError, match="its trace has no kernels"):
        runner_of(kernels=())(Probe(number=0, micro_batch_size=1))


def test_waves_name_the_sizes_that_fill_them():
    tall = dataclasses.replace(PRODUCT, sizes=(Polynomial(0, 128), *PRODUCT.sizes[1:]))
    waves = {size: count_waves(DEVICES["h100"], tall.at(size)) for size in range(1, 40)}
    size = next(size for size in waves if waves[size] > 1 and waves[size] / math.ceil(waves[size]) < 0.85)
    found = find_waves(DEVICES["h100"], [tall], size)

    assert found is not None and (found.num_multiprocessors, found.waves) == (132, waves[size])
    assert found.smaller is not None and found.larger is not None and found.smaller < size < found.larger
    assert waves[found.smaller] <= math.ceil(waves[size]) - 1 < waves[size] <= waves[found.larger]
    assert found.words(size) == (
        f"132 multiprocessors, {waves[size]:.2f} waves at {size}: {found.smaller} or {found.larger}"
    )


def test_a_size_that_fills_its_waves_gets_no_advice():
    found = find_waves(DEVICES["h100"], [PRODUCT], 1)
    assert found is not None and (found.smaller, found.larger) == (None, None)


def test_products_whose_tiles_do_not_grow_with_the_size_have_no_waves_to_fill():
    weights = dataclasses.replace(
        PRODUCT, sizes=(Polynomial(4096), Polynomial(4096), Polynomial(0, 1024), Polynomial(1))
    )
    assert find_waves(DEVICES["h100"], [weights, STREAM], 4) is None


def test_recommendations_are_streamed_and_all_that_is_told_says_estimated(in_folder):
    events = events_of()
    result = events[-1].result

    assert [event for event in events if isinstance(event, Recommended)]
    assert result.search.outcomes.get("measured") is None and result.search.outcomes["estimated"] >= 3
    assert RunResult.from_record(json.loads(json.dumps(result.as_record()))).estimate == result.estimate
    text = summary_text(result, tolerance=0.02, target_confidence=90)
    assert "It is estimated for NVIDIA H100 80GB HBM3, not run." in text
    assert "dominated by" in text and "run exactly as" not in text
    assert not any("not run" in one.finding for one in result.checks.bottlenecks)  # it has been said


def test_the_score_is_no_higher_than_the_error_of_the_model_allows(in_folder):
    result = events_of()[-1].result

    assert result.answer.confidence < 90
    low, high = result.answer.relative_performance_interval
    assert low < 0.9 * result.answer.relative_performance < 1.1 * result.answer.relative_performance < high


def test_the_report_of_an_estimate_says_so(in_folder):
    write = ReportFile(pytest.fail)
    events = events_of()
    for event in events:
        write(event)
    page = Path(events[-1].run.directory, "report.html").read_text()
    assert "estimated for NVIDIA H100 80GB HBM3, not run" in page
    assert "estimated samples/s" in page
    assert "estimated peak" in page
    assert not re.search(r"measured (peak|samples|[\d.,]+ samples)|measurements? of \d", page)
    assert "as wrong as" in page and "recorded sweeps" not in page  # how its score came about


def test_the_same_seed_gives_the_same_answer(in_folder):
    first, second = (list(explore(config_of(), ExploreOptions(fresh=True)))[-1].result for _ in range(2))
    assert first.answer == second.answer


def test_estimates_of_devices_of_emulated_ones_and_runs_are_never_one_study(in_folder):
    configs = [config_of("h100"), config_of("a100"), config_of("h100", "explore.emulate=true")]
    configs.append(load_config(Path("job.yaml")))
    from bexplore.run.fingerprint import Fingerprint

    names = {Fingerprint(config=one, folder_name="m").study_name() for one in configs}
    assert len(names) == len(configs)


def test_an_estimate_is_applied_where_its_device_is_named_and_nowhere_else(in_folder):
    size = events_of()[-1].result.micro_batch_size

    edit = plan_edit(config_of(), batch_size=None, choose=lambda choice: "keep")
    assert edit.estimated == "estimated for NVIDIA H100 80GB HBM3, not run"
    assert edit.answer.micro_batch_size == size or 48 % edit.answer.micro_batch_size == 0
    for other in (load_config(Path("job.yaml")), config_of("a100")):
        with pytest.raises(UserInputError, match="no finished run"):
            plan_edit(other)


def test_the_guard_takes_no_estimate_for_a_measured_size(in_folder):
    run = events_of()[-1].run
    config = load_config(Path("job.yaml"))
    assert find_guarded(config, None, run.directory.parent).recommended is None


def test_a_number_of_devices_must_be_that_of_the_job(in_folder):
    with pytest.raises(UserInputError, match="8 devices are named"):
        events_of("8xh100")


def test_a_job_that_cannot_be_traced_is_refused_with_what_to_do_instead(in_folder, monkeypatch):
    monkeypatch.setattr(job_module, "trace_all", lambda *_arguments, **_given: ["a graph break"])
    with pytest.raises(EngineError, match="cannot be traced, so that nothing can be estimated: a graph break") as error:
        events_of()
    assert "explore.emulate: true" in error.value.hint


def test_the_kernels_of_a_processor_are_its_own_and_it_has_no_waves():
    runner = runner_of()
    runner.device = calibration()
    told = runner(Probe(number=0, micro_batch_size=8)).details["estimate"]
    assert told["device_name"] == "a processor"
    assert (told["program"], told["mfu"], told["waves"]) == ("", None, None)
    assert told["relative_sd"] > runner.device.program_sd


RANKS = "explore.parallelism={data_parallel_shard_degree: 1, data_parallel_replicate_degree: 8}"
GRADIENTS = {"num_parameters": 2 * 10**9}


@pytest.fixture
def large_model(in_folder, monkeypatch):
    traced = dataclasses.replace(TRACE, **GRADIENTS)
    monkeypatch.setattr(job_module, "trace_all", lambda *_arguments, **_given: [traced])


def rank_runner(*, replica_batch_size: int | None = 8, network: float | None = None, **parallelism) -> EstimateRunner:
    job = Job(workload="decoder", model={}, parallelism=Parallelism(**parallelism))
    program = TracedProgram(job=job, cost_model=dataclasses.replace(TRACE, **GRADIENTS))
    return EstimateRunner(
        DEVICES["h100"],
        [program],
        budget_bytes=75 * GIB,
        smallest=1,
        replica_batch_size=replica_batch_size,
        network_bytes_per_s=network,
    )


def test_a_pass_of_several_ranks_holds_what_computation_does_not_hide():
    alone = rank_runner().estimate(8, 0)
    together = rank_runner(data_parallel_replicate_degree=8).estimate(8, 0)
    assert alone.exposed_s == 0.0 and alone.communication is None
    assert together.alone_s == pytest.approx(alone.seconds)
    assert together.exposed_s == pytest.approx(together.seconds - alone.seconds) and together.exposed_s > 0
    assert together.shares[Bound.COMMUNICATION] == pytest.approx(together.exposed_s / together.seconds)
    assert sum(together.shares.values()) == pytest.approx(1.0)


def test_more_passes_of_a_step_hide_a_reduction_that_is_made_once():
    exposed_s = [
        rank_runner(data_parallel_replicate_degree=8, replica_batch_size=batch).estimate(2, 0).exposed_s
        for batch in (2, 8, 32, None)
    ]
    assert exposed_s == sorted(exposed_s, reverse=True)
    assert exposed_s[0] == pytest.approx(4 * exposed_s[1]) and exposed_s[-1] == 0.0
    every = rank_runner(data_parallel_replicate_degree=8, gradient_sync="every", replica_batch_size=32)
    assert every.estimate(2, 0).exposed_s == pytest.approx(exposed_s[0])


def test_ranks_on_two_nodes_are_slower_over_a_slow_network():
    within, over_network = (
        rank_runner(data_parallel_replicate_degree=16, network=network).estimate(8, 0) for network in (None, 10e9)
    )
    assert over_network.exposed_s > 3 * within.exposed_s


def test_what_ranks_of_tensor_parallelism_exchange_is_waited_for_and_grows_with_the_size():
    exchanged = TracedKernel(kind=KernelKind.ALL_REDUCE, sizes=(Polynomial(0, 2**24),), itemsize=2, calls=96)
    runner = rank_runner(tensor_parallel_degree=8)
    runner.programs = [dataclasses.replace(one, cost_model=with_kernel(one, exchanged)) for one in runner.programs]
    small, large = (runner.estimate(size, 0).exposed_s for size in (1, 8))
    assert 0 < small < large < 8 * small


def with_kernel(program: TracedProgram, kernel: TracedKernel):
    return dataclasses.replace(program.cost_model, kernels=(*program.cost_model.kernels, kernel))


def test_the_answer_of_several_ranks_tells_what_they_exchange(large_model):
    events = events_of("h100", RANKS)
    result = events[-1].result
    told = result.estimate.communication
    assert 0 < told.exposed_s < told.seconds and told.is_complete
    text = summary_text(result, tolerance=0.02, target_confidence=90)
    assert "communication" in text and "exposed; NVLink at 371 GB/s, not timed" in text
    assert "8, none of which ran (DDP over 8 ranks)" in text
    assert "hold no communication" not in text
    ranks = result.parallel
    assert ranks.holds_communication and ranks.last_pass_s > ranks.inner_pass_s
    assert ranks.exposed_communication_s == pytest.approx(told.exposed_s, rel=0.01)
    alone = events_of()[-1].result
    assert alone.estimate.communication is None and alone.parallel is None


def test_exposed_communication_is_named_as_a_limit(large_model):
    result = events_of("l40s", RANKS, "train_input.batch_size=64", "explore.memory_budget=40GiB")[-1].result
    (limit,) = (one for one in result.checks.bottlenecks if one.kind == "communication")
    assert "communication is the limit" in limit.finding


def test_copies_that_no_section_names_are_counted_as_such(large_model):
    result = events_of("h100", "runconfig.num_csx=8")[-1].result
    assert result.estimate.communication is not None
    assert result.parallel.description == "DDP over 8 ranks"


def test_a_network_that_nobody_knows_is_named_and_one_that_is_told_is_taken(large_model):
    on_two_nodes = "explore.parallelism={data_parallel_shard_degree: 1, data_parallel_replicate_degree: 16}"
    unknown = events_of("h100", on_two_nodes)[-1].result
    assert [text for text in unknown.warnings if "explore.network_bandwidth" in text]
    told = events_of("h100", on_two_nodes, "explore.network_bandwidth=100Gbit/s")[-1].result
    assert not [text for text in told.warnings if "explore.network_bandwidth" in text]
    assert told.estimate.communication.seconds > 3 * unknown.estimate.communication.seconds


def test_estimates_over_other_networks_are_other_studies(in_folder):
    from bexplore.run.fingerprint import Fingerprint

    configs = [config_of(), config_of("h100", "explore.network_bandwidth=50GB/s")]
    configs.append(config_of("h100", "explore.network_bandwidth=400Gbit/s"))
    names = [Fingerprint(config=one, folder_name="m").study_name() for one in configs]
    assert names[0] != names[1] == names[2]


def test_a_plan_of_the_same_ranks_has_the_communication_of_the_estimate(large_model):
    run = events_of("h100", RANKS, "train_input.batch_size=64")[-1].run
    request = PlanRequest(batch_sizes=(Amount(number=64),), devices=(Devices(number=8),))
    (plan,) = plan_from(PlanSource(costs=read_costs(run)), request).plans
    estimated = {one.micro_batch_size: one.details["estimate"] for one in run.journal.read() if one.is_estimated}
    exposed_s = estimated[plan.micro_batch_size]["communication"]["exposed_s"]
    assert plan.communication_s == pytest.approx(plan.accumulation_steps * exposed_s, rel=0.02)
    assert "NVLink at 371 GB/s, not timed" in plan.network


def test_a_bandwidth_without_its_unit_is_refused(in_folder):
    with pytest.raises(UserInputError, match=r"explore\.network_bandwidth"):
        config_of("h100", "explore.network_bandwidth=50")
