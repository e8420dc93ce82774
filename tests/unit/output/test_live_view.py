"""What is seen while it goes on: a live view on a terminal, lines anywhere else, and a stdout that stays clean."""

from __future__ import annotations

import dataclasses
import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from bexplore.measurement.probe import Outcome, Probe
from bexplore.output.console import Progress
from bexplore.output.live_view import View
from bexplore.output.plot import UNICODE, plot
from bexplore.run.events import Planned, Recommended, Traced
from bexplore.search.posterior.posterior import CredibleBand
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted
from tests.builders import observed

GIB = 2**30


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seen(view: View, width: int = 100, height: int = 40, **options) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(view.render(width, height, **options))
    return console.file.getvalue()


def explored(clock: Clock) -> View:
    """A view after three probes and in the middle of a fourth."""
    view = View(clock)
    plan = {"title": "job", "run": None, "num_known_probes": 0, "changes": (), "device": "cpu", "candidates": ""}
    view(Planned(max_probes=10, expected_s=60.0, **plan))
    view(Traced(record=None, reason="", memory_budget_bytes=4 * GIB, why_budget=""))
    for number, (size, seconds) in enumerate([(1, 0.1), (8, 0.2)]):
        facts = {"number": number, "pass_times_s": (seconds,) * 3, "elapsed_s": 10.0, "peak_memory_bytes": GIB}
        clock.now += 20.0
        view(ProbeFinished(observation=observed(size, **facts)))
    refused = {"number": 2, "outcome": Outcome.OUT_OF_MEMORY, "pass_times_s": (), "elapsed_s": 10.0}
    view(ProbeFinished(observation=observed(64, **refused)))
    best = {"relative_performance": 4.0, "confidence": 71, "samples_per_s": 40.0, "smallest_within_tolerance": 8}
    best |= {"micro_batch_size": 8, "base_micro_batch_size": 1, "num_probes": 3}
    view(Recommended(recommendation=Recommendation(**best), global_batch_sizes=()))
    view(ProbeStarted(probe=Probe(number=3, micro_batch_size=16), expected_s=12.0))
    view.report({"stage": "compile"})
    clock.now += 5.0
    return view


def test_the_view_tells_stage_times_best_memory_outcomes_and_time_left():
    view = explored(Clock())
    view.report({"stage": "passes"})
    view.report({"pass_time_s": 0.25})
    text = seen(view)
    assert "probe 3, size 16: timing passes, 5.00 s of about 12.0 s" in text
    view._clock.now += 10.0
    assert "timing passes, 15.0 s; expected: about 12.0 s" in seen(view)
    assert re.search(r"passes 250 ms", text)
    assert "size 8: 4.00x base, 40 samples/s, confidence 71" in text
    assert "1.00 GiB of 4.00 GiB at size 8" in text
    assert re.search(r"probes 2 measured, 1 out of memory *\n", text)
    assert "time 45.0 s so far, at most about 1 min 7 s left" in text


def test_the_view_shows_the_best_settings_curve_and_the_probes_name():
    clock = Clock()
    view = View(clock)
    variants = tuple(
        {"name": name, "settings": {}, "max_micro_batch_size": 8, "operations_over_file": 1.0}
        for name in ("kept=all", "kept=few")
    )
    view(Traced(record=None, reason="", memory_budget_bytes=4 * GIB, why_budget="", variants=variants))
    for number, (variant, size, peak) in enumerate([(0, 2, 3 * GIB), (1, 8, GIB), (1, 4, GIB)]):
        item = observed(size, number=number, pass_times_s=(0.1,) * 3, peak_memory_bytes=peak)
        own = dataclasses.replace(item, probe=dataclasses.replace(item.probe, variant=variant))
        view(ProbeFinished(observation=own))
    best = {"relative_performance": 4.0, "confidence": 71, "samples_per_s": 80.0, "smallest_within_tolerance": 8}
    best |= {"micro_batch_size": 8, "base_micro_batch_size": 1, "num_probes": 2, "variant": 1}
    view(Recommended(recommendation=Recommendation(**best), global_batch_sizes=()))
    view(ProbeStarted(probe=Probe(number=3, micro_batch_size=2, variant=0), expected_s=12.0))

    text = seen(view)

    assert "samples/s, kept=few" in text
    assert "size 8, kept=few: 4.00x base" in text
    assert "1.00 GiB of 4.00 GiB at size 8" in text
    assert "probe 3, size 2, kept=all" in text
    plot = "".join(line for line in text.splitlines() if "│" in line)
    assert (plot.count("◆"), plot.count("●")) == (1, 1)  # and not the size of the other settings


