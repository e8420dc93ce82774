"""How the search went: its probes by outcome, why it ended, and what did not run."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bexplore.measurement.probe import Observation, Outcome
from bexplore.run.facts import Facts
from bexplore.run.parts.row import Row, View
from bexplore.search.policy.decision import StopReason
from bexplore.search.policy.first_probe import without_numbers
from bexplore.search.posterior.posterior import CredibleBand
from bexplore.search.recommendation import Recommendation
from bexplore.search.space import DEFAULT_MAXIMUM
from bexplore.units import counted, format_rate, format_seconds

STOP_REASONS: dict[str, str] = {
    StopReason.TARGET_CONFIDENCE: "the requested confidence{target} is reached",
    StopReason.COSTS_MORE_THAN_IT_SAVES: "another probe is not expected to save enough for its cost",
    StopReason.NOTHING_LEFT: "no further probe is worth its cost",
    StopReason.MAX_PROBES: "the allowed number of probes is used up; a larger explore.max_probes searches on",
    StopReason.TIME_BUDGET: "the allowed time is used up; a larger explore.time_budget searches on",
    StopReason.INTERRUPTED: "it was interrupted; the same command resumes it",
}
# What may end a search by a limit, and the setting that is the limit: with a larger one it goes on.
LIMITS: dict[str, str] = {StopReason.MAX_PROBES: "max_probes", StopReason.TIME_BUDGET: "time_budget_s"}
# Share by which the answer must be slower than another size to be told so. Source: speeds are printed with four digits.
LEAST_SHARE = 0.001
# What `SearchPart.bound` says, in words.
_BOUNDS: dict[str, str] = {
    "": "",
    "max": "; the answer is explore.max, above which nothing is tried",
    "batch": "; the answer is all of the batch of a step on one replica, which larger sizes exceed",
    "default_max": f"; above {DEFAULT_MAXIMUM} a command is tried with a larger explore.max alone",
}
APART = 0.02  # share of a measured speed from which a speed differs. Source: the indifference zone
MAX_TRACEBACK_LINES = 8
MAX_FAILURES = 4  # reasons; more would push the answer off the screen


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failed probes whose reasons differ in numbers at most."""

    outcome: str  # how they ended
    reason: str  # the reason of the first
    traceback_text: str = ""  # the traceback of the first; empty for none
    micro_batch_sizes: tuple[int, ...] = ()  # all their sizes, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPart:
    """How the search went."""

    num_probes: int | None = None  # all probes, whatever their outcome
    num_probes_after: int = 0  # those of them that check the answer after the search
    elapsed_s: float | None = None  # seconds from the start of the exploration
    stop_reason: str = ""  # a `StopReason`, or the text of `should_stop`
    # The limit that ended it, in probes or seconds; None for another reason, and for the share of a training's time.
    limit: float | None = None
    # Share by which its speed falls behind the fastest that ran, by the one estimate of each; 0 for the fastest itself.
    behind_fastest: float = 0.0
    # Samples/s of each probe of the answer, as measured, ascending, and the size with the highest median above them;
    # empty and None where the printed speed is among them, and no size is above.
    measured_samples_per_s: tuple[float, ...] = ()
    measured_faster: tuple[int, float] | None = None
    # What keeps the answer from being larger: `max`, the `batch` of a step on one replica, or the `default_max` of a
    # command for which neither is given; empty for nothing
    bound: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)  # number of probes by outcome
    # The sizes at which the program runs, where a rule explains its failures; None for no such rule.
    runs_at: str | None = None
    failures: tuple[FailureGroup, ...] = ()  # probes that did not run, grouped by reason
    throughput_band: CredibleBand | None = None  # the final posterior of throughput

    @classmethod
    def find(cls, facts: Facts) -> SearchPart:
        """Count the probes and group those that did not run."""
        searched = facts.searched
        return cls(
            num_probes=len(facts.observations),
            num_probes_after=sum(one.is_after_search for one in facts.observations),
            elapsed_s=facts.elapsed_s,
            stop_reason=str(searched.stop_reason),
            behind_fastest=_find_share_behind(facts.best),
            **_compare_measured(facts),
            bound=_find_bound(facts),
            outcomes=dict(searched.outcomes),
            runs_at=searched.runs_at,
            failures=group_failures(facts.observations),
            throughput_band=CredibleBand.from_posterior(searched.posterior and searched.posterior.part(facts.variant)),
        )

    def rows(self, view: View) -> Iterator[Row]:
        """Yield why the answer is the answer, the rule of the sizes that run, and what failed."""
        best = "largest" if view.is_emulated else "fastest" if self.measured_faster is None else "likeliest the fastest"
        if self.behind_fastest >= LEAST_SHARE and not view.is_emulated:
            best = f"within {math.ceil(1000.0 * self.behind_fastest) / 10.0:.1f}% of the fastest"
        probes, outcomes = counted(self.num_probes or 0, "probe"), outcomes_words(self.outcomes)
        if self.num_probes_after:
            outcomes += f"; {self.num_probes_after} of them after the search, to check the answer"
        ended = f"ended because {self.stop_words(view)}"
        ended += _BOUNDS[self.bound]
        yield Row("why", f"{best} of {probes} ({outcomes}) in {format_seconds(self.elapsed_s)}; {ended}")
        if self.measured_samples_per_s and not (view.is_emulated or view.is_estimated):
            yield Row("measured", self._measured_words())
        if self.runs_at:
            yield Row("runs at", self.runs_at)
        yield from self.failed_rows()

    def _measured_words(self) -> str:
        rates = [format_rate(rate) for rate in self.measured_samples_per_s]
        words = f"{', '.join(rates)} samples/s in {'its only probe' if len(rates) == 1 else 'the probes of this size'}"
        if self.measured_faster is not None:
            size, rate = self.measured_faster
            words += f", and {format_rate(rate)} at size {size}"
        return f"{words}; the answer and its speed are the likeliest by all probes and their noise"

    def stop_words(self, view: View) -> str:
        """Return why an exploration ended, in words; a text of `should_stop` is returned as it is."""
        if view.is_emulated and self.stop_reason in (StopReason.TARGET_CONFIDENCE, StopReason.COSTS_MORE_THAN_IT_SAVES):
            return "a clearly larger size is unlikely to fit"
        decided = (StopReason.TARGET_CONFIDENCE, StopReason.COSTS_MORE_THAN_IT_SAVES, StopReason.NOTHING_LEFT)
        if view.is_estimated and self.stop_reason in decided:
            return "the estimates of other sizes would not change it"
        if view.is_estimated and self.stop_reason == StopReason.MAX_PROBES:
            return "the allowed number of probes is used up; a larger explore.max_probes estimates further sizes"
        target = "" if view.target_confidence is None else f", {view.target_confidence:g} out of 100,"
        return STOP_REASONS.get(self.stop_reason, self.stop_reason).replace("{target}", target)

    def failed_rows(self) -> Iterator[Row]:
        """Yield the failures; a size that is too big is none."""
        failures = [item for item in self.failures if item.outcome != Outcome.OUT_OF_MEMORY]
        told: list[list[str]] = []  # frames that are on the screen: one bug may raise several texts
        for item in failures[:MAX_FAILURES]:
            sizes = ", ".join(map(str, item.micro_batch_sizes))
            yield Row("failed", f"{sizes}: {item.outcome.replace('_', ' ')}: {item.reason}")
            lines = _users_lines(item.traceback_text, item.reason)
            if lines not in told:
                told.append(lines)
                yield from (Row("failed", line) for line in lines)
        hidden = len(failures) - MAX_FAILURES
        if hidden > 0:
            yield Row("failed", f"and {counted(hidden, 'more reason')} in the run log")


