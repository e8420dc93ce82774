"""A short report for pull requests and issues, in Markdown."""

from __future__ import annotations

from bexplore.output.report import page
from bexplore.output.report.report_data import ReportData
from bexplore.units import counted, format_bytes, format_seconds


def markdown(data: ReportData) -> str:
    """Return the answer, the next steps, the speed of each size and the valid global batch sizes."""
    result, size = data.result, data.micro_batch_size
    lines = [f"### bexplore: {data.meta.get('title', '')}", ""]
    if size is None:
        lines.append("No recommendation yet.")
    else:
        speed = "" if result.samples_per_s is None else f", {result.samples_per_s:.4g} samples/s"
        lines.append(
            f"**Use `micro_batch_size: {size}`**: {result.relative_performance:.2f}x the speed of the smallest size"
            f"{speed}; confidence {result.confidence} out of 100."
        )
    lines += [
        "",
        f"{counted(len(data.observations), 'probe')} ({page.outcomes(data) or 'none'})" + _took(data) + _memory(data),
        "",
    ]
    lines += [left, ""] if (left := page.left_line(data)) else []
    lines += [f"1. {text}{f' `{command}`' if command else ''}" for text, command in page.first_steps(data)]
    found = page.bottlenecks(data)
    lines += [""] if found else []
    lines += [f"- {item.finding}{f'; try: {item.action}' if item.action else ''}" for item in found]
    lines += ["", f"{eager}."] if (eager := page.eager_line(data)) else []
    tables = (
        ("Speed of each size", page.sizes_table(data)),
        ("Interleaved sizes", page.comparisons_table(data)),
        ("Global batch sizes", page.batch_sizes_table(data)),
    )
    for title, table in tables:
        if table.rows:
            lines += ["", f"**{title}**", "", *_table(table)]
    return "\n".join(lines) + "\n"


def _table(table: page.Table) -> list[str]:
    rule = ["---:" if is_number else "---" for is_number in table.is_number]
    rows = [
        [f"**{cell}**" if index == table.highlighted and cell else cell for cell in row]
        for index, row in enumerate(table.rows)
    ]
    return [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in [list(table.headings), rule, *rows]]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _took(data: ReportData) -> str:
    elapsed_s = data.result.elapsed_s
    return "." if elapsed_s is None else f" in {format_seconds(elapsed_s)}."


def _memory(data: ReportData) -> str:
    peak = data.result.peak_memory_bytes
    return "" if peak is None else f" Peak memory {format_bytes(peak)} of {format_bytes(data.budget_bytes)}."
