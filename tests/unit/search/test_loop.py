"""The loop: ask, probe, record, tell, recommend."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from bexplore.errors import EngineError, NothingFitsError, UserProgramError
from bexplore.host.records import from_record, to_record
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.search import loop
from bexplore.search.evidence import Evidence
from bexplore.search.loop import RunRecord, run_search
from bexplore.search.policy.acquisition import rank
from bexplore.search.policy.decide import unseen_gap
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.posterior.joint import Variant
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.recommendation import Recommendation, recommend
from bexplore.search.result import ProbeFinished, ProbeStarted, Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryAccount, MemoryPrior, Space, default_candidates
from tests.unit.search.builders import (
    EXACT,
    FEW,
    MANY,
    TO_16,
    CurveRunner,
    answer_best_at_8,
    failed,
    measured,
    result_of,
    saturating,
)

SHARED = SearchSettings()


def test_each_probe_is_announced_recorded_answered_and_then_recommended():
    recorded: list[Observation] = []
    events = list(run_search(CurveRunner(), space=FEW, settings=EXACT, run=RunRecord(record=recorded.append)))
    kinds = [type(event) for event in events]
    assert kinds == [ProbeStarted, ProbeFinished, Recommendation] * len(recorded) + [Result]
    assert [event.observation for event in events if isinstance(event, ProbeFinished)] == recorded
    assert [item.probe.number for item in recorded] == list(range(len(recorded)))


def test_the_base_is_probed_first_and_its_first_recommendation_is_itself():
    runner = CurveRunner()
    first = next(event for event in run_search(runner, space=FEW, settings=EXACT) if isinstance(event, Recommendation))
    assert runner.sizes == [1]
    assert (first.micro_batch_size, round(first.relative_performance, 2)) == (1, 1.0)


def test_the_fastest_size_that_fits_is_found_and_the_target_stops_it():
    result = result_of(CurveRunner(largest=200), MANY)
    assert saturating(result.recommendation.micro_batch_size) > 0.98 * saturating(200)
    assert result.stop_reason == "target_confidence"
    assert result.recommendation.confidence >= 90


def test_a_probe_is_asked_for_no_more_precision_than_the_indifference_zone():
    settings = dataclasses.replace(EXACT, tolerance=0.05, max_probes=3)
    events = run_search(CurveRunner(lambda size: 1000.0), space=FEW, settings=settings)
    probes = [event.probe for event in events if isinstance(event, ProbeStarted)]

    assert probes and all(probe.tolerance == 0.05 for probe in probes)


def test_a_fall_of_two_fifths_between_distant_probes_is_found():
    result = result_of(CurveRunner(lambda size: 1000.0 * size / (size + 10.0) * (1.0 if size <= 48 else 0.6)), MANY)
    assert 40 <= result.recommendation.micro_batch_size <= 48


def test_the_result_counts_outcomes_and_says_peak_headroom_and_saving():
    result = result_of(CurveRunner(lambda size: 1000.0, largest=20), FEW)
    assert sum(result.outcomes.values()) == result.recommendation.num_probes
    assert result.smallest_within_tolerance == 1
    assert result.peak_memory_bytes + result.memory_headroom_bytes == 2**30
    assert result.memory_saved_bytes >= 0


def test_what_stays_free_is_counted_from_the_last_budget_in_force():
    class Shrinking(CurveRunner):
        def __call__(self, probe: Probe) -> Observation:
            budget = (4 if probe.number == 0 else 2) * 2**30
            return dataclasses.replace(super().__call__(probe), peak_memory_bytes=2**30, memory_budget_bytes=budget)

    result = result_of(Shrinking(lambda size: 1000.0), FEW)

    assert result.memory_headroom_bytes == 2**30


class HoldingRunner(CurveRunner):
    """A process that holds 1.4 times what its tensors add, and is judged by it."""

    BUDGET = 4 * 2**30

    @staticmethod
    def tensors(size: int) -> float:
        return (0.3 + 0.02 * size) * 2**30

    def __call__(self, probe: Probe) -> Observation:
        held = 0.35 * 2**30 + 1.4 * 0.02 * probe.micro_batch_size * 2**30
        if held > self.BUDGET:
            return failed(probe, Outcome.OUT_OF_MEMORY, "refused", memory_budget_bytes=self.BUDGET)
        peak = round(self.tensors(probe.micro_batch_size))
        observation = super().__call__(probe)
        return dataclasses.replace(
            observation, peak_memory_bytes=peak, resident_memory_bytes=round(held), memory_budget_bytes=self.BUDGET
        )


def test_a_process_that_holds_more_costs_at_most_one_probe_too_large():
    memory = MemoryPrior(
        peak_bytes=HoldingRunner.tensors,
        relative_sd=0.012,
        budget_bytes=HoldingRunner.BUDGET,
        judged_by=MemoryAccount.RESIDENT,
    )

    soon_flat = HoldingRunner(lambda size: 1000.0 * size / (size + 3.0))
    result = result_of(soon_flat, Space.from_sizes(default_candidates(1, 185)), variants=(Variant(memory=memory),))

    assert result.outcomes.get("out_of_memory", 0) <= 1  # of the sizes up to 185 those up to 130 fit
    assert 96 <= max(soon_flat.sizes) <= 130  # what fits was looked at too
    assert result.resident_memory_bytes > result.peak_memory_bytes
    assert result.resident_memory_bytes + result.memory_headroom_bytes == HoldingRunner.BUDGET


def test_with_shared_compilation_the_winner_runs_once_in_a_fresh_process():
    runner = CurveRunner()
    result = result_of(runner, MANY, settings=SHARED)
    last = runner.probes[-1]
    assert (last.purpose, last.compilation, last.fresh_worker) == (Purpose.VERIFY, Compilation.EXACT, True)
    assert last.micro_batch_size == result.recommendation.micro_batch_size
    assert {probe.compilation for probe in runner.probes[:-1]} == {Compilation.SHARED}
    assert result.exact_over_shared == pytest.approx(1.0, abs=0.01)


def test_a_winner_that_does_not_fit_compiled_exactly_is_dropped():
    shared = CurveRunner()

    def runner(probe: Probe) -> Observation:
        if probe.compilation is Compilation.EXACT and probe.micro_batch_size > 100:
            return failed(probe, Outcome.OUT_OF_MEMORY, "peak above the budget")
        return shared(probe)

    result = result_of(runner, MANY, settings=SHARED)
    assert result.recommendation.micro_batch_size <= 100
    assert result.outcomes["out_of_memory"] >= 1


def test_where_exact_compilation_changes_the_order_exact_wins():
    def runner(probe: Probe) -> Observation:
        slow = probe.compilation is Compilation.EXACT and probe.micro_batch_size == 64
        return CurveRunner(lambda size: saturating(size) * (0.6 if slow else 1.0))(probe)

    assert result_of(runner, FEW, settings=SHARED).recommendation.micro_batch_size == 32


def test_an_unfinished_exploration_goes_on_without_repeating_a_probe(tmp_path: Path):
    whole: list[Observation] = []
    expected = result_of(CurveRunner(largest=200), MANY, run=RunRecord(record=whole.append))
    runner = CurveRunner(largest=200)
    resumed = result_of(runner, MANY, run=RunRecord(history=whole[:3], storage=tmp_path / "study.log"))
    assert runner.sizes == [item.micro_batch_size for item in whole[3:]]
    assert resumed.recommendation.micro_batch_size == expected.recommendation.micro_batch_size
    assert resumed.outcomes == expected.outcomes


def test_a_probe_that_was_recorded_but_not_told_is_not_repeated(tmp_path: Path):
    recorded: list[Observation] = []

    def record_and_die(observation: Observation) -> None:
        recorded.append(observation)
        if len(recorded) == 3:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        result_of(CurveRunner(), MANY, run=RunRecord(record=record_and_die, storage=tmp_path / "study.log"))
    runner = CurveRunner()
    result = result_of(runner, MANY, run=RunRecord(history=recorded, storage=tmp_path / "study.log"))
    assert result.recommendation.num_probes == 3 + len(runner.sizes)


def test_a_finished_exploration_ends_at_once_with_the_same_result():
    recorded: list[Observation] = []
    first = result_of(CurveRunner(), FEW, run=RunRecord(record=recorded.append))
    runner = CurveRunner()
    again = result_of(runner, FEW, run=RunRecord(history=recorded))
    assert runner.sizes == []
    assert again.recommendation.micro_batch_size == first.recommendation.micro_batch_size
    assert again.recommendation.confidence == first.recommendation.confidence


def test_a_size_that_ran_stays_a_candidate_with_less_free_memory(tmp_path: Path):
    recorded: list[Observation] = []
    first = result_of(CurveRunner(), FEW, run=RunRecord(record=recorded.append))
    again = result_of(
        CurveRunner(), Space.from_sizes([1, 2, 4, 8]), run=RunRecord(history=recorded, storage=tmp_path / "study.log")
    )
    assert again.recommendation.micro_batch_size == first.recommendation.micro_batch_size == 64


def test_an_interruption_leaves_the_best_so_far():
    inner = CurveRunner()

    def runner(probe: Probe) -> Observation:
        if probe.number == 1:
            raise KeyboardInterrupt
        return inner(probe)

    result = result_of(runner)
    assert result.stop_reason == "interrupted"
    assert result.recommendation.micro_batch_size in inner.sizes


def test_an_interruption_before_anything_was_measured_recommends_nothing():
    def runner(probe: Probe) -> Observation:
        raise KeyboardInterrupt

    assert result_of(runner).recommendation is None


def test_max_probes_and_a_time_budget_and_the_callers_words_end_the_search():
    hard = SearchSettings(
        search_compilation=Compilation.EXACT, verify_exact=False, target_confidence=99, max_probes=4, time_budget_s=1e9
    )
    assert result_of(CurveRunner(), MANY, settings=hard).stop_reason == "max_probes"
    short = SearchSettings(search_compilation=Compilation.EXACT, target_confidence=99, time_budget_s=2.5)
    result = result_of(CurveRunner(), MANY, settings=short)
    assert (result.stop_reason, result.recommendation.num_probes) == ("time_budget", 3)
    words = iter([None, None, "disk is full"])
    assert result_of(CurveRunner(), MANY, should_stop=lambda: next(words)).stop_reason == "disk is full"


@pytest.mark.parametrize("most", [2, 3])
def test_no_allowed_probe_is_spent_on_the_base_again_while_nothing_else_has_run(most):
    runner = CurveRunner()
    result = result_of(runner, MANY, settings=SearchSettings(max_probes=most))

    assert runner.sizes[0] == 1 and 1 not in runner.sizes[1:]
    assert result.recommendation.micro_batch_size == runner.sizes[-1]
    assert len(runner.sizes) == most


def test_a_search_for_a_short_training_ends_where_a_probe_costs_more():
    def search(training_time_s: float) -> Result:
        settings = dataclasses.replace(EXACT, target_confidence=98, training_time_s=training_time_s)
        return result_of(CurveRunner(largest=200), MANY, settings=settings)

    short, long = search(30.0), search(3.6e6)

    assert short.stop_reason == "costs_more_than_it_saves"
    assert short.recommendation.num_probes < long.recommendation.num_probes
    assert short.next_probe.training_time_s == 30.0
    assert short.next_probe.cost_s > 30.0 * short.next_probe.saves
    assert 0.0 < short.recommendation.left_to_gain < 1.0


def test_nothing_fits_says_the_numbers():
    with pytest.raises(NothingFitsError, match=r"micro-batch size 1\b.*budget 1\.00 GiB"):
        result_of(CurveRunner(largest=0))


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.COMPILE_FAILED, Outcome.NOT_FINITE])
def test_a_program_that_fails_at_every_size_is_broken_with_its_traceback(
    outcome: Outcome,
):
    sizes = []

    def runner(probe: Probe) -> Observation:
        sizes.append(probe.micro_batch_size)
        return failed(probe, outcome, f"shape ({probe.micro_batch_size}, 3) is wrong", traceback_text="Traceback ...")

    with pytest.raises(UserProgramError) as caught:
        result_of(runner)
    assert 2 <= len(sizes) == len(set(sizes)) <= 8
    assert caught.value.traceback_text == "Traceback ..."


def test_sizes_that_fail_for_different_reasons_are_no_broken_program():
    def runner(probe: Probe) -> Observation:
        return failed(probe, Outcome.CRASHED, "abcdefgh"[probe.number])

    with pytest.raises(EngineError, match="no micro-batch size could be measured"):
        result_of(runner)


def test_a_crash_at_one_size_neither_ends_the_search_nor_narrows_it():
    inner = CurveRunner()

    def runner(probe: Probe) -> Observation:
        if probe.micro_batch_size == 1:
            return failed(probe, Outcome.CRASHED, "batch statistics of one sample")
        return inner(probe)

    result = result_of(runner)
    assert result.recommendation.micro_batch_size >= 32


class FailingRunner(CurveRunner):
    """Fails at some sizes with an exception of the user's."""

    def __init__(self, fails: Callable[[int], bool], outcome: Outcome = Outcome.CRASHED) -> None:
        super().__init__()
        self.fails = fails
        self.outcome = outcome

    def __call__(self, probe: Probe) -> Observation:
        answer = super().__call__(probe)
        if not self.fails(probe.micro_batch_size):
            return answer
        reason = f"ValueError: written for fewer than {probe.micro_batch_size} samples (model.py:7)"
        return failed(probe, self.outcome, reason, traceback_text="Traceback ...")

    @property
    def wasted(self) -> list[int]:
        """Sizes that failed, in order."""
        return [size for size in self.sizes if self.fails(size)]


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.NOT_FINITE])
@pytest.mark.parametrize("largest", [2, 12, 50, 300])
def test_a_program_that_ends_at_a_size_is_searched_below_it_once(largest, outcome):
    runner = FailingRunner(lambda size: size > largest, outcome)

    best = result_of(runner, Space.from_sizes(range(1, 1001))).recommendation

    assert not runner.fails(best.micro_batch_size)
    assert saturating(best.micro_batch_size) >= 0.9 * saturating(largest)
    assert len(runner.wasted) == len(set(runner.wasted))
    assert len(runner.wasted) <= 9  # rules with other sizes that run are ruled out, too


