"""One rank of two, explored by the command: what it says, and which runs are not taken for its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

CONFIG = ROOT / "configs" / "fsdp.yaml"
# Without the compiler, and of so few sizes, it takes seconds. A step of 32 samples on a rank has 8 passes of 4.
QUICK = ("--set", "explore.compile=false", "--set", "explore.max=4", "--set", "explore.max_probes=3")
CAUTION = "one rank of 2: the times hold no communication"


def bexplore(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bexplore", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def explored(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a finished exploration, and what the command printed."""
    folder = tmp_path_factory.mktemp("one_rank")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BEXPLORE_LOCK_DIR", "BEXPLORE_CACHE_DIR"):
            patch.setenv(name, str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        return folder, bexplore(folder, "explore", str(CONFIG), *QUICK, "--json")


def test_one_rank_tells_its_passes_of_both_kinds_and_what_its_times_lack(explored):
    _, done = explored
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    plan, result = events[0], events[-1]

    ranks = result["parallel"]
    assert (ranks["description"], ranks["num_ranks"], ranks["num_replicas"]) == ("FSDP over 2 ranks", 2, 2)
    assert (ranks["launcher"], ranks["hosts"], ranks["holds_communication"]) == (None, [], False)
    assert ranks["accumulation_steps"] == round(32 / result["micro_batch_size"])
    steps, passes_s = ranks["accumulation_steps"], (ranks["inner_pass_s"], ranks["last_pass_s"])
    assert ranks["effective_pass_s"] > 0
    assert (ranks["parallel_efficiency"], ranks["slowest_rank"]) == (None, None)
    yours = next(size for size in result["global_batch_sizes"] if size["global_batch_size"] == 64)
    expected_s = (steps - 1) * passes_s[0] + passes_s[1] + ranks["update_s"]
    assert yours["step_time_s"] == pytest.approx(expected_s)
    assert plan["notices"][0].startswith(CAUTION)
    assert result["warnings"][0].startswith(CAUTION)
    assert plan["title"].endswith("FSDP over 2 ranks")
    probe = next(event for event in events if event["event"] == "probe")
    assert probe["parallel"]["pass_times_by_kind_s"]
    assert probe["peak_memory_bytes"] <= 1.05 * probe["predicted_peak_memory_bytes"]


def test_the_last_words_and_the_report_have_a_line_of_ranks(explored):
    folder, _ = explored
    again = bexplore(folder, "explore", str(CONFIG), *QUICK)

    assert "already explored" in again.stderr
    assert re.search(r"\n  ranks +one of 2 ranks ran, alone \(FSDP over 2 ranks\); a pass takes", again.stdout)
    assert re.search(rf"\n  warning +{re.escape(CAUTION)}", again.stdout)
    page = next(folder.glob("local*/fsdp/run_*/report.html")).read_text()
    assert "ranks:</b> one of 2 ranks ran, alone" in page


def test_another_batch_size_is_another_run_where_gradients_are_reduced_last(explored):
    folder, _ = explored
    other = (*QUICK, "--set", "train_input.batch_size=128", "--dry-run")
    last = bexplore(folder, "explore", str(CONFIG), *other)

    assert last.returncode == 0, last.stderr
    assert "replica_batch_size: 32 -> 64" in last.stderr


def test_a_launcher_is_another_run_than_one_rank(explored):
    folder, _ = explored
    planned = bexplore(folder, "explore", str(CONFIG), *QUICK, "--set", "explore.launcher=torchrun", "--dry-run")

    assert planned.returncode == 0, planned.stderr
    assert "launcher: none -> torchrun" in planned.stderr
    assert "then all 2 run, started by torchrun" in planned.stderr
