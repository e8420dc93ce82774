"""Lines for people."""

from __future__ import annotations

import io

from rich.console import Console

from bexplore.measurement.probe import Probe
from bexplore.output.console import Progress
from bexplore.search.result import ProbeFinished, ProbeStarted
from tests.builders import observed


def test_a_wait_for_another_exploration_is_said_without_a_terminal():
    written = io.StringIO()

    Progress(Console(file=written)).report({"kind": "progress", "stage": "lock", "holder": "process 7"})

    assert "waiting for the device, which process 7 uses" in written.getvalue()


def test_a_long_silence_is_broken_without_a_terminal_and_ever_more_seldom():
    written, now_s = io.StringIO(), [0.0]
    progress = Progress(Console(file=written, width=200), clock=lambda: now_s[0])
    progress(ProbeStarted(probe=Probe(number=3, micro_batch_size=16), expected_s=45.0))
    progress.report({"stage": "steps", "num_steps": 1})

    def wait(until_s: int) -> list[str]:
        before = len(written.getvalue().splitlines())
        while now_s[0] < until_s:
            now_s[0] += 1
            progress.report({"num_steps": 1 + int(now_s[0]) // 20})
        return written.getvalue().splitlines()[before:]

    assert wait(59) == []
    told = "still at work: probe 3, size 16: observing its optimizer steps (4 so far), 1 min; expected: about 45.0 s"
    assert wait(179) == [told]
    assert [len(wait(until_s)) for until_s in (419, 420, 659, 900)] == [1, 1, 0, 2]
    progress(ProbeFinished(observation=observed(16)))
    assert [len(wait(until_s)) for until_s in (959, 960)] == [0, 1]


def test_a_warning_of_probes_is_written_once_with_its_worst_figure():
    written = io.StringIO()
    progress = Progress(Console(file=written, width=200))
    busy, hot = "other processes used {}% of the processors meanwhile", "the processors lowered their clocks"

    def said() -> list[str]:
        return [line for line in written.getvalue().splitlines() if line.startswith("warning")]

    for warnings in ((busy.format(48.5),), (busy.format(51), hot), (), (busy.format(30),)):
        progress(ProbeFinished(observation=observed(8, warnings=warnings)))
    assert said() == []

    for _ in range(2):
        progress.close()
        assert said() == [f"warning: {busy.format(51)}", f"warning: {hot}"]


def test_a_line_on_a_terminal_is_cut_between_words_and_loses_nothing():
    told = f"the result is in {'x' * 70}/run and\n  two spaces stand before what is rather long here"
    on_terminal, in_file = io.StringIO(), io.StringIO()

    Progress(Console(file=on_terminal, width=40, force_terminal=True, color_system=None)).warn(told)
    Progress(Console(file=in_file, width=40)).warn(told)

    lines = on_terminal.getvalue().splitlines()
    assert in_file.getvalue() == f"warning: {told}\n"
    assert " ".join(lines).split() == f"warning: {told}".split()
    assert [line for line in lines if len(line) > 40] == [f"{'x' * 70}/run"]
    assert any(line.startswith("  two spaces") for line in lines)
