"""From observed steps to the seconds of a pass and of an update, of the slowest rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise, zip_longest

import numpy as np

from bexplore.command.reports import Rank, Step
from bexplore.units import counted, format_seconds

# Steps before the timed ones: the first compiles and allocates the optimizer's states, the second is profiled for its
# memory, the third recovers from that. Source: as the engine's `WARM_UP_PASSES`, in steps.
WARMUP_STEPS = 3
MIN_TIMED_STEPS = 4  # Source: the median of four survives a disturbed one
# Batches that a loader makes, over those that are used, below which it is told to be slower than the step. Source:
# chosen; a few of some ten differ by chance.
USED_UP = 0.85
# Micro-batches per pass from which a batch is taken to be passed once, and batches per step from which each step is
# taken to have one of its own. Source: halfway between one and two.
SEVERAL_PASSES = 0.75
# Samples that the passes of a step take, over its share of what was read, from which a batch is trained with again.
# Source: halfway between once and twice.
TAKEN_AGAIN = 1.5
# Steps that seconds in proportion to the elements count as, beside those from which the slope of a line is fitted.
# Source: chosen; a few steps tell no slope, and eight tell most of it.
STEPS_OF_RATIO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The timed steps of one rank."""

    # Seconds from the end of one update to the end of the next, without evaluations between them, of a step with the
    # usual number of micro-batches
    step_times_s: tuple[float, ...]
    update_times_s: tuple[float, ...]  # seconds of the updates in them
    pass_times_s: tuple[float, ...]  # seconds of one micro-batch in each step, without its update
    micro_batches_per_step: float  # micro-batches of a step: by the loaders, else by the backward passes of an update
    passes_per_step: float  # backward passes of a step
    num_steps: int  # steps that were timed; where epochs are not of full batches, their times are fewer means
    # Tokens of a sample for which the seconds are, without padding; None where steps do not show theirs
    tokens_per_sample: float | None = None
    # Share of the seconds between steps that counts for none: of evaluations, and of a policy that collects experience
    share_left_out: float = 0.0
    share_of_reading: float = 0.0  # of the seconds of steps: until their batches are there

    @property
    def step_time_s(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.step_times_s)

    def with_micro_batches(self, number: int) -> StepTiming:
        """Return the timing of steps of so many micro-batches, from passes and updates that were timed apart."""
        parts = zip(self.pass_times_s, self.update_times_s, strict=True)
        return replace(
            self,
            step_times_s=tuple(number * pass_s + update_s for pass_s, update_s in parts),
            micro_batches_per_step=float(number),
            passes_per_step=float(number),
        )


def time_rank(
    rank: Rank, *, num_warmup: int, micro_batch_size: int, tokens_per_sample: float | None = None
) -> StepTiming | None:
    """Return the timing of a rank; None where it has no step after its warm-up.

    A step with other passes than most (a gradient scaler that skipped an update, the end of an epoch) counts by its
    passes, as a step of the usual number.

    Args:
        tokens_per_sample: For which seconds are given, where steps show their tokens; None for those of the rank.
    """
    pairs = list(pairwise(rank.steps))[max(num_warmup - 1, 0) :]
    if not pairs:
        return None
    timed = [step for _, step in pairs]
    whole_s = [step.ended_s - before.ended_s for before, step in pairs]
    times_s = _subtract_evaluations(whole_s, timed)
    share_left_out = 1.0 - sum(times_s) / sum(whole_s) if sum(whole_s) > 0 else 0.0
    read_s = sum(min(step.read_s, seconds) for step, seconds in zip(timed, times_s, strict=True))
    share_of_reading = read_s / sum(times_s) if sum(times_s) > 0 else 0.0
    updates_s = [min(step.update_s, seconds) for step, seconds in zip(timed, times_s, strict=True)]
    shared = _find_shared_batches(rank)
    if shared:
        counts = [_count_of_shared(shared, rank, micro_batch_size)] * len(timed)
        epoch: _Epoch | None = _Epoch(num_steps=round(len(shared) / _count_reading(shared)), fill=1.0)
    else:
        counts = _count_micro_batches(timed, micro_batch_size)
        epoch = _find_epoch(rank, micro_batch_size, statistics.median(counts)) or _find_period(timed, micro_batch_size)
    taken = _find_batches_of_steps(rank)[-len(timed) :]
    if all(taken):
        # A size that counts tokens is met by batches of fewer samples: each counts as that many.
        counted = micro_batch_size if rank.rows and max(rank.rows) < micro_batch_size else None
        tokens_per_sample = tokens_per_sample or _find_mean(rank.tokens, counted)[0]
        passes_s = [(s - u) / n for s, u, n in zip(times_s, updates_s, counts, strict=True)]
        passes_s = adjust_to_tokens(passes_s, [_find_mean(batches, counted) for batches in taken], tokens_per_sample)
        times_s = [u + n * s for u, n, s in zip(updates_s, counts, passes_s, strict=True)]
    else:
        tokens_per_sample = None
    if epoch is not None and epoch.num_steps <= len(timed):
        times_s, updates_s, counts = (epoch.means(values) for values in (times_s, updates_s, counts))
        times_s = [(s - u) / epoch.fill + u for s, u in zip(times_s, updates_s, strict=True)]
    elif not shared:
        whole = _list_full_steps(rank, micro_batch_size)[-len(timed) :]
        if 2 * sum(whole) >= len(whole):
            times_s, updates_s, counts = (list(compress(of, whole)) for of in (times_s, updates_s, counts))
    passes_s = [(s - u) / n for s, u, n in zip(times_s, updates_s, counts, strict=True)]
    usual = statistics.median(counts)
    return StepTiming(
        step_times_s=tuple(u + usual * s for u, s in zip(updates_s, passes_s, strict=True)),
        update_times_s=tuple(updates_s),
        pass_times_s=tuple(passes_s),
        micro_batches_per_step=usual,
        passes_per_step=statistics.median(step.num_passes for step in timed),
        num_steps=len(timed),
        tokens_per_sample=tokens_per_sample,
        share_left_out=share_left_out,
        share_of_reading=share_of_reading,
    )


