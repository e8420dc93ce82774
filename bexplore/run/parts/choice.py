"""The settings of the answer: what to set, what that gains and changes, and the front of memory against speed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bexplore.config.variants import ARGUMENT, changes_training, name_settings
from bexplore.measurement.probe import Observation
from bexplore.run.facts import Facts
from bexplore.run.parts.row import Row, View
from bexplore.search.posterior.posterior import LIKELY_FITS, Posterior
from bexplore.trace.cost_model import CostModel

INTERVAL = (0.025, 0.975)  # quantiles of an interval of 95 %


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A size with settings that no other beats in both memory and speed."""

    settings: Mapping[str, Any]  # the values, by key of `explore.settings`
    micro_batch_size: int  # samples of one pass
    peak_memory_bytes: int  # peak of the live tensors: measured where it ran, else traced
    samples_per_s: float  # by the posterior, which rests on measurements where it ran
    ran: bool  # whether it ran, or is a prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePart:
    """The settings that were explored together with the size; empty for a job with one variant."""

    variant: int = 0  # number of the recommended variant in the search; 0 for the file's own settings
    base_variant: int = 0  # number of the variant whose smallest size is the base
    settings: Mapping[str, Any] = field(default_factory=dict)  # what to set, by key of `explore.settings`
    # Samples/s over those of the file's own settings at their best size; None where none of these runs.
    settings_over_file: float | None = None
    # 95 % interval of it; None also for the file's own settings.
    settings_over_file_interval: tuple[float, float] | None = None
    # Operations of a pass over those of the file's own settings, by the trace.
    operations_over_file: float | None = None
    changes_training: tuple[str, ...] = ()  # what the settings train otherwise than the file's own, in words
    # Sizes with settings that no other beats in both memory and speed, in ascending order of memory.
    pareto_front: tuple[FrontPoint, ...] = ()

    @classmethod
    def find(cls, facts: Facts) -> ChoicePart:
        """Compare the settings of the recommended variant with those of the file."""
        best, posterior = facts.best, facts.searched.posterior
        if best is None or not facts.variants:
            return cls()
        settings = [one.settings for one in facts.variants]
        found = cls(
            variant=facts.variant,
            base_variant=best.base_variant,
            settings=dict(settings[facts.variant]),
            operations_over_file=facts.operations_over_file,
            changes_training=tuple(changes_training(settings[facts.variant], settings[0])),
        )
        if posterior is None:
            return found
        speed, interval = compare_with_file(posterior, best.micro_batch_size, facts.variant)
        models = [one.cost_model for one in facts.variants]
        return dataclasses.replace(
            found,
            settings_over_file=speed,
            settings_over_file_interval=interval,
            pareto_front=pareto_front(front_candidates(posterior, facts.observations, settings, models)),
        )

    def rows(self, view: View) -> Iterator[Row]:
        """Yield what to set, what that gains and what it changes of the training."""
        if not self.settings:
            return
        if not self.variant:
            yield Row("settings", "the file's own are the fastest that fit")
            return
        yield Row("settings", f"set {name_settings(self.settings)}: {self._gain_words()}")
        if self.changes_training:
            changes = ", ".join(self.changes_training)
            yield Row("settings", f"this changes the training: {changes}, as explore.settings allows")
        arguments = [key.removeprefix(ARGUMENT) for key in self.settings if key.startswith(ARGUMENT)]
        if arguments:
            yield Row("settings", f"whether {', '.join(arguments)} changes the training, your own code decides")

    @property
    def words(self) -> str:
        """The settings that belong to the recommended size, for a headline; empty for a job with one variant."""
        if not self.settings:
            return ""
        return f" with {name_settings(self.settings)}" if self.variant else " with the file's own settings"

    @property
    def base_words(self) -> str:
        """Whose smallest size is the base; empty for a job with one variant."""
        if not self.settings:
            return ""
        return " with settings that fit" if self.base_variant else " with the file's own settings"

    def is_recommended(self, point: FrontPoint, micro_batch_size: int | None) -> bool:
        """Return whether a point of the front is the recommended size with its settings."""
        return point.micro_batch_size == micro_batch_size and dict(point.settings) == dict(self.settings)

    def _gain_words(self) -> str:
        if self.settings_over_file is None:
            operations = self.operations_over_file
            cost = "" if operations is None else f"; by the trace this takes {operations:.2f}x the operations"
            return f"with the file's own settings no size fits{cost}"
        low, high = self.settings_over_file_interval or (self.settings_over_file,) * 2
        return (
            f"{self.settings_over_file:.2f}x ({low:.2f} to {high:.2f}) the speed of the file's own at their best size"
        )


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


def front_candidates(
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


def compare_with_file(
    posterior: Posterior, micro_batch_size: int, variant: int
) -> tuple[float | None, tuple[float, float] | None]:
    """Return a variant's speed over the best size of the file's own settings, and its interval; None if none runs."""
    if variant == 0:
        return 1.0, None
    own = posterior.part(0)
    open_to_choice = own.feasible.mean(axis=0) >= LIKELY_FITS
    if not open_to_choice.any():
        return None, None
    best = int(np.argmax(np.where(open_to_choice, own.mean, -np.inf)))
    chosen = posterior.log_throughput[:, posterior.index(micro_batch_size, variant)].astype(np.float64)
    gains = chosen - own.log_throughput[:, best]
    low, high = np.exp(np.quantile(gains, INTERVAL))
    return float(np.exp(gains.mean())), (float(low), float(high))


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