@pytest.mark.parametrize("seed", range(6))
def test_sizes_that_fail_by_chance_are_lost_and_the_best_that_ran_stays(seed):
    runner = FailingRunner(lambda size: size > 1 and random.Random(f"{seed}.{size}").random() < 0.25)

    best = result_of(runner, Space.from_sizes(range(1, 257))).recommendation

    assert not runner.fails(best.micro_batch_size)
    assert saturating(best.micro_batch_size) >= 0.85 * saturating(256)
    assert len(runner.wasted) == len(set(runner.wasted))
    assert len(runner.wasted) <= 8


def test_a_single_size_that_fails_costs_one_probe_and_nothing_beyond_it():
    whole = CurveRunner()
    first = result_of(whole, Space.from_sizes(range(1, 257))).recommendation.micro_batch_size
    runner = FailingRunner(lambda size: size == whole.sizes[1])

    best = result_of(runner, Space.from_sizes(range(1, 257))).recommendation

    assert runner.wasted == [whole.sizes[1]]
    assert saturating(best.micro_batch_size) >= 0.97 * saturating(first)


def test_where_nothing_but_the_base_runs_there_is_no_answer():
    runner = FailingRunner(lambda size: size > 1)

    with pytest.raises(UserProgramError, match=r"fails at every .* but the smallest, 1: ValueError: written") as caught:
        result_of(runner, Space.from_sizes(range(1, 257)))

    assert caught.value.traceback_text == "Traceback ..."
    assert len(runner.wasted) == len(set(runner.wasted))
    assert len(runner.wasted) <= 8
    assert all(probe.purpose is not Purpose.VERIFY for probe in runner.probes)


