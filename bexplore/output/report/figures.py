"""The figures of a run: throughput and memory over size, confidence over probes; of settings, curves and the front."""

from __future__ import annotations

import numpy as np

from bexplore.config.variants import name_settings
from bexplore.measurement.probe import Observation, Outcome
from bexplore.output.report.figure import Axis, Band, Dot, Dots, Figure, Line, Mark, Rule, size_axis, value_axis
from bexplore.output.report.report_data import ReportData
from bexplore.run.parts.choice import FrontPoint
from bexplore.units import counted, format_bytes, format_count, format_rate, format_seconds

# A budget beyond this multiple of the highest peak would press the peaks flat; the caption mentions it instead.
NEAR_BUDGET = 2.5
MAX_CURVES = 6  # colours that can be told apart


def figures(data: ReportData) -> tuple[Figure, ...]:
    """Return every figure that the run has data for."""
    if not data.measured:
        return ()
    of_speed = () if data.result.is_emulated else (throughput(data), curves(data), front(data))
    candidates = (*of_speed, memory(data), confidence(data))
    return tuple(figure for figure in candidates if figure is not None)


def throughput(data: ReportData) -> Figure:
    """Return samples per second over size: the posterior's band, and each probe with the spread of its passes."""
    shown = _shown(data)
    highest = max([row[3] for row in shown] + [_spread(item)[1] for item in data.measured])
    failed = [item for item in data.of_answer if not item.is_measured]
    of_search, of_training = _name_programs(data)
    marks: list[Mark] = [
        Dots(name=of_search, dots=_speeds(data, shared=True), role="measured", shape="hollow"),
        Dots(name=of_training, dots=_speeds(data, shared=False), role="measured", shape="filled"),
        Dots(name="did not run", dots=[_failure(item, 0.0) for item in failed], role="budget", shape="cross"),
        *_chosen(data),
    ]
    if shown:
        band = Band(name="90% credible band", points=[(s, low, high) for s, low, _, high in shown], role="posterior")
        median = Line(name="posterior median", points=[(s, middle) for s, _, middle, _ in shown], role="posterior")
        marks = [band, median, *marks]
    noun = "estimate" if data.result.is_estimated else "measurement"
    answer = f" Recommended: {data.micro_batch_size}." if data.micro_batch_size else ""
    return Figure(
        key="throughput",
        title="Samples per second over micro-batch size",
        description=f"{counted(len(data.measured), noun)} of {counted(len(data.sizes), 'size')}.{answer}",
        x=_sizes(data),
        y=value_axis("samples/s", highest, _show_rate),
        marks=tuple(marks),
    )


def curves(data: ReportData) -> Figure | None:
    """Return samples per second over size by settings, as measured; None for a job with one variant."""
    if not data.names:
        return None
    measured = [item for item in data.observations if item.is_measured]
    ran = sorted({item.probe.variant for item in measured})[:MAX_CURVES]
    marks: list[Mark] = []
    for number, variant in enumerate(ran):
        by_size = {item.micro_batch_size: item for item in measured if item.probe.variant == variant}
        dots = [_speed_of(by_size[size], data.names[variant]) for size in sorted(by_size)]
        role = f"curve{number}"
        marks.append(Line(name="", points=[(dot.x, dot.y) for dot in dots], role=role))
        marks.append(Dots(name=data.names[variant], dots=dots, role=role, shape="filled"))
    sizes = [float(item.micro_batch_size) for item in measured]
    return Figure(
        key="settings",
        title="Samples per second by settings",
        description=f"{counted(len(ran), 'combination')} of settings ran, of {len(data.names)}; the latest probe of "
        "each size.",
        x=size_axis(min(sizes), max(sizes)),
        y=value_axis("samples/s", max(item.samples_per_s for item in measured), _show_rate),
        marks=tuple([*marks, *_chosen(data)]),
    )


