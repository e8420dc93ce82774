"""What every `Runner` promises, as tests: subclass `RunnerContract` with a fixture `subject`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from dataclasses import dataclass

from bexplore.host.records import from_record, to_record
from bexplore.measurement.interleaving import DISTURBED_FACTOR, MAX_PASSES_PER_TIMING
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Runner
from bexplore.search.loop import run_search
from bexplore.search.result import Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A runner, and what is true of its job.

    Attributes:
        runner: The runner; warm from earlier tests, or new.
        fitting: Three sizes that fit the budget, ascending, far from the limit.
        too_large: A size that does not fit.
        compilation: The program that the search runs with it.
        keeps_programs: Whether a second probe may find the program of the first warm.
    """

    runner: Runner
    fitting: tuple[int, int, int]
    too_large: int
    compilation: Compilation = Compilation.SHARED
    keeps_programs: bool = True

    def run(self, size: int, **fields) -> Observation:
        """Run one size."""
        return self.runner(self.probe(size, **fields))

    def probe(self, size: int, **fields) -> Probe:
        """Return a probe of the search."""
        return Probe(
            **{"number": 7, "micro_batch_size": size, "max_passes": 5, "compilation": self.compilation} | fields
        )


class RunnerContract:
    """The promises of `bexplore.measurement.probe`."""

    def test_a_size_that_fits_is_measured_with_its_own_probe(self, subject):
        probe = subject.probe(subject.fitting[1])

        observation = subject.runner(probe)

        assert observation.outcome is Outcome.MEASURED, observation.reason
        assert observation.probe == probe
        assert observation.is_measured

    def test_times_are_positive_and_as_many_as_were_asked_for_and_repeated(self, subject):
        for max_passes in (3, 5):
            observation = subject.run(subject.fitting[0], max_passes=max_passes)

            assert 1 <= len(observation.pass_times_s) <= DISTURBED_FACTOR * max_passes * MAX_PASSES_PER_TIMING
            assert all(0 < seconds < math.inf for seconds in observation.pass_times_s + observation.update_times_s)
            assert 0 < observation.samples_per_s < math.inf

    def test_a_size_that_does_not_fit_is_an_outcome_with_its_reason(self, subject):
        probe = subject.probe(subject.too_large)

        observation = subject.runner(probe)

        assert observation.outcome is Outcome.OUT_OF_MEMORY
        assert observation.reason
        assert observation.probe == probe

    def test_a_failed_probe_leaves_the_next_one_measurable(self, subject):
        failed, after = subject.run(subject.too_large), subject.run(subject.fitting[0])

        assert not failed.is_measured
        assert after.is_measured, after.reason

    def test_what_fits_does_not_depend_on_the_order_of_sizes(self, subject):
        sizes = (*subject.fitting, subject.too_large)

        upwards = {size: subject.run(size).is_measured for size in sizes}
        downwards = {size: subject.run(size).is_measured for size in reversed(sizes)}

        assert upwards == downwards == dict.fromkeys(subject.fitting, True) | {subject.too_large: False}

    def test_the_known_peaks_rise_with_the_size_and_stay_within_the_budget(self, subject):
        observations = [subject.run(size) for size in subject.fitting]

        peaks = [item.peak_memory_bytes for item in observations if item.peak_memory_bytes is not None]
        assert peaks == sorted(peaks)
        for item in observations:
            if item.memory_budget_bytes is not None and item.peak_memory_bytes is not None:
                assert 0 < item.peak_memory_bytes <= item.memory_budget_bytes

    def test_the_seconds_of_a_probe_contain_start_and_compilation(self, subject):
        for observation in (subject.run(subject.fitting[0]), subject.run(subject.fitting[2], fresh_worker=True)):
            assert min(observation.start_time_s, observation.compile_time_s) >= 0
            assert observation.elapsed_s >= max(observation.start_time_s, observation.compile_time_s)
            assert observation.elapsed_s > 0

    def test_a_warm_program_costs_no_start_and_a_fresh_worker_does(self, subject):
        subject.run(subject.fitting[1])

        warm, fresh = subject.run(subject.fitting[1]), subject.run(subject.fitting[1], fresh_worker=True)

        assert not subject.keeps_programs or (warm.start_time_s, warm.compile_time_s) == (0, 0)
        assert fresh.start_time_s > 0

    def test_interleaved_sizes_are_all_timed_in_the_same_rounds_or_left_out(self, subject):
        small, middle, large = subject.fitting
        for size in (small, middle):
            subject.run(size)

        observation = subject.run(large, interleaved_with=(small, middle))

        assert observation.is_measured, observation.reason
        rounds = observation.interleaved_times_s
        assert set(rounds) in (set(), {small, middle, large})
        assert len({len(times_s) for times_s in rounds.values()}) <= 1
        assert all(0 < seconds < math.inf for seconds in itertools.chain(*rounds.values()))
        assert (observation.num_rounds > 0) is bool(rounds)
        assert large in observation.estimates

    def test_an_observation_survives_its_journal(self, subject):
        small, _, large = subject.fitting
        subject.run(small)
        for observation in (subject.run(large, interleaved_with=(small,)), subject.run(subject.too_large)):
            text = json.dumps(to_record(observation))

            read = from_record(Observation, json.loads(text))

            assert json.dumps(to_record(read)) == text
            same = dataclasses.replace(read, details=observation.details)  # JSON has no tuples
            assert same == observation

    def test_a_search_with_it_ends_in_a_size_that_was_measured(self, subject):
        sizes = (*subject.fitting, subject.too_large)
        settings = SearchSettings(max_probes=4, user_compilation=subject.compilation)

        *_, result = run_search(subject.runner, space=Space.from_sizes(sizes), settings=settings)

        assert isinstance(result, Result)
        assert result.recommendation.micro_batch_size in subject.fitting
        assert sum(result.outcomes.values()) <= 4
