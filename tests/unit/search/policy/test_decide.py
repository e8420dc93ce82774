"""The choice of the next probe where a job has several variants."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.measurement.probe import Compilation, Purpose
from bexplore.search.loop import run_search
from bexplore.search.policy.acquisition import WORTHLESS, rank
from bexplore.search.policy.decide import decide
from bexplore.search.policy.decision import StopReason
from bexplore.search.policy.probe_cost import Costs
from bexplore.search.posterior.joint import Variant, fit_joint
from bexplore.search.result import ProbeFinished, Result
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryPrior, Space
from tests.unit.search.builders import GIB, MANY, measured, saturating
from tests.unit.search.joint_worlds import draw_joint_world, joint_runner

SIZES = (1, 2, 4, 8, 16, 32, 64)
SETTINGS = SearchSettings(max_probes=30)


def memory(bytes_per_sample: float) -> MemoryPrior:
    return MemoryPrior(peak_bytes=lambda size: size * bytes_per_sample, relative_sd=0.01, budget_bytes=10 * GIB)


def test_a_job_that_fits_at_no_size_begins_with_a_variant_that_fits():
    variants = [Variant(memory=memory(20 * GIB)), Variant(memory=memory(0.1 * GIB))]
    first = decide(Space.from_sizes(SIZES), [], SETTINGS, variants=variants)
    assert first.variant == 1
    assert first.stop_reason is None


def test_a_variant_dominated_by_its_operations_is_not_probed():
    variants = [Variant(memory=memory(0.1 * GIB)), Variant(memory=memory(0.1 * GIB), log_speed=-2.0)]
    evidence = [measured(size, saturating(size)) for size in (1, 16, 64, 32)]
    decision = decide(Space.from_sizes(SIZES), evidence, SETTINGS, variants=variants)
    assert decision.stop_reason is not None or decision.variant == 0


def test_a_promising_variant_is_probed_before_the_first_is_all_known():
    variants = [Variant(memory=memory(2 * GIB)), Variant(memory=memory(0.1 * GIB), log_speed=0.2)]
    evidence = [measured(size, saturating(size)) for size in (1, 4)]
    assert decide(Space.from_sizes(SIZES), evidence, SETTINGS, variants=variants).variant == 1


def test_where_no_probe_changes_the_answer_the_least_sure_variant_is_next():
    fast = memory(0.1 * GIB)
    variants = [Variant(memory=fast), Variant(memory=fast, log_speed=-0.5), Variant(memory=fast, log_speed=-0.25)]
    evidence = [measured(size, saturating(size)) for size in (1, 16, 64, 32, 64, 32)]
    posterior = fit_joint(
        Space.from_sizes(SIZES), variants, evidence, seed=0, user_compilation=SETTINGS.user_compilation
    )
    choices = rank(posterior, SETTINGS, Costs.learnt(evidence, SETTINGS), last=(0, 32))
    assert choices[0].value < WORTHLESS
    assert [posterior.variants[choice.index] for choice in choices] == [2, 2, 1, 1, 0]  # last, the leader once more


def test_a_variants_program_counts_in_the_seconds_of_its_first_probe():
    variants = [Variant(memory=memory(0.1 * GIB))] * 2
    settings = dataclasses.replace(SETTINGS, compile_time_s=1e5, training_time_s=1e4)
    evidence = [measured(size, saturating(size)) for size in (1, 8, 32, 64)]
    decision = decide(Space.from_sizes(SIZES), evidence, settings, variants=variants)
    assert decision.variant == 0 or decision.stop_reason is StopReason.COSTS_MORE_THAN_IT_SAVES


def test_one_probe_is_kept_for_the_verification_only_while_the_answer_needs_it():
    settings = SearchSettings(max_probes=6, target_confidence=99, training_time_s=1e12)
    known = [measured(size, saturating(size), compilation=Compilation.SHARED) for size in (1, 8, 64, 32)]

    verification = decide(MANY, [*known, measured(16, saturating(16), compilation=Compilation.SHARED)], settings)
    verified = [*known, measured(64, saturating(64))]
    last = decide(MANY, verified, settings)
    after = decide(MANY, [*verified, measured(last.micro_batch_size, saturating(last.micro_batch_size))], settings)

    assert (verification.purpose, verification.micro_batch_size) == (Purpose.VERIFY, 64)
    assert (last.stop_reason, last.compilation, last.fresh_worker) == (None, Compilation.EXACT, True)
    assert last.purpose is Purpose.VERIFY  # its memory is read as that of an answer
    assert after.stop_reason is StopReason.MAX_PROBES  # whichever size is the answer has run as the training will


@pytest.mark.parametrize("seed", [9_000_007, 9_000_008])
def test_the_same_seed_gives_the_same_joint_search(seed: int):
    def probes() -> list[tuple[int, int, str]]:
        world = draw_joint_world(seed)
        settings = SearchSettings(seed=seed, max_probes=8)
        events = run_search(
            joint_runner(world, seed=seed), space=world.space, settings=settings, variants=world.variants
        )
        ran = [event.observation for event in events if isinstance(event, ProbeFinished)]
        return [(one.probe.variant, one.micro_batch_size, one.outcome.value) for one in ran]

    assert probes() == probes()


def test_a_job_whose_settings_fit_nowhere_gets_a_size_of_another_variant():
    world = draw_joint_world(9_000_008)
    nothing = dataclasses.replace(world.worlds[0], budget_bytes=1.0)
    world = dataclasses.replace(
        world,
        worlds=(nothing, *world.worlds[1:]),
        variants=(
            dataclasses.replace(
                world.variants[0], memory=dataclasses.replace(world.variants[0].memory, budget_bytes=1.0)
            ),
            *world.variants[1:],
        ),
    )
    settings = SearchSettings(max_probes=10)
    *_, result = run_search(joint_runner(world, seed=1), space=world.space, settings=settings, variants=world.variants)
    assert isinstance(result, Result)
    assert result.recommendation is not None
    assert result.recommendation.variant > 0