def front(data: ReportData) -> Figure | None:
    """Return speed over memory, where no other size with settings is better in both; None for one variant."""
    points = data.result.choice.pareto_front
    if not points:
        return None
    measured = [item for item in data.observations if item.is_measured and item.peak_memory_bytes]
    others = [
        Dot(
            x=float(item.peak_memory_bytes or 0),
            y=item.samples_per_s,
            text=f"probe {item.probe.number}, {data.names[item.probe.variant]}, size {item.micro_batch_size}: "
            f"{item.outcome.value} {format_rate(item.samples_per_s)} samples/s, "
            f"peak {format_bytes(item.peak_memory_bytes)}",
        )
        for item in measured
    ]
    ran, predicted = ([_front_dot(point) for point in points if point.ran is wanted] for wanted in (True, False))
    best = [_front_dot(point) for point in points if data.result.choice.is_recommended(point, data.micro_batch_size)]
    line = [(float(point.peak_memory_bytes), point.samples_per_s) for point in points]
    marks: list[Mark] = [
        Line(name="the front", points=line, role="posterior", is_stepped=True),
        Dots(name="probes", dots=others, role="trace", shape="hollow"),
        Dots(name="on the front, ran", dots=ran, role="posterior", shape="filled"),
        Dots(name="on the front, predicted", dots=predicted, role="posterior", shape="hollow"),
        Dots(name="recommended", dots=best, role="posterior", shape="ring"),
    ]
    memories = [dot.x for dot in (*others, *ran, *predicted)]
    speeds = [dot.y for dot in (*others, *ran, *predicted)]
    return Figure(
        key="front",
        title="Speed over memory",
        description=f"{counted(len(points), 'size')} with settings that no other beats in both; {len(ran)} ran.",
        x=value_axis("peak memory", max(memories), format_bytes, binary=True),
        y=value_axis("samples/s", max(speeds), _show_rate),
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
    refused = [item for item in data.of_answer if item.outcome is Outcome.OUT_OF_MEMORY]
    is_near = budget is not None and budget <= NEAR_BUDGET * max(peaks)
    marks: list[Mark] = []
    if budget is not None and (is_near or refused):
        peaks.append(float(budget))
        marks.append(Rule(name=f"budget {format_bytes(budget)}", value=float(budget), role="budget"))
    if predicted:
        marks.append(Line(name="predicted by the trace", points=predicted, role="trace"))
    dots = [_peak(item) for item in measured]
    marks.append(Dots(name=f"{data.verb} peak", dots=dots, role="measured", shape="filled"))
    crosses = [_failure(item, float(budget or max(peaks))) for item in refused]
    marks.append(Dots(name="out of memory", dots=crosses, role="budget", shape="cross"))
    far = f" The budget, {format_bytes(budget)}, lies far above." if budget is not None and not is_near else ""
    return Figure(
        key="memory",
        title="Peak memory over micro-batch size",
        description=f"{counted(len(measured), f'{data.verb} peak')}, {len(refused)} out of memory.{far}",
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
        x=Axis(label="probes (number)", low=1.0, high=max(2.0, float(last)), ticks=ticks),
        y=Axis(label="confidence (out of 100)", low=0.0, high=100.0, ticks=(0, 20, 40, 60, 80, 100)),
        marks=tuple(marks),
    )


def _shown(data: ReportData) -> list[tuple[float, float, float, float]]:
    band = data.result.search.throughput_band
    return [] if band is None else band.shown(max(item.micro_batch_size for item in data.of_answer))


def _sizes(data: ReportData) -> Axis:
    sizes = [float(item.micro_batch_size) for item in data.of_answer] + [row[0] for row in _shown(data)]
    return size_axis(min(sizes), max(sizes))


def _name_programs(data: ReportData) -> tuple[str, str]:
    """Return what to call measurements of the search alone, and those of what trains."""
    if data.result.is_estimated:
        return data.verb, data.verb
    if data.view.is_of_command:
        return "measured in a shared start", "measured in a start of its own"
    if all(item.ran_eagerly for item in data.measured):  # nothing is compiled: sizes share a process, and its heap
        return "measured in a shared process", "measured in a fresh process"
    return "measured, shared program", "measured, your program"


def _speeds(data: ReportData, *, shared: bool) -> list[Dot]:
    dots = []
    for item in data.measured:
        if item.probe.compilation.is_for_search is shared:
            low, high = _spread(item)
            text = (
                f"probe {item.probe.number}, size {item.micro_batch_size}: {item.outcome.value} "
                f"{format_rate(item.samples_per_s)} "
                f"samples/s, pass {format_seconds(item.pass_time_s)}, {len(item.pass_times_s)} timed, "
                f"the middle half at {format_rate(low)} to {format_rate(high)} samples/s"
            )
            dots.append(Dot(x=item.micro_batch_size, y=item.samples_per_s, low=low, high=high, text=text))
    return dots


def _speed_of(item: Observation, name: str) -> Dot:
    low, high = _spread(item)
    text = f"{name}, size {item.micro_batch_size}: {item.outcome.value} {format_rate(item.samples_per_s)} samples/s"
    return Dot(x=item.micro_batch_size, y=item.samples_per_s, low=low, high=high, text=text)


def _front_dot(point: FrontPoint) -> Dot:
    kind = "ran" if point.ran else "predicted"
    text = (
        f"{name_settings(point.settings)}, size {point.micro_batch_size}: "
        f"{format_rate(point.samples_per_s)} samples/s, "
        f"peak {format_bytes(point.peak_memory_bytes)}, {kind}"
    )
    return Dot(x=float(point.peak_memory_bytes), y=point.samples_per_s, text=text)


def _show_rate(value: float) -> str:
    """Return the text beside a tick, which is short."""
    return format_rate(value) if value < 1e6 else format_count(value)


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
    size, speed = data.micro_batch_size, data.result.answer.samples_per_s
    if size is None or speed is None:
        return []
    dot = Dot(x=size, y=speed, text=f"recommended: size {size}, {format_rate(speed)} samples/s")
    return [Dots(name="recommended", dots=[dot], role="posterior", shape="ring")]