@pytest.mark.parametrize(("repeats", "is_once"), [(True, False), (False, True)])
def test_a_size_whose_speed_is_estimated_is_probed_once(repeats, is_once):
    random_state = random.Random(0)
    runner = CurveRunner(lambda size: 100.0 * math.exp(random_state.gauss(0.0, 0.1)))
    settings = dataclasses.replace(EXACT, repeats=repeats, max_probes=12, target_confidence=98, training_time_s=1e8)

    result_of(runner, Space.from_sizes([8, 9, 10, 11, 12]), settings)

    assert (len(set(runner.sizes)) == len(runner.sizes)) is is_once


def test_a_size_is_not_recommended_while_every_other_that_was_tried_crashes():
    runner = FailingRunner(lambda size: size > 1)
    told = []

    with pytest.raises(UserProgramError):
        for event in run_search(runner, space=Space.from_sizes(range(1, 257)), settings=SearchSettings()):
            told += [event] if isinstance(event, Recommendation) else []

    assert all(len(one.speeds) == 1 and one.confidence < 10 for one in told)
    assert len(told) <= 1  # after the base, before a size has crashed


def test_what_to_know_of_the_program_is_among_the_results_warnings():
    class Unseen(CurveRunner):
        def __call__(self, probe: Probe) -> Observation:
            return dataclasses.replace(super().__call__(probe), details={"samples_are_seen": False})

    result = result_of(Unseen(), Space.from_sizes(range(1, 17)))

    assert any("explore.workload.samples_of" in warning for warning in result.warnings)


