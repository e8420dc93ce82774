"""The whole depth from two reduced ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bexplore.measurement.depth_extrapolation import Depths

DEPTHS = Depths(whole=48, block_share=0.95, high=12)


def test_an_affine_quantity_is_extrapolated_exactly():
    assert DEPTHS.extrapolate(3.0 + 2.0 * DEPTHS.low, 3.0 + 2.0 * DEPTHS.high) == pytest.approx(3.0 + 2.0 * 48)


def test_the_variance_factor_is_that_of_noisy_measurements_of_both_depths():
    rng = np.random.default_rng(0)
    head, block = 0.05, 0.95 / 48
    low, high = (head + depth * block for depth in (DEPTHS.low, DEPTHS.high))
    noise = 1.0 + 0.001 * rng.standard_normal((2, 20_000))

    whole = DEPTHS.extrapolate(low * noise[0], high * noise[1])

    assert np.log(whole).var() / 0.001**2 == pytest.approx(DEPTHS.variance_factor, rel=0.05)
    assert DEPTHS.cost_share == pytest.approx(low + high)


def test_no_other_depth_tells_more_per_second_than_the_one_that_is_chosen():
    chosen = Depths.of(num_blocks=48, block_share=0.95)

    others = [dataclasses.replace(chosen, high=high) for high in range(chosen.low + 1, chosen.whole)]
    assert chosen.cost_share * chosen.variance_factor == pytest.approx(
        min(other.cost_share * other.variance_factor for other in others if other.high >= 4)
    )
    assert chosen.cost_share < 0.5
