"""What a loop that trains tells of the accumulation to which its warmup rises."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from bexplore.command.observer.bexplore_observer.warmups import find_accumulation_after_warmup


def update() -> int | None:
    return find_accumulation_after_warmup(sys._getframe())


def script(ni: int, nw: int) -> int | None:
    """Train as YOLOv5 does."""
    nbs, batch_size = 64, 12
    return update() if (ni, nw, nbs, batch_size) else None


def script_of_ranks(ni: int, nw: int) -> int | None:
    """Train as YOLOv7 does on two ranks."""
    nbs, batch_size, total_batch_size = 64, 8, 16
    return update() if (ni, nw, nbs, batch_size, total_batch_size) else None


class Trainer:
    """Trains as ultralytics does, before and after it kept the usual accumulation by itself."""

    args, batch_size = SimpleNamespace(nbs=64), 16

    def train(self, ni: int, nw: int) -> int | None:
        return self.step() if (ni, nw) else None

    def train_capped(self, ni: int, nw: int) -> int | None:
        acc0 = 3
        return self.step() if (ni, nw, acc0) else None

    def step(self) -> int | None:
        return update()


@pytest.mark.parametrize(
    ("train", "after_warmup"), [(script, 5), (script_of_ranks, 4), (Trainer().train, 4), (Trainer().train_capped, 3)]
)
def test_the_accumulation_behind_a_warmup_is_read_from_the_loop_that_is_in_it(train, after_warmup):
    assert [train(0, 100), train(100, 100), train(101, 100), train(0, -1)] == [after_warmup, after_warmup, None, None]


def test_a_loop_that_names_its_variables_otherwise_has_no_warmup():
    def loop(ni: str, nw: str) -> int | None:
        return update() if (ni, nw) else None

    assert loop("a", "b") is None and update() is None
