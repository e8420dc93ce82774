"""What a probe costs in seconds, and how many passes it should time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation, Outcome
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.settings import SearchSettings

Array = NDArray[np.float64]

WARM_UP_PASSES = 3
MIN_PASSES = 4
PASS_CAUTION = 2.0  # times the passes that give the least variance per second: a wrong winner is dearer than a pass
PASS_SD = 0.015  # ln(pass time), until a probe knows better
PROBE_SD = 0.01  # ln(samples/s), between probes of one size


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that a probe costs, learnt from the probes so far.

    Attributes:
        start_s: To start a worker.
        compile_s: To compile one program.
        update_s: Updates of one probe.
        warm_search: The program of the search that a worker has compiled and still holds; None for none.
        pass_sd: Noise between two passes, ln.
        max_passes: Upper bound on timed passes of a probe.
        spent_s: Of all probes so far; a start and a compilation at least.
        reduced_share: What a pass at both reduced depths costs, as a share of one at the whole depth.
    """

    start_s: float
    compile_s: float
    update_s: float
    warm_search: Compilation | None
    pass_sd: float
    max_passes: int
    spent_s: float
    reduced_share: float = 1.0

    @classmethod
    def learnt(cls, evidence: Sequence[Evidence], settings: SearchSettings) -> Costs:
        """What the probes so far say; the settings' guesses where none says anything."""
        starts = [item.start_time_s for item in evidence if item.start_time_s > 0]
        compiles = [item.compile_time_s for item in evidence if item.compile_time_s > 0]
        updates = [item.update_time_s for item in evidence if item.update_time_s > 0]
        noise = [item.log_pass_sd for item in evidence if item.num_passes >= 2 and math.isfinite(item.log_pass_sd)]
        last = evidence[-1] if evidence else None
        is_warm = last is not None and _left_a_worker(evidence) and last.compilation is not Compilation.EXACT
        return cls(
            start_s=float(np.median(starts)) if starts else settings.start_time_s,
            compile_s=float(np.median(compiles)) if compiles else settings.compile_time_s,
            update_s=2.0 * float(np.median(updates)) if updates else 0.0,
            warm_search=last.compilation if last is not None and is_warm else None,
            pass_sd=float(np.median(noise)) if noise else PASS_SD,
            max_passes=settings.max_passes,
            spent_s=max(sum(item.elapsed_s for item in evidence), settings.start_time_s + settings.compile_time_s),
            reduced_share=settings.depths.cost_share if settings.depths else 1.0,
        )

    def of(self, pass_s: Array, *, compilation: Compilation, fresh_worker: bool) -> Array:
        """Seconds of a probe whose pass takes `pass_s` at the whole depth."""
        if compilation is Compilation.REDUCED:
            pass_s = self.reduced_share * pass_s
        fixed = self._fixed_s(compilation, fresh_worker)
        return fixed + (WARM_UP_PASSES + self._passes(pass_s, fixed)) * pass_s

    @property
    def program_s(self) -> float:
        """Seconds until a program runs: to start a worker and to compile."""
        return self.start_s + self.compile_s

    def fewest_passes_s(self, pass_s: Array) -> Array:
        """Seconds of the passes of a probe that times as few as it may."""
        return (WARM_UP_PASSES + MIN_PASSES) * pass_s

    def passes(self, pass_s: float, *, compilation: Compilation, fresh_worker: bool) -> int:
        """How many passes to time: more where a probe is dear and a pass is cheap."""
        if compilation is Compilation.REDUCED:
            pass_s = self.reduced_share * pass_s
        return int(self._passes(np.array(pass_s), self._fixed_s(compilation, fresh_worker)))

    def _fixed_s(self, compilation: Compilation, fresh_worker: bool) -> float:
        if compilation is self.warm_search and not fresh_worker:
            return self.update_s
        programs = 2 if compilation is Compilation.REDUCED else 1
        compile_s = 0.0 if compilation is Compilation.EAGER else self.compile_s
        return self.update_s + programs * (self.start_s + compile_s)

    def _passes(self, pass_s: Array, fixed_s: float) -> Array:
        """Timed passes; n = (sd within / sd between) sqrt(fixed cost / pass cost) has the least variance per second.

        Source: the optimal size of a cluster in two-stage sampling, Cochran, "Sampling Techniques", section 10.6.
        """
        others_s = fixed_s + WARM_UP_PASSES * pass_s
        best = PASS_CAUTION * self.pass_sd / PROBE_SD * np.sqrt(others_s / np.maximum(pass_s, 1e-9))
        return np.clip(np.ceil(best), min(MIN_PASSES, self.max_passes), self.max_passes)


def _left_a_worker(evidence: Sequence[Evidence]) -> bool:
    """Whether the last probe's process goes on: as after a refusal that no larger size refutes."""
    *earlier, last = evidence
    largest = max((item.micro_batch_size for item in earlier if item.is_measured), default=0)
    return last.is_measured or (last.outcome is Outcome.OUT_OF_MEMORY and last.micro_batch_size > largest > 0)


def expected_pass_s(posterior: Posterior) -> Array:
    """(D,), seconds of a pass, pessimistic where little is known."""
    slow = posterior.mean - 0.5 * posterior.log_throughput.std(axis=0)
    return posterior.sizes / np.exp(slow)
