"""What a process tells the explorer, and what it learns from it."""

from __future__ import annotations

import gc
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bexplore.command.observer.bexplore_observer import exchange as exchange_module
from bexplore.command.observer.bexplore_observer.exchange import Exchange, begin_pulse


@pytest.fixture
def exchange(settings) -> Exchange:
    return Exchange(settings, lambda: (3, 6, 7, 1, 8))


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that a test sets."""
    now_s = [100.0]
    monkeypatch.setattr(exchange_module, "clock", lambda: now_s[0])
    return now_s


def progress(settings) -> list[int]:
    (path,) = Path(settings["reports"]).glob("steps-*")
    return [int(word) for word in path.read_text().split()]


def test_progress_is_written_as_numbers(exchange, settings):
    exchange.report_progress()
    assert progress(settings) == [3, 6, 7, 1, 8]


def test_the_last_step_is_of_the_settings_until_one_is_named(exchange, settings):
    exchange.exchange(1)
    assert exchange.last_step == 1000

    Path(settings["reports"], "last_step").write_text("12")  # not whole yet
    exchange.read_last_step()
    assert exchange.last_step == 1000

    Path(settings["reports"], "last_step").write_text("12\n")
    exchange.read_last_step()
    assert exchange.last_step == 12


def test_a_sign_is_given_once_a_second_at_most(clock, settings):
    counts = [(0, 0, 0, 1, 0)]
    exchange = Exchange(settings, lambda: counts[0])
    exchange.give_sign()
    counts[0] = (0, 0, 0, 2, 0)
    exchange.give_sign()
    assert progress(settings)[3] == 1

    clock[0] += 1.5
    exchange.give_sign()
    assert progress(settings)[3] == 2


def test_without_a_sign_of_the_explorer_a_common_last_step_is_named(clock, settings):
    exchange, path = Exchange(settings, lambda: (0, 0, 0, 0, 0)), Path(settings["reports"], "last_step")
    for number in range(1, 12):
        exchange.exchange(10 * number)
        clock[0] += 6.0
        assert path.read_text() == ""  # still within the minute

    exchange.exchange(120)

    assert path.read_text() == f"{120 + exchange_module.EXCHANGES_TO_COMMON * 10}\n"
    assert exchange.last_step == 1000  # it is learned at the next exchange, as by all ranks


def test_an_explorer_that_gives_signs_is_there(clock, settings):
    exchange = Exchange(settings, lambda: (0, 0, 0, 0, 0))
    for number in range(1, 60):
        Path(settings["reports"], "explorer").write_text(str(number))
        exchange.exchange(number)
        clock[0] += 6.0
    assert Path(settings["reports"], "last_step").read_text() == ""


def test_a_folder_that_is_gone_reaches_nobody(exchange, settings):
    shutil.rmtree(settings["reports"])

    exchange.report_progress()

    assert exchange.read_line("release") is None


def test_a_log_has_a_line_for_each_event(settings, tmp_path):
    path = tmp_path / "log"
    Exchange(settings, lambda: (0, 0, 0, 0, 0)).log.write("step", number=1)
    assert not path.exists()

    log = Exchange(settings | {"log": str(path)}, lambda: (0, 0, 0, 0, 0)).log
    log.write("step", number=1, passes=2)
    log.write("leaves")

    first, second = (line.split(maxsplit=2)[2] for line in path.read_text().splitlines())
    assert (first, second) == ("step number=1 passes=2", "leaves")


# Signs of life by a thread of its own


class Training(SimpleNamespace):
    """What the pulse asks an observer."""

    def polls_in_wait(self) -> bool:
        return self.polls


@pytest.fixture
def begin(settings, monkeypatch) -> Callable[..., Training]:
    """Begin the pulse of a training; it beats often, and the process always works."""
    monkeypatch.setattr(exchange_module, "SIGN_S", 0.01)
    monkeypatch.setattr(exchange_module, "WORKING_SHARE", -1.0)

    def begin_pulse_of_training(**values: object) -> Training:
        exchange = Exchange(settings, lambda: (0, 0, 0, 0, 0))
        training = Training(exchange=exchange, **{"polls": False, "is_done": False, "num_saving": 0} | values)
        begin_pulse(training)
        return training

    return begin_pulse_of_training


def beats(training: Training) -> bool:
    """Return whether signs of life come while this thread runs code."""
    before, until_s = training.exchange.num_signs, time.monotonic() + 20.0
    while training.exchange.num_signs < before + 3 and time.monotonic() < until_s:
        time.sleep(0.01)
    return training.exchange.num_signs >= before + 3


def wait(training: Training) -> int:
    """Wait in C for a while; return how many signs of life came."""
    before = training.exchange.num_signs
    time.sleep(0.5)
    return training.exchange.num_signs - before


def test_a_busy_process_gives_signs_of_life(begin):
    training = begin()
    assert beats(training)
    assert wait(training) > 2


def test_a_wait_that_polls_gives_no_sign_of_life(begin):
    training = begin(polls=True)

    # This thread releases the interpreter in one line alone: its code goes on nevertheless.
    assert beats(training)
    assert wait(training) <= 2
    assert beats(training)


def test_a_checkpoint_gives_signs_of_life(begin):
    assert wait(begin(polls=True, num_saving=1)) > 2


def test_a_training_that_is_over_gives_none(begin):
    assert wait(begin(is_done=True)) == 0


def test_a_pulse_ends_with_its_observer(begin):
    training = begin()
    assert beats(training)

    exchange, observer = training.exchange, weakref.ref(training)
    del training
    gc.collect()
    until_s = time.monotonic() + 20.0
    while observer() is not None and time.monotonic() < until_s:  # the pulse holds it for a moment of each beat
        time.sleep(0.01)
    num_signs = exchange.num_signs
    time.sleep(0.5)

    assert observer() is None
    assert exchange.num_signs == num_signs
