"""A probe that a signal ended: once it may have come from outside, twice it is the size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from bexplore.host.records import from_record, to_record
from bexplore.measurement.probe import Observation, Outcome, Probe, Purpose
from bexplore.search.evidence import Evidence, without_first_signals
from bexplore.search.loop import KeepBatchSize, RunRecord, run_search
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.unit.search.builders import CurveRunner, failed

SETTINGS = SearchSettings(max_probes=12)
FEW = Space.from_sizes([1, 2, 4, 8, 16, 32])
REASON = "the worker was ended by SIGTERM"


class Struck(CurveRunner):
    """Ends the first probes of a size by a signal.

    Args:
        is_struck: Whether a probe may be.
        times: How often.
    """

    def __init__(self, is_struck: Callable[[Probe], bool], times: int = 1) -> None:
        super().__init__()
        self.is_struck, self.times, self.num_struck = is_struck, times, 0
        self.seen: list[Observation] = []

    def __call__(self, probe: Probe) -> Observation:
        observation = super().__call__(probe)
        if self.is_struck(probe) and self.num_struck < self.times:
            self.num_struck += 1
            observation = failed(probe, Outcome.CRASHED, REASON, details={"ended_by": "SIGTERM"})
        self.seen.append(observation)
        return observation


def result_of(runner: Struck, **options) -> Result:
    *_, last = run_search(runner, space=FEW, settings=SETTINGS, **options)
    assert isinstance(last, Result)
    return last


@pytest.mark.promise("one signal ends a probe", "it strikes no size out: the size is tried again")
@pytest.mark.parametrize("size", [1, 32])
def test_one_signal_strikes_no_size_out(size):
    runner = Struck(lambda probe: probe.micro_batch_size == size)
    result = result_of(runner)

    assert runner.num_struck == 1
    assert result.recommendation.micro_batch_size == 32
    assert result.outcomes["crashed"] == 1


def test_one_signal_at_the_verification_leaves_the_answer():
    runner = Struck(lambda probe: probe.purpose is Purpose.VERIFY)

    assert result_of(runner).recommendation.micro_batch_size == 32
    assert runner.num_struck == 1
    assert runner.seen[-1].is_measured and runner.seen[-1].probe.purpose is Purpose.VERIFY


@pytest.mark.promise("a second signal ends a probe of the same size", "it counts as a crash of the size")
def test_a_second_signal_at_a_size_counts_as_its_crash():
    runner = Struck(lambda probe: probe.micro_batch_size == 32, times=9)
    result = result_of(runner)

    assert Counter(runner.sizes)[32] == 2
    assert result.recommendation.micro_batch_size == 16


def test_a_signal_is_followed_by_a_probe_of_another_size_first():
    runner = Struck(lambda probe: probe.micro_batch_size > 1)
    result_of(runner)

    struck = runner.sizes[1]
    assert runner.sizes[2] != struck
    assert struck in runner.sizes[3:]


def test_one_signal_does_not_lose_the_only_size_that_keeps_the_batch():
    runner = Struck(lambda probe: probe.purpose is Purpose.KEEP_BATCH_SIZE)
    result = result_of(runner, keeping=KeepBatchSize(sizes=(12,)))

    assert runner.num_struck == 1
    assert result.second_answer.recommendation.micro_batch_size == 12


def test_an_exploration_that_goes_on_counts_the_signal_of_its_journal():
    before = Struck(lambda probe: probe.micro_batch_size == 32)
    events = run_search(before, space=FEW, settings=SETTINGS)
    while not before.num_struck:
        next(events)
    events.close()
    after = Struck(lambda probe: probe.micro_batch_size == 32)
    result = result_of(after, run=RunRecord(history=list(before.seen)))

    assert Counter(after.sizes)[32] == 1
    assert result.recommendation.micro_batch_size == 16


def test_signals_are_counted_by_size_and_variant_and_survive_the_record():
    one, other = (Evidence(micro_batch_size=8, outcome=Outcome.CRASHED, ended_by="SIGKILL", variant=v) for v in (0, 1))
    bug = Evidence(micro_batch_size=4, outcome=Outcome.CRASHED)

    assert without_first_signals([one, bug, other, one]) == [bug, one]
    assert from_record(Evidence, to_record(one)).ended_by == "SIGKILL"
