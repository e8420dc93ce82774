"""The job's device: its name and index, its memory, its lock and its neighbours; no GPU is needed for any of it."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bexplore.actions import trace as trace_module
from bexplore.config.load import load_config
from bexplore.engine.protocol.messages import Done, Trace
from bexplore.engine.worker import device as worker_device
from bexplore.engine.worker import steps
from bexplore.engine.worker.context import ALONE
from bexplore.engine.worker.device import await_memory, bound_memory, device_info, is_nearly_full, resolve_device
from bexplore.engine.worker.server import Server
from bexplore.errors import UserInputError
from bexplore.exploration import job as exploration
from bexplore.exploration import variants
from tests.builders import imported_job
from tests.unit.run.builders import cost_model

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
UUID = "1e6a2c1d-5a51-7a33-9d0c-6a1f0c6b2f1e"
FACTS = {"device": "cuda:0", "device_name": H100, "uuid": UUID, "pci_bus_id": "00000000:1b:00.0"}


class FakeCuda:
    """Two devices of an imaginary host, the second of which is the current one at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.free_bytes, self.allowed, self.reserved_bytes = 1, [60 * GIB], 1.0, 0
        self.synchronized: list[torch.device] = []
        properties = SimpleNamespace(
            major=9, minor=0, multi_processor_count=132, uuid=UUID, total_memory=80 * GIB,
            pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0,
        )  # fmt: skip
        for name, fake in {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "current_device": lambda: self.current,
            "set_device": lambda device: setattr(self, "current", device.index),
            "get_device_name": lambda device: H100,
            "get_device_properties": lambda device: properties,
            "mem_get_info": lambda device: (self._next_free(), 80 * GIB),
            "memory_reserved": lambda device: self.reserved_bytes,
            "get_per_process_memory_fraction": lambda device: self.allowed,
            "synchronize": self.synchronized.append,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch, "empty", lambda *shape, device: None)

    def _next_free(self) -> int:
        return self.free_bytes.pop(0) if len(self.free_bytes) > 1 else self.free_bytes[0]


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


@pytest.mark.parametrize(
    ("name", "device"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu"), ("cpu:0", "cpu")]
)
def test_a_name_means_a_device_with_its_index(cuda, name, device):
    assert device_info(name)["device"] == device


def test_the_budget_of_the_device_that_auto_means_can_be_enforced(cuda, monkeypatch):
    enforced = []
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda share, index: enforced.append((share, index)), raising=False
    )
    bound_memory(torch.device(device_info("auto")["device"]), 20 * GIB)
    assert enforced == [(0.25, 1)]


def test_a_trace_on_a_device_that_is_here_leaves_its_memory_to_others(cuda, monkeypatch):
    bounds = []
    monkeypatch.setattr(worker_device, "bound_memory", lambda device, limit_bytes: bounds.append((device, limit_bytes)))
    monkeypatch.setattr("bexplore.trace.tracer.trace_job", lambda job, why_cpu: cost_model())
    request = Trace(job=imported_job(device="cuda:1"), why_not="torch 2.11")
    assert isinstance(Server(lambda **report: None, ALONE).answer(request), Done)
    assert bounds == [(torch.device("cuda:1"), 256 * 2**20)]


def test_an_absent_device_is_the_users_input_with_what_torch_sees(cuda):
    for name in ("cuda:77", "gpu", "meta", "mps"):
        with pytest.raises(UserInputError, match=rf"'{name}' cannot be used: torch sees cuda:0 \({H100}\), cuda:1"):
            resolve_device(name)


def test_without_an_accelerator_the_error_says_that_there_is_none(monkeypatch):
    monkeypatch.setattr(worker_device, "_accelerator", lambda: None)
    for name in ("cuda", "cuda:77", "gpu"):
        with pytest.raises(UserInputError, match="sees no accelerator; it sees: cpu") as error:
            resolve_device(name)
        assert "explore.device" in error.value.hint


def test_facts_hold_what_others_ask_about_the_device(cuda):
    facts = device_info("cuda:0")

    assert {key: facts[key] for key in FACTS} == FACTS
    assert (facts["free_memory_bytes"], facts["total_memory_bytes"], facts["capability"]) == (60 * GIB, 80 * GIB, "9.0")


def test_a_worker_first_makes_the_jobs_device_the_current_one(cuda, monkeypatch):
    seen = []
    monkeypatch.setattr(worker_device, "bound_memory", lambda *arguments: None)
    monkeypatch.setattr("bexplore.trace.tracer.trace_job", lambda job, why_cpu: seen.append(cuda.current))
    server = Server(lambda **report: None, ALONE)

    server.answer(Trace(job=imported_job(device="cuda:0")))
    server.answer(Trace(job=imported_job(device="cuda:5")))  # not here: the CPU stands in
    assert seen == [0, 0]
    device_info("cuda:1")
    assert cuda.current == 1


