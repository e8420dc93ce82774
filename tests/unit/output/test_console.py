"""Lines for people."""

from __future__ import annotations

import io

from rich.console import Console

from bexplore.output.console import Progress
from bexplore.search.result import ProbeFinished
from tests.builders import observed


def test_waiting_for_another_exploration_is_said_where_there_is_no_terminal():
    written = io.StringIO()

    Progress(Console(file=written)).report({"kind": "progress", "stage": "lock", "holder": "process 7"})

    assert "waiting for the device, which process 7 uses" in written.getvalue()


def test_a_probe_repeats_no_warning_of_the_one_before_whatever_its_figures():
    written = io.StringIO()
    progress = Progress(Console(file=written, width=200))
    busy, hot = "other processes used {}% of the processors meanwhile", "the processors lowered their clocks"

    for warnings in ((busy.format(51),), (busy.format(48.5), hot), (), (busy.format(30),)):
        progress(ProbeFinished(observation=observed(8, warnings=warnings)))

    said = [line for line in written.getvalue().splitlines() if line.startswith("warning")]
    assert said == [f"warning: {busy.format(51)}", f"warning: {hot}", f"warning: {busy.format(30)}"]
