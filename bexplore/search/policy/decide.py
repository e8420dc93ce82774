"""The choice of the next probe, or of the reason to stop: one decision of the search."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bexplore.measurement.probe import Compilation, Outcome, Purpose
from bexplore.measurement.statistics import Array
from bexplore.search.evidence import ROUNDING, Evidence, without_first_signals
from bexplore.search.policy.acquisition import Choice, fantasy, interleaved_with, rank
from bexplore.search.policy.decision import (
    REPEAT_SHARE_OF_SWEEP,
    TIMES_BEYOND_A_SWEEP,
    TIMES_BEYOND_TARGET,
    Decision,
    NextProbe,
    StopReason,
    next_probe,
)
from bexplore.search.policy.first_probe import first_probe, only_base_runs
from bexplore.search.policy.probe_cost import Costs, expected_pass_s
from bexplore.search.posterior.joint import ONE_VARIANT, Variant, fit_joint, shift_to_present_speed
from bexplore.search.posterior.noise_model import DISTURBED_SDS, EXPECTED_PROBE_SD, common_mode_sd
from bexplore.search.posterior.posterior import LIKELY_FITS, Posterior, fit_posterior
from bexplore.search.posterior.runnable import extended
from bexplore.search.recommendation import Recommendation, recommend
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space

# sensitivity.md is benchmarks/results/sensitivity.md: what half and double of each figure do to searches.
# Source: sensitivity.md. The search does not end with an unprobed stretch wider than this, whose throughput is expected
# this close to the best, in ln, and which holds this many candidates.
GAP_RATIO = 2.05
GAP_DEPTH = 0.5
GAP_CANDIDATES = 4
# Source: recorded sweeps of gavel, one of which lost a half; sensitivity.md. In a list of at most so many sizes a probe
# is dear beside what it could find: only a stretch twice as wide, beside one of the best sizes, is probed, where at
# least half of the best throughput is expected.
SHORT_LIST = 16
SHORT_GAP_RATIO = 4.05
SHORT_GAP_DEPTH = 0.7
# Source: sensitivity.md. A winner that loses this share in exact compilation, beyond so many standard deviations of
# common-mode drift, has its runner-up compiled exactly, too.
EXACT_LOSS = 0.1
SURELY = 2.0
# Source: sensitivity.md. A size whose only probe is below this quantile of the others' prediction is probed again,
# where it would be among the best without that probe with this probability; a winner above 1 less this is, too.
UNLIKELY_TAIL = 0.02
UNLIKELY_NEAR_BEST = 0.1
# ln(samples/s) between two probes of one size, from which on a third is asked for. Source: `DISTURBED_SDS` times the
# expected difference of two probes.
CONTRADICTION = DISTURBED_SDS * math.sqrt(2.0) * EXPECTED_PROBE_SD
BASE_AGAIN_PROBES = 8  # after which the base is measured again, against drift. Source: `DRIFT_LENGTH`; sensitivity.md


def decide(
    space: Space,
    evidence: Sequence[Evidence],
    settings: SearchSettings,
    *,
    num_unassigned: int = 0,
    variants: Sequence[Variant] = ONE_VARIANT,
    is_over: bool = False,
) -> Decision:
    """Decide on the next probe; a pure function of its arguments.

    Args:
        evidence: Every probe in order, whatever it was made for; probes in flight have no outcome.
        num_unassigned: Explorers that are choosing a size right now: that many best choices are left to them.
        is_over: Whether the search has ended, so that only the verification of its answer may follow.
    """
    tried = evidence
    evidence = without_first_signals(tried)
    finished = [item for item in evidence if item.outcome is not None]
    in_flight = [item for item in evidence if item.outcome is None]
    space = extended(space, evidence)  # by the sizes that keep the batch size, too
    if not any(item.is_measured for item in finished):
        return first_probe(space, finished, in_flight, settings, variants, num_unassigned)

    def fit(known: Sequence[Evidence]) -> Posterior:
        seed, user_compilation = settings.seed, settings.user_compilation
        if len(variants) > 1:
            return fit_joint(space, variants, known, seed=seed, user_compilation=user_compilation)
        return fit_posterior(space, known, memory=variants[0].memory, seed=seed, user_compilation=user_compilation)

    fitted = fit(finished)
    now = shift_to_present_speed(fitted, finished, settings.user_compilation)
    best = recommend(now, finished, tolerance=settings.tolerance, base_variant=_base_variant(finished))
    ahead = fit([*finished, *(_imagined(fitted, item) for item in in_flight)]) if in_flight else fitted
    costs = Costs.learnt(finished, settings)
    step = _Step(
        space=space,
        finished=finished,
        num_probes=len(tried),
        spent_s=sum(item.elapsed_s for item in tried if item.outcome is not None),
        interrupted=tried[-1] if tried[-1] not in evidence else None,
        settings=settings,
        costs=costs,
        fitted=ahead,
        best=best,
        fit=fit,
    )
    decision = step.ending(StopReason.NOTHING_LEFT) if is_over else step.next(num_unassigned)
    return dataclasses.replace(decision, recommendation=best, next_probe=step.next_probe, posterior=now)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """The inputs of one decision.

    `fitted` includes imagined outcomes of the probes in flight. `interrupted` is the last probe, where a signal ended
    it: its size has another try, after a probe of another size if one is worth anything.
    """

    space: Space
    finished: Sequence[Evidence]
    num_probes: int
    spent_s: float
    interrupted: Evidence | None
    settings: SearchSettings
    costs: Costs
    fitted: Posterior
    best: Recommendation | None
    fit: Callable[[Sequence[Evidence]], Posterior]

    @cached_property
    def choices(self) -> Sequence[Choice]:
        """The possible probes, the one that is worth most first."""
        last = self.finished[-1].variant, self.finished[-1].micro_batch_size
        ranked = rank(self.fitted, self.settings, self.costs, last=last, extra_s=self._extra_s)
        return ranked if self.settings.repeats else [one for one in ranked if not self.fitted.measured[one.index]]

    @cached_property
    def next_probe(self) -> NextProbe | None:
        """The savings of a further probe; None where none is possible, or nothing is recommended."""
        if self.best is None or not self.choices:
            return None
        candidates = np.unique([choice.index for choice in self.choices])
        return next_probe(
            self.fitted,
            self.settings,
            leader=self._winner,
            candidates=candidates,
            cost_s=self._each_s[candidates],
            least_times=self._least_times[candidates],
        )

    @cached_property
    def _each_s(self) -> Array:
        """(D,), seconds that a probe of each size is expected to take."""
        pass_s = expected_pass_s(self.fitted)
        usual_s = self.costs.estimate_s(pass_s, compilation=self.settings.search_compilation, fresh_worker=False)
        return np.asarray(usual_s + self._extra_s)

    @cached_property
    def _least_times(self) -> Array:
        """(D,), how many times its cost a probe of each size must be expected to save."""
        usual = TIMES_BEYOND_TARGET if self._is_sure else 1.0
        was_verified = self._verifies and self.best is not None and self.fitted.measured_exactly[self._winner] > 0
        if was_verified:
            return np.full(len(self.fitted.sizes), TIMES_BEYOND_A_SWEEP)
        most = np.where(self.fitted.measured > 0, REPEAT_SHARE_OF_SWEEP, 1.0 + ROUNDING) * self._sweep_s
        exceeds = self.spent_s + self._each_s > most
        return np.where(exceeds, TIMES_BEYOND_A_SWEEP, usual)

    @cached_property
    def _sweep_s(self) -> float:
        """Seconds of one probe of each candidate that is likely to fit: those that were spent, and those to come."""
        firsts: dict[tuple[int, int], float] = {}
        for item in self.finished:
            if item.is_measured:
                firsts.setdefault((item.micro_batch_size, item.variant), item.elapsed_s)
        fitted = self.fitted
        is_new = (fitted.measured == 0) & (fitted.feasible.mean(axis=0) > LIKELY_FITS)
        return sum(firsts.values()) + float((fitted.represented * np.where(is_new, self._each_s, 0.0)).sum())

    @cached_property
    def _extra_s(self) -> Array | float:
        """(D,), seconds to start and compile a variant that has no worker with its program."""
        if not self.fitted.variants.any():
            return 0.0
        last, ran = self.finished[-1].variant, {item.variant for item in self.finished if item.is_measured}
        warm = ran if self.settings.keeps_programs else {last}
        return np.where(np.isin(self.fitted.variants, list(warm)), 0.0, self.costs.program_s)

    @property
    def _winner(self) -> int:
        """Position of the recommended size."""
        assert self.best is not None  # only what follows a recommendation needs it
        return self.fitted.index(self.best.micro_batch_size, self.best.variant)

    def next(self, num_unassigned: int) -> Decision:
        choices = self.choices
        reason = self._stop_reason()
        if reason in (StopReason.TARGET_CONFIDENCE, StopReason.COSTS_MORE_THAN_IT_SAVES):
            confirmation = self._confirmation()
            if confirmation is not None:
                return confirmation
        if reason is not None and only_base_runs(self.space, [item for item in self.finished if not item.variant]):
            return Decision(stop_reason=StopReason.BROKEN_PROGRAM)
        if reason is not None:
            return self.ending(reason)
        contradicted = self._contradicted() if self.settings.repeats else None
        if contradicted is not None:
            return self._probe(contradicted, Purpose.REPLICATE)
        if self._base_is_due():
            return self._probe(self.fitted.index(self.space.base), Purpose.BASE)
        choices = [choice for choice in choices if not self._was_interrupted(choice)] or choices
        choice = choices[min(num_unassigned, len(choices) - 1)]
        further = self.next_probe
        is_new = further is not None and not num_unassigned and not self.fitted.measured[further.index]
        if further is not None and is_new and (self._is_sure or choice.is_contender):
            choice = Choice(index=further.index, value=choice.value)  # its saving keeps the search going
        if self._verifies and self.fitted.measured_exactly.any() and self.fitted.measured[choice.index]:
            return self._exactly(choice.index)
        return self._probe(choice.index, Purpose.CONTENDER if choice.is_contender else None)

    def _was_interrupted(self, choice: Choice) -> bool:
        last, fitted = self.interrupted, self.fitted
        own = int(fitted.sizes[choice.index]), int(fitted.variants[choice.index])
        return last is not None and own == (last.micro_batch_size, last.variant)

    @property
    def _is_sure(self) -> bool:
        return self.best is not None and self.best.confidence >= self.settings.target_confidence

    @property
    def _time_budget_s(self) -> float:
        """Seconds that the search may take: those that are given, or the effort's share of the training's time."""
        if self.settings.time_budget_s is not None:
            return self.settings.time_budget_s
        return math.inf if self.next_probe is None else self.settings.training_share * self.next_probe.training_time_s

    @property
    def _verifies(self) -> bool:
        return self.settings.verify_exact and self.settings.search_compilation is not self.settings.user_compilation

    @property
    def _num_left(self) -> int:
        """Probes that the search may still run, without the one that is kept for the verification of its answer."""
        return self.settings.max_probes - self.num_probes - self._keeps_a_probe

    @property
    def _keeps_a_probe(self) -> bool:
        """Whether a probe is kept for the verification; none is while one size alone has run: another tells more."""
        sizes = {(item.micro_batch_size, item.variant) for item in self.finished}
        return self._awaits_verification and len(sizes) > 1

    @property
    def _awaits_verification(self) -> bool:
        """Whether the winner has not run in a fresh process and in the user's own compilation."""
        return self._verifies and self.best is not None and not self.fitted.measured_exactly[self._winner]

    def _stop_reason(self) -> StopReason | None:
        if self._num_left <= 0:
            return StopReason.MAX_PROBES
        if not self.choices:
            return StopReason.NOTHING_LEFT if self.best is not None else StopReason.NOTHING_FITS
        if self.next_probe is not None and not self.next_probe.pays:
            return StopReason.TARGET_CONFIDENCE if self._is_sure else StopReason.COSTS_MORE_THAN_IT_SAVES
        return StopReason.TIME_BUDGET if self.spent_s >= self._time_budget_s else None

    def _confirmation(self) -> Decision | None:
        """Return a probe beyond the target score: of an unlikely size, an unseen stretch, or a suspicious winner."""
        if self.best is None or self._num_left <= 0:
            return None
        if not self._finds_may_pay():
            return None
        if not self.settings.repeats:
            hidden = self._unseen_gap(self.best)
            return None if hidden is None else self._probe(hidden, Purpose.SEARCH)
        contradicted = self._contradicted()
        if contradicted is not None:
            return self._probe(contradicted, Purpose.REPLICATE)
        if self._is_suspicious(self._winner):  # before others are doubted that are slower than it
            return self._probe(self._winner, Purpose.CONTENDER, fresh_worker=True)
        unlikely = self._unlikely()
        if unlikely is not None:
            return self._probe(unlikely, Purpose.REPLICATE)
        hidden = self._unseen_gap(self.best)
        if hidden is not None:
            return self._probe(hidden, Purpose.SEARCH)
        winner = self._winner
        runner_up = self._runner_up(winner)
        if runner_up is not None and self._verifies and self._falls_short(self.best):
            return self._exactly(runner_up)
        return None

    def _unseen_gap(self, best: Recommendation) -> int | None:
        hidden = unseen_gap(self.fitted.part(best.variant), best)
        return None if hidden is None else self.fitted.start(best.variant) + hidden

    def _finds_may_pay(self) -> bool:
        """Return whether a size that is better by the tolerance would save more than a probe costs."""
        probe = self.next_probe
        return probe is None or self.settings.tolerance * probe.training_time_s > probe.cost_s

    def _contradicted(self) -> int | None:
        """Return a size whose two probes contradict each other, and which would be among the best by the faster one."""
        known = self.fitted.measured > 0
        top = self.fitted.own_level[known & self.fitted.open].max(initial=-math.inf)
        for index in np.flatnonzero((self.fitted.measured == 2) & self.fitted.open):
            found = self._levels(int(index))
            is_wide = len(found) == 2 and max(found) - min(found) > CONTRADICTION
            if is_wide and max(found) > top + math.log1p(-self.settings.tolerance):
                return int(index)
        return None

    def _levels(self, index: int) -> list[float]:
        """Return ln(samples/s) of each probe of a size, of the program that the search runs."""
        own = int(self.fitted.sizes[index]), int(self.fitted.variants[index])
        kept = [item for item in self.finished if item.is_measured and item.is_clear]
        return [
            item.log_throughput
            for item in kept
            if (item.micro_batch_size, item.variant) == own and item.compilation is self.settings.search_compilation
        ]

    def _unlikely(self) -> int | None:
        """Return a size whose only probe is far slower than the others predict, and decides against the size.

        A fall of throughput looks like a disturbed probe until it is seen twice.
        """
        known = self.fitted.measured > 0
        slower = self.fitted.own_level < self.fitted.own_level[known].max() + math.log1p(-self.settings.tolerance)
        once = np.flatnonzero((self.fitted.measured == 1) & self.fitted.open & slower & (self.fitted.surprise < 0.0))
        return next((int(index) for index in once if self._is_unlikely(int(index))), None)

    def _is_unlikely(self, index: int) -> bool:
        """Return whether a size is slower than the others predict, who have it among the best."""
        without = self._fit_without(index)
        if without is None:
            return False
        at = without.index(int(self.fitted.sizes[index]), int(self.fitted.variants[index]))
        is_slower = without.log_throughput[:, at] <= self.fitted.own_level[index]
        near = without.near_best(self.settings.tolerance)[:, at]
        return bool(is_slower.mean() <= UNLIKELY_TAIL and near.mean() >= UNLIKELY_NEAR_BEST)

    def _is_suspicious(self, winner: int) -> bool:
        """Return whether the winner rests on one run that is far faster than the others predict."""
        if self.fitted.measured[winner] != 1 or self._verifies:  # its verification is a second run
            return False
        without = self._fit_without(winner)
        if without is None:
            return False
        at = without.index(int(self.fitted.sizes[winner]), int(self.fitted.variants[winner]))
        return bool((without.log_throughput[:, at] >= self.fitted.own_level[winner]).mean() <= UNLIKELY_TAIL)

    def _fit_without(self, index: int) -> Posterior | None:
        """Return the posterior without the measurements of one size; None where nothing else was measured."""
        own = int(self.fitted.sizes[index]), int(self.fitted.variants[index])
        others = [item for item in self.finished if (item.micro_batch_size, item.variant) != own]
        return self.fit(others) if any(item.is_measured for item in others) else None

    def _falls_short(self, best: Recommendation) -> bool:
        """Return whether a size, the only one that ran exactly, is far slower in exact compilation."""
        measured = [item for item in self.finished if item.is_measured and item.variant == best.variant]
        user_compilation = self.settings.user_compilation
        own = [item for item in measured if item.micro_batch_size == best.micro_batch_size]
        exact = [item.log_throughput for item in own if item.compilation is user_compilation]
        other = [item.log_throughput for item in own if item.compilation is not user_compilation]
        if not exact or not other or (self.fitted.measured_exactly > 0).sum() > 1:
            return False
        chance = SURELY * math.sqrt(2.0) * common_mode_sd(measured)
        return float(np.median(exact) - np.median(other)) < math.log1p(-EXACT_LOSS) - chance

    def _runner_up(self, winner: int) -> int | None:
        near = self.fitted.near_best(self.settings.tolerance).mean(axis=0)
        near = np.where(self.fitted.open, near, -1.0)
        near[winner] = -1.0
        return int(np.argmax(near)) if near.max() > 0.0 else None

    def ending(self, reason: StopReason) -> Decision:
        """Return the end, or the verification that the answer still needs: whatever ends a search, its winner ran so.

        One probe of `max_probes` is kept for it. Where the winner fails it, or falls behind another size that ran, that
        one is verified in its stead, beyond `max_probes` if need be.
        """
        return self._exactly(self._winner) if self._awaits_verification else Decision(stop_reason=reason)

    def _exactly(self, index: int) -> Decision:
        return self._probe(index, Purpose.VERIFY, compilation=self.settings.user_compilation, fresh_worker=True)

    def _base_is_due(self) -> bool:
        base = (self.space.base, 0)
        at = [i for i, item in enumerate(self.finished) if (item.micro_batch_size, item.variant) == base]
        is_open = bool(self.fitted.open[self.fitted.index(self.space.base)])
        if not self.settings.repeats or any(item.interleaved for item in self.finished):  # in which drift cancels
            return False
        return is_open and len(self.finished) - (at[-1] if at else 0) > BASE_AGAIN_PROBES

    def _probe(
        self,
        index: int,
        purpose: Purpose | None = None,
        *,
        compilation: Compilation | None = None,
        fresh_worker: bool = False,
    ) -> Decision:
        if compilation is None and self._verifies and self._num_left == 1 and not self._keeps_a_probe:
            # no probe is left that would verify it
            purpose, compilation, fresh_worker = Purpose.VERIFY, self.settings.user_compilation, True
        compilation = compilation or self.settings.search_compilation
        purpose = purpose or (Purpose.REPLICATE if self.fitted.measured[index] else Purpose.SEARCH)
        variant = int(self.fitted.variants[index])
        others: tuple[int, ...] = ()
        if not fresh_worker:
            others = interleaved_with(
                self.fitted.part(variant),
                [item for item in self.finished if item.variant == variant],
                self.settings,
                self.costs,
                index=index - self.fitted.start(variant),
                purpose=purpose,
                compilation=compilation,
            )
        all_pass_s, costs = expected_pass_s(self.fitted), self.costs
        pass_s = all_pass_s[index]
        max_passes = costs.passes(float(pass_s), compilation=compilation, fresh_worker=fresh_worker)
        others_s = max_passes * sum(float(all_pass_s[self.fitted.index(size, variant)]) for size in others)
        return Decision(
            micro_batch_size=int(self.fitted.sizes[index]),
            purpose=purpose,
            compilation=compilation,
            fresh_worker=fresh_worker,
            max_passes=max_passes,
            interleaved_with=others,
            expected_s=float(
                costs.estimate_s(pass_s, compilation=compilation, fresh_worker=fresh_worker, others_s=others_s)
            ),
            variant=variant,
        )


