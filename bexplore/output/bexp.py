"""The streamed lines, byte for byte as the flow that bexplore follows writes them, and the run log of them all.

BEXP202 19:39:45 GMT  Current recommended micro_batch_size: 2, estimated performance: 1.20x base, ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from bexplore.exploration.events import AlreadyFinished, Finished, JobEvent, Planned, Recommended, Traced
from bexplore.measurement.probe import Observation
from bexplore.output.append_file import AppendFile
from bexplore.output.memory_text import memory_words
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished
from bexplore.units import counted, format_bytes, format_seconds

# Code -> what it announces. 202 is the reference flow's; the others are ours and never change meaning.
CODES = {
    200: "what is about to happen",
    201: "what the trace tells of every size",
    202: "the current recommendation",
    203: "a probe has ended",
    204: "the exploration has ended",
    210: "a warning",
    220: "an error",
}


def bexp_line(code: int, text: str, now: datetime) -> str:
    """One line with its code and the time of day in UTC."""
    if code not in CODES:
        raise ValueError(f"unknown code {code}")
    return f"BEXP{code} {now.astimezone(UTC):%H:%M:%S} GMT  {text}"


def recommendation_line(best: Recommendation, now: datetime) -> str:
    """The line that other people's scripts read."""
    return bexp_line(
        202,
        f"Current recommended micro_batch_size: {best.micro_batch_size}, "
        f"estimated performance: {best.relative_performance:.2f}x base, "
        f"confidence score: {best.confidence} (out of 100)",
        now,
    )


class BexpStream:
    """Writes the recommendation lines to a stream as they come."""

    def __init__(self, stream: TextIO, now: Callable[[], datetime]) -> None:
        self._stream, self._now = stream, now

    def __call__(self, event: JobEvent) -> None:
        """Write the event's line, if it is a recommendation."""
        if isinstance(event, Recommended):
            self._stream.write(recommendation_line(event.recommendation, self._now()) + "\n")
            self._stream.flush()


class RunLog:
    """Appends a line for every event to the run's own log; opens it when the run is known."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._file: AppendFile | None = None

    def __call__(self, event: JobEvent) -> None:
        """Append the event's lines."""
        if isinstance(event, Planned) and event.run is not None:
            self._file = AppendFile(event.run.log_path)
        for code, text in _lines(event):
            self.write(code, text)
        if isinstance(event, Recommended):
            self._append(recommendation_line(event.recommendation, self._now()))

    def write(self, code: int, text: str) -> None:
        """Append one line of a code."""
        self._append(bexp_line(code, " ".join(text.split()), self._now()))

    def _append(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")


def _lines(event: JobEvent) -> list[tuple[int, str]]:
    if isinstance(event, Planned):
        known = f", {counted(event.num_known_probes, 'probe')} known" if event.num_known_probes else ""
        return [(200, f"{event.title}; {event.candidates}{known}")] + [(210, text) for text in event.warnings]
    if isinstance(event, Traced):
        return [(201, trace_sentence(event))] + [(210, text) for text in event.warnings]
    if isinstance(event, ProbeFinished):
        return [(203, probe_sentence(event))] + [(210, text) for text in event.observation.warnings]
    if isinstance(event, Finished):
        took = format_seconds(event.elapsed_s)
        return [(204, f"{event.result.stop_reason} after {counted(event.num_probes, 'probe')}, {took}")]
    if isinstance(event, AlreadyFinished):
        return [(204, f"stored result of {event.run.directory}")]
    return []


def trace_sentence(event: Traced) -> str:
    """What the trace tells, in one line."""
    budget = f"memory budget {format_bytes(event.memory_budget_bytes)} ({event.why_budget})"
    if event.record is None:
        return f"no trace: {event.reason}; {budget}"
    record = event.record
    fits = record["max_micro_batch_size"]
    size = f"sizes up to {fits} fit" if fits else "not even the smallest size fits"
    remembered = f" of {record['remembered_from']}, remembered" if record["remembered_from"] else ""
    return (
        f"{record['num_parameters']:,} parameters, {record['flops_per_sample']:.3g} flops a sample; "
        f"{size} by the trace{remembered}; {budget}"
    )


def probe_sentence(event: ProbeFinished) -> str:
    """How a probe ended, in one line."""
    observation = event.observation
    head = (
        f"probe {observation.probe.number}: size {observation.micro_batch_size}, {observation.probe.compilation.value}"
    )
    tail = f"in {format_seconds(observation.elapsed_s)}"
    if not observation.is_measured:
        return f"{head}: {observation.outcome.value}: {observation.reason} {tail}"
    memory = memory_words(observation.peak_memory_bytes, observation.resident_memory_bytes)
    compiled = f", compiled in {format_seconds(observation.compile_time_s)}" if observation.compile_time_s else ""
    return (
        f"{head}: {observation.samples_per_s:.4g} samples/s, pass {format_seconds(observation.pass_time_s)} "
        f"({len(observation.pass_times_s)} timed){_turns_words(observation)}, {memory}{compiled}, {tail}"
    )


def _turns_words(observation: Observation) -> str:
    """How the size did beside the first that it took turns with, which is the leader or a contender."""
    if not observation.interleaved_times_s:
        return ""
    levels, own = observation.estimates, observation.micro_batch_size
    other = next(size for size in levels if size != own)
    over = math.exp(levels[own].log_throughput(own) - levels[other].log_throughput(other))
    return f", {over:.2f}x the speed of size {other} in {counted(observation.num_rounds, 'turn')} each"
