"""The three pictures of a run: throughput and memory over size, confidence over probes."""

from __future__ import annotations

import numpy as np

from bexplore.measurement.probe import Observation, Outcome
from bexplore.output.report.figure import Axis, Band, Dot, Dots, Figure, Line, Mark, Rule, size_axis, value_axis
from bexplore.output.report.report_data import ReportData
from bexplore.search.posterior.credible_band import Band as CredibleBand
from bexplore.units import counted, format_bytes, format_seconds

# The curve is drawn where at least this share of the belief says that the size fits.
SHOWN_IF_FITS = 0.02


def figures(facts: ReportData) -> tuple[Figure, ...]:
    """Every picture that the run has data for."""
    candidates = (throughput(facts), memory(facts), confidence(facts))
    return tuple(figure for figure in candidates if figure is not None)


def throughput(facts: ReportData) -> Figure | None:
    """Samples per second over size: the belief with its band, each probe with the spread of its passes."""
    curve = facts.band
    if curve is None:
        return None
    axis = _sizes(facts, curve)
    shown = [(float(s), a, b, c) for s, a, b, c, fits in zip(*_columns(curve), strict=True) if fits >= SHOWN_IF_FITS]
    highest = max([row[3] for row in shown] + [_spread(item)[1] for item in facts.measured])
    y = value_axis("samples/s", highest, lambda value: f"{value:,.4g}")
    failed = [item for item in facts.observations if not item.is_measured]
    marks: list[Mark] = [
        Band(name="9 of 10 believed curves", points=[(s, a, c) for s, a, _, c in shown], role="belief"),
        Line(name="their middle", points=[(s, b) for s, _, b, _ in shown], role="belief"),
        Dots(name="measured, shared program", dots=_speeds(facts, shared=True), role="measured", shape="hollow"),
        Dots(name="measured, your program", dots=_speeds(facts, shared=False), role="measured", shape="filled"),
        Dots(name="did not run", dots=[_failure(item, 0.0) for item in failed], role="budget", shape="cross"),
        *_chosen(facts),
    ]
    best = facts.micro_batch_size
    answer = f" Recommended: {best}." if best else ""
    return Figure(
        key="throughput",
        title="Samples per second over micro-batch size",
        description=f"{counted(len(facts.measured), 'measurement')} of {counted(len(facts.sizes()), 'size')}.{answer}",
        x=axis,
        y=y,
        marks=tuple(marks),
    )


def memory(facts: ReportData) -> Figure | None:
    """Peak bytes over size: what the trace predicts, what was measured, what is allowed."""
    measured = [item for item in facts.measured if item.peak_memory_bytes is not None]
    curve, model, budget = facts.band, facts.cost_model, facts.budget_bytes
    if curve is None or (not measured and model is None):
        return None
    axis = _sizes(facts, curve)
    predicted = [(float(size), float(model.peak_memory_bytes(int(size)))) for size in curve.sizes] if model else []
    peaks = [float(item.peak_memory_bytes or 0) for item in measured] + [peak for _, peak in predicted]
    refused = [item for item in facts.observations if item.outcome is Outcome.OUT_OF_MEMORY]
    # A budget far above every peak would press them flat against the axis; the caption says it instead.
    is_near = budget is not None and budget <= 2.5 * max(peaks)
    highest = max([*peaks, float(budget)] if budget is not None and (is_near or refused) else peaks)
    marks: list[Mark] = []
    if budget is not None and (is_near or refused):
        marks.append(Rule(name=f"budget {format_bytes(budget)}", value=float(budget), role="budget"))
    if predicted:
        marks.append(Line(name="predicted by the trace", points=predicted, role="trace"))
    dots = [_peak(item) for item in measured]
    marks.append(Dots(name="measured peak", dots=dots, role="measured", shape="filled"))
    crosses = [_failure(item, float(budget or highest)) for item in refused]
    marks.append(Dots(name="out of memory", dots=crosses, role="budget", shape="cross"))
    far = f" The budget, {format_bytes(budget)}, lies far above." if budget is not None and not is_near else ""
    return Figure(
        key="memory",
        title="Peak memory over micro-batch size",
        description=f"{counted(len(measured), 'measured peak')}, {len(refused)} out of memory.{far}",
        x=axis,
        y=value_axis("peak memory", highest, format_bytes, binary=True),
        marks=tuple(marks),
    )


def confidence(facts: ReportData) -> Figure | None:
    """The score after each probe, and the one at which the search may end."""
    if not facts.confidences:
        return None
    target = facts.meta.get("search_specification", {}).get("settings", {}).get("target_confidence")
    last = facts.confidences[-1][0]
    dots = [
        Dot(x=float(probes), y=float(score), text=f"after {counted(probes, 'probe')}: confidence {score} out of 100")
        for probes, score in facts.confidences
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


def _sizes(facts: ReportData, curve: CredibleBand) -> Axis:
    tried = [item.micro_batch_size for item in facts.observations]
    return size_axis(float(min(curve.sizes[0], *tried)), float(max(curve.sizes[-1], *tried)))


def _columns(curve: CredibleBand) -> tuple[np.ndarray, ...]:
    return curve.sizes, curve.low, curve.middle, curve.high, curve.fits


def _speeds(facts: ReportData, *, shared: bool) -> list[Dot]:
    dots = []
    for item in facts.measured:
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
    """Samples per second between which the middle half of the passes lies; one disturbed pass sets no scale."""
    fast_s, slow_s = np.quantile(item.pass_times_s, (0.25, 0.75))
    return float(item.micro_batch_size / slow_s), float(item.micro_batch_size / fast_s)


def _peak(item: Observation) -> Dot:
    predicted = item.probe.predicted_peak_memory_bytes
    expected = f", predicted {format_bytes(predicted)}" if predicted is not None else ""
    head = f"probe {item.probe.number}, size {item.micro_batch_size}"
    held = f", held {format_bytes(item.resident_memory_bytes)}" if item.resident_memory_bytes is not None else ""
    text = f"{head}: peak {format_bytes(item.peak_memory_bytes)}{expected}{held}"
    return Dot(x=item.micro_batch_size, y=float(item.peak_memory_bytes or 0), text=text)


def _failure(item: Observation, y: float) -> Dot:
    outcome = item.outcome.value.replace("_", " ")
    return Dot(
        x=item.micro_batch_size,
        y=y,
        text=f"probe {item.probe.number}, size {item.micro_batch_size}: {outcome}: {item.reason[:160]}",
    )


def _chosen(facts: ReportData) -> list[Mark]:
    """A ring around the recommended size."""
    size, speed = facts.micro_batch_size, facts.result.get("samples_per_s")
    if size is None or speed is None:
        return []
    dot = Dot(x=size, y=speed, text=f"recommended: size {size}, {speed:.4g} samples/s")
    return [Dots(name="recommended", dots=[dot], role="belief", shape="ring")]
