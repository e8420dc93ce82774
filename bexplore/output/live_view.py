"""The live view of an exploration on a terminal: stage, throughput curve, memory, recommended size."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.output.plot import ASCII, LABEL, UNICODE, plot
from bexplore.run.events import JobEvent, Planned, Recommended, Traced
from bexplore.search.posterior.posterior import CredibleBand, Posterior
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted
from bexplore.units import format_bytes, format_rate, format_seconds

STAGES = {
    "emulate": "preparing the emulated device",
    "command": "starting the command",
    "program": "before its first batch",
    "first step": "before its first optimizer step",
    "steps": "observing its optimizer steps",
    "start": "starting a worker",
    "import": "importing torch",
    "trace": "tracing the step",
    "build": "building the job",
    "warm": "warming the device",
    "compile": "compiling",
    "first pass": "running the first pass",
    "memory": "reading the peak memory",
    "eager": "timing passes with and without the compiler",
    "passes": "timing passes",
    "updates": "timing updates",
    "step check": "checking that the step trains",
    "eager check": "running one pass without the compiler, to find the cause",
    "gradients": "comparing the gradients of both splits",
    "batch": "making a batch",
    "loader": "timing the data loader",
    "lock": "waiting for another exploration on this device",
}
PLOT_ROWS = 8
SMALLEST_WIDTH, SMALLEST_HEIGHT = 48, 18  # characters and lines that the plot needs
BAR = 20  # characters of the memory bar


class View:
    """The state of an exploration as a rich renderable."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._stage_began_s = clock()
        self._stage = "start"
        self._probe: Probe | None = None
        self._expected_s: float | None = None  # of the probe
        self._planned_s: float | None = None  # of the whole
        self._pass_times_s: list[float] = []
        self._num_steps = 0  # of the start of a command
        self._observations: list[Observation] = []
        self._posterior: Posterior | None = None
        self._best: Recommendation | None = None
        self._plots: dict[tuple[int, bool], Text] = {}
        self._max_probes = 0
        self._names: tuple[str, ...] = ()  # of the variants of a job with several
        self._budget_bytes: int | None = None

    def __call__(self, event: JobEvent) -> None:
        """Update the state from an event."""
        if isinstance(event, Planned):
            self._max_probes = event.max_probes - event.num_known_probes
            self._planned_s = event.expected_s
        elif isinstance(event, Traced):
            self._budget_bytes = event.memory_budget_bytes
            self._names = tuple(variant["name"] for variant in event.variants)
        elif isinstance(event, ProbeStarted):
            self._probe, self._expected_s, self._pass_times_s = event.probe, event.expected_s, []
            self._stage_began_s = self._clock()
        elif isinstance(event, ProbeFinished):
            self._probe = self._expected_s = None
            self._observations.append(event.observation)
            self._posterior, self._plots = event.posterior or self._posterior, {}
        elif isinstance(event, Recommended):
            self._best, self._plots = event.recommendation, {}

    def report(self, message: Mapping[str, Any]) -> None:
        """Update the state from a progress message of a worker, or of the watch over a command."""
        self._num_steps = message.get("num_steps", self._num_steps)
        if "pass_time_s" in message:
            self._pass_times_s.append(float(message["pass_time_s"]))
        elif message.get("stage"):
            self._stage = str(message["stage"])
            if self._probe is None:
                self._stage_began_s = self._clock()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Any:
        """Draw within the terminal's size."""
        yield self.render(options.max_width, console.height, is_unicode="utf" in console.encoding.lower())

    def render(self, width: int, height: int, *, is_unicode: bool = True) -> RenderableType:
        """Return the lines for a terminal of this width and height."""
        parts: list[RenderableType] = []
        has_curve = any(item.is_measured and not item.is_emulated for item in self._shown)
        if has_curve and width >= SMALLEST_WIDTH and height >= SMALLEST_HEIGHT:
            picture = self._plot(min(width, 100), is_unicode)
            of_settings = f", {self._names[self._variant]}" if self._names else ""
            parts += [Text(""), Text(f"samples/s{of_settings}", style="dim"), picture]
        rows = [
            self._best_row(),
            self._memory_row(is_unicode),
            self._probes_row(),
            self._time_row(),
            ("now", self.describe_stage(), "bold"),
            self._passes_row(),
        ]
        table = Table.grid(padding=(0, 1), pad_edge=False)
        table.add_column(justify="right", style="dim", no_wrap=True, min_width=LABEL)
        table.add_column(overflow="fold")
        for label, *text in (row for row in rows if row is not None):
            table.add_row(label, Text(*text))
        return Group(*parts, table)

    def _plot(self, columns: int, is_unicode: bool) -> Text:
        """Return the plot, drawn again only after a new event."""
        key = (columns, is_unicode)
        if key not in self._plots:
            best = None if self._best is None else self._best.micro_batch_size
            glyphs = UNICODE if is_unicode else ASCII
            band = CredibleBand.from_posterior(self._posterior and self._posterior.part(self._variant))
            self._plots[key] = plot(band, self._shown, best=best, width=columns, height=PLOT_ROWS, glyphs=glyphs)
        return self._plots[key]

    @property
    def _variant(self) -> int:
        """The variant whose curve is shown: that of the recommendation."""
        return self._best.variant if self._best else 0

    @property
    def _shown(self) -> list[Observation]:
        """The probes of that variant."""
        return [item for item in self._observations if item.probe.variant == self._variant]

    def _best_row(self) -> tuple[str, str, str] | None:
        best = self._best
        if best is None:
            return None
        settings = f", {self._names[best.variant]}" if self._names else ""
        text = (
            f"size {best.micro_batch_size}{settings}: {best.relative_performance:.2f}x base, "
            f"{format_rate(best.samples_per_s)} samples/s, confidence {best.confidence}"
        )
        return ("best", text, "bold green")

    def _memory_row(self, is_unicode: bool) -> tuple[str, str] | None:
        needed = {item.micro_batch_size: item.needed_memory_bytes for item in self._shown}
        peaks = {size: num_bytes for size, num_bytes in needed.items() if num_bytes}
        size = self._best.micro_batch_size if self._best else max(peaks, default=None)
        if self._budget_bytes is None:
            return None
        peak = peaks.get(size) if size is not None else None
        if peak is None:
            return ("memory", f"budget {format_bytes(self._budget_bytes)}")
        filled = min(BAR, math.ceil(BAR * peak / self._budget_bytes)) if self._budget_bytes else BAR
        full, empty = ("█", "░") if is_unicode else ("#", ".")
        bar = full * filled + empty * (BAR - filled)
        return ("memory", f"{bar} {format_bytes(peak)} of {format_bytes(self._budget_bytes)} at size {size}")

    def _probes_row(self) -> tuple[str, str] | None:
        counts = Counter(item.outcome for item in self._observations)
        words = [f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in Outcome if counts[outcome]]
        return ("probes", ", ".join(words)) if words else None

    def _time_row(self) -> tuple[str, str]:
        elapsed_s = self._clock() - self._began_s
        return ("time", f"{format_seconds(elapsed_s)} so far{self._left(elapsed_s)}")

    def _left(self, elapsed_s: float) -> str:
        """Return an upper bound of the remaining time, from the duration of the probes so far."""
        remaining = self._max_probes - len(self._observations)
        if not self._observations and self._planned_s:
            return _of_about(elapsed_s, self._planned_s)
        if not self._observations or remaining <= 0:
            return ""
        # Those that did not fit ended early; the search expects passes and compilation of a probe alone.
        whole = [item for item in self._observations if item.is_measured] or self._observations
        each_s = statistics.median(item.elapsed_s for item in whole)
        left_s = remaining * each_s
        if self._probe is not None:
            now_s = self._clock() - self._stage_began_s
            left_s = (remaining - 1) * each_s + max(0.0, max(self._expected_s or 0.0, each_s) - now_s)
        return f", at most about {format_seconds(max(1.0, left_s))} left"

    def describe_stage(self) -> str:
        """Return what happens now, and how long it has taken, for people."""
        what = STAGES.get(self._stage, self._stage)
        if self._stage == "steps":
            what += f" ({self._num_steps} so far)"
        if self._probe is not None:
            settings = f", {self._names[self._probe.variant]}" if self._names else ""
            what = f"probe {self._probe.number}, size {self._probe.micro_batch_size}{settings}: {what}"
        elapsed_s = self._clock() - self._stage_began_s
        return f"{what}, {format_seconds(elapsed_s)}{_of_about(elapsed_s, self._expected_s)}"

    def _passes_row(self) -> tuple[str, str]:
        latest = ", ".join(format_seconds(seconds) for seconds in self._pass_times_s[-6:])
        more = "... " if len(self._pass_times_s) > 6 else ""
        return ("passes", f"{more}{latest}")


def _of_about(elapsed_s: float, expected_s: float | None) -> str:
    """Return what a time is of, or what was expected once that has passed."""
    if not expected_s:
        return ""
    if elapsed_s <= expected_s:
        return f" of about {format_seconds(expected_s)}"
    return f"; expected: about {format_seconds(expected_s)}"
