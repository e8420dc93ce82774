"""The report as one HTML file: no other file, no network, readable without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2

from bexplore import __version__
from bexplore.exploration.bottlenecks import Bottleneck, find_bottlenecks
from bexplore.measurement.probe import Observation
from bexplore.output.memory_text import headroom_words
from bexplore.output.report.figure import Figure
from bexplore.output.report.figures import figures
from bexplore.output.report.report_data import ReportData, SizeData
from bexplore.output.report.svg import SHAPES, draw
from bexplore.output.summary import (
    eager_sentence,
    keeping_sentence,
    left_sentence,
    loader_sentence,
    score_sentence,
    stop_words,
)
from bexplore.units import counted, format_bytes, format_seconds

UNKNOWN = "–"
NUM_BUFFERS = 10  # places that are listed by name; the rest is summed up
SMALLEST_TERAFLOPS = 0.1  # below, operations are told in thousands of millions
# Fewest columns, and the class of such tables in the page's style: their rows are cards below 1000 and 600 pixels, or
# never.
CARDS = ((7, "many"), (5, "some"), (0, "few"))
WIDE, NARROW = (760, 380), (370, 380)  # pixels; both are drawn, and the page's width decides which is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under headings.

    Attributes:
        headings: Of the columns; empty for a column that needs none.
        rows: As many cells each.
        highlighted: The row of the answer; None for none.
        is_number: Whether a column is set right.
        remarks: A sentence below each row, empty for none; empty where no row has one.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    highlighted: int | None = None
    is_number: tuple[bool, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def layout(self) -> str:
        """The class by which the page decides from which width on a row becomes a card, so that no column is cut."""
        return next(name for fewest, name in CARDS if len(self.headings) >= fewest)


def html(facts: ReportData) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"seconds": format_seconds, "bytes": format_bytes}
    environment.globals["counted"] = counted
    template = environment.from_string(
        (files("bexplore.output.report") / "page.html.jinja").read_text(encoding="utf-8")
    )
    return template.render(
        facts=facts,
        result=facts.result,
        figures=[_drawn(figure) for figure in figures(facts)],
        shapes=SHAPES,
        first_steps=first_steps(facts),
        bottlenecks=bottlenecks(facts),
        eager=eager_line(facts),
        headroom=_headroom(facts.result),
        loader=loader_sentence(facts.result.get("loader")),
        stop_reason=stop_words(facts.result.get("stop_reason", ""), _settings(facts).get("target_confidence")),
        left=left_line(facts),
        sizes=sizes_table(facts),
        comparisons=comparisons_table(facts),
        probes=probes_table(facts),
        batch_sizes=batch_sizes_table(facts),
        environment=environment_table(facts),
        buffers=buffers(facts),
        outcomes=outcomes(facts),
        version=__version__,
    )


def eager_line(facts: ReportData) -> str | None:
    """Whether torch.compile is worth it at the recommended size; None where that was not measured."""
    told = eager_sentence(facts.result.get("eager"), facts.tolerance)
    return None if told is None else f"{told[0].upper()}{told[1:]}"


def left_line(facts: ReportData) -> str | None:
    """What is left to gain; None while the exploration is not finished, or where that is not known."""
    told = left_sentence(facts.result) if facts.is_finished else None
    return None if told is None else f"Left to gain: {told}."


def first_steps(facts: ReportData) -> tuple[tuple[str, str], ...]:
    """What to do with the answer, in order: a sentence, and what to type, empty where there is nothing to type."""
    result, size = facts.result, facts.micro_batch_size
    config = facts.meta.get("config", "CONFIG")
    typed = facts.meta.get("typed", config)
    target = int(_settings(facts).get("target_confidence", 90))
    if size is None:
        return (("Let it go on:", f"bexplore explore {typed}"),)
    steps = [(f"Set micro_batch_size: {size} in {config}, or type", f"bexplore apply {typed}")]
    keeps = result.get("keeps_batch_size") or {}
    if result.get("batch_message") and keeps.get("micro_batch_size") != size:
        steps.append((f"{result['batch_message']}.", ""))
    keeping = keeping_sentence(result, target) if facts.is_finished else None
    if keeping:
        steps.append((keeping, ""))
    small = result.get("smallest_within_tolerance")
    if small is not None and small != size:
        saved = result.get("memory_saved_bytes")
        saves = f" and saves {format_bytes(saved)}" if saved else ""
        steps.append((f"Short of memory? Size {small} is within {facts.tolerance:.0%} of it{saves}.", ""))
    if not facts.is_finished:
        steps.append(("The exploration is not finished; it goes on with", f"bexplore explore {typed}"))
    elif int(result.get("confidence") or 0) < target:
        told = score_sentence(result, facts.tolerance)
        dear = result.get("stop_reason") == "costs_more_than_it_saves"
        then = ", and another probe would not pay." if dear else ": see below what raises it."
        steps.append((f"The score is below its target{f' ({told})' if told else ''}{then}", ""))
    return tuple(steps)


def bottlenecks(facts: ReportData) -> tuple[Bottleneck, ...]:
    """What holds the job back beside its size: as the last words have it, or of what is known so far."""
    if "bottlenecks" in facts.result:
        return tuple(Bottleneck(**item) for item in facts.result["bottlenecks"])
    own = facts.result.get("batch_size")
    sizes = facts.result.get("global_batch_sizes") or ()
    steps = next((size["accumulation_steps"] for size in sizes if size["global_batch_size"] == own), None)
    return find_bottlenecks(
        facts.job,
        facts.observations,
        micro_batch_size=facts.micro_batch_size,
        accumulation_steps=steps or (sizes[0]["accumulation_steps"] if sizes else None),
        cost_model=facts.cost_model,
        device=facts.device,
        device_info=facts.device_info,
    )


def sizes_table(facts: ReportData) -> Table:
    """Speed and memory of each measured size; columns that nothing is known for are left out."""
    sizes = facts.sizes()
    numbers = [item.observation.micro_batch_size for item in sizes]
    best = numbers.index(facts.micro_batch_size) if facts.micro_batch_size in numbers else None
    fastest = max((item.flops_per_s or 0.0 for item in sizes), default=0.0)
    unit, scale = ("TFLOP/s", 1e-12) if fastest >= SMALLEST_TERAFLOPS * 1e12 else ("GFLOP/s", 1e-9)
    columns: list[tuple[str, list[str]]] = [
        ("size", [str(number) for number in numbers]),
        ("samples/s", [f"{item.observation.samples_per_s:.4g}" for item in sizes]),
        ("tokens/s", [_or_unknown(item.tokens_per_s, "{:,.0f}") for item in sizes]),
        ("pass", [format_seconds(item.observation.pass_time_s) for item in sizes]),
        ("update", [_update(item) for item in sizes]),
        (unit, [_or_unknown(item.flops_per_s, "{:.3g}", scale) for item in sizes]),
        ("MFU", [_or_unknown(item.mfu, "{:.1%}") for item in sizes]),
        ("HFU", [_or_unknown(item.hfu, "{:.1%}") for item in sizes]),
        ("peak memory", [_bytes(item.observation.peak_memory_bytes) for item in sizes]),
        ("held memory", [_bytes(item.observation.resident_memory_bytes) for item in sizes]),
        ("program", [item.observation.probe.compilation.value for item in sizes]),
    ]
    kept = [(name, cells) for name, cells in columns if any(cell != UNKNOWN for cell in cells)]
    return Table(
        headings=tuple(name for name, _ in kept),
        rows=tuple(zip(*(cells for _, cells in kept), strict=True)),
        highlighted=best,
        is_number=tuple(name != "program" for name, _ in kept),
    )


def comparisons_table(facts: ReportData) -> Table:
    """Sizes beside one that they took turns with; what a machine does to both is not in it."""
    compared = facts.comparisons()
    rows = tuple(
        (
            str(item.micro_batch_size),
            f"{item.speed_over.value:.3f}x",
            f"{item.speed_over.low:.3f} to {item.speed_over.high:.3f}" if item.speed_over.num_pairs > 1 else UNKNOWN,
            str(item.speed_over.num_pairs),
        )
        for item in compared
    )
    beside = f"speed over size {compared[0].reference}'s" if compared else "speed"
    return Table(headings=("size", beside, "95% interval", "pairs"), rows=rows, is_number=(True,) * 4)


def probes_table(facts: ReportData) -> Table:
    """Every probe with its outcome and reason; that of the recommended size is marked."""
    headings = ("probe", "size", "why", "program", "outcome", "samples/s", "pass", "passes", "compile", "peak", "took")
    spokesmen = {item.observation.micro_batch_size: item.observation for item in facts.sizes()}
    answer = spokesmen.get(facts.micro_batch_size) if facts.micro_batch_size is not None else None
    return Table(
        headings=headings,
        rows=tuple(_probe_row(item) for item in facts.observations),
        highlighted=next((index for index, item in enumerate(facts.observations) if item is answer), None),
        is_number=(True, True, False, False, False, True, True, True, True, True, True),
        remarks=tuple("; ".join(text for text in (item.reason, *item.warnings) if text) for item in facts.observations),
    )


def batch_sizes_table(facts: ReportData) -> Table:
    """Global batch sizes that are valid with the recommended size."""
    sizes = facts.result.get("global_batch_sizes") or ()
    own = facts.result.get("batch_size")
    marked = next((i for i, size in enumerate(sizes) if size["global_batch_size"] == own), None)
    rows = tuple(
        (
            "yours" if index == marked else "",
            f"{size['global_batch_size']:,}",
            str(size["accumulation_steps"]),
            _or_unknown(size.get("num_tokens"), "{:,}"),
            UNKNOWN if size.get("step_time_s") is None else format_seconds(size["step_time_s"]),
        )
        for index, size in enumerate(sizes)
    )
    headings = ("", "batch_size", "accumulation steps", "tokens a step", "step time")
    kept = [index for index in range(len(headings)) if any(row[index] not in ("", UNKNOWN) for row in rows)]
    return Table(
        headings=tuple(headings[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
        highlighted=marked,
        is_number=tuple(bool(headings[index]) for index in kept),
    )


def environment_table(facts: ReportData) -> Table:
    """Where and with what it was measured."""
    rows = [("job", str(facts.meta.get("title", ""))), ("configuration", str(facts.meta.get("config", "")))]
    rows += [(name, str(value)) for name, value in facts.meta.get("environment", {}).items() if value != ""]
    names = ("device", "device_name", "capability", "num_threads")
    rows += [(key.replace("_", " "), str(facts.device_info[key])) for key in names if facts.device_info.get(key)]
    rows += [("memory budget", format_bytes(facts.budget_bytes)), ("search", _search(facts))]
    rows += [("started", str(facts.meta.get("created_at", ""))), ("run", str(facts.run.directory))]
    rows += [("fingerprint", str(facts.meta.get("fingerprint", ""))), ("bexplore", __version__)]
    return Table(headings=("fact", "value"), rows=tuple(rows), is_number=(False, False))


def buffers(facts: ReportData) -> tuple[tuple[str, str, float], ...]:
    """What is alive at the peak of the recommended size: place, bytes in words, share of the largest."""
    size = facts.micro_batch_size
    if facts.cost_model is None or size is None:
        return ()
    largest = facts.cost_model.largest_buffers(size)
    rest = sum(num_bytes for _, num_bytes in largest[NUM_BUFFERS:])
    listed = largest[:NUM_BUFFERS] + ([(f"{len(largest) - NUM_BUFFERS} smaller places", rest)] if rest else [])
    longest = max((num_bytes for _, num_bytes in listed), default=0) or 1
    return tuple((label, format_bytes(num_bytes), num_bytes / longest) for label, num_bytes in listed)


def outcomes(facts: ReportData) -> str:
    """How many probes ended how."""
    counts: dict[str, int] = {}
    for item in facts.observations:
        counts[item.outcome.value] = counts.get(item.outcome.value, 0) + 1
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())


def _drawn(figure: Figure) -> Mapping[str, Any]:
    return {
        "title": figure.title,
        "text": figure.description,
        "wide": jinja2.filters.Markup(draw(figure, width=WIDE[0], height=WIDE[1])),
        "narrow": jinja2.filters.Markup(draw(figure, width=NARROW[0], height=NARROW[1], tag="-narrow")),
    }


def _probe_row(item: Observation) -> tuple[str, ...]:
    return (
        str(item.probe.number),
        str(item.micro_batch_size),
        item.probe.purpose.value,
        "eager" if item.ran_eagerly else item.probe.compilation.value,
        item.outcome.value.replace("_", " "),
        f"{item.samples_per_s:.4g}" if item.is_measured else UNKNOWN,
        format_seconds(item.pass_time_s) if item.is_measured else UNKNOWN,
        str(len(item.pass_times_s)),
        format_seconds(item.compile_time_s) if item.compile_time_s else UNKNOWN,
        _bytes(item.peak_memory_bytes),
        format_seconds(item.elapsed_s),
    )


def _headroom(result: Mapping[str, Any]) -> str:
    """What the recommended size leaves of the budget; empty where that is not known."""
    headroom, peak = result.get("memory_headroom_bytes"), result.get("peak_memory_bytes")
    if headroom is None or peak is None:
        return ""
    return headroom_words(headroom, max(peak, result.get("resident_memory_bytes") or 0))


def _settings(facts: ReportData) -> Mapping[str, Any]:
    return facts.meta.get("search_specification", {}).get("settings", {})


def _search(facts: ReportData) -> str:
    settings = _settings(facts)
    return (
        f"at most {counted(settings.get('max_probes', '?'), 'probe')}, "
        f"score {settings.get('target_confidence', '?')} wanted, "
        f"sizes within {facts.tolerance:.0%} are a tie, seed {settings.get('seed', '?')}"
    )


def _update(item: SizeData) -> str:
    return format_seconds(item.observation.update_time_s) if item.observation.update_times_s else UNKNOWN


def _bytes(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def _or_unknown(value: float | None, template: str, scale: float = 1.0) -> str:
    return UNKNOWN if value is None else template.format(value if scale == 1.0 else value * scale)
