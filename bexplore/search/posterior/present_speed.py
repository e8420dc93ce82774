"""The posterior at the speed that the machine has now, which is common to all sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.joint import JointPosterior
from bexplore.search.posterior.noise_model import share_of_level
from bexplore.search.posterior.posterior import Posterior


def at_present_speed(posterior: Posterior, evidence: Sequence[Evidence], user_compilation: Compilation) -> Posterior:
    """Return the posterior with all curves moved to the level that the last measurement shows.

    The last probe of the training's own program differs from the mean of its size by what is common to all sizes at
    that moment, and by its own noise, each by its share of their variances. Until that program ran, its level is
    unknown, and that of the search's stands for it.

    Args:
        evidence: Every finished probe, in order; at least one is measured.
    """
    measured = [item for item in evidence if item.is_measured]
    last = ([item for item in measured if item.compilation is user_compilation] or measured)[-1]
    residual = last.log_throughput - float(posterior.mean[posterior.index(last.micro_batch_size, last.variant)])
    probe_variance = float(np.mean(posterior.probe_sd**2))
    share = share_of_level(measured, last, user_compilation, probe_variance=probe_variance)
    return moved(posterior, np.full(len(posterior.sizes), share * residual))


def moved(posterior: Posterior, shift: Array) -> Posterior:
    """Return the posterior with (D,) added to the ln(samples/s) of each size."""
    result = dataclasses.replace(
        posterior,
        log_throughput=posterior.log_throughput + shift.astype(np.float32),
        own_level=posterior.own_level + shift,
        _near={},
    )
    if isinstance(result, JointPosterior):
        ends = [result.start(variant) for variant in range(1, len(result.parts))]
        shifts = zip(result.parts, np.split(shift, ends), strict=True)
        return dataclasses.replace(result, parts=tuple(moved(part, own) for part, own in shifts))
    return result
