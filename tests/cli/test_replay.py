"""The command `replay`."""

from __future__ import annotations

import statistics
from pathlib import Path

from click.testing import CliRunner

from bexplore.cli import cli
from bexplore.replay.replay import ReplayOptions, replay_table
from bexplore.units import format_seconds

HEADER = "curve_id,micro_batch_size,throughput_samples_per_s,step_time_s,peak_mem_gib,oom"
LADDER = ("a,8,100,,,0", "a,16,180,,,0", "a,32,300,,,0", "a,64,410,,,0", "a,128,480,,,0")


def table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_what_all_curves_cost_is_told_beside_the_median_curve_since_a_slow_one_makes_up_the_sum(tmp_path: Path):
    slow = [f"b,{size},{size / 1000},,,0" for size in (8, 16, 32)]
    quick = ["c,8,100,,,0", "c,16,180,,,0"]
    done = CliRunner().invoke(cli, ["replay", str(table(tmp_path, *LADDER, *slow, *quick))])

    results = [e for e in replay_table(tmp_path / "table.csv", ReplayOptions()) if e["event"] == "result"]
    cost_s = statistics.median(one["cost_s"] for one in results)
    share = statistics.median(one["cost_s"] / one["exhaustive_cost_s"] for one in results)
    in_all = sum(one["cost_s"] for one in results) / sum(one["exhaustive_cost_s"] for one in results)
    *lines, last = done.output.splitlines()
    assert (done.exit_code, len(lines)) == (0, 3)
    assert last.startswith("3 curves: ")
    assert f"in all ({in_all:.0%} of exhaustive); the median curve {format_seconds(cost_s)} ({share:.0%}" in last


def test_one_curve_has_no_median(tmp_path: Path):
    path = table(tmp_path, *LADDER, "b,8,,,,1")

    assert len(CliRunner().invoke(cli, ["replay", str(path)]).output.splitlines()) == 2
    assert len(CliRunner().invoke(cli, ["replay", str(path), "--curve", "a"]).output.splitlines()) == 1
