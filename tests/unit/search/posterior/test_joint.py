"""The joint posterior of several variants of a job: what a measurement of one tells of another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation
from bexplore.search.evidence import Evidence, Interleaved
from bexplore.search.posterior.joint import JointPosterior, Variant, fit_joint
from bexplore.search.posterior.noise_model import COMMON_MODE_SD, EXPECTED_COMMON_MODE_SD
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.posterior.prior import LEVEL_SD, Kinship
from bexplore.search.space import MemoryPrior, Space
from tests.unit.search.builders import GIB, measured, saturating

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def of(variant: int, *sizes: int, factor: float = 1.0, **fields) -> list[Evidence]:
    return [dataclasses.replace(measured(size, factor * saturating(size), **fields), variant=variant) for size in sizes]


def fitted(evidence: Sequence[Evidence], variants: Sequence[Variant]) -> JointPosterior:
    return fit_joint(Space.from_sizes(SIZES), variants, evidence, seed=0, user_compilation=Compilation.EXACT)


def log_speed(posterior: JointPosterior, size: int, variant: int) -> np.ndarray:
    return posterior.log_throughput[:, posterior.index(size, variant)]


def test_one_variant_alone_has_the_posterior_of_a_job_without_variants():
    evidence = of(0, 1, 16, 64)
    alone = fit_posterior(Space.from_sizes(SIZES), evidence, seed=0, user_compilation=Compilation.EXACT)
    joint = fitted(evidence, [Variant(), Variant()])
    assert np.array_equal(joint.part(0).log_throughput, alone.log_throughput)


def test_a_variant_that_has_not_run_is_expected_by_its_operations():
    posterior = fitted(of(0, 1, 16, 64), [Variant(), Variant(log_speed=-0.3)])
    behind = log_speed(posterior, 64, 1).mean() - log_speed(posterior, 64, 0).mean()
    assert behind == pytest.approx(-0.3, abs=0.1)
    assert log_speed(posterior, 64, 1).std() > 0.7 * LEVEL_SD
    assert log_speed(posterior, 64, 1).std() > 5 * log_speed(posterior, 64, 0).std()


def test_one_probe_of_a_variant_gives_the_level_of_its_other_sizes():
    before = fitted(of(0, 1, 16, 64), [Variant(), Variant()])
    after = fitted([*of(0, 1, 16, 64), *of(1, 16, factor=0.8)], [Variant(), Variant()])
    assert np.exp(log_speed(after, 64, 1).mean()) == pytest.approx(0.8 * saturating(64), rel=0.05)
    assert log_speed(after, 64, 1).std() < 0.6 * log_speed(before, 64, 1).std()


def test_variants_of_the_searchs_program_are_compared_as_measured():
    shared = {"compilation": Compilation.SHARED}
    evidence = [*of(0, 1, 16, 64, **shared), *of(1, 16, 64, factor=0.93, **shared)]
    posterior = fitted(evidence, [Variant(), Variant()])
    difference = log_speed(posterior, 64, 1) - log_speed(posterior, 64, 0)
    assert np.exp(difference.mean()) == pytest.approx(0.93, abs=0.02)
    assert difference.std() < 0.035
    assert posterior.near_best(0.02).mean(axis=0)[posterior.index(64, 1)] < 0.05


def test_what_the_users_program_changes_in_a_variant_is_expected_of_all():
    shared = {"compilation": Compilation.SHARED}
    evidence = [*of(0, 1, 16, 64, **shared), *of(1, 16, 64, **shared)]
    before = fitted(evidence, [Variant(), Variant()])
    after = fitted([*evidence, *of(0, 16, 64, factor=0.9)], [Variant(), Variant()])
    change = log_speed(after, 64, 1).mean() - log_speed(before, 64, 1).mean()
    assert np.exp(change) == pytest.approx(0.9, abs=0.03)


def test_levels_of_variants_that_have_not_run_are_drawn_apart():
    posterior = fitted(of(0, 1, 16, 64), [Variant(), Variant(), Variant()])
    levels = [log_speed(posterior, 64, variant) - log_speed(posterior, 64, 0) for variant in (1, 2)]
    # Each differs from the first by its own level and by the first one's: half of the variance is common.
    assert np.corrcoef(levels)[0, 1] == pytest.approx(0.5, abs=0.15)


def test_interleaved_sizes_of_two_variants_are_compared_up_to_drift():
    def interleaved(variant: int, size: int, factor: float) -> Evidence:
        other = Interleaved(
            micro_batch_size=1, log_throughput=math.log(factor * saturating(1)), log_throughput_se=0.002
        )
        return dataclasses.replace(of(variant, size, factor=factor)[0], interleaved=(other,))

    posterior = fitted([interleaved(0, 64, 1.0), interleaved(1, 64, 0.9)], [Variant(), Variant()])
    difference = log_speed(posterior, 64, 1) - log_speed(posterior, 64, 0)
    assert np.exp(difference.mean()) == pytest.approx(0.9, abs=0.05)
    assert EXPECTED_COMMON_MODE_SD < difference.std() < COMMON_MODE_SD


def test_what_one_variant_cannot_hold_tells_nothing_of_one_that_needs_less():
    budget = 10 * GIB
    heavy = MemoryPrior(peak_bytes=lambda size: size * GIB, relative_sd=0.01, budget_bytes=budget)
    light = MemoryPrior(peak_bytes=lambda size: 0.1 * size * GIB, relative_sd=0.01, budget_bytes=budget)
    posterior = fitted(of(0, 1, 8), [Variant(memory=heavy), Variant(memory=light)])
    fits = posterior.feasible.mean(axis=0)
    assert fits[posterior.index(8, 0)] > 0.9
    assert fits[posterior.index(16, 0)] < 0.1
    assert fits[posterior.index(64, 1)] > 0.9


def test_the_best_is_that_of_all_variants():
    posterior = fitted([*of(0, 1, 16, 64), *of(1, 16, 64, factor=2.0)], [Variant(), Variant()])
    near = posterior.near_best(0.02).mean(axis=0)
    assert near[posterior.index(64, 0)] < 0.01
    assert near[posterior.index(128, 1)] > 0.5
    assert posterior.regret(64, 0).mean() == pytest.approx(0.5, abs=0.1)


def test_two_other_variants_share_what_the_own_one_differs_by():
    covariance = Kinship(variant=0).covariance([0, 1, 1, 2], np.zeros(4))
    assert not covariance[0].any()
    assert covariance[1, 2] == pytest.approx(covariance[1, 1])
    assert covariance[1, 3] == pytest.approx(covariance[1, 1] / 2)
