"""The streamed lines, byte for byte as the reference flow writes them, and the run log.

BEXP202 19:39:45 GMT  Current recommended micro_batch_size: 2, estimated performance: 1.20x base, ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from bexplore.config.variants import name_settings
from bexplore.measurement.probe import Observation
from bexplore.output.event_files import AppendFile
from bexplore.run.events import (
    AlreadyFinished,
    Finished,
    JobEvent,
    Planned,
    Recommended,
    Traced,
)
from bexplore.run.parts.estimate import share_words
from bexplore.run.parts.memory import memory_words
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished
from bexplore.trace.cost_model import describe_source
from bexplore.units import counted, format_bytes, format_flops, format_rate, format_seconds

# Code -> its meaning. 202 is the reference flow's; the others are our own and never change meaning.
CODES = {
    200: "the plan",
    201: "the predictions of the trace",
    202: "the current recommendation",
    203: "a probe has ended",
    204: "the exploration has ended",
    205: "the settings that go with the current recommendation, where several are explored",
    206: "the tokens of the current recommendation, where micro_batch_tokens is explored",
    210: "a warning",
    220: "an error",
}
# Resident memory is reported beside the peak of the tensors only where it exceeds the peak by this factor and by this
# many bytes.


def bexp_line(code: int, text: str, now: datetime) -> str:
    """Return a line with its code and the time of day in UTC."""
    if code not in CODES:
        raise ValueError(f"unknown code {code}")
    return f"BEXP{code} {now.astimezone(UTC):%H:%M:%S} GMT  {text}"


def recommendation_line(best: Recommendation, now: datetime) -> str:
    """Return the line that other people's scripts read."""
    return bexp_line(
        202,
        f"Current recommended micro_batch_size: {best.micro_batch_size}, "
        f"estimated performance: {best.relative_performance:.2f}x base, "
        f"confidence score: {best.confidence} (out of 100)",
        now,
    )


def recommendation_lines(event: Recommended, now: datetime) -> list[str]:
    """Return the line of a recommendation, with its tokens and its settings where these are explored."""
    tokens = event.micro_batch_tokens
    in_tokens = [] if tokens is None else [bexp_line(206, f"Current recommended micro_batch_tokens: {tokens}", now)]
    settings = [bexp_line(205, f"Current recommended settings: {event.name}", now)] if event.name else []
    return [recommendation_line(event.recommendation, now), *in_tokens, *settings]


class BexpStream:
    """A sink that writes recommendation lines to a stream."""

    def __init__(self, stream: TextIO, now: Callable[[], datetime]) -> None:
        self._stream, self._now = stream, now

    def __call__(self, event: JobEvent) -> None:
        """Write the line of a recommendation."""
        if isinstance(event, Recommended):
            self._stream.write("".join(f"{line}\n" for line in recommendation_lines(event, self._now())))
            self._stream.flush()


