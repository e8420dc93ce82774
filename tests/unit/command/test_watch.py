"""The watch over a start, on a clock that no test waits for: when it names the last step, and what counts as a hang."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from bexplore.command import watch as watch_module
from bexplore.command.reports import Rank, Reports
from bexplore.command.timing import MIN_TIMED_STEPS
from bexplore.command.watch import HANG_S, LATE_S, PARK_S, UNUSED_S, Ending, Watch

NUM_WARMUP = 3
PLACE, OTHER = ("host", 1), ("host", 2)
FOREVER_S = 1e9
NEVER = 10**9


@dataclass
class Clock:
    """Seconds that pass where somebody sleeps."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Training:
    """A process that steps: it tells its steps at their ends, and stops after the last one that it was told of.

    Attributes:
        clock: The clock.
        counts_at: Seconds since its start -> steps, passes, batches and signs.
        max_steps: Of its settings.
        last_step: That it was told.
        own_from_step: As in the record.
        hellos_at_s: Seconds after which it has imported torch.
        hello: What it says of itself then.
        more: Counts of other processes.
        errors: That are reported from the start on.
    """

    clock: Clock
    counts_at: Callable[[float], tuple[int, int, int, int]]
    max_steps: int = NEVER
    last_step: int | None = None
    own_from_step: int | None = None
    more: dict = field(default_factory=dict)
    began_s: float = 1000.0
    hellos_at_s: float = FOREVER_S
    hello: dict = field(default_factory=dict)
    errors: tuple[dict, ...] = ()

    def read(self) -> Reports:
        now_s = self.clock.now_s - self.began_s
        counts = self.counts_at(now_s)
        last = self.max_steps if self.last_step is None else self.last_step
        ranks = (record(last, self.own_from_step),) if counts[0] >= last else ()
        hellos = ({"pid": 1, "host": "host", "rank": 0} | self.hello,) if now_s >= self.hellos_at_s else ()
        found = {PLACE: (min(counts[0], last), *counts[1:])} | self.more
        return Reports(hellos=hellos, counts=found, ranks=ranks, errors=self.errors)

    def stop_after(self, step: int) -> None:
        self.last_step = step


def record(num_steps: int, own_from_step: int | None) -> Rank:
    return Rank(
        outcome="observed",
        rank=0,
        world_size=1,
        steps=(None,) * num_steps,  # type: ignore[arg-type]
        rows={},
        forward_rows=(),
        num_samples=None,
        digests=(),
        memory={},
        record={"pid": 1, "host": "host"},
        own_from_step=own_from_step,
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch_module, "time", clock)
    return clock


def watched(training: Training, **fields) -> tuple[Ending, float]:
    """Return how the watch ended and after how many seconds; it gives up after a thousand hours."""
    start = SimpleNamespace(return_code=None, alive=lambda: [1, 2], find_unobserved=list, hold_scripts=lambda: None)
    given = {"time_limit_s": 3.6e6, "num_warmup": NUM_WARMUP} | fields
    watch = Watch(
        start=start,  # type: ignore[arg-type]
        read=training.read,
        should_stop=lambda: False,
        stop_after=training.stop_after,
        beat=lambda: None,
        _began_s=training.clock.now_s,  # its default is the clock of this machine
        look=lambda pids: None,
        **given,
    )
    return watch.until_end(), training.clock.now_s - training.began_s


def stepping(step_s: float, until_s: float = FOREVER_S) -> Callable[[float], tuple[int, int, int, int]]:
    """Return the counts of a process whose steps take so long, until it does nothing any more."""

    def counts_at(seconds: float) -> tuple[int, int, int, int]:
        steps = int(min(seconds, until_s) / step_s)
        return steps, steps, steps, 0

    return counts_at


@pytest.mark.parametrize("step_s", [1.2, 3.0, 20.0])
def test_a_start_of_slow_steps_ends_after_as_few_steps_as_are_timed(clock, step_s):
    training = Training(clock, stepping(step_s))

    ending, seconds = watched(training)

    assert ending is Ending.OBSERVED
    assert NUM_WARMUP + MIN_TIMED_STEPS <= training.last_step <= NUM_WARMUP + MIN_TIMED_STEPS + 2
    assert seconds < step_s * (training.last_step + 1)


