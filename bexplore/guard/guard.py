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
from bexplore.config.load import load_config
from bexplore.engine.program_client import metrics_in_worker
from bexplore.errors import UserInputError
from bexplore.exploration.setup import add_loader_lengths
from bexplore.guard import sizes as neighbours
from bexplore.guard.baseline import Baseline, check_can_write, read_baseline, write_baseline
from bexplore.guard.compare import compare_metrics
from bexplore.guard.pairs import TIME_LIMIT_S, report_failure, time_in_pairs, watch_processors
from bexplore.guard.reference import open_reference
from bexplore.guard.report import Finding, NotCompared, Part, Report, Status, Tier, Verdict, merge_reports
from bexplore.guard.snapshot import (
    DEVICE_KEYS,
    HOST_KEYS,
    Guarded,
    Observed,
    RecommendedSizeFailedError,
    Setup,
    find_guarded,
    observe,
    time_sizes,
)
from bexplore.guard.timing import TIME_TOLERANCE
from bexplore.run import run_directory
from bexplore.trace.program_metrics import ProgramMetrics

EXACT = frozenset({Tier.ANY_MACHINE, Tier.SAME_TOOLCHAIN})
TIMES = frozenset({Tier.SAME_JOB, Tier.SAME_MACHINE})
# Verdicts at which a fixture of `bexplore.pytest_plugin` skips its test.
UNDECIDED = (Verdict.TOOLCHAIN_CHANGED, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """The options of the guard."""

    baseline_path: Path | None = None  # the baseline file; None for none
    against: str | None = None  # a revision, second configuration or folder to compare with in this job; None for none
    tiers: frozenset[Tier] = EXACT | TIMES  # the facts to compare
    time_tolerance: float = TIME_TOLERANCE  # relative difference of times that counts as none
    time_limit_s: float = TIME_LIMIT_S  # upper bound on the seconds of all pairs of workers of `against`
    # The size to guard; None for the baseline's, the configuration's or the newest result's.
    micro_batch_size: int | None = None
    model_dir: str | None = None  # folder of the results; None for the configuration's own
    load: Callable[[Path], Config] | None = None  # loads a second configuration with the options of the first
    say: Callable[[str], None] = lambda line: None  # called with progress lines


def update_baseline(config: Config, options: GuardOptions) -> Baseline:
    """Write the baseline file of the present program."""
    if options.baseline_path is None:
        raise UserInputError("there is no baseline to write", hint="name its file: `baseline_path=FILE`")
    check_can_write(options.baseline_path)
    setup, folder = _set_up(config, options)
    wanted = find_guarded(config, options.micro_batch_size, folder)
    observed = observe(config, setup, wanted)
    facts = observed.snapshot.any_device
    if facts.num_parameters is None and facts.num_graphs is None:
        raise UserInputError(
            f"this program has no facts that could be guarded: {'; '.join(facts.problems)}",
            hint="correct it first; an empty baseline would let everything pass",
        )
    times: neighbours.Times = ()
    if wanted.recommended is not None and setup.tiers & TIMES:
        times = time_sizes(observed, _choose_sizes(observed, wanted.recommended), wanted.recommended)
    baseline = dataclasses.replace(observed.snapshot, times=tuple(map(tuple, times)))
    write_baseline(options.baseline_path, baseline)
    return baseline


def guard(config: Config, options: GuardOptions) -> Report:
    """Compare the present program with a baseline file, with a reference in this job, or with both."""
    began_s = time.monotonic()
    if options.baseline_path is None and options.against is None:
        raise UserInputError(
            "there is nothing to compare with",
            hint="name a baseline: `baseline_path=FILE`, or a revision: `against=main`",
        )
    setup, folder = _set_up(config, options)
    before = None if options.baseline_path is None else read_baseline(options.baseline_path, typed=config.typed)
    wanted = _choose_guarded(config, options, before, folder)
    now = observe(config, setup, wanted)
    reports = []
    if before is not None:
        reports.append(_compare_with_baseline(before, now, options))
    if options.against is not None:
        reports.append(_compare_with_reference(options.against, now, options))
    return merge_reports(reports, elapsed_s=time.monotonic() - began_s)


def _set_up(config: Config, options: GuardOptions) -> tuple[Setup, Path]:
    if config.settings.device_name is not None:
        raise UserInputError(
            "explore.device_name emulates a device, and the guard compares this machine's program and speed",
            hint="leave it out for the guard: --set explore.device_name=null",
        )
    folder = run_directory.model_directory(config.mode, options.model_dir or config.model_dir)
    run_dir = folder / "guard" / f"{datetime.now(UTC):%Y%m%d_%H%M%S}"
    return Setup(run_dir=run_dir, tiers=options.tiers, say=options.say), folder


def _choose_guarded(config: Config, options: GuardOptions, before: Baseline | None, folder: Path) -> Guarded:
    if before is None:
        return find_guarded(config, options.micro_batch_size, folder)
    if options.micro_batch_size is None and before.recommended_micro_batch_size is not None:
        return Guarded(
            recommended=before.recommended_micro_batch_size,
            base=before.base_micro_batch_size,
            settings=before.settings,
        )
    # The facts of a baseline are those of its settings, whatever size is timed.
    return dataclasses.replace(find_guarded(config, options.micro_batch_size, folder), settings=before.settings)


def _compare_with_baseline(before: Baseline, now: Observed, options: GuardOptions) -> Report:
    changes = _list_differences(
        before.toolchain, now.snapshot.toolchain, sorted({*before.toolchain, *now.snapshot.toolchain})
    )
    exact = _compare_facts(before, now.snapshot, options.tiers, changes)
    times = _compare_times(before, now, options, changes)
    advice = []
    if changes:
        advice.append("check what changed with the toolchain, then write a new baseline with `update_baseline`")
    report = Report(
        config=str(now.config.path),
        reference=str(options.baseline_path),
        findings=(*exact.findings, *times.findings),
        not_compared=(*exact.not_compared, *times.not_compared),
        toolchain_changes=tuple(changes),
        job_changes=tuple(_list_job_changes(before.job, now.snapshot.job)),
    )
    if not changes and report.find_by_status(Status.BETTER, Status.CHANGED) and not report.find_by_status(Status.WORSE):
        advice.append("if the change is intended, write a new baseline with `update_baseline`, in the same commit")
    return dataclasses.replace(report, advice=(*advice, *times.advice))


def _compare_facts(before: Baseline, after: Baseline, tiers: frozenset[Tier], toolchain_changes: Sequence[str]) -> Part:
    """Compare the facts of any machine in the CPU's program, the others in that of the job's own device."""
    changes = [*toolchain_changes, *_list_differences(before.machine, after.machine, DEVICE_KEYS)]
    programs = {
        Tier.ANY_MACHINE: (before.any_device, after.any_device, ""),
        Tier.SAME_TOOLCHAIN: (before.device or before.any_device, after.device or after.any_device, "; ".join(changes)),
    }
    findings: list[Finding] = []
    missing: list[NotCompared] = []
    for tier in (tier for tier in programs if tier in tiers):
        old, new, why_not = programs[tier]
        compared = compare_metrics(
            old,
            new,
            tiers={tier: why_not},
            micro_batch_size=after.recommended_micro_batch_size,
            memory_budget_bytes=after.memory_budget_bytes,
        )
        # A program that cannot be traced is reported once, though facts of both tiers are missing.
        known = {(one.name, one.details) for one in findings}
        findings += [one for one in compared.findings if (one.name, one.details) not in known]
        missing += compared.not_compared
    return Part(findings=tuple(findings), not_compared=tuple(missing))


def _compare_times(before: Baseline, now: Observed, options: GuardOptions, toolchain_changes: Sequence[str]) -> Part:
    """Compare the recommended size with its neighbours, and with the baseline where that is fair."""
    recommended, base = now.snapshot.recommended_micro_batch_size, now.snapshot.base_micro_batch_size
    if not options.tiers & TIMES:
        return Part()
    if recommended is None:
        reason = "no recommended size is known: run bexplore explore first, or give `micro_batch_size=N`"
        return Part(not_compared=(neighbours.report_missing_times(reason, None),))
    host = _list_differences(before.machine, now.snapshot.machine, (*DEVICE_KEYS, *HOST_KEYS))
    why_not = "; ".join([*toolchain_changes, *host]) or ("" if before.times else "the baseline has no times")

    remark = watch_processors()

    def judge(times: neighbours.Times) -> list[Finding]:
        findings = neighbours.check_still_wins(times, recommended, options.time_tolerance, is_busy=bool(remark()))
        if not toolchain_changes and base is not None and base != recommended:
            findings += neighbours.compare_speedups(before, times, recommended, base, options.time_tolerance)
        if not why_not:
            findings += neighbours.compare_with_other_day(before, times, recommended, options.time_tolerance)
        return findings

    sizes = _choose_sizes(now, recommended)
    try:
        times = time_sizes(now, sizes, recommended)
        findings = judge(times)
        if any(one.status in (Status.WORSE, Status.CHANGED) for one in findings):
            now.setup.say("measuring again to confirm it")
            again = time_sizes(now, sizes, recommended)
            findings = _confirm(judge((*times, *again)), judge(again))
    except RecommendedSizeFailedError as error:
        return Part(findings=(report_failure(recommended, error.outcome),))
    advice: tuple[str, ...] = ()
    if any(one.status is Status.UNSURE for one in findings):
        busy = f"; {found}" if (found := remark()) else ""
        advice = (f"times between two jobs are noisy: `against=REF` measures both sides in one{busy}",)
    missing = (neighbours.report_missing_times(why_not, recommended),) if why_not else ()
    return Part(findings=tuple(findings), not_compared=missing, advice=advice)


def _confirm(together: Sequence[Finding], again: Sequence[Finding]) -> list[Finding]:
    """Return the findings of both measurements; one that the second contradicts is unsure."""
    second = {one.name: one.status for one in again}
    contradicted = (Status.SAME, Status.BETTER)
    return [
        dataclasses.replace(one, status=Status.UNSURE)
        if one.status in (Status.WORSE, Status.CHANGED) and second[one.name] in contradicted
        else one
        for one in together
    ]


def _compare_with_reference(against: str, now: Observed, options: GuardOptions) -> Report:
    with open_reference(against, now.config.path) as reference:
        if options.load is None:
            raise UserInputError("a second configuration cannot be read here", hint="give GuardOptions.load")
        snapshot = now.snapshot
        wanted = Guarded(
            recommended=snapshot.recommended_micro_batch_size,
            base=snapshot.base_micro_batch_size,
            settings=snapshot.settings,
        )
        folder, environment = now.setup.run_dir / "reference", dict(reference.environment)
        setup = dataclasses.replace(now.setup, run_dir=folder, environment=environment)
        before = observe(options.load(reference.config_path), setup, wanted)
        exact = _compare_facts(before.snapshot, snapshot, options.tiers, ())
        times = time_in_pairs(
            before,
            now,
            reference,
            tiers=options.tiers,
            tolerance=options.time_tolerance,
            time_limit_s=options.time_limit_s,
        )
    return Report(
        config=str(now.config.path),
        reference=reference.title,
        findings=(*exact.findings, *times.findings),
        not_compared=(*exact.not_compared, *times.not_compared),
        job_changes=tuple(_list_job_changes(before.snapshot.job, snapshot.job)),
        advice=times.advice,
    )


def _choose_sizes(observed: Observed, recommended: int) -> tuple[int, ...]:
    snapshot = observed.snapshot
    facts, budget = snapshot.device or snapshot.any_device, snapshot.memory_budget_bytes
    fits = facts.max_micro_batch_size(budget) if budget is not None else None
    base = snapshot.base_micro_batch_size
    return neighbours.choose_sizes(recommended, base, maximum=observed.config.maximum, fits=fits)


def _list_differences(before: Mapping[str, Any], after: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [
        f"{key} {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _list_job_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    old, new = _flatten(before), _flatten(after)
    return _list_differences(old, new, sorted(old.keys() | new.keys()))


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for name, inner in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(inner, Mapping):
            pairs |= _flatten(inner, key)
        elif name != "import_root":
            pairs[key] = list(inner) if isinstance(inner, tuple) else inner
    return pairs


def check_exact_facts(
    config_path: Path,
    baseline_path: Path,
    *,
    model_dir: Path,
    overrides: tuple[str, ...] = (),
    portable: bool = False,
    is_update: bool = False,
) -> Report | None:
    """Compare the exact facts of a job with its baseline; None where the baseline was written instead."""
    tiers = frozenset({Tier.ANY_MACHINE}) if portable else EXACT
    options = GuardOptions(baseline_path=baseline_path, tiers=tiers, model_dir=str(model_dir))
    loaded = add_loader_lengths(load_config(config_path, overrides=overrides))
    if is_update:
        update_baseline(loaded, options)
        return None
    return guard(loaded, options)


def find_portable_facts(config_path: Path, log_path: Path, overrides: tuple[str, ...] = ()) -> ProgramMetrics:
    """Return the facts of a job's program, traced for the CPU."""
    loaded = add_loader_lengths(load_config(config_path, overrides=overrides)).on_device("cpu")
    found, _ = metrics_in_worker(loaded.job, log_path, device="cpu")
    return found
