"""When the passes of one size are enough."""

from __future__ import annotations

from bexplore.engine.worker.processors import longest_wait_s
from bexplore.engine.worker.stopping_rule import Passes


def timed(*passes: tuple[float, float], **changes: float) -> Passes:
    """Passes of (seconds, seconds that a thread waited), as many as are asked for."""
    found = Passes(**{"max_passes": 5, "budget_s": 100.0, "tolerance": 0.02} | changes)
    for seconds, wait_s in passes:
        if found.are_enough:
            break
        found.add(seconds, scheduler_wait_s=wait_s)
    return found


def test_passes_that_were_disturbed_are_repeated_and_do_not_count():
    found = timed((1.5, 0.4), (1.0, 0.0), (1.6, 0.5), (1.0, 0.001), (1.0, 0.0))

    assert found.counted_s == [1.0, 1.0]
    assert found.all_s == [1.5, 1.0, 1.6, 1.0]


def test_where_every_pass_is_disturbed_all_count_and_their_number_is_bounded():
    found = timed(*[(1.0 + 0.1 * turn, 0.5) for turn in range(50)], max_passes=5)

    assert len(found.all_s) == 10
    assert found.counted_s == found.all_s


def test_the_seconds_of_disturbed_passes_are_bounded_too():
    found = timed(*[(4.0, 2.0)] * 50, budget_s=4.0)

    assert sum(found.all_s) == 12.0


def test_undisturbed_passes_that_agree_end_after_the_fewest():
    assert timed(*[(1.0, 0.0)] * 50).all_s == [1.0, 1.0]
    assert len(timed(*[(0.2, 0.0)] * 50).all_s) == 3


def test_whoever_takes_more_for_a_tie_has_fewer_passes():
    noisy = [(seconds, 0.0) for seconds in (1.0, 1.02, 0.98, 1.01)] * 50

    assert len(timed(*noisy, max_passes=100, tolerance=0.02).all_s) > 20
    assert len(timed(*noisy, max_passes=100, tolerance=0.1).all_s) < 10


def test_one_pass_that_takes_the_whole_budget_is_enough():
    assert timed(*[(5.0, 0.0)] * 50, budget_s=4.0).all_s == [5.0]
    assert timed(*[(3.0, 0.0)] * 50, budget_s=4.0).all_s == [3.0, 3.0]


def test_a_size_that_is_clearly_worse_is_not_timed_more_closely():
    assert timed(*[(2.0, 0.0)] * 50, worse_s=1.9).counted_s == [2.0]
    assert timed(*[(0.2, 0.0)] * 50, worse_s=0.19).counted_s == [0.2, 0.2]
    assert timed((2.0, 0.0), (1.8, 0.0), (1.8, 0.0), worse_s=2.1).counted_s == [2.0, 1.8, 1.8]
    assert timed((2.0, 1.0), (2.0, 0.0), (2.0, 0.0), worse_s=1.9).counted_s == [2.0]  # a neighbour proves nothing


def test_without_a_look_before_nothing_is_known_of_a_wait():
    assert longest_wait_s({}, {"1": 5.0}) == 0.0
    assert longest_wait_s({"1": 1.0, "2": 1.0}, {"1": 1.5, "2": 3.0, "3": 0.5}) == 2.0


def test_the_share_that_threads_waited_is_that_of_the_passes_that_count():
    repeated = timed((1.5, 0.4), (1.0, 0.0), (1.6, 0.5), (1.0, 0.001), (1.0, 0.0))
    assert repeated.scheduler_wait_fraction < 0.001
    assert timed(*[(1.0, 0.5)] * 50).scheduler_wait_fraction == 0.5