def test_what_a_start_does_is_told_from_its_first_second_to_its_last_step(clock):
    told = []
    training = Training(clock, lambda seconds: (int(max(0.0, seconds - 100) / 2), 0, int(seconds > 50), 0))
    training.hellos_at_s = 20.0

    watched(training, tell=lambda message: told.append((clock.now_s - training.began_s, message)))

    stages = {message["stage"]: round(at_s) for at_s, message in told if "stage" in message}
    assert list(stages) == ["command", "program", "first step", "steps"]
    assert [stages["program"], stages["first step"]] == [pytest.approx(20, abs=2), pytest.approx(51, abs=2)]
    assert told[-1][1]["num_steps"] >= NUM_WARMUP
    assert max(later - at for (at, _), (later, _) in itertools.pairwise(told)) < 3


@pytest.mark.parametrize("is_emulated", [False, True])
def test_a_start_on_an_emulated_device_ends_after_as_few_steps_as_show_its_kernels(clock, is_emulated):
    training = Training(clock, stepping(0.02), hello={"is_emulated": is_emulated}, hellos_at_s=0.0)

    ending, _ = watched(training)

    assert ending is Ending.OBSERVED
    assert (training.last_step < 60) is is_emulated


@pytest.mark.parametrize("gap_s", [1.0, 8.0, 40.0])
def test_a_gap_between_epochs_is_not_taken_for_steps_that_nobody_has_seen(clock, gap_s):
    def counts_at(seconds: float) -> tuple[int, int, int, int]:
        epochs, rest_s = divmod(seconds, gap_s + 8 * 0.02)  # loaders start their workers, then come eight steps
        steps = 8 * int(epochs) + int(max(0.0, rest_s - gap_s) / 0.02)
        return steps, steps, steps, int(seconds)

    training = Training(clock, counts_at)

    ending, seconds = watched(training)

    assert ending is Ending.OBSERVED
    assert seconds < 5 * gap_s + 5.0


def test_steps_that_stop_are_a_hang_and_signs_of_life_are_none(clock):
    def sampling(seconds: float) -> tuple[int, int, int, int]:
        steps = int(min(seconds, 1.0) / 0.1) + int(max(0.0, seconds - 700.0) / 0.1)  # ten minutes without a step
        return steps, steps, steps, int(min(seconds, 700.0) / 1.0)

    assert watched(Training(clock, sampling)) == (Ending.OBSERVED, pytest.approx(701.0, abs=2.0))

    clock.now_s = 1000.0
    assert watched(Training(clock, stepping(0.1, until_s=1.0))) == (Ending.HUNG, pytest.approx(1.0 + HANG_S, abs=1.0))


def test_passes_of_a_step_that_takes_longer_than_a_hang_are_signs_of_life(clock):
    def accumulating(seconds: float) -> tuple[int, int, int, int]:
        passes = int(seconds / 2.0)
        return passes // 50, passes, passes, 0

    assert watched(Training(clock, accumulating))[0] is Ending.OBSERVED


def test_what_comes_before_the_first_step_may_take_as_long_as_it_likes(clock):
    def compiling(seconds: float) -> tuple[int, int, int, int]:
        steps = int(max(0.0, seconds - 1000.0) / 0.1)
        return steps, steps, 3 + steps, 0

    assert watched(Training(clock, compiling))[0] is Ending.OBSERVED


@pytest.mark.parametrize(
    ("where", "first_step_s", "ending"),
    [
        ("uncaught", FOREVER_S, Ending.ERROR),
        ("process", FOREVER_S, Ending.ERROR),
        ("process", 0.0, Ending.OBSERVED),
        ("handled", FOREVER_S, Ending.TIMED_OUT),
    ],
    ids=["of the program", "waited for", "beside the training", "caught"],
)
def test_an_error_ends_a_start_unless_another_process_trains(clock, where, first_step_s, ending):
    def counts_at(seconds: float) -> tuple[int, int, int, int]:
        steps = int(max(0.0, seconds - first_step_s) / 0.1)
        return steps, steps, steps, 0

    link = {"type": "TypeError", "module": "builtins", "message": "of a process"}
    training = Training(clock, counts_at)
    training.errors = ({"where": where, "rank": None, "chain": [link], "traceback": "", "num_batches": 0},)

    assert watched(training, time_limit_s=1000.0)[0] is ending


