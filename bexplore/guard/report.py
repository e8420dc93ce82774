"""What the guard found: `Finding`, `Verdict`, `Report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bexplore.errors import ExitCode


class Tier(StrEnum):
    """Where a fact is exact, and so may be compared."""

    ANY_MACHINE = "any machine"
    SAME_TOOLCHAIN = "same torch, device kind and instruction set"
    SAME_JOB = "within one job"  # times, interleaved
    SAME_MACHINE = "same machine"  # times of another day


class Status(StrEnum):
    """How one fact compares with the baseline."""

    SAME = "same"
    WORSE = "worse"
    BETTER = "better"
    CHANGED = "changed"  # other than before, and neither better nor worse by itself
    UNSURE = "unsure"


class Verdict(StrEnum):
    """The guard's one word."""

    UNCHANGED = "unchanged"
    REGRESSION = "regression"
    STALE_BASELINE = "stale baseline"
    TOOLCHAIN_CHANGED = "toolchain changed"
    INCONCLUSIVE = "inconclusive"
    NOTHING_MEASURED = "nothing measured"


# A gate may neither pass nor blame where the baseline does not speak of this program: that is 5, as where noise hides
# the answer.
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
    """One fact, before and now.

    Attributes:
        name: Of the fact, as in the baseline file.
        title: The same for people.
        tier: Where it may be compared.
        status: How it compares.
        before: Of the baseline, for people.
        after: Of now, for people.
        details: What changed, a line each: new operators, lost fusions, breaks with file and line.
        where: `file.py:12` of the first thing that is new; empty where there is none.
    """

    name: str
    title: str
    tier: Tier
    status: Status
    before: str = ""
    after: str = ""
    details: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A fact that could not be compared, and why."""

    title: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one run of the guard found.

    Attributes:
        config: The configuration, as it was named.
        reference: What it was compared with: the baseline file, a revision, a second configuration.
        findings: One for each fact that was compared.
        not_compared: What could not be compared.
        toolchain_changes: Differences of the toolchain, a line each; empty where it is the same.
        job_changes: Settings of the job that differ, a line each.
        advice: What to do next, a line each.
        elapsed_s: Seconds that the run took.
    """

    config: str
    reference: str
    findings: tuple[Finding, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    toolchain_changes: tuple[str, ...] = ()
    job_changes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    elapsed_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The most serious thing that is true; another toolchain excuses its own exact facts, and never a time."""
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
        """What the process says to the shell."""
        return EXIT_CODES[self.verdict]

    def is_regression(self, one: Finding) -> bool:
        """Whether a finding is the program's own fault: worse, and not by another toolchain."""
        return one.status is Status.WORSE and (one.tier is Tier.SAME_JOB or not self.toolchain_changes)

    def those(self, *statuses: Status) -> list[Finding]:
        """The findings of some statuses, in order."""
        return [one for one in self.findings if one.status in statuses]

    def as_dict(self) -> dict[str, Any]:
        """The `guard` event."""
        return {
            "event": "guard",
            "verdict": self.verdict.value,
            "exit_code": int(self.exit_code),
            **{name: value for name, value in dataclasses.asdict(self).items()},
        }


def merged(reports: Sequence[Report], **changes: Any) -> Report:
    """One report with the findings of several."""
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