class RunLog:
    """A sink that appends a line for every event to the run's log, from the plan on."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._file: AppendFile | None = None

    def __call__(self, event: JobEvent) -> None:
        """Append the lines of an event."""
        if isinstance(event, Planned) and event.run is not None:
            self._file = AppendFile(event.run.log_path)
        for code, text in _lines(event):
            self.write(code, text)
        if isinstance(event, Recommended):
            for line in recommendation_lines(event, self._now()):
                self._append(line)

    def write(self, code: int, text: str) -> None:
        """Append one line with a code."""
        self._append(bexp_line(code, " ".join(text.split()), self._now()))

    def _append(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")


def _lines(event: JobEvent) -> list[tuple[int, str]]:
    if isinstance(event, Planned):
        known = f", {counted(event.num_known_probes, 'probe')} known" if event.num_known_probes else ""
        return [(200, f"{event.title}; {event.candidates}{known}")] + [(210, text) for text in event.warnings]
    if isinstance(event, Traced):
        lines = [trace_sentence(event), *settings_sentences(event)]
        return [(201, text) for text in lines] + [(210, text) for text in event.warnings]
    if isinstance(event, ProbeFinished):
        return [(203, probe_sentence(event))] + [(210, text) for text in event.observation.warnings]
    if isinstance(event, Finished):
        result = event.result
        probes, took = counted(result.search.num_probes or 0, "probe"), format_seconds(result.search.elapsed_s)
        return [(204, f"{result.search.stop_reason} after {probes}, {took}")]
    if isinstance(event, AlreadyFinished):
        return [(204, f"stored result of {event.run.directory}")]
    return []


def trace_sentence(event: Traced) -> str:
    """Return the predictions of the trace in one line."""
    budget = f"memory budget {format_bytes(event.memory_budget_bytes)} ({event.why_budget})"
    if event.record is None:
        return f"no trace: {event.reason}; {budget}"
    record = event.record
    fits = record["max_micro_batch_size"]
    size = f"sizes up to {fits} fit" if fits else "not even the smallest size fits"
    remembered = f" of {record['remembered_from']}, remembered" if record["remembered_from"] else ""
    flops = record["flops_per_sample"]
    operations = "operations unknown" if flops is None else f"{format_flops(flops)} a sample"
    source = describe_source(record.get("measured_at") or (), record.get("why_untraced") or "")
    return f"{record['num_parameters']:,} parameters, {operations}; {size} by {source}{remembered}; {budget}"


def settings_sentences(event: Traced) -> list[str]:
    """Return a line for each variant of a job: what the trace tells of it, or why it is left out."""
    searched = [f"{one['name']}: {_predicted(one)}" for one in event.variants]
    return [*searched, *(f"left out: {one.name}: {one.reason}" for one in event.left_out)]


def _predicted(variant: Mapping[str, Any]) -> str:
    fits, operations = variant["max_micro_batch_size"], variant["operations_over_file"]
    if fits is None:
        return f"no trace: {variant['reason']}"
    size = f"sizes up to {fits} fit" if fits else "not even the smallest size fits"
    return size if operations is None else f"{size}, {operations:.2f}x the operations of the file's own settings"


def probe_sentence(event: ProbeFinished) -> str:
    """Return the outcome of a probe in one line."""
    observation = event.observation
    settings = name_settings(observation.details.get("settings", {}))
    after = "a check after the search" if observation.is_after_search else ""
    words = [f"size {observation.micro_batch_size}", settings, observation.program_name, after]
    head = f"probe {observation.probe.number}: {', '.join(filter(None, words))}"
    tail = f"in {format_seconds(observation.elapsed_s)}"
    if not observation.is_measured:
        return f"{head}: {observation.outcome.value}: {observation.reason}, {tail}"
    memory = memory_words(observation.peak_memory_bytes, observation.resident_memory_bytes)
    compiled = f", compiled in {format_seconds(observation.compile_time_s)}" if observation.compile_time_s else ""
    if observation.is_emulated:
        return f"{head}: fits, {memory}{compiled}, {tail}"
    if observation.is_estimated:
        shares = share_words(observation.details["estimate"]["shares"])
        seconds = format_seconds(observation.pass_time_s)
        speed = format_rate(observation.samples_per_s)
        return f"{head}: estimated {speed} samples/s, pass {seconds} ({shares}), {memory}, {tail}"
    of_each = " of each replica" if observation.details.get("num_replicas", 1) > 1 else ""
    num_steps = observation.details.get("num_timed_steps")
    timed = counted(num_steps, "step") if num_steps else str(len(observation.pass_times_s))
    return (
        f"{head}: measured {format_rate(observation.samples_per_s)} samples/s{of_each}, "
        f"pass {format_seconds(observation.pass_time_s)} "
        f"({timed} timed){_words_beside(observation)}, {memory}{compiled}, {tail}"
    )


def _words_beside(observation: Observation) -> str:
    """Return the speed over another size of the probe's rounds; empty for a size that was timed alone."""
    if observation.over_other is None:
        return ""
    over, other = observation.over_other
    return f", {over:.2f}x the speed of size {other} in {counted(observation.num_rounds, 'round')} each"
