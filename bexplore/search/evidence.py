"""Evidence: an observation in short, small enough to live in an Optuna trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bexplore.errors import find_failing_line
from bexplore.measurement.probe import Compilation, Observation, Outcome, Purpose, needed_bytes

# Shares of CPU contention below which a machine counts as quiet: of the processors, and of a pass. Source: a quiet
# machine has up to 2 % of either; benchmarks/results/sensitivity.md.
CONTENTION_IGNORED = 0.02
WAITING_IGNORED = 0.05
# Share of the contention that remains where sizes were interleaved; the rest is common to all of them. Source:
# benchmarks/results/sensitivity.md.
CONTENTION_INTERLEAVED = 0.25
# ln(samples/s), of CPU contention above which a probe does not count as grounds. Source: the gap at which a size
# is worth nothing (`GAP_SCALE`); benchmarks/results/sensitivity.md.
HIDDEN_SD = 0.1
MOST_SCHEDULER_WAIT = 0.99  # share of a pass. Source: keeps a logarithm finite
ROUNDING = 1e-6  # Source: above the rounding error of a whole number of timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """The estimate of another size that was timed interleaved with a probe's own."""

    micro_batch_size: int  # samples of one pass
    log_throughput: float  # ln(samples/s), comparable within the probe
    log_throughput_se: float  # its standard error, without what the probe's sizes share; NaN where unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the posterior needs of one probe."""

    micro_batch_size: int  # samples of one pass
    outcome: Outcome | None  # how it ended; None while it is in flight
    reason: str = ""  # why, for people
    failing_line: str = ""  # the line of the user's source that raised; empty for none
    log_throughput: float = math.nan  # ln(samples/s) of the median pass; NaN where nothing was timed
    # Its standard error within the probe, without what the probe's sizes share; NaN where unknown.
    log_throughput_se: float = math.nan
    interleaved: tuple[Interleaved, ...] = ()  # estimates of the other sizes of the probe
    # Standard deviation that CPU contention adds to `log_throughput`, invisible to the passes.
    contention_sd: float = 0.0
    num_passes: int = 0  # timed passes that count; of interleaved sizes, undisturbed rounds
    purpose: Purpose = Purpose.SEARCH  # why it was made
    compilation: Compilation = Compilation.SHARED  # program that ran
    peak_memory_bytes: int | None = None  # peak of the live tensors; None where unknown
    resident_memory_bytes: int | None = None  # as in `Observation`
    num_alloc_retries: int = 0  # as in `Observation`
    memory_budget_bytes: int | None = None  # budget in force; None where unknown
    start_time_s: float = 0.0  # seconds to start a worker; 0 where none was started
    compile_time_s: float = 0.0  # seconds to compile; 0 where nothing was compiled
    update_time_s: float = 0.0  # median seconds of an update; 0 where none was timed
    elapsed_s: float = 0.0  # seconds of the whole probe
    max_samples: int | None = None  # as in `Observation`
    variant: int = 0  # which variant of the job ran
    start_ended: bool = False  # whether its start of a command serves no other size
    ended_by: str = ""  # the signal that ended its process, where nothing shows that memory was short; empty for none

    @property
    def timed_sizes(self) -> tuple[int, ...]:
        """Its own size, and those that were timed interleaved with it."""
        return (self.micro_batch_size, *(other.micro_batch_size for other in self.interleaved))

    @property
    def log_pass_sd(self) -> float:
        """Noise between two passes, ln; NaN where unknown."""
        return self.log_throughput_se * math.sqrt(self.num_passes)

    @property
    def is_measured(self) -> bool:
        """Whether there is a throughput."""
        return self.outcome is not None and self.outcome.has_times

    @property
    def is_beyond_data(self) -> bool:
        """Whether it failed because the data has too few samples: this says nothing of sizes that the data fills."""
        return not self.is_measured and self.max_samples is not None and self.micro_batch_size > self.max_samples

    @property
    def is_clear(self) -> bool:
        """Whether CPU contention is too small to hide the size."""
        return self.contention_sd <= HIDDEN_SD

    @property
    def needed_memory_bytes(self) -> int | None:
        """Bytes that must fit the budget; None where unknown."""
        return needed_bytes(self.peak_memory_bytes, self.resident_memory_bytes)

    @classmethod
    def from_observation(cls, observation: Observation) -> Evidence:
        """Return the evidence in an observation; one that is not measured has no throughput, even if it was timed."""
        size, is_measured = observation.micro_batch_size, observation.is_measured
        update_s = observation.update_time_s
        contention_sd = _contention_sd(observation.background_cpu_share, observation.scheduler_wait_fraction)
        estimates = observation.estimates
        num_timings = min(estimate.num_timings for estimate in estimates.values())
        own = estimates.pop(size)
        return cls(
            micro_batch_size=size,
            outcome=observation.outcome,
            reason=observation.reason,
            failing_line=find_failing_line(observation.traceback_text),
            log_throughput=own.log_throughput(size) if is_measured else math.nan,
            log_throughput_se=own.log_se,
            interleaved=tuple(
                Interleaved(
                    micro_batch_size=other,
                    log_throughput=estimate.log_throughput(other),
                    log_throughput_se=estimate.log_se,
                )
                for other, estimate in estimates.items()
                if is_measured
            ),
            contention_sd=contention_sd * (CONTENTION_INTERLEAVED if estimates else 1.0),
            num_passes=max(math.floor(num_timings + ROUNDING), 1) if num_timings else 0,
            purpose=observation.probe.purpose,
            compilation=observation.probe.compilation,
            peak_memory_bytes=observation.peak_memory_bytes,
            resident_memory_bytes=observation.resident_memory_bytes,
            num_alloc_retries=observation.num_alloc_retries,
            memory_budget_bytes=observation.memory_budget_bytes,
            start_time_s=observation.start_time_s,
            compile_time_s=observation.compile_time_s,
            update_time_s=0.0 if math.isnan(update_s) else update_s,
            elapsed_s=observation.elapsed_s,
            max_samples=observation.max_samples,
            variant=observation.probe.variant,
            start_ended=observation.details.get("start_ended", False),
            ended_by=observation.details.get("ended_by", ""),
        )


def without_first_signals(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence without the first probe of each size that a signal ended: it may have come from outside."""
    told: set[tuple[int, int]] = set()
    kept = []
    for item in evidence:
        own = item.micro_batch_size, item.variant
        if item.ended_by and own not in told:
            told.add(own)
        else:
            kept.append(item)
    return kept


def _contention_sd(background_cpu_share: float | None, scheduler_wait_fraction: float | None) -> float:
    """Return the standard deviation, ln, that CPU contention adds to a throughput; 0 for a quiet machine.

    Args:
        background_cpu_share: Share of the processors that other processes used. Their cost is a factor between 1 and
            1 / (1 - share), for whose spread the share stands.
        scheduler_wait_fraction: Share of a pass for which a thread waited for a processor: without contention the pass
            might have taken 1 - share of its time. Threads that wait for each other make this far more than the first.
    """
    sds = [share for share in (background_cpu_share,) if share is not None and share > CONTENTION_IGNORED]
    if scheduler_wait_fraction is not None and scheduler_wait_fraction > WAITING_IGNORED:
        sds.append(-math.log1p(-min(scheduler_wait_fraction, MOST_SCHEDULER_WAIT)))
    return max(sds, default=0.0)
