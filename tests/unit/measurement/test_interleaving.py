"""Sizes that take turns: what the machine did meanwhile meets all of them, and is told apart from what is theirs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from bexplore.engine.reduced_depth import ReducedDepthRunner
from bexplore.engine.worker.timing import RanPass, Timed, time_interleaved
from bexplore.exploration.events import probe_record
from bexplore.job import Job
from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.interleaving import InterleavedTiming, interleaved_estimates
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose, Runner
from bexplore.output.bexp import probe_sentence
from bexplore.search import loop
from bexplore.search.evidence import Evidence, Interleaved
from bexplore.search.policy.decision import StopReason, decide
from bexplore.search.policy.interleave import interleaved_with
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.posterior import posterior
from bexplore.search.recommendation import recommend
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from bexplore.search.warnings import noise_warnings
from bexplore.testing.simulator import Family, SimulatedRunner, draw_world
from tests.builders import imported_job
from tests.search_builders import CurveRunner, measured, saturating

SHARED = SearchSettings(search_compilation=Compilation.SHARED, verify_exact=False)


def wandering(num_rounds: int, *, seed: int = 0, sd: float = 0.1) -> np.ndarray:
    """(num_rounds,), factors of a machine that changes its speed as it likes."""
    return np.exp(sd * np.random.default_rng(seed).standard_normal(num_rounds).cumsum())


def test_what_a_machine_does_to_all_sizes_alike_does_not_touch_their_levels():
    machine = wandering(12)

    levels = interleaved_estimates({4: 1.0 * machine, 8: 1.9 * machine, 16: 4.0 * machine})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(1.9)
    assert levels[16].pass_time_s / levels[4].pass_time_s == pytest.approx(4.0)
    assert max(level.log_se for level in levels.values()) == pytest.approx(0.0, abs=1e-9)


def test_a_turn_that_was_disturbed_counts_for_little():
    rng = np.random.default_rng(1)
    times_s = {size: seconds * np.exp(0.01 * rng.standard_normal(15)) for size, seconds in ((4, 1.0), (8, 2.0))}
    times_s[8][3] *= 5.0

    levels = interleaved_estimates(times_s)

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("num_sizes", [2, 3, 4])
def test_the_standard_error_is_that_of_repeated_experiments(num_sizes: int):
    rng = np.random.default_rng(2)
    found, told = [], []
    for _ in range(600):
        levels = interleaved_estimates(
            {size: np.exp(0.05 * rng.standard_normal(20)) for size in range(1, num_sizes + 1)}
        )
        found.append(math.log(levels[1].pass_time_s / levels[2].pass_time_s))
        told.append(math.hypot(levels[1].log_se, levels[2].log_se))

    assert np.mean(told) == pytest.approx(np.std(found), rel=0.15)


def test_one_round_does_not_know_its_own_noise():
    levels = interleaved_estimates({4: [1.0], 8: [1.8]})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(1.8)
    assert math.isnan(levels[4].log_se)


def test_a_turn_that_took_far_longer_does_not_count_even_of_two():
    levels = interleaved_estimates({4: [1.0, 40.0], 8: [2.0, 2.02]})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(2.0, rel=0.02)
    assert math.isnan(levels[4].log_se)
    assert levels[4].num_timings < 2


def test_a_round_in_which_all_took_far_longer_does_not_count():
    """What a busy machine takes from sizes is not the same share of each."""
    levels = interleaved_estimates({4: [1.0, 9.0, 1.01, 1.0], 8: [2.0, 5.0, 2.0, 2.02]})

    assert levels[4].pass_time_s == pytest.approx(1.0, rel=0.02)
    assert levels[8].pass_time_s == pytest.approx(2.0, rel=0.02)
    assert levels[4].num_timings == pytest.approx(3.0)


def test_turns_of_a_size_that_scatters_by_itself_all_count():
    levels = interleaved_estimates({4: [1.0] * 10, 8: [1.5, 2.4] * 5})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(math.sqrt(1.5 * 2.4), rel=0.02)
    assert levels[8].num_timings == pytest.approx(10.0)


def test_sizes_whose_undisturbed_turns_were_in_different_rounds_are_compared_across_them():
    levels = interleaved_estimates({4: [1.0, 40.0], 8: [60.0, 2.0]})

    assert levels[8].pass_time_s / levels[4].pass_time_s == pytest.approx(2.0, rel=0.02)
    assert levels[4].num_timings < 1


@pytest.mark.parametrize("disturbed", [(1.0, 50.0), (50.0, 1.0), (1.0, 50.0, 1.01), (50.0, 60.0, 1.0)])
def test_few_passes_of_a_size_alone_leave_out_what_was_disturbed(disturbed: tuple[float, ...]):
    probe = Probe(number=0, micro_batch_size=4)
    observation = Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=disturbed)

    assert observation.estimates[4].pass_time_s == pytest.approx(1.0, rel=0.01)
    assert Evidence.of(observation).num_passes == sum(seconds < 2.0 for seconds in disturbed)


def rounds_of(*times_s: tuple[float, float], is_screening: bool, **changes: Any) -> InterleavedTiming:
    """Rounds of size 8 against size 4, as many as are asked for."""
    limits = {"max_rounds": 10, "budget_s": 100.0, "tolerance": 0.02} | changes
    rounds = InterleavedTiming(size=8, is_screening=is_screening, num_passes={8: 1, 4: 1}, **limits)
    for own_s, other_s in times_s:
        if rounds.are_enough:
            break
        rounds.add({8: own_s, 4: other_s})
    return rounds


def num_rounds(rounds: InterleavedTiming) -> int:
    return len(rounds.interleaved_times_s[8])


def test_rounds_that_agree_end_after_the_fewest():
    assert num_rounds(rounds_of(*[(0.2, 0.1)] * 50, is_screening=False)) == 4
    assert num_rounds(rounds_of(*[(0.8, 0.4)] * 50, is_screening=False)) == 2
    assert num_rounds(rounds_of(*[(9.0, 4.0)] * 50, is_screening=False, budget_s=8.0)) == 2


def test_a_look_ends_at_a_size_that_is_surely_worse_and_contenders_are_timed_on():
    worse = [(0.25, 0.1)] * 50

    assert num_rounds(rounds_of(*worse, is_screening=True)) == 2
    assert num_rounds(rounds_of(*worse, is_screening=False)) == 4


def test_a_size_that_only_seems_worse_is_looked_at_longer():
    noisy = [(0.25, 0.1), (0.18, 0.1)] * 25

    assert num_rounds(rounds_of(*noisy, is_screening=True)) == 10


@pytest.mark.parametrize("is_screening", [True, False])
def test_whoever_takes_more_for_a_tie_has_fewer_rounds(is_screening: bool):
    noisy = [(0.22, 0.1), (0.2, 0.1), (0.18, 0.1)] * 25
    counts = [
        num_rounds(rounds_of(*noisy, is_screening=is_screening, max_rounds=75, tolerance=share))
        for share in (0.02, 0.05, 0.5)
    ]

    assert counts[0] > counts[1] >= counts[2] == 4


def test_a_size_that_may_count_as_a_tie_is_not_clearly_worse():
    a_tenth_behind = [(0.222, 0.1)] * 50

    assert num_rounds(rounds_of(*a_tenth_behind, is_screening=True, tolerance=0.01)) == 2
    assert num_rounds(rounds_of(*a_tenth_behind, is_screening=True, tolerance=0.05)) == 4


def test_the_seconds_of_the_turns_are_bounded():
    noisy = [(0.25, 0.1), (0.15, 0.1)] * 25

    assert num_rounds(rounds_of(*noisy, is_screening=False, max_rounds=50, budget_s=2.9)) == 10


def test_a_disturbed_round_is_repeated_and_its_seconds_do_not_count():
    disturbed = [(0.8, 0.4), (0.8, 40.0), *[(0.8, 0.4)] * 50]

    assert num_rounds(rounds_of(*disturbed, is_screening=False, budget_s=8.0)) == 3


def test_rounds_end_where_one_after_the_other_is_disturbed():
    disturbed = [(0.8, 0.4), *[(0.8, 40.0)] * 50]

    assert num_rounds(rounds_of(*disturbed, is_screening=False, max_rounds=6)) == 12


def test_one_disturbed_turn_does_not_make_a_size_clearly_worse():
    assert num_rounds(rounds_of((0.2, 0.1), (20.0, 0.1), *[(0.2, 0.1)] * 50, is_screening=True)) == 5


def interleaved(size: int, samples_per_s: float, others: dict[int, float], *, machine: float = 1.0) -> Evidence:
    """A probe of a size in turns with others, on a machine that was so fast meanwhile."""
    fields = {"log_throughput_se": 0.003, "compilation": Compilation.SHARED}
    told = tuple(
        Interleaved(micro_batch_size=other, log_throughput=math.log(machine * speed), log_throughput_se=0.003)
        for other, speed in others.items()
    )
    return measured(size, machine * samples_per_s, interleaved=told, **fields)


WANDERED = [
    measured(1, 100.0, compilation=Compilation.SHARED),
    interleaved(4, 300.0, {1: 100.0}, machine=0.8),
    interleaved(8, 330.0, {4: 300.0}, machine=0.9),
    interleaved(16, 300.0, {8: 330.0}, machine=1.3),
    interleaved(8, 330.0, {16: 300.0, 4: 300.0}, machine=0.7),
]


def belief_of(sizes: Iterable[int], evidence: list[Evidence]) -> posterior.Posterior:
    return posterior.fit_posterior(Space.of(sizes), evidence, user_compilation=Compilation.SHARED)


def belief(evidence: list[Evidence]) -> posterior.Posterior:
    return belief_of([1, 4, 8, 16], evidence)


def test_sizes_are_compared_within_their_turns_where_the_machine_wanders_between_them():
    alone = [dataclasses.replace(item, interleaved=()) for item in WANDERED]

    together = recommend(belief(WANDERED), WANDERED, base=1, tolerance=0.02)

    assert together.micro_batch_size == 8
    assert together.confidence >= 90
    assert together.relative_performance == pytest.approx(3.3, rel=0.03)
    apart = recommend(belief(alone), alone, base=1, tolerance=0.02)
    assert (apart.micro_batch_size, apart.confidence >= 90) != (8, True)


def test_a_machine_that_became_slower_for_all_sizes_leaves_the_comparisons_in_turns_as_they_are():
    """Size 1 alone on a quick machine; ever since everything takes twice as long, and no neighbour was seen."""
    evidence = [
        measured(1, 100.0, compilation=Compilation.SHARED),
        interleaved(8, 330.0, {1: 100.0}, machine=0.5),
        interleaved(4, 300.0, {8: 330.0}, machine=0.5),
        interleaved(16, 300.0, {8: 330.0}, machine=0.5),
    ]

    best = recommend(belief(evidence), evidence, base=1, tolerance=0.02)

    assert best.micro_batch_size == 8
    assert best.relative_performance == pytest.approx(3.3, rel=0.1)


def test_a_winner_that_seems_slower_when_compiled_exactly_is_not_doubted_where_the_machine_wanders_by_as_much():
    wandered = [*WANDERED, measured(8, 0.65 * 330.0)]
    steady = [measured(size, speed, compilation=Compilation.SHARED) for size, speed in ((1, 100), (4, 300), (8, 330))]
    settings = SearchSettings()

    after_wandering = decide(Space.of([1, 4, 8, 16]), wandered, settings)
    after_steadiness = decide(Space.of([1, 4, 8]), [*steady, measured(8, 0.85 * 330.0)], settings)

    assert after_wandering.stop_reason == "target_confidence"
    assert (after_steadiness.micro_batch_size, after_steadiness.compilation) == (4, Compilation.EXACT)


def test_the_warning_of_a_noisy_machine_says_that_turns_cancel_it():
    (warning,) = noise_warnings(WANDERED, base=1, tolerance=0.02)

    assert "2 probes of micro-batch size 8 differ by 28.6 %" in warning
    assert "timed interleaved" in warning


def test_a_wandering_machine_is_named_where_exact_and_shared_compilation_differ():
    once = WANDERED[:4]

    (warning,) = noise_warnings(once, base=1, tolerance=0.02, exact_over_shared=0.82)

    assert "exact and shared compilation were timed apart, and their difference of 18 %" in warning
    assert noise_warnings(once, base=1, tolerance=0.02, exact_over_shared=1.01) == ()
    assert noise_warnings(once[:1], base=1, tolerance=0.02, exact_over_shared=0.82) == ()


def test_every_size_that_took_turns_counts_as_measured():
    assert belief(WANDERED).measured.tolist() == [2, 3, 3, 2]


def test_evidence_of_turns_survives_a_storage():
    evidence = dataclasses.replace(WANDERED[1], log_throughput_se=math.nan)

    assert Evidence.from_dict(evidence.as_dict()).interleaved == WANDERED[1].interleaved
    assert None not in [item["log_throughput"] for item in evidence.as_dict()["interleaved"]]


def test_an_observation_of_turns_survives_its_journal_and_is_comparable_evidence():
    machine = wandering(6)
    turns = {8: tuple(1.9 * machine), 4: tuple(1.0 * machine)}
    probe = Probe(number=1, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=turns[8], interleaved_times_s=turns)
    record = {**observation.as_dict(), "interleaved_times_s": {"8": list(turns[8]), "4": list(turns[4])}}

    assert Observation.from_dict(record) == observation
    evidence = Evidence.of(observation)
    assert evidence.interleaved[0].log_throughput - evidence.log_throughput == pytest.approx(math.log(1.9 / 2.0))
    assert evidence.num_passes == 6


def test_a_size_whose_peak_was_over_the_budget_tells_no_throughput_even_if_it_took_turns():
    turns = {8: (0.2, 0.2), 4: (0.1, 0.1)}
    asked = Probe(number=1, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(
        probe=asked,
        outcome=Outcome.OUT_OF_MEMORY,
        pass_times_s=turns[8],
        interleaved_times_s=turns,
        reason="over the budget",
    )

    evidence = Evidence.of(observation)

    assert math.isnan(evidence.log_throughput)
    assert evidence.interleaved == ()


NOISY = {"log_throughput_se": 0.02, "compilation": Compilation.SHARED}  # of ten passes: 6 % of each


def asked(*evidence: Evidence, **settings) -> tuple[int, ...]:
    """What the next probe takes turns with."""
    return decide(Space.of(range(1, 65)), evidence, dataclasses.replace(SHARED, **settings)).interleaved_with


def test_on_a_noisy_machine_a_size_is_looked_at_in_turns_with_the_leader():
    assert asked(measured(1, 30.0, **NOISY), measured(32, 500.0, **NOISY)) == (32,)


def test_a_look_is_held_against_a_quick_size_where_it_is_about_as_likely_the_best():
    plateau = {8: 500.0, 16: 501.0, 64: 502.0}
    looks = [interleaved(size, speed, {8: 500.0}) for size, speed in plateau.items() if size != 8]
    evidence = [measured(1, 30.0, **NOISY), interleaved(8, 500.0, {1: 30.0}), *looks]

    fitted = belief_of(range(1, 65), evidence)
    costs = Costs.learnt([measured(1, 30.0, **NOISY)], SHARED)
    index, search = fitted.index(32), {"purpose": Purpose.SEARCH, "compilation": Compilation.SHARED}

    assert interleaved_with(fitted, evidence, SHARED, costs, index=index, **search) in ((8,), (16,))


def test_a_round_of_contenders_stays_short_beside_what_the_machine_wanders_in():
    slow = {8: 5.0, 12: 5.02, 16: 5.01}  # passes of 1.6 to 3.2 s
    looks = [interleaved(size, speed, {8: 5.0}) for size, speed in slow.items() if size != 8]
    evidence = [measured(1, 1.0, **NOISY), interleaved(8, 5.0, {1: 1.0}), *looks]
    fitted = belief_of([1, 8, 12, 16], evidence)
    costs = Costs.learnt([measured(1, 1.0, **NOISY)], SHARED)
    contender = {"purpose": Purpose.CONTENDER, "compilation": Compilation.SHARED}

    assert len(interleaved_with(fitted, evidence, SHARED, costs, index=fitted.index(8), **contender)) == 1


def test_sizes_whose_round_is_longer_than_the_machine_stands_still_are_timed_alone():
    slow = {1: 1.0, 8: 5.0, 64: 5.2}  # a pass of the largest takes 12 s

    def others_of(size: int, *, speed: float) -> tuple[int, ...]:
        looks = [measured(known, speed * rate, **NOISY) for known, rate in slow.items() if known != size]
        fitted = belief_of([1, 8, 64], looks)
        search = {"purpose": Purpose.SEARCH, "compilation": Compilation.SHARED}
        costs = Costs.learnt(looks, SHARED)
        return interleaved_with(fitted, looks, SHARED, costs, index=fitted.index(size), **search)

    assert others_of(8, speed=1.0) == (1,)
    assert others_of(8, speed=2.0) == (64,)
    assert others_of(64, speed=0.5) == ()


def verified(fields: dict[str, object]) -> list[Evidence]:
    """A plateau of three sizes, of which the first was then compiled exactly, on a slow moment of the machine."""
    speeds = {8: 500.0, 12: 499.0, 16: 498.0}
    shared = [measured(1, 100.0, **NOISY), *(measured(size, speed, **NOISY | fields) for size, speed in speeds.items())]
    return [*shared, measured(8, 440.0, log_throughput_se=0.02, compilation=Compilation.EXACT, purpose=Purpose.VERIFY)]


def test_what_a_wandering_machine_makes_of_the_exact_program_has_no_other_size_compiled():
    partner = Interleaved(micro_batch_size=1, log_throughput=math.log(100.0), log_throughput_se=0.02)
    settings = SearchSettings(target_confidence=99)

    alone, in_turns = (
        decide(Space.of([1, 8, 12, 16]), verified(fields), settings) for fields in ({}, {"interleaved": (partner,)})
    )

    assert (alone.stop_reason, alone.compilation) == (None, Compilation.EXACT)
    assert in_turns.stop_reason is StopReason.NOTHING_LEFT


def test_on_a_machine_whose_passes_repeat_well_every_size_is_timed_alone():
    quiet = {"compilation": Compilation.SHARED}
    assert asked(measured(1, 30.0, **quiet), measured(32, 500.0, **quiet)) == ()


def test_programs_of_their_own_take_no_turns():
    exact = NOISY | {"compilation": Compilation.EXACT}
    evidence = (measured(1, 30.0, **exact), measured(32, 500.0, **exact))
    assert asked(*evidence, search_compilation=Compilation.EXACT) == ()


def test_contenders_take_turns_all_together():
    speeds = {8: 500.0, 12: 502.0, 16: 501.0}
    looks = [interleaved(size, speed, {8: 500.0}) for size, speed in speeds.items() if size != 8]
    evidence = [measured(1, 100.0, **NOISY), interleaved(8, 500.0, {1: 100.0}), *looks]
    short = [dataclasses.replace(item, log_throughput_se=0.05, num_passes=4) for item in evidence]

    decision = decide(Space.of([1, 8, 12, 16]), short, SHARED)

    assert decision.purpose in (Purpose.CONTENDER, Purpose.REPLICATE)
    assert {decision.micro_batch_size, *decision.interleaved_with} == {8, 12, 16}


def test_on_a_machine_that_wanders_by_a_fifth_high_scores_stay_true():
    """Each size alone is measured as badly as such a machine allows, and told with the doubt that this deserves."""
    confident, right = {True: 0, False: 0}, {True: 0, False: 0}
    settings = dataclasses.replace(SHARED, user_compilation=Compilation.SHARED)
    for seed in range(60):
        world = dataclasses.replace(draw_world(Family.DRIFTING_HOST, 500 + seed), common_mode_sd=0.2)
        for takes_turns in right:
            simulated = SimulatedRunner(world, seed=seed, shared_compile=True)
            runner = simulated if takes_turns else _alone(simulated)
            *_, result = loop.explore(runner, space=world.space, settings=settings, memory=world.memory)
            if result.recommendation.confidence >= 90:
                confident[takes_turns] += 1
                right[takes_turns] += world.regret(result.recommendation.micro_batch_size) <= 0.02

    assert confident[True] >= 35
    assert right[True] / confident[True] >= 0.85
    assert confident[True] > confident[False]


def _alone(runner: Runner) -> Runner:
    return lambda probe: runner(dataclasses.replace(probe, interleaved_with=()))


def test_a_runner_that_knows_no_turns_leaves_the_search_as_it_was():
    runner = CurveRunner(saturating)
    *_, result = loop.explore(runner, space=Space.of(range(1, 65)), settings=SHARED)

    assert {probe.interleaved_with for probe in runner.probes} == {()}
    assert result.recommendation.confidence >= 90


class ScriptedSteps:
    """Passes that take what a size takes, and tell which size ran."""

    scheduler_wait_s = 0.0

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.ran = seconds, list[int]()

    def num_back_to_back(self, pass_s: float) -> int:
        return 1

    def timed_pass(self, batch: int, num_passes: int = 1) -> float:
        self.ran.append(batch)
        return self.seconds[batch]

    def loss(self) -> float:
        return float(self.ran[-1])


def in_turns_after(known: RanPass, steps: ScriptedSteps) -> Timed:
    """Size 8 in turns with size 4, just after a pass of its own."""
    return time_interleaved(
        steps,
        {8: 8, 4: 4},
        Probe(number=1, micro_batch_size=8, interleaved_with=(4,)),
        usual_pass_s=steps.seconds,
        budget_s=4.0,
        known=[known],
        report=lambda **_: None,
    )


def test_a_long_pass_that_has_just_run_is_the_first_turn_of_its_size():
    steps = ScriptedSteps({4: 1.1, 8: 2.0})

    timed = in_turns_after(RanPass(2.2, 0.0, 7.0), steps)

    assert steps.ran == [4, 4, 8]  # and the second round goes the other way round
    assert timed.interleaved_times_s == {8: [2.2, 2.0], 4: [1.1, 1.1]}
    assert timed.pass_times_s == [2.2, 2.0]
    assert timed.loss == 8.0


def test_a_loss_is_that_of_the_probes_own_size():
    steps = ScriptedSteps({4: 1.1, 8: 5.0})

    timed = in_turns_after(RanPass(5.0, 0.0, 7.0), steps)

    assert steps.ran == [4, 4, 8]  # two rounds, however long they are: one would not show a turn that was disturbed
    assert timed.loss == 8.0


def odd_only() -> Job:
    """A job whose model refuses even sizes."""
    job = imported_job()
    return dataclasses.replace(job, model=job.model | {"model": "bugs:odd_only"})


def probe(number: int, size: int, **fields) -> Probe:
    return Probe(number=number, micro_batch_size=size, max_passes=4, **fields)


def test_the_engine_times_sizes_in_turns_in_one_worker(run_on):
    runner = run_on(imported_job())
    first = runner(probe(0, 4))

    second = runner(probe(1, 8, interleaved_with=(4,)))
    again = runner(probe(2, 4, interleaved_with=(8,), purpose=Purpose.CONTENDER))

    assert first.interleaved_times_s == {}
    (num_rounds,) = {len(times_s) for times_s in second.interleaved_times_s.values()}
    assert set(second.interleaved_times_s) == {8, 4}
    assert 4 <= num_rounds <= 8  # more than four where somebody else disturbed some
    assert set(again.interleaved_times_s) == {4, 8}
    assert {o.worker for o in (first, second, again)} == {0}
    assert again.peak_memory_bytes == first.peak_memory_bytes
    assert len(again.update_times_s) == 3
    assert "not_interleaved" not in second.details | again.details


def test_a_size_that_fails_takes_no_turn_and_the_probes_own_is_measured_alone(run_on):
    runner = run_on(odd_only())
    runner(probe(0, 3))

    observation = runner(probe(1, 5, interleaved_with=(3, 4)))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert observation.interleaved_times_s == {}
    assert "pairs its samples" in observation.details["not_interleaved"]


def test_after_a_failure_the_new_worker_takes_turns_with_sizes_of_the_old_one(run_on):
    runner = run_on(odd_only())
    runner(probe(0, 3))
    assert runner(probe(1, 4)).outcome is Outcome.CRASHED

    observation = runner(probe(2, 5, interleaved_with=(3,)))

    assert observation.worker == 1
    assert set(observation.interleaved_times_s) == {5, 3}
    assert not [warning for warning in observation.warnings if "compiler" in warning]
    assert runner(probe(3, 3, interleaved_with=(5,))).peak_memory_bytes > 0


def test_what_is_extrapolated_from_reduced_depths_is_asked_alone():
    questions = []

    class Shallow:
        def __call__(self, probe: Probe) -> Observation:
            questions.append(probe)
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY)

        def close(self) -> None: ...

        def rest(self) -> None: ...

        def at_depth(self, kept_blocks: int, num_blocks: int) -> Shallow:
            return self

    runner = ReducedDepthRunner(Shallow(), Depths(whole=48, block_share=0.95, high=12))
    runner(probe(1, 8, interleaved_with=(4,), compilation=Compilation.REDUCED))

    assert [search_specification.interleaved_with for search_specification in questions] == [()]


def test_one_turn_is_told_as_one():
    turns = {8: (4.0,), 4: (2.5,)}
    asked = Probe(number=3, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=asked, outcome=Outcome.MEASURED, pass_times_s=turns[8], interleaved_times_s=turns)

    assert "in 1 turn each" in probe_sentence(loop.ProbeFinished(observation=observation))


def test_people_and_scripts_are_told_with_what_a_size_took_turns_and_how_it_did():
    turns = {8: (0.4, 0.44), 4: (0.25, 0.275)}
    asked = Probe(number=3, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=asked, outcome=Outcome.MEASURED, pass_times_s=turns[8], interleaved_times_s=turns)

    sentence = probe_sentence(loop.ProbeFinished(observation=observation))

    assert "1.25x the speed of size 4 in 2 turns each" in sentence
    assert probe_record(observation)["interleaved_times_s"] == {"8": [0.4, 0.44], "4": [0.25, 0.275]}
