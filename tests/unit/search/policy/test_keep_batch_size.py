"""The second answer: the fastest size that keeps the user's batch size, whose probes are evidence like all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from optuna.storages import InMemoryStorage

from bexplore.errors import NothingFitsError
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.search.loop import KeepBatchSize, RunRecord, run_search
from bexplore.search.policy.keep_batch_size import MOST_PROBES
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import ProbeFinished, ProbeStarted, Result, SearchEnded
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space, largest_wanted
from bexplore.search.study.sampler import BexploreSampler, open_study
from bexplore.search.study.trials import read_evidence
from tests.unit.search.builders import MANY, CurveRunner, failed, measured, saturating


def peaked(size: int) -> float:
    """Samples/s of a job that is fastest at 200 samples."""
    return saturating(size) * (1.0 if size <= 200 else (200 / size) ** 0.5)


def events_of(sizes: Sequence[int], runner: Callable[[Probe], Observation] | None = None, **options) -> list:
    keeping = KeepBatchSize(sizes=tuple(sizes), is_answer=options.pop("is_answer", False))
    return list(run_search(runner or CurveRunner(peaked), space=MANY, keeping=keeping, **options))


def streamed(events: Sequence[object]) -> list[Recommendation]:
    return [dataclasses.replace(event, elapsed_s=0.0) for event in events if isinstance(event, Recommendation)]


def extra(events: Sequence[object]) -> list[Probe]:
    probes = (event.probe for event in events if isinstance(event, ProbeStarted))
    return [probe for probe in probes if probe.purpose is Purpose.KEEP_BATCH_SIZE]


def of_search(events: Sequence[object]) -> list[Recommendation]:
    """What was streamed before the first extra probe."""
    ended = (number for number, event in enumerate(events) if isinstance(event, SearchEnded))
    return streamed(events[: next(ended, len(events))])


def test_the_lines_of_the_search_are_the_same_whatever_the_batch_size():
    told = [events_of(sizes) for sizes in ((), (1, 3, 9, 27, 81), (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 7, 49))]

    assert len({tuple(of_search(events)) for events in told}) == 1
    num_extra = [len(extra(events)) for events in told]
    assert num_extra[0] == 0 < min(num_extra[1:])


def test_the_answer_is_of_all_that_was_measured_at_any_time():
    events = events_of((1, 7, 49))
    history = [event.observation for event in events if isinstance(event, ProbeFinished)]

    for sizes in ((1, 7, 49), (1, 5, 25, 125)):
        again = events_of(sizes, run=RunRecord(history=history))
        assert again[-1].recommendation.micro_batch_size == events[-1].recommendation.micro_batch_size
        assert again[-1].second_answer.recommendation.micro_batch_size == sizes[-1]
        assert bool(extra(again)) == (sizes[-1] == 125)


def test_the_fastest_of_all_is_the_answer_if_it_keeps_the_batch_size():
    """A lone peak beside the sizes of the search, which only the batch size leads to."""

    def speed(size: int) -> float:
        return peaked(size) * (1.5 if size == 150 else 1.0)

    events = events_of((1, 150), CurveRunner(speed))
    result = events[-1]

    assert [probe.micro_batch_size for probe in extra(events)] == [150]
    assert result.recommendation.micro_batch_size == 150
    assert result.second_answer.free_micro_batch_size == 150
    assert result.second_answer.over_recommended == 1.0
    assert streamed(events)[-1] == dataclasses.replace(result.recommendation, elapsed_s=0.0)
    best = max(result.recommendation.speeds, key=lambda one: one.samples_per_s)
    assert (best.micro_batch_size, best.samples_per_s) == (150, result.recommendation.samples_per_s)


def test_a_size_that_leads_since_the_extra_probes_is_verified():
    """The size that was verified turns out slower alone than the extra probe makes others of the search look."""
    slow_alone: list[int] = []

    def runner(probe: Probe) -> Observation:
        if probe.purpose is Purpose.VERIFY and not slow_alone:
            slow_alone.append(probe.micro_batch_size)
        is_slow = probe.purpose.is_verification and probe.micro_batch_size in slow_alone
        return CurveRunner(lambda size: peaked(size) * (0.6 if is_slow else 1.0))(probe)

    for max_probes in (4, 6, 16):
        slow_alone.clear()
        events = events_of((1, 7), runner, settings=SearchSettings(max_probes=max_probes))
        best = events[-1].recommendation
        verified = [event.probe for event in events if isinstance(event, ProbeStarted)]
        verified = [probe.micro_batch_size for probe in verified if probe.purpose.is_verification]
        assert best.micro_batch_size in verified
        assert max(one.samples_per_s for one in best.speeds) <= best.samples_per_s * 1.02


def test_the_extra_probe_comes_last_counts_and_runs_the_trainings_program():
    runner = CurveRunner(peaked)
    events = events_of((1, 3, 9, 27, 81, 243), runner)

    at = next(number for number, event in enumerate(events) if isinstance(event, SearchEnded))
    assert not extra(events[:at])
    (probe,) = extra(events)
    assert (probe.compilation, probe.fresh_worker, probe.number) == (Compilation.EXACT, True, len(runner.probes) - 1)
    assert sum(events[-1].outcomes.values()) == len(runner.probes)


def test_its_speed_is_told_beside_the_free_choice_and_scored_by_its_kind():
    result = events_of((1, 5, 25))[-1]
    second, free = result.second_answer, result.recommendation

    assert second.recommendation.micro_batch_size == 25
    assert second.free_micro_batch_size == free.micro_batch_size
    assert second.over_recommended == pytest.approx(peaked(25) / peaked(free.micro_batch_size), rel=0.02)
    assert second.recommendation.confidence >= 90
    assert second.recommendation.relative_performance == pytest.approx(peaked(25) / peaked(1), rel=0.05)


def test_an_answer_that_keeps_the_batch_size_is_both_and_costs_no_probe():
    free = events_of(())[-1].recommendation.micro_batch_size
    events = events_of((1, free, 2 * free))

    assert extra(events) == []
    assert events[-1].second_answer.recommendation.micro_batch_size == free
    assert events[-1].second_answer.over_recommended == 1.0


def test_it_may_be_a_size_that_is_no_candidate_of_the_search():
    space, storage = Space.from_sizes([1, 2, 4, 8, 16, 32, 64, 128, 256, 512]), InMemoryStorage()
    options = {"space": space, "keeping": KeepBatchSize(sizes=(1, 11, 33, 99, 297))}
    *events, result = run_search(CurveRunner(peaked), run=RunRecord(storage=storage), **options)

    assert result.second_answer.recommendation.micro_batch_size in (99, 297)
    assert result.recommendation.micro_batch_size in space.sizes

    history = [event.observation for event in events if isinstance(event, ProbeFinished)]
    *_, again = run_search(CurveRunner(peaked), run=RunRecord(storage=storage, history=history), **options)
    assert again.second_answer.recommendation.micro_batch_size in (99, 297)


def test_where_the_best_of_them_does_not_run_another_is_told():
    def runner(probe: Probe) -> Observation:
        if probe.micro_batch_size == 243:
            return failed(probe, Outcome.OUT_OF_MEMORY, "peak above the budget")
        return CurveRunner(peaked)(probe)

    events = events_of((1, 3, 243), runner)

    assert [probe.micro_batch_size for probe in extra(events)] == [243, 3]
    assert events[-1].second_answer.recommendation.micro_batch_size == 3


@pytest.mark.parametrize("max_probes", [1, 3])
def test_it_takes_no_more_probes_than_the_search_was_allowed(max_probes):
    settings = SearchSettings(max_probes=max_probes)
    events = events_of((3, 9, 27, 81, 243), settings=settings)

    assert 1 <= len(extra(events)) <= min(max_probes, MOST_PROBES)


def test_the_second_answer_may_be_made_the_last_recommendation_streamed():
    events = events_of((1, 3, 9, 27, 81), is_answer=True)
    free_events = events_of((1, 3, 9, 27, 81))
    free = streamed(free_events)

    last = streamed(events)[-1]
    assert of_search(events)[: len(of_search(free_events))] == of_search(free_events)
    assert last.micro_batch_size == events[-1].recommendation.micro_batch_size == 81
    assert events[-1].smallest_within_tolerance in (1, 3, 9, 27, 81)
    assert events[-1].second_answer.free_micro_batch_size == free[-1].micro_batch_size


def test_a_required_second_answer_that_nowhere_runs_is_an_error():
    def runner(probe: Probe) -> Observation:
        if probe.micro_batch_size in (7, 49):
            return failed(probe, Outcome.OUT_OF_MEMORY, "peak above the budget")
        return CurveRunner(peaked)(probe)

    with pytest.raises(NothingFitsError, match="no micro-batch size that keeps batch_size could be run"):
        events_of((7, 49), runner, is_answer=True)


def test_an_interruption_ends_it_with_what_is_known():
    def runner(probe: Probe) -> Observation:
        if probe.purpose is Purpose.KEEP_BATCH_SIZE:
            raise KeyboardInterrupt
        return CurveRunner(peaked)(probe)

    result = events_of((1, 7), runner)[-1]

    assert isinstance(result, Result)
    assert result.stop_reason == "interrupted"
    assert result.second_answer.recommendation.micro_batch_size == 1


def test_what_stops_the_search_between_probes_stops_the_extra_ones_too():
    ended: list[bool] = []

    def should_stop() -> str | None:
        return "enough" if ended else None

    keeping = KeepBatchSize(sizes=(1, 7, 49))
    for event in run_search(CurveRunner(peaked), space=MANY, keeping=keeping, should_stop=should_stop):
        ended += [True] * isinstance(event, SearchEnded)
        assert not isinstance(event, ProbeStarted) or event.probe.purpose is not Purpose.KEEP_BATCH_SIZE
    assert event.stop_reason == "enough"


def test_another_explorer_sees_what_an_extra_probe_in_flight_is_for():
    storage, seen = InMemoryStorage(), []

    def runner(probe: Probe) -> Observation:
        if probe.purpose is Purpose.KEEP_BATCH_SIZE:
            study = open_study(BexploreSampler(MANY, SearchSettings()), storage=storage)
            seen.append(read_evidence(study.get_trials()[probe.number]))
        return CurveRunner(peaked)(probe)

    events_of((1, 7, 49), runner, run=RunRecord(storage=storage))
    assert [(item.micro_batch_size, item.outcome, item.purpose) for item in seen] == [
        (49, None, Purpose.KEEP_BATCH_SIZE)
    ]


def test_a_posterior_among_some_sizes_forgets_the_best_of_all():
    evidence = [measured(size, saturating(size)) for size in (1, 8, 64, 512)]
    posterior = fit_posterior(MANY, evidence)
    at = posterior.index(8)

    assert posterior.near_best(0.02)[:, at].mean() < 0.1
    assert posterior.among([1, 8]).near_best(0.02)[:, at].mean() > 0.9


@pytest.mark.parametrize(("length", "size"), [(None, 65_536), (16, 65_536), (1024, 16_384), (2**30, 1)])
def test_a_size_larger_than_any_published_batch_is_not_wanted(length, size):
    assert largest_wanted(length) == size
