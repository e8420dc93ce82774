"""The settings of one search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bexplore.job.batching import INDIFFERENCE_ZONE
from bexplore.measurement.probe import Compilation

# Of a joint search: probes more for each further variant, and the share of the uncertainty that a search of one
# variant may leave. Source: benchmarks/results/sensitivity.md, variants; settings_search.md there.
PROBES_OF_VARIANT = 6
SHARE_OF_UNCERTAINTY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How long to search, for what, and the cost of a probe."""

    tolerance: float = INDIFFERENCE_ZONE  # the indifference zone: sizes within this share of each other count as equal
    target_confidence: int = 90  # stop at this score (0 to 98)
    max_probes: int = 16  # stop after this many probes, the exact verification included
    time_budget_s: float | None = None  # stop after this many seconds; None for `training_share`
    training_share: float = 0.1  # share of the training's time, after which to stop
    # Seconds of the training. A probe that saves less than it costs is not worth running.
    training_time_s: float = 36_000.0
    # Samples of the training, of one replica, which give its seconds; None where unknown.
    training_samples: int | None = None
    seed: int = 0  # of the posterior's draws
    search_compilation: Compilation = Compilation.SHARED  # program of the search's probes
    user_compilation: Compilation = Compilation.EXACT  # program of the training
    verify_exact: bool = True  # run the winner once more in the user's own compilation, where the search used another
    max_passes: int = 10  # upper bound on timed passes of a probe
    probe_time_limit_s: float | None = None  # a probe ends as `timed_out` beyond it; None for no limit
    start_time_s: float = 5.0  # seconds to start a worker; a guess until one was started
    compile_time_s: float = 30.0  # seconds to compile; a guess until something was compiled
    least_passes_s: float = 0.0  # seconds that the passes of a probe take at least, however short one is
    repeats: bool = True  # whether a further probe of a size may show another speed; not where speeds are estimated
    keeps_programs: bool = True  # whether each variant of a job keeps a worker with its program while others are probed

    def of_variants(self, num_variants: int) -> SearchSettings:
        """Return the settings of a search over variants: with several it goes on for longer, as more can be gained."""
        if num_variants < 2:
            return self
        return dataclasses.replace(
            self,
            max_probes=self.max_probes + PROBES_OF_VARIANT * (num_variants - 1),
            target_confidence=int(100 - SHARE_OF_UNCERTAINTY * (100 - self.target_confidence)),
        )
