"""Progress for people on stderr: a live line on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.status import Status

from bexplore.events import Finished, JobEvent, Planned, Stored, Traced
from bexplore.explorer import ProbeFinished, ProbeStarted
from bexplore.probe import Probe
from bexplore.sinks.bexp import probe_sentence, trace_sentence
from bexplore.units import format_seconds

STAGES = {
    "start": "starting a worker",
    "import": "importing torch",
    "trace": "tracing the step",
    "build": "building the job",
    "warm": "warming the device",
    "compile": "compiling",
    "first pass": "running the first pass",
    "memory": "reading the peak memory",
    "passes": "timing passes",
    "updates": "timing updates",
    "eager check": "looking whose mistake it is, without the compiler",
    "gradients": "comparing the gradients of both splits",
    "lock": "waiting for another exploration on this device",
}


class Progress:
    """A sink, and the listener of what workers report."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._probe: Probe | None = None
        self._stage, self._stage_began_s, self._num_passes = "", 0.0, 0

    def __call__(self, event: JobEvent) -> None:
        """Say what happened."""
        if isinstance(event, Planned):
            self._plan(event)
        elif isinstance(event, Traced):
            self._say(trace_sentence(event))
            self._warn(event.warnings)
        elif isinstance(event, ProbeStarted):
            self._probe, self._num_passes = event.probe, 0
        elif isinstance(event, ProbeFinished):
            self._probe = None
            self._say(probe_sentence(event))
            self._warn(event.observation.warnings)
        elif isinstance(event, Stored):
            self._say(f"already explored: this is the stored result of {event.run.directory} (--fresh explores again)")
        elif isinstance(event, Finished):
            self.close()

    def report(self, message: dict[str, Any]) -> None:
        """Show what a worker is doing; only on a terminal."""
        if not self._console.is_terminal:
            return
        if "pass_time_s" in message:
            self._num_passes += 1
        elif message.get("stage"):
            self._stage, self._stage_began_s = str(message["stage"]), time.monotonic()
        if self._status is None:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        self._status.update(self._line())

    def warn(self, text: str) -> None:
        """Say what a reader must know."""
        self._say(f"warning: {text}")

    def close(self) -> None:
        """Remove the live line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _line(self) -> str:
        what = STAGES.get(self._stage, self._stage)
        if self._probe is None:
            return what
        passes = f", {self._num_passes} passes" if self._num_passes else ""
        return f"probe {self._probe.number}, size {self._probe.micro_batch_size}: {what}{passes}"

    def _plan(self, event: Planned) -> None:
        self._say(f"{event.title} on {event.device}")
        known = f"; going on from {event.num_known_probes} probes" if event.num_known_probes else ""
        about = f", about {format_seconds(event.expected_s)}" if event.expected_s else ""
        self._say(f"{event.candidates}; at most {event.max_probes} probes{about}{known}")
        if event.changes:
            self._say("not going on from the last run here, because it differs in:")
            for line in event.changes:
                self._say(f"  {line}")
        self._warn(event.warnings)

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for text in warnings:
            self._say(f"warning: {text}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
