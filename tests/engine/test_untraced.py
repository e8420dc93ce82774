"""Jobs that cannot be traced: memory and operations come from a few real steps, and the words say so."""

from __future__ import annotations

import json

import pytest

from bexplore import load_config
from bexplore.actions.trace import trace_job
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.exploration.untraced import measure_untraced
from bexplore.measurement.probe import Probe
from bexplore.output.tables import devices_table, trace_table
from bexplore.planning.sources import trace_costs
from tests.builders import JOBS

REASON = "a branch depends on the data"


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path / "cache"))

    def write(model: str, request: str = "explore", optimizer: str = "AdamW"):
        workload = {"model": f"untraceable:{model}", "batch": "untraceable:samples", "loss": "untraceable:loss"}
        document = {
            "train_input": {"batch_size": 1024, "micro_batch_size": request},
            "runconfig": {"num_csx": 1, "model_dir": str(tmp_path / "runs")},
            "optimizer": {"optimizer_type": optimizer, "learning_rate": 0.001},
            "explore": {"device": "cpu", "compile": False, "workload": workload, "memory_budget": "1GiB"},
        }
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(document))
        (tmp_path / "untraceable.py").write_text((JOBS / "untraceable.py").read_text())
        return load_config(path)

    return write


@pytest.mark.parametrize(
    ("model", "sizes"), [("Updating", (1, 2, 4)), ("Normalizing", (2, 4, 8)), ("Comparing", (2, 4, 8))]
)
def test_steps_at_small_sizes_tell_the_memory_of_large_ones(config_of, tmp_path, model, sizes):
    config = config_of(model)
    measured = measure_untraced(config, REASON, tmp_path)
    assert measured.measured_at == sizes
    job = config.on_device("cpu").job
    with EngineRunner(RunnerSettings(job=job, run_dir=tmp_path)) as runner:
        large = runner(Probe(number=0, micro_batch_size=512, max_passes=1))
    assert measured.peak_memory_bytes(512) == pytest.approx(large.peak_memory_bytes, rel=0.01)


# DistributedDataParallel itself refuses a sparse buffer.
@pytest.mark.parametrize(
    ("model", "optimizer", "num_devices"), [("SparseTable", "SGD", [1, 2]), ("SparseGraph", "AdamW", [1])]
)
def test_sparse_tensors_are_measured_and_said_to_be(config_of, model, optimizer, num_devices):
    config = config_of(model, optimizer=optimizer)
    record, *_ = trace_job(config)
    assert "sparse tensors (torch.sparse_coo)" in record["why_untraced"]
    assert record["measured_at"]
    assert "sparse tensors" in devices_table(trace_job(config, num_devices=num_devices))
    assert "sparse tensors" in trace_costs(config, device_name=None, model_dir=None).origin


def test_a_job_without_a_trace_has_tables_and_plans_that_say_so(config_of):
    config = config_of("OfNumpy")
    (record,) = trace_job(config)
    assert record["measured_at"] == [1, 2, 4]
    assert "untraceable.py:" in record["why_untraced"]
    words = f"steps measured at 1, 2 and 4, not traced: {record['why_untraced']}"
    assert words in trace_table(record)
    assert 8192 < record["max_micro_batch_size"] < 65_536
    (again,) = trace_job(config)
    assert (again["remembered_from"] is not None, again["why_untraced"]) == (True, record["why_untraced"])
    assert words in trace_costs(config, device_name=None, model_dir=None).origin
    assert words in devices_table(trace_job(config, num_devices=[1, 2]))
