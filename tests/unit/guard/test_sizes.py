"""The sizes beside the recommended one."""

from __future__ import annotations

from bexplore.guard import Status
from bexplore.guard.baseline import SizeTimes
from bexplore.guard.sizes import check_still_wins, choose_sizes
from tests.unit.guard.builders import worker


def test_the_sizes_around_the_recommended_one_stay_within_what_fits():
    assert choose_sizes(16, 1, maximum=None, fits=None) == (1, 8, 16, 32)
    assert choose_sizes(16, 1, maximum=None, fits=20) == (1, 8, 16)
    assert choose_sizes(1, None, maximum=64, fits=None) == (1, 2)


def test_the_recommended_size_wins_until_a_neighbour_is_clearly_faster():
    level = [worker(s8=10.0, s16=19.9), worker(s8=10.1, s16=20.0), worker(s8=10.0, s16=20.1)]
    beaten = [worker(s8=10.0, s16=17.0), worker(s8=10.1, s16=17.2), worker(s8=10.0, s16=17.1)]

    (fine,) = check_still_wins(level, 8, 0.03)
    (stale,) = check_still_wins(beaten, 8, 0.03)

    assert fine.status is Status.SAME
    assert (stale.status, stale.after) == (Status.CHANGED, "16")


def test_a_neighbour_that_wins_by_the_scheduler_alone_is_unsure():
    short, long = SizeTimes(micro_batch_size=8, pass_times_s=(0.010,), cpu_time_s=0.010), 0.030
    times = [(short, SizeTimes(micro_batch_size=16, pass_times_s=(long,), cpu_time_s=0.020))] * 3

    (quiet,) = check_still_wins(times, 16, 0.03)
    (busy,) = check_still_wins(times, 16, 0.03, is_busy=True)

    assert (quiet.status, busy.status) == (Status.CHANGED, Status.UNSURE)
