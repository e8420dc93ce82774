"""The times of steps and of passes in them, from records alone."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.command.reports import Rank
from bexplore.command.timing import (
    adjust_to_tokens,
    expect_step_s,
    find_depletion,
    find_own_step,
    find_slowest,
    group_means,
    share_evaluations,
    time_rank,
)
from tests.unit.command.builders import rank, step


def evaluating(seconds: float, evaluation_s: dict[int, float], *, tells: bool = True) -> Rank:
    """Return a rank with eight steps, some of which hold evaluations; it may not tell of them, as one that waits."""
    ended_s, steps = 0.0, []
    for index in range(8):
        ended_s += seconds + evaluation_s.get(index, 0.0)
        told_s = evaluation_s.get(index, 0.0) if tells else 0.0
        steps.append(dataclasses.replace(step(ended_s), evaluation_s=0.99 * told_s))
    return rank(steps=tuple(steps))


@pytest.mark.parametrize(
    ("evaluation_s", "step_s"),
    [
        pytest.param({5: 65.0}, 0.1, id="counts as the usual step where enough have none"),
        pytest.param(dict.fromkeys(range(8), 10.0), 0.2, id="its seconds are taken from each where most have one"),
    ],
)
def test_the_evaluation_of_a_step_is_not_timed(evaluation_s, step_s):
    timing = time_rank(evaluating(0.1, evaluation_s), num_warmup=1, micro_batch_size=4)

    assert timing.step_times_s == pytest.approx([step_s] * 7)


def test_steps_of_more_micro_batches_are_reckoned_from_passes_and_updates():
    timing = time_rank(rank(seconds=1.0, passes=2, update_s=0.2), num_warmup=1, micro_batch_size=4)

    more = timing.with_micro_batches(10)

    assert (more.micro_batches_per_step, more.passes_per_step) == (10, 10)
    assert more.step_times_s == pytest.approx([10 * 0.4 + 0.2] * 7) and more.pass_times_s == timing.pass_times_s


@pytest.mark.parametrize(("evaluation_s", "share"), [({}, 0.0), ({5: 65.0}, 65.0 / 65.7), ({0: 65.0}, 0.0)])
def test_the_share_of_the_seconds_that_count_for_no_step_is_known(evaluation_s, share):
    timing = time_rank(evaluating(0.1, evaluation_s), num_warmup=1, micro_batch_size=4)

    assert timing.share_left_out == pytest.approx(share, abs=1e-6)


def test_a_rank_that_waits_for_another_ones_evaluation_has_it_too():
    ranks = evaluating(0.1, {3: 65.0, 6: 65.0}), evaluating(0.1, {3: 65.0, 6: 65.0}, tells=False)

    for one in share_evaluations(ranks):
        assert time_rank(one, num_warmup=1, micro_batch_size=4).step_times_s == pytest.approx([0.1] * 7)


TOKENS = (40, 10, 90, 20, 60, 30, 80, 50)  # of a sample of each batch


def with_tokens(tokens, *, num_ahead: int = 0, **fields) -> Rank:
    """Return a rank whose steps take a second and a hundredth for each token, of batches that are read ahead."""
    ended_s, steps = 0.0, []
    for one in [99] * num_ahead + list(tokens):
        ended_s += 1.0 + 0.01 * one
        steps.append(step(ended_s))
    read = tuple((4, 4 * one, 8 * one) for one in [*tokens, *[7] * num_ahead])
    return rank(steps=tuple(steps), tokens=read, before={"num_fetches": num_ahead, "num_passes": 0}, **fields)


@pytest.mark.parametrize("num_ahead", [0, 3])
@pytest.mark.parametrize("tokens", [TOKENS, TOKENS[::-1], (300, *TOKENS[1:], 500, 700, 900)])
def test_seconds_are_those_of_samples_of_the_mean_tokens(tokens, num_ahead):
    timing = time_rank(
        with_tokens(tokens, num_ahead=num_ahead), num_warmup=num_ahead + 1, micro_batch_size=4, tokens_per_sample=50.0
    )

    assert timing.tokens_per_sample == 50.0
    assert timing.step_time_s == pytest.approx(1.5, rel=0.06)


def test_a_size_that_counts_tokens_has_the_tokens_that_are_no_padding():
    timing = time_rank(with_tokens(TOKENS, rows=4), num_warmup=1, micro_batch_size=400)

    assert timing.tokens_per_sample == pytest.approx(4 * 47.5 / 400)  # of batches of four samples


@pytest.mark.parametrize(
    "given",
    [with_tokens(()), with_tokens(TOKENS[:4]), dataclasses.replace(with_tokens(TOKENS), tokens=((4, 9, 9),) * 3)],
)
def test_seconds_are_as_they_came_where_the_tokens_of_a_step_are_unknown(given):
    given = dataclasses.replace(given, steps=rank().steps)

    timing = time_rank(given, num_warmup=1, micro_batch_size=4, tokens_per_sample=50.0)

    assert timing.tokens_per_sample is None
    assert set(timing.step_times_s) == {1.0}


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([(10.0, 20.0)] * 6, id="all have the mean"),
        pytest.param([(5.0, 64.0), (10.0, 64.0), (30.0, 64.0), (20.0, 64.0)], id="all are padded to one length"),
    ],
)
def test_seconds_that_tokens_do_not_change_stay(samples):
    assert adjust_to_tokens([2.0] * len(samples), samples, 10.0) == [2.0] * len(samples)


def test_seconds_never_fall_below_zero():
    assert min(adjust_to_tokens([1.0, 2.0, 9.0], [(100.0, 100.0), (200.0, 200.0), (300.0, 300.0)], 1.0)) > 0


AHEAD = {"before": {"num_fetches": 113, "num_passes": 100}}


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        pytest.param({}, 0, id="nothing was read ahead"),
        pytest.param(AHEAD, 13, id="passes take batches in the order in which they were read"),
        pytest.param(AHEAD | {"own_from_step": 5, "awaits_own_batches": True}, 5, id="the calls of a model show it"),
        pytest.param({"awaits_own_batches": True}, None, id="the calls of a model should have shown it"),
    ],
)
def test_the_first_step_of_a_size_is_behind_batches_that_were_read_ahead(fields, first):
    assert find_own_step(rank(**fields), 7) == first


def with_fetches(num_fetches: int, *, num_passes: int, num_samples: int) -> Rank:
    steps = (step(0.1 * index, passes=num_passes) for index in range(1, 9))
    counts = {"num_fetches": num_fetches, "num_samples": num_samples}
    return rank(steps=tuple(dataclasses.replace(one, **counts) for one in steps))


@pytest.mark.parametrize(
    ("num_fetches", "num_passes", "num_samples", "per_step"),
    [
        pytest.param(2, 1, 8, 2, id="two batches of one pass"),
        pytest.param(1, 2, 4, 1, id="two losses of one batch"),
        pytest.param(1, 2, 8, 2, id="a batch that a schedule divides among two passes"),
    ],
)
def test_micro_batches_are_what_passes_take_of_the_loaders_batches(num_fetches, num_passes, num_samples, per_step):
    fetched = with_fetches(num_fetches, num_passes=num_passes, num_samples=num_samples)

    assert time_rank(fetched, num_warmup=1, micro_batch_size=4).micro_batches_per_step == per_step


def reading(*num_fetches: int, samples: int, called: int = 0, passes: int = 1) -> Rank:
    """Return a rank of steps of a second that read so many batches, and half a second for each batch."""
    ended_s, steps = 0.0, []
    for fetches in num_fetches:
        ended_s += 1.0 + 0.5 * fetches
        counts = {"num_fetches": fetches, "num_samples": fetches * samples}
        steps.append(dataclasses.replace(step(ended_s, passes=passes), **counts))
    shown = rank(steps=tuple(steps), forward_rows=((called, 8),) * 4 if called else ())
    return dataclasses.replace(shown, rows={samples: 3})


@pytest.mark.parametrize(
    ("fields", "per_step"),
    [
        pytest.param({"samples": 16, "called": 4}, 1, id="a batch is that of four steps"),
        pytest.param({"samples": 16}, 1, id="likewise where no call of the model is seen"),
        pytest.param({"samples": 4, "called": 1}, 0.25, id="the size is divided among four steps"),
        pytest.param({"samples": 4, "called": 4}, 1, id="four steps of one batch"),
        pytest.param({"samples": 4, "called": 4, "passes": 2}, 1, id="four steps of one batch, with two losses"),
        pytest.param({"samples": 32, "called": 4, "passes": 2}, 2, id="four steps, each with two passes of its own"),
    ],
)
def test_micro_batches_are_what_a_step_takes_of_a_batch_that_serves_several(fields, per_step):
    ahead = reading(2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, **fields)

    timing = time_rank(ahead, num_warmup=3, micro_batch_size=4)

    assert timing.micro_batches_per_step == per_step
    assert timing.step_times_s == pytest.approx([1.125] * len(timing.step_times_s))


def test_batches_that_are_read_several_at_once_are_one_a_step():
    timing = time_rank(reading(6, 0, 0, 0, 0, 0, 6, 0, 0, 0, samples=4), num_warmup=3, micro_batch_size=4)

    assert timing.micro_batches_per_step == 1


@pytest.mark.parametrize(
    ("counts", "per_step", "step_s"),
    [
        pytest.param([(5, 6, 6)], 5, 6.0, id="a step ends with the generator"),
        pytest.param([*[(5, 6, 6)] * 4, (4, 5, 5)], 5, 6.0, id="likewise, and an epoch ends in between"),
        pytest.param([*[(1, 1, 1)] * 4, (1, 2, 2)], 1, 1.2, id="a step ends with a critic"),
    ],
)
def test_a_generator_behind_its_critics_has_no_batch_of_its_own(counts, per_step, step_s):
    steps, ended_s = [], 0.0
    for number in range(23):
        fetches, passes, updates = counts[number % len(counts)]
        ended_s += passes
        fields = {"num_fetches": fetches, "num_samples": 4 * fetches, "num_updates": updates}
        steps.append(dataclasses.replace(step(ended_s, passes=passes), **fields))

    timing = time_rank(rank(steps=tuple(steps)), num_warmup=3, micro_batch_size=4)

    assert timing.micro_batches_per_step == per_step
    assert timing.step_time_s == pytest.approx(step_s)


def test_a_pass_is_its_share_of_a_step_without_the_update():
    timing = time_rank(rank(seconds=1.0, passes=2, update_s=0.2), num_warmup=3, micro_batch_size=4)

    assert timing.step_time_s == pytest.approx(1.0)
    assert timing.pass_times_s == pytest.approx([0.4] * 5)


def with_last_batches(samples: list[int], *, is_of_loader: bool) -> Rank:
    """Return a rank whose steps take a second and 10 ms a sample, and as many samples as these again and again."""
    ended_s, steps = 0.0, []
    for number in range(23):
        num_samples = samples[number % len(samples)]
        ended_s += 1.0 + 0.01 * num_samples
        fields = {"num_samples": num_samples, "num_fetches": int(is_of_loader)}
        steps.append(dataclasses.replace(step(ended_s), **fields))
    shown = {"rows": dict.fromkeys(samples, 9), "num_samples": sum(samples)} if is_of_loader else {"rows": {}}
    return dataclasses.replace(rank(steps=tuple(steps)), **shown)


@pytest.mark.parametrize("is_of_loader", [True, False])
@pytest.mark.parametrize("samples", [[90, 10], [40, 40, 20], [100], [*[40] * 9, 20], [*[10] * 16, 5]])
def test_a_pass_is_of_a_full_batch_where_epochs_end_with_a_smaller_one(samples, is_of_loader):
    timing = time_rank(with_last_batches(samples, is_of_loader=is_of_loader), num_warmup=3, micro_batch_size=samples[0])

    of_an_epoch_s = sum(1.0 + 0.01 * num_samples for num_samples in samples)
    pass_s = of_an_epoch_s * samples[0] / sum(samples)
    assert timing.pass_times_s == pytest.approx([pass_s] * len(timing.pass_times_s), rel=0.01)
    assert len(timing.pass_times_s) == max(20 // len(samples), 4)
    assert timing.num_steps == 20


def test_a_step_of_other_passes_counts_as_one_of_the_usual_number():
    passes = [2, 2, 2, 2, 4, 2, 1, 2]
    ends_s = [0.3 * sum(passes[: number + 1]) + 0.1 * (number + 1) for number in range(len(passes))]
    steps = tuple(step(one, passes=n, update_s=0.1) for one, n in zip(ends_s, passes, strict=True))

    timing = time_rank(rank(steps=steps), num_warmup=3, micro_batch_size=4)

    assert timing.step_times_s == pytest.approx([0.7] * 5)
    assert timing.pass_times_s == pytest.approx([0.3] * 5)


@pytest.mark.parametrize("num_ahead", [0, 1])
@pytest.mark.parametrize(("rest", "passes_of_last"), [(16, 1), (1, 1), (1, 2), (31, 1)])
def test_the_last_batch_of_a_long_epoch_is_in_no_second(rest, passes_of_last, num_ahead):
    """Of two micro-batches a step; that of the last step of an epoch, or one of both, is not full."""
    size, passes = 32, [2, 2, 2, 2, 2, 2, passes_of_last]
    samples = [size] * (sum(passes) - 1) + [rest]
    read = [sum(passes[: number + 1]) + num_ahead for number in range(len(passes))]
    steps, ended_s = [], 0.0
    for number, num_passes in enumerate(passes):
        trained = samples[sum(passes[:number]) : sum(passes[: number + 1])]
        fetched = samples[read[number - 1] if number else 0 : read[number]]
        ended_s += 0.02 * sum(trained) + 0.1
        counts = {"num_passes": num_passes, "num_fetches": len(fetched), "num_samples": sum(fetched)}
        steps.append(dataclasses.replace(step(ended_s, update_s=0.1), **counts))
    given = dataclasses.replace(rank(steps=tuple(steps)), rows={size: 12, rest: 1}, num_samples=100 * size + rest)

    timing = time_rank(given, num_warmup=3, micro_batch_size=size)

    assert timing.pass_times_s == pytest.approx([0.64] * len(timing.pass_times_s))
    assert timing.step_times_s == pytest.approx([1.38] * len(timing.step_times_s))


def test_without_a_loader_batches_count_by_all_of_their_samples():
    samples = [60 + (7 * number) % 23 for number in range(23)]

    timing = time_rank(with_last_batches(samples, is_of_loader=False), num_warmup=3, micro_batch_size=82)

    seconds = [82 * (1.0 + 0.01 * number) / number for number in samples[3:]]
    assert len(timing.pass_times_s) == 4
    assert sum(timing.pass_times_s) / 4 == pytest.approx(sum(seconds) / len(seconds), rel=0.05)


@pytest.mark.parametrize("micro_batch_size", [16, 256])
def test_without_a_loader_rows_that_are_no_samples_leave_the_seconds_of_a_pass(micro_batch_size):
    lengths = [60 + (7 * number) % 23 for number in range(23)]

    rank = with_last_batches(lengths, is_of_loader=False)
    timing = time_rank(rank, num_warmup=3, micro_batch_size=micro_batch_size)

    seconds = [1.0 + 0.01 * number for number in lengths[3:]]
    assert sum(timing.pass_times_s) / 4 == pytest.approx(sum(seconds) / len(seconds))


@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_optimizers_of_one_batch_are_one_micro_batch(accumulation):
    """A critic steps with every batch, an actor with each second one, and no loader shows the batches."""
    steps, now_s = [], 0.0
    for number in range(20):
        both = number % 2
        now_s += 3.0 if both else 1.0
        one = step(now_s, passes=accumulation * (1 + both))
        counts = {"num_fetches": 0, "num_samples": 0, "num_updates": 1 + both, "num_passes_of_update": accumulation}
        steps.append(dataclasses.replace(one, **counts))

    timing = time_rank(rank(steps=tuple(steps)), num_warmup=3, micro_batch_size=4)

    assert timing.micro_batches_per_step == accumulation
    assert timing.step_times_s == pytest.approx([2.0] * len(timing.step_times_s))


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(1, 0.09), (8, 0.1), (16, 0.1), (40, 0.2), (64, 0.3), (128, 0.6), (2, 0.09 + 0.01 / 7)],
)
def test_a_step_is_expected_on_the_line_between_known_ones(size, seconds):
    assert expect_step_s({64: 0.3, 1: 0.09, 16: 0.1, 8: 0.1}, size) == pytest.approx(seconds)


def test_the_slowest_rank_is_the_timing():
    assert find_slowest(
        [rank(seconds=1.0), rank(seconds=2.0)], num_warmup=3, micro_batch_size=4
    ).step_time_s == pytest.approx(2.0)
    assert find_slowest([rank(), rank()], num_warmup=8, micro_batch_size=4) is None


def test_the_share_of_reading_is_of_the_timed_steps():
    read_s = (9.0, 9.0, 9.0, 0.25, 0.5, 0.75, 0.5, 0.5)  # the first three are of the warm-up
    steps = tuple(dataclasses.replace(step(1.0 * index), read_s=seconds) for index, seconds in enumerate(read_s))
    timing = time_rank(rank(steps=steps), num_warmup=3, micro_batch_size=4)

    assert timing.share_of_reading == pytest.approx(0.5)


def test_many_short_timings_become_means_of_equal_groups():
    assert group_means([1.0, 3.0, 5.0, 7.0, 9.0], 2) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("ready", "num_made"),
    [
        pytest.param([16, 16, 12, 10, 8, 6, 4, 3], 1, id="what was read ahead is used up"),
        pytest.param([16, 16, 10, 8, 6, 4, 2, 0], 0, id="and none is made"),
        pytest.param([3, 2, 1, 0, 1, 0, 1, 0], None, id="was used up before"),
        pytest.param([16, 15, 16, 15, 16, 15, 16, 15], None, id="the workers keep up"),
        pytest.param([16, 16, 16, 15, 14, 12, 11, 10], None, id="enough is left to tell nothing"),
        pytest.param([16, 16, 16, 11, -1, 16, 6, 3], None, id="an epoch began"),
        pytest.param([16, 16, 3], None, id="of other steps"),
    ],
)
def test_a_loader_is_slower_than_the_step_where_its_batches_are_used_up(ready, num_made):
    steps = tuple(step(1.0 * index, passes=2) for index in range(1, 9))
    ahead = {"num_workers": 8, "num_ahead": 16, "ready": ready}
    found = find_depletion(rank(steps=steps, record={"read_ahead": ahead}), num_warmup=3)

    assert (None if found is None else found.num_made) == num_made


def test_a_loader_that_is_slower_is_told_with_the_seconds_of_its_step():
    steps = tuple(step(1.0 * index, passes=2) for index in range(1, 9))
    ahead = {"num_workers": 8, "num_ahead": 16, "ready": [16, 16, 8, 8, 7, 6, 4, 3]}
    found = find_depletion(rank(steps=steps, record={"read_ahead": ahead}), num_warmup=3)

    assert found.describe(0.1).endswith(
        "while 10 batches were used, its 8 workers made 5; once those that were read ahead are used up, a step takes "
        "200 ms, not 100 ms"
    )
    assert find_depletion(rank(steps=steps, record={"read_ahead": ahead | {"num_workers": 0}}), num_warmup=3) is None
