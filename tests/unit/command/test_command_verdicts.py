"""Verdicts on what a training did, and the times of its steps, from records alone."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.command.reports import Rank, Step, share_batches
from bexplore.command.timing import expect_step_s, find_slowest, group_means, time_rank
from bexplore.command.verdicts import (
    CheckResult,
    SizeCheck,
    check_accumulation,
    check_capacity,
    check_replicas,
    is_cut,
    take_capacity,
)


def step(ended_s: float, *, passes: int = 1, rows: int = 4, update_s: float = 0.0) -> Step:
    """Return a step whose loader returned a micro-batch for each pass."""
    samples = passes * rows
    return Step(
        ended_s=ended_s,
        num_passes=passes,
        num_fetches=passes,
        num_samples=samples,
        num_elements=10 * samples,
        num_updates=1,
        update_s=update_s,
    )


def rank(number: int = 0, *, rows: int = 4, seconds: float = 1.0, digests: tuple[str, ...] = ("a",), **fields) -> Rank:
    """Return the record of a rank with eight steps."""
    steps = tuple(step(seconds * index, rows=rows, **fields) for index in range(1, 9))
    return Rank(
        outcome="observed",
        rank=number,
        world_size=1,
        steps=steps,
        rows={rows: 8},
        forward_rows=(),
        num_samples=None,
        digests=digests,
        memory={},
        record={},
    )


def test_a_size_that_was_tried_and_left_was_shrunk_by_the_program():
    check = SizeCheck()
    assert check.check([rank(rows=4)], 4, 1).result is CheckResult.VERIFIED

    finding = check.check([dataclasses.replace(rank(rows=7), rows={8: 1, 7: 8})], 8, 1)

    assert finding.result is CheckResult.CONTRADICTED
    assert finding.is_of_this_size
    assert finding.num_samples is None
    assert "auto_find_batch_size" in finding.hint


def test_a_size_that_never_changes_shows_an_ignored_placeholder():
    check = SizeCheck()
    check.check([rank(rows=4)], 4, 1)

    finding = check.check([rank(rows=4)], 8, 1)

    assert not finding.is_of_this_size
    assert "{micro_batch_size}" in finding.hint


def test_a_size_above_the_data_tells_how_many_samples_there_are():
    check = SizeCheck()
    for size in (1, 475):
        assert check.check([rank(rows=size)], size, 1).result is CheckResult.VERIFIED

    for size in (4096, 1280):  # at the second, 1,000 samples arrived before
        finding = check.check([rank(rows=1000)], size, 1)
        assert finding.is_refused and finding.is_of_this_size
        assert finding.num_samples == 1000


def test_half_of_a_size_that_was_never_tried_is_all_that_the_data_has():
    check = SizeCheck()
    check.check([rank(rows=4)], 4, 1)

    assert check.check([rank(rows=32)], 64, 1).num_samples == 32


def test_elements_verify_no_size_where_the_leading_dimension_shows_it():
    check = SizeCheck()
    for size in (1, 475):
        check.check([rank(rows=size)], size, 1)
    some_are_smaller = dataclasses.replace(packed(12800), rows={1000: 8})

    assert check.check([some_are_smaller], 1280, 1).is_refused


def packed(elements: int) -> Rank:
    """Return a rank whose micro-batches are one row of so many elements."""
    steps = tuple(dataclasses.replace(one, num_elements=elements) for one in rank(rows=1).steps)
    return dataclasses.replace(rank(rows=1), steps=steps)


def test_packed_batches_are_verified_by_their_elements_on_every_rank():
    check = SizeCheck()
    assert check.check([packed(1004), packed(1004)], 4, 1).result is CheckResult.UNCONFIRMED

    assert check.check([packed(1993), packed(1993)], 8, 1).result is CheckResult.VERIFIED
    assert check.check([packed(1993), packed(1993)], 16, 1).result is CheckResult.CONTRADICTED


def test_a_size_that_each_rank_has_its_share_of_is_a_global_batch_size():
    check = SizeCheck()
    for size, verdict in ((4, CheckResult.UNCONFIRMED), (16, CheckResult.CONTRADICTED)):
        finding = check.check([rank(number, rows=size // 2) for number in range(2)], size, 1)
        assert finding.result is verdict

    assert (
        finding.why
        == "micro-batches of 8 samples arrived where 16 were asked for: the command divides it by its 2 ranks"
    )
    assert "{global_batch_size}" in finding.hint


def test_packed_batches_at_a_first_size_of_the_ranks_are_not_divided():
    check = SizeCheck()
    check.check([packed(502), packed(502)], 2, 1)

    assert check.check([packed(1993), packed(1993)], 8, 1).result is CheckResult.VERIFIED


def test_a_first_size_that_shrank_is_found_out_by_the_next_one():
    check = SizeCheck()
    first = check.check([rank(rows=5)], 8, 1)
    assert first.result is CheckResult.UNCONFIRMED and not first.is_refused
    assert check.unconfirmed == 8

    finding = check.check([rank(rows=4)], 4, 1)

    assert finding.result is CheckResult.CONTRADICTED
    assert not finding.is_of_this_size
    assert "5 samples arrived where 8 were asked for" in finding.why


def test_an_exploration_that_goes_on_checks_a_size_by_what_arrived_before():
    before = SizeCheck()
    before.check([packed(1004)], 4, 1)
    check = SizeCheck()
    check.learn(4, before.arrived[4], CheckResult.UNCONFIRMED)

    assert check.unconfirmed == 4
    assert check.check([packed(1993)], 8, 1).result is CheckResult.VERIFIED
    assert check.unconfirmed is None


def dropping(rows: int, fetches_per_pass: int) -> Rank:
    """Return a rank that trains with one of so many batches that its loader returns."""
    whole = rank(rows=rows)
    steps = tuple(dataclasses.replace(one, num_fetches=fetches_per_pass) for one in whole.steps)
    return dataclasses.replace(whole, steps=steps)


def test_dropped_batches_contradict_a_larger_size_alone():
    check = SizeCheck()
    check.check([dropping(4, 1)], 4, 1)

    finding = check.check([dropping(8, 2)], 8, 1)

    assert finding.is_refused and finding.is_of_this_size
    assert "2.0 micro-batches of 8 arrived for each that was trained" in finding.why


def test_batches_of_other_sizes_are_not_taken_for_dropped_ones():
    check = SizeCheck()
    check.check([dropping(4, 1)], 4, 1)

    assert check.check([dataclasses.replace(dropping(8, 2), rows={8: 9, 3: 7})], 8, 1).result is CheckResult.VERIFIED


@pytest.mark.parametrize(("fetches_per_pass", "num_others", "share"), [(2, 1, 1), (4, 3, 1), (1, 1, 1), (2, 0, 2)])
def test_a_rank_that_loads_the_batches_of_all_ranks_trained_with_its_share(fetches_per_pass, num_others, share):
    loading = dataclasses.replace(dropping(8, fetches_per_pass), num_samples=120)
    others = [dataclasses.replace(dropping(8, 0), rows={}) for _ in range(num_others)]

    first, *rest = share_batches([loading, *others])

    assert {step.num_fetches for step in first.steps} == {share}
    assert first.num_samples == 120 * share // fetches_per_pass
    assert rest == others


def test_two_batches_for_each_pass_at_every_size_are_verified():
    check = SizeCheck()
    check.check([dropping(4, 2)], 4, 1)

    assert check.check([dropping(8, 2)], 8, 1).result is CheckResult.VERIFIED


@pytest.mark.parametrize(
    ("digests", "asked", "num_replicas", "verdict"),
    [
        (("a", "b"), 2, 2, CheckResult.VERIFIED),
        (("a", "b"), None, 2, CheckResult.VERIFIED),
        (("a", "a"), 2, 1, CheckResult.CONTRADICTED),
        (("a",), 2, 1, CheckResult.CONTRADICTED),
    ],
)
def test_ranks_with_batches_of_their_own_are_replicas(digests, asked, num_replicas, verdict):
    ranks = [rank(index, digests=(digest,)) for index, digest in enumerate(digests)]

    found, finding = check_replicas(ranks, asked)

    assert (found, finding.result) == (num_replicas, verdict)


def test_an_accumulation_that_did_not_happen_is_contradicted():
    timing = time_rank(rank(passes=2), num_warmup=3, micro_batch_size=4)

    assert check_accumulation(timing, 2).result is CheckResult.VERIFIED
    assert check_accumulation(timing, 4).result is CheckResult.CONTRADICTED


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
    one = dataclasses.replace(rank(), steps=tuple(steps), rows={})
    return dataclasses.replace(one, rows=dict.fromkeys(samples, 9), num_samples=sum(samples)) if is_of_loader else one


@pytest.mark.parametrize("is_of_loader", [True, False])
@pytest.mark.parametrize("samples", [[90, 10], [40, 40, 20], [100], [*[40] * 9, 20], [*[10] * 16, 5]])
def test_a_pass_is_of_a_full_batch_where_epochs_end_with_a_smaller_one(samples, is_of_loader):
    timing = time_rank(with_last_batches(samples, is_of_loader=is_of_loader), num_warmup=3, micro_batch_size=samples[0])

    of_an_epoch_s = sum(1.0 + 0.01 * num_samples for num_samples in samples)
    pass_s = of_an_epoch_s * samples[0] / sum(samples)
    assert timing.pass_times_s == pytest.approx([pass_s] * len(timing.pass_times_s), rel=0.01)
    assert len(timing.pass_times_s) == max(20 // len(samples), 4)
    assert timing.num_steps == 20


def test_without_a_loader_batches_count_by_all_of_their_samples():
    samples = [60 + (7 * number) % 23 for number in range(23)]

    timing = time_rank(with_last_batches(samples, is_of_loader=False), num_warmup=3, micro_batch_size=100)

    seconds = [100 * (1.0 + 0.01 * number) / number for number in samples[3:]]
    assert len(timing.pass_times_s) == 4
    assert sum(timing.pass_times_s) / 4 == pytest.approx(sum(seconds) / len(seconds), rel=0.05)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(1, 0.09), (8, 0.1), (16, 0.1), (40, 0.2), (64, 0.3), (128, 0.6), (2, 0.09 + 0.01 / 7)],
)
def test_a_step_is_expected_on_the_line_between_known_ones(size, seconds):
    assert expect_step_s({64: 0.3, 1: 0.09, 16: 0.1, 8: 0.1}, size) == pytest.approx(seconds)


def test_the_seconds_of_an_evaluation_are_of_no_step():
    steps = list(rank(seconds=1.0).steps)
    steps[5:] = [dataclasses.replace(one, ended_s=one.ended_s + 30.0) for one in steps[5:]]
    steps[5] = dataclasses.replace(steps[5], evaluation_s=30.0)

    timing = time_rank(dataclasses.replace(rank(), steps=tuple(steps)), num_warmup=3, micro_batch_size=4)

    assert timing.step_times_s == pytest.approx([1.0] * 5)


def test_the_slowest_rank_is_the_timing():
    assert find_slowest(
        [rank(seconds=1.0), rank(seconds=2.0)], num_warmup=3, micro_batch_size=4
    ).step_time_s == pytest.approx(2.0)
    assert find_slowest([rank(), rank()], num_warmup=8, micro_batch_size=4) is None


def test_many_short_timings_become_means_of_equal_groups():
    assert group_means([1.0, 3.0, 5.0, 7.0, 9.0], 2) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("longest", "num_samples", "is_divided"), [(32, None, True), (32, 100, True), (32, 32, False), (64, None, False)]
)
def test_each_ranks_share_of_the_larger_size_is_that_of_a_global_batch(longest, num_samples, is_divided):
    record = {"num_cut_lists": 8, "longest_cut_list": longest}
    ranks = [dataclasses.replace(rank(number), record=record, num_samples=num_samples) for number in range(2)]

    finding = check_capacity(ranks, 64)

    assert (finding is not None) == is_divided
    assert finding is None or "divides it by its 2 ranks" in finding.why


@pytest.mark.parametrize(
    ("rows", "num_cut", "verdict"),
    [
        pytest.param(4, 9, True, id="every batch was cut"),
        pytest.param(4, 0, False, id="nothing was cut"),
        pytest.param(4, 5, False, id="batches of another loader were cut"),
        pytest.param(16, 9, False, id="whole batches of the command arrived"),
    ],
)
def test_a_size_is_cut_where_all_batches_come_from_cut_lists(rows, num_cut, verdict):
    one = dataclasses.replace(rank(rows=rows), record={"num_cut_lists": num_cut})
    stage = dataclasses.replace(rank(), rows={}, record={"num_cut_lists": 0})
    of_pipeline = dataclasses.replace(stage, steps=tuple(dataclasses.replace(s, num_fetches=0) for s in stage.steps))

    assert is_cut([one, of_pipeline], 4, 16) is verdict


def listed(rows: int, *, num_samples: int | None = 8192, longest: int = 0) -> Rank:
    """Return a rank whose loader took its batches from lists of so many samples."""
    record = {"list_lengths": {str(rows): 3}, "longest_cut_list": longest, "num_cut_lists": 8}
    return dataclasses.replace(rank(rows=rows), record=record, num_samples=num_samples)


@pytest.mark.parametrize(
    ("takes", "verdicts", "words"),
    [
        pytest.param(lambda size: 16, {1: "unconfirmed", 8: "contradicted"}, "write {micro", id="never changes"),
        pytest.param(lambda size: 16, {16: "verified", 32: "contradicted"}, "write {micro", id="is the size by chance"),
        pytest.param(lambda size: 2 * size, {1: "unconfirmed", 8: "contradicted"}, "write {micro", id="twice the size"),
        pytest.param(
            lambda size: max(1, size // 4), {1: "verified", 64: "contradicted"}, "no more|rounds", id="is divided"
        ),
        pytest.param(
            lambda size: 1 << (size.bit_length() - 1),
            {1: "verified", 64: "verified", 40: "contradicted"},
            "rounds",
            id="is rounded down",
        ),
        pytest.param(
            lambda size: 1 << (size - 1).bit_length(),
            {1: "verified", 2: "verified", 40: "contradicted"},
            "rounds",
            id="is rounded up",
        ),
    ],
)
def test_a_command_that_takes_other_sizes_than_asked_is_found_out(takes, verdicts, words):
    check = SizeCheck()
    for size, verdict in verdicts.items():
        finding = check.check([listed(takes(size))], size, 1)
        assert finding.result.value == verdict, size

    assert any(word in f"{finding.why} {finding.hint}" for word in words.split("|"))
    assert "the data has no more" not in finding.why


@pytest.mark.parametrize(("num_samples", "words"), [(8192, "the command takes no more"), (32, "the data has no more")])
def test_a_largest_size_is_of_the_data_only_where_the_data_has_no_more(num_samples, words):
    check = SizeCheck()
    for size in (1, 4):
        check.check([listed(size)], size, 1)

    finding = check.check([listed(32, num_samples=num_samples)], 64, 1)

    assert words in finding.why
    assert finding.is_of_this_size and finding.num_samples == 32


def test_batches_that_were_cut_do_not_show_that_sizes_are_followed():
    check = SizeCheck()
    assert not take_capacity(check, [listed(1, longest=16)], 64)
    for size in (1, 2, 4):
        check.check([listed(size, longest=16)], size, 1, cut_from=64)

    finding = check.check([listed(16)], 32, 1)

    assert finding.is_refused and not finding.is_of_this_size
    assert "{micro_batch_size}" in finding.hint


def test_a_start_whose_lists_are_all_of_the_data_shows_nothing_and_goes_on():
    check = SizeCheck()

    assert take_capacity(check, [listed(1, num_samples=20, longest=20)], 64)
    assert check.given == {}


def test_where_all_starts_were_given_one_size_another_start_is_needed():
    check = SizeCheck()
    assert take_capacity(check, [listed(1, longest=64)], 64)
    check.check([listed(1, longest=64)], 1, 1, cut_from=64)
    assert check.size_to_confirm == 1

    assert check.check([listed(64)], 1, 1).is_refused
    resumed = SizeCheck()
    resumed.learn(1, dataclasses.replace(check.arrived[1], cut_from=64), CheckResult.VERIFIED)
    assert resumed.size_to_confirm == 1


def test_what_arrived_at_a_size_before_does_not_show_that_it_is_followed():
    check = SizeCheck()
    for size in (4, 8):
        assert check.check([rank(rows=size)], size, 1).result is CheckResult.VERIFIED

    finding = check.check([rank(rows=4)], 8, 1, cut_from=16)

    assert finding.is_refused and "{micro_batch_size}" in finding.hint
