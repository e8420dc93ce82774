"""The choice of sizes that a probe is timed interleaved with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bexplore.measurement.probe import Compilation, Purpose
from bexplore.measurement.statistics import Array, Index
from bexplore.search.evidence import Evidence
from bexplore.search.policy.probe_cost import PASS_SD, Costs, expected_pass_s
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.settings import SearchSettings

# sensitivity.md is benchmarks/results/sensitivity.md: what half and double of each figure do to searches.
# Noise of passes beyond which a machine is shared, and drifts. Source: that of a machine of one's own, `PASS_SD`.
SHARED_PASS_SD = PASS_SD
# Source: sensitivity.md. Sizes beside a contender; probability of being near the best below which a size is left out; a
# size is as good a comparison as the leader from this share of its probability on.
MOST_OTHERS = 3
MIN_NEAR_BEST = 0.1
AS_LIKELY = 0.75
# A round with a further contender must stay short beside the drift; two sizes with a longer round are timed alone.
# Source: on a shared machine of two cores the standard deviation of ln(A / B) of equal work was 5.2 % in rounds of 8 s,
# and 8.7 % in rounds of 16 s, as in separate visits; sensitivity.md.
MAX_ROUND_S = 4.0
MAX_ROUND_OF_TWO_S = 12.0


def interleaved_with(
    fitted: Posterior,
    finished: Sequence[Evidence],
    settings: SearchSettings,
    costs: Costs,
    *,
    index: int,
    purpose: Purpose,
    compilation: Compilation,
) -> tuple[int, ...]:
    """Return sizes that ran in the same program, to be timed interleaved with a probe.

    A screened size is compared with one of the best, the quickest of those about as likely near the best; contenders
    with all others that keep a round short. None on a machine whose passes repeat well, unless the search began
    interleaved; none whose rounds are longer than the drift; none where every size has a program or a process of its
    own.
    """
    if compilation not in (Compilation.SHARED, Compilation.EAGER) or compilation is not settings.search_compilation:
        return ()
    if costs.pass_sd <= SHARED_PASS_SD and not any(item.interleaved for item in finished):
        return ()
    same_program = [item for item in finished if item.is_measured and item.compilation is compilation]
    ran = [size for item in same_program for size in item.timed_sizes]
    pass_s = expected_pass_s(fitted)
    is_short = pass_s + pass_s[index] <= MAX_ROUND_OF_TWO_S
    is_other = np.arange(len(fitted.sizes)) != index
    others = np.flatnonzero(fitted.open & np.isin(fitted.sizes, ran) & is_short & is_other)
    if not len(others):
        return ()
    near = fitted.near_best(settings.tolerance).mean(axis=0)
    if purpose in (Purpose.SEARCH, Purpose.BASE):
        as_good = others[near[others] >= AS_LIKELY * near[others].max()]
        chosen = [as_good[np.argmin(pass_s[as_good])]]
    else:
        chosen = _contenders(others, near, pass_s, round_s=float(pass_s[index]))
    return tuple(int(fitted.sizes[i]) for i in chosen)


def _contenders(others: Index, near: Array, pass_s: Array, *, round_s: float) -> list[np.intp]:
    """Return the size most likely near the best, and further ones that are likely enough and fit into the round."""
    leader, *rest = others[np.argsort(-near[others], kind="stable")]
    chosen, round_s = [leader], round_s + float(pass_s[leader])
    for other in rest:
        if len(chosen) == MOST_OTHERS or near[other] < MIN_NEAR_BEST:
            break
        if round_s + pass_s[other] <= MAX_ROUND_S:
            chosen.append(other)
            round_s += float(pass_s[other])
    return chosen
