"""The statistics of the guard: intervals, the decision, and how it behaves over many runs with known truth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from bexplore.guard.pairs import (
    BLOCK_S,
    MAX_ROUNDS,
    MIN_ROUNDS,
    PAIRS_PER_STAGE,
    Round,
    count_rounds,
    decide,
    run_pair,
)
from bexplore.guard.report import Status
from bexplore.guard.timing import (
    Block,
    Ratio,
    count_needed_workers,
    count_passes,
    estimate_ratio,
    estimate_unpaired_ratio,
    judge_ratio,
)


def block(wall_s: float, cpu_s: float | None = None, loss: float = 1.0) -> Block:
    return Block(pass_times_s=(wall_s,) * 3, cpu_time_s=3 * (wall_s if cpu_s is None else cpu_s), loss=loss)


def machine(
    ratio: float, *, cpu_ratio: float | None = None, worker_sd: float = 0.004, pass_sd: float = 0.01, seed: int = 0
) -> Callable[[int], list[list[Round]]]:
    """A simulated machine: each pair of workers has its own luck, and each block its noise."""
    rng = np.random.default_rng(seed)

    def measure(num_pairs: int) -> list[list[Round]]:
        pairs = []
        for _ in range(num_pairs):
            process_effect = ratio * math.exp(rng.normal(0, worker_sd))

            def blocks(factor: float, cpu_factor: float) -> tuple[Block, Block]:
                noise = np.exp(rng.normal(0, pass_sd, 2))
                first, second = (block(0.01 * factor * n, 0.01 * cpu_factor * n) for n in noise)
                return first, second

            cpu_luck = process_effect if cpu_ratio is None else cpu_ratio
            pairs.append([Round(reference=blocks(1, 1), candidate=blocks(process_effect, cpu_luck)) for _ in range(8)])
        return pairs

    return measure


def test_an_interval_of_workers_that_agree_is_narrow_and_holds_the_truth():
    ratio = estimate_ratio([[0.01, 0.012, 0.011], [0.009, 0.01, 0.011], [0.012, 0.01, 0.009]])

    assert ratio.low < math.exp(0.0105) < ratio.high
    assert ratio.high - ratio.low < 0.02


def test_one_worker_alone_proves_nothing():
    assert judge_ratio(estimate_ratio([[0.2, 0.2, 0.2]])) is Status.UNSURE


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        groups = [rng.normal(rng.normal(0.05, 0.01), 0.01, 8) for _ in range(4)]
        ratio = estimate_ratio(groups)
        covered += ratio.low <= math.exp(0.05) <= ratio.high
    assert covered >= 0.93 * 300


def test_the_same_values_give_the_same_interval():
    values = [[0.01, 0.02], [0.0, 0.03], [0.02, 0.01]]
    assert estimate_ratio(values) == estimate_ratio(values)


@pytest.mark.parametrize(
    ("low", "high", "judgement"),
    [
        (1.031, 1.09, Status.WORSE),
        (1.02, 1.09, Status.UNSURE),
        (0.98, 1.02, Status.SAME),
        (0.90, 0.96, Status.BETTER),
        (0.90, 0.98, Status.UNSURE),
        (math.nan, math.nan, Status.WORSE),
    ],
)
def test_only_a_whole_interval_beyond_the_tolerance_counts_nan_is_slower(low, high, judgement):
    value = math.sqrt(low * high)
    assert judge_ratio(Ratio(value=value, low=low, high=high, num_workers=4, num_rounds=32)) is judgement


def test_an_unsure_ratio_says_how_many_workers_it_needs_if_any_do():
    far = Ratio(value=1.06, low=1.01, high=1.11, num_workers=4, num_rounds=32)
    on_the_edge = Ratio(value=1.0301, low=1.0, high=1.06, num_workers=4, num_rounds=32)

    assert 4 < (count_needed_workers(far) or 0) < 40
    assert count_needed_workers(on_the_edge) is None


def test_sides_that_did_not_run_side_by_side_have_an_interval_too():
    ratio = estimate_unpaired_ratio([0.0, 0.01, -0.01], [0.10, 0.11, 0.09])

    assert ratio.low < math.exp(0.1) < ratio.high
    assert judge_ratio(ratio) is Status.WORSE


def test_equal_programs_are_the_same_after_one_stage():
    decision = decide(machine(1.0))

    assert decision.status is Status.SAME
    assert len(decision.stages) == 1


@pytest.mark.parametrize(("ratio", "judgement"), [(1.10, Status.WORSE), (0.90, Status.BETTER)])
def test_a_difference_is_measured_again_before_it_is_said(ratio, judgement):
    decision = decide(machine(ratio))

    assert decision.status is judgement
    assert len(decision.stages) == 2
    assert decision.wall.num_workers == 2 * PAIRS_PER_STAGE


def test_a_suspicion_that_a_second_measurement_does_not_share_is_unsure():
    first, second = machine(1.4), machine(1.0)
    stages = iter([first, second])

    decision = decide(lambda num_pairs: next(stages)(num_pairs))

    assert decision.status is Status.UNSURE


@pytest.mark.statistics
def test_an_unsure_ratio_is_measured_on_and_process_effects_average_out():
    hidden = {"worker_sd": 0.021, "pass_sd": 0.03}

    def judgements(ratio: float, **options) -> Counter[Status]:
        return Counter(decide(machine(ratio, seed=n, **hidden), **options).status for n in range(40))

    assert judgements(1.05)[Status.WORSE] < 0.4 * 40
    assert judgements(1.05, may_go_on=lambda: True)[Status.WORSE] >= 0.8 * 40
    same = judgements(1.0, may_go_on=lambda: True)
    assert same[Status.SAME] >= 0.95 * 40
    assert same[Status.WORSE] == 0


def test_a_worker_that_fails_after_some_pairs_ends_the_measuring():
    measure = machine(1.0, worker_sd=0.08)
    left = iter([3, 3, 0])

    decision = decide(lambda num_pairs: measure(next(left)), may_go_on=lambda: True)

    assert decision.wall.num_workers == 6


def test_after_stage_two_pairs_follow_until_an_answer_or_time_is_up():
    measure, asked = machine(1.03, worker_sd=0.02), []  # on the tolerance itself, so that the doubt stays

    def counted(num_pairs: int) -> list[list[Round]]:
        asked.append(num_pairs)
        return measure(num_pairs)

    time_left = iter([True, True, False])
    decision = decide(counted, may_go_on=lambda: next(time_left))

    assert asked == [PAIRS_PER_STAGE, PAIRS_PER_STAGE, 1, 1]
    assert decision.status is Status.UNSURE
    assert [stage.num_workers for stage in decision.stages] == [PAIRS_PER_STAGE, PAIRS_PER_STAGE + 2]


def test_noise_gives_unsure_and_what_would_help():
    decision = decide(machine(1.0, worker_sd=0.08))

    assert decision.status is Status.UNSURE
    assert "pairs of workers" in decision.advice or "tolerance" in decision.advice


def test_waiting_while_others_run_is_unsure_and_waiting_alone_is_slower():
    busy = decide(machine(1.1, cpu_ratio=1.0), remark=lambda: "other processes used 40% of the processors")
    quiet = decide(machine(1.1, cpu_ratio=1.0), remark=lambda: "")

    assert (busy.status, quiet.status) == (Status.UNSURE, Status.WORSE)
    assert "waiting" in quiet.reason
    assert "quiet machine" in busy.advice


def test_a_loss_that_is_not_a_number_is_slower():
    bad = Round(reference=(block(0.01), block(0.01)), candidate=(block(0.01), block(0.01, loss=math.nan)))

    assert decide(lambda num_pairs: [[bad]] * num_pairs).status is Status.WORSE


def test_nothing_measured_is_never_the_same():
    assert decide(lambda num_pairs: []).status is Status.WORSE


@pytest.mark.statistics
def test_over_many_runs_there_are_no_false_alarms_and_slow_downs_are_found():
    alarms = sum(decide(machine(1.0, seed=seed)).status is Status.WORSE for seed in range(60))
    found = sum(decide(machine(1.1, seed=seed)).status is Status.WORSE for seed in range(60))
    improvements = sum(decide(machine(1.05, seed=seed)).status is Status.BETTER for seed in range(60))

    assert (alarms, improvements) == (0, 0)
    assert found >= 59


def test_a_pair_is_interleaved_so_that_drift_falls_on_both():
    clock = iter(range(1, 1000))
    order = []

    def side(name: str) -> Callable[[int, int], Block]:
        def run(num_passes: int, round_number: int) -> Block:
            order.append((round_number, name))
            return block(1.0 + 0.001 * next(clock))

        return run

    rounds = run_pair(side("A"), side("B"), pass_time_s=1.0)

    assert "".join(name for _, name in order[:8]) == "ABBABAAB"
    assert [round_number for round_number, _ in order[:8]] == [0] * 4 + [1] * 4
    assert all(abs(one.log_wall_ratio) < 1e-6 for one in rounds)


def test_each_side_keeps_its_own_blocks_whoever_begins_a_round():
    rounds = run_pair(lambda *_: block(1.0), lambda *_: block(1.1), pass_time_s=1.0)

    assert all(one.log_wall_ratio == pytest.approx(math.log(1.1)) for one in rounds)


def test_rounds_are_short_and_bounded_whatever_a_pass_takes():
    assert count_passes(1e-6, BLOCK_S) == 200
    assert count_passes(10.0, BLOCK_S) == 1
    assert all(MIN_ROUNDS <= count_rounds(seconds) <= MAX_ROUNDS for seconds in (1e-5, 1e-3, 0.1, 10.0))