def test_the_last_probe_is_expected_to_last_as_those_that_ran_whole():
    clock = Clock()
    view = View(clock)
    plan = {"title": "job", "run": None, "num_known_probes": 0, "changes": (), "device": "cpu", "candidates": ""}
    view(Planned(max_probes=4, expected_s=None, **plan))
    for number, (outcome, elapsed_s) in enumerate(
        [(Outcome.MEASURED, 20.0), (Outcome.OUT_OF_MEMORY, 0.2), (Outcome.OUT_OF_MEMORY, 0.2)]
    ):
        view(ProbeFinished(observation=observed(8, number=number, outcome=outcome, elapsed_s=elapsed_s)))
    view(ProbeStarted(probe=Probe(number=3, micro_batch_size=4), expected_s=1.0))
    clock.now += 5.0

    assert "at most about 15.0 s left" in seen(view)


def test_before_the_first_probe_the_time_of_the_whole_is_told_as_such():
    clock = Clock()
    view = View(clock)
    plan = {"title": "job", "run": None, "num_known_probes": 0, "changes": (), "device": "cpu", "candidates": ""}
    view(Planned(max_probes=10, expected_s=60.0, **plan))
    view.report({"stage": "compile"})
    clock.now += 5.0
    lines = [line.strip() for line in seen(view).splitlines()]
    assert "time 5.00 s so far of about 1 min" in lines
    assert "now compiling, 5.00 s" in lines


def test_a_stage_that_takes_longer_than_expected_says_so():
    clock = Clock()
    view = View(clock)
    plan = {"title": "job", "run": None, "num_known_probes": 0, "changes": (), "device": "cpu", "candidates": ""}
    view(Planned(max_probes=10, expected_s=2.0, **plan))
    view(ProbeStarted(probe=Probe(number=0, micro_batch_size=16), expected_s=0.426))
    clock.now += 3.5

    text = seen(view)

    assert "3.50 s; expected: about 426 ms" in text
    assert "time 3.50 s so far; expected: about 2.00 s" in text


def test_the_plot_marks_the_best_the_others_and_what_failed():
    lines = seen(explored(Clock())).splitlines()
    plot = [line for line in lines if "│" in line]
    assert sum(line.count("◆") for line in plot) == 1
    assert sum(line.count("●") for line in plot) == 1
    assert plot[-1].rstrip().endswith("×") or "×" in plot[-1]
    best, other = (next(i for i, line in enumerate(plot) if mark in line) for mark in "◆●")
    assert best < other  # higher is faster


@pytest.mark.parametrize("width", [20, 30, 47, 48, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    text = seen(explored(Clock()), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert ("◆" in text) is (width >= 48)


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_usual_terminal_no_line_of_the_view_is_cut(width):
    view = explored(Clock())
    for number, outcome in enumerate(Outcome):
        view(ProbeFinished(observation=observed(2, number=4 + number, outcome=outcome, elapsed_s=3725.0)))
    view.report({"stage": "eager"})
    for _ in range(9):
        view.report({"pass_time_s": 0.1234})

    assert "…" not in seen(view, width=width)


def test_a_low_terminal_leaves_the_plot_out_and_ascii_is_enough():
    assert "◆" not in seen(explored(Clock()), height=10)
    assert seen(explored(Clock()), is_unicode=False).isascii()


def test_without_a_terminal_there_are_plain_lines_only():
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    progress = Progress(console)
    progress.report({"stage": "compile"})
    progress(ProbeFinished(observation=observed(4)))
    text = console.file.getvalue()
    assert text.startswith("probe 0: size 4")
    assert "\x1b" not in text and "compiling" not in text


def test_no_color_keeps_the_view_and_drops_the_colours():
    environment = {"NO_COLOR": "1", "TERM": "xterm-256color"}
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40, _environ=environment)
    console.print(explored(Clock()))
    assert "size 8" in console.file.getvalue()
    assert re.findall(r"\x1b\[(?:3[0-7]|9[0-7]|38;)[0-9;]*m", console.file.getvalue()) == []


def test_while_something_else_writes_the_view_is_away():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40)
    progress = Progress(console)
    progress.report({"stage": "compile"})
    with progress.paused():
        before = console.file.getvalue()
        progress._view.report({"stage": "passes"})
        assert console.file.getvalue() == before
    progress.close()
    assert before.endswith("\x1b[2K") or "\x1b[1A" in before


def test_the_view_of_an_event_that_it_does_not_know_stays_as_it_is():
    view = View(Clock())
    view(SimpleNamespace())
    assert "starting a worker" in seen(view)


def test_the_plot_draws_the_searchs_own_band():
    band = CredibleBand(
        sizes=(1, 8, 64),
        low=(9.0, 38.0, 30.0),
        middle=(10.0, 40.0, 45.0),
        high=(11.0, 42.0, 60.0),
        fits=(1.0, 1.0, 0.5),
    )
    measured = [observed(1, pass_times_s=(0.1,) * 3), observed(64, pass_times_s=(1.4,) * 3)]

    lines = plot(band, measured, best=64, width=60, height=12, glyphs=UNICODE).plain.splitlines()

    assert sum(line.count("─") for line in lines) > 30  # the median, over nearly all columns
    assert "60" in lines[0]  # the scale reaches the upper end of the band
