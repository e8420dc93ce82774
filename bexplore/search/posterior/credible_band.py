"""The posterior of throughput as a band over sizes, for drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation, Observation
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.space import MemoryPrior, Space

QUANTILES = (0.05, 0.5, 0.95)  # Source: a convention: nine of ten curves lie inside the band
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The posterior of throughput.

    Attributes:
        sizes: (D,), micro-batch sizes, ascending.
        low: (D,), samples/s, 5 % quantile.
        middle: (D,), samples/s, median.
        high: (D,), samples/s, 95 % quantile.
        fits: (D,), probability, 0 to 1, that the size fits and runs.
    """

    sizes: NDArray[np.int64]
    low: Array
    middle: Array
    high: Array
    fits: Array


def band_of(
    observations: Sequence[Observation],
    *,
    sizes: Sequence[int],
    memory: MemoryPrior | None = None,
    seed: int = 0,
    user_compilation: Compilation = Compilation.EXACT,
) -> Band | None:
    """Fit the posterior to observations; return its band, or None where nothing was measured.

    Args:
        observations: Every probe, in order.
        sizes: The sizes of the band; those that were tried are added.
        memory: The prior of peak memory.
        seed: The search's own, so that the band is the search's posterior.
        user_compilation: The program of the training.
    """
    if not any(item.is_measured for item in observations):
        return None
    fitted = fit_posterior(
        Space.of(sizes).including(item.micro_batch_size for item in observations),
        [Evidence.of(item) for item in observations],
        memory=memory,
        seed=seed,
        user_compilation=user_compilation,
    )
    low, middle, high = np.exp(np.quantile(fitted.log_throughput, QUANTILES, axis=0))
    return Band(sizes=fitted.sizes, low=low, middle=middle, high=high, fits=fitted.feasible.mean(axis=0))
