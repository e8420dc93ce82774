"""The events of a whole exploration, from the plan to the result; those of the loop are in `bexplore.search.result`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bexplore.job.batching import GlobalBatchSize
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run
from bexplore.run.selection import LeftOut
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan of an exploration.

    Attributes:
        title: The job in a few words.
        run: The run on disk; None in a dry run.
        num_known_probes: Observations of an unfinished run that is resumed.
        changes: Why the newest earlier run cannot be resumed, a line for each difference.
        device: The device, as torch names it.
        candidates: The candidate sizes in words.
        max_probes: Upper bound on probes.
        expected_s: Rough duration of the whole; None if unknown.
        warnings: Facts to know in advance.
        notices: What the exploration will do on the machine, for people.
        num_parameters: Elements of all parameters; None before the trace.
        why_expected: The source of `expected_s`, or why it is unknown; empty outside of a dry run.
    """

    title: str
    run: Run | None
    num_known_probes: int
    changes: tuple[str, ...]
    device: str
    candidates: str
    max_probes: int
    expected_s: float | None
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    num_parameters: int | None = None
    why_expected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The predictions of the trace for every size.

    Attributes:
        record: The fields of the `trace` event; None where the program could be neither traced nor measured.
        reason: Why it could not be traced; empty where it could.
        memory_budget_bytes: The budget in force.
        why_budget: The source of the budget.
        warnings: Facts to know about the budget.
        variants: The variants of the search, by their numbers in it; empty for a job with one. Each has its `name`,
            its `settings`, `max_micro_batch_size` (0 where no size fits, None without a trace),
            `operations_over_file` (None where unknown) and the `reason` why it could not be traced.
        left_out: Variants that the search does not take.
    """

    record: Mapping[str, Any] | None
    reason: str
    memory_budget_bytes: int
    why_budget: str
    warnings: tuple[str, ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The current recommendation.

    Attributes:
        recommendation: Size, relative performance, confidence.
        global_batch_sizes: Valid global batch sizes around the user's own.
        settings: The values to set, by key of `explore.settings`; empty for a job with one variant.
        name: The settings in words; empty likewise.
        micro_batch_tokens: Tokens of a micro-batch, where they are what is explored; else None.
    """

    recommendation: Recommendation
    global_batch_sizes: tuple[GlobalBatchSize, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    micro_batch_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The exploration ended, perhaps by an interruption."""

    result: RunResult
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFinished:
    """A finished run of the same job was found; nothing is run again."""

    result: RunResult
    run: Run


JobEvent = Planned | Traced | ProbeStarted | ProbeFinished | Recommended | Finished | AlreadyFinished
