"""The recommended size: its speed, its score, what may remain to be gained, and a smaller size that is as fast."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bexplore.run.facts import Facts, ranks_of
from bexplore.run.parts.row import Row, View
from bexplore.search.recommendation import Speed
from bexplore.units import format_bytes, format_seconds

NEGLIGIBLE_GAIN = 0.0005  # of the fastest size's speed
# Fields that the recommendation of the search has under the same name.
_OF_SEARCH = (
    *("micro_batch_size", "relative_performance", "relative_performance_interval", "confidence", "samples_per_s"),
    *("speeds", "regret_bound_90", "left_to_gain"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """The recommended size. None means unknown or not applicable, never 0.

    On an emulated device it is the largest size that ran, and all speeds and scores are None.
    """

    micro_batch_size: int | None = None  # the size to use; None where an interruption came before the first measurement
    relative_performance: float | None = None  # its samples/s over those of the base
    # The 95 % interval of `relative_performance`; None for the base itself.
    relative_performance_interval: tuple[float, float] | None = None
    confidence: int | None = None  # p(it is within the indifference zone of the fastest that fits) in percent, 0 to 98
    samples_per_s: float | None = None  # of one replica, of the pass, as in `speeds`
    total_samples_per_s: float | None = None  # of all replicas; None where one of several ran alone
    pass_time_s: float | None = None  # seconds of a pass
    # Seconds of an update, as its share of the last probe of the size shows; None in evaluation, and where none was
    # timed.
    update_time_s: float | None = None
    # The one estimate of each size that ran, from which all numbers of its speed follow: posterior mean and 95 %
    # interval of samples/s, at the machine's speed at the end.
    speeds: tuple[Speed, ...] = ()
    regret_bound_90: float | None = None  # share of the fastest size's speed that it misses at most, with a score of 90
    left_to_gain: float | None = None  # share of the fastest size's speed that it is expected to miss, 0 to 1
    base_micro_batch_size: int | None = None  # the smallest size that ran; None where none did
    training_time_s: float | None = None  # seconds of the training that a further probe could speed up
    # Samples of one replica in the training, where the training time comes from the file's steps.
    training_samples: int | None = None
    next_probe_s: float | None = None  # seconds of the further probe that would save most
    next_probe_saves: float | None = None  # share of `training_time_s` that it is expected to save
    next_probe_must_save: float | None = None  # how many times its cost it had to be expected to save, to be run
    # Tokens of a sample, without padding, to which a command's steps are adjusted; None where they show none.
    tokens_per_sample: float | None = None
    smallest_within_tolerance: int | None = None  # the smallest size that ran within the indifference zone of the best
    memory_saved_bytes: int | None = None  # peak memory that this smallest size saves

    @classmethod
    def find(cls, facts: Facts) -> AnswerPart:
        """Return what the search recommends, with the speed of all replicas and of the update."""
        searched, best, ran = facts.searched, facts.best, facts.ran
        further = searched.next_probe
        known = cls(
            base_micro_batch_size=searched.base_micro_batch_size,
            training_time_s=further.training_time_s if further else None,
            next_probe_s=further.cost_s if further else None,
            next_probe_saves=further.saves if further else None,
            next_probe_must_save=further.least_times if further else None,
            smallest_within_tolerance=searched.smallest_within_tolerance,
            memory_saved_bytes=searched.memory_saved_bytes,
        )
        if best is None:
            return known
        config = facts.config
        ran_together = config.command is not None or (ran is not None and bool(ranks_of(ran)))
        has_total = ran_together or config.num_replicas == 1
        return replace(
            known,
            **{name: getattr(best, name) for name in _OF_SEARCH},
            training_samples=config.training_samples,
            total_samples_per_s=best.samples_per_s * config.num_replicas if has_total else None,
            pass_time_s=best.micro_batch_size / best.samples_per_s,
            tokens_per_sample=ran.details.get("tokens_per_sample") if ran is not None else None,
            update_time_s=ran.update_time_s if ran is not None and ran.update_times_s else None,
        )

    def rows(self, view: View) -> Iterator[Row]:
        """Yield the expected remaining gain, what a low score means, and a smaller size that is as fast."""
        texts = {
            "remaining gain": self.remaining_gain(),
            "score": self.score_words(view.tolerance),
            "tokens": self.tokens_words(),
            "smaller size": self.smaller_size(view.tolerance),
        }
        yield from (Row(label, text) for label, text in texts.items() if text)

    def remaining_gain(self) -> str | None:
        """Return the expected remaining gain, and the cost and gain of another probe; None if unknown."""
        share, training_s, saves = self.left_to_gain, self.training_time_s, self.next_probe_saves
        if share is None:
            return None
        at = f"at a score of {self.confidence}"
        if share < NEGLIGIBLE_GAIN:
            return f"negligible {at}: less than {NEGLIGIBLE_GAIN:.2%} in expectation"
        if training_s is None or saves is None:
            return f"{share:.1%} in expectation, {at}"
        saved = "next to nothing" if saves * training_s < 1.0 else format_seconds(saves * training_s)
        training = format_seconds(training_s) + ("" if self.training_samples is None else " by the file's steps")
        cost_s, times = self.next_probe_s or 0.0, self.next_probe_must_save or 1.0
        pays = times > 1.0 and cost_s < saves * training_s <= times * cost_s
        enough = f"; at such a score it is run only to save {times:g} times its cost" if pays else ""
        return (
            f"{share:.1%} in expectation, {format_seconds(share * training_s)} of {training}, {at}; "
            f"another probe costs {format_seconds(cost_s)} and is expected to save {saved}{enough}"
        )

    def score_words(self, tolerance: float) -> str | None:
        """Return the regret bound of a score below 90; None for a score that needs no explanation."""
        share = self.regret_bound_90
        if share is None or share <= tolerance:
            return None
        shown = math.ceil(1000.0 * share) / 1000.0  # rounded up: the bound must hold
        return (
            f"{self.confidence} out of 100 that it is within {100 * tolerance:g}% of the fastest that fits, "
            f"90 out of 100 that it is within {shown:.1%}"
        )

    def tokens_words(self) -> str | None:
        """Return the tokens of a second and of a sample; None where they are unknown."""
        tokens, samples_per_s = self.tokens_per_sample, self.samples_per_s
        if tokens is None or samples_per_s is None:
            return None
        of_each = "" if self.total_samples_per_s in (None, samples_per_s) else " of each replica"
        mean = f"samples have {tokens:.4g} in the mean"
        if tokens < 1:
            mean = f"the size counts tokens, of which {1.0 - tokens:.0%} are padding"
        return (
            f"{tokens * samples_per_s:,.0f} tokens/s{of_each} without padding; {mean}, to which the seconds of each "
            "step are adjusted"
        )

    def smaller_size(self, tolerance: float) -> str | None:
        """Return the smallest size in the indifference zone and the memory that it saves; None where it saves none.

        Batches that differ in length may have given the smaller size the higher peak.
        """
        small, saved = self.smallest_within_tolerance, self.memory_saved_bytes
        if small is None or small == self.micro_batch_size or (saved is not None and saved <= 0):
            return None
        return f"size {small} is within {tolerance:.0%} of it" + (f" and saves {format_bytes(saved)}" if saved else "")
