"""One rank of N, traced without N devices: how the devices share a job, and what the events tell of it."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.actions import trace as trace_module
from bexplore.actions.trace import share_among_devices, trace_devices, trace_job
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.errors import EngineError, UserInputError
from bexplore.exploration.memory_budget import COLLECTIVES_BYTES
from bexplore.host.accelerators import DEVICES
from bexplore.job import Job
from bexplore.output.tables import compared_devices_table, devices_table, trace_table
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.cost_model import CostModel, KernelKind, Polynomial, TracedKernel
from tests.builders import cost_model

GIB = 2**30
PRODUCT = ((0, 128), (4096,), (4096,), (1,))  # 128 rows a sample
JOB = """\
train_input: {{batch_size: 24, micro_batch_size: explore}}
model: {{name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}}
{more}
explore: {{device: cpu, {explore}}}
"""


@pytest.fixture
def config(tmp_path):
    """Reads a job of the test's own settings."""

    def read(explore: str = "memory_budget: 10GiB", more: str = "") -> Config:
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(explore=explore, more=more))
        return load_config(path)

    return read


def of_rank(job: Job) -> CostModel:
    """A step of 16 GiB that ranks share, and of 1 GiB a sample that they do not."""
    shared = Polynomial(16 * GIB // job.parallelism.num_ranks, GIB)
    return cost_model(shared, num_parameters=1000, notes=("of the trace",))


@pytest.fixture
def traced(monkeypatch):
    """The jobs that were traced, each by `of_rank`."""
    jobs: list[Job] = []

    def trace(job, *_, **__):
        jobs.append(job)
        return of_rank(job)

    monkeypatch.setattr(trace_module, "recall_or_trace", trace)
    return jobs


def records(config, num_devices, tmp_path, **options):
    return trace_job(config, num_devices=num_devices, model_dir=str(tmp_path / "x"), **options)


def test_without_a_parallelism_each_device_has_a_whole_copy_and_a_note_says_so(config, traced, tmp_path):
    one, four = records(config(), (1, 4), tmp_path)
    assert [str(job.parallelism) for job in traced] == ["one device", "DDP over 4 ranks"]
    assert [job.num_replicas for job in traced] == [1, 4]
    assert one["notes"] == ["of the trace"]
    of_copies = "explore.parallelism is absent: each device has a whole copy (DistributedDataParallel)"
    assert four["notes"] == ["of the trace", of_copies]
    assert (four["event"], four["num_devices"]) == ("trace", 4)
    assert four["parallelism"]["data_parallel_replicate_degree"] == 4


@pytest.mark.parametrize(
    ("parallelism", "num_devices", "shared"),
    [
        ("{}", 64, "FSDP over 64 ranks"),
        ("{}", 1, "one device"),
        ("{tensor_parallel_degree: 8}", 64, "FSDP over 8 ranks, tensor parallel over 8"),
        ("{data_parallel_shard_degree: 8}", 64, "FSDP over 64 ranks"),
        ("{data_parallel_replicate_degree: 2, data_parallel_shard_degree: 4}", 64, "FSDP over 32 ranks, 2 copies"),
        ("{data_parallel_replicate_degree: 2}", 64, "DDP over 64 ranks"),
        ("{data_parallel_shard_degree: 1, tensor_parallel_degree: 4}", 4, "tensor parallel over 4"),
    ],
)
def test_the_outermost_degree_of_data_parallelism_takes_the_devices(config, parallelism, num_devices, shared):
    job = share_among_devices(config(f"parallelism: {parallelism}"), num_devices).job
    assert str(job.parallelism) == shared
    assert job.parallelism.num_ranks == num_devices
    assert job.num_replicas == job.parallelism.num_replicas


def test_the_batch_of_a_replica_stays_and_the_global_one_follows(config):
    shared = share_among_devices(config(more="runconfig: {num_csx: 2}"), 8)
    assert (shared.num_replicas, shared.batch_size, shared.replica_batch_size) == (8, 96, 12)


@pytest.mark.parametrize(
    ("parallelism", "num_devices", "hint"),
    [
        ("{tensor_parallel_degree: 4}", 6, "type 4 or 8"),
        ("{tensor_parallel_degree: 4}", 2, "type 4"),
        ("{data_parallel_shard_degree: 1, tensor_parallel_degree: 4}", 8, "or type 4"),
    ],
)
def test_devices_that_cannot_share_the_work_are_an_error_before_any_trace(
    config, traced, tmp_path, parallelism, num_devices, hint
):
    with pytest.raises(UserInputError) as error:
        records(config(f"parallelism: {parallelism}"), (4, num_devices), tmp_path)
    assert error.value.hint.endswith(hint)
    assert traced == []


def test_a_step_of_the_users_own_must_say_how_its_ranks_share_the_work(config):
    own = config()
    own = dataclasses.replace(own, job=dataclasses.replace(own.job, workload="imported", model={"step": "a:b"}))
    with pytest.raises(UserInputError, match="decides itself how its ranks share") as error:
        share_among_devices(own, 4)
    assert "explore.parallelism" in error.value.hint


def test_the_events_of_all_numbers_have_the_same_sizes_up_to_the_first_that_fits_nowhere(config, traced, tmp_path):
    told = records(config("memory_budget: 17GiB, parallelism: {}"), (1, 2, 16), tmp_path)
    assert [record["max_micro_batch_size"] for record in told] == [1, 9, 16]
    assert {tuple(record["peak_memory_bytes"]) for record in told} == {("1", "2", "4", "8", "16", "32")}


def test_the_table_marks_what_does_not_fit_and_tells_from_how_many_devices_on_a_size_does(config, traced, tmp_path):
    table = devices_table(records(config("memory_budget: 17GiB, parallelism: {}"), (1, 2, 16), tmp_path))
    rows = {line.split()[0]: line for line in table.splitlines() if line[:19].strip().isdecimal()}
    assert [line.split("  ")[-1] for line in rows.values()] == [
        "from 1 device on",
        "from 2 devices on",
        "from 2 devices on",
        "from 2 devices on",
        "from 16 devices on",
        "on none",
    ]
    assert [line.count("*") for line in rows.values()] == [0, 1, 1, 1, 2, 3]
    assert "largest that fits" in table
    assert "16: FSDP over 16 ranks" in table


def test_a_size_that_more_devices_do_not_hold_fits_from_none_of_the_fewer_on(config, traced, tmp_path):
    told = records(config("memory_budget: 17GiB, parallelism: {}"), (1, 2, 16), tmp_path)
    told[2]["peak_memory_bytes"]["2"] = 18 * GIB  # padding may cost more than sharding saves
    row = next(line for line in devices_table(told).splitlines() if line.split()[:1] == ["2"])
    assert row.endswith("on none")


def test_one_number_of_devices_is_told_as_a_trace_of_one_rank(config, traced, tmp_path):
    (record,) = records(config("memory_budget: 17GiB, parallelism: {}"), (16,), tmp_path)
    assert "one rank of 16: FSDP over 16 ranks" in trace_table(record)


def test_a_rank_keeps_no_copy_of_the_gradients_free_and_room_for_collectives_on_a_named_device(
    config, traced, tmp_path
):
    of_file = config("parallelism: {}")
    one, four = records(of_file, (1, 4), tmp_path, device_name="h100")
    assert one["memory_budget_bytes"] - four["memory_budget_bytes"] == COLLECTIVES_BYTES
    assert traced[0].device == "cuda:0"


def test_a_type_of_shards_is_not_in_force_where_nothing_is_sharded(config, traced, tmp_path):
    settings = "parallelism: {mixed_precision_param: bfloat16, data_parallel_shard_degree: 4}"
    one, four = records(config(settings), (1, 4), tmp_path)
    assert one["notes"][1:] == ["one device: nothing is sharded, so mixed_precision_param is not in force"]
    assert four["notes"] == ["of the trace"]


def test_each_trace_is_announced(config, traced, tmp_path):
    told = []
    records(config(), (1, 4), tmp_path, on_progress=told.append)
    assert told == [{"stage": "trace", "num_devices": 1}, {"stage": "trace", "num_devices": 4}]


@pytest.mark.parametrize("key", DEVICES)
def test_each_device_of_the_table_is_traced_as_itself_and_with_its_memory(config, monkeypatch, tmp_path, key):
    asked = []

    def trace(job, *_, gpu, **__):
        asked.append((job.device, gpu))
        return of_rank(job)

    monkeypatch.setattr(trace_module, "recall_or_trace", trace)
    (record,) = trace_job(config("compile: true"), device_name=key, model_dir=str(tmp_path / "x"))

    assert set(asked) == {("cuda:0", GpuProperties.from_device(DEVICES[key]))}
    assert 0.8 < record["memory_budget_bytes"] / DEVICES[key].total_memory_bytes < 1


def test_a_device_that_the_compiler_has_no_kernels_for_is_traced_eagerly_by_what_the_hint_says(
    config, monkeypatch, tmp_path
):
    reason = "InductorError: GPUTooOldForTriton: Found Tesla P100-PCIE-16GB which is too old"
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda *_, **__: reason)
    with pytest.raises(EngineError, match="GPUTooOldForTriton") as caught:
        trace_job(config("compile: true"), device_name="p100", model_dir=str(tmp_path / "x"))
    assert "set explore.compile: false" in caught.value.hint


