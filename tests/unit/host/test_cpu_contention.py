"""What other processes did to the processors, in words."""

from __future__ import annotations

import pytest

from bexplore.host.contention import CpuContention


@pytest.mark.parametrize(("share", "remark"), [(0.04, ""), (0.2, "other processes used 20% of the processors")])
def test_other_processes_are_named_where_they_used_more_than_a_twentieth(monkeypatch, share, remark):
    monkeypatch.setattr(CpuContention, "background_cpu_share", lambda _self: share)

    assert CpuContention(pids=()).remark() == remark
