"""The joint posterior of several variants of a job: a column for each size of each variant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.noise_model import estimate_level_share
from bexplore.search.posterior.posterior import Posterior, fit_posterior
from bexplore.search.posterior.prior import Kinship
from bexplore.search.space import MemoryPrior, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant of a job, as the search knows it before anything ran."""

    memory: MemoryPrior | None = None  # its prior of memory; None for no limit and no trace
    log_speed: float = 0.0  # expected ln(samples/s) over that of variant 0, as its operations let expect


ONE_VARIANT = (Variant(),)  # of a job without settings, of whose memory nothing is known


@dataclass(frozen=True, kw_only=True, eq=False)
class JointPosterior(Posterior):
    """Joint draws of the curves of all variants, one variant's sizes behind the other's."""

    parts: tuple[Posterior, ...]  # the posterior of each variant, in order

    def index(self, size: int, variant: int = 0) -> int:
        """Return the position of a size of a variant."""
        return self.start(variant) + self.parts[variant].index(size)

    def part(self, variant: int) -> Posterior:
        """Return the posterior of one variant."""
        return self.parts[variant]

    def start(self, variant: int) -> int:
        """Return the position of the smallest size of a variant."""
        return sum(len(part.sizes) for part in self.parts[:variant])

    @property
    def variants(self) -> NDArray[np.int64]:
        """(D,), the variant of each position."""
        return np.repeat(np.arange(len(self.parts)), [len(part.sizes) for part in self.parts])

    def regret(self, size: int, variant: int = 0) -> Array:
        """Return (S,), share of the best feasible speed that a size of a variant misses; 1 where it does not fit."""
        at = self.index(size, variant)
        fits = self.feasible[:, at]
        own = self.log_throughput[:, at].astype(np.float64)
        behind = np.subtract(own, self.best[:, 0] + self._bonus, where=fits, out=np.full(len(own), -np.inf))
        return -np.expm1(np.minimum(behind, 0.0))

    def _near_best(self, tolerance: float) -> NDArray[np.bool_]:
        bonus = math.log1p(-tolerance) + self._bonus
        return self.feasible & (self.values >= self.best + bonus.astype(np.float32)[:, None])

    @property
    def _bonus(self) -> Array:
        """(S,), ln(samples/s) of the best of all candidates over the best of those in the domain."""
        bests = np.stack([part.best[:, 0] + part._unseen for part in self.parts])
        return np.maximum(bests.max(axis=0) - self.best[:, 0].astype(np.float64), 0.0)


def fit_joint(
    space: Space,
    variants: Sequence[Variant],
    evidence: Sequence[Evidence],
    *,
    seed: int,
    user_compilation: Compilation,
) -> JointPosterior:
    """Fit the posterior of every variant, each with what the measurements of the others tell of it.

    A draw has one function of the size for all variants, and the noise of each apart: what is known of two variants
    beyond the measurements only through each other makes their difference look less certain than it is.
    """
    log_speeds = {number: variant.log_speed for number, variant in enumerate(variants)}
    parts = tuple(
        fit_posterior(
            space,
            evidence,
            memory=variant.memory,
            seed=seed,
            user_compilation=user_compilation,
            kinship=Kinship(variant=number, log_speeds=log_speeds),
        )
        for number, variant in enumerate(variants)
    )
    return join_posteriors(parts)


def join_posteriors(parts: Sequence[Posterior]) -> JointPosterior:
    """Return posteriors of several variants as one."""
    ends = np.cumsum([0, *(len(part.sizes) for part in parts)])
    covariance = np.full((ends[-1], ends[-1]), np.nan)
    for part, start, end in zip(parts, ends, ends[1:], strict=False):
        covariance[start:end, start:end] = part.own_level_covariance
    return JointPosterior(
        log_throughput=np.concatenate([part.log_throughput for part in parts], axis=1),
        feasible=np.concatenate([part.feasible for part in parts], axis=1),
        sizes=np.concatenate([part.sizes for part in parts]),
        represented=np.concatenate([part.represented for part in parts]),
        measured=np.concatenate([part.measured for part in parts]),
        measured_exactly=np.concatenate([part.measured_exactly for part in parts]),
        open=np.concatenate([part.open for part in parts]),
        surprise=np.concatenate([part.surprise for part in parts]),
        own_level=np.concatenate([part.own_level for part in parts]),
        own_level_covariance=_with_independent(covariance),
        probe_sd=np.mean([part.probe_sd for part in parts], axis=0),
        own_sd=np.max([part.own_sd for part in parts], axis=0),
        parts=tuple(parts),
    )


def _with_independent(covariance: Array) -> Array:
    """Return a covariance whose blocks of different variants are zero where both have measurements."""
    known = np.isfinite(np.diag(covariance))
    both = known[:, None] & known[None, :]
    return np.where(both & ~np.isfinite(covariance), 0.0, covariance)


def shift_to_present_speed(
    posterior: Posterior, evidence: Sequence[Evidence], user_compilation: Compilation
) -> Posterior:
    """Return the posterior with all curves shifted to the level that the last measurement shows.

    The last probe of the training's own program differs from the mean of its size by what is common to all sizes at
    that moment, and by its own noise, each by its share of their variances. Until that program ran, its level is
    unknown, and that of the search's stands for it.
    """
    measured = [item for item in evidence if item.is_measured]
    last = ([item for item in measured if item.compilation is user_compilation] or measured)[-1]
    residual = last.log_throughput - float(posterior.mean[posterior.index(last.micro_batch_size, last.variant)])
    probe_variance = float(np.mean(posterior.probe_sd**2))
    share = estimate_level_share(measured, last, user_compilation, probe_variance=probe_variance)
    return shift_log_throughput(posterior, np.full(len(posterior.sizes), share * residual))


def shift_log_throughput(posterior: Posterior, shift: Array) -> Posterior:
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
        return dataclasses.replace(result, parts=tuple(shift_log_throughput(part, own) for part, own in shifts))
    return result