def test_the_device_that_is_waited_for_is_the_jobs_own(cuda):
    steps.synchronize(torch.device("cuda:0"))
    assert cuda.synchronized == [torch.device("cuda:0")]


@pytest.mark.parametrize(
    ("free_bytes", "allowed", "reserved_bytes", "is_full"),
    [(60 * GIB, 1.0, 0, False), (GIB // 2, 1.0, 0, True), (60 * GIB, 0.25, 20 * GIB, True)],
    ids=["empty", "no memory left", "its share used up"],
)
def test_a_device_is_full_where_it_or_the_jobs_share_of_it_is_used_up(
    cuda, free_bytes, allowed, reserved_bytes, is_full
):
    cuda.free_bytes, cuda.allowed, cuda.reserved_bytes = [free_bytes], allowed, reserved_bytes
    assert is_nearly_full(torch.device("cuda:0")) is is_full


def test_a_broken_device_answers_nothing_and_so_is_not_full(cuda, monkeypatch):
    def broken(device):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert not is_nearly_full(torch.device("cuda:0"))


def test_a_worker_begins_when_the_memory_is_back_that_another_held(cuda, monkeypatch):
    waits = []
    monkeypatch.setattr(worker_device.time, "sleep", waits.append)
    cuda.free_bytes = [10 * GIB, 40 * GIB, 60 * GIB]

    assert await_memory(torch.device("cuda:0"), 60 * GIB) is None
    assert len(waits) == 2


def test_memory_that_does_not_come_back_is_waited_for_only_so_long(cuda, monkeypatch):
    clock = itertools.count(0.0, 5.0)
    monkeypatch.setattr(
        worker_device, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    )
    cuda.free_bytes = [40 * GIB]

    assert await_memory(torch.device("cuda:0"), 60 * GIB) == 40 * GIB
    assert await_memory(torch.device("cpu"), 60 * GIB) is None


CONFIG = """\
train_input: {{batch_size: 8, micro_batch_size: explore}}
explore:
  device: {device}
  workload: {{model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"}}
"""


@pytest.fixture
def config_on(tmp_path: Path):
    def load(device: str):
        path = tmp_path / "job.yaml"
        path.write_text(CONFIG.format(device=device))
        return load_config(path)

    return load


@pytest.mark.parametrize(("named", "device"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0")])
def test_on_an_accelerator_the_memory_is_asked_for_before_the_trace_begins(config_on, monkeypatch, named, device):
    order = []
    facts = {"device": device, "device_name": H100}
    workers = SimpleNamespace(device_info=lambda device, **_: order.append("facts") or facts)
    monkeypatch.setattr(
        variants,
        "recall_or_trace",
        lambda job, *_, **names: order.append(job.device) or "no",
    )
    explored = exploration.JobExploration(config_on(named), exploration.ExploreOptions())
    monkeypatch.setattr(explored, "_begin", lambda *arguments: None)

    explored._traced_device(workers, SimpleNamespace(directory=None))

    assert order == ["facts", device]


def test_on_the_cpu_the_trace_does_not_wait_for_the_worker(config_on, monkeypatch):
    traced = threading.Event()
    facts = {"device": "cpu", "device_name": ""}
    workers = SimpleNamespace(device_info=lambda device, **_: facts | {"waited": traced.wait(30)})
    monkeypatch.setattr(variants, "recall_or_trace", lambda *_, **names: traced.set() or "no")
    explored = exploration.JobExploration(config_on("cpu"), exploration.ExploreOptions())
    monkeypatch.setattr(explored, "_begin", lambda *arguments: None)

    assert explored._traced_device(workers, SimpleNamespace(directory=None))[1]["waited"]


def test_a_trace_is_for_the_device_that_a_worker_finds(config_on, monkeypatch, tmp_path):
    seen = {}
    free = {"free_memory_bytes": 60 * GIB, "total_memory_bytes": 80 * GIB}
    monkeypatch.setattr(trace_module, "torch_is_for_cpu", lambda: False)
    monkeypatch.setattr(trace_module.Workers, "device_info", lambda *_, **names: FACTS | free)
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda job, *_, **names: seen.update(job=job) or cost_model())

    record = trace_module.trace_job(config_on("auto"), model_dir=str(tmp_path))[0]

    assert seen["job"].device == "cuda:0"
    assert "60.0 GiB free on the device" in record["why_budget"]


def test_one_trace_for_a_device_that_is_not_here_asks_for_its_memory(config_on, monkeypatch, tmp_path):
    def unseen(*_, **names):
        raise UserInputError("device 'cuda' cannot be used")

    monkeypatch.setattr(trace_module.Workers, "device_info", unseen)
    monkeypatch.setattr(trace_module, "recall_or_trace", lambda job, *_, **names: cost_model())

    def trace(**options):
        return trace_module.trace_job(config_on("cuda"), model_dir=str(tmp_path), **options)[0]

    with pytest.raises(UserInputError, match="memory of device 'cuda' is not known"):
        trace()
    assert trace(device_name="h100")["memory_budget_bytes"] > 70 * GIB