def _list_full_steps(rank: Rank, micro_batch_size: int) -> list[bool]:
    """Return, of each step, whether all of its batches are surely full.

    The last batch of an epoch may hold few samples, and a step of it may take a fraction of the seconds. Passes take
    batches in the order in which these were read, some of them ahead.
    """
    usual = max(rank.rows, key=lambda rows: rank.rows[rows], default=0)
    if usual != micro_batch_size or count_micro_batches_per_pass(rank.steps) != 1.0:
        return [True] * len(rank.steps)
    num_read = max(0, rank.before.get("num_fetches", 0) - rank.before.get("num_passes", 0))
    suspects: set[int] = set()
    for step in rank.steps:
        if step.num_samples < step.num_fetches * micro_batch_size:
            suspects |= set(range(num_read, num_read + step.num_fetches))
        num_read += step.num_fetches
    ends = list(accumulate(step.num_passes for step in rank.steps))
    return [suspects.isdisjoint(range(end - step.num_passes, end)) for end, step in zip(ends, rank.steps, strict=True)]


def _find_mean(batches: Sequence[tuple[int, int, int]], samples_of_batch: int | None) -> tuple[float, float]:
    """Return tokens and elements of a sample, of which each batch counts as so many; None for those that it has."""
    num_samples, num_tokens, num_elements = map(sum, zip(*batches, strict=True))
    counted = num_samples if samples_of_batch is None else samples_of_batch * len(batches)
    return num_tokens / counted, num_elements / counted


def _find_batches_of_steps(rank: Rank) -> list[tuple[tuple[int, int, int], ...]]:
    """Return the batches that the passes of each step take, as `Rank.tokens`; empty where they are unknown.

    Passes take batches in the order in which these were read. The first passes may take some that were read ahead at
    another size.
    """
    found: list[tuple[tuple[int, int, int], ...]] = [()] * len(rank.steps)
    if not rank.tokens or count_micro_batches_per_pass(rank.steps) != 1.0:
        return found
    if rank.own_from_step is None:
        place = min(0, rank.before.get("num_passes", 0) - rank.before.get("num_fetches", 0))
    else:
        place = -sum(step.num_passes for step in rank.steps[: rank.own_from_step])
    for number, step in enumerate(rank.steps):
        taken = rank.tokens[max(place, 0) : max(place + step.num_passes, 0)]
        if place >= 0 and len(taken) == step.num_passes:
            found[number] = taken
        place += step.num_passes
    return found


