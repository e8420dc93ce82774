"""The settings of a job in a result: the gain of another setting, and the front of memory against speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bexplore.measurement.probe import Observation
from bexplore.search.posterior.posterior import LIKELY_FITS, Posterior
from bexplore.trace.cost_model import CostModel

INTERVAL = (0.025, 0.975)  # quantiles of an interval of 95 %


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A size with settings that no other beats in both memory and speed.

    Attributes:
        settings: The values, by key of `explore.settings`.
        micro_batch_size: Samples of one pass.
        peak_memory_bytes: Peak of the live tensors: measured where it ran, else traced.
        samples_per_s: By the posterior, which rests on measurements where it ran.
        ran: Whether it ran, or is a prediction.
    """

    settings: Mapping[str, Any]
    micro_batch_size: int
    peak_memory_bytes: int
    samples_per_s: float
    ran: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverFile:
    """The recommended settings beside those of the file.

    Attributes:
        speed: Samples/s over those of the file's own settings at their best size.
        interval: 95 % interval of it; None for the file's own settings themselves.
    """

    speed: float
    interval: tuple[float, float] | None = None


def pareto_front(points: Iterable[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Return the points that no other beats, in ascending order of memory.

    A point beats another that needs as much memory or more, and is no faster.
    """
    front: list[FrontPoint] = []
    fastest = -math.inf
    for point in sorted(points, key=lambda one: (one.peak_memory_bytes, -one.samples_per_s, not one.ran)):
        if point.samples_per_s > fastest:
            front.append(point)
            fastest = point.samples_per_s
    return tuple(front)


def points_of(
    posterior: Posterior,
    observations: Sequence[Observation],
    settings: Sequence[Mapping[str, Any]],
    cost_models: Sequence[CostModel | None],
) -> Iterator[FrontPoint]:
    """Yield each size that ran, and powers of two and the largest size that are likely to fit, of every variant.

    Args:
        posterior: Of all variants.
        settings: By variant.
        cost_models: By variant; None for one that could not be traced, of which only what ran is yielded.
    """
    for variant, (values, cost_model) in enumerate(zip(settings, cost_models, strict=True)):
        part = posterior.part(variant)
        peaks = _measured_peaks(observations, variant)
        for size in sorted({*_likely_sizes(part), *peaks}):
            peak = peaks.get(size) or (cost_model and cost_model.peak_memory_bytes(size))
            at = part.index(size)
            if peak and at < len(part.sizes) and part.sizes[at] == size:
                yield FrontPoint(
                    settings=values,
                    micro_batch_size=size,
                    peak_memory_bytes=peak,
                    samples_per_s=float(np.exp(part.mean[at])),
                    ran=size in peaks,
                )


def over_file(posterior: Posterior, micro_batch_size: int, variant: int) -> OverFile | None:
    """Compare a size of a variant with the best size of the file's own settings; None where none of these runs."""
    if variant == 0:
        return OverFile(speed=1.0)
    own = posterior.part(0)
    open_to_choice = own.feasible.mean(axis=0) >= LIKELY_FITS
    if not open_to_choice.any():
        return None
    best = int(np.argmax(np.where(open_to_choice, own.mean, -np.inf)))
    chosen = posterior.log_throughput[:, posterior.index(micro_batch_size, variant)].astype(np.float64)
    gains = chosen - own.log_throughput[:, best]
    low, high = np.exp(np.quantile(gains, INTERVAL))
    return OverFile(speed=float(np.exp(gains.mean())), interval=(float(low), float(high)))


def _measured_peaks(observations: Sequence[Observation], variant: int) -> dict[int, int]:
    """Return the largest measured peak of each size of a variant, bytes."""
    peaks: dict[int, int] = {}
    for item in observations:
        if item.is_measured and item.probe.variant == variant and item.peak_memory_bytes is not None:
            peaks[item.micro_batch_size] = max(peaks.get(item.micro_batch_size, 0), item.peak_memory_bytes)
    return peaks


def _likely_sizes(part: Posterior) -> list[int]:
    """Return the powers of two of a domain that are likely to fit, and the largest size that is."""
    sizes = part.sizes[part.feasible.mean(axis=0) >= LIKELY_FITS].tolist()
    return [size for size in sizes if size & (size - 1) == 0 or size == sizes[-1]]
