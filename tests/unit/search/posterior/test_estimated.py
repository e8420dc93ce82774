"""The prior around an estimated curve."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bexplore.search.posterior.estimated import MOST_TRUST, SpeedPrior, fastest_by_estimate
from bexplore.search.posterior.posterior import Posterior, fit_posterior
from bexplore.search.space import Space
from tests.unit.search.builders import measured, saturating

SIZES = tuple(range(1, 129))
SEEN = (1, 64, 96)


def waves(size: int) -> float:
    """Return samples/s of a device that works in blocks of 28: no smooth curve has its best size, 112."""
    return saturating(size) * size / (28 * math.ceil(size / 28))


def estimate(speed_of, factor: float = 1.0) -> SpeedPrior:
    return SpeedPrior(pass_s=lambda size: factor * size / speed_of(size), relative_sd=0.05)


def believed(truth, seen=SEEN, **options) -> Posterior:
    return fit_posterior(Space.from_sizes(SIZES), [measured(size, truth(size)) for size in seen], **options)


def near_best(posterior: Posterior, size: int) -> float:
    return float(posterior.near_best(0.02)[:, posterior.index(size)].mean())


def test_a_right_estimate_shows_a_peak_that_was_not_probed():
    assert near_best(believed(waves), 112) < 0.5
    assert near_best(believed(waves, speed=estimate(waves)), 112) > 0.8


def test_the_level_of_an_estimate_does_not_matter():
    one, other = (believed(waves, speed=estimate(waves, factor)) for factor in (1.0, 50.0))
    assert one.log_throughput == pytest.approx(other.log_throughput, abs=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda size: 1.0 / saturating(size), id="inverted"),
        pytest.param(lambda size: 1.0, id="constant"),
        pytest.param(lambda size: size**3.0, id="steep"),
    ],
)
def test_a_wrong_estimate_is_given_up(wrong):
    plain, posterior = (believed(saturating, (1, 8, 32, 64, 128), speed=own) for own in (None, estimate(wrong)))
    assert posterior.is_estimated.mean() < 0.2
    assert posterior.mean == pytest.approx(plain.mean, abs=0.02)


def test_an_estimate_is_never_trusted_altogether():
    posterior = believed(waves, SIZES[::6], speed=estimate(waves))
    assert 0.5 < posterior.is_estimated.mean() <= MOST_TRUST + 0.01


def test_without_an_estimate_no_draw_is_around_one():
    assert not believed(waves).is_estimated.any()


def test_the_posterior_covers_the_peaks_of_an_estimate():
    space = Space.from_sizes(range(1, 3001))
    peaked = estimate(lambda size: saturating(size) * (1.1 if size == 1817 else 1.0))
    evidence = [measured(1, 30.0), measured(512, 900.0)]
    assert 1817 not in fit_posterior(space, evidence).sizes
    assert 1817 in fit_posterior(space, evidence, speed=peaked).sizes


def test_peaks_beyond_what_may_fit_do_not_count():
    found = fastest_by_estimate(estimate(waves), SIZES, 100)
    assert max(found) <= 100
    assert found[0] == 84
    assert len(np.unique(found)) == len(found)