def adjust_to_tokens(times_s: Sequence[float], samples: Sequence[tuple[float, float]], mean: float) -> list[float]:
    """Return the seconds of passes as if their samples had so many tokens in the mean.

    Few steps may have longer samples than others, by which sizes would be told apart. The seconds are taken to be on a
    line over the tokens of a sample: the regression estimator of Cochran, Sampling Techniques, chapter 7. Its slope is
    fitted, beside a few steps whose seconds are in proportion to their elements, padding included, and at most twice
    as steep: samples that are all padded to one length take as long, however many tokens they have.

    Args:
        samples: Tokens without padding, and elements, of a sample in each pass.
        mean: Tokens of a sample for which the seconds are wanted.
    """
    own_s, (tokens, elements) = np.array(times_s), np.array(samples).T
    away = tokens - tokens.mean()
    spread = (away**2).mean()
    usual = fitted = own_s.mean() / tokens.mean()
    if spread > 0:
        usual = max(own_s.mean() / elements.mean() * (away * elements).mean() / spread, 0.0)
        fitted = (away * own_s).mean() / spread
    weight = len(own_s) / (len(own_s) + STEPS_OF_RATIO)
    slope = min(max(weight * fitted + (1 - weight) * usual, 0.0), 2 * usual)
    # A line may lead below zero, where the mean is far from what was seen.
    least_s = own_s.min() * min(1.0, mean / tokens.max()) / 2
    return [float(max(one, least_s)) for one in own_s - slope * (tokens - mean)]


