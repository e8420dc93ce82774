"""The belief about which sizes run, whatever their memory: a few structured rules, weighed by how probes ended."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Outcome
from bexplore.measurement.statistics import Array
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.size_rules import NAMED, Clues, RuleKind, SizeRule, prior_weights, read
from bexplore.search.space import OWN_REASONS, Space

# P(a size fails for itself alone), as at a corrupt shard; P(a size runs that a rule excludes); P(the program ends at
# some size of the range). Source: set by hand with benchmarks/results/structured_failures.md, not varied one by one.
FAILS_ALONE, RUNS_NEVERTHELESS, ENDS_WITHIN = 0.02, 1e-3, 0.35
# A rule is told, and a program called broken, from these probabilities on; a rule adds its sizes to the domain and to
# the candidates from the third. Source: benchmarks/results/structured_failures.md.
TOLD, BROKEN, PLAUSIBLE = 0.8, 0.97, 0.02
MOST_LADDERS = 3  # rules that add sizes to the domain. Source: as many as are plausible together; more cost time
# Candidates are extended where another size of the range runs with this probability, and is so many times as likely to
# run as every candidate. Source: benchmarks/results/structured_failures.md.
EXTENDS_FROM, EXTENDS_TIMES = 0.02, 1.5
TRIED_AGAIN = 0.15  # P(a size fails alone) from which it is tried again. Source: results/structured_failures.md
STAND_IN = 1.1  # times a size is one that serves as well. Source: `posterior.LADDER_STEP`
MOST_EXTENSION = 64  # sizes. Source: resolves 7 % of a size over a range of a hundred
# Of failures before any size ran, a loss that is not finite is no clue: weights and data cause it at every size.
CLUES_TO_A_FIRST = tuple(outcome for outcome in OWN_REASONS if outcome is not Outcome.NOT_FINITE)
MOST_SIZE = 4096  # up to which other sizes than candidates are looked at. Source: `space.DENSE_LIMIT`


@dataclass(frozen=True, slots=True)
class RunDraws:
    """Draws of what runs.

    `rules`: (S,), position of the rule. `ends`: (S,), the largest size that runs; infinity for none.
    """

    rules: NDArray[np.intp]
    ends: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class RunBelief:
    """The joint posterior of a rule and of the end of the range."""

    rules: tuple[SizeRule, ...]  # every rule of some weight
    intervals: Array  # (I, 2), where the largest size that runs lies: from, below; infinity for no end
    weights: Array  # (R, I), of each pair; 1 in sum
    ran: tuple[int, ...]  # sizes that ran, ascending
    failed: tuple[int, ...]  # sizes that failed for reasons of their own, and never ran, ascending
    failed_once: tuple[int, ...]  # those of them that failed once, and which no candidate beside them can stand in for

    @classmethod
    def from_evidence(cls, space: Space, evidence: Sequence[Evidence]) -> RunBelief | None:
        """Return the belief after these probes of one variant; None where none failed for a reason of its own."""
        ran = {size for item in evidence if item.is_measured for size in item.timed_sizes}
        reasons = OWN_REASONS if ran else CLUES_TO_A_FIRST
        failures = [
            item
            for item in evidence
            if item.outcome in reasons and item.micro_batch_size not in ran and not item.is_beyond_data
        ]
        counts = Counter(item.micro_batch_size for item in failures)
        failed = tuple(sorted(counts))
        if not failed:
            return None
        clues = _clues(failures, [item.max_samples for item in evidence if item.max_samples is not None])
        prior = dict(prior_weights())
        for rule, weight in clues.weights.items():
            prior[rule] = prior.get(rule, 0.0) + weight
        tried = np.array(sorted({*ran, *failed}), dtype=np.int64)
        intervals, masses = _ends(space, tried, clues)
        rules = tuple(prior)
        runs_by_rule = np.stack([rule.runs(tried) for rule in rules])  # (R, T)
        runs_by_end = intervals[:, :1] >= tried[None, :]  # (I, T)
        runs = runs_by_rule[:, None, :] & runs_by_end[None, :, :]
        did_run = np.isin(tried, list(ran))
        likelihood = np.where(
            did_run,
            np.where(runs, math.log1p(-FAILS_ALONE), math.log(RUNS_NEVERTHELESS)),
            np.where(runs, math.log(FAILS_ALONE), math.log1p(-RUNS_NEVERTHELESS)),
        ).sum(axis=2)
        with np.errstate(divide="ignore"):
            log_weights = likelihood + np.log(np.array(list(prior.values())))[:, None] + np.log(masses)[None, :]
        weights = np.exp(log_weights - log_weights.max())
        return cls(
            rules=rules,
            intervals=intervals,
            weights=weights / weights.sum(),
            ran=tuple(sorted(ran)),
            failed=failed,
            failed_once=tuple(size for size in failed if counts[size] == 1 and not _has_stand_in(space, size)),
        )

    @cached_property
    def by_rule(self) -> Array:
        """(R,), probability of each rule."""
        return np.asarray(self.weights.sum(axis=1))

    @property
    def broken(self) -> float:
        """P(no size runs)."""
        return float(self.by_rule[self.rules.index(SizeRule(RuleKind.NONE))])

    @property
    def may_run_again(self) -> tuple[int, ...]:
        """Sizes that failed once though no rule and no end is likely to be why: by chance, or by their data.

        By chance is a full disk, a port in use, or a server that did not answer. Where a candidate beside the size
        serves as well, that one is tried in its stead.
        """
        likely = self.probability(np.array(self.failed_once, dtype=np.int64)) if self.failed_once else ()
        return tuple(size for size, alone in zip(self.failed_once, likely, strict=True) if alone >= TRIED_AGAIN)

    @property
    def first_beyond(self) -> float:
        """The smallest size that failed above all that ran; infinity for none."""
        largest = self.ran[-1] if self.ran else 0
        return min((size for size in self.failed if size > largest), default=math.inf)

    def probability(self, sizes: NDArray[np.int64]) -> Array:
        """Return P(the program runs) at each size."""
        logs = np.log(sizes.astype(float))[None, :]
        low, high = np.log(self.intervals[:, :1]), np.log(np.minimum(self.intervals[:, 1:], np.finfo(float).max))
        beyond = np.clip((high - logs) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        beyond = np.where(self.intervals[:, :1] >= sizes[None, :], 1.0, beyond)  # (I, N)
        likely = self.by_rule > 1e-6
        runs = np.stack([rule.runs(sizes) for rule, kept in zip(self.rules, likely, strict=True) if kept])
        return np.asarray(np.einsum("rn,rn->n", runs.astype(float), self.weights[likely] @ beyond))

    def draw(self, uniforms: Array) -> RunDraws:
        """Draw rules and ends.

        Args:
            uniforms: (2, S) fixed draws from U(0, 1).
        """
        cumulative = np.cumsum(self.weights.ravel())
        chosen = np.minimum(np.searchsorted(cumulative, uniforms[0] * cumulative[-1]), self.weights.size - 1)
        rules, interval = np.unravel_index(chosen, self.weights.shape)
        low, high = self.intervals[interval].T
        is_open = np.isinf(low)
        low, high = np.where(is_open, 1.0, low), np.where(is_open, 1.0, high)
        ends = np.where(is_open, np.inf, np.maximum(low * (high / low) ** uniforms[1] * (1 - 1e-12), low))
        return RunDraws(rules=rules, ends=ends)

    def runs(self, sizes: NDArray[np.int64], draws: RunDraws) -> NDArray[np.bool_]:
        """Return (S, D), in which draws the program runs at each size."""
        drawn, at = np.unique(draws.rules, return_inverse=True)
        by_rule = np.stack([self.rules[rule].runs(sizes) for rule in drawn])
        return by_rule[at] & (sizes[None, :] <= draws.ends[:, None])

    @property
    def plausible(self) -> tuple[SizeRule, ...]:
        """The likeliest rules that exclude sizes."""
        order = np.argsort(-self.by_rule, kind="stable")[: MOST_LADDERS + 2]
        kept = [self.rules[i] for i in order if self.by_rule[i] >= PLAUSIBLE]
        return tuple(rule for rule in kept if rule.kind not in (RuleKind.ALL, RuleKind.NONE))[:MOST_LADDERS]

    @property
    def likeliest_rule(self) -> SizeRule:
        """The rule with the highest probability."""
        return self.rules[int(np.argmax(self.by_rule))]

    @property
    def excludes_by_rule(self) -> bool:
        """Whether the likeliest rule excludes sizes; without one, sizes end or fail for themselves alone."""
        return self.likeliest_rule.kind not in (RuleKind.ALL, RuleKind.NONE)

    @property
    def words(self) -> str | None:
        """The sizes at which the program runs, behind "runs at"; None where no rule is likely enough."""
        best = int(np.argmax(self.by_rule))
        rule = self.rules[best]
        if self.by_rule[best] < TOLD or rule.kind is RuleKind.NONE:
            return None
        within = self.weights[:, np.isfinite(self.intervals[:, 0])].sum()
        limit = f"sizes below {self._first_failed(rule)}" if within >= TOLD and self._first_failed(rule) else ""
        if rule.kind is RuleKind.ALL:
            return limit or None
        return f"{rule.words}, below {self._first_failed(rule)}" if limit else rule.words

    def _first_failed(self, rule: SizeRule) -> int | None:
        """Return the smallest size above all that ran which failed though the rule lets it run."""
        beyond = np.array([size for size in self.failed if size >= self.first_beyond], dtype=np.int64)
        runs = beyond[rule.runs(beyond)] if len(beyond) else beyond
        return int(runs[0]) if len(runs) else None


def _has_stand_in(space: Space, size: int) -> bool:
    return any(other != size and size / STAND_IN <= other <= size * STAND_IN for other in space.sizes)


def extended(space: Space, evidence: Sequence[Evidence]) -> Space:
    """Return the space with every size that was tried, and with others where none of its own is likely to run.

    Powers of two hold no multiple of 24: where the program runs at no other, such multiples become candidates.
    """
    tried = {size for item in evidence for size in item.timed_sizes}
    everything = space if tried <= set(space.sizes) else space.including(tried)
    if not space.may_extend:
        return everything
    # Before anything ran: the sizes that were added then stay.
    early = list(itertools.takewhile(lambda item: not item.is_measured, evidence))
    variants = sorted({item.variant for item in early})
    beliefs = [RunBelief.from_evidence(space, [item for item in early if item.variant == one]) for one in variants]
    return everything.including(size for belief in beliefs if belief for size in _beside(space, belief))


def _beside(space: Space, belief: RunBelief) -> list[int]:
    """Return sizes that are no candidates and far likelier to run than every candidate; none where some may run."""
    own = np.array([size for size in space.sizes if size not in belief.failed], dtype=np.int64)
    likeliest = float(belief.probability(own).max()) if len(own) else 0.0
    between = np.arange(space.base, min(space.sizes[-1], MOST_SIZE) + 1, dtype=np.int64)
    between = between[~np.isin(between, belief.failed)]
    probability = belief.probability(between) if len(between) else np.zeros(0)
    best = float(probability.max(initial=0.0))
    if best < EXTENDS_FROM or best < EXTENDS_TIMES * likeliest:
        return []
    found = between[probability >= 0.5 * best]
    at = np.unique(np.round(np.geomspace(1, len(found), MOST_EXTENSION)).astype(np.int64)) - 1
    return [int(size) for size in found[at]]


def _clues(failures: Sequence[Evidence], max_samples: Sequence[int]) -> Clues:
    clues = Clues()
    for item in failures:
        read(clues, item.micro_batch_size, item.reason, item.failing_line)
    if any(rule.kind is RuleKind.NO_DIVISORS for rule in clues.weights):
        for number in max_samples:  # whose last batch of one sample is what fails
            clues.add(SizeRule(RuleKind.NO_DIVISORS, number - 1), NAMED)
    return clues


def _ends(space: Space, tried: NDArray[np.int64], clues: Clues) -> tuple[Array, Array]:
    """Return (I, 2) intervals of the largest size that runs, and (I,) their prior masses."""
    least, most = float(space.base), float(max(space.sizes[-1], tried[-1]) + 1)
    inner = tried[(tried > least) & (tried < most)]
    borders = np.concatenate([[least], inner, [most]])
    span = math.log(most / least)
    shares = ENDS_WITHIN * np.diff(np.log(borders)) / span
    intervals = [*itertools.pairwise(borders), (math.inf, math.inf)]
    masses = [*shares, 1.0 - ENDS_WITHIN]
    for number, weight in clues.ends.items():
        if number >= least:
            intervals.append((float(number), number + 0.5))
            masses.append(weight)
    return np.array(intervals), np.array(masses)
