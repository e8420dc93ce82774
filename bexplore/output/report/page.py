"""The report as one HTML file that needs no other file, no network and no scripts, and shorter in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import jinja2
from jinja2.filters import Markup  # type: ignore[attr-defined]  # imported there

from bexplore import __version__
from bexplore.config.command import Command
from bexplore.config.variants import name_settings
from bexplore.measurement.probe import Observation, compare_sizes
from bexplore.output import summary
from bexplore.output.plan_table import plan_rows
from bexplore.output.profile_text import kernels_table, regions_sentence
from bexplore.output.report.figure import Figure
from bexplore.output.report.figures import figures
from bexplore.output.report.report_data import ReportData
from bexplore.output.report.svg import SHAPES, draw
from bexplore.output.table import Table
from bexplore.run.facts import SizeFacts
from bexplore.run.parts.row import Row
from bexplore.run.parts.search import group_failures, outcomes_words
from bexplore.search.policy.decision import StopReason
from bexplore.trace.cost_model import describe_unknown
from bexplore.units import counted, format_bytes, format_rate, format_seconds

UNKNOWN = "–"
NUM_BUFFERS = 10  # places that are listed by name; the rest is summed
SMALLEST_TERAFLOPS = 0.1  # below, operations are shown in GFLOP/s
# Labels of rows that stand apart in the report: in its first lines, its warnings, its list of limits or its probes.
SHOWN_ELSEWHERE = ("why", "score", "memory", "smaller size", "training", "limits", "warning", "failed")
# What a sentence has of code: backquoted words, keys of a job's file with their values, commands, options, variables.
_CODE = re.compile(
    r"`[^`]+`|\bexplore\.[a-z_]+(?:\.[a-z_]+)*(?:: (?:[a-z]+|\d+)\b)?"
    r"|\b(?:micro_batch_size|micro_batch_tokens|batch_size|num_workers|pin_memory)\b(?::? \d+)?"
    r"|\bbexplore (?:explore|apply|doctor|trace|probe|plan|report|network|guard)\b|(?<![\w-])--[a-z][a-z-]+"
    r"|\b[A-Z][A-Z_]{5,}=\S*[^\s.,;:]"
)
WIDE, NARROW = (760, 380), (370, 380)  # pixels; the page shows one of the two drawings, by its width


def html(data: ReportData) -> str:
    """Return the page."""
    return _rendered(
        "page.html.jinja",
        data,
        figures=[_drawn(figure) for figure in figures(data)],
        shapes=SHAPES,
        failed=group_failures(data.of_answer),
        headroom=data.result.memory.headroom_words(),
        stop_reason=data.result.search.stop_words(data.view),
        probes=probes_table(data),
        not_counted=not_counted(data),
        environment=environment_table(data),
        buffers=buffers(data),
        regions=None if data.profile is None else regions_sentence(data.profile),
        kernels=None if data.profile is None else kernels_table(data.profile),
        version=__version__,
    )


def markdown(data: ReportData) -> str:
    """Return a short report for pull requests and issues: the answer, the next steps, speeds and batch sizes."""
    return _rendered("report.md.jinja", data)


def _rendered(name: str, data: ReportData, **values: Any) -> str:
    """Return a template with the values that all have, and further ones."""
    environment = jinja2.Environment(
        autoescape=".html." in name,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=".md." in name,
        undefined=jinja2.StrictUndefined,
    )
    filters = {
        "seconds": format_seconds,
        "bytes": format_bytes,
        "rate": format_rate,
        "table": _html_table,
        "code": mark_code,
    }
    environment.filters |= filters
    environment.globals["counted"] = counted
    template = environment.from_string((files("bexplore.output.report") / name).read_text(encoding="utf-8"))
    return template.render(
        run=data,
        result=data.result,
        first_steps=first_steps(data),
        bottlenecks=data.bottlenecks,
        found=found_rows(data),
        speed=summary.speed_words(data.result),
        fitting=summary.fitting_words(data.result),
        answer=data.result.answer,
        settings_words=data.result.choice.words,
        base_words=data.result.choice.base_words,
        points=summary.front_table(data.result, data.tolerance, most=len(data.result.choice.pareto_front)),
        sizes=sizes_table(data),
        comparisons=comparisons_table(data),
        batch_sizes=summary.batch_sizes_table(data.result),
        plan=plan_report_table(data),
        outcomes=outcomes(data),
        **values,
    )


def _html_table(table: Table, caption: str) -> Markup:
    return Markup(table.as_html(caption))


def mark_code(text: str) -> Markup:
    """Return a sentence as HTML in which keys, commands, variables and what stands in backquotes are code."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [escape(text[end : found.start()]), f"<code>{escape(found[0].strip('`'))}</code>"]
        end = found.end()
    return Markup("".join((*parts, escape(text[end:]))))