def test_batches_read_for_long_without_a_pass_train_elsewhere(clock):
    elsewhere = Training(clock, lambda seconds: (0, 0, int(seconds), 0))

    assert watched(elsewhere) == (Ending.NO_STEP, pytest.approx(UNUSED_S, abs=5.0))


def test_a_process_that_reads_for_others_that_train_is_none(clock):
    training = Training(clock, stepping(0.5))
    training.more = {OTHER: (0, 0, 100, 0)}

    assert watched(training)[0] is Ending.OBSERVED


@pytest.mark.parametrize(("num_passes", "ending"), [(0, Ending.NO_PASS), (1, Ending.TIMED_OUT)])
def test_a_start_at_an_unasked_size_is_given_up_where_no_pass_comes(clock, num_passes, ending):
    training = Training(clock, lambda seconds: (0, num_passes, 1, 0))

    assert watched(training, pass_limit_s=30.0, time_limit_s=300.0)[0] is ending


def test_ranks_that_stopped_before_batches_of_their_size_came_go_on(clock):
    training = Training(clock, stepping(0.1), max_steps=7, own_from_step=13)

    ending, _ = watched(training, num_steps=7, num_needed=lambda ranks: 7 + (ranks[0].own_from_step or 0))

    assert (ending, training.last_step) == (Ending.OBSERVED, 20)


def test_a_further_size_with_long_evaluations_ends_before_all_its_steps(clock):
    training = Training(clock, lambda seconds: (int(seconds), int(seconds), 0, int(seconds)), max_steps=500)

    ending, seconds = watched(training, num_steps=500, is_shared=True)

    assert ending is Ending.OBSERVED
    assert seconds < NUM_WARMUP + LATE_S + 10.0


@pytest.mark.parametrize("num_steps", [None, 64])
def test_a_rank_that_read_the_last_step_too_late_is_no_hang(clock, num_steps):
    parted = Parted(clock, stepping(0.1), max_steps=num_steps or NEVER)

    ending, seconds = watched(parted, num_steps=num_steps)

    assert ending is Ending.OBSERVED
    assert parted.named[-1] > parted.named[0] + 1
    assert seconds < HANG_S / 2


def test_a_rank_that_has_parked_is_not_kept_until_it_leaves(clock):
    first_step_s = 50.0  # of compilation
    parted = Parted(clock, lambda seconds: (int(seconds > 1) + int(max(seconds - first_step_s, 0) / 0.1), 0, 0, 0))

    ending, seconds = watched(parted)

    assert ending is Ending.OBSERVED
    assert seconds - first_step_s < PARK_S


def test_a_rank_that_never_stops_is_a_hang_of_those_that_wait_for_it(clock):
    parted = Parted(clock, stepping(0.1), num_too_late=NEVER)

    ending, seconds = watched(parted, time_limit_s=1000.0)

    assert ending is Ending.HUNG
    assert HANG_S < seconds < 2 * HANG_S


@dataclass
class Parted(Training):
    """Two ranks: the second has begun the step after the first last step, and waits there for the first."""

    named: list[int] = field(default_factory=list)
    num_too_late: int = 1  # numbers that the second reads too late

    def read(self) -> Reports:
        reports = super().read()
        first = reports.counts[PLACE][0]
        if len(self.named) <= self.num_too_late:  # no gradient comes from the rank that parks
            ranks = [replace(rank, world_size=2) for rank in reports.ranks]
            steps = max(0, first - 1)
        else:
            ranks = [replace(rank, world_size=2, rank=number) for rank in reports.ranks for number in (0, 1)]
            steps = first
        counts = {PLACE: (first, first, 0, 0), OTHER: (steps, steps, 0, 0)}
        return replace(reports, ranks=tuple(ranks), counts=counts)

    def stop_after(self, step: int) -> None:
        super().stop_after(step)
        self.named.append(step)
