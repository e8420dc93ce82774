"""One function over many problems, a process for each core: no answer depends on another."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

_asked: list[Any] = []  # inherited by the fork: a simulated job holds functions, which no pipe carries


def in_parallel(answer: Callable[[Asked], Answered], asked: Sequence[Asked]) -> list[Answered]:
    """The answers, in order."""
    _asked[:] = [answer, asked]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        return pool.map(_answer_number, range(len(asked)), chunksize=4)


def _answer_number(number: int) -> Any:
    answer, asked = _asked
    return answer(asked[number])
