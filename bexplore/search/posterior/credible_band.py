"""The posterior of throughput as a credible band over sizes, for drawing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bexplore.search.posterior.posterior import Posterior

QUANTILES = (0.05, 0.95)  # Source: a convention: nine of ten curves lie inside the band
# The band is drawn where a size fits with at least this probability, and up to this factor beyond the largest size that
# ran: the posterior is vague further out. Source: a choice of presentation, which no decision depends on.
SHOWN_IF_FITS = 0.02
SHOWN_BEYOND = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CredibleBand:
    """Pointwise quantiles of throughput, and the probability that a size fits; one value per size.

    Attributes:
        sizes: Micro-batch sizes, ascending.
        low: 5 % quantile, samples/s.
        middle: Expected samples/s; at a size that ran, its one estimate, of which all printed numbers are.
        high: 95 % quantile, samples/s.
        fits: Probability, 0 to 1, that the size fits and runs.
    """

    sizes: tuple[int, ...]
    low: tuple[float, ...]
    middle: tuple[float, ...]
    high: tuple[float, ...]
    fits: tuple[float, ...]

    @classmethod
    def of(cls, posterior: Posterior | None) -> CredibleBand | None:
        """Return the band of a posterior; None where nothing was measured."""
        if posterior is None:
            return None
        low, high = np.exp(np.quantile(posterior.log_throughput, QUANTILES, axis=0))
        middle = np.exp(posterior.mean)
        return cls(
            sizes=tuple(posterior.sizes.tolist()),
            low=_rounded(np.minimum(low, middle)),
            middle=_rounded(middle),
            high=_rounded(np.maximum(high, middle)),
            fits=_rounded(posterior.feasible.mean(axis=0)),
        )

    def shown(self, largest: float) -> list[tuple[float, float, float, float]]:
        """Return (size, low, middle, high) of each size to draw."""
        rows = zip(self.sizes, self.low, self.middle, self.high, self.fits, strict=True)
        last = SHOWN_BEYOND * largest
        return [(float(s), low, mid, high) for s, low, mid, high, fits in rows if fits >= SHOWN_IF_FITS and s <= last]


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Return the values with the six digits that a result file keeps."""
    return tuple(float(f"{value:.6g}") for value in values)
