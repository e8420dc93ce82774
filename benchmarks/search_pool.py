"""Every core at work on the problems of the search benchmark."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from benchmarks.search_problems import Problem

Found = TypeVar("Found")
_asked: list[Any] = []


def over_cores(ask: Callable[[Problem], Found | None], problems: Sequence[Problem]) -> list[Found]:
    """What there is to say of some problems, in order, from one process for each core: none depends on another."""
    _asked[:] = [ask, problems]  # inherited by the fork: a world holds functions, which no pipe carries
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        found = pool.map(_ask_number, range(len(problems)), chunksize=4)
    return [item for item in found if item is not None]


def _ask_number(number: int) -> Any:
    ask, problems = _asked
    return ask(problems[number])
