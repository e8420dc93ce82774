"""Which worker answers which probe."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bexplore.engine.process.pool import Worker
from bexplore.engine.process.reuse import must_replace
from bexplore.engine.protocol.shared_mode import SharedMode
from bexplore.measurement.probe import Compilation, Probe


@pytest.mark.parametrize(
    ("size", "uses_cuda_graphs", "replaced"), [(8, False, False), (8, True, True), (4, True, False)]
)
def test_with_cuda_graphs_each_size_has_a_worker_of_its_own(size, uses_cuda_graphs, replaced):
    process = SimpleNamespace(is_alive=True)
    worker = Worker(process=process, number=0, compilation=Compilation.SHARED, micro_batch_size=4)

    assert replaced is must_replace(
        worker,
        Probe(number=1, micro_batch_size=size),
        shared_mode=SharedMode.UNBACKED,
        largest_measured=4,
        uses_cuda_graphs=uses_cuda_graphs,
    )
