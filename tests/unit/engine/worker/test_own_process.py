"""How long threads wait for a processor."""

from __future__ import annotations

from bexplore.engine.worker.own_process import longest_wait_s


def test_without_an_earlier_reading_no_wait_is_known():
    assert longest_wait_s({}, {"1": 5.0}) == 0.0
    assert longest_wait_s({"1": 1.0, "2": 1.0}, {"1": 1.5, "2": 3.0, "3": 0.5}) == 2.0