def _subtract_evaluations(times_s: Sequence[float], steps: Sequence[Step]) -> list[float]:
    """Return the seconds of steps without the evaluations that ran in them.

    What an evaluation took is known roughly, and may be a thousand times the step: where enough steps have none, one
    that has counts as their usual seconds of a pass.
    """
    clean = [s / max(step.num_passes, 1) for s, step in zip(times_s, steps, strict=True) if not step.evaluation_s]
    usual_s = statistics.median(clean) if len(clean) >= MIN_TIMED_STEPS else None
    found = []
    for seconds, step in zip(times_s, steps, strict=True):
        if step.evaluation_s and usual_s is not None:
            seconds = usual_s * max(step.num_passes, 1)
        elif step.evaluation_s < seconds:
            seconds -= step.evaluation_s
        found.append(seconds)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """The steps of a few epochs of a training whose last batch of an epoch is not full.

    Which step took that batch is not known: frameworks read a batch ahead. As many steps in a row as epochs have, from
    any step on, took as many of them.
    """

    num_steps: int  # steps of as few whole epochs as make whole steps
    fill: float  # samples of an epoch over those of as many full batches

    def means(self, values: Sequence[float]) -> list[float]:
        """Return the means over so many steps in a row, which overlap where there are few epochs."""
        last = len(values) - self.num_steps
        starts = range(0, last + 1, min(self.num_steps, max(1, last // (MIN_TIMED_STEPS - 1))))
        return [statistics.fmean(values[start : start + self.num_steps]) for start in starts]


def _find_epoch(rank: Rank, micro_batch_size: int, micro_batches_per_step: float) -> _Epoch | None:
    """Return the steps of whole epochs; None where every batch of a loader is full, or its samples are not known."""
    rest = (rank.num_samples or 0) % micro_batch_size
    if rank.num_samples is None or not rest or rest not in rank.rows:
        return None
    num_batches = math.ceil(rank.num_samples / micro_batch_size)
    per_step = max(1, round(micro_batches_per_step))
    num_steps = num_batches // math.gcd(num_batches, per_step)
    return _Epoch(num_steps=num_steps, fill=rank.num_samples / (num_batches * micro_batch_size))


def _find_shared_batches(rank: Rank) -> Sequence[Step]:
    """Return steps that read whole batches, each of which serves several steps; none where a step has its own.

    They begin at the second step that reads, where there are enough: programs read ahead before the first.
    """
    reading = [index for index, step in enumerate(rank.steps) if step.num_fetches]
    if len(reading) < 2:
        return ()
    steps = rank.steps[reading[len(reading) > 2] : reading[-1]]
    return steps if sum(step.num_fetches for step in steps) < SEVERAL_PASSES * len(steps) else ()


def _count_reading(steps: Sequence[Step]) -> int:
    return sum(step.num_fetches > 0 for step in steps)


def _count_of_shared(steps: Sequence[Step], rank: Rank, micro_batch_size: int) -> float:
    """Return the micro-batches of a step, where a batch serves several steps.

    Each has its share of the batch, as where a loader reads four micro-batches at once; or all have the same samples
    again, as where a critic steps five times, which the calls of the model show.
    """
    num_samples = statistics.fmean(step.num_samples for step in steps)
    called = [rows for rows, _ in rank.forward_rows]
    taken = statistics.median(called) * statistics.fmean(step.num_passes for step in steps) if called else 0.0
    if num_samples and taken < TAKEN_AGAIN * num_samples:
        return num_samples / micro_batch_size
    return min(statistics.median(called) / micro_batch_size, 1.0) if called else 1.0


def _count_micro_batches(steps: Sequence[Step], micro_batch_size: int) -> list[float]:
    """Return the micro-batches of each step, where a step has batches of its own."""
    if _has_further_updates(steps):
        return [float(steps[0].num_fetches)] * len(steps)
    num_without = _count_passes_without_batch(steps)
    if num_without:
        return [float(max(step.num_passes - num_without, 1)) for step in steps]
    per_pass = 1.0 if _is_fetched_whole(steps, micro_batch_size) else count_micro_batches_per_pass(steps)
    return [max(passes, 1) * per_pass for passes in _count_passes_of_batches(steps)]


def _has_further_updates(steps: Sequence[Step]) -> bool:
    """Return whether all steps read as many batches, and some have more updates, as critics before a generator."""
    fetches, updates = {step.num_fetches for step in steps}, {step.num_updates for step in steps}
    return len(fetches) == 1 and 0 not in fetches and len(updates) > 1


def _count_passes_without_batch(steps: Sequence[Step]) -> int:
    """Return the few passes of a step that have no batch of their own, as of a generator behind its critics."""
    num_fetches, num_passes = sum(step.num_fetches for step in steps), sum(step.num_passes for step in steps)
    if num_fetches <= SEVERAL_PASSES * num_passes:
        return 0
    return max(0, round(statistics.median(step.num_passes - step.num_fetches for step in steps)))


def _count_passes_of_batches(steps: Sequence[Step]) -> list[int]:
    """Return the passes of each step that have a batch of their own, where no loader shows which have."""
    if any(step.num_fetches for step in steps):
        return [step.num_passes for step in steps]
    return [step.num_passes_of_update or step.num_passes for step in steps]


def _find_period(steps: Sequence[Step], micro_batch_size: int) -> _Epoch | None:
    """Return the steps after which the numbers of samples repeat, else those of updates; None where none differ.

    In reinforcement learning an optimizer of the policy may step each second time only, and a generator behind its
    critics; with a loader, updates alone count. Where nothing repeats, the mean of all holds for each quarter of them.
    """
    has_loader = any(step.num_fetches for step in steps)
    if has_loader and not _has_further_updates(steps):
        return None
    counted = [step for step in steps if step.num_samples and not has_loader]
    samples, updates = [step.num_samples for step in counted], [step.num_updates for step in steps]
    fill, values = 1.0, updates
    if len(set(samples)) > 1:
        values = samples
        # Full batches show that rows are samples: they may be positions of a text, or nodes of graphs, as well.
        if max(samples) == micro_batch_size:
            whole = counted[: _period(samples)]
            passes = sum(_count_passes_of_batches(whole))
            fill = sum(step.num_samples for step in whole) / (passes * micro_batch_size)
    if len(set(values)) <= 1:
        return None
    return _Epoch(num_steps=_period(values) or max(1, len(values) // MIN_TIMED_STEPS), fill=fill)


def _period(values: Sequence[int]) -> int | None:
    return next((number for number in range(1, len(values)) if values[number:] == values[:-number]), None)


def expect_step_s(step_times_s: Mapping[int, float], micro_batch_size: int) -> float:
    """Return the seconds that a step of a size is expected to take.

    A step has a part that is fixed and one that grows with the size: between two sizes it is on the line through their
    steps, beyond the largest in proportion to it, and below the smallest no longer than that.
    """
    sizes = sorted(step_times_s)
    beyond = max(1.0, micro_batch_size / sizes[-1])
    return beyond * float(np.interp(micro_batch_size, sizes, [step_times_s[size] for size in sizes]))


def count_micro_batches_per_pass(steps: Sequence[Step]) -> float:
    """Return micro-batches per backward pass: one where no loader returned any.

    Several losses of one batch (adversarial training, chunked losses) and closures that an optimizer calls again give
    less than one; closures, not the same number of passes in each step, so that the medians of a step are compared.
    Loaders read ahead, so the counts of a single step may be off, and otherwise all steps are counted together.
    """
    num_fetches, num_passes = sum(step.num_fetches for step in steps), sum(step.num_passes for step in steps)
    if not num_fetches or not num_passes:
        return 1.0
    if num_fetches / num_passes > SEVERAL_PASSES:
        return float(max(round(num_fetches / num_passes), 1))
    usual_fetches = statistics.median(step.num_fetches for step in steps)
    usual_passes = statistics.median(step.num_passes for step in steps)
    if usual_fetches and usual_passes:
        return min(usual_fetches / usual_passes, 1.0)
    return 1.0 / round(num_passes / num_fetches)


def _is_fetched_whole(steps: Sequence[Step], micro_batch_size: int) -> bool:
    """Return whether a loader's batch is that of several passes, which a pipeline's schedule divides."""
    num_fetches = statistics.median(step.num_fetches for step in steps)
    num_passes = statistics.median(step.num_passes for step in steps)
    num_samples = statistics.median(step.num_samples for step in steps)
    return 0 < num_fetches < num_passes and num_samples == micro_batch_size * num_passes


def share_evaluations(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return the ranks with the evaluations of all in each: a rank waits in a step in which another evaluates."""
    seconds = zip_longest(*([step.evaluation_s for step in rank.steps] for rank in ranks), fillvalue=0.0)
    longest_s = [max(of_ranks) for of_ranks in seconds]
    if len(ranks) <= 1 or not any(longest_s):
        return tuple(ranks)
    return tuple(
        replace(rank, steps=tuple(replace(step, evaluation_s=longest_s[i]) for i, step in enumerate(rank.steps)))
        for rank in ranks
    )


def find_own_step(rank: Rank, num_steps: int) -> int | None:
    """Return the first step with batches of the probe's size: those before were read ahead, in the same start.

    The model's calls show it; None where they should have shown it by now. Where they cannot, batches are taken in the
    order in which they were read.
    """
    if rank.own_from_step is not None:
        return rank.own_from_step
    per_pass, num_passes = count_micro_batches_per_pass(rank.steps), rank.before.get("num_passes", 0)
    num_ahead = max(0.0, rank.before.get("num_fetches", 0) - per_pass * num_passes)
    per_step = max(1.0, per_pass * statistics.median(step.num_passes for step in rank.steps)) if rank.steps else 1.0
    first = math.ceil(num_ahead / per_step)
    is_overdue = rank.awaits_own_batches and len(rank.steps) >= first + num_steps
    return None if is_overdue else first


def find_slowest(
    ranks: Sequence[Rank], *, num_warmup: int, micro_batch_size: int, tokens_per_sample: float | None = None
) -> StepTiming | None:
    """Return the timing of the rank with the longest steps; None where a rank has none.

    Ranks without a pass of their own (a launcher's helper) have no record.
    """
    timings = [
        time_rank(rank, num_warmup=num_warmup, micro_batch_size=micro_batch_size, tokens_per_sample=tokens_per_sample)
        for rank in ranks
    ]
    if not timings or any(timing is None for timing in timings):
        return None
    return max((timing for timing in timings if timing is not None), key=lambda one: one.step_time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depletion:
    """A training that used batches faster than the workers of its loader made them, while these were timed."""

    num_workers: int
    num_used: int  # batches
    num_made: int

    def describe(self, step_time_s: float) -> str:
        """Return it in a sentence, with the seconds that a step will take."""
        told = format_seconds(step_time_s)
        then = f"{format_seconds(step_time_s * self.num_used / self.num_made)}, not" if self.num_made else "more than"
        return (
            f"the loader is slower than the step: while {self.num_used} batches were used, its "
            f"{counted(self.num_workers, 'worker')} made {self.num_made}; once those that were read ahead are used up, "
            f"a step takes {then} {told}"
        )


def find_depletion(rank: Rank, *, num_warmup: int) -> Depletion | None:
    """Return how the timed steps used up what was read ahead; None where the workers keep up, or nothing is known.

    Workers that keep up have at least all but one batch of each ready; those that do not work all the time.
    """
    ahead = rank.record.get("read_ahead") or {}
    num_workers, ready = rank.num_loader_workers, ahead.get("ready", [])[max(num_warmup - 1, 0) :]
    steps = rank.steps[max(num_warmup, 1) :]
    if not num_workers or len(ready) != len(steps) + 1 or min(ready) < 0:
        return None
    num_used = sum(step.num_fetches for step in steps)
    num_made = num_used + ready[-1] - ready[0]
    is_low = 2 * ready[-1] < ahead["num_ahead"] - num_workers
    if not is_low or not 0 <= num_made < USED_UP * num_used:
        return None
    return Depletion(num_workers=num_workers, num_used=num_used, num_made=num_made)


def group_means(times_s: Sequence[float], most: int) -> tuple[float, ...]:
    """Return the means of consecutive timings in at most so many groups of equal size: short steps are jittery."""
    length = max(1, len(times_s) // most)
    starts = range(0, len(times_s) - length + 1, length)
    return tuple(statistics.fmean(times_s[start : start + length]) for start in starts)[:most]
