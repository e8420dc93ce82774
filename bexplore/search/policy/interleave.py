"""Which sizes a probe is timed in turns with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation, Purpose
from bexplore.search.evidence import Evidence
from bexplore.search.policy.probe_cost import PASS_SD, Costs, expected_pass_s
from bexplore.search.posterior.posterior import Posterior
from bexplore.search.settings import SearchSettings

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Beyond the noise of passes that is expected of a machine of one's own, it is shared, and wanders.
SHARED_PASS_SD = PASS_SD
MOST_OTHERS = 3  # sizes that take turns with a contender
MIN_NEAR_BEST = 0.1  # a size less likely near the best than this has no turn
AS_LIKELY = 0.75  # of the leader's probability: a size that is as good to be held against, where it is quicker
MAX_ROUND_S = 4.0  # a further contender must not make a round longer: it would not be short beside the wandering
# Two sizes whose round would be longer are timed alone. On a shared machine of two cores the standard deviation of
# ln(A / B) of equal work was 5.2 % in rounds of 8 s, and 8.7 % in rounds of 16 s, which is what visits apart have.
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
    """Sizes that ran in the same program and take turns with a probe: what it is held against.

    A size that is only looked at is held against one of the best, the quickest of those that are about as likely near
    the best; where contenders are told apart, all take part that keep a round short. None on a machine whose passes
    repeat well, which would gain nothing, unless the search began so; none whose passes are so long that the machine
    wanders within a round; and none where every size is a program or a process of its own.
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
    """The one that is most likely near the best, and those after it that are likely enough and fit into the round."""
    leader, *rest = others[np.argsort(-near[others], kind="stable")]
    chosen, round_s = [leader], round_s + float(pass_s[leader])
    for other in rest:
        if len(chosen) == MOST_OTHERS or near[other] < MIN_NEAR_BEST:
            break
        if round_s + pass_s[other] <= MAX_ROUND_S:
            chosen.append(other)
            round_s += float(pass_s[other])
    return chosen