def found_rows(data: ReportData) -> tuple[Row, ...]:
    """Return the rows of the summary that the report shows in no other place."""
    rows = data.result.rows(data.view) if data.is_finished else ()
    return tuple(row for row in rows if row.label not in SHOWN_ELSEWHERE)


def first_steps(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Return the next steps in order: a sentence, and a command or an empty text."""
    result, size = data.result, data.micro_batch_size
    config = data.meta.get("config", "CONFIG")
    typed = data.meta.get("typed", config)
    target = int(data.settings.get("target_confidence", 90))
    goes_on = (
        ("After that, explore anew:" if data.error else "Resume the exploration:"),
        f"bexplore explore {typed}",
    )
    if data.error:
        hint = f"{data.hint[0].upper()}{data.hint[1:]}" if data.hint.partition(" ")[0].isalpha() else data.hint
        return ((hint or "Correct what the error says.", ""), goes_on)
    if size is None:
        return (goes_on,)
    settings = f" and {name_settings(result.choice.settings)}" if result.choice.variant else ""
    steps = [(f"Set micro_batch_size: {size}{settings} in `{config}`, or type", f"bexplore apply {typed}")]
    command_line = _find_command_line(data)
    if command_line:
        steps = [(f"Train with micro_batch_size {size}:", command_line)]
    keeps = result.batch.keeps_batch_size
    if result.batch.batch_message and (keeps is None or keeps.micro_batch_size != size):
        steps.append((f"{result.batch.batch_message}.", ""))
    keeping = summary.keeping_sentence(result, target) if data.is_finished else None
    if keeping:
        steps.append((keeping, ""))
    smaller = result.answer.smaller_size(data.tolerance)
    if smaller:
        steps.append((f"To save memory: {smaller}.", ""))
    if not data.is_finished:
        steps.append(("The exploration is not finished; this command resumes it:", f"bexplore explore {typed}"))
    elif not result.is_emulated and (result.answer.confidence or 0) < target:
        score = result.answer.score_words(data.tolerance)
        is_final = result.search.stop_reason == StopReason.COSTS_MORE_THAN_IT_SAVES
        then = ", and another probe would not pay."
        if not is_final:
            then = f": the search ended because {result.search.stop_words(data.view)}."
        steps.append((f"The score is below its target{f' ({score})' if score else ''}{then}", ""))
    return tuple(steps)


def _find_command_line(data: ReportData) -> str:
    """Return the training command with the size filled in; empty where a file holds the size."""
    model = data.meta.get("job", {}).get("model", {})
    command = Command(argv=tuple(model.get("command") or ()), env=model.get("env") or {})
    if not command.placeholders & {"micro_batch_size", "global_batch_size"} or data.micro_batch_size is None:
        return ""
    of_user = data.result.batch.of_user
    return command.shown_with(
        micro_batch_size=data.micro_batch_size,
        accumulation=None if of_user is None else of_user.accumulation_steps,
        num_replicas=data.result.batch.num_replicas or 1,
    )


def sizes_table(data: ReportData) -> Table:
    """Return speed and memory of each measured size, without columns whose values are all unknown."""
    sizes = data.sizes
    numbers = [item.observation.micro_batch_size for item in sizes]
    best = numbers.index(data.micro_batch_size) if data.micro_batch_size in numbers else None
    fastest = max((item.flops_per_s or 0.0 for item in sizes), default=0.0)
    unit, scale = ("TFLOP/s", 1e-12) if fastest >= SMALLEST_TERAFLOPS * 1e12 else ("GFLOP/s", 1e-9)
    least = "≥ " if not_counted(data) else ""
    columns: list[tuple[str, list[str]]] = [
        ("size", [str(number) for number in numbers]),
        ("samples/s", [_speed(item.observation) for item in sizes]),
        ("tokens/s", [_or_unknown(item.tokens_per_s, "{:,.0f}") for item in sizes]),
        ("pass", [_pass(item.observation) for item in sizes]),
        ("update", [_update(item) for item in sizes]),
        (unit, [_or_unknown(item.flops_per_s, f"{least}{{:.3g}}", scale) for item in sizes]),
        ("MFU", [_or_unknown(item.mfu, f"{least}{{:.1%}}") for item in sizes]),
        ("HFU", [_or_unknown(item.hfu, f"{least}{{:.1%}}") for item in sizes]),
        ("peak memory", [_bytes(item.observation.peak_memory_bytes) for item in sizes]),
        ("resident memory", [_bytes(item.observation.resident_memory_bytes) for item in sizes]),
        ("program", [item.observation.program_name or UNKNOWN for item in sizes]),
    ]
    return Table(
        headings=tuple(name for name, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        highlighted=best,
        is_number=tuple(name != "program" for name, _ in columns),
    ).without_empty_columns(UNKNOWN)


def not_counted(data: ReportData) -> str:
    """Return the sentence that names the operators whose operations are not counted; empty where all are."""
    return "".join(() if data.cost_model is None else describe_unknown(data.cost_model.unknown))


def comparisons_table(data: ReportData) -> Table:
    """Return the speeds, relative to a common one, of sizes that were timed in the same rounds."""
    reference, ratios = compare_sizes(data.measured, data.micro_batch_size)
    rows = tuple(
        (
            str(size),
            f"{ratio.value:.3f}x",
            f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio.num_pairs > 1 else UNKNOWN,
            str(ratio.num_pairs),
        )
        for size, ratio in ratios.items()
    )
    beside = f"speed over size {reference}'s" if ratios else "speed"
    return Table(headings=("size", beside, "95% interval", "pairs"), rows=rows, is_number=(True,) * 4)


def probes_table(data: ReportData) -> Table:
    """Return every probe with its outcome and reason, and highlight the one that verifies the recommended size.

    On an emulated device there are no columns of times of a pass.
    """
    probes, names = data.observations, data.names
    speeds: list[tuple[str, bool, list[str]]] = [
        (f"{data.verb} samples/s", True, [_speed(item) for item in probes]),
        ("pass", True, [_pass(item) for item in probes]),
        ("passes", True, [str(len(item.pass_times_s)) for item in probes]),
    ]
    columns: list[tuple[str, bool, list[str]]] = [
        ("probe", True, [str(item.probe.number) for item in probes]),
        ("size", True, [str(item.micro_batch_size) for item in probes]),
        *([("settings", False, [names[item.probe.variant] for item in probes])] if names else []),
        ("why", False, [item.probe.purpose.value for item in probes]),
        ("program", False, [item.program_name or UNKNOWN for item in probes]),
        ("outcome", False, [item.outcome.value.replace("_", " ") for item in probes]),
        *([] if data.result.is_emulated else speeds),
        ("compile", True, [format_seconds(item.compile_time_s) if item.compile_time_s else UNKNOWN for item in probes]),
        ("peak", True, [_bytes(item.peak_memory_bytes) for item in probes]),
        ("took", True, [format_seconds(item.elapsed_s) for item in probes]),
    ]
    verified = {item.observation.micro_batch_size: item.observation.probe.number for item in data.sizes}
    answer = verified.get(data.micro_batch_size or 0)
    return Table(
        headings=tuple(name for name, _, _ in columns),
        rows=tuple(zip(*(cells for _, _, cells in columns), strict=True)),
        highlighted=next((index for index, item in enumerate(probes) if item.probe.number == answer), None),
        is_number=tuple(is_number for _, is_number, _ in columns),
        remarks=tuple("; ".join(text for text in (item.reason, *item.warnings) if text) for item in probes),
    )


def plan_report_table(data: ReportData) -> Table:
    """Return the plan of the file's own numbers, a row each value; no rows without one."""
    rows = () if data.plan is None else tuple(plan_rows(data.plan))
    return Table(headings=("", "value"), rows=rows, is_number=(False, True))


def environment_table(data: ReportData) -> Table:
    """Return job, machine and settings of the run."""
    rows = [("job", str(data.meta.get("title", ""))), ("configuration", str(data.meta.get("config", "")))]
    rows += [(name, str(value)) for name, value in data.meta.get("environment", {}).items() if value]
    device_info = data.result.device_info
    names = ("device", "device_name", "capability", "num_threads")
    rows += [(key.replace("_", " "), str(device_info[key])) for key in names if device_info.get(key)]
    rows += [("memory budget", format_bytes(data.budget_bytes)), ("search", _search(data))]
    rows += [("started", str(data.meta.get("created_at", ""))), ("run", str(data.run.directory))]
    rows += [("fingerprint", str(data.meta.get("fingerprint", ""))), ("bexplore", __version__)]
    return Table(headings=("fact", "value"), rows=tuple(rows), is_number=(False, False))


def buffers(data: ReportData) -> tuple[tuple[str, str, float], ...]:
    """Return the live buffers at the peak of the recommended size: place, bytes in words, share of the largest."""
    size = data.micro_batch_size
    if data.cost_model is None or size is None:
        return ()
    largest = data.cost_model.largest_buffers(size)
    rest = sum(num_bytes for _, num_bytes in largest[NUM_BUFFERS:])
    listed = largest[:NUM_BUFFERS] + ([(f"{len(largest) - NUM_BUFFERS} smaller places", rest)] if rest else [])
    longest = max((num_bytes for _, num_bytes in listed), default=0) or 1
    return tuple((label, format_bytes(num_bytes), num_bytes / longest) for label, num_bytes in listed)


def outcomes(data: ReportData) -> str:
    """Return the number of probes by outcome, in words."""
    return outcomes_words(Counter(item.outcome.value for item in data.observations))


def _drawn(figure: Figure) -> Mapping[str, Any]:
    return {
        "title": figure.title,
        "text": figure.description,
        "wide": Markup(draw(figure, width=WIDE[0], height=WIDE[1])),
        "narrow": Markup(draw(figure, width=NARROW[0], height=NARROW[1], tag="-narrow")),
    }


def _speed(item: Observation) -> str:
    return format_rate(item.samples_per_s) if item.is_measured and not item.is_emulated else UNKNOWN


def _pass(item: Observation) -> str:
    return format_seconds(item.pass_time_s) if item.is_measured and not item.is_emulated else UNKNOWN


def _search(data: ReportData) -> str:
    settings = data.settings
    return (
        f"at most {counted(settings.get('max_probes', '?'), 'probe')}, "
        f"target score {settings.get('target_confidence', '?')}, "
        f"indifference zone {data.tolerance:.0%}, seed {settings.get('seed', '?')}"
    )


def _update(item: SizeFacts) -> str:
    return format_seconds(item.observation.update_time_s) if item.observation.update_times_s else UNKNOWN


def _bytes(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def _or_unknown(value: float | None, template: str, scale: float = 1.0) -> str:
    return UNKNOWN if value is None else template.format(value if scale == 1.0 else value * scale)
