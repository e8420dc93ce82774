"""Convolutions hidden from the compiler, in a worker."""

from __future__ import annotations

import pytest

from bexplore.job import Precision
from bexplore.measurement.probe import Outcome, Probe
from tests.builders import imported_job


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.AUTOCAST_BFLOAT16])
def test_one_program_with_convolutions_serves_one_sample_a_few_and_many(run_on, precision):
    runner = run_on(imported_job("patches", batch="images", backend="inductor", precision=precision))

    observations = [runner(Probe(number=0, micro_batch_size=size, max_passes=3)) for size in (4, 1, 40)]

    assert [o.outcome for o in observations] == [Outcome.MEASURED] * 3, observations[0].reason
    assert [o.num_graphs for o in observations] == [1, 0, 0]
    assert observations[0].details["shared_mode"] == "unbacked"
