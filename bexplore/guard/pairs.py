"""Times of the present program and a reference: pairs of live workers, their failures, the finding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bexplore.errors import EngineError
from bexplore.guard.neighbour_sizes import STATUSES, why_no_times
from bexplore.guard.paired_timing import TIME_LIMIT_S, Pair, TimeDecision, decide, run_pair, watch_processors
from bexplore.guard.reference import Reference, foreign_files
from bexplore.guard.report import Finding, NotCompared, Status, Tier
from bexplore.guard.snapshot import Observed, Setup, block_of, first_probe, live_runner
from bexplore.measurement.probe import Compilation


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a report."""

    findings: tuple[Finding, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    advice: tuple[str, ...] = ()


def paired_times(
    before: Observed,
    now: Observed,
    reference: Reference,
    setups: tuple[Setup, Setup],
    *,
    tiers: frozenset[Tier],
    tolerance: float,
    time_limit_s: float = TIME_LIMIT_S,
) -> Part:
    """Time both programs in alternating live workers.

    Args:
        setups: The setup of each, the reference first.
        tolerance: Relative difference of times that counts as none.
        time_limit_s: No pair begins that would exceed it, except for the first six.

    Raises:
        EngineError: The reference's workers run the present code.
    """
    size = now.snapshot.recommended_micro_batch_size
    if Tier.SAME_JOB not in tiers:
        return Part()
    if size is None:
        reason = "no size is known: run bexplore explore first, or give --micro-batch-size"
        return Part(not_compared=(why_no_times(reason, None),))
    remark = watch_processors()
    failures: list[Part] = []
    began_s = time.monotonic()
    num_measured = 0
    pair_s = 0.0

    def measure(num_pairs: int) -> list[Pair]:
        nonlocal num_measured, pair_s
        pairs: list[Pair] = []
        for _ in range(num_pairs):
            pair_began_s = time.monotonic()
            setups[1].say(f"timing size {size} against {reference.title}: pair {num_measured + 1} of workers")
            pair = _pair(before, now, reference, setups, size)
            if isinstance(pair, Part):
                failures.append(pair)
                break
            pairs.append(pair)
            num_measured += 1
            pair_s = time.monotonic() - pair_began_s
        return pairs

    def may_go_on() -> bool:
        return not failures and time.monotonic() - began_s + pair_s <= time_limit_s

    decision = decide(measure, tolerance=tolerance, remark=remark, may_go_on=may_go_on)
    if failures:
        return failures[0]
    advice = (decision.advice,) if decision.advice else ()
    return Part(findings=(_time_finding(decision, size),), advice=advice)


def _pair(before: Observed, now: Observed, reference: Reference, setups: tuple[Setup, Setup], size: int) -> Pair | Part:
    """Time one pair of new workers; return a part of a report where one of them cannot run."""
    title = f"times of size {size}"
    with ExitStack() as stack:
        runners = [
            stack.enter_context(live_runner(observed, setup))
            for observed, setup in zip((before, now), setups, strict=True)
        ]
        for runner in runners:  # both at once: their imports take longest
            runner.start()
        for runner in runners:
            runner.await_started()
        pass_times_s = []
        for observed, runner in zip((before, now), runners, strict=True):
            exact = Compilation.EXACT if observed.config.job.compile.enabled else Compilation.EAGER
            observation = first_probe(runner, size, exact)
            if observation.is_measured:
                pass_times_s.append(observation.pass_time_s)
            else:
                outcome = f"{observation.outcome}: {observation.reason}"
                if observed is before:
                    reason = f"the reference does not run: {outcome}"
                    return Part(not_compared=(NotCompared(title=title, reason=reason),))
                return Part(findings=(broken(size, outcome),))
        if reference.foreign_root is not None:
            refuse_foreign(foreign_files(runners[0].loaded_from(reference.foreign_root)), reference)
        old, new = runners
        return run_pair(
            lambda count, round_number: block_of(old, size, count, round_number),
            lambda count, round_number: block_of(new, size, count, round_number),
            pass_time_s=pass_times_s[1],
        )


def refuse_foreign(files: Sequence[str], reference: Reference) -> None:
    """Refuse a reference whose workers run the present code, which would always be equal."""
    if files:
        raise EngineError(
            f"the workers of {reference.title} imported {files[0]} of the present checkout"
            + (f" and {len(files) - 1} more of its files" if len(files) > 1 else ""),
            hint="compare two checkouts that are installed apart, or name a second configuration: --against PATH",
        )


def broken(size: int, outcome: str) -> Finding:
    """Return the finding for a size that ran before and does not run now."""
    return Finding(
        name="times",
        title=f"a pass of size {size}",
        tier=Tier.SAME_JOB,
        status=Status.WORSE,
        before="runs",
        after=outcome,
    )


def _time_finding(decision: TimeDecision, size: int) -> Finding:
    stages = ", then ".join(str(stage) for stage in decision.stages)
    details = [f"wall time {decision.wall}, processor time {decision.cpu}", f"measured: {stages}"]
    return Finding(
        name="times",
        title=f"wall time of a pass of size {size}",
        tier=Tier.SAME_JOB,
        status=STATUSES[decision.judgement],
        before="1x",
        after=str(decision.wall),
        details=tuple([*details, *filter(None, [decision.reason])]),
    )