def _find_bound(facts: Facts) -> str:
    size, config = None if facts.best is None else facts.best.micro_batch_size, facts.config
    if size is None or size == config.maximum:
        return "" if size is None else "max"
    if config.command is None:
        return ""
    if size == config.replica_batch_size:
        return "batch"
    return "default_max" if config.maximum is None and size == DEFAULT_MAXIMUM else ""


def _find_share_behind(best: Recommendation | None) -> float:
    """Return the share by which the answer is slower than the fastest size of its variant that ran."""
    own = None if best is None else best.speed(best.micro_batch_size)
    if best is None or own is None:
        return 0.0
    fastest = max(one.samples_per_s for one in best.speeds if one.variant == best.variant)
    return max(0.0, 1.0 - own.samples_per_s / fastest)


def _compare_measured(facts: Facts) -> dict[str, Any]:
    """Return what was measured at the answer where its printed speed, or another size's probes, are apart from that."""
    size = None if facts.best is None else facts.best.micro_batch_size
    told = None if facts.best is None or size is None else facts.best.speed(size)
    rates: dict[int, list[float]] = {}
    for one in facts.observations:
        if one.is_measured and one.probe.variant == facts.variant and not (one.is_emulated or one.is_estimated):
            rates.setdefault(one.micro_batch_size, []).append(one.samples_per_s)
    if size not in rates or told is None:
        return {}
    own = sorted(rates[size])
    medians = {other: statistics.median(found) for other, found in rates.items() if other != size}
    fastest = max(medians, key=lambda other: medians[other], default=size)
    faster = (fastest, medians[fastest]) if medians.get(fastest, 0.0) > own[-1] * (1.0 + APART) else None
    is_among = own[0] * (1.0 - APART) <= told.samples_per_s <= own[-1] * (1.0 + APART)
    return {} if is_among and faster is None else {"measured_samples_per_s": tuple(own), "measured_faster": faster}


def group_failures(observations: Sequence[Observation]) -> tuple[FailureGroup, ...]:
    """Group the failed probes by reasons that differ in more than numbers."""
    by_reason: dict[tuple[str, str], list[Observation]] = {}
    for observation in observations:
        if not observation.is_measured:
            key = (observation.outcome.value, without_numbers(observation.reason))
            by_reason.setdefault(key, []).append(observation)
    return tuple(
        FailureGroup(
            outcome=alike[0].outcome.value,
            reason=alike[0].reason,
            traceback_text=alike[0].traceback_text,
            micro_batch_sizes=tuple(sorted({observation.micro_batch_size for observation in alike})),
        )
        for alike in by_reason.values()
    )


def outcomes_words(outcomes: Mapping[str, int]) -> str:
    """Return the number of probes by outcome, in words."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(outcomes.items()))


def _users_lines(traceback_text: str, reason: str) -> list[str]:
    """Return the user's own last frames of a traceback, without those of torch and of the worker, and the reason.

    Of a text without frames, such as the end of a log, return the last lines.
    """
    lines: list[str] = []
    is_own = False
    for line in traceback_text.strip().splitlines():
        if line.startswith("  File "):
            is_own = not re.search(r"/(torch|bexplore/(engine|workloads))/", line)
        is_frame = line.startswith("  ")
        is_marker = not line.strip("^~ ")
        if (is_frame and is_own and not is_marker) or (not is_frame and line.strip()):
            lines.append(f"  {line}")
        is_own = is_own and is_frame
    if lines and lines[-1].strip() in reason:
        lines.pop()
    if len(lines) <= MAX_TRACEBACK_LINES:
        return lines
    lines = lines[-MAX_TRACEBACK_LINES:]
    return lines[next((place for place, line in enumerate(lines) if line.startswith("    File ")), 0) :]
