"""Whether a user's batches have as many samples as they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bexplore.errors import UnusableSizeError, UserInputError
from bexplore.workloads import build
from bexplore.workloads.batches import find_batch_layout
from tests.builders import imported_job


@dataclass
class Graphs:
    """A batch that only its own code can take apart."""

    num_graphs: int


def packed(n: int) -> dict[str, torch.Tensor]:
    """Samples of different lengths, end to end, and where each begins."""
    lengths = torch.tensor([3 + 7 * (i % 3) + i for i in range(n)])
    return {"tokens": torch.zeros(int(lengths.sum())), "offsets": nn.functional.pad(lengths.cumsum(0), (1, 0))}


BATCHES: dict[str, tuple[Callable[[int], Any], list[int | None] | None, bool]] = {
    "rows": (lambda n: torch.zeros(n, 3), [0], True),
    "pairs and a scale": (lambda n: (torch.zeros(n, 3), torch.zeros(n), torch.tensor(2.0)), [0, 0, None], True),
    "time first": (lambda n: torch.zeros(7, n, 3), [1], True),
    "padded to the longest": (lambda n: torch.zeros(5 + n % 3, n), [1], True),
    "similarities of all pairs": (lambda n: torch.zeros(n, n), [0], True),
    "two views of each": (lambda n: torch.zeros(2 * n, 3), [0], True),
    "tokens end to end": (lambda n: torch.zeros(128 * n), [0], True),
    "negatives shared by all": (lambda n: (torch.zeros(n, 3), torch.zeros(n + 7, 3)), [0, 0], True),
    "a list of samples": (lambda n: [torch.zeros(3) for _ in range(n)], None, True),
    "a list of samples and a scale": (lambda n: ([torch.zeros(3)] * n, torch.tensor(2.0)), None, False),
    "packed tokens": (packed, [0, 0], False),
    "texts": (lambda n: (["a"] * n, torch.tensor(2.0)), [None], False),
    "an object": (lambda n: (Graphs(n), torch.tensor(2.0)), [None], False),
    "filled up to 8": (lambda n: torch.zeros(-(-n // 8) * 8, 3), [0], True),
}


@pytest.mark.parametrize("name", BATCHES)
def test_where_the_samples_are_is_found_and_whether_they_can_be_seen(name):
    make_batch, dimensions, is_seen = BATCHES[name]

    layout = find_batch_layout(make_batch)

    assert layout.dimensions == dimensions
    assert layout.is_seen is is_seen
    for size in (32, 48):
        layout.check(make_batch(size), size)


@pytest.mark.parametrize(
    ("make_batch", "told"),
    [
        (lambda n: torch.zeros(8, 3), r"alike: \(8, 3\)"),
        (lambda n: (torch.zeros(8, 3), torch.zeros(8)), r"alike: \(8, 3\), \(8,\)"),
        (lambda n: [torch.zeros(3)] * 8, r"alike"),
        (lambda n: torch.zeros(min(n, 2), 3), r"alike"),
        (lambda n: torch.zeros(n + 1, 3), r"\(3, 3\), one of 4 samples \(5, 3\): 1 too many"),
        (lambda n: (torch.zeros(n - 1, 3), torch.zeros(n - 1)), r"\(1, 3\).*1 too few"),
    ],
)
def test_batches_that_do_not_grow_with_their_size_are_refused(make_batch, told):
    with pytest.raises(UserInputError, match=told) as caught:
        find_batch_layout(make_batch)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("make_batch", "size"),
    [
        (lambda n: torch.zeros(min(n, 50), 3), 64),
        (lambda n: [torch.zeros(3)] * min(n, 50), 64),
        (lambda n: torch.zeros(-(-n // 8) * 8, 3), 12),
        (lambda n: (torch.zeros(n, 3),) + (torch.zeros(n),) * (1 + (n > 50)), 64),
        (lambda n: (torch.zeros(n, 3), torch.zeros(n - (n > 50))), 64),
    ],
)
def test_a_batch_of_another_size_than_it_was_asked_for_is_found(make_batch, size):
    layout = find_batch_layout(make_batch)
    layout.check(make_batch(16), 16)

    with pytest.raises(UnusableSizeError, match=f"a batch of {size} samples is needed, and it "):
        layout.check(make_batch(size), size)


def test_the_users_own_count_stands_where_shapes_show_nothing():
    def count(batch: dict[str, torch.Tensor]) -> int:
        return len(batch["offsets"]) - 1

    layout = find_batch_layout(packed, samples_of=count)

    assert layout.is_seen
    layout.check(packed(9), 9)
    with pytest.raises(UnusableSizeError, match="samples_of counts 9 in it"):
        layout.check(packed(9), 10)
    with pytest.raises(UserInputError, match=r"counts 3 and 5 samples in batches of 2 and 4"):
        find_batch_layout(packed, samples_of=lambda batch: len(batch["offsets"]))


def test_a_count_that_reads_values_is_left_out_while_there_are_none():
    def make_batch(n: int) -> torch.Tensor:
        return torch.full((5,), float(n))

    with FakeTensorMode():
        layout = find_batch_layout(make_batch, samples_of=lambda batch: int(batch[0]))
        layout.check(make_batch(9), 9)

    assert layout.dimensions == [None]


def test_a_built_job_checks_each_batch_that_it_makes():
    workload = build(imported_job(batch="at_most_fifty"))

    assert workload.make_batch(50)[0][0].shape[0] == 50
    with pytest.raises(UnusableSizeError, match=r"a batch of 51 samples is needed"):
        workload.make_batch(51)


def test_an_object_goes_to_the_device_by_its_own_method():
    workload = build(imported_job(model="takes_graphs", batch="graphs"))

    assert not workload.samples_are_seen
    assert workload.make_batch(3)[0].device == torch.device("cpu")