def test_the_smallest_candidate_alone_is_measured_and_recommended():
    result = result_of(CurveRunner(), Space.from_sizes([4]))
    assert result.recommendation.micro_batch_size == 4


def test_a_long_stretch_that_could_hide_a_better_size_is_not_left_unprobed():
    runner = CurveRunner(lambda size: 1000.0 * size / (size + 3.0))
    result_of(runner, MANY)
    probed = sorted(size for size in set(runner.sizes) if size >= 16)
    assert all(right / left <= 4.5 for left, right in itertools.pairwise(probed))


def gap_in(sizes: list[int], ran: dict[int, float]) -> int | None:
    """The size that an end of the search would leave unseen."""
    evidence = [measured(size, samples_per_s) for size, samples_per_s in ran.items()]
    fitted = fit_posterior(Space.from_sizes(sizes), evidence)
    best = recommend(fitted, evidence, tolerance=0.02)
    assert best is not None
    index = unseen_gap(fitted, best)
    return None if index is None else sizes[index]


def test_a_stretch_that_could_hide_a_better_size_counts_in_a_long_list():
    assert gap_in(list(range(8, 40, 2)), {8: 1000.0, 32: 1000.0}) is None  # 16 sizes
    assert gap_in(list(range(8, 42, 2)), {8: 1000.0, 32: 1000.0}) == 16  # 17


