"""The recommended size against a few sizes around it, in live workers, compared with the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from bexplore.guard.baseline import Baseline, SizeTimes
from bexplore.guard.report import Finding, NotCompared, Status, Tier
from bexplore.guard.timing import Block, Ratio, count_passes, estimate_ratio, estimate_unpaired_ratio, judge_ratio

NUM_WORKERS = 3
NUM_ROUNDS = 4
BLOCK_S = 0.15  # seconds of passes of one size in a block: a change of size slows the next passes
Times = Sequence[Sequence[SizeTimes]]


def choose_sizes(recommended: int, base: int | None, *, maximum: int | None, fits: int | None) -> tuple[int, ...]:
    """Return the recommended size, half and twice of it where they may run, and the base.

    Args:
        base: The size that its speed is relative to; None if unknown.
        maximum: The configuration's largest size; None for no bound.
        fits: The largest size that fits the budget by the trace; None if unknown.
    """
    limit = min((bound for bound in (maximum, fits) if bound is not None), default=2 * recommended)
    near = {recommended, max(1, recommended // 2), *([base] if base else [])}
    return tuple(sorted(near | ({2 * recommended} if 2 * recommended <= limit else set())))


def time_in_worker(
    run: Callable[[int, int], Block], sizes: Sequence[int], pass_times_s: dict[int, float]
) -> list[SizeTimes]:
    """Time sizes in one worker in rounds, forwards and backwards, so that what slows the machine affects all alike.

    Args:
        run: (micro_batch_size, passes) -> block.
        sizes: Sizes that the worker has run before.
        pass_times_s: Rough seconds of a pass of each.
    """
    blocks: dict[int, list[Block]] = {size: [] for size in sizes}
    for _ in range(NUM_ROUNDS):
        for size in (*sizes, *reversed(sizes)):
            blocks[size].append(run(size, count_passes(pass_times_s[size], BLOCK_S)))
    return [
        SizeTimes(
            micro_batch_size=size,
            pass_times_s=tuple(seconds for block in own for seconds in block.pass_times_s)
            if all(math.isfinite(block.loss) for block in own)
            else (math.nan,),
            cpu_time_s=sum(block.cpu_time_s for block in own),
        )
        for size, own in blocks.items()
    ]


def check_still_wins(times: Times, recommended: int, tolerance: float, *, is_busy: bool = False) -> list[Finding]:
    """Compare the recommended size with its neighbours, within this job.

    Args:
        is_busy: Whether other processes ran: the scheduler then favours short passes, and wall time proves nothing.
    """
    own = {one.micro_batch_size for worker in times for one in worker}
    rivals = [(size, _speedup(times, size, recommended, _log_wall)) for size in sorted(own - {recommended})]
    better = [(size, ratio) for size, ratio in rivals if judge_ratio(ratio, tolerance) is Status.WORSE]
    computed = [judge_ratio(_speedup(times, size, recommended, _log_cpu), tolerance) for size, _ in better]
    is_unsure = is_busy and any(status is not Status.WORSE for status in computed)
    broken = any(math.isnan(ratio.value) for _, ratio in rivals)
    winner = max(better, key=lambda one: one[1].value, default=None)
    status = Status.WORSE if broken else Status.UNSURE if is_unsure else Status.CHANGED if winner else Status.SAME
    details = [f"size {size} has {ratio} the throughput of size {recommended}" for size, ratio in rivals]
    return [
        Finding(
            name="recommended_micro_batch_size",
            title="the recommended size still wins",
            tier=Tier.SAME_JOB,
            status=status,
            before=str(recommended),
            after="a time is not a number" if broken else str(winner[0] if winner else recommended),
            details=tuple(details) if status is not Status.SAME else (),
        )
    ]


def compare_speedups(before: Baseline, times: Times, recommended: int, base: int, tolerance: float) -> list[Finding]:
    """Compare the speed of the recommended size relative to the base, a ratio that machines share."""
    old = _relative(before.times, recommended, base, _log_wall)
    new = _relative(times, recommended, base, _log_wall)
    if not old or not new:
        return []
    return [
        _compare(
            "relative_performance",
            f"throughput of size {recommended} relative to size {base}",
            Tier.SAME_JOB,
            estimate_unpaired_ratio([-value for value in old], [-value for value in new]),
            tolerance,
            before=f"{math.exp(median(old)):.2f}x",
            after=f"{math.exp(median(new)):.2f}x" if all(map(math.isfinite, new)) else "not a number",
        )
    ]


def compare_with_other_day(before: Baseline, times: Times, recommended: int, tolerance: float) -> list[Finding]:
    """Compare times with those of the baseline, of the same machine."""
    findings = []
    for name, title, read in (("pass_time_s", "wall time", _log_wall), ("cpu_time_s", "processor time", _log_cpu)):
        old, new = _values(before.times, recommended, read), _values(times, recommended, read)
        if old and new:
            ratio = estimate_unpaired_ratio(old, new)
            texts = [f"{math.exp(median(values)) * 1e3:.4g} ms" for values in (old, new)]
            what = f"{title} of a pass of size {recommended}"
            findings.append(_compare(name, what, Tier.SAME_MACHINE, ratio, tolerance, before=texts[0], after=texts[1]))
    return findings


def _compare(name: str, title: str, tier: Tier, ratio: Ratio, tolerance: float, *, before: str, after: str) -> Finding:
    return Finding(
        name=name,
        title=title,
        tier=tier,
        status=judge_ratio(ratio, tolerance),
        before=before,
        after=after,
        details=(f"ratio of times {ratio}",),
    )


def report_missing_times(reason: str, recommended: int | None) -> NotCompared:
    """Return the entry for times that were not compared."""
    size = f" of size {recommended}" if recommended else ""
    return NotCompared(title=f"times{size}", reason=reason)


def _speedup(times: Times, size: int, recommended: int, read: Callable[[SizeTimes], float]) -> Ratio:
    """Return the throughput of a size over that of the recommended one, with one value per worker."""
    return estimate_ratio([[value] for value in _relative(times, size, recommended, read)])


def _relative(times: Times, size: int, base: int, read: Callable[[SizeTimes], float]) -> list[float]:
    """Return ln(throughput of size / throughput of base) of each worker that ran both."""
    values = []
    for worker in times:
        by_size = {one.micro_batch_size: one for one in worker}
        if size in by_size and base in by_size:
            values.append(math.log(size / base) + read(by_size[base]) - read(by_size[size]))
    return values


def _values(times: Times, size: int, read: Callable[[SizeTimes], float]) -> list[float]:
    return [read(one) for worker in times for one in worker if one.micro_batch_size == size]


def _log_wall(times: SizeTimes) -> float:
    return float(np.log(np.median(times.pass_times_s)))


def _log_cpu(times: SizeTimes) -> float:
    return float(np.log(max(times.cpu_time_s / len(times.pass_times_s), 1e-9)))