def _imagined(fitted: Posterior, item: Evidence) -> Evidence:
    guess = fantasy(fitted, item)
    if guess is None:
        return dataclasses.replace(item, outcome=Outcome.OUT_OF_MEMORY)
    return dataclasses.replace(guess, outcome=Outcome.MEASURED)


def unseen_gap(fitted: Posterior, best: Recommendation) -> int | None:
    """Return the middle of an unprobed stretch of sizes that could hold a better one; None if there is none.

    The posterior of a smooth curve does not prove smoothness: throughput is known to fall by a third between two
    adjacent powers of two.
    """
    is_short = fitted.represented.sum() <= SHORT_LIST
    mean = fitted.mean
    matters = fitted.open & (fitted.feasible.mean(axis=0) > LIKELY_FITS)
    matters &= mean >= mean[fitted.index(best.micro_batch_size)] - (SHORT_GAP_DEPTH if is_short else GAP_DEPTH)
    is_best = np.isin(fitted.sizes, best.within_tolerance)
    run = np.flatnonzero(fitted.measured > 0)
    widest, where = math.log(SHORT_GAP_RATIO if is_short else GAP_RATIO), None
    for low, high in itertools.pairwise(run):
        inside = np.flatnonzero(matters[low + 1 : high]) + low + 1
        if len(inside) < (1 if is_short else GAP_CANDIDATES) or (is_short and not is_best[[low, high]].any()):
            continue
        start = max(inside[0] - 1, low)
        width = math.log(fitted.sizes[high] / fitted.sizes[start])
        if width > widest:
            middle = math.sqrt(float(fitted.sizes[high]) * float(fitted.sizes[start]))
            widest, where = width, int(inside[np.argmin(np.abs(np.log(fitted.sizes[inside] / middle)))])
    return where


def _base_variant(finished: Sequence[Evidence]) -> int:
    """Return the first variant that runs, whose smallest size is the base; the file's own unless nothing of it fits."""
    ran = {item.variant for item in finished if item.is_measured}
    return 0 if 0 in ran else min(ran, default=0)
