"""Whether the search goes on at reduced depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation
from bexplore.search.evidence import Evidence
from bexplore.search.policy.probe_cost import PROBE_SD, Costs, expected_pass_s
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.settings import SearchSettings

EXPECTED_PROBES = 7  # of a search; what is seen in simulated and recorded jobs
CLEARLY_CHEAPER = 0.7  # of the seconds at whole depth: what is extrapolated must be well worth it


def search_compilation(
    fitted: Posterior, finished: Sequence[Evidence], settings: SearchSettings, costs: Costs
) -> Compilation:
    """The program of the search's next probe.

    The first probe runs the whole depth: its seconds tell what the rest of the search would cost there. A search that
    has begun at reduced depth stays there; one whose model did not run there never asks for it again.
    """
    if settings.depths is None or settings.search_compilation is not Compilation.SHARED:
        return settings.search_compilation
    if any(item.needs_full_depth for item in finished):
        return settings.search_compilation
    has_begun = any(item.compilation is Compilation.REDUCED for item in finished)
    if has_begun or settings.forces_reduced_depth:
        return Compilation.REDUCED
    pays = _is_precise(settings.depths, costs) and _is_cheaper(fitted, len(finished), settings, costs)
    return Compilation.REDUCED if pays else settings.search_compilation


def _is_precise(depths: Depths, costs: Costs) -> bool:
    """Whether the passes of this machine repeat so well that a probe is still worth its name once extrapolated."""
    extrapolated_sd = costs.pass_sd * math.sqrt(depths.variance_factor)
    return extrapolated_sd / math.sqrt(costs.max_passes) <= PROBE_SD


def _is_cheaper(fitted: Posterior, num_finished: int, settings: SearchSettings, costs: Costs) -> bool:
    """Whether the rest of the search costs clearly less with two more compilations and shallow passes."""
    likely_best = np.bincount(fitted.values.argmax(axis=1), minlength=len(fitted.sizes)) / len(fitted.values)
    pass_s = np.array(float(likely_best @ expected_pass_s(fitted)))
    probes_left = max(EXPECTED_PROBES - num_finished, 1)
    whole_s = probes_left * costs.of(pass_s, compilation=Compilation.SHARED, fresh_worker=False)
    reduced_s = 2.0 * (costs.start_s + costs.compile_s) + costs.reduced_share * whole_s
    return float(reduced_s) < CLEARLY_CHEAPER * float(whole_s)
