"""Private interfaces of the PyTorch that runs: they are there, and an exploration does without some."""

from __future__ import annotations

import pytest
import torch

from bexplore.engine.protocol.messages import SharedMode
from bexplore.engine.worker import compilation, torch_private
from bexplore.host.torch_interfaces import PRIVATE_INTERFACES, find_interface, is_checked, missing_interfaces
from bexplore.workloads import build
from bexplore.workloads.torch_private import make_chunks_on_demand
from tests.builders import imported_job


def remove(monkeypatch, name: str) -> None:
    owner, _, attribute = name.rpartition(".")
    monkeypatch.delattr(find_interface(owner), attribute)


def test_the_suite_runs_with_a_version_that_is_listed_and_has_each_interface():
    assert is_checked(torch.__version__)
    assert list(missing_interfaces()) == []


@pytest.mark.parametrize("name", [name for names in PRIVATE_INTERFACES.values() for name in names[:1]])
def test_what_is_missing_is_told_by_what_is_lost(monkeypatch, name):
    remove(monkeypatch, name)
    assert name in [missing for _, missing in missing_interfaces()]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("torch.nn.functional._verify_batch_size", torch_private.check_batch_statistics_at_run_time),
        ("torch._inductor.graph.GraphLowering.decide_layout_opt", torch_private.choose_layout_as_for_a_number),
        ("torch._inductor.graph.has_free_symbols", torch_private.choose_layout_as_for_a_number),
        ("torch._inductor.codecache.CppPythonBindingsCodeCache.load_pybinding", compilation._compile_nothing),
        (
            "torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty",
            lambda: make_chunks_on_demand().__enter__(),
        ),
    ],
)
def test_an_exploration_does_without(monkeypatch, name, use):
    remove(monkeypatch, name)
    use()


def test_where_no_size_can_be_unknown_to_the_compiler_it_is_symbolic(monkeypatch):
    workload = build(imported_job())
    assert compilation.feasible_mode(workload, SharedMode.NESTED, []) is SharedMode.UNBACKED
    monkeypatch.setattr(torch_private, "CAN_MARK_UNBACKED", False)
    assert compilation.feasible_mode(workload, SharedMode.NESTED, []) is SharedMode.DYNAMIC
