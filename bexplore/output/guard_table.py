"""The guard's report as a table for people."""

from __future__ import annotations

from collections.abc import Iterable

from bexplore.guard import Finding, Report, Status, Verdict
from bexplore.output.table import Table, markdown_cell
from bexplore.units import format_seconds

MARKS = {
    Status.SAME: "ok",
    Status.WORSE: "WORSE",
    Status.BETTER: "better",
    Status.CHANGED: "changed",
    Status.UNSURE: "unsure",
}
MEANINGS = {
    Verdict.UNCHANGED: "no compared fact has changed",
    Verdict.REGRESSION: "slower, bigger or compiled worse than the reference",
    Verdict.STALE_BASELINE: "the program changed, but not for the worse: the reference no longer describes it",
    Verdict.TOOLCHAIN_CHANGED: "another toolchain; changes that come with it are no regression of this program",
    Verdict.INCONCLUSIVE: "noise hides the answer",
    Verdict.NOTHING_MEASURED: "no fact could be compared, which is no pass",
}


def guard_table(report: Report, *, verbose: bool = False) -> str:
    """Return the text of a report; `verbose` also lists unchanged facts."""
    shown = report.findings if verbose else [one for one in report.findings if one.status is not Status.SAME]
    lines = [*_rows(shown), *(f"  job       {line}" for line in report.job_changes)]
    lines += [f"  toolchain {line}" for line in report.toolchain_changes]
    lines += [f"  {line}" for line in _not_compared(report)]
    lines += [f"  hint: {line}" for line in report.advice]
    same = len(report.find_by_status(Status.SAME))
    head = f"{report.config} against {report.reference}: {report.verdict.upper()}: {MEANINGS[report.verdict]}"
    counts = f"  {len(report.findings)} facts compared, {same} the same, in {format_seconds(report.elapsed_s)}"
    return "\n".join([head, *lines, counts])


def guard_markdown(report: Report) -> str:
    """Return the report as Markdown for a summary page."""
    lines = [f"### bexplore guard: {report.verdict.value}", ""]
    lines.append(f"`{report.config}` against `{report.reference}`: {MEANINGS[report.verdict]}.")
    changed = [one for one in report.findings if one.status is not Status.SAME]
    if changed:
        table = Table(
            headings=("", "fact", "before", "now", "what changed"),
            rows=tuple(
                (MARKS[one.status], one.title, one.before, one.after, "<br>".join(one.details)) for one in changed
            ),
            is_number=(False,) * 5,
        )
        lines += ["", *table.as_markdown()]
    notes = [*report.job_changes, *report.toolchain_changes, *_not_compared(report), *report.advice]
    lines += ["", *(f"- {markdown_cell(note)}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def _not_compared(report: Report) -> list[str]:
    """Return a line for each reason, with the facts that it excludes."""
    titles: dict[str, list[str]] = {}
    for one in report.not_compared:
        titles.setdefault(one.reason, []).append(one.title)
    return [f"not compared: {', '.join(same)}: {reason}" for reason, same in titles.items()]


def _rows(findings: Iterable[Finding]) -> list[str]:
    rows = []
    for one in findings:
        rows.append(f"  {MARKS[one.status]:<8}  {one.title}: {one.before} -> {one.after}")
        rows += [f"            {detail}" for detail in one.details]
    return rows
