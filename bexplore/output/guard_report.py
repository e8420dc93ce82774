"""The guard's report: a table for people, and JUnit XML, annotations and a step summary for continuous integration."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path

from bexplore.errors import EngineError, ExitCode
from bexplore.guard import Finding, Report, Status, Verdict
from bexplore.output.table import Table, markdown_cell
from bexplore.units import counted, format_seconds

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
    compared = counted(len(report.findings), "fact")
    counts = f"  {compared} compared, {same} the same, in {format_seconds(report.elapsed_s)}"
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


def error_markdown(config: str, message: str) -> str:
    """Return an error as Markdown for a summary page."""
    return f"### bexplore guard: error\n\n`{config}`: {markdown_cell(message)}\n"


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


_NOT_THE_SAME = (Status.WORSE, Status.UNSURE, Status.BETTER, Status.CHANGED)


def write_junit(report: Report, path: Path) -> None:
    """Write one test case per fact, and one for the verdict, which alone fails where nothing was measured.

    A regression by the exit code fails. Other findings are skipped with their reason: unsure, better, changed, worse by
    another toolchain, not compared.

    Raises:
        EngineError: The file cannot be written.
    """
    suite = ElementTree.Element("testsuite", name=f"bexplore guard {report.config}", time=f"{report.elapsed_s:.3f}")
    verdict = _case(suite, "verdict")
    if report.exit_code is not ExitCode.DONE:
        text = "\n".join([*report.toolchain_changes, *report.job_changes, *report.advice])
        tag = "failure" if report.exit_code is ExitCode.REGRESSION else "skipped"
        _child(verdict, tag, f"{report.verdict}: {MEANINGS[report.verdict]}", text)
    for one in report.findings:
        case = _case(suite, one.title)
        if one.status is not Status.SAME:
            tag = "failure" if report.is_regression(one) else "skipped"
            _child(case, tag, _sentence(one), "\n".join(one.details))
    for missing in report.not_compared:
        _child(_case(suite, missing.title), "skipped", missing.reason, "")
    _write_suite(suite, path)


def write_junit_error(config: str, message: str, path: Path) -> None:
    """Write a verdict that is an error, where no report could be made.

    Raises:
        EngineError: The file cannot be written.
    """
    suite = ElementTree.Element("testsuite", name=f"bexplore guard {config}")
    _child(_case(suite, "verdict"), "error", message, "")
    _write_suite(suite, path)


def _write_suite(suite: ElementTree.Element, path: Path) -> None:
    suite.set("tests", str(len(suite)))
    for tag, total in (("failure", "failures"), ("skipped", "skipped"), ("error", "errors")):
        suite.set(total, str(sum(case.find(tag) is not None for case in suite)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error.strerror}", hint="check the folder") from error


def github_annotations(report: Report, config_folder: Path) -> list[str]:
    """Return workflow commands that GitHub shows at source lines.

    Args:
        config_folder: Folder of the configuration, relative to the repository. The user's code lies there or in the
            working directory.
    """
    lines = []
    for one in report.find_by_status(*_NOT_THE_SAME):
        level = "error" if report.is_regression(one) else "notice" if report.toolchain_changes else "warning"
        place = _place(one.where, config_folder, report.config)
        message = "\n".join([_sentence(one), *one.details])
        lines.append(f"::{level} {place},title=bexplore guard::{_escaped(message)}")
    if report.verdict in (Verdict.TOOLCHAIN_CHANGED, Verdict.NOTHING_MEASURED):
        level = "error" if report.verdict is Verdict.NOTHING_MEASURED else "warning"
        message = "; ".join([f"{report.verdict}: {MEANINGS[report.verdict]}", *report.toolchain_changes])
        lines.append(f"::{level} title=bexplore guard::{_escaped(message)}")
    return lines


def annotate_error(config: str, message: str) -> str:
    """Return the workflow command of an error: GitHub shows it at the first line of the file that it names, if any."""
    found = re.search(rf"{re.escape(config)}:(\d+)", message)
    line = f",line={found[1]}" if found else ""
    return f"::error file={_property(config)}{line},title=bexplore guard::{_escaped(message)}"


def append_step_summary(markdown: str) -> None:
    """Append to the step's summary page, where GitHub has one.

    Raises:
        EngineError: The file cannot be written.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a") as handle:
            handle.write(markdown)
    except OSError as error:
        raise EngineError(f"cannot write the step summary {path}: {error.strerror}") from error


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="bexplore.guard", name=name)


def _child(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, tag, message=message).text = text


def _sentence(one: Finding) -> str:
    return f"{one.title}: {one.before} -> {one.after} ({one.status})"


def _place(where: str, folder: Path, config: str) -> str:
    """Return `file=...,line=...`: the user's line if its file is found, else the configuration."""
    name, _, line = where.rpartition(":")
    found = next((path for path in (folder / name, Path(name)) if path.is_file()), None)
    return f"file={_property(config)}" if found is None else f"file={_property(str(found))},line={line}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
