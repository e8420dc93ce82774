"""The regression guard: reports that a training job became slower, bigger or compiled worse; false alarms are rare."""

from __future__ import annotations

from bexplore.guard.baseline import Baseline, read_baseline, write_baseline
from bexplore.guard.report import Finding, NotCompared, Report, Status, Tier, Verdict

__all__ = [
    "Baseline",
    "Finding",
    "NotCompared",
    "Report",
    "Status",
    "Tier",
    "Verdict",
    "read_baseline",
    "write_baseline",
]
