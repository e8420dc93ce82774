"""Compare what a training did with what its command was asked for: a placeholder alone proves nothing."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bexplore.command.reports import Rank
from bexplore.command.timing import StepTiming, count_micro_batches_per_pass
from bexplore.units import counted

# Packed batches hold elements in proportion to the size within this share. Source: 1,004 and 1,993 elements for sizes 4
# and 8 of a packed fine-tuning, 0.7 % off; a wrong size is off by a half at least.
PROPORTION = 0.1
# Or within so many standard errors of the elements of a batch, where few batches of many lengths were seen, but for a
# wrong size at most halfway to half. Source: 95 of 100 of a normal distribution. Or within one sample of the smaller
# batch: a batch of a number of tokens ends with the sample that reaches it.
ERRORS_OF_PROPORTION, MOST_OF_PROPORTION = 2.0, 0.25

# Trust the leading dimension once it matched this many sizes that starts were given. Source: a command that ignores the
# size gives one number at all sizes, which is the size itself at one at most.
FOLLOWED = 2

# Batches that a loader returned per pass, over those at sizes before, from which some of them were dropped. Source:
# halfway between none and one for each pass.
DROPPED = 1.5
# Lists of a loader's samples with the usual length, over all of them, from which that is the length of its batches.
# Source: of an epoch of ten batches, all but the last.
LISTED = 0.9
# A size that arrives as another within this factor was rounded. Source: of powers of two, which are farthest apart.
ROUNDED = 2.0


class CheckResult(StrEnum):
    """Whether what was asked for was seen; the worst last."""

    VERIFIED = "verified"
    UNCONFIRMED = "unconfirmed"  # another number arrived at the first size: packed or wrong, which a second size shows
    CONTRADICTED = "contradicted"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found, and its evidence."""

    result: CheckResult  # whether what was asked for was seen
    why: str = ""  # what was seen instead, for people; empty where it was verified
    hint: str = ""  # what to type; empty where it was verified
    is_of_this_size: bool = False  # whether other sizes may do what they are asked for
    # The most that arrive, whatever is asked for; None where that is not what kept them away
    num_samples: int | None = None
    is_rounded: bool = False  # whether the command makes another size of it, though it follows others
    num_shares: int = 1  # ranks by which the command divides what it is given

    @property
    def is_refused(self) -> bool:
        """Whether the probe is no measurement."""
        return self.result in (CheckResult.CONTRADICTED, CheckResult.UNSEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What arrived at a size that did what it was asked for."""

    rows: int  # the usual leading dimension
    elements_per_sample: float  # by the size that was asked for
    fetches_per_pass: float  # batches of the size that the loaders returned for each pass; 0 without a loader
    elements_error: float = 0.0  # standard error of the elements, over them
    # Elements of all calls of the model that took parts of a micro-batch, likewise; 0 where a loader shows the batch
    parts_per_sample: float = 0.0
    mean_rows: float = math.inf  # mean of the leading dimension
    has_rows_of_size: bool = True  # whether what arrived, or what reached the model, had as many rows as the size
    # The larger size that the start was given, from whose lists of samples the batches were cut, which shows nothing of
    # this size; 0 for a start of this size
    cut_from: int = 0
    # The usual leading dimension of all batches of a pass, where several loaders are read for it; 0 where one is
    rows_together: int = 0


@dataclass(slots=True)
class SizeCheck:
    """Checks micro-batch sizes of one command; remembers what arrived, by which packed batches are checked."""

    # By size that did what it was asked for, of the probes so far
    arrived: dict[int, Arrived] = field(default_factory=dict)
    # The first size, where another number arrived: packed, or wrong, which the next size shows
    unconfirmed: int | None = None
    # By size that a start was given, whether all of it was trained or smaller batches were cut from it, the samples of
    # the command's own batches
    given: dict[int, int] = field(default_factory=dict)

    @property
    def size_to_confirm(self) -> int | None:
        """A size that another start must be given, to show that the command follows its size; None for none.

        Where all starts were given one size, a command that ignores it may train with just as many samples.
        """
        tried = [size for size in self.arrived if size not in self.given]
        is_cut = len(self.given) == 1 and any(seen.cut_from for seen in self.arrived.values())
        return min(tried) if tried and is_cut else None

    def check(self, ranks: Sequence[Rank], micro_batch_size: int, accumulation: int, *, cut_from: int = 0) -> Finding:
        """Check a size, by the leading dimension of what arrived or by its elements; uncut ones have `cut_from` 0."""
        is_alone = len(ranks) == 1
        findings = [
            self._check_rank(rank, micro_batch_size, accumulation, cut_from=cut_from, is_alone=is_alone)
            for rank in ranks
            if _count_arrivals(rank)
        ]
        if self._is_divided(ranks, micro_batch_size):
            return refuse_division(self.arrived[micro_batch_size].rows, micro_batch_size, len(ranks))
        if not findings:
            return Finding(
                result=CheckResult.UNSEEN,
                why="neither a DataLoader nor a call of the model showed how many samples arrived",
                hint="load the batches by a torch DataLoader, or call the model as a torch.nn.Module outside of "
                "compiled functions",
            )
        return max(findings, key=lambda one: list(CheckResult).index(one.result))

    def learn(self, micro_batch_size: int, arrived: Arrived, result: CheckResult) -> None:
        """Take over what arrived at a size in an exploration that goes on."""
        self.arrived[micro_batch_size] = arrived
        self.given[arrived.cut_from or micro_batch_size] = arrived.cut_from or arrived.rows
        self.unconfirmed = micro_batch_size if result is CheckResult.UNCONFIRMED and len(self.arrived) == 1 else None

    def _check_rank(self, rank: Rank, size: int, accumulation: int, *, cut_from: int, is_alone: bool) -> Finding:
        rows = _count_arrivals(rank)
        usual = max(rows, key=lambda count: rows[count])
        num_devices = rank.record.get("parallel_devices", 1)
        if num_devices > 1 and usual == size * num_devices:
            why = f"{describe_arrival(usual, size)}: nn.DataParallel gives each of its {num_devices} devices a part"
            return _contradict(why, "explore on one device, whose size is that of each, or start a process for each")
        if not cut_from:
            self.given[size] = usual
        num_elements, elements_error = _count_elements_per_micro_batch(rank)
        of_model = {count for count, _ in rank.forward_rows}
        is_whole_step = usual == size * accumulation and _count_passes_per_fetch(rank) == accumulation
        arrived = Arrived(
            cut_from=cut_from,
            rows=usual,
            elements_per_sample=num_elements / size,
            elements_error=elements_error,
            parts_per_sample=statistics.median(rank.elements_of_parts or [0]) / size,
            mean_rows=sum(one * count for one, count in rows.items()) / sum(rows.values()),
            has_rows_of_size=usual == size or size in of_model or is_whole_step,
            fetches_per_pass=_count_fetches_per_pass(rank) * rows.get(size, 0) / sum(rows.values()),
            rows_together=_find_rows_together(rank),
        )
        parts = self._explain_parts(size, arrived)
        if parts is not None:
            return parts
        if self._drops(size, arrived):
            why = f"{arrived.fetches_per_pass:.1f} micro-batches of {size} arrived for each that was trained"
            return _contradict(why, "let a batch that runs out of memory end the training", is_of_this_size=True)
        # Batches of lists of samples that are as long as the batches are not packed; several ranks may share a list.
        is_packed = not (is_alone and _find_usual_list(rank) == usual)
        is_in_proportion = is_packed and self._is_in_proportion(size, arrived)
        if arrived.has_rows_of_size:
            if self.unconfirmed not in (None, size) and not is_in_proportion:
                return self._explain_arrival(self.arrived[self.unconfirmed].rows, self.unconfirmed)
            self.unconfirmed = None
        elif (is_in_proportion or self._has_further_rows(size, arrived)) and not self._rows_follow(size):
            self.unconfirmed = None
        elif not self.arrived.keys() - {size} and not self._is_constant(usual, size):
            self.unconfirmed = size
        else:
            return self._explain_arrival(usual, size, was_tried=size in rows, num_samples=rank.num_samples)
        self.arrived[size] = arrived
        result = CheckResult.VERIFIED if self.unconfirmed is None else CheckResult.UNCONFIRMED
        return Finding(result=result, why="" if self.unconfirmed is None else describe_arrival(usual, size))

    def _explain_parts(self, size: int, arrived: Arrived) -> Finding | None:
        """Return what is wrong where loaders share a size, and at a small one each of them had as many samples.

        That they share it shows at another size: domains with a batch each have as many loaders of the size at all.
        """
        is_shared = arrived.rows == size == arrived.rows_together
        for other, seen in self.arrived.items():
            if is_shared and seen.rows == other < seen.rows_together:
                why = f"{describe_arrival(seen.rows_together, other)}: each of several loaders rounds its part up"
                return _contradict(why, f"add to the options: --set explore.min={seen.rows_together}")
            if size == arrived.rows < arrived.rows_together and seen.rows == other == seen.rows_together:
                why = f"{describe_arrival(arrived.rows_together, size)}: the command rounds it"
                return _contradict(why, "", is_of_this_size=True, is_rounded=True)
        return None

    def _explain_arrival(
        self, rows: int, size: int, *, was_tried: bool = False, num_samples: int | None = None
    ) -> Finding:
        """Return why a size is no measurement; one that was tried, and then left, was shrunk by the program."""
        why = describe_arrival(rows, size)
        others = {other: seen for other, seen in self.given.items() if other != size}
        has_followed = any(other == seen for other, seen in others.items())
        is_cut_below = any(seen.cut_from and other < rows for other, seen in self.arrived.items())
        is_constant = self._is_constant(rows, size) and not is_cut_below
        is_of_this_size = size != self.unconfirmed
        has_larger = any(other > rows != seen for other, seen in others.items())
        if is_of_this_size and not was_tried and self._is_rounded(rows, size):
            return _contradict(f"{why}: the command rounds it", "", is_of_this_size=True, is_rounded=True)
        if rows > size or is_constant or not has_followed or (has_larger and is_of_this_size and not was_tried):
            hint = "write {micro_batch_size} where the command takes the samples of one device's pass"
            least = f"; where it rounds smaller sizes up to {rows}, add to the options: --set explore.min={rows}"
            return _contradict(why, hint + least if rows > size and has_followed else hint)
        if was_tried or not is_of_this_size:
            hint = "turn off what changes a size on out-of-memory (auto_find_batch_size: false)"
            return _contradict(why, hint, is_of_this_size=is_of_this_size)
        has_more = num_samples is not None and num_samples > rows
        why = f"{why}: {'the command takes' if has_more else 'the data has'} no more"
        hint = "let the command take larger sizes" if has_more else "train with more samples for larger sizes"
        return _contradict(why, hint, is_of_this_size=True, num_samples=rows)

    def _is_constant(self, rows: int, size: int) -> bool:
        """Return whether as many samples arrived where a start was given another size, and few sizes were followed."""
        others = (seen for other, seen in self.given.items() if other != size)
        return rows in others and not self._rows_follow(size)

    def _is_rounded(self, rows: int, size: int) -> bool:
        """Return whether the command makes a near size of one, and followed another: a larger one where it made less.

        Without a larger one the data, or a limit of the command, may end there.
        """
        followed = [other for other, seen in self.given.items() if other == seen != rows]
        is_near = max(rows, size) < ROUNDED * min(rows, size)
        return is_near and any(rows > size or other > rows for other in followed)

    def _is_divided(self, ranks: Sequence[Rank], size: int) -> bool:
        """Return whether a size arrived as the share of a rank.

        Packed batches do so at one size at most, and not by the lists of samples that a loader is asked for.
        """
        shares = [seen.rows * len(ranks) == size for size, seen in self.arrived.items()]
        lists = {_find_usual_list(rank) for rank in ranks}
        is_all_data = any(rank.num_samples is not None and rank.num_samples * len(ranks) <= size for rank in ranks)
        is_by_lists = lists == {size / len(ranks)} and not is_all_data
        return len(ranks) > 1 and all(shares) and (len(shares) > 1 or (bool(shares) and is_by_lists))

    def _rows_follow(self, size: int) -> bool:
        """Return whether enough other sizes that starts were given arrived as the leading dimension."""
        return sum(seen == other for other, seen in self.given.items() if other != size) >= FOLLOWED

    def _has_further_rows(self, size: int, arrived: Arrived) -> bool:
        """Return whether every batch has as many rows beside its size, as of the boundary of a field."""
        others = {other: one for other, one in self.arrived.items() if other != size}
        are_constant = all(one.mean_rows == one.rows != other for other, one in {**others, size: arrived}.items())
        return are_constant and {arrived.rows - size} == {one.rows - other for other, one in others.items()}

    def _is_in_proportion(self, size: int, arrived: Arrived) -> bool:
        others = {other: one for other, one in self.arrived.items() if other != size}
        if not others:
            return False
        error = math.hypot(arrived.elements_error, min(one.elements_error for one in others.values()))
        fewest = max(1.0, min(arrived.mean_rows, max(one.mean_rows for one in others.values())))
        one_sample = 1.0 / fewest if all(one.rows != other for other, one in others.items()) else 0.0
        allowed = min(max(PROPORTION, ERRORS_OF_PROPORTION * error, one_sample), MOST_OF_PROPORTION)
        if len(others) > 1:  # which have shown that elements follow the size: a few batches may be odd ones
            allowed = MOST_OF_PROPORTION
        measures = [
            (arrived.elements_per_sample, [one.elements_per_sample for one in others.values()]),
            (arrived.parts_per_sample, [one.parts_per_sample for one in others.values()]),
        ]
        usual = [(own, statistics.median(seen)) for own, seen in measures]
        return any(one > 0 and abs(own / one - 1.0) <= allowed for own, one in usual)

    def _drops(self, size: int, arrived: Arrived) -> bool:
        """Return whether the program drops batches that it trained with at other sizes."""
        others = [one.fetches_per_pass for other, one in self.arrived.items() if other != size and one.fetches_per_pass]
        return bool(others) and arrived.fetches_per_pass >= DROPPED * max(statistics.median(others), 1.0)


def is_cut(ranks: Sequence[Rank], micro_batch_size: int, capacity: int) -> bool:
    """Return whether every batch of every rank was cut from one of the command's own, larger batches."""
    num_cut = [(rank.record["num_cut_lists"], sum(step.num_fetches for step in rank.steps)) for rank in ranks]
    is_whole = any(_count_arrivals(rank).get(capacity) for rank in ranks) and micro_batch_size != capacity
    return not is_whole and any(cut for cut, _ in num_cut) and all(cut >= fetches for cut, fetches in num_cut)


def check_capacity(ranks: Sequence[Rank], capacity: int) -> Finding | None:
    """Return what is wrong with the batches that smaller ones were cut from; None where nothing is."""
    longest = {rank.record["longest_cut_list"] for rank in ranks}
    is_all_data = any(rank.num_samples is not None and rank.num_samples in longest for rank in ranks)
    if len(ranks) == 1 or is_all_data or len(longest) > 1 or max(longest) * len(ranks) != capacity:
        return None
    return refuse_division(max(longest), capacity, len(ranks))


def take_capacity(check: SizeCheck, ranks: Sequence[Rank], capacity: int) -> bool:
    """Note how many samples the batches had that smaller ones were cut from; return whether the command may follow.

    Batches of all samples of an epoch show nothing.
    """
    longest = max(rank.record["longest_cut_list"] for rank in ranks)
    if longest == capacity or not any(rank.num_samples == longest for rank in ranks):
        check.given[capacity] = longest
    return check.given.get(capacity, capacity) == capacity


def refuse_division(rows: int, size: int, num_ranks: int) -> Finding:
    """Return the finding of a command that takes the batch of all ranks."""
    why = f"{describe_arrival(rows, size)}: the command divides it by its {num_ranks} ranks"
    hint = "write {global_batch_size} in place of {micro_batch_size}"
    return dataclasses.replace(_contradict(why, hint), num_shares=num_ranks)


def check_replicas(ranks: Sequence[Rank], asked: int | None) -> tuple[int, Finding]:
    """Return the data-parallel replicas, by the batches that differ between ranks, and how they meet what was asked."""
    num_replicas = max(len({rank.digests for rank in ranks if rank.digests}), 1)
    if asked is None or num_replicas == asked:
        return num_replicas, Finding(result=CheckResult.VERIFIED)
    if len(ranks) < asked:
        why = f"the command started {counted(len(ranks), 'rank')} where {counted(asked, 'replica')} were asked for"
        return num_replicas, _contradict(why, "check the launcher's number of processes and its configuration")
    if not any(rank.digests for rank in ranks):
        why = "no batch was seen, so the replicas cannot be told from ranks that share one"
        return asked, Finding(result=CheckResult.UNSEEN, why=why, hint="leave `replicas` out")
    why = (
        f"{counted(num_replicas, 'replica')} of {counted(len(ranks), 'rank')} had batches of their own where {asked} "
        "were asked for"
    )
    hint = "use a DistributedSampler; or, where ranks share one replica's work, give `replicas` as the replicas alone"
    return num_replicas, _contradict(why, hint)


def check_accumulation(timing: StepTiming, asked: int | None) -> Finding:
    """Check the micro-batches of a step."""
    seen = round(timing.micro_batches_per_step)
    if asked is None or seen == asked or timing.passes_per_step == asked:
        return Finding(result=CheckResult.VERIFIED)
    why = f"a step had {seen} micro-batches where {asked} were asked for"
    return _contradict(why, "write {accumulation} where the command takes its accumulation steps")


def _contradict(
    why: str, hint: str, *, is_of_this_size: bool = False, num_samples: int | None = None, is_rounded: bool = False
) -> Finding:
    return Finding(
        result=CheckResult.CONTRADICTED,
        why=why,
        hint=hint,
        is_of_this_size=is_of_this_size,
        num_samples=num_samples,
        is_rounded=is_rounded,
    )


def _count_arrivals(rank: Rank) -> dict[int, int]:
    """Return leading dimension -> number of micro-batches: of the loaders, else of the model's inputs."""
    if rank.rows:
        return dict(rank.rows)
    seen = [rows for rows, _ in rank.forward_rows]
    return {rows: seen.count(rows) for rows in set(seen)}


def _find_rows_together(rank: Rank) -> int:
    rows = {int(one): count for one, count in rank.record.get("rows_together", {}).items()}
    return max(rows, key=lambda one: rows[one], default=0)


def _find_usual_list(rank: Rank) -> int | None:
    """Return the samples of the lists that a loader's batches were loaded for; None where they differ, or for none."""
    lengths = {int(length): count for length, count in rank.record.get("list_lengths", {}).items()}
    usual = max(lengths, key=lambda length: lengths[length], default=None)
    return usual if usual is not None and lengths[usual] >= LISTED * sum(lengths.values()) else None


def _count_elements_per_micro_batch(rank: Rank) -> tuple[float, float]:
    """Return the elements of a usual micro-batch, and their standard error over them.

    The last micro-batch of an epoch may have fewer.
    """
    seen = [step.num_elements / step.num_fetches for step in rank.steps if step.num_fetches]
    seen = seen or [float(elements) for _, elements in rank.forward_rows]
    usual = statistics.median(seen or [0.0])
    if len(seen) < 2 or not usual:
        return usual, 0.0
    return usual, statistics.stdev(seen) / math.sqrt(len(seen)) / usual


def describe_arrival(rows: int, size: int) -> str:
    """Return that another number of samples arrived than was asked for, for people."""
    return f"micro-batches of {counted(rows, 'sample')} arrived where {size} were asked for"


def _count_fetches_per_pass(rank: Rank) -> float:
    # Of the later steps: the first ones have the batches, too, that a program reads ahead to fill its queue.
    steps = rank.steps[len(rank.steps) // 2 :]
    num_passes = sum(step.num_passes for step in steps)
    return sum(step.num_fetches for step in steps) / num_passes if num_passes else 0.0


def _count_passes_per_fetch(rank: Rank) -> int:
    return round(1.0 / count_micro_batches_per_pass(rank.steps)) if rank.steps else 1
