"""The belief about which sizes run: what outcomes and the text of an error teach it."""

from __future__ import annotations

import numpy as np
import pytest

from bexplore.measurement.probe import Outcome
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.runnable import RunBelief, extended
from bexplore.search.posterior.size_rules import Clues, RuleKind, SizeRule, read
from bexplore.search.space import Space
from tests.unit.search.builders import measured

SPACE = Space.from_sizes(range(1, 257))
QUEUE_LINE = "assert self.K % batch_size == 0  # for simplicity"


def crashed(size: int, reason: str = "ValueError: bad input", **fields) -> Evidence:
    return Evidence(micro_batch_size=size, outcome=Outcome.CRASHED, reason=reason, **fields)


def probability(evidence: list[Evidence], *sizes: int, space: Space = SPACE) -> list[float]:
    belief = RunBelief.from_evidence(space, evidence)
    assert belief is not None
    return belief.probability(np.array(sizes)).tolist()


@pytest.mark.parametrize(
    ("size", "reason", "line", "rule"),
    [
        (1, "ValueError: the batch size (1) must be divisible by the number of generations (8)", "", ("multiples", 8)),
        (3, "AssertionError: FP8 execution requires height divisible by 16, but got [3, 64]", "", ("multiples", 16)),
        (3, "RuntimeError: Expected both dimensions of mat2 to be divisble by 16", "", ("multiples", 16)),
        (5, "RuntimeError: shape '[-1, 128]' is invalid for input of size 80", "", ("multiples", 8)),
        (5, "AssertionError: ", "assert len(x) % 4 == 0, 'pairs of pairs'", ("multiples", 4)),
        (5, "ValueError: no", "if x.shape[0] % 4: raise ValueError('no')", ("multiples", 4)),
        (5, "ValueError: no", "if n % 5 == 0: raise ValueError('no')", ("no_remainder", 5)),
        (3, "ValueError: the batch size must be even", "", ("multiples", 2)),
        (3, "RuntimeError: The size of tensor a (2) must match the size of tensor b (1)", "", ("multiples", 2)),
        (3, "ValueError: the batch size has to be a power of two", "", ("powers_of_two", 0)),
        (1, "ValueError: Expected more than 1 value per channel when training", "", ("at_least", 2)),
        (3, "ValueError: need at least 4 samples", "", ("at_least", 4)),
        (3, "AssertionError: queue size 4096 must be divisible by batch size 3", "", ("divisors", 4096)),
        (3, "AssertionError: 4096 % 3 != 0", "", ("divisors", 4096)),
        (3, "AssertionError: ", QUEUE_LINE, ("unknown_divisors", 0)),
        (4, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x32 and 64x1)", "", ("none", 0)),
        (3, "NameError: name 'x' is not defined", "", ("none", 0)),
    ],
)
def test_a_text_or_a_line_of_source_names_its_rule(size, reason, line, rule):
    clues = Clues()
    read(clues, size, f"{reason} (/home/8/job_16.py:32)", line)
    best = max(clues.weights, key=lambda one: clues.weights[one])
    assert (best.kind.value, best.number) == rule


@pytest.mark.parametrize(
    ("reason", "line", "end"),
    [
        ("IndexError: index 8 is out of bounds for dimension 0 with size 8", "", 8),
        ("ValueError: 20 samples exceed the maximum batch size of 12", "", 12),
        ("ValueError: odd size", "if n > 12 or n % 5 == 0: raise ValueError('odd size')", 12),
        ("AssertionError: ", "assert batch_size <= 12", 12),
    ],
)
def test_a_text_or_a_line_of_source_names_the_largest_size(reason, line, end):
    clues = Clues()
    read(clues, 20, reason, line)
    assert max(clues.ends, key=lambda one: clues.ends[one]) == end


@pytest.mark.parametrize(
    "reason",
    [
        "ValueError: even if the loader is seeded, no batch came",
        "RuntimeError: corrupt shard 0x7f12 (/data/divisible by 8/x.py:16)",
    ],
)
def test_a_text_about_something_else_names_nothing(reason):
    clues = Clues()
    read(clues, 4, reason)
    assert (clues.weights, clues.ends) == ({}, {})


def test_without_a_failure_there_is_no_belief():
    assert RunBelief.from_evidence(SPACE, [measured(1, 10.0), measured(64, 90.0)]) is None
    assert RunBelief.from_evidence(SPACE, [Evidence(micro_batch_size=8, outcome=Outcome.NOT_FINITE)]) is None


def test_one_crash_between_sizes_that_ran_is_no_end():
    seen = [measured(1, 10.0), measured(4, 40.0), crashed(5), measured(6, 60.0)]
    four, eleven, twelve = probability(seen, 4, 11, 12)
    assert min(four, eleven, twelve) > 0.6


def test_sizes_that_fail_above_all_that_ran_are_an_end():
    seen = [measured(1, 10.0), measured(7, 40.0), crashed(100), crashed(37), crashed(64)]
    below, above = probability(seen, 8, 200)
    assert below > 0.5 > 0.1 > above


def test_multiples_are_learnt_from_outcomes_alone_and_told():
    seen = [crashed(1), crashed(4), crashed(12), measured(24, 40.0), measured(40, 60.0), crashed(36)]
    belief = RunBelief.from_evidence(SPACE, seen)
    assert belief is not None
    assert belief.words == "multiples of 8"
    run, fails = probability(seen, 64, 66)
    assert run > 0.8 > 0.05 > fails


def test_draws_agree_with_the_probabilities_and_hold_one_rule_each():
    seen = [crashed(1), measured(24, 40.0)]
    belief = RunBelief.from_evidence(SPACE, seen)
    assert belief is not None
    sizes = np.arange(1, 257)
    runs = belief.runs(sizes, belief.draw(np.random.default_rng(3).random((2, 4000))))
    assert np.abs(runs.mean(axis=0) - belief.probability(sizes)).max() < 0.04
    even, odd = runs[:, 49], runs[:, 48]
    assert not (odd & ~even & runs[:, 5]).any() or (odd & ~even).mean() < 0.05


def test_a_size_that_was_refused_by_memory_says_nothing_of_the_rule():
    seen = [crashed(1), measured(8, 40.0)]
    refused = Evidence(micro_batch_size=64, outcome=Outcome.OUT_OF_MEMORY)
    assert probability([*seen, refused], 16, 24) == probability(seen, 16, 24)


def test_candidates_without_a_size_that_runs_are_extended_by_those_that_do():
    powers = Space.from_sizes(2**power for power in range(9))
    named = crashed(1, "ValueError: 1 must be divisible by the number of generations (24)")
    assert 24 in extended(powers, [named]).sizes
    assert {48, 96} <= set(extended(powers, [named]).sizes)
    closed = Space(sizes=powers.sizes, may_extend=False)
    assert extended(closed, [named]).sizes == powers.sizes
    assert extended(powers, [crashed(1, "ValueError: must be divisible by 8")]).sizes == powers.sizes


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (SizeRule(RuleKind.MULTIPLES, 8), "multiples of 8"),
        (SizeRule(RuleKind.MULTIPLES, 2), "even sizes"),
        (SizeRule(RuleKind.AT_LEAST, 2), "sizes from 2 on"),
        (SizeRule(RuleKind.NO_REMAINDER, 5, 0), "sizes that are no multiple of 5"),
        (SizeRule(RuleKind.DIVISORS, 4096), "divisors of 4096"),
    ],
)
def test_each_rule_is_told_in_words(rule, words):
    assert rule.words == words
