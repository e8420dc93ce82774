"""The verdict of the memory watchdog."""

from __future__ import annotations

import os

from bexplore.engine.process import memory_watchdog
from bexplore.engine.process.memory_watchdog import MemoryWatchdog

MIB = 2**20


def test_a_worker_that_is_swapped_out_or_a_host_that_is_full_ends_the_probe(monkeypatch):
    watch = MemoryWatchdog(os.getpid(), 2**40)
    assert watch.violation() == ""
    watch._host_read_at_s = 0.0
    monkeypatch.setattr(memory_watchdog, "swapped_bytes", lambda pid: 2**30)
    assert "swap" in watch.violation()

    full = MemoryWatchdog(os.getpid(), 2**40)
    monkeypatch.setattr(memory_watchdog, "available_memory_bytes", lambda: MIB)
    assert "memory left" in full.violation()