EAGER = "memory_budget: 100GiB, compile: false"
KERNELS = (TracedKernel(kind=KernelKind.PRODUCT, sizes=tuple(Polynomial(*one) for one in PRODUCT), itemsize=2),)


def estimated(monkeypatch, config, *, device_name: str | None, explore: str = EAGER, **fields):
    model = cost_model(Polynomial(GIB, GIB), kernels=KERNELS, **fields)
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda *_, **__: model)
    return trace_job(config(explore), device_name=device_name)[0]


def test_a_named_device_has_an_estimate_that_says_it_did_not_run(config, monkeypatch):
    record = estimated(monkeypatch, config, device_name="h100")
    estimate = record["estimate"]
    assert list(estimate["pass_s"]) == list(record["peak_memory_bytes"])
    assert 64 <= estimate["micro_batch_size"] <= 89  # nearly the largest that fits: few rows fill no device
    assert estimate["relative_sd"] > 0.15
    table = trace_table(record)
    best = f"the fastest size that fits is {estimate['micro_batch_size']}."
    assert f"Estimated for NVIDIA H100 80GB HBM3, not run: {best}" in table
    assert "estimated samples/s" in table


@pytest.mark.parametrize(
    ("device_name", "explore"),
    [(None, EAGER), ("mi300x", EAGER), ("h100", "memory_budget: 100GiB")],
    ids=["this machine", "no figures", "the compiler's program for a processor"],
)
def test_what_the_model_does_not_know_has_no_estimate(config, monkeypatch, device_name, explore):
    record = estimated(monkeypatch, config, device_name=device_name, explore=explore)
    assert record["estimate"] is None
    assert "stimated" not in trace_table(record)


