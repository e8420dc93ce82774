"""A decision of the search: the next probe, or the reason to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bexplore.measurement.probe import Compilation, Probe, Purpose
from bexplore.measurement.statistics import Array, Index
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.recommendation import Recommendation
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryPrior

# Source: benchmarks/results/stopping.md. Of its predicted saving, the share of the training that a probe of a new size
# does not save, and the share of the rest that it does; what a repeat is predicted to save is true as it is.
UNSEEN_SAVING, SHARE_OF_NEW = 0.0015, 0.6
# A probe must be expected to save this many times its cost: beyond the target score; and where all probes would cost
# more than one of each candidate (a repeat: more than a share of that), or the winner was verified. Source:
# benchmarks/results/stopping.md, what each limit costs in all.
TIMES_BEYOND_TARGET, TIMES_BEYOND_A_SWEEP, REPEAT_SHARE_OF_SWEEP = 1.25, 4.0, 0.9
# A probe's time limit is never below so many times what it is expected to take. Source: benchmarks/results/
# sensitivity.md; expectations of an unseen size are off by up to a factor of two in simulated searches.
TIME_LIMIT_SLACK = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NextProbe:
    """The further probe that is expected to save most after its own cost."""

    index: int  # its position in the posterior's domain
    micro_batch_size: int  # the size that it would run
    saves: float  # share of a training's time that it is expected to save, 0 to 1
    cost_s: float  # seconds that it is expected to cost
    training_time_s: float  # seconds of the training
    least_times: float = 1.0  # how many times its cost it must be expected to save

    @property
    def pays(self) -> bool:
        """Whether it is expected to save more than it must."""
        return self.savings_over_cost > self.least_times

    @property
    def savings_over_cost(self) -> float:
        """Seconds of the training that it is expected to save, per second that it costs."""
        return self.saves * self.training_time_s / max(self.cost_s, 1e-9)


def next_probe(
    posterior: Posterior,
    settings: SearchSettings,
    *,
    leader: int,
    candidates: Index,
    cost_s: Array,
    least_times: Array,
) -> NextProbe:
    """Return the candidate whose probe is expected to save most, less what it must save.

    Args:
        leader: Position of the recommended size in the domain.
        candidates: (C,), positions of the sizes that may be probed; at least one.
        cost_s: (C,), seconds of each probe.
        least_times: (C,), how many times its cost each must be expected to save.
    """
    training_s = training_time_s(posterior, settings, leader)
    predicted = expected_savings(posterior, leader=leader, candidates=candidates)
    of_new = SHARE_OF_NEW * np.maximum(predicted - UNSEEN_SAVING, 0.0)
    saves = np.where(posterior.measured[candidates] > 0, predicted, of_new)
    best = int(np.argmax(saves * training_s - least_times * cost_s))
    return NextProbe(
        index=int(candidates[best]),
        micro_batch_size=int(posterior.sizes[candidates[best]]),
        saves=float(saves[best]),
        cost_s=float(cost_s[best]),
        training_time_s=training_s,
        least_times=float(least_times[best]),
    )


def training_time_s(posterior: Posterior, settings: SearchSettings, leader: int) -> float:
    """Return the seconds of the training at the recommended size."""
    if settings.training_samples is None:
        return settings.training_time_s
    return settings.training_samples / math.exp(posterior.mean[leader])


def expected_savings(posterior: Posterior, *, leader: int, candidates: Index) -> Array:
    """Return (C,), share of the training's time that each probe is expected to save by the recommendation after it.

    Source: the expected value of sample information by moment matching (Heath, Manolopoulou and Baio, "Estimating the
    expected value of sample information across different sample sizes using moment matching and nonlinear regression",
    2019): draws of the gain over the leader, shrunk by its correlation with the outcome of a noisy probe.
    """
    challenger = _challenger(posterior, leader)
    against = np.where(candidates == leader, challenger, candidates)
    fits = posterior.feasible[:, against]
    gains = np.where(fits, posterior.log_throughput[:, against] - posterior.log_throughput[:, [leader]], 0.0)
    count = np.maximum(fits.sum(axis=0), 1)
    mean = gains.sum(axis=0) / count
    deviation = np.where(fits, gains - mean, 0.0)
    variance = (deviation**2).sum(axis=0) / count
    probed = posterior.log_throughput[:, candidates].astype(np.float64)
    probed = np.where(fits, probed - probed.mean(axis=0), 0.0)
    outcome_variance = (probed**2).sum(axis=0) / count + np.mean(posterior.probe_sd**2)
    covariance = (deviation * probed).sum(axis=0) / count
    explained = np.abs(covariance) / np.sqrt(np.maximum(variance * outcome_variance, 1e-30))
    after = np.maximum(mean + explained * deviation, 0.0)
    now = np.maximum(mean, 0.0) * (posterior.measured[against] > 0)
    gained = np.maximum((after * fits).sum(axis=0) / len(fits) - now, 0.0)  # ln(samples/s)
    return np.asarray(-np.expm1(-gained))


def _challenger(posterior: Posterior, leader: int) -> int:
    """Return the measured size with the next highest throughput, the answer if the leader turns out slower."""
    rivals = np.where((posterior.measured > 0) & posterior.open, posterior.mean, -np.inf)
    rivals[leader] = -np.inf
    return int(np.argmax(rivals)) if np.isfinite(rivals).any() else leader


class StopReason(StrEnum):
    """The reason why an exploration ended; `loop.run_search` may also end with its caller's own words."""

    TARGET_CONFIDENCE = "target_confidence"
    COSTS_MORE_THAN_IT_SAVES = "costs_more_than_it_saves"
    NOTHING_LEFT = "nothing_left"
    MAX_PROBES = "max_probes"
    TIME_BUDGET = "time_budget"
    INTERRUPTED = "interrupted"
    NOTHING_FITS = "nothing_fits"
    BROKEN_PROGRAM = "broken_program"
    NOTHING_MEASURED = "nothing_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next probe, or the reason to stop."""

    stop_reason: StopReason | None = None  # why to stop; None to go on
    micro_batch_size: int = 0  # the size to probe; 0 where the search stops
    purpose: Purpose = Purpose.SEARCH  # the reason of the probe
    compilation: Compilation = Compilation.SHARED  # the program of the probe
    fresh_worker: bool = False  # whether a new process must run it
    max_passes: int = 10  # upper bound on timed passes
    interleaved_with: tuple[int, ...] = ()  # sizes that ran before, to be timed interleaved with it
    expected_s: float = 0.0  # seconds that the probe is expected to cost
    recommendation: Recommendation | None = None  # the current recommendation; None where nothing was measured
    next_probe: NextProbe | None = None  # the further probe that would save most; None where nothing can be probed
    posterior: Posterior | None = None  # the posterior; None where nothing was measured
    variant: int = 0  # which variant of the job to probe

    def probe(self, number: int, settings: SearchSettings, memory: MemoryPrior | None) -> Probe:
        """Return the probe of this decision."""
        predicted = memory.peak_bytes(self.micro_batch_size) if memory and memory.peak_bytes else None
        limit = settings.probe_time_limit_s
        return Probe(
            number=number,
            micro_batch_size=self.micro_batch_size,
            compilation=self.compilation,
            purpose=self.purpose,
            fresh_worker=self.fresh_worker,
            max_passes=self.max_passes,
            predicted_peak_memory_bytes=None if predicted is None else round(predicted),
            time_limit_s=None if limit is None else max(limit, TIME_LIMIT_SLACK * self.expected_s),
            tolerance=settings.tolerance,
            interleaved_with=self.interleaved_with,
            variant=self.variant,
        )
