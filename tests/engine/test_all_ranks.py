"""All ranks of a job under a real launcher: measured together, ended together, and the cause of a failure named."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from bexplore.engine.open_runner import AllRanksRunner
from bexplore.engine.runner import EngineRunner
from bexplore.errors import EngineError
from bexplore.host.process_tree import WORKER_MARK, find_marked
from bexplore.measurement.probe import Outcome
from tests.engine.rank_jobs import NUM_RANKS, job, probe, run, settings


def marked() -> list[int]:
    return [pid for pid in find_marked(WORKER_MARK, f"{os.getpid()}.") if _is_rank(pid)]


def _is_rank(pid: int) -> bool:
    try:
        return b"--connect" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.on_device
def test_two_ranks_are_measured_in_lock_step_and_each_reports_its_memory(tmp_path):
    with AllRanksRunner(settings(tmp_path, job())) as runner:
        first, second = runner(probe(4)), runner(probe(8, number=1))

    assert [first.outcome, second.outcome] == [Outcome.MEASURED, Outcome.MEASURED]
    told = second.details["parallel"]
    assert [one["rank"] for one in told["ranks"]] == [0, 1]
    assert second.peak_memory_bytes == max(one["peak_memory_bytes"] for one in told["ranks"])
    assert told["one_rank_pass_s"] > 0
    assert told["accumulation_steps"] == 2
    inner_s, last_s = told["pass_times_by_kind_s"][-1]
    assert second.pass_times_s[-1] == pytest.approx(inner_s + (last_s - inner_s) / 2)
    assert marked() == []


@pytest.mark.on_device
@pytest.mark.promise("a rank is killed, stopped or out of memory", "it is named, and nothing is left")
@pytest.mark.parametrize(
    ("fault", "rank", "outcome"),
    [("memory", 1, Outcome.OUT_OF_MEMORY), ("kill", 1, Outcome.CRASHED), ("stop", 0, Outcome.TIMED_OUT)],
)
def test_the_rank_that_fails_is_named_and_nothing_is_left(tmp_path, fault, rank, outcome):
    found = run(tmp_path, job(fault, rank))

    assert found.outcome is outcome, found.reason
    assert f"rank {rank} of {NUM_RANKS}" in found.reason
    assert marked() == []


@pytest.mark.on_device
def test_a_bug_of_one_rank_has_its_traceback_and_the_next_size_new_ranks(tmp_path):
    with EngineRunner(settings(tmp_path, job("error", 1, at=6))) as runner:
        failed, again = runner(probe(4)), runner(probe(2, number=1))

    assert failed.outcome is Outcome.CRASHED
    assert "rank 1 of 2" in failed.reason
    assert "the labels and the logits differ" in failed.reason
    assert "rank_faults.py" in failed.traceback_text
    assert again.worker != failed.worker


@pytest.mark.promise("one of several ranks hangs", "named; all ranks are ended")
def test_a_rank_that_hangs_in_its_code_is_found_by_where_others_wait(tmp_path):
    found = run(tmp_path, job("hang", 1))

    assert found.outcome is Outcome.TIMED_OUT
    assert "rank 1 of 2" in found.reason
    assert "in hang" in found.reason


@pytest.mark.on_device
def test_what_one_rank_alone_shows_not_to_fit_is_not_asked_of_all(tmp_path):
    one = dataclasses.replace(job(), model=job().model | {"batch": "rank_faults:large_batch"})
    with AllRanksRunner(dataclasses.replace(settings(tmp_path, one), budget_bytes=64 * 2**20)) as runner:
        found = runner(probe(4))

    assert found.outcome is Outcome.OUT_OF_MEMORY
    assert not (tmp_path / "workers").exists()  # the ranks were never started


@pytest.mark.promise("a launcher that starts another number of ranks", "refused with both numbers")
def test_a_launcher_that_starts_another_number_of_ranks_is_refused(tmp_path):
    words = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 1 --no-python {{worker}}"
    with pytest.raises(EngineError, match="started 1 rank"):
        run(tmp_path, job(), kind=words)


def test_a_launcher_that_ends_at_once_is_told_with_its_own_words(tmp_path):
    with pytest.raises(EngineError, match="no such partition"):
        run(tmp_path, job(), kind="sh -c 'echo no such partition; exit 4'")


def test_a_template_may_start_ranks_by_itself(tmp_path):
    start = "sh -c 'for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE={num_ranks} {worker} & done; wait'"
    found = run(tmp_path, job(data_parallel_replicate_degree=NUM_RANKS), kind=start)

    assert found.is_measured, found.reason
    assert len(found.details["parallel"]["ranks"]) == NUM_RANKS


@pytest.mark.external
def test_ranks_that_ray_starts_are_measured(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    found = run(tmp_path, job(), kind="ray")

    assert found.is_measured, found.reason
    assert found.details["parallel"]["launcher"] == "ray"
    assert marked() == []
