"""The three figures of a run: throughput and memory over size, confidence over probes."""

from __future__ import annotations

import numpy as np

from bexplore.measurement.probe import Observation, Outcome
from bexplore.output.report.figure import Axis, Band, Dot, Dots, Figure, Line, Mark, Rule, size_axis, value_axis
from bexplore.output.report.report_data import ReportData
from bexplore.units import counted, format_bytes, format_seconds

# A budget beyond this multiple of the highest peak would press the peaks flat; the caption mentions it instead.
NEAR_BUDGET = 2.5


def figures(data: ReportData) -> tuple[Figure, ...]:
    """Return every figure that the run has data for."""
    if not data.measured:
        return ()
    candidates = (throughput(data), memory(data), confidence(data))
    return tuple(figure for figure in candidates if figure is not None)


def throughput(data: ReportData) -> Figure:
    """Return samples per second over size: the posterior's band, and each probe with the spread of its passes."""
    shown = _shown(data)
    highest = max([row[3] for row in shown] + [_spread(item)[1] for item in data.measured])
    failed = [item for item in data.observations if not item.is_measured]
    marks: list[Mark] = [
        Dots(name="measured, shared program", dots=_speeds(data, shared=True), role="measured", shape="hollow"),
        Dots(name="measured, your program", dots=_speeds(data, shared=False), role="measured", shape="filled"),
        Dots(name="did not run", dots=[_failure(item, 0.0) for item in failed], role="budget", shape="cross"),
        *_chosen(data),
    ]
    if shown:
        band = Band(name="90% credible band", points=[(s, low, high) for s, low, _, high in shown], role="posterior")
        median = Line(name="posterior median", points=[(s, middle) for s, _, middle, _ in shown], role="posterior")
        marks = [band, median, *marks]
    answer = f" Recommended: {data.micro_batch_size}." if data.micro_batch_size else ""
    return Figure(
        key="throughput",
        title="Samples per second over micro-batch size",
        description=f"{counted(len(data.measured), 'measurement')} of {counted(len(data.sizes()), 'size')}.{answer}",
        x=_sizes(data),
        y=value_axis("samples/s", highest, lambda value: f"{value:,.4g}"),
        marks=tuple(marks),
    )


def memory(data: ReportData) -> Figure | None:
    """Return peak bytes over size: predicted by the trace, measured, and the budget."""
    measured = [item for item in data.measured if item.peak_memory_bytes is not None]
    model, budget, axis = data.cost_model, data.budget_bytes, _sizes(data)
    if not measured and model is None:
        return None
    ends = np.geomspace(axis.low, axis.high, 64)
    predicted = [(float(size), float(model.peak_memory_bytes(round(size)))) for size in ends] if model else []
    peaks = [float(item.peak_memory_bytes or 0) for item in measured] + [peak for _, peak in predicted]
    refused = [item for item in data.observations if item.outcome is Outcome.OUT_OF_MEMORY]
    is_near = budget is not None and budget <= NEAR_BUDGET * max(peaks)
    marks: list[Mark] = []
    if budget is not None and (is_near or refused):
        peaks.append(float(budget))
        marks.append(Rule(name=f"budget {format_bytes(budget)}", value=float(budget), role="budget"))
    if predicted:
        marks.append(Line(name="predicted by the trace", points=predicted, role="trace"))
    dots = [_peak(item) for item in measured]
    marks.append(Dots(name="measured peak", dots=dots, role="measured", shape="filled"))
    crosses = [_failure(item, float(budget or max(peaks))) for item in refused]
    marks.append(Dots(name="out of memory", dots=crosses, role="budget", shape="cross"))
    far = f" The budget, {format_bytes(budget)}, lies far above." if budget is not None and not is_near else ""
    return Figure(
        key="memory",
        title="Peak memory over micro-batch size",
        description=f"{counted(len(measured), 'measured peak')}, {len(refused)} out of memory.{far}",
        x=axis,
        y=value_axis("peak memory", max(peaks), format_bytes, binary=True),
        marks=tuple(marks),
    )


