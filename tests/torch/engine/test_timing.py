"""Interleaved timing, in process."""

from __future__ import annotations

from bexplore.engine.worker.timing import RanPass, Timed, time_size
from bexplore.measurement.probe import Probe


class ScriptedSteps:
    """Passes that take what a size takes, and tell which size ran."""

    waited_s = 0.0

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.ran = seconds, list[int]()

    def num_back_to_back(self, pass_s: float) -> int:
        return 1

    def time_pass(self, batch: int, num_passes: int = 1) -> float:
        self.ran.append(batch)
        return self.seconds[batch]

    def loss(self) -> float:
        return float(self.ran[-1])


def interleaved_after(known: RanPass, steps: ScriptedSteps) -> Timed:
    """Size 8 interleaved with size 4, just after a pass of its own."""
    return time_size(
        steps,
        {8: 8, 4: 4},
        Probe(number=1, micro_batch_size=8, interleaved_with=(4,)),
        usual_pass_s=steps.seconds,
        budget_s=4.0,
        known=[known],
        report=lambda **_: None,
    )


def test_a_long_pass_that_has_just_run_is_the_first_round_of_its_size():
    steps = ScriptedSteps({4: 1.1, 8: 2.0})

    timed = interleaved_after(RanPass(2.2, 0.0, 7.0), steps)

    assert steps.ran == [4, 4, 8]  # and the second round goes the other way round
    assert timed.interleaved_times_s == {8: [2.2, 2.0], 4: [1.1, 1.1]}
    assert timed.pass_times_s == [2.2, 2.0]
    assert timed.loss == 8.0


def test_a_loss_is_that_of_the_probes_own_size():
    steps = ScriptedSteps({4: 1.1, 8: 5.0})

    timed = interleaved_after(RanPass(5.0, 0.0, 7.0), steps)

    assert steps.ran == [4, 4, 8]  # two rounds, however long they are: one would not show a round that was disturbed
    assert timed.loss == 8.0


def test_long_passes_that_have_just_run_suffice_where_they_agree():
    steps = ScriptedSteps({8: 2.0})
    known = [RanPass(2.0, 0.0, 7.0), RanPass(2.0, 0.0, 7.0)]

    probe = Probe(number=1, micro_batch_size=8)
    timed = time_size(
        steps, {8: 8}, probe, usual_pass_s=steps.seconds, budget_s=4.0, known=known, report=lambda **_: None
    )

    assert steps.ran == []
    assert timed.pass_times_s == [2.0, 2.0]
    assert timed.interleaved_times_s == {}
    assert timed.loss == 7.0
