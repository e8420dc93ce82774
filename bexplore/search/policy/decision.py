"""A decision of the search: the next probe, or the reason to stop."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bexplore.measurement.probe import Compilation, Probe, Purpose
from bexplore.search.policy.economics import NextProbe
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.recommendation import Recommendation
from bexplore.search.settings import SearchSettings
from bexplore.search.space import MemoryPrior

# A probe's time limit is never below so many times what it is expected to take. Source: benchmarks/results/
# sensitivity.md; expectations of an unseen size are off by up to a factor of two in simulated searches.
TIME_LIMIT_SLACK = 3.0


class StopReason(StrEnum):
    """The reason why an exploration ended; `loop.explore` may also end with its caller's own words."""

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
    """The next probe, or the reason to stop.

    Attributes:
        stop_reason: Why to stop; None to go on.
        micro_batch_size: The size to probe; 0 where the search stops.
        purpose: The reason of the probe.
        compilation: The program of the probe.
        fresh_worker: Whether a new process must run it.
        max_passes: Upper bound on timed passes.
        interleaved_with: Sizes that ran before, to be timed interleaved with it.
        expected_s: Seconds that the probe is expected to cost.
        recommendation: The current recommendation; None where nothing was measured.
        next_probe: The further probe that would save most; None where nothing can be probed.
        posterior: The posterior; None where nothing was measured.
        variant: Which variant of the job to probe.
    """

    stop_reason: StopReason | None = None
    micro_batch_size: int = 0
    purpose: Purpose = Purpose.SEARCH
    compilation: Compilation = Compilation.SHARED
    fresh_worker: bool = False
    max_passes: int = 10
    interleaved_with: tuple[int, ...] = ()
    expected_s: float = 0.0
    recommendation: Recommendation | None = None
    next_probe: NextProbe | None = None
    posterior: Posterior | None = None
    variant: int = 0

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
