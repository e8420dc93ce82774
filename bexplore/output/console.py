"""Progress for people on stderr: lines anywhere, and on a terminal a live view below them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live

from bexplore.output.bexp import probe_sentence, settings_sentences, trace_sentence
from bexplore.output.live_view import View
from bexplore.output.table import wrap_words
from bexplore.run.events import AlreadyFinished, Finished, JobEvent, Planned, Traced
from bexplore.search.result import ProbeFinished
from bexplore.units import counted, format_seconds

# A drawing takes about 2 ms of processor time, so that a higher rate would disturb the passes that are being timed.
DRAWINGS_PER_S = 1.5
_FIGURES = re.compile(r"[\d.,]+")
# Seconds without a line after which what happens is told where there is no terminal; each time twice as long, up to
# the second. Source: chosen; CircleCI and Travis CI end a job that has written nothing for ten minutes.
SILENCE_S, MOST_SILENCE_S = 60.0, 240.0
MAX_CHANGES = 4  # lines on why a run is not resumed; with more it is simply another job


class Progress:
    """A sink for events and for workers' progress messages.

    Args:
        console: Where the lines go.
        name_options: Puts the options of the command line in place of the fields that lines name.
        clock: Returns seconds.
    """

    def __init__(
        self,
        console: Console,
        *,
        name_options: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._name_options = name_options
        self._clock = clock
        self._view = View(clock)
        self._said_s, self._silence_s = clock(), SILENCE_S
        self._live: Live | None = None
        self._warned: dict[str, str] = {}  # warnings of probes by their text without figures: the worst of each
        self._is_live = console.is_terminal and not console.is_dumb_terminal and not console.quiet

    def __call__(self, event: JobEvent) -> None:
        """Write the lines of an event."""
        self._view(event)
        if isinstance(event, Planned):
            self._plan(event)
        elif isinstance(event, Traced):
            self._say(trace_sentence(event))
            for line in settings_sentences(event):
                self._say(f"  {line}")
            self._warn(event.warnings)
        elif isinstance(event, ProbeFinished):
            self._say(probe_sentence(event))
            self._keep_worst(event.observation.warnings)
        elif isinstance(event, AlreadyFinished):
            self._say(
                f"already explored: this is the stored result of {event.run.directory} (`fresh=True` explores again)"
            )
        elif isinstance(event, Finished):
            self.close()

    def report(self, message: dict[str, Any]) -> None:
        """Show what a worker or a command does; without a terminal, a wait for the device and what takes long."""
        if message.get("stage") == "lock":
            self._say(f"waiting for the device, which {message['holder']} uses")
        self._view.report(message)
        if self._is_live:
            self._live = self._live or self._started()
        elif self._clock() - self._said_s >= self._silence_s:
            longer_s = min(2 * self._silence_s, MOST_SILENCE_S)
            self._say(f"still at work: {self._view.describe_stage()}")
            self._silence_s = longer_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the view while something else writes to the terminal."""
        if self._live is None:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live = self._started()

    def warn(self, text: str) -> None:
        """Write a warning."""
        self._say(f"warning: {text}")

    def close(self) -> None:
        """Remove the view; write the warnings of the probes, each once."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._warn(tuple(self._warned.values()))
        self._warned = {}

    def _started(self) -> Live:
        # Without redirections: stdout stays separate from the view on stderr.
        live = Live(
            self._view,
            console=self._console,
            refresh_per_second=DRAWINGS_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        live.start()
        return live

    def _plan(self, event: Planned) -> None:
        self._say(f"{event.title} on {event.device}")
        known = f"; resuming after {counted(event.num_known_probes, 'probe')}" if event.num_known_probes else ""
        about = f", about {format_seconds(event.expected_s)}" if event.expected_s else ""
        if event.why_expected:
            about = f"{about or ', time unknown'} ({event.why_expected})"
        if event.num_parameters is not None:
            about += f"; {event.num_parameters:,} parameters"
        self._say(f"{event.candidates}; at most {counted(event.max_probes, 'probe')}{about}{known}")
        if event.changes:
            self._say("the last run here is not resumed, because it differs in:")
            num_hidden = max(0, len(event.changes) - MAX_CHANGES)
            for line in event.changes[:MAX_CHANGES]:
                self._say(f"  {line}")
            if num_hidden:
                self._say(f"  and {num_hidden} more: it was another job; `model_dir` keeps them apart")
        for notice in event.notices:
            self._say(notice)
        self._warn(event.warnings)

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for text in warnings:
            self.warn(text)

    def _keep_worst(self, warnings: tuple[str, ...]) -> None:
        """Keep the warnings of a probe for the end: a busy machine is busy for many probes, and the worst one counts.

        The worst has the largest figure: warnings of one kind differ in nothing else.
        """
        for text in warnings:
            kind = _FIGURES.sub("", text)
            known = self._warned.get(kind)
            self._warned[kind] = text if known is None or _largest_figure(text) > _largest_figure(known) else known

    def _say(self, text: str) -> None:
        """Write a line, on a terminal cut between words; into a file or a pipe it stays whole."""
        self._said_s, self._silence_s = self._clock(), SILENCE_S
        width = self._console.width if self._console.is_terminal else None
        for line in (cut for whole in self._name_options(text).split("\n") for cut in wrap_words(whole, width)):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _largest_figure(text: str) -> float:
    figures = (figure.replace(",", "").strip(".") for figure in _FIGURES.findall(text))
    return max((float(figure) for figure in figures if figure.replace(".", "", 1).isdigit()), default=0.0)