def confidence(data: ReportData) -> Figure | None:
    """Return the score after each probe, and the target."""
    if not data.confidences:
        return None
    target = data.settings.get("target_confidence")
    last = data.confidences[-1][0]
    dots = [
        Dot(x=float(probes), y=float(score), text=f"after {counted(probes, 'probe')}: confidence {score} out of 100")
        for probes, score in data.confidences
    ]
    marks: list[Mark] = [
        Line(name="", points=[(dot.x, dot.y) for dot in dots], role="score", is_stepped=True),
        Dots(name="confidence score", dots=dots, role="score", shape="filled"),
    ]
    if target is not None:
        marks.insert(0, Rule(name=f"target {target}", value=float(target), role="trace"))
    ticks = tuple(float(number) for number in range(1, last + 1, max(1, last // 10)))
    return Figure(
        key="confidence",
        title="Confidence over probes",
        description=f"The score went from {dots[0].y:.0f} to {dots[-1].y:.0f} in {counted(last, 'probe')}.",
        x=Axis(label="probes", low=1.0, high=max(2.0, float(last)), ticks=ticks),
        y=Axis(label="confidence", low=0.0, high=100.0, ticks=(0, 20, 40, 60, 80, 100)),
        marks=tuple(marks),
    )


def _shown(data: ReportData) -> list[tuple[float, float, float, float]]:
    band = data.result.throughput_band
    return [] if band is None else band.shown(max(item.micro_batch_size for item in data.observations))


def _sizes(data: ReportData) -> Axis:
    sizes = [float(item.micro_batch_size) for item in data.observations] + [row[0] for row in _shown(data)]
    return size_axis(min(sizes), max(sizes))


def _speeds(data: ReportData, *, shared: bool) -> list[Dot]:
    dots = []
    for item in data.measured:
        if item.probe.compilation.is_for_search is shared:
            low, high = _spread(item)
            text = (
                f"probe {item.probe.number}, size {item.micro_batch_size}: {item.samples_per_s:.4g} samples/s, "
                f"pass {format_seconds(item.pass_time_s)}, {len(item.pass_times_s)} timed, "
                f"the middle half at {low:.4g} to {high:.4g} samples/s"
            )
            dots.append(Dot(x=item.micro_batch_size, y=item.samples_per_s, low=low, high=high, text=text))
    return dots


def _spread(item: Observation) -> tuple[float, float]:
    """Return the quartiles of samples/s; a single disturbed pass does not set the scale."""
    fast_s, slow_s = np.quantile(item.pass_times_s, (0.25, 0.75))
    return float(item.micro_batch_size / slow_s), float(item.micro_batch_size / fast_s)


def _peak(item: Observation) -> Dot:
    predicted = item.probe.predicted_peak_memory_bytes
    expected = f", predicted {format_bytes(predicted)}" if predicted is not None else ""
    head = f"probe {item.probe.number}, size {item.micro_batch_size}"
    resident = (
        f", resident {format_bytes(item.resident_memory_bytes)}" if item.resident_memory_bytes is not None else ""
    )
    text = f"{head}: peak {format_bytes(item.peak_memory_bytes)}{expected}{resident}"
    return Dot(x=item.micro_batch_size, y=float(item.peak_memory_bytes or 0), text=text)


def _failure(item: Observation, y: float) -> Dot:
    outcome = item.outcome.value.replace("_", " ")
    return Dot(
        x=item.micro_batch_size,
        y=y,
        text=f"probe {item.probe.number}, size {item.micro_batch_size}: {outcome}: {item.reason[:160]}",
    )


def _chosen(data: ReportData) -> list[Mark]:
    """Return a ring around the recommended size."""
    size, speed = data.micro_batch_size, data.result.samples_per_s
    if size is None or speed is None:
        return []
    dot = Dot(x=size, y=speed, text=f"recommended: size {size}, {speed:.4g} samples/s")
    return [Dots(name="recommended", dots=[dot], role="posterior", shape="ring")]