def test_in_a_short_list_a_wide_stretch_beside_one_of_the_best_is_probed():
    powers = [16, 32, 64, 128, 256]
    assert gap_in(powers, {16: 700.0, 128: 1000.0, 256: 1000.0}) in (32, 64)
    assert gap_in(powers, {16: 700.0, 64: 1000.0, 256: 1000.0}) is None  # a factor of four
    assert gap_in([1, *powers], {1: 700.0, 16: 800.0, 256: 1000.0, 128: 990.0}) in (32, 64)
    assert gap_in([1, *powers], {1: 700.0, 16: 800.0, 64: 980.0, 128: 1000.0, 256: 990.0}) is None  # far from the best


def test_after_a_refusal_the_searchs_program_is_warm_below_what_ran():
    ran = [measured(size, 1000.0, compilation=Compilation.SHARED) for size in (1, 32)]

    def warm_after(refused: int) -> Compilation | None:
        refusal = Evidence(
            micro_batch_size=refused, outcome=Outcome.OUT_OF_MEMORY, compilation=Compilation.SHARED, reason="too big"
        )
        return Costs.learnt([*ran, refusal], EXACT).warm_search

    assert warm_after(40) is Compilation.SHARED
    assert warm_after(16) is None


def test_after_a_start_that_serves_no_other_size_the_next_costs_one():
    ran = measured(1, 1000.0, compilation=Compilation.SHARED, start_time_s=60.0, elapsed_s=61.0)
    served = dataclasses.replace(ran, start_ended=True)

    each_s = [
        float(Costs.learnt([one], EXACT).estimate_s(0.01, compilation=Compilation.SHARED, fresh_worker=False))
        for one in (ran, served)
    ]

    assert each_s[0] < 60.0 < each_s[1]
    assert from_record(Evidence, to_record(served)).start_ended


