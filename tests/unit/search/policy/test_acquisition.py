"""Interleaved sizes in the search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import pytest

from bexplore.host.records import from_record, to_record
from bexplore.measurement.interleaving import InterleavedTiming
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose, Runner
from bexplore.search import loop
from bexplore.search.evidence import Evidence, Interleaved
from bexplore.search.policy.acquisition import interleaved_with
from bexplore.search.policy.decide import decide
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.posterior import posterior
from bexplore.search.posterior.joint import Variant
from bexplore.search.recommendation import recommend
from bexplore.search.result import noise_warnings
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.simulated.simulator import Family, SimulatedRunner, draw_world
from tests.unit.search.builders import CurveRunner, measured, saturating

SHARED = SearchSettings(search_compilation=Compilation.SHARED, verify_exact=False)


def wandering(num_rounds: int, *, seed: int = 0, sd: float = 0.1) -> np.ndarray:
    """(num_rounds,), factors of a machine that changes its speed as it likes."""
    return np.exp(sd * np.random.default_rng(seed).standard_normal(num_rounds).cumsum())


def num_rounds(rounds: InterleavedTiming) -> int:
    return len(rounds.interleaved_times_s[8])


def interleaved(size: int, samples_per_s: float, others: dict[int, float], *, machine: float = 1.0) -> Evidence:
    """A probe of a size interleaved with others, on a machine that was so fast meanwhile."""
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
    return posterior.fit_posterior(Space.from_sizes(sizes), evidence, user_compilation=Compilation.SHARED)


def belief(evidence: list[Evidence]) -> posterior.Posterior:
    return belief_of([1, 4, 8, 16], evidence)


def test_sizes_are_compared_within_their_rounds_where_the_machine_drifts():
    alone = [dataclasses.replace(item, interleaved=()) for item in WANDERED]

    together = recommend(belief(WANDERED), WANDERED, tolerance=0.02)

    assert together.micro_batch_size == 8
    assert together.confidence >= 90
    assert together.relative_performance == pytest.approx(3.3, rel=0.03)
    apart = recommend(belief(alone), alone, tolerance=0.02)
    assert (apart.micro_batch_size, apart.confidence >= 90) != (8, True)


def test_a_machine_slower_for_all_sizes_leaves_interleaved_comparisons():
    """Size 1 alone on a quick machine; ever since everything takes twice as long, and no neighbour was seen."""
    evidence = [
        measured(1, 100.0, compilation=Compilation.SHARED),
        interleaved(8, 330.0, {1: 100.0}, machine=0.5),
        interleaved(4, 300.0, {8: 330.0}, machine=0.5),
        interleaved(16, 300.0, {8: 330.0}, machine=0.5),
    ]

    best = recommend(belief(evidence), evidence, tolerance=0.02)

    assert best.micro_batch_size == 8
    assert best.relative_performance == pytest.approx(3.3, rel=0.1)


def test_a_winner_slower_by_no_more_than_drift_is_not_questioned():
    wandered = [*WANDERED, measured(8, 0.65 * 330.0)]
    steady = [measured(size, speed, compilation=Compilation.SHARED) for size, speed in ((1, 100), (4, 300), (8, 330))]
    settings = SearchSettings()

    after_wandering = decide(Space.from_sizes([1, 4, 8, 16]), wandered, settings)
    after_steadiness = decide(Space.from_sizes([1, 4, 8]), [*steady, measured(8, 0.85 * 330.0)], settings)

    assert after_wandering.stop_reason == "target_confidence"
    assert (after_steadiness.micro_batch_size, after_steadiness.compilation) == (4, Compilation.EXACT)


def test_the_warning_of_a_noisy_machine_says_that_rounds_cancel_it():
    (warning,) = noise_warnings(WANDERED, base=1, tolerance=0.02)

    assert "2 probes of micro-batch size 8 differ by 28.6 %" in warning
    assert "timed interleaved" in warning


def test_drift_is_named_where_exact_and_shared_compilation_differ():
    once = WANDERED[:4]

    (warning,) = noise_warnings(once, base=1, tolerance=0.02, exact_over_shared=0.82)

    assert "the search and the final answer's own process were timed apart, and their difference of 18 %" in warning
    assert noise_warnings(once, base=1, tolerance=0.02, exact_over_shared=1.01) == ()
    assert noise_warnings(once[:1], base=1, tolerance=0.02, exact_over_shared=0.82) == ()


def test_every_size_that_was_interleaved_counts_as_measured():
    assert belief(WANDERED).measured.tolist() == [2, 3, 3, 2]


def test_evidence_of_rounds_survives_a_storage():
    evidence = dataclasses.replace(WANDERED[1], log_throughput_se=math.nan)

    assert from_record(Evidence, to_record(evidence)).interleaved == WANDERED[1].interleaved
    assert None not in [item["log_throughput"] for item in to_record(evidence)["interleaved"]]


def test_an_observation_of_rounds_survives_its_journal_and_is_evidence():
    machine = wandering(6)
    rounds = {8: tuple(1.9 * machine), 4: tuple(1.0 * machine)}
    probe = Probe(number=1, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=rounds[8], interleaved_times_s=rounds)
    record = {**to_record(observation), "interleaved_times_s": {"8": list(rounds[8]), "4": list(rounds[4])}}

    assert from_record(Observation, record) == observation
    evidence = Evidence.from_observation(observation)
    assert evidence.interleaved[0].log_throughput - evidence.log_throughput == pytest.approx(math.log(1.9 / 2.0))
    assert evidence.num_passes == 6


def test_a_size_over_the_budget_tells_no_throughput_even_interleaved():
    rounds = {8: (0.2, 0.2), 4: (0.1, 0.1)}
    asked = Probe(number=1, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(
        probe=asked,
        outcome=Outcome.OUT_OF_MEMORY,
        pass_times_s=rounds[8],
        interleaved_times_s=rounds,
        reason="over the budget",
    )

    evidence = Evidence.from_observation(observation)

    assert math.isnan(evidence.log_throughput)
    assert evidence.interleaved == ()


NOISY = {"log_throughput_se": 0.02, "compilation": Compilation.SHARED}  # of ten passes: 6 % of each


def asked(*evidence: Evidence, **settings) -> tuple[int, ...]:
    """What the next probe is interleaved with."""
    return decide(Space.from_sizes(range(1, 65)), evidence, dataclasses.replace(SHARED, **settings)).interleaved_with


def test_on_a_noisy_machine_a_size_is_screened_interleaved_with_the_leader():
    assert asked(measured(1, 30.0, **NOISY), measured(32, 500.0, **NOISY)) == (32,)


def test_a_screening_probe_runs_beside_a_quick_size_about_as_likely_best():
    plateau = {8: 500.0, 16: 501.0, 64: 502.0}
    looks = [interleaved(size, speed, {8: 500.0}) for size, speed in plateau.items() if size != 8]
    evidence = [measured(1, 30.0, **NOISY), interleaved(8, 500.0, {1: 30.0}), *looks]

    fitted = belief_of(range(1, 65), evidence)
    costs = Costs.learnt([measured(1, 30.0, **NOISY)], SHARED)
    index, search = fitted.index(32), {"purpose": Purpose.SEARCH, "compilation": Compilation.SHARED}

    assert interleaved_with(fitted, evidence, SHARED, costs, index=index, **search) in ((8,), (16,))


def test_a_round_of_contenders_is_short_beside_the_machines_drift():
    slow = {8: 5.0, 12: 5.02, 16: 5.01}  # passes of 1.6 to 3.2 s
    looks = [interleaved(size, speed, {8: 5.0}) for size, speed in slow.items() if size != 8]
    evidence = [measured(1, 1.0, **NOISY), interleaved(8, 5.0, {1: 1.0}), *looks]
    fitted = belief_of([1, 8, 12, 16], evidence)
    costs = Costs.learnt([measured(1, 1.0, **NOISY)], SHARED)
    contender = {"purpose": Purpose.CONTENDER, "compilation": Compilation.SHARED}

    assert len(interleaved_with(fitted, evidence, SHARED, costs, index=fitted.index(8), **contender)) == 1


def test_sizes_whose_round_outlasts_a_steady_machine_are_timed_alone():
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


def test_drift_in_the_exact_program_has_no_other_size_compiled():
    partner = Interleaved(micro_batch_size=1, log_throughput=math.log(100.0), log_throughput_se=0.02)
    settings = SearchSettings(target_confidence=99)

    alone, interleaved = (
        decide(Space.from_sizes([1, 8, 12, 16]), verified(fields), settings)
        for fields in ({}, {"interleaved": (partner,)})
    )

    assert (alone.stop_reason, alone.compilation) == (None, Compilation.EXACT)
    assert interleaved.stop_reason is not None or interleaved.compilation is not Compilation.EXACT


def test_on_a_machine_whose_passes_repeat_well_every_size_is_timed_alone():
    quiet = {"compilation": Compilation.SHARED}
    assert asked(measured(1, 30.0, **quiet), measured(32, 500.0, **quiet)) == ()


def test_programs_of_their_own_are_not_interleaved():
    exact = NOISY | {"compilation": Compilation.EXACT}
    evidence = (measured(1, 30.0, **exact), measured(32, 500.0, **exact))
    assert asked(*evidence, search_compilation=Compilation.EXACT) == ()


def test_contenders_are_interleaved_all_together():
    speeds = {8: 500.0, 12: 502.0, 16: 501.0}
    looks = [interleaved(size, speed, {8: 500.0}) for size, speed in speeds.items() if size != 8]
    evidence = [measured(1, 100.0, **NOISY), interleaved(8, 500.0, {1: 100.0}), *looks]
    short = [dataclasses.replace(item, log_throughput_se=0.05, num_passes=4) for item in evidence]

    decision = decide(Space.from_sizes([1, 8, 12, 16]), short, SHARED)

    assert decision.purpose in (Purpose.CONTENDER, Purpose.REPLICATE)
    assert {decision.micro_batch_size, *decision.interleaved_with} == {8, 12, 16}


@pytest.mark.statistics
def test_on_a_machine_that_drifts_by_a_fifth_high_scores_stay_true():
    """Each size alone is measured as badly as such a machine allows, and told with the doubt that this deserves."""
    confident, right = {True: 0, False: 0}, {True: 0, False: 0}
    # so long a training that no search ends because a probe costs more than it saves
    settings = dataclasses.replace(SHARED, user_compilation=Compilation.SHARED, training_time_s=1e7)
    for seed in range(60):
        world = dataclasses.replace(draw_world(Family.DRIFTING_HOST, 500 + seed), common_mode_sd=0.2)
        for is_interleaved in right:
            simulated = SimulatedRunner(world, seed=seed, shared_compile=True)
            runner = simulated if is_interleaved else _alone(simulated)
            *_, result = loop.run_search(
                runner, space=world.space, settings=settings, variants=(Variant(memory=world.memory),)
            )
            if result.recommendation.confidence >= 90:
                confident[is_interleaved] += 1
                right[is_interleaved] += world.regret(result.recommendation.micro_batch_size) <= 0.02

    assert confident[True] >= 35
    assert right[True] / confident[True] >= 0.85
    assert confident[True] > confident[False]


def _alone(runner: Runner) -> Runner:
    return lambda probe: runner(dataclasses.replace(probe, interleaved_with=()))


def test_a_runner_that_knows_no_interleaving_leaves_the_search_as_it_was():
    runner = CurveRunner(saturating)
    *_, result = loop.run_search(runner, space=Space.from_sizes(range(1, 65)), settings=SHARED)

    assert {probe.interleaved_with for probe in runner.probes} == {()}
    assert result.recommendation.confidence >= 90


def probe(number: int, size: int, **fields) -> Probe:
    return Probe(number=number, micro_batch_size=size, max_passes=4, **fields)
