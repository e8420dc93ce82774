"""What a CI system reads of a guard."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bexplore.guard import Finding, Report, Status, Tier
from bexplore.guard.report import NotCompared
from bexplore.output.guard_report import (
    annotate_error,
    append_step_summary,
    error_markdown,
    github_annotations,
    guard_markdown,
    write_junit,
    write_junit_error,
)
from tests.unit.guard.builders import report_of


def test_junit_fails_the_worse_skips_the_rest_and_fails_on_nothing(tmp_path):
    path = tmp_path / "guard.xml"
    missing = (NotCompared(title="times", reason="other machine"),)

    write_junit(report_of(Status.SAME, Status.WORSE, not_compared=missing), path)
    suite = ElementTree.parse(path).getroot()
    write_junit(report_of(), path)
    empty = ElementTree.parse(path).getroot()

    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    assert empty.get("failures") == "1"


@pytest.mark.parametrize(
    "report",
    [
        report_of(Status.SAME, Status.UNSURE),
        report_of(Status.SAME, Status.BETTER, Status.CHANGED),
        report_of(Status.WORSE, toolchain_changes=("torch 2.11 -> 2.13",)),
    ],
    ids=lambda report: report.verdict,
)
def test_junit_skips_what_is_neither_a_pass_nor_a_regression(tmp_path, report):
    path = tmp_path / "guard.xml"
    write_junit(report, path)

    suite = ElementTree.parse(path).getroot()
    skipped = [case.get("name") for case in suite if case.find("skipped") is not None]

    assert suite.get("failures") == "0"
    assert skipped == ["verdict"] + ["fact"] * len([one for one in report.findings if one.status is not Status.SAME])


def test_beside_a_slower_pass_what_moved_with_the_toolchain_stays_excused(tmp_path):
    path = tmp_path / "guard.xml"
    slower = report_of(Status.WORSE, tier=Tier.SAME_JOB).findings
    excused = dataclasses.replace(report_of(Status.WORSE).findings[0], title="excused")
    report = dataclasses.replace(report_of(toolchain_changes=("torch 2.11 -> 2.13",)), findings=(*slower, excused))

    write_junit(report, path)

    failed = [case.get("name") for case in ElementTree.parse(path).getroot() if case.find("failure") is not None]
    assert failed == ["verdict", "fact"]
    assert [line.split()[0] for line in github_annotations(report, tmp_path)] == ["::error", "::notice"]


def test_an_annotation_names_the_users_file_and_line_where_it_exists(tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text("")

    (line,) = github_annotations(report_of(Status.WORSE), tmp_path)
    (elsewhere,) = github_annotations(report_of(Status.WORSE), tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    (in_working_directory,) = github_annotations(report_of(Status.WORSE), Path("configs"))

    assert in_working_directory.startswith("::error file=m.py,line=3,")
    assert line.startswith(f"::error file={tmp_path}/m.py,line=3,title=bexplore guard::fact")
    assert elsewhere.startswith("::error file=job.yaml,")


def test_an_annotation_is_one_line_whatever_it_says(tmp_path):
    finding = Finding(name="f", title="100 %\nfact", tier=Tier.ANY_MACHINE, status=Status.WORSE, details=("a", "b"))

    (line,) = github_annotations(Report(config="a,b:c.yaml", reference="r", findings=(finding,)), tmp_path)

    assert "\n" not in line
    assert "100 %25%0Afact" in line
    assert "file=a%2Cb%3Ac.yaml" in line


def test_the_step_summary_is_added_to(tmp_path, monkeypatch):
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))

    append_step_summary(guard_markdown(report_of(Status.WORSE)))
    append_step_summary(error_markdown("job.yaml", "a | b"))

    assert page.read_text().startswith("before\n### bexplore guard: regression")
    assert page.read_text().endswith("### bexplore guard: error\n\n`job.yaml`: a \\| b\n")


def test_an_error_has_a_test_case_that_is_no_failure_of_the_program(tmp_path):
    path = tmp_path / "guard.xml"
    write_junit_error("job.yaml", "job.yaml:3: wrong", path)
    suite = ElementTree.parse(path).getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["1", "0", "0", "1"]
    found = suite.find("testcase/error")
    assert found is not None and found.get("message") == "job.yaml:3: wrong"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("a/job.yaml:3: wrong", "file=a/job.yaml,line=3"),
        ("2 problems in a/job.yaml\n  a/job.yaml:12: one\n  a/job.yaml:14: other", "file=a/job.yaml,line=12"),
        ("no baseline b.json", "file=a/job.yaml"),
    ],
)
def test_an_error_is_annotated_at_the_line_that_it_names(message, place):
    assert annotate_error("a/job.yaml", message).startswith(f"::error {place},title=bexplore guard::")
