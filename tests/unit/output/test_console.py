"""Lines for people."""

from __future__ import annotations

import io

from rich.console import Console

from bexplore.output.console import Progress


def test_waiting_for_another_exploration_is_said_where_there_is_no_terminal():
    written = io.StringIO()

    Progress(Console(file=written)).report({"kind": "progress", "stage": "lock", "holder": "process 7"})

    assert "waiting for the device, which process 7 uses" in written.getvalue()
