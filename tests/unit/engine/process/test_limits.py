"""The seconds that a stage of a probe may take, and the verdict of the memory watchdog."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from bexplore.config.load import load_config
from bexplore.engine.process import limits
from bexplore.engine.process.limits import (
    CHILDREN_S,
    COMPILE_FLOOR_S,
    FIRST_LIMITS_S,
    HOST_FLOOR_BYTES,
    PATIENCE,
    SLACK_BYTES,
    SLOWLY_S,
    STAGE_FLOOR_S,
    Limits,
    MemoryWatchdog,
    Patience,
    StageLimits,
)
from bexplore.measurement.probe import Outcome
from tests.builders import observed

# Time


@pytest.mark.parametrize(
    ("share", "computes_until_s", "counts", "is_lost_at_s"),
    [
        (1.0, 1e9, True, 101),
        (0.3, 1e9, True, 334),  # a busy host: it computes, and has had less than it may take
        (0.3, 50, True, 112),  # it waits for something that does not come
        (0.0, 1e9, True, 112),
        (0.3, 1e9, False, 101),
        (0.05, 1e9, True, 1001),
    ],
    ids=["alone", "starved", "hangs", "idle", "by the clock", "far too late"],
)
def test_a_silent_worker_that_computes_has_processor_time(monkeypatch, share, computes_until_s, counts, is_lost_at_s):
    now = [0.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    patience = Patience(
        Limits(stage_s=100.0, counts_processor_time=counts), lambda: 7.0 + share * min(now[0], computes_until_s)
    )
    patience.heard({"stage": "trace"})
    while not patience.lost():
        now[0] += 1
    assert now[0] == pytest.approx(is_lost_at_s, abs=11)


def test_seconds_in_which_this_process_was_stopped_are_no_silence(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    patience = Patience(Limits(stage_s=100.0, total_s=150.0))

    def wait(seconds: float) -> str:
        """Look each second, as long as nothing is wrong."""
        until_s = now[0] + seconds
        while now[0] < until_s and not patience.lost():
            now[0] += 1
        return patience.lost()

    assert wait(60) == ""
    now[0] += 3600  # Ctrl-Z, and fg an hour later
    assert wait(35) == ""
    assert "no progress in stage 'start'" in wait(10)
    now[0] += 3600
    patience.heard({"stage": "trace"})  # what lay in its pipe meanwhile
    assert "not done after 150 s" in wait(60)


def test_a_stage_may_take_what_the_trace_says_until_probes_say_more():
    slow, plain = StageLimits(flops_per_sample=1e12), StageLimits()

    assert plain.limit_s("passes", 8) == 900.0
    assert slow.limit_s("passes", 8) == 8000.0
    slow.learn(observed(4, pass_times_s=(2.0, 4.0)))
    assert slow.limit_s("passes", 8) == PATIENCE * 8.0
    assert slow.limit_s("passes", 1) == PATIENCE * 4.0


def test_short_stages_have_floors_and_failed_probes_teach_nothing():
    limits = StageLimits()
    limits.learn(observed(4, outcome=Outcome.TIMED_OUT, pass_times_s=()))
    assert limits.limit_s("compile", 4) == FIRST_LIMITS_S["compile"]
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))
    assert limits.limit_s("passes", 4) == STAGE_FLOOR_S
    assert limits.limit_s("compile", 4) == COMPILE_FLOOR_S


def test_the_floor_of_the_stages_is_the_users_to_set(tmp_path):
    path = tmp_path / "job.yaml"
    job = Path("configs/quickstart.yaml").read_text()
    path.write_text(job.replace("\nexplore:\n", "\nexplore:\n    stage_time_floor: 2h\n"))
    limits = StageLimits(floor_s=load_config(path).settings.stage_time_floor)
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))

    assert {limits.limit_s(stage, 4) for stage in ("start", "import", "build", "compile", "passes")} == {7200.0}


def test_a_compilation_may_take_as_the_longest_one_and_its_pass():
    limits = StageLimits()
    limits.learn(observed(4, pass_times_s=(4.0,), compile_time_s=100.0))
    limits.learn(observed(2, pass_times_s=(1.0,), compile_time_s=60.0))

    assert limits.limit_s("compile", 4) == PATIENCE * 104.0
    assert limits.limit_s("compile", 8) == PATIENCE * 108.0


def test_stages_before_the_program_keep_their_limit_when_it_learns():
    limits = StageLimits()
    limits.learn(observed(4, pass_times_s=(100.0,), compile_time_s=1000.0))

    for stage in ("start", "import", "build"):
        assert limits.limit_s(stage, 64) == FIRST_LIMITS_S[stage]


def test_another_program_has_the_settings_and_none_of_what_was_learned():
    limits = StageLimits(step_limit_s=7.0, floor_s=1.0)
    limits.learn(observed(4, pass_times_s=(100.0,), compile_time_s=1000.0))

    assert limits.limit_s("passes", 4) == PATIENCE * 100.0
    assert limits.unlearned().limit_s("passes", 4) == 7.0
    assert limits.unlearned().limit_s("compile", 4) == FIRST_LIMITS_S["compile"]


MIB = 2**20
LIMIT = 1000 * MIB


class Host:
    """A host with one worker, whose memory is set by hand, and a clock that goes on by a second each time."""

    def __init__(self, monkeypatch) -> None:
        self.anonymous, self.shared, self.swapped = 100 * MIB, 0, 0
        self.children: dict[int, int] = {}
        self.available = 8 * 2**30
        monkeypatch.setattr(limits, "_status", self.status)
        monkeypatch.setattr(limits, "_proportional_bytes", self.proportional)
        monkeypatch.setattr(limits, "available_memory_bytes", lambda: self.available)
        monkeypatch.setattr(limits.psutil, "Process", lambda pid: SimpleNamespace(children=self.children_of))
        seconds = itertools.count(1000)
        monkeypatch.setattr(limits.time, "monotonic", lambda: float(next(seconds)))

    def status(self, pid: int) -> dict[str, int]:
        return {"RssAnon": self.anonymous, "RssShmem": self.shared, "VmSwap": self.swapped}

    def proportional(self, pid: int) -> int:
        return self.children.get(pid, self.anonymous + self.shared)

    def children_of(self, recursive: bool) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.children]

    def watched(self, limit: int | None = LIMIT, *, headroom: int | None = None) -> MemoryWatchdog:
        watch = MemoryWatchdog(1, limit)
        if headroom is not None:
            watch.allow(headroom)
        return watch


@pytest.fixture
def host(monkeypatch):
    return Host(monkeypatch)


def test_a_worker_within_its_limit_goes_on_and_one_beyond_it_ends(host):
    watch = host.watched()
    host.anonymous = LIMIT
    assert watch.violation() == ""
    host.anonymous = LIMIT + 1
    assert watch.violation() == "the worker's resident memory passed 1000 MiB"


def test_without_a_limit_there_is_no_violation(host):
    watch = host.watched(None, headroom=0)
    host.anonymous, host.available = 2**50, 0
    assert watch.violation() == ""


def test_steps_may_grow_by_their_headroom_and_a_slack(host):
    watch = host.watched(headroom=50 * MIB)
    host.anonymous = 150 * MIB + SLACK_BYTES
    assert watch.violation() == ""
    host.anonymous += 1
    assert "passed 150 MiB" in watch.violation()


def test_the_headroom_of_steps_ends_at_the_limit_that_was_given(host):
    host.anonymous = 900 * MIB
    watch = host.watched(headroom=500 * MIB)
    host.anonymous = LIMIT + SLACK_BYTES + 1
    assert "passed 1000 MiB" in watch.violation()


def test_shared_memory_which_the_worker_cannot_refuse_has_no_slack(host):
    watch = host.watched(headroom=50 * MIB)
    host.shared = 50 * MIB + 1
    assert "passed 150 MiB" in watch.violation()


@pytest.mark.promise("a worker hides memory in a child", "counted; ended before the limit")
def test_a_child_counts_with_its_worker_and_is_ended_before_the_limit(host):
    watch = host.watched(headroom=100 * MIB)
    host.children = {2: 60 * MIB}
    assert watch.violation() == ""
    host.children = {2: 100 * MIB - SLACK_BYTES + 1}
    assert "passed 200 MiB" in watch.violation()


@pytest.mark.promise("a worker is swapped out", "ended: its times would be of the disk")
def test_swap_ends_a_worker_that_was_not_swapped_before(host):
    host.swapped = 500 * MIB
    watch = host.watched()
    assert watch.violation() == ""
    host.swapped += limits.SWAP_BYTES + 1
    assert "swap" in watch.violation()


@pytest.mark.promise("the host's memory is full", "the probe ends, not the host")
def test_a_host_that_is_full_ends_the_probe(host):
    watch = host.watched()
    host.available = HOST_FLOOR_BYTES
    assert watch.violation() == ""
    host.available -= 1
    assert "192 MiB of memory left" in watch.violation()


def test_children_and_the_host_are_read_less_often_than_the_worker(host, monkeypatch):
    now = [2000.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    watch = host.watched()
    assert watch.violation() == ""
    host.children, host.available = {2: LIMIT}, 0

    now[0] += CHILDREN_S
    assert watch.violation() == ""
    now[0] += 0.01
    assert "passed" in watch.violation()
    host.children = {}
    now[0] += CHILDREN_S + 0.01
    assert now[0] > 2000.0 + SLOWLY_S
    assert "memory left" in watch.violation()


def test_a_worker_that_is_gone_has_no_memory(tmp_path):
    assert limits.resident_bytes(2**30) == limits.swapped_bytes(2**30) == 0
