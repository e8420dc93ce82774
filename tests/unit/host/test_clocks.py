"""What a clock shows of a machine that slept and of processes that were stopped: on clocks that no test waits for."""

from __future__ import annotations

import os
import signal
import time

import pytest

from bexplore.host.clocks import IDLE_SHARE, LATE_S, LOOK_S, Stopwatch, Suspension, is_stopped
from tests.builders import in_child

WORKER = 17


class Machine:
    """A machine whose clock goes on by itself, and whose processes stop and go on."""

    def __init__(self) -> None:
        self.now_s, self.used_s, self.states = 1000.0, 1.0, {WORKER: False}
        self.suspension = Suspension(
            lambda: list(self.states),
            now_s=lambda: self.now_s,
            used_s=lambda: self.used_s,
            is_stopped=lambda pid: self.states[pid],
        )

    def goes_on(self, seconds: float, *, used_s: float = 0.0, state: bool | None = False) -> float:
        """Look after so many seconds, in which a processor was used so long; return what counts as suspended."""
        self.now_s, self.used_s, self.states[WORKER] = self.now_s + seconds, self.used_s + used_s, state
        self.suspension.look()
        return self.suspension.seconds


@pytest.mark.promise("the machine sleeps, or all processes are stopped, in a probe", "no measurement: it runs again")
def test_a_look_that_comes_late_while_nothing_ran_is_a_suspension():
    machine = Machine()

    assert machine.goes_on(LOOK_S) == 0.0
    assert machine.goes_on(62.0) == 62.0
    assert machine.goes_on(LOOK_S) == 62.0


@pytest.mark.parametrize(("late_s", "used_s"), [(LATE_S, 0.0), (62.0, 62.0 * IDLE_SHARE), (62.0, 62.0)])
def test_a_busy_explorer_and_a_busy_machine_are_no_suspension(late_s, used_s):
    assert Machine().goes_on(late_s, used_s=used_s) == 0.0


@pytest.mark.promise("a process that is measured is stopped and goes on (SIGSTOP, SIGCONT)", "the probe runs again")
def test_a_worker_that_was_stopped_and_went_on_was_suspended():
    machine = Machine()

    assert [machine.goes_on(0.5, state=stopped) for stopped in (True, True, True, False, False)][-2:] == [1.5, 1.5]


@pytest.mark.parametrize("end", [True, None])
def test_a_worker_that_never_goes_on_is_none(end):
    machine = Machine()

    assert [machine.goes_on(0.5, state=stopped) for stopped in (True, True, end)] == [0.0, 0.0, 0.0]


def test_a_process_shows_whether_it_is_stopped():
    pid = in_child(lambda: time.sleep(60))
    assert is_stopped(pid) is False
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert is_stopped(pid) is None


@pytest.mark.promise("the wall clock is set back by an hour", "durations stay what they are")
def test_a_wall_clock_that_is_set_moves_no_duration(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    stopwatch = Stopwatch()
    monkeypatch.setattr(time, "time", lambda: 10_000.0 - 3600.0)

    assert stopwatch.started_at_s == 10_000.0
    assert 0.0 <= stopwatch.times()["elapsed_s"] < 600.0
