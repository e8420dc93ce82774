"""Which sizes a probe is timed in turns with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bexplore.policy.costs import PASS_SD, Costs
from bexplore.posterior import Posterior
from bexplore.posterior.evidence import Evidence
from bexplore.probe import Compilation, Purpose
from bexplore.recommendation import SearchSettings

# Beyond the noise of passes that is expected of a machine of one's own, it is shared, and wanders.
WANDERING_PASS_SD = PASS_SD
MOST_OTHERS = 3  # sizes that take turns with a contender
MIN_NEAR_BEST = 0.1  # a size less likely near the best than this has no turn


def in_turn_with(
    fitted: Posterior,
    finished: Sequence[Evidence],
    settings: SearchSettings,
    costs: Costs,
    *,
    index: int,
    purpose: Purpose,
    compilation: Compilation,
) -> tuple[int, ...]:
    """Sizes that ran in the same program and take turns with a probe: what it is held against.

    A size that is only looked at is held against the leader; where contenders are told apart, all of them take part.
    None on a machine whose passes repeat well, which would gain nothing, unless the search began so; and none where
    every size is a program or a process of its own.
    """
    if compilation not in (Compilation.SHARED, Compilation.EAGER) or compilation is not settings.search_compilation:
        return ()
    if costs.pass_sd <= WANDERING_PASS_SD and not any(item.in_turn for item in finished):
        return ()
    ran = {
        size for item in finished if item.is_measured and item.compilation is compilation for size in item.timed_sizes
    }
    near = np.where(
        fitted.open & np.isin(fitted.sizes, list(ran)), fitted.near_best(settings.tolerance).mean(axis=0), -1.0
    )
    near[index] = -1.0
    order = np.argsort(-near, kind="stable")
    leader = [int(order[0])] if near[order[0]] >= 0.0 else []
    contenders = [int(i) for i in order[1:MOST_OTHERS] if near[i] >= MIN_NEAR_BEST]
    is_looked_at = purpose in (Purpose.SEARCH, Purpose.BASE)
    return tuple(int(fitted.sizes[i]) for i in (leader if is_looked_at else leader + contenders))
