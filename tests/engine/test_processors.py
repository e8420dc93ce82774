"""A processor that is shared."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHARES_A_PROCESSOR = """
import os, subprocess, sys, time
from bexplore.engine.worker.own_process import longest_wait_s, waits_s
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
before, until = waits_s(), time.monotonic() + 30
while before and longest_wait_s(before, waits_s()) < 0.05 and time.monotonic() < until:
    pass
rival.kill()
print(longest_wait_s(before, waits_s()) if before else "unknown")
"""


def test_a_thread_that_has_to_share_its_processor_is_seen_to_wait():
    told = subprocess.run([sys.executable, "-c", SHARES_A_PROCESSOR], capture_output=True, text=True, check=True).stdout
    if told.strip() == "unknown":
        pytest.skip("this kernel does not tell")

    assert float(told) >= 0.05
