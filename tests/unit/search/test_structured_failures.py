"""Searches of programs that fail at some sizes by a rule; `benchmarks.structured_failures` has more of them."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.errors import UserProgramError
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.search.loop import RunRecord, run_search
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.simulated.failures import FailureKind, StructuredFailure
from tests.unit.search.builders import EXACT, CurveRunner, failed, result_of, saturating

KINDS = {
    "groups of 8": (lambda n: n % 8 == 0, "multiples of 8"),
    "groups of 20": (lambda n: n % 20 == 0, "multiples of 20"),
    "even sizes": (lambda n: n % 2 == 0, "even sizes"),
    "two samples at least": (lambda n: n > 1, None),
    "divisors of a queue": (lambda n: 4096 % n == 0, "powers of two"),
    "no multiple of 5, up to 40": (lambda n: n % 5 and n <= 40, None),
    "up to 12": (lambda n: n <= 12, None),
    "a last batch of one": (lambda n: n > 1 and 1001 % n != 1, None),
}


def traceback_of(line: str) -> str:
    """A traceback whose last frame shows a line."""
    return f'Traceback (most recent call last):\n  File "train.py", line 9, in step\n    {line}\nError\n'


class FailingRunner(CurveRunner):
    """Fails at the sizes of a rule, with a text that tells nothing."""

    def __init__(self, runs, traceback_text: str = "") -> None:
        super().__init__()
        self.runs, self.traceback_text = runs, traceback_text

    def __call__(self, probe: Probe) -> Observation:
        answer = super().__call__(probe)
        if self.runs(probe.micro_batch_size):
            return answer
        reason = "ValueError: bad input (model.py:8)"
        return failed(probe, Outcome.CRASHED, reason, traceback_text=self.traceback_text)


@pytest.mark.parametrize("line", ["", "logits = self.head(tokens)"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [96, 256])
def test_a_program_that_fails_by_a_rule_gets_the_best_size_that_runs(kind: str, largest: int, line: str):
    runs, words = KINDS[kind]
    runner = FailingRunner(runs, traceback_of(line) if line else "")

    result = result_of(runner, Space.from_sizes(range(1, largest + 1)))

    best = result.recommendation
    fastest = max(saturating(size) for size in range(1, largest + 1) if runs(size))
    assert best is not None and runs(best.micro_batch_size)
    assert saturating(best.micro_batch_size) >= 0.95 * fastest
    assert words is None or result.runs_at in (words, None)


@pytest.mark.parametrize("samples", [3, 40, 200])
def test_a_size_that_the_data_does_not_fill_says_nothing_of_smaller_ones(samples: int):
    runner = CurveRunner()

    def run(probe: Probe) -> Observation:
        answer, size = runner(probe), probe.micro_batch_size
        reason = f"micro-batches of {samples} samples arrived where {size} were asked for: the data has no more"
        return answer if size <= samples else failed(probe, Outcome.CRASHED, reason, max_samples=samples)

    result = result_of(run, Space.from_sizes(range(1, 257)), dataclasses.replace(EXACT, max_probes=6))

    beyond = [size for size in runner.sizes if size > samples]
    assert len(beyond) == 1 and runner.sizes[runner.sizes.index(beyond[0]) + 1] >= 0.9 * samples
    assert saturating(result.recommendation.micro_batch_size) >= 0.98 * saturating(samples)
    assert result.runs_at is None


@pytest.mark.parametrize("samples", [75, 135, 1000, 3333])
def test_the_largest_size_that_the_data_fills_is_among_those_that_a_wide_search_sees(samples: int):
    runner = CurveRunner(lambda size: size**0.9)

    def run(probe: Probe) -> Observation:
        return dataclasses.replace(runner(probe), max_samples=samples)

    best = result_of(run, Space.from_sizes(range(1, 4097))).recommendation

    assert samples >= best.micro_batch_size >= 0.998 * samples and max(runner.sizes) <= samples


def test_a_text_that_names_the_rule_saves_the_probes_that_would_find_it():
    class Groups(FailingRunner):
        def __call__(self, probe: Probe) -> Observation:
            answer = CurveRunner.__call__(self, probe)
            size = probe.micro_batch_size
            if size % 8 == 0:
                return answer
            reason = f"ValueError: the batch size ({size}) must be divisible by the number of generations (8)"
            return failed(probe, Outcome.CRASHED, reason)

    runner = Groups(lambda size: size % 8 == 0)

    result = result_of(runner, Space.from_sizes(range(1, 257)))

    assert [size for size in runner.sizes if size % 8] == [1]
    assert result.runs_at == "multiples of 8"


def test_one_crash_in_the_middle_neither_ends_the_range_nor_moves_scores():
    runs = {size: size <= 12 and size % 5 != 0 for size in range(1, 17)}
    runner, sizes, scores = FailingRunner(runs.get), [], []
    for event in run_search(runner, space=Space.from_sizes(runs), settings=EXACT):
        if isinstance(event, Recommendation):
            scores.append(event.confidence)
            sizes.append(event.micro_batch_size)
    assert sizes[-1] == 12
    assert all(size == 12 for size, score in zip(sizes, scores, strict=True) if score >= 90)


def test_powers_of_two_of_which_none_runs_are_extended_by_multiples():
    runner = FailingRunner(lambda size: size % 24 == 0)
    named = "ValueError: the batch must be a multiple of 24"

    def run(probe: Probe) -> Observation:
        answer = runner(probe)
        return answer if answer.is_measured else failed(probe, Outcome.CRASHED, named)

    best = result_of(run, Space.from_sizes(2**power for power in range(9))).recommendation

    assert best is not None and best.micro_batch_size % 24 == 0
    assert saturating(best.micro_batch_size) >= 0.95 * saturating(240)


def test_a_resumed_search_makes_the_decisions_of_an_uninterrupted_one(tmp_path):
    space = Space.from_sizes(2**power for power in range(9))
    named = "ValueError: the batch must be a multiple of 24"

    def answers(runner: CurveRunner):
        def run(probe: Probe) -> Observation:
            size_runs = probe.micro_batch_size % 24 == 0
            return CurveRunner.__call__(runner, probe) if size_runs else failed(probe, Outcome.CRASHED, named)

        return run

    first = CurveRunner()
    run = RunRecord(storage=tmp_path / "study.log")
    seen = [
        event.observation
        for event in run_search(answers(first), space=space, settings=EXACT, run=run)
        if isinstance(event, ProbeFinished)
    ]
    second = CurveRunner()
    resumed = dataclasses.replace(run, storage=tmp_path / "study.log", history=seen)
    *_, last = run_search(answers(second), space=space, settings=EXACT, run=resumed)

    assert isinstance(last, Result) and last.recommendation is not None
    assert second.sizes == []


@pytest.mark.parametrize(
    ("text", "line", "most"),
    [
        ("NameError: name 'labels' is not defined", "", 2),
        ("KeyError: 'tokens'", "", 2),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied ({n}x32 and 64x1)", "", 2),
        ("RuntimeError: Trying to backward through the graph a second time on rank 0", "loss.backward()", 5),
        ("ValueError: the schedule has ended", 'raise ValueError("the schedule has ended")', 5),
        ("ValueError: bad input", "", 8),
        ("ValueError: bad size", 'raise ValueError("bad size")', 8),
        ("ValueError: bad input", "if len(x) % self.group: raise ValueError('bad input')", 8),
        ("AssertionError: ", "assert is_good", 8),
    ],
)
def test_a_program_that_fails_at_every_size_ends_after_few_probes(text: str, line: str, most: int):
    sizes = []

    def runner(probe: Probe) -> Observation:
        sizes.append(probe.micro_batch_size)
        reason = text.format(n=probe.micro_batch_size)
        return failed(probe, Outcome.CRASHED, reason, traceback_text=traceback_of(line) if line else "")

    with pytest.raises(UserProgramError, match="fails at every micro-batch size tried"):
        result_of(runner, Space.from_sizes(range(1, 257)))
    assert len(sizes) <= most


def test_sizes_that_fail_for_different_reasons_are_told_with_their_own():
    def runner(probe: Probe) -> Observation:
        size = probe.micro_batch_size
        reason = "AssertionError: not divisible" if size % 2 else "RuntimeError: sizes must sum to 0"
        line = "assert not n % world" if size % 2 else "split(x, sizes)"
        return failed(probe, Outcome.CRASHED, reason, traceback_text=traceback_of(line))

    with pytest.raises(UserProgramError, match="fails at every micro-batch size tried") as raised:
        result_of(runner, Space.from_sizes([2, 3, 16]))

    assert "3: AssertionError: not divisible" in raised.value.message
    assert "2, 16: RuntimeError: sizes must sum to 0" in raised.value.message
    assert "split(x, sizes)" in raised.value.traceback_text


@pytest.mark.parametrize("max_probes", [1, 3, 5])
def test_a_program_that_fails_at_every_size_is_run_no_more_often_than_allowed(max_probes: int):
    sizes = []

    def runner(probe: Probe) -> Observation:
        sizes.append(probe.micro_batch_size)
        return failed(probe, Outcome.CRASHED, f"ValueError: the shapes [3, {probe.micro_batch_size}] do not match")

    with pytest.raises(UserProgramError, match="fails at every micro-batch size tried"):
        result_of(runner, Space.from_sizes(range(1, 257)), settings=SearchSettings(max_probes=max_probes))
    assert len(sizes) == max_probes


def test_a_list_whose_smallest_size_alone_is_a_multiple_has_an_answer():
    def runner(probe: Probe) -> Observation:
        size = probe.micro_batch_size
        reason = f"ValueError: {size} must be divisible by 8"
        return CurveRunner()(probe) if size % 8 == 0 else failed(probe, Outcome.CRASHED, reason)

    result = result_of(runner, Space.from_sizes([8, 20, 50]))

    assert result.recommendation is not None and result.recommendation.micro_batch_size == 8


def test_a_rule_of_sizes_is_no_answer_where_those_that_it_allows_crash_as_well():
    def runner(probe: Probe) -> Observation:
        size = probe.micro_batch_size
        reason = "RuntimeError: view size is not compatible with input tensor's size and stride"
        if size & (size - 1):
            reason = f"AssertionError: assert 65536 % batch_size == 0, got {size}"
        return CurveRunner()(probe) if size == 1 else failed(probe, Outcome.CRASHED, reason)

    with pytest.raises(UserProgramError, match="but the smallest, 1: 2, 4, 16, 64: RuntimeError: view size"):
        result_of(runner, Space.from_sizes(range(1, 65)))


def test_simulated_programs_of_a_kind_are_equal_for_equal_seeds():
    failure = StructuredFailure(
        kind=FailureKind.GROUPS, runs=lambda n: n % 8 == 0, text=lambda n: f"{n}", flaky_probe=3
    )
    assert [failure.reason(8, number) for number in range(5)] == [None, None, None, "8", None]


class FailingOnce(CurveRunner):
    """Fails at the first probe that a rule names, and never again."""

    def __init__(self, is_meant) -> None:
        super().__init__()
        self.is_meant, self.num_failed = is_meant, 0

    def __call__(self, probe: Probe) -> Observation:
        answer = super().__call__(probe)
        if self.num_failed or not self.is_meant(probe):
            return answer
        self.num_failed += 1
        return failed(probe, Outcome.CRASHED, "OSError: [Errno 98] Address already in use")


def test_a_size_that_failed_by_chance_is_tried_again_if_none_stands_in():
    runner = FailingOnce(lambda probe: probe.micro_batch_size == 32)

    best = result_of(runner, Space.from_sizes([1, 2, 4, 8, 16, 32])).recommendation

    assert runner.num_failed == 1
    assert best is not None and best.micro_batch_size == 32


def test_a_verification_that_failed_once_by_chance_costs_no_size():
    runner = FailingOnce(lambda probe: probe.purpose.is_verification)

    *_, last = run_search(runner, space=Space.from_sizes([1, 2, 4, 8, 16, 32]))

    assert runner.num_failed == 1
    assert last.recommendation.micro_batch_size == 32
