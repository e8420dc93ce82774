"""Verdicts on what a training did, from records alone."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.command.reports import Rank, share_batches
from bexplore.command.timing import time_rank
from bexplore.command.verdicts import (
    CheckResult,
    SizeCheck,
    check_accumulation,
    check_capacity,
    check_replicas,
    is_cut,
    take_capacity,
)
from tests.unit.command.builders import rank


@pytest.fixture
def check() -> SizeCheck:
    return SizeCheck()


def packed(elements: int) -> Rank:
    """Return a rank whose micro-batches are one row of so many elements."""
    steps = tuple(dataclasses.replace(one, num_elements=elements) for one in rank(rows=1).steps)
    return dataclasses.replace(rank(rows=1), steps=steps)


def dropping(rows: int, fetches_per_pass: int) -> Rank:
    """Return a rank that trains with one of so many batches that its loader returns."""
    whole = rank(rows=rows)
    steps = tuple(dataclasses.replace(one, num_fetches=fetches_per_pass) for one in whole.steps)
    return dataclasses.replace(whole, steps=steps)


def filling(rows: int, depth: int) -> Rank:
    """Return a rank whose program fills a queue of so many batches before its first step."""
    whole = rank(rows=rows)
    first = dataclasses.replace(whole.steps[0], num_fetches=1 + depth)
    return dataclasses.replace(whole, steps=(first, *whole.steps[1:]))


def both(one: Rank) -> list[Rank]:
    return [one, dataclasses.replace(one, rank=1)]


def with_rows(one: Rank, rows: dict[int, int]) -> Rank:
    return dataclasses.replace(one, rows=rows)


VERIFIED, UNCONFIRMED, CONTRADICTED = CheckResult.VERIFIED, CheckResult.UNCONFIRMED, CheckResult.CONTRADICTED
FOUR = (4, [rank(rows=4)], VERIFIED)
PACKED = (4, both(packed(1004)), UNCONFIRMED)
FAR_APART = (1, [rank(rows=1)], VERIFIED), (475, [rank(rows=475)], VERIFIED)


# What was asked for of which ranks, in order, and the verdicts; of the last one: of this size alone, samples, words.
NOT_ARRIVED = {
    "a size that was tried and left was shrunk by the program": (
        [FOUR, (8, [with_rows(rank(rows=7), {8: 1, 7: 8})], CONTRADICTED)],
        (True, None, "auto_find_batch_size"),
    ),
    "a size that never changes shows an ignored placeholder": (
        [FOUR, (8, [rank(rows=4)], CONTRADICTED)],
        (False, None, "{micro_batch_size}"),
    ),
    "a size above the data tells how many samples there are": (
        [*FAR_APART, *((size, [rank(rows=1000)], CONTRADICTED) for size in (4096, 1280))],
        (True, 1000, ""),
    ),
    "half of a size that was never tried is all that the data has": (
        [FOUR, (64, [rank(rows=32)], CONTRADICTED)],
        (True, 32, ""),
    ),
    "elements in proportion verify no size where the leading dimension shows it": (
        [*FAR_APART, (1280, [with_rows(packed(12800), {1000: 8})], CONTRADICTED)],
        (True, 1000, ""),
    ),
    "packed batches are verified by their elements on every rank": (
        [PACKED, (8, both(packed(1993)), VERIFIED), (16, both(packed(1993)), CONTRADICTED)],
        (False, None, ""),
    ),
    "a size that each rank has its share of is a global batch size": (
        [(4, both(rank(rows=2)), UNCONFIRMED), (16, both(rank(rows=8)), CONTRADICTED)],
        (False, None, "{global_batch_size}"),
    ),
    "a first size that shrank is found out by the next one": (
        [(8, [rank(rows=5)], UNCONFIRMED), (4, [rank(rows=4)], CONTRADICTED)],
        (False, None, "5 samples arrived where 8 were asked for"),
    ),
    "dropped batches contradict a larger size alone": (
        [(4, [dropping(4, 1)], VERIFIED), (8, [dropping(8, 2)], CONTRADICTED)],
        (True, None, "2.0 micro-batches of 8 arrived for each that was trained"),
    ),
}


@pytest.mark.parametrize(("probes", "told"), NOT_ARRIVED.values(), ids=NOT_ARRIVED)
def test_a_size_that_did_not_arrive_is_contradicted(check, probes, told):
    for size, ranks, verdict in probes:
        finding = check.check(ranks, size, 1)
        assert (finding.result, finding.is_refused) == (verdict, verdict is CONTRADICTED), size

    is_of_this_size, num_samples, words = told
    assert (finding.is_of_this_size, finding.num_samples) == (is_of_this_size, num_samples)
    assert words in f"{finding.why} {finding.hint}"


@pytest.mark.parametrize(
    "probes",
    [
        pytest.param([(2, both(packed(502))), (8, both(packed(1993)))], id="packed, first as many as ranks"),
        pytest.param([(4, [dropping(4, 2)]), (8, [dropping(8, 2)])], id="two batches for each pass at every size"),
        pytest.param(
            [(4, [dropping(4, 1)]), (8, [with_rows(dropping(8, 2), {8: 9, 3: 7})])],
            id="batches of other sizes are not dropped ones",
        ),
        pytest.param([(4, [rank(rows=4)]), (8, [filling(8, 12)])], id="a queue that fills at the first step"),
    ],
)
def test_a_size_that_arrived_in_another_form_is_verified(check, probes):
    results = [check.check(ranks, size, 1).result for size, ranks in probes]

    assert results[-1] is VERIFIED and CONTRADICTED not in results


def called_with(size: int, lengths: list[int]) -> Rank:
    """Return a rank without a loader, whose model was called with positions of so many samples of these lengths."""
    steps = tuple(dataclasses.replace(one, num_fetches=0, num_elements=0) for one in rank().steps)
    calls = tuple((length, size * length) for length in lengths)
    return dataclasses.replace(rank(), rows={}, forward_rows=calls, steps=steps)


@pytest.mark.parametrize(
    ("asked", "taken", "lengths", "result"),
    [
        pytest.param(8, 8, [9, 20, 11, 16, 21, 10, 18], VERIFIED, id="of a few batches, the next have other lengths"),
        pytest.param(8, 4, [9, 20, 11, 16, 21, 10, 18], CONTRADICTED, id="as many samples as before"),
        pytest.param(8, 8, [16, 16, 17, 16, 16, 17, 16], CONTRADICTED, id="lengths that hardly differ were others"),
    ],
)
def test_sizes_without_a_loader_are_compared_within_the_error_of_their_lengths(check, asked, taken, lengths, result):
    first = [5, 22, 13, 8, 19, 14, 12] if min(lengths) < 16 else [14, 14, 13, 14, 14, 13, 14]
    assert check.check([called_with(4, first)], 4, 1).result is UNCONFIRMED

    assert check.check([called_with(taken, lengths)], asked, 1).result is result


def rendered(num_rays: int, *, chunk: int = 1000) -> Rank:
    """Return a rank without a loader, whose model is called with 100 points of each ray, so many of them at once."""
    points = 100 * num_rays
    last = points % chunk or chunk
    steps = tuple(dataclasses.replace(one, num_fetches=0, num_elements=0) for one in rank().steps)
    seen = {"forward_rows": ((last, 3 * last),) * 4, "elements_of_parts": (3 * points,) * 4}
    return dataclasses.replace(rank(), rows={}, steps=steps, **seen)


@pytest.mark.parametrize("sizes", [(4, 64), (64, 4), (64, 57), (64, 128, 33)])
def test_a_size_is_verified_by_the_sum_of_the_parts_that_a_model_is_called_with(check, sizes):
    results = [check.check([rendered(size)], size, 1).result for size in sizes]

    assert results == [UNCONFIRMED] + [VERIFIED] * (len(sizes) - 1)


def test_parts_of_a_batch_that_ignores_the_size_are_contradicted(check):
    assert check.check([rendered(64)], 64, 1).result is UNCONFIRMED

    assert check.check([rendered(64)], 128, 1).result is CONTRADICTED


def of_rows(rows: int) -> Rank:
    """Return a rank without a loader, whose model was called with batches of so many rows."""
    return dataclasses.replace(called_with(rows, [1]), forward_rows=((rows, 2 * rows),) * 4)


@pytest.mark.parametrize(("rows_per_size", "has_rows"), [(1, True), (4, False)])
def test_what_arrived_tells_whether_a_batch_has_a_row_for_each_of_its_size(check, rows_per_size, has_rows):
    for size in (4, 16):
        rows = rows_per_size * size
        check.check([of_rows(rows)], size, 1)

    assert [seen.has_rows_of_size for seen in check.arrived.values()] == [has_rows] * 2


@pytest.mark.parametrize(("rows", "result"), [(2976, VERIFIED), (2490, CONTRADICTED), (481, CONTRADICTED)])
def test_batches_with_as_many_rows_beside_their_size_at_every_size_are_verified(check, rows, result):
    assert check.check([of_rows(481)], 1, 1).result is UNCONFIRMED

    assert check.check([of_rows(rows)], 2496, 1).result is result


def batches_of_tokens(num_tokens: int, *, is_short: bool = False, length: int = 25) -> Rank:
    """Return a rank whose batches end with the sample that reaches so many tokens; each third ends a short epoch."""
    rows = -(-num_tokens // length)
    steps = [dataclasses.replace(one, num_samples=rows, num_elements=rows * length) for one in rank().steps]
    if is_short:
        steps[2::3] = [dataclasses.replace(one, num_samples=1, num_elements=length) for one in steps[2::3]]
    return dataclasses.replace(rank(), steps=tuple(steps), rows={rows: 6, 1: 2} if is_short else {rows: 8})


@pytest.mark.parametrize("is_short", [False, True])
def test_batches_of_a_number_of_tokens_are_in_proportion_within_a_sample(check, is_short):
    assert check.check([batches_of_tokens(128)], 128, 1).result is UNCONFIRMED  # 150 tokens of 6 samples

    assert check.check([batches_of_tokens(4096, is_short=is_short)], 4096, 1).result is VERIFIED
    assert check.check([batches_of_tokens(1030)], 2048, 1).result is CONTRADICTED


def test_a_few_odd_batches_contradict_no_size_once_two_have_followed(check):
    for size in (128, 4096):
        check.check([batches_of_tokens(size)], size, 1)

    assert check.check([batches_of_tokens(690)], 784, 1).result is VERIFIED  # 12 % less
    assert check.check([batches_of_tokens(1030)], 2048, 1).result is CONTRADICTED


def test_batches_without_a_sample_are_contradicted(check):
    assert check.check([batches_of_tokens(128)], 128, 1).result is UNCONFIRMED

    empty = dataclasses.replace(batches_of_tokens(128), rows={0: 8})
    assert check.check([empty], 256, 1).result is CONTRADICTED


@pytest.mark.parametrize(("rows", "result"), [(8, CONTRADICTED), (4, VERIFIED)])
def test_a_batch_for_each_device_of_data_parallel_is_refused_with_its_name(check, rows, result):
    own = rank(rows=rows)
    own = dataclasses.replace(own, record={**own.record, "parallel_devices": 2})

    finding = check.check([own], 4, 1)

    assert finding.result is result
    assert ("nn.DataParallel gives each of its 2 devices a part" in finding.why) == (rows == 8)


def test_the_batch_of_all_ranks_is_told_in_words(check):
    for size in (4, 16):
        finding = check.check(both(rank(rows=size // 2)), size, 1)

    told = "micro-batches of 8 samples arrived where 16 were asked for: the command divides it by its 2 ranks"
    assert finding.why == told


def shared_by_loaders(size: int, least: int = 1) -> Rank:
    """Return a rank of two loaders with half of the size each, and one sample at least; those of size 1 count alone."""
    part = max(round(size / 2), least)
    return rank(rows=size if part == size else 2 * part, record={"rows_together": {str(2 * part): 8}})


def test_a_part_that_each_loader_rounds_up_is_told_by_the_next_size(check):
    assert not check.check([shared_by_loaders(1)], 1, 1).is_refused
    finding = check.check([shared_by_loaders(8)], 8, 1)

    assert finding.result is CONTRADICTED and not finding.is_of_this_size
    assert "2 samples arrived where 1 were asked for" in finding.why and "explore.min=2" in finding.hint


def test_a_small_size_that_loaders_round_up_fails_alone_behind_one_that_they_share(check):
    assert check.check([shared_by_loaders(8)], 8, 1).result is VERIFIED
    finding = check.check([shared_by_loaders(1)], 1, 1)

    assert finding.result is CONTRADICTED and finding.is_of_this_size


def test_loaders_with_a_batch_of_the_size_each_are_verified_at_all_sizes(check):
    for size in (1, 8, 2):
        own = rank(rows=size, record={"rows_together": {str(2 * size): 8}})
        assert check.check([own], size, 1).result is VERIFIED


@pytest.mark.parametrize(
    ("lists", "num_samples", "result"),
    [(8, 1000, CONTRADICTED), (16, 1000, UNCONFIRMED), (None, 1000, UNCONFIRMED), (8, 8, UNCONFIRMED)],
)
def test_a_share_is_told_at_once_where_the_loader_was_asked_for_it(check, lists, num_samples, result):
    record = {"list_lengths": {str(lists): 8}} if lists else {}

    finding = check.check(both(rank(rows=8, record=record, num_samples=num_samples)), 16, 1)

    assert finding.result is result
    assert ("divides it by its 2 ranks" in finding.why) == (result is CONTRADICTED)


def test_an_exploration_that_goes_on_checks_a_size_by_what_arrived_before(check):
    before = SizeCheck()
    before.check([packed(1004)], 4, 1)
    check.learn(4, before.arrived[4], UNCONFIRMED)

    assert check.unconfirmed == 4
    assert check.check([packed(1993)], 8, 1).result is VERIFIED
    assert check.unconfirmed is None


@pytest.mark.parametrize(("fetches_per_pass", "num_others", "share"), [(2, 1, 1), (4, 3, 1), (1, 1, 1), (2, 0, 2)])
def test_a_rank_that_loads_the_batches_of_all_ranks_trained_with_its_share(fetches_per_pass, num_others, share):
    loading = dataclasses.replace(dropping(8, fetches_per_pass), num_samples=120)
    others = [dataclasses.replace(dropping(8, 0), rows={}) for _ in range(num_others)]

    first, *rest = share_batches([loading, *others])

    assert {step.num_fetches for step in first.steps} == {share}
    assert first.num_samples == 120 * share // fetches_per_pass
    assert rest == others


@pytest.mark.parametrize(
    ("digests", "asked", "num_replicas", "verdict"),
    [
        (("a", "b"), 2, 2, VERIFIED),
        (("a", "b"), None, 2, VERIFIED),
        (("a", "a"), 2, 1, CONTRADICTED),
        (("a",), 2, 1, CONTRADICTED),
    ],
)
def test_ranks_with_batches_of_their_own_are_replicas(digests, asked, num_replicas, verdict):
    ranks = [rank(index, digests=(digest,)) for index, digest in enumerate(digests)]

    found, finding = check_replicas(ranks, asked)

    assert (found, finding.result) == (num_replicas, verdict)


def test_an_accumulation_that_did_not_happen_is_contradicted():
    timing = time_rank(rank(passes=2), num_warmup=3, micro_batch_size=4)

    assert check_accumulation(timing, 2).result is VERIFIED
    assert check_accumulation(timing, 4).result is CONTRADICTED


@pytest.mark.parametrize(
    ("longest", "num_samples", "is_divided"), [(32, None, True), (32, 100, True), (32, 32, False), (64, None, False)]
)
def test_each_ranks_share_of_the_larger_size_is_that_of_a_global_batch(longest, num_samples, is_divided):
    record = {"num_cut_lists": 8, "longest_cut_list": longest}
    ranks = [rank(number, record=record, num_samples=num_samples) for number in range(2)]

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
    one = rank(rows=rows, record={"num_cut_lists": num_cut})
    stage = dataclasses.replace(rank(), rows={}, record={"num_cut_lists": 0})
    of_pipeline = dataclasses.replace(stage, steps=tuple(dataclasses.replace(s, num_fetches=0) for s in stage.steps))

    assert is_cut([one, of_pipeline], 4, 16) is verdict


def listed(rows: int, *, num_samples: int | None = 8192, longest: int = 0) -> Rank:
    """Return a rank whose loader took its batches from lists of so many samples."""
    record = {"list_lengths": {str(rows): 3}, "longest_cut_list": longest, "num_cut_lists": 8}
    return rank(rows=rows, record=record, num_samples=num_samples)


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
def test_a_command_that_takes_other_sizes_than_asked_is_found_out(check, takes, verdicts, words):
    for size, verdict in verdicts.items():
        finding = check.check([listed(takes(size))], size, 1)
        assert finding.result.value == verdict, size

    assert any(word in f"{finding.why} {finding.hint}" for word in words.split("|"))
    assert "the data has no more" not in finding.why


@pytest.mark.parametrize(("num_samples", "words"), [(8192, "the command takes no more"), (32, "the data has no more")])
def test_a_largest_size_is_of_the_data_only_where_the_data_has_no_more(check, num_samples, words):
    for size in (1, 4):
        check.check([listed(size)], size, 1)

    finding = check.check([listed(32, num_samples=num_samples)], 64, 1)

    assert words in finding.why
    assert finding.is_of_this_size and finding.num_samples == 32


@pytest.mark.parametrize(
    ("takes", "sizes"),
    [
        pytest.param(lambda size: max(8 * (size // 8), size % 8), [8, 256, 49, 50, 100], id="multiples of 8, below"),
        pytest.param(lambda size: -(-size // 8) * 8, [8, 256, 49, 50, 100], id="multiples of 8, above"),
        pytest.param(lambda size: 1 << (size.bit_length() - 1), [64, 40, 48, 63], id="powers of two"),
        pytest.param(lambda size: max(size, 16), [64, 10, 12], id="a least size"),
    ],
)
def test_a_size_that_the_command_rounds_fails_and_leaves_the_others(check, takes, sizes):
    for size in sizes:
        finding = check.check([listed(takes(size))], size, 1)
        is_taken = takes(size) == size
        assert (finding.result is VERIFIED, finding.is_rounded, finding.is_of_this_size) == (
            is_taken,
            not is_taken,
            not is_taken,
        ), size


def test_a_first_size_that_was_rounded_up_has_the_least_size_to_start_from(check):
    assert check.check([listed(16)], 1, 1).result is CheckResult.UNCONFIRMED

    finding = check.check([listed(64)], 64, 1)

    assert finding.is_refused and not finding.is_of_this_size
    assert "--set explore.min=16" in finding.hint


def test_batches_that_were_cut_do_not_show_that_sizes_are_followed(check):
    assert not take_capacity(check, [listed(1, longest=16)], 64)
    for size in (1, 2, 4):
        check.check([listed(size, longest=16)], size, 1, cut_from=64)

    finding = check.check([listed(16)], 32, 1)

    assert finding.is_refused and not finding.is_of_this_size
    assert "{micro_batch_size}" in finding.hint


def test_a_start_whose_lists_are_all_of_the_data_shows_nothing_and_goes_on(check):
    assert take_capacity(check, [listed(1, num_samples=20, longest=20)], 64)
    assert check.given == {}


def test_where_all_starts_were_given_one_size_another_start_is_needed(check):
    assert take_capacity(check, [listed(1, longest=64)], 64)
    check.check([listed(1, longest=64)], 1, 1, cut_from=64)
    assert check.size_to_confirm == 1

    assert check.check([listed(64)], 1, 1).is_refused
    resumed = SizeCheck()
    resumed.learn(1, dataclasses.replace(check.arrived[1], cut_from=64), VERIFIED)
    assert resumed.size_to_confirm == 1


def test_what_arrived_at_a_size_before_does_not_show_that_it_is_followed(check):
    for size in (4, 8):
        assert check.check([rank(rows=size)], size, 1).result is VERIFIED

    finding = check.check([rank(rows=4)], 8, 1, cut_from=16)

    assert finding.is_refused and "{micro_batch_size}" in finding.hint
