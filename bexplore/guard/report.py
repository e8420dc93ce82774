"""The findings of the guard: `Finding`, `Verdict`, `Report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bexplore.errors import ExitCode


class Tier(StrEnum):
    """Where a fact is exact and may be compared."""

    ANY_MACHINE = "any machine"
    SAME_TOOLCHAIN = "same torch, device kind and instruction set"
    SAME_JOB = "within one job"  # times, in alternation
    SAME_MACHINE = "same machine"  # times of separate jobs


class Status(StrEnum):
    """The comparison of one fact with the baseline."""

    SAME = "same"
    WORSE = "worse"
    BETTER = "better"
    CHANGED = "changed"  # different, and neither better nor worse by itself
    UNSURE = "unsure"


class Verdict(StrEnum):
    """The answer of one run."""

    UNCHANGED = "unchanged"
    REGRESSION = "regression"
    STALE_BASELINE = "stale baseline"
    TOOLCHAIN_CHANGED = "toolchain changed"
    INCONCLUSIVE = "inconclusive"
    NOTHING_MEASURED = "nothing measured"


# A gate may neither pass nor fail where the baseline describes another program: code 5, as for noise.
EXIT_CODES = {
    Verdict.UNCHANGED: ExitCode.DONE,
    Verdict.REGRESSION: ExitCode.REGRESSION,
    Verdict.NOTHING_MEASURED: ExitCode.REGRESSION,
    Verdict.STALE_BASELINE: ExitCode.INCONCLUSIVE,
    Verdict.TOOLCHAIN_CHANGED: ExitCode.INCONCLUSIVE,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One compared fact."""

    name: str  # the fact, as in the baseline file
    title: str  # its name for people
    tier: Tier  # where it may be compared
    status: Status  # the result of the comparison
    before: str = ""  # the baseline's value, for people
    after: str = ""  # the present value, for people
    details: tuple[str, ...] = ()  # changes, a line each: new operators, lost fusions, breaks with file and line
    where: str = ""  # `file.py:12` of the first new item; empty for none


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A fact that could not be compared, and the reason."""

    title: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a report: findings, what could not be compared, and next steps."""

    findings: tuple[Finding, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of one run of the guard."""

    config: str  # the configuration, as it was named
    reference: str  # the baseline file, revision or second configuration
    findings: tuple[Finding, ...] = ()  # one for each compared fact
    not_compared: tuple[NotCompared, ...] = ()  # facts that could not be compared
    toolchain_changes: tuple[str, ...] = ()  # differences of the toolchain, a line each
    job_changes: tuple[str, ...] = ()  # differences of the job's settings, a line each
    advice: tuple[str, ...] = ()  # next steps, a line each
    elapsed_s: float = 0.0  # duration of the run, seconds

    @property
    def verdict(self) -> Verdict:
        """Return the most serious answer; another toolchain excuses exact facts, never times of the same job."""
        if not self.findings:
            return Verdict.NOTHING_MEASURED
        if any(self.is_regression(one) for one in self.findings):
            return Verdict.REGRESSION
        if self.toolchain_changes:
            return Verdict.TOOLCHAIN_CHANGED
        if any(one.status is Status.UNSURE for one in self.findings):
            return Verdict.INCONCLUSIVE
        if any(one.status in (Status.BETTER, Status.CHANGED) for one in self.findings):
            return Verdict.STALE_BASELINE
        return Verdict.UNCHANGED

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the process."""
        return EXIT_CODES[self.verdict]

    def is_regression(self, one: Finding) -> bool:
        """Return whether a finding is worse, and not because of another toolchain."""
        return one.status is Status.WORSE and (one.tier is Tier.SAME_JOB or not self.toolchain_changes)

    def find_by_status(self, *statuses: Status) -> list[Finding]:
        """Return the findings of these statuses, in order."""
        return [one for one in self.findings if one.status in statuses]

    def as_record(self) -> dict[str, Any]:
        """Return the `guard` event."""
        return {
            "event": "guard",
            "verdict": self.verdict.value,
            "exit_code": int(self.exit_code),
            **dataclasses.asdict(self),
        }


def merge_reports(reports: Sequence[Report], **changes: Any) -> Report:
    """Merge reports into one."""
    first = reports[0]
    return dataclasses.replace(
        first,
        findings=tuple(one for report in reports for one in report.findings),
        not_compared=tuple(one for report in reports for one in report.not_compared),
        toolchain_changes=tuple(dict.fromkeys(line for report in reports for line in report.toolchain_changes)),
        job_changes=tuple(dict.fromkeys(line for report in reports for line in report.job_changes)),
        advice=tuple(dict.fromkeys(line for report in reports for line in report.advice)),
        **changes,
    )
