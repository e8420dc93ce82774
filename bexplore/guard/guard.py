"""One run of the guard: find the facts of the present program, compare, report."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.errors import UserInputError
from bexplore.guard import neighbour_sizes
from bexplore.guard.baseline import Baseline, read_baseline, write_baseline
from bexplore.guard.compare import compare_metrics
from bexplore.guard.paired_timing import TIME_LIMIT_S, watch_processors
from bexplore.guard.pairs import Part, broken, paired_times
from bexplore.guard.reference import open_reference
from bexplore.guard.report import Finding, NotCompared, Report, Status, Tier, merged
from bexplore.guard.snapshot import (
    DEVICE_KEYS,
    HOST_KEYS,
    Guarded,
    Observed,
    RecommendedSizeFailedError,
    Setup,
    guarded,
    observe,
    time_sizes,
)
from bexplore.guard.statistics import TIME_TOLERANCE
from bexplore.run import run_directory

EXACT = frozenset({Tier.ANY_MACHINE, Tier.SAME_TOOLCHAIN})
TIMES = frozenset({Tier.SAME_JOB, Tier.SAME_MACHINE})


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """The options of the guard.

    Attributes:
        baseline_path: The baseline file; None for none.
        against: A revision, second configuration or folder to compare with in this job; None for none.
        tiers: The facts to compare.
        time_tolerance: Relative difference of times that counts as none.
        time_limit_s: Upper bound on the seconds of all pairs of workers of `against`.
        micro_batch_size: The size to guard; None for the baseline's, the configuration's or the newest result's.
        model_dir: Folder of the results; None for the configuration's own.
        load: Loads a second configuration with the options of the first.
        say: Called with progress lines.
    """

    baseline_path: Path | None = None
    against: str | None = None
    tiers: frozenset[Tier] = EXACT | TIMES
    time_tolerance: float = TIME_TOLERANCE
    time_limit_s: float = TIME_LIMIT_S
    micro_batch_size: int | None = None
    model_dir: str | None = None
    load: Callable[[Path], Config] | None = None
    say: Callable[[str], None] = lambda line: None


def update_baseline(config: Config, options: GuardOptions) -> Baseline:
    """Write the baseline file of the present program.

    Raises:
        UserInputError: No file is named, or the program has no facts to guard.
        EngineError: A worker or the disk failed.
    """
    if options.baseline_path is None:
        raise UserInputError("there is no baseline to write", hint="name its file: --baseline FILE --update")
    setup, folder = _setup(config, options)
    wanted = guarded(config, options.micro_batch_size, folder)
    recommended, base = wanted.recommended, wanted.base
    observed = observe(config, setup, recommended=recommended, base=base, settings=wanted.settings)
    facts = observed.snapshot.any_device
    if facts.num_parameters is None and facts.num_graphs is None:
        raise UserInputError(
            f"this program has no facts that could be guarded: {'; '.join(facts.problems)}",
            hint="correct it first; an empty baseline would let everything pass",
        )
    times: neighbour_sizes.Times = ()
    if recommended is not None and setup.tiers & TIMES:
        times = time_sizes(observed, setup, _sizes(observed, recommended, base), recommended)
    baseline = dataclasses.replace(observed.snapshot, times=tuple(map(tuple, times)))
    write_baseline(options.baseline_path, baseline)
    return baseline


def guard(config: Config, options: GuardOptions) -> Report:
    """Compare the present program with a baseline file, with a reference in this job, or with both.

    Raises:
        UserInputError: There is nothing to compare with, or an option is wrong.
        EngineError: A worker failed for a reason outside of the program.
    """
    began_s = time.monotonic()
    if options.baseline_path is None and options.against is None:
        raise UserInputError(
            "there is nothing to compare with", hint="name a baseline: --baseline FILE, or a revision: --against main"
        )
    setup, folder = _setup(config, options)
    before = read_baseline(options.baseline_path) if options.baseline_path is not None else None
    wanted = _guarded(config, options, before, folder)
    now = observe(config, setup, recommended=wanted.recommended, base=wanted.base, settings=wanted.settings)
    reports = []
    if before is not None:
        reports.append(_against_baseline(before, now, setup, options))
    if options.against is not None:
        reports.append(_against_reference(options.against, now, setup, options))
    return merged(reports, elapsed_s=time.monotonic() - began_s)


def _setup(config: Config, options: GuardOptions) -> tuple[Setup, Path]:
    if config.explore.device_name is not None:
        raise UserInputError(
            "explore.device_name emulates a device, and the guard compares this machine's program and speed",
            hint="leave it out for the guard: --set explore.device_name=null",
        )
    folder = run_directory.model_directory(config.mode, options.model_dir or config.model_dir)
    run_dir = folder / "guard" / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
    return Setup(run_dir=run_dir, tiers=options.tiers, say=options.say), folder


def _guarded(config: Config, options: GuardOptions, before: Baseline | None, folder: Path) -> Guarded:
    if before is None:
        return guarded(config, options.micro_batch_size, folder)
    if options.micro_batch_size is None and before.recommended_micro_batch_size is not None:
        return Guarded(
            recommended=before.recommended_micro_batch_size,
            base=before.base_micro_batch_size,
            settings=before.settings,
        )
    # The facts of a baseline are those of its settings, whatever size is timed.
    return dataclasses.replace(guarded(config, options.micro_batch_size, folder), settings=before.settings)


def _against_baseline(before: Baseline, now: Observed, setup: Setup, options: GuardOptions) -> Report:
    changes = _differences(
        before.toolchain, now.snapshot.toolchain, sorted({*before.toolchain, *now.snapshot.toolchain})
    )
    exact = _exact(before, now.snapshot, options.tiers, _why_not(before, now.snapshot, changes))
    times = _baseline_times(before, now, setup, options, changes)
    advice = []
    if changes:
        advice.append("check what changed with the toolchain, then write a new baseline with --update")
    report = Report(
        config=str(now.config.path),
        reference=str(options.baseline_path),
        findings=(*exact.findings, *times.findings),
        not_compared=(*exact.not_compared, *times.not_compared),
        toolchain_changes=tuple(changes),
        job_changes=tuple(_job_changes(before.job, now.snapshot.job)),
    )
    if not changes and report.those(Status.BETTER, Status.CHANGED) and not report.those(Status.WORSE):
        advice.append("if the change is intended, write a new baseline with --update, in the same commit")
    return dataclasses.replace(report, advice=(*advice, *times.advice))


def _why_not(before: Baseline, after: Baseline, toolchain_changes: Sequence[str]) -> dict[Tier, str]:
    """Return why each exact tier cannot be compared; an empty text where it can."""
    device = _differences(before.machine, after.machine, DEVICE_KEYS)
    return {
        Tier.ANY_MACHINE: "",
        Tier.SAME_TOOLCHAIN: "; ".join([*toolchain_changes, *device]),
    }


def _exact(before: Baseline, after: Baseline, tiers: frozenset[Tier], why_not: Mapping[Tier, str]) -> Part:
    """Compare the facts of any machine in the CPU's program, the others in that of the job's own device."""
    findings: list[Finding] = []
    missing: list[NotCompared] = []
    for tier in (Tier.ANY_MACHINE, Tier.SAME_TOOLCHAIN):
        if tier not in tiers:
            continue
        own = tier is Tier.SAME_TOOLCHAIN
        comparison = compare_metrics(
            (before.device if own else None) or before.any_device,
            (after.device if own else None) or after.any_device,
            tiers={tier: why_not[tier]},
            micro_batch_size=after.recommended_micro_batch_size,
            memory_budget_bytes=after.memory_budget_bytes,
        )
        # a program that cannot be traced is reported once, though facts of both tiers are missing
        findings += [
            one for one in comparison.findings if (one.name, one.details) not in {(f.name, f.details) for f in findings}
        ]
        missing += comparison.not_compared
    return Part(findings=tuple(findings), not_compared=tuple(missing))


def _baseline_times(
    before: Baseline, now: Observed, setup: Setup, options: GuardOptions, toolchain_changes: Sequence[str]
) -> Part:
    """Compare the recommended size with its neighbours, and with the baseline where that is fair."""
    recommended, base = now.snapshot.recommended_micro_batch_size, now.snapshot.base_micro_batch_size
    if not options.tiers & TIMES:
        return Part()
    if recommended is None:
        reason = "no recommended size is known: run bexplore explore first, or give --micro-batch-size"
        return Part(not_compared=(neighbour_sizes.why_no_times(reason, None),))
    host = _differences(before.machine, now.snapshot.machine, (*DEVICE_KEYS, *HOST_KEYS))
    why_not = "; ".join([*toolchain_changes, *host]) or ("" if before.times else "the baseline has no times")

    remark = watch_processors()

    def judged(times: neighbour_sizes.Times) -> list[Finding]:
        findings = neighbour_sizes.still_wins(times, recommended, options.time_tolerance, is_busy=bool(remark()))
        if not toolchain_changes and base is not None and base != recommended:
            findings += neighbour_sizes.relative_performance(before, times, recommended, base, options.time_tolerance)
        if not why_not:
            findings += neighbour_sizes.times_of_another_day(before, times, recommended, options.time_tolerance)
        return findings

    sizes = _sizes(now, recommended, base)
    try:
        times = time_sizes(now, setup, sizes, recommended)
        findings = judged(times)
        if any(one.status in (Status.WORSE, Status.CHANGED) for one in findings):
            setup.say("measuring again to confirm it")
            again = time_sizes(now, setup, sizes, recommended)
            findings = _confirmed(judged((*times, *again)), judged(again))
    except RecommendedSizeFailedError as error:
        return Part(findings=(broken(recommended, error.outcome),))
    advice: tuple[str, ...] = ()
    if any(one.status is Status.UNSURE for one in findings):
        busy = f"; {found}" if (found := remark()) else ""
        advice = (f"times between two jobs are noisy: --against REF measures both sides in one{busy}",)
    missing = (neighbour_sizes.why_no_times(why_not, recommended),) if why_not else ()
    return Part(findings=tuple(findings), not_compared=missing, advice=advice)


def _confirmed(together: Sequence[Finding], again: Sequence[Finding]) -> list[Finding]:
    """Return the findings of both measurements; one that the second contradicts is unsure."""
    second = {one.name: one.status for one in again}
    contradicted = (Status.SAME, Status.BETTER)
    return [
        dataclasses.replace(one, status=Status.UNSURE)
        if one.status in (Status.WORSE, Status.CHANGED) and second[one.name] in contradicted
        else one
        for one in together
    ]


def _against_reference(against: str, now: Observed, setup: Setup, options: GuardOptions) -> Report:
    with open_reference(against, now.config.path) as reference:
        if options.load is None:
            raise UserInputError("a second configuration cannot be read here", hint="give GuardOptions.load")
        config = options.load(reference.config_path)
        own = dataclasses.replace(setup, run_dir=setup.run_dir / "reference", environment=dict(reference.environment))
        snapshot = now.snapshot
        before = observe(
            config,
            own,
            recommended=snapshot.recommended_micro_batch_size,
            base=snapshot.base_micro_batch_size,
            settings=snapshot.settings,
        )
        exact = _exact(before.snapshot, snapshot, options.tiers, _why_not(before.snapshot, snapshot, ()))
        times = paired_times(
            before,
            now,
            reference,
            (own, setup),
            tiers=options.tiers,
            tolerance=options.time_tolerance,
            time_limit_s=options.time_limit_s,
        )
    return Report(
        config=str(now.config.path),
        reference=reference.title,
        findings=(*exact.findings, *times.findings),
        not_compared=(*exact.not_compared, *times.not_compared),
        job_changes=tuple(_job_changes(before.snapshot.job, snapshot.job)),
        advice=times.advice,
    )


def _sizes(observed: Observed, recommended: int, base: int | None) -> tuple[int, ...]:
    snapshot = observed.snapshot
    facts = snapshot.device or snapshot.any_device
    budget = snapshot.memory_budget_bytes
    fits = facts.max_micro_batch_size(budget) if budget is not None else None
    return neighbour_sizes.sizes_around(recommended, base, maximum=observed.config.maximum, fits=fits)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [
        f"{key} {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _job_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List the settings of the job that differ, a line each."""
    old, new = _flat(before), _flat(after)
    return _differences(old, new, sorted(old.keys() | new.keys()))


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for name, inner in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(inner, Mapping):
            pairs |= _flat(inner, key)
        elif name != "import_root":
            pairs[key] = list(inner) if isinstance(inner, tuple) else inner
    return pairs