def test_devices_are_compared_by_what_a_million_samples_cost_on_each(config, monkeypatch):
    monkeypatch.setattr(
        trace_module, "recall_or_trace", lambda *_, **__: cost_model(Polynomial(GIB, GIB), kernels=KERNELS)
    )
    said = []
    prices = {"h100": 2.5, "l40s": 1.0}
    records = trace_devices(config(EAGER), ["h100", "a100", "l40s"], prices=prices, on_progress=said.append)

    h100, a100, l40s = (record["estimate"] for record in records)
    assert h100["cost_per_million_samples"] == pytest.approx(2.5 / 3600 / h100["samples_per_s"] * 1e6)
    assert a100["cost_per_million_samples"] is None
    assert [message["device_name"] for message in said] == ["h100", "a100", "l40s"]
    table = compared_devices_table(records)
    cheapest = "h100" if h100["cost_per_million_samples"] < l40s["cost_per_million_samples"] else "l40s"
    assert f"Cheapest by these prices: {cheapest} at size" in table
    assert "Estimated, not run" in table


def test_without_prices_devices_are_compared_by_speed_alone(config, monkeypatch):
    monkeypatch.setattr(
        trace_module, "recall_or_trace", lambda *_, **__: cost_model(Polynomial(GIB, GIB), kernels=KERNELS)
    )
    table = compared_devices_table(trace_devices(config(EAGER), ["h100", "a100"]))
    assert "cost" not in table and "Cheapest" not in table


def test_an_unknown_device_is_refused_before_any_is_traced(config, monkeypatch):
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda *_, **__: pytest.fail("traced"))
    with pytest.raises(UserInputError, match="h101"):
        trace_devices(config(EAGER), ["h100", "h101"])


def test_ranks_are_compared_with_what_they_exchange_on_each_device(config, monkeypatch):
    model = cost_model(Polynomial(GIB, GIB), kernels=KERNELS, num_parameters=10**9)
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda *_, **__: model)
    shared = config(f"{EAGER}, parallelism: {{data_parallel_shard_degree: 1, data_parallel_replicate_degree: 8}}")
    records = trace_devices(shared, ["h100", "l40s"])
    h100, l40s = (record["estimate"]["communication"] for record in records)
    assert h100["seconds"] < l40s["seconds"] / 5
    table = compared_devices_table(records)
    assert "Communication on h100: " in table and "Communication on l40s: " in table
    alone = trace_devices(config(EAGER), ["h100"])[0]["estimate"]
    assert alone["communication"] is None
    assert records[0]["estimate"]["samples_per_s"] < alone["samples_per_s"]
