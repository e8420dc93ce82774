"""The cost of a probe in seconds, and the passes that it should time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bexplore.measurement.probe import Compilation, Outcome
from bexplore.measurement.statistics import Array
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.settings import SearchSettings

# sensitivity.md is benchmarks/results/sensitivity.md: what half and double of each figure do to searches.
WARM_UP_PASSES = 3  # Source: the passes that the engine runs untimed after a compilation
MIN_PASSES = 4  # Source: sensitivity.md
# Source: sensitivity.md. Times the passes of the least variance per second: a wrong winner is dearer than a pass.
PASS_CAUTION = 2.0
# Source: the repeats of the recorded sweeps, benchmarks/curves; sensitivity.md. ln(pass time) between passes until a
# probe shows it; ln(samples/s) between probes of one size.
PASS_SD, PROBE_SD = 0.015, 0.01
UPDATES = 2.0  # of a probe. Source: one warm-up and one timed update
SLOW_SDS = 0.5  # of the posterior, by which an expected pass is pessimistic. Source: sensitivity.md


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that a probe costs, learnt from the probes so far."""

    start_s: float  # to start a worker
    compile_s: float  # to compile one program
    update_s: float  # updates of one probe
    warm_search: Compilation | None  # the search's program that a warm worker holds; None for none
    pass_sd: float  # noise between two passes, ln
    max_passes: int  # upper bound on timed passes of a probe
    spent_s: float  # of all probes so far; a start and a compilation at least
    least_passes_s: float = 0.0  # of the passes of a probe at least
    # What a probe in a warm worker takes beyond its passes, and these beyond the own size's: other sizes are timed in
    # turn with it, batches of many lengths stand for one, and a step's memory is read.
    overhead_s: float = 0.0
    times_passes: float = 1.0

    @classmethod
    def learnt(cls, evidence: Sequence[Evidence], settings: SearchSettings) -> Costs:
        """Return the medians of the probes so far; the settings' guesses where there are none."""
        starts = [item.start_time_s for item in evidence if item.start_time_s > 0]
        compiles = [item.compile_time_s for item in evidence if item.compile_time_s > 0]
        updates = [item.update_time_s for item in evidence if item.update_time_s > 0]
        noise = [item.log_pass_sd for item in evidence if item.num_passes >= 2 and math.isfinite(item.log_pass_sd)]
        last = evidence[-1] if evidence else None
        is_warm = last is not None and _left_a_worker(evidence) and last.compilation is not Compilation.EXACT
        costs = cls(
            start_s=float(np.median(starts)) if starts else settings.start_time_s,
            compile_s=float(np.median(compiles)) if compiles else settings.compile_time_s,
            update_s=UPDATES * float(np.median(updates)) if updates else 0.0,
            warm_search=last.compilation if last is not None and is_warm else None,
            pass_sd=float(np.median(noise)) if noise else PASS_SD,
            max_passes=settings.max_passes,
            spent_s=max(sum(item.elapsed_s for item in evidence), settings.start_time_s + settings.compile_time_s),
            least_passes_s=settings.least_passes_s,
        )
        overhead_s, times_passes = costs._fit_warm(evidence, settings.search_compilation)
        return dataclasses.replace(costs, overhead_s=overhead_s, times_passes=times_passes)

    def _fit_warm(self, evidence: Sequence[Evidence], compilation: Compilation) -> tuple[float, float]:
        """Return `overhead_s` and `times_passes` by the least squares of relative errors over the warm probes so far.

        Both are at least those of passes alone: what a probe is known to do is not learnt away.
        """
        warm = [
            item
            for item in evidence
            if item.is_measured
            and item.elapsed_s > 0
            and item.compilation is compilation
            and not (item.start_time_s or item.compile_time_s)
        ]
        if not warm:
            return 0.0, 1.0
        took_s = np.array([item.elapsed_s for item in warm])
        pass_s = np.array([item.micro_batch_size / math.exp(item.log_throughput) for item in warm])
        passes_s = self._passes_s(pass_s, self.update_s)
        columns = np.stack([1.0 / took_s, passes_s / took_s], axis=1)
        beyond = 1.0 - (self.update_s + passes_s) / took_s
        both = np.linalg.lstsq(columns, beyond, rcond=None)[0]
        if (both < 0.0).any():
            each = np.maximum(columns.T @ beyond / np.square(columns).sum(axis=0), 0.0)
            left = np.square(beyond[:, None] - columns * each).sum(axis=0)
            both = np.where(np.arange(2) == np.argmin(left), each, 0.0)
        return float(both[0]), float(1.0 + both[1])

    def estimate_s(
        self, pass_s: Array, *, compilation: Compilation, fresh_worker: bool, others_s: float = 0.0
    ) -> Array:
        """Return the seconds of a probe whose pass takes `pass_s`.

        `others_s` are the seconds of the passes of other sizes that are timed in turn with it. What was learnt from
        probes holds those of such probes already, so that they are not added to it.
        """
        fixed = self._fixed_s(compilation, fresh_worker)
        passes_s = self._passes_s(pass_s, fixed)
        return fixed + np.maximum(self.overhead_s + self.times_passes * passes_s, passes_s + others_s)

    @property
    def program_s(self) -> float:
        """Seconds to start a worker and to compile."""
        return self.start_s + self.compile_s

    def fewest_passes_s(self, pass_s: Array) -> Array:
        """Return the seconds of the passes of a probe that times as few as it may."""
        return (WARM_UP_PASSES + MIN_PASSES) * pass_s

    def passes(self, pass_s: float, *, compilation: Compilation, fresh_worker: bool) -> int:
        """Return how many passes to time: more where a probe is dear and a pass is cheap."""
        return int(self._passes(np.array(pass_s), self._fixed_s(compilation, fresh_worker)))

    def _fixed_s(self, compilation: Compilation, fresh_worker: bool) -> float:
        if compilation is self.warm_search and not fresh_worker:
            return self.update_s
        compile_s = 0.0 if compilation is Compilation.EAGER else self.compile_s
        return self.update_s + self.start_s + compile_s

    def _passes_s(self, pass_s: Array, fixed_s: float) -> Array:
        passes_s = (WARM_UP_PASSES + self._passes(pass_s, fixed_s)) * pass_s
        return np.asarray(np.maximum(passes_s, self.least_passes_s))

    def _passes(self, pass_s: Array, fixed_s: float) -> Array:
        """Return the timed passes; n = (sd within / sd between) sqrt(fixed cost / pass cost) is the most efficient.

        Source: the optimal size of a cluster in two-stage sampling, Cochran, "Sampling Techniques", section 10.6.
        """
        others_s = fixed_s + WARM_UP_PASSES * pass_s
        best = PASS_CAUTION * self.pass_sd / PROBE_SD * np.sqrt(others_s / np.maximum(pass_s, 1e-9))
        return np.clip(np.ceil(best), min(MIN_PASSES, self.max_passes), self.max_passes)


def _left_a_worker(evidence: Sequence[Evidence]) -> bool:
    """Return whether the last probe's process lives on, as after an out-of-memory above every size that ran."""
    *earlier, last = evidence
    if last.start_ended:
        return False
    largest = max((item.micro_batch_size for item in earlier if item.is_measured), default=0)
    return last.is_measured or (last.outcome is Outcome.OUT_OF_MEMORY and last.micro_batch_size > largest > 0)


def expected_pass_s(posterior: Posterior) -> Array:
    """Return (D,), seconds of a pass, pessimistic where the posterior is wide."""
    slow = posterior.mean - SLOW_SDS * posterior.log_throughput.std(axis=0)
    return posterior.sizes / np.exp(slow)