def test_where_little_is_left_to_learn_most_probes_seem_worthless():
    evidence = [measured(size, 1000.0, log_throughput_se=0.01, num_passes=4) for size in range(1, 41)]
    fitted = fit_posterior(Space.from_sizes(range(1, 41)), evidence)
    values = [choice.value for choice in rank(fitted, EXACT, Costs.learnt(evidence, EXACT))]
    assert statistics.median(values) <= 0.0


def test_contenders_that_noise_hides_are_interleaved_and_noise_is_told():
    errors = (0.0, 0.02, 0.05, -0.01, -0.03, 0.04, 0.04, -0.03, 0.0, 0.03, -0.03, 0.03, 0.0, 0.0, 0.0, 0.0)
    usual = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False)
    wary = dataclasses.replace(usual, target_confidence=97, training_time_s=1e7)  # so long that repeats pay
    sizes: list[int] = []

    def runner(probe: Probe) -> Observation:
        sizes.append(probe.micro_batch_size)
        found = CurveRunner(lambda size: 1000.0 * (1.0 + errors[probe.number]))(probe)
        jitter = itertools.cycle((0.97, 1.03, 1.0))  # passes scatter as much as probes: what they show is believed
        return dataclasses.replace(found, pass_times_s=[time_s * next(jitter) for time_s in found.pass_times_s])

    result = result_of(runner, Space.from_sizes([32, 64]), settings=wary)
    rounds = sizes[2:]
    assert len(rounds) >= 3
    assert all(left != right for left, right in itertools.pairwise(rounds))
    assert any("noisy" in warning for warning in result.warnings)
    assert result.stop_reason in ("target_confidence", "max_probes", "costs_more_than_it_saves")


def test_a_winner_that_fails_its_exact_run_is_not_recommended():
    def runner(probe: Probe) -> Observation:
        if probe.purpose is Purpose.VERIFY and probe.micro_batch_size >= 8:
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY, reason="its second step", elapsed_s=1.0)
        return answer_best_at_8(probe)

    events = list(loop.run_search(runner, space=TO_16, settings=SearchSettings(max_probes=12)))

    verified = [
        item.observation
        for item in events
        if isinstance(item, loop.ProbeFinished) and item.observation.probe.purpose is Purpose.VERIFY
    ]
    assert [item.outcome for item in verified] == [Outcome.OUT_OF_MEMORY, Outcome.MEASURED]
    assert events[-1].recommendation.micro_batch_size == verified[-1].micro_batch_size == 4


def test_a_model_that_trains_at_odd_sizes_only_is_explored_at_those():
    def runner(probe: Probe) -> Observation:
        if probe.micro_batch_size % 2 == 0:
            return Observation(probe=probe, outcome=Outcome.CRASHED, reason="ValueError: odd only", elapsed_s=1.0)
        return answer_best_at_8(probe)

    *_, result = loop.run_search(runner, space=Space.from_sizes(range(1, 10)), settings=SearchSettings(max_probes=16))

    assert result.recommendation.micro_batch_size % 2 == 1
    assert set(result.outcomes) == {"measured", "crashed"}
