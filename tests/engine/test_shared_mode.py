"""The mode of the shared compilation that a search begins with."""

from __future__ import annotations

import pytest

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.measurement.probe import Probe
from tests.builders import imported_job

NESTED, UNBACKED, DYNAMIC, STATIC = SharedMode


@pytest.mark.parametrize(("device", "expected"), [("cpu", NESTED), ("cuda:0", DYNAMIC)])
def test_a_search_begins_with_the_first_mode_of_its_device(device, expected, run_on):
    runner = run_on(imported_job(device=device))

    assert runner._request(RunProbe, Probe(number=0, micro_batch_size=1)).shared_mode is expected
