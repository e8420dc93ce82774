"""Which worker runs which probe."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bexplore.engine.process.pool import Worker, is_worth_keeping, may_go_on, must_replace
from bexplore.engine.protocol.messages import Done, Failed, SharedMode
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import observed


def worker(compilation=Compilation.SHARED, size: int | None = 4, *, is_alive=True, has_headroom=True) -> Worker:
    process = SimpleNamespace(is_alive=is_alive)
    return Worker(process=process, number=0, compilation=compilation, micro_batch_size=size, has_headroom=has_headroom)


def is_replaced(at_work: Worker, probe: Probe, **fields) -> bool:
    usual = {"shared_mode": SharedMode.UNBACKED, "largest_measured": 4, "uses_cuda_graphs": False}
    return must_replace(at_work, probe, **usual | fields)


def probe(size: int, **fields) -> Probe:
    return Probe(number=1, micro_batch_size=size, **fields)


@pytest.mark.parametrize(
    ("size", "uses_cuda_graphs", "replaced"), [(8, False, False), (8, True, True), (4, True, False)]
)
def test_with_cuda_graphs_each_size_has_a_worker_of_its_own(size, uses_cuda_graphs, replaced):
    assert is_replaced(worker(), probe(size), uses_cuda_graphs=uses_cuda_graphs) is replaced


def test_a_worker_that_has_compiled_nothing_runs_any_probe():
    for compilation in Compilation:
        assert not is_replaced(worker(None, None), probe(8, compilation=compilation, fresh_worker=True))


def test_a_shared_program_runs_every_size_and_no_other_program():
    assert not is_replaced(worker(), probe(4))
    assert not is_replaced(worker(), probe(64))
    for other in (Compilation.EXACT, Compilation.EAGER):
        assert is_replaced(worker(), probe(4, compilation=other))


def test_a_program_of_fixed_sizes_runs_its_own_size_again():
    exact = worker(Compilation.EXACT)
    assert not is_replaced(exact, probe(4, compilation=Compilation.EXACT))
    assert is_replaced(exact, probe(6, compilation=Compilation.EXACT))
    assert not is_replaced(worker(), probe(4), shared_mode=SharedMode.STATIC)
    assert is_replaced(worker(), probe(6), shared_mode=SharedMode.STATIC)


def test_a_fresh_worker_is_a_new_one_and_an_ended_one_is_replaced():
    assert is_replaced(worker(), probe(4, fresh_worker=True))
    assert is_replaced(worker(is_alive=False), probe(4))


def test_without_headroom_a_worker_runs_no_size_above_the_largest_that_ran():
    full = worker(has_headroom=False)
    assert is_replaced(full, probe(8), largest_measured=4)
    assert not is_replaced(full, probe(8), largest_measured=8)
    assert not is_replaced(worker(), probe(8), largest_measured=4)


@pytest.mark.parametrize(
    ("at_work", "asked", "mode", "on_cpu", "kept"),
    [
        (worker(), Compilation.EXACT, SharedMode.UNBACKED, True, True),
        (worker(), Compilation.EXACT, SharedMode.UNBACKED, False, False),
        (worker(), Compilation.EXACT, SharedMode.STATIC, True, False),
        (worker(), Compilation.EAGER, SharedMode.UNBACKED, True, True),  # of a job that is not compiled
        (worker(Compilation.EXACT), Compilation.EXACT, SharedMode.UNBACKED, True, False),
        (worker(is_alive=False), Compilation.EXACT, SharedMode.UNBACKED, True, False),
    ],
    ids=["shared", "accelerator", "static", "for an eager probe", "exact", "ended"],
)
def test_a_shared_program_is_kept_beside_another_on_a_cpu_alone(at_work, asked, mode, on_cpu, kept):
    assert is_worth_keeping(at_work, probe(4, compilation=asked), shared_mode=mode, on_cpu=on_cpu) is kept


OUT = Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("answer", "outcome", "size", "goes_on"),
    [
        (Done(), OUT, 8, True),  # its peak was over the budget: nothing was refused
        (Failed(outcome=OUT, reason="", is_reusable=True), OUT, 8, True),
        (Failed(outcome=OUT, reason=""), OUT, 8, False),
        (Failed(outcome=OUT, reason="", is_reusable=True), OUT, 2, False),  # 4 ran: the process lacks the memory
        (Failed(outcome=Outcome.CRASHED, reason="", is_reusable=True), Outcome.CRASHED, 8, False),
    ],
)
def test_a_worker_goes_on_after_a_larger_size_that_it_could_refuse(answer, outcome, size, goes_on):
    refused = observed(size, outcome=outcome, pass_times_s=())
    assert may_go_on(answer, refused, largest_measured=4) is goes_on


def test_a_worker_that_refuses_the_first_size_of_all_does_not_go_on():
    assert not may_go_on(Done(), observed(8, outcome=OUT, pass_times_s=()), largest_measured=0)
