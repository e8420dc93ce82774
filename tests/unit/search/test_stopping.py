"""When a search ends, and what one wrong run does to it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from bexplore.errors import UserProgramError
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.replay.replay import ReplayOptions, TableRunner
from bexplore.replay.table import load_table
from bexplore.search.loop import run_search
from bexplore.search.policy.decide import decide
from bexplore.search.policy.decision import TIMES_BEYOND_A_SWEEP, StopReason
from bexplore.search.posterior.joint import Variant
from bexplore.search.posterior.posterior import fit_posterior
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.simulated.simulator import Family, SimulatedRunner, draw_world
from tests.unit.search.builders import EXACT, CurveRunner, failed, measured, result_of

PLATEAU = {12: 175.0, 32: 192.0, 36: 196.0, 60: 186.0, 64: 181.0, 124: 164.0, 128: 165.0, 132: 165.0}


@pytest.mark.parametrize("size", [12, 64, 124, 128, 132])
@pytest.mark.parametrize("factor", [1.27, 1.6])
def test_one_run_that_is_too_fast_does_not_win(size: int, factor: float):
    class FastOnce(CurveRunner):
        def __call__(self, probe: Probe) -> Observation:
            answer = super().__call__(probe)
            if probe.micro_batch_size != size or self.sizes.count(size) > 1:
                return answer
            return dataclasses.replace(answer, pass_times_s=tuple(time_s / factor for time_s in answer.pass_times_s))

    best = result_of(FastOnce(PLATEAU.__getitem__), Space.from_sizes(PLATEAU)).recommendation
    assert PLATEAU[best.micro_batch_size] >= 0.95 * max(PLATEAU.values()) or best.confidence < 90


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_two_runs_that_contradict_each_other_ask_for_a_third(factor: float):
    evidence = [measured(size, speed) for size, speed in PLATEAU.items()]
    best = max(PLATEAU, key=PLATEAU.__getitem__)
    again = [*evidence, measured(best, factor * PLATEAU[best])]
    space = Space.from_sizes(PLATEAU)
    decision = decide(space, again, EXACT)
    assert decision.micro_batch_size == best
    assert decision.recommendation.confidence < decide(space, evidence, EXACT).recommendation.confidence


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_third_run_decides_which_of_two_was_disturbed(factor: float):
    speeds = {1: 30.0, 8: 190.0, 16: 290.0, 64: 420.0}
    others = [measured(size, speed) for size, speed in speeds.items()]
    three = [measured(32, 370.0), measured(32, factor * 370.0), measured(32, 371.0)]
    fitted = fit_posterior(Space.from_sizes([*speeds, 32]), [*others, *three])
    assert math.exp(fitted.own_level[fitted.index(32)]) == pytest.approx(370.0, rel=0.03)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "speeds",
    [
        {10: 61.0, 14: 70.0, 20: 80.0, 28: 91.0, 40: 100.0, 57: 90.0, 80: 86.0},
        {4: 93.0, 8: 100.0, 16: 33.0, 24: 6.0},
    ],
    ids=["peak", "spill"],
)
def test_the_best_size_of_a_short_list_is_not_left_out_between_two_probes(
    speeds: dict[int, float], seed: int, tmp_path: Path
):
    table = tmp_path / "sweep.csv"
    rows = [f"sweep,{size},{speed}" for size, speed in speeds.items()]
    table.write_text("\n".join(["curve_id,micro_batch_size,throughput_samples_per_s", *rows]) + "\n")
    runner = TableRunner(load_table(table)[0], ReplayOptions(seed=seed, noise=0.005))
    best = result_of(runner, Space.from_sizes(speeds)).recommendation
    assert speeds[best.micro_batch_size] == max(speeds.values())


@pytest.mark.parametrize("family", [Family.SMOOTH, Family.CLIFFS, Family.CPU_LIKE, Family.GPU_LIKE])
@pytest.mark.parametrize("shares", [False, True])
def test_no_search_ends_while_its_own_words_say_that_going_on_pays(family: Family, shares: bool):
    usual = SearchSettings() if shares else EXACT
    for seed in range(7_000, 7_006):
        world = draw_world(family, seed)
        if not world.fits[0]:
            continue
        runner = SimulatedRunner(world, seed=seed, shared_compile=shares)
        result = result_of(runner, world.space, settings=usual, variants=(Variant(memory=world.memory),))
        further = result.next_probe
        if further is not None and result.stop_reason not in (StopReason.MAX_PROBES, StopReason.TIME_BUDGET):
            assert further.saves * further.training_time_s <= TIMES_BEYOND_A_SWEEP * further.cost_s


def test_a_search_ends_at_its_share_of_the_training():
    class Dear(CurveRunner):
        def __call__(self, probe: Probe) -> Observation:
            return dataclasses.replace(super().__call__(probe), elapsed_s=4_000.0)

    dear = Dear()
    result = result_of(dear, Space.from_sizes(range(1, 65)), settings=dataclasses.replace(EXACT, training_share=0.1))
    assert result.stop_reason == StopReason.TIME_BUDGET
    assert dear.sizes == [1]


def test_sizes_that_run_together_and_fail_alone_are_the_programs_fault():
    class FailsAlone(CurveRunner):
        def __call__(self, probe: Probe) -> Observation:
            answer = super().__call__(probe)
            is_alone = probe.compilation is Compilation.EXACT
            return failed(probe, Outcome.CRASHED, "RuntimeError: no later start (train.py:7)") if is_alone else answer

    with pytest.raises(UserProgramError, match="no later start"):
        result_of(FailsAlone(), Space.from_sizes([1, 2, 4]), settings=SearchSettings())


@pytest.mark.parametrize("seed", range(8))
def test_a_recorded_run_that_was_too_fast_does_not_win(seed: int, tmp_path: Path):
    repeats = [(128, 164.0), (128, 209.0)]
    rows = [f"sweep,{size},{speed}" for size, speed in sorted([*PLATEAU.items(), *repeats])]
    table = tmp_path / "sweep.csv"
    table.write_text("\n".join(["curve_id,micro_batch_size,throughput_samples_per_s", *rows]) + "\n")
    runner = TableRunner(load_table(table)[0], ReplayOptions(seed=seed, noise=0.0))
    best = result_of(runner, Space.from_sizes(PLATEAU), settings=dataclasses.replace(EXACT, seed=seed)).recommendation
    assert PLATEAU[best.micro_batch_size] >= 0.95 * max(PLATEAU.values())


def test_an_unseen_size_of_a_short_list_is_worth_more_than_a_repeat():
    """As of starts that take 40 s: once 1, 8 and 4 ran, 2 is expected to be a tenth slower."""
    runner = SlowStarts({1: 11.2, 2: 18.0, 4: 16.7, 8: 16.2})
    settings = SearchSettings(search_compilation=Compilation.EXACT, verify_exact=False, target_confidence=75)

    *_, last = run_search(runner, space=Space.from_sizes(runner.speeds), settings=settings)

    assert runner.sizes == [1, 8, 4, 2]
    assert last.recommendation.micro_batch_size == 2


class SlowStarts(CurveRunner):
    """Runs at given samples/s; a start takes 35 of a probe's 40 s."""

    def __init__(self, speeds: dict[int, float]) -> None:
        super().__init__()
        self.speeds = speeds

    def __call__(self, probe: Probe) -> Observation:
        answer = super().__call__(probe)
        time_s = probe.micro_batch_size / self.speeds[probe.micro_batch_size]
        times_s = tuple(time_s * factor for factor in (0.98, 0.99, 1.0, 1.01, 1.02))
        return dataclasses.replace(answer, pass_times_s=times_s, start_time_s=35.0, elapsed_s=40.0)
